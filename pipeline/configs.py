"""``--model NAME`` and ``--data NAME``: YAML files under ``configs/``, merged in a fixed order.

    command line  >  data YAML (`for_models`: what it changes for some rankers)  >  model YAML  >  trainer YAML  >
    default

A model YAML has the sections ``model`` (class_path, init_args) and perhaps ``trainer``; a data YAML has ``data``
(class_path, init_args) and perhaps ``for_models``: patterns of model names, each with ``model`` and ``trainer``
values for this data, and ``leave_out``: rows that ``--model all`` does not make for it.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from lexical.errors import UserError

CONFIGS = Path(__file__).resolve().parent.parent / "configs"
DEFAULT_DATA = "pydocs_passage"


class Choice(NamedTuple):
    """A named class and its settings, before the command line has its say."""

    name: str
    target: type
    settings: dict[str, Any]


class Resolved(NamedTuple):
    model: Choice | None
    data: Choice
    trainer: dict[str, Any]
    rest: list[str]  # the command line without --model NAME and --data NAME
    data_name: str  # as given: a name, or the path of a YAML file


def names(kind: str) -> list[str]:
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml"))


def resolve(argv: Sequence[str]) -> Resolved:
    model_name, rest = take_option(argv, "model")
    data_name, rest = take_option(rest, "data")
    data_name = data_name or DEFAULT_DATA
    data_section = load_data(data_name)["data"]
    if model_name is None:
        trainer = load("default", "trainer", {"trainer"})["trainer"]
        return Resolved(None, _choice(data_name, "data", data_section), trainer, rest, data_name)
    settings, trainer = merged(model_name, data_name)
    # the classes come last: importing them takes seconds, a mistyped name is answered before
    model, data = _choice(model_name, "model", settings), _choice(data_name, "data", data_section)
    return Resolved(model, data, trainer, rest, data_name)


def merged(model_name: str, data_name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The sections `model` and `trainer` of a ranker on this data, as the YAML files have them."""
    data_file, model_file = load_data(data_name), load(model_name, "model", {"model", "trainer"})
    label = Path(model_name).stem
    changes = [
        value for pattern, value in _mapping(data_file, "for_models", data_name).items() if fnmatchcase(label, pattern)
    ]
    trainer = load("default", "trainer", {"trainer"})["trainer"]
    for layer in (model_file, *changes):
        trainer = {**trainer, **_mapping(layer, "trainer", model_name)}
    settings = dict(_mapping(model_file, "model", model_name))
    for change in changes:
        settings["init_args"] = {**_mapping(settings, "init_args", model_name), **_mapping(change, "model", data_name)}
    return settings, trainer


def load_data(name: str) -> dict[str, Any]:
    return load(name, "data", {"data", "for_models", "leave_out"})


def _mapping(section: Any, key: str, where: str) -> dict[str, Any]:
    value = section.get(key) if isinstance(section, dict) else section
    if value is not None and not isinstance(value, dict):
        raise UserError(f"{where}: the section {key!r} must have names and values, not {value!r}")
    return value or {}


def take_option(argv: Sequence[str], name: str) -> tuple[str | None, list[str]]:
    """The value of ``--name VALUE`` or ``--name=VALUE`` (the last one counts), and the arguments without it."""
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
    """As `take_option`, of a number that must be 1 or more."""
    value, rest = take_option(argv, name)
    if value is not None and (not value.isdecimal() or int(value) < 1):
        raise UserError(f"--{name} {value}: must be a number, 1 or more")
    return None if value is None else int(value), rest


def load(name: str, kind: str, sections: set[str]) -> dict[str, Any]:
    """The YAML of ``configs/KIND/NAME.yaml``, or of the path `name`."""
    path = CONFIGS / kind / f"{name}.yaml"
    if name.endswith((".yaml", ".yml")):
        path = Path(name).expanduser()
    if not path.is_file():
        raise UserError(
            f"--{kind}: there is no {name!r}; choose one of: {', '.join(names(kind))} (or give the path of a YAML file)"
        )
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no valid YAML: {error}") from error
    if not isinstance(content, dict) or kind not in content:
        raise UserError(f"{path} has no section {kind!r}")
    if unknown := set(content) - sections:
        raise UserError(
            f"{path} has unknown sections {', '.join(sorted(map(str, unknown)))}; known: {', '.join(sorted(sections))}"
        )
    return content


def _choice(name: str, kind: str, section: dict[str, Any]) -> Choice:
    if not isinstance(section, dict) or set(section) - {"class_path", "init_args"} or "class_path" not in section:
        raise UserError(f"--{kind} {name}: its section {kind!r} must have class_path and perhaps init_args")
    if not re.fullmatch(r"[\w.-]+", Path(name).stem):
        raise UserError(f"--{kind}: the name {Path(name).stem!r} must be of letters, digits, '.', '-', '_'")
    target = import_class(section["class_path"], f"--{kind} {name}")
    return Choice(Path(name).stem, target, _mapping(section, "init_args", f"--{kind} {name}"))


def import_class(class_path: str, where: str) -> type:
    module, _, attribute = str(class_path).rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise UserError(f"{where}: there is no class {class_path} ({error})") from error
    if not isinstance(found, type):
        raise UserError(f"{where}: {class_path} is no class")
    return found
