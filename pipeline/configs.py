"""`--model NAME`, `--data NAME`, `--profile NAME`: YAML files under `configs/`, merged in a fixed order.

    command line  >  profile  >  model  >  configs/trainer/default.yaml  >  the classes' own defaults

A model file has the section `model` (class_path, init_args) and perhaps `trainer`. A data file has `data` (class_path,
init_args) and the name of its default `profile`. A profile holds what differs from the models' settings, by model name:
patterns such as `bert_*`, each with `model` and `trainer` values, later ones overriding earlier ones; and `leave_out`,
rows that `--model all` does not train. Each file may extend others of its kind.

A YAML file of your own may name a class of your own: its module is looked up beside the file, too.
"""

from __future__ import annotations

import re
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lexical.errors import ArgumentParser, UserError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEFAULT_DATA = "pydocs_passage"
SECTIONS = {
    "model": {"model", "trainer"},
    "data": {"data", "profile"},
    "profile": {"models", "leave_out"},
    "trainer": {"trainer"},
}


class Choice(NamedTuple):
    """A named class and its settings, before the command line overrides them."""

    name: str
    class_path: str
    settings: dict[str, Any]
    file: str | None  # the user's own YAML file

    @property
    def target(self) -> type:
        """The class; imports it."""
        from lightning_modules.trained import import_class

        import_from(self.file)
        return import_class(self.class_path, self.name)


class Resolved(NamedTuple):
    """What the names on a command line stand for."""

    model: Choice | None
    data: Choice
    trainer: dict[str, Any]
    profile: str | None
    left_out: list[str]  # patterns of the rows that `--model all` does not train
    rest: list[str]  # the command line without --model, --data and --profile


def resolve(argv: Sequence[str]) -> Resolved:
    """Look up the names of a command line; nothing slow is imported."""
    given, rest = take_options(argv, model=str, data=str, profile=str)
    name = given.data or DEFAULT_DATA
    model_files = [] if given.model is None else load(given.model, "model")
    data_files = load(name, "data")
    profile = given.profile or next((file["profile"] for file in reversed(data_files) if file.get("profile")), None)
    profile_files = [] if profile is None else load(profile, "profile")

    trainer = dict(load("default", "trainer")[0]["trainer"])
    for file in model_files:
        trainer |= _mapping(file, "trainer")
    model = None if given.model is None else _choice(given.model, "model", model_files)
    for pattern, changes in (item for file in profile_files for item in _mapping(file, "models").items()):
        if model is not None and fnmatchcase(model.name, pattern):
            model.settings.update(_mapping(changes, "model"))
            trainer |= _mapping(changes, "trainer")
    left_out = [pattern for file in profile_files for pattern in file.get("leave_out", ())]
    return Resolved(model, _choice(name, "data", data_files), trainer, profile, left_out, rest)


def resolve_command(argv: Sequence[str], manual: str | None) -> Resolved:
    """Resolve the command line of a command without a single model; where help is asked for, print its manual first."""
    if wants_help(argv):
        print(manual)
    resolved = resolve(argv)
    if resolved.model is not None:
        raise UserError("this command takes --models a,b,c (with an s)")
    return resolved


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml"))


def load(name: str, kind: str) -> list[dict[str, Any]]:
    """Return the content of `configs/KIND/NAME.yaml`, or of the path `name`, after the files that it extends."""
    path = CONFIGS / kind / f"{name}.yaml" if _own_file(name) is None else Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            f"--{kind}: there is no {name!r}; choose one of: {', '.join(names(kind))} (or give the path of a YAML file)"
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise UserError(f"{path} has no sections")
    bases = content.pop("extends", [])
    files = [file for base in ([bases] if isinstance(bases, str) else bases) for file in load(str(base), kind)]
    required = "models" if kind == "profile" else kind
    if required not in content and not files:
        raise UserError(f"{path} has no section {required!r}")
    if unknown := set(content) - SECTIONS[kind]:
        sections = ", ".join(sorted(SECTIONS[kind] | {"extends"}))
        raise UserError(f"{path} has unknown sections {', '.join(sorted(map(str, unknown)))}; known: {sections}")
    return [*files, content]


def _choice(name: str, kind: str, files: Sequence[dict[str, Any]]) -> Choice:
    section: dict[str, Any] = {}
    settings: dict[str, Any] = {}
    for file in files:
        section |= _mapping(file, kind)
        settings |= _mapping(_mapping(file, kind), "init_args")
    if set(section) - {"class_path", "init_args"} or "class_path" not in section:
        raise UserError(f"--{kind} {name}: its section {kind!r} must have class_path and perhaps init_args")
    stem = Path(name).stem
    if not re.fullmatch(r"[\w.-]+", stem):
        raise UserError(f"--{kind}: the name {stem!r} must consist of letters, digits, '.', '-', '_'")
    return Choice(stem, section["class_path"], settings, _own_file(name))


def _mapping(section: Any, key: str) -> dict[str, Any]:
    """Return `section[key]`, names and values; empty if there is none."""
    value = section.get(key) if isinstance(section, dict) else section
    if value is not None and not isinstance(value, dict):
        raise UserError(f"the section {key!r} of a YAML file must have names and values, not {value!r}")
    return value or {}


def _own_file(name: str) -> str | None:
    """Return the path of the user's own YAML file, None for a name."""
    return str(Path(name).expanduser().resolve()) if name.endswith((".yaml", ".yml")) else None


def import_from(file: str | None) -> None:
    """Let modules be imported from the folder of the user's own YAML file."""
    if file is not None and (folder := str(Path(file).parent)) not in sys.path:
        sys.path.append(folder)


# --- command lines


def take_options(argv: Sequence[str], **types: Callable[[str], Any]) -> tuple[Namespace, list[str]]:
    """Return the values of the options `--NAME VALUE` by name, None for those not given, and all other arguments."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False)
    for name, convert in types.items():
        parser.add_argument(f"--{name}", type=convert)
    return parser.parse_known_args(argv)


def count(text: str) -> int:
    """Convert the value of an option that is a number, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"{text!r} must be a number, 1 or more")
    return int(text)


def wants_help(argv: Sequence[str]) -> bool:
    return not {"-h", "--help"}.isdisjoint(argv)
