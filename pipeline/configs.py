"""`--model NAME`, `--data NAME`, `--profile NAME`: YAML files under `configs/`, merged in a fixed order.

    command line  >  profile  >  model  >  configs/trainer/default.yaml  >  the classes' own defaults

A model file has the section `model` (class_path, init_args) and perhaps `trainer`; it may extend another one. A data
file has `data` (class_path, init_args) and the name of its default `profile`. A profile holds what differs from the
models' settings, by model name: patterns such as `bert_*`, each with `model` and `trainer` values, later ones
overriding earlier ones; and `leave_out`, rows that `--model all` does not train. It may extend other profiles.

A YAML file of your own may name a class of your own: its module is looked up beside the file, too.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lexical.errors import UserError
from lightning_modules.trained import import_class

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEFAULT_DATA = "pydocs_passage"
SECTIONS = {
    "model": {"model", "trainer", "extends"},
    "data": {"data", "profile"},
    "profile": {"models", "leave_out", "extends"},
    "trainer": {"trainer"},
}


class Choice(NamedTuple):
    """A named class and its settings, before the command line overrides them."""

    name: str
    target: type
    settings: dict[str, Any]
    file: str | None = None  # the user's own YAML file


class Resolved(NamedTuple):
    """What the names on a command line stand for."""

    model: Choice | None
    data: Choice
    trainer: dict[str, Any]
    profile: str | None
    rest: list[str]  # the command line without --model, --data and --profile


class Settings(NamedTuple):
    """Settings of a ranker from the YAML files: sections `model` and `trainer`."""

    model: dict[str, Any]  # class_path, init_args
    trainer: dict[str, Any]


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml"))


def resolve(argv: Sequence[str]) -> Resolved:
    """Look up the names of a command line. Mistyped names are reported before anything slow is imported."""
    model_name, rest = take_option(argv, "model")
    data_name, rest = take_option(rest, "data")
    profile, rest = take_option(rest, "profile")
    data_name = data_name or DEFAULT_DATA
    settings = Settings({}, load("default", "trainer")["trainer"])
    if model_name is not None:
        settings = ranker_settings(model_name, data_name, profile)
    profile = profile_of(data_name, profile)
    if profile is not None:
        load(profile, "profile")
    data_section = load(data_name, "data")["data"]
    model = None if model_name is None else _choice(model_name, "model", settings.model)
    return Resolved(model, _choice(data_name, "data", data_section), settings.trainer, profile, rest)


def ranker_settings(model_name: str, data_name: str, profile: str | None = None) -> Settings:
    """Return the settings of a ranker as the YAML files have them."""
    model_file, label = load(model_name, "model"), Path(model_name).stem
    layers = [load("default", "trainer"), model_file, *_profile_layers(profile_of(data_name, profile), label)]
    trainer: dict[str, Any] = {}
    for layer in layers:
        trainer |= _mapping(layer, "trainer", model_name)
    model = dict(_mapping(model_file, "model", model_name))
    for layer in layers[2:]:
        model["init_args"] = {**_mapping(model, "init_args", model_name), **_mapping(layer, "model", "profile")}
    return Settings(model, trainer)


def profile_of(data_name: str, profile: str | None = None) -> str | None:
    """Return the profile that is asked for, or the default one of the data."""
    return profile or load(data_name, "data").get("profile")


def rows_left_out(data_name: str, profile: str | None = None) -> list[str]:
    """Return patterns of the rows that `--model all` does not train on this data."""
    return [pattern for file in _with_extended(profile_of(data_name, profile)) for pattern in file.get("leave_out", ())]


def _profile_layers(profile: str | None, model: str) -> list[dict[str, Any]]:
    return [
        layer
        for file in _with_extended(profile)
        for pattern, layer in _mapping(file, "models", "profile").items()
        if fnmatchcase(model, pattern)
    ]


def _with_extended(profile: str | None) -> list[dict[str, Any]]:
    """Return the profile and those that it extends, the most general one first."""
    if profile is None:
        return []
    file = load(profile, "profile")
    return [*(layer for name in file.get("extends", ()) for layer in _with_extended(name)), file]


def load(name: str, kind: str) -> dict[str, Any]:
    """Return the content of `configs/KIND/NAME.yaml`, or of the path `name`; a model with what it extends."""
    path = CONFIGS / kind / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            f"--{kind}: there is no {name!r}; choose one of: {', '.join(names(kind))} (or give the path of a YAML file)"
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    required = "models" if kind == "profile" else kind
    if not isinstance(content, dict) or required not in content:
        raise UserError(f"{path} has no section {required!r}")
    if unknown := set(content) - SECTIONS[kind]:
        known = ", ".join(sorted(SECTIONS[kind]))
        raise UserError(f"{path} has unknown sections {', '.join(sorted(map(str, unknown)))}; known: {known}")
    return _extended(content, path) if kind == "model" and "extends" in content else content


def _extended(content: dict[str, Any], path: Path) -> dict[str, Any]:
    """Fill in a model file from the one that it extends."""
    base = load(str(content["extends"]), "model")
    section = {**_mapping(base, "model", str(path)), **_mapping(content, "model", str(path))}
    arguments = [_mapping(_mapping(file, "model", str(path)), "init_args", str(path)) for file in (base, content)]
    section["init_args"] = arguments[0] | arguments[1]
    return {"model": section, "trainer": {**base.get("trainer", {}), **_mapping(content, "trainer", str(path))}}


def _mapping(section: Any, key: str, where: str) -> dict[str, Any]:
    value = section.get(key) if isinstance(section, dict) else section
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{where}: the section {key!r} must have names and values, not {value!r}")
    return value or {}


def take_option(argv: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """Return the value of `--name VALUE` or `--name=VALUE` (the last one counts), and the arguments without it."""
    value, rest = None, []
    pending = iter(argv)
    for argument in pending:
        if argument == f"--{name}":
            value = next(pending, None)
            if value is None or value.startswith("--"):
                raise UserError(f"--{name} needs a value")
        elif argument.startswith(f"--{name}="):
            value = argument.split("=", 1)[1]
        else:
            rest.append(argument)
    return value, rest


def take_count(argv: Sequence[str], name: str) -> tuple[int | None, list[str]]:
    """Return the same for a number that must be 1 or more."""
    value, rest = take_option(argv, name)
    if value is not None and (not value.isdecimal() or int(value) < 1):
        raise UserError(f"--{name} {value}: must be a number, 1 or more")
    return None if value is None else int(value), rest


def without_options(argv: Sequence[str], prefix: str) -> list[str]:
    """Return the arguments without the options that begin with `prefix`, and without their values."""
    kept: list[str] = []
    skipping = False
    for argument in argv:
        if argument.startswith("--"):
            skipping = argument.startswith(prefix) and "=" not in argument
            if argument.startswith(prefix):
                continue
        elif skipping:
            continue
        kept.append(argument)
    return kept


def _choice(name: str, kind: str, section: dict[str, Any]) -> Choice:
    if not isinstance(section, dict) or set(section) - {"class_path", "init_args"} or "class_path" not in section:
        raise UserError(f"--{kind} {name}: its section {kind!r} must have class_path and perhaps init_args")
    if not re.fullmatch(r"[\w.-]+", Path(name).stem):
        raise UserError(f"--{kind}: the name {Path(name).stem!r} must consist of letters, digits, '.', '-', '_'")
    file = str(Path(name).expanduser().resolve()) if name.endswith((".yaml", ".yml")) else None
    import_from(file)
    target = import_class(section["class_path"], f"--{kind} {name}")
    return Choice(Path(name).stem, target, _mapping(section, "init_args", f"--{kind} {name}"), file)


def import_from(file: str | None) -> None:
    """Let modules be imported from the folder of the user's own YAML file."""
    if file is not None and (folder := str(Path(file).parent)) not in sys.path:
        sys.path.append(folder)
