"""The command lines of train.py, evaluate.py, explain.py and serve.py: Lightning's own CLI with named configs."""

from __future__ import annotations

import re
from argparse import SUPPRESS
from collections.abc import Sequence
from typing import Any

import lightning as L
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from lexical.errors import UserError
from pipeline.configs import Resolved, names


class RankerCLI(LightningCLI):
    """LightningCLI for classes that were chosen by name, with `--seed` and `--output_dir`.

    Builds the model and the data; the trainer is built later, when the folder of the results is known.
    """

    def __init__(self, resolved: Resolved, description: str) -> None:
        self.resolved = resolved
        assert resolved.model is not None
        self.name = resolved.model.name
        defaults = {"trainer": resolved.trainer, "model": resolved.model.settings, "data": resolved.data.settings}
        super().__init__(
            model_class=resolved.model.target,
            datamodule_class=resolved.data.target,
            save_config_callback=None,
            parser_kwargs=_parser_settings(description),
            args=_with_defaults(defaults, resolved.rest),
            run=False,
            auto_configure_optimizers=False,
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        _add_run_arguments(parser)
        parser.add_argument("--skip_trained", type=bool, default=False, help="keep what is trained with these settings")
        profile, model = self.resolved.profile, self.resolved.model
        parser.add_argument("--profile", type=str | None, default=profile, help="settings by model name")
        file = None if model is None else model.file
        parser.add_argument("--model_file", type=str | None, default=file, help=SUPPRESS)  # evaluate.py looks there

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = parse(parser, args)

    def _set_seed(self) -> None:
        L.seed_everything(self.config["seed"], workers=True, verbose=False)

    def instantiate_classes(self) -> None:
        self.config_init = self.parser.instantiate_classes(self.config)
        self.datamodule = self._get(self.config_init, "data")
        self.model = self._get(self.config_init, "model")
        name_data(self.datamodule, self.resolved)

    def config_as_dict(self) -> dict[str, Any]:
        """Return the resolved configuration in plain types: printed, saved beside the results, sent to W&B."""
        text = self.parser.dump(self.config, skip_none=False, skip_validation=True)
        return {key: value for key, value in yaml.safe_load(text).items() if key != "config"}


def parse_data(
    resolved: Resolved, description: str, extra: Sequence[tuple[str, dict[str, Any]]]
) -> tuple[Namespace, Namespace]:
    """Return (parsed, instantiated) arguments of a command that has data and a trainer but no single model."""
    parser = LightningArgumentParser(**_parser_settings(description))
    parser.add_argument("-c", "--config", action="config", help="a YAML file with any of these settings")
    _add_run_arguments(parser)
    for flag, settings in extra:
        parser.add_argument(flag, **settings)
    parser.add_lightning_class_args(L.Trainer, "trainer")
    parser.add_lightning_class_args(resolved.data.target, "data")
    parsed = parse(parser, _with_defaults({"trainer": resolved.trainer, "data": resolved.data.settings}, resolved.rest))
    built = parser.instantiate_classes(parsed)
    name_data(built.data, resolved)
    return parsed, built


def name_data(data: Any, resolved: Resolved) -> None:
    """Give data of the user's own YAML file the file's name in the outputs."""
    if resolved.data.name not in names("data"):
        data.name = resolved.data.name


def parse(parser: LightningArgumentParser, args: list[str]) -> Namespace:
    try:
        parsed = parser.parse_args(args)
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        raise UserError(_one_line(str(error))) from error
    if not 0 <= parsed.seed < 2**32:
        raise UserError(f"--seed {parsed.seed}: must be between 0 and {2**32 - 1}")
    return parsed


def _parser_settings(description: str) -> dict[str, Any]:
    listing = "; ".join(f"{kind}s: {', '.join(names(kind))}" for kind in ("model", "profile"))
    listing += f"; data: {', '.join(names('data'))}"
    return {"description": description, "epilog": listing, "exit_on_error": False, "allow_abbrev": False}


def _add_run_arguments(parser: LightningArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of everything random except the split of the data")
    parser.add_argument("--output_dir", type=str, default="outputs", help="results: OUTPUT_DIR/<data>/<model>/seed-<n>")


def _with_defaults(defaults: dict[str, Any], argv: Sequence[str]) -> list[str]:
    """Put the named configs first, as one inline config file: everything on the command line overrides them."""
    return ["--config", yaml.safe_dump(defaults), *argv]


def _one_line(message: str) -> str:
    """Return jsonargparse's several lines as one: the flag, what was given, what is expected."""
    key = re.match(r'Parser key "([^"]+)"', message)
    given = re.search(r"(?:Given|Got) value: (.*)", message)
    expected = [kind for kind in re.findall(r"Expected an? <class '(\w+)'>", message) if kind != "NoneType"]
    if key and given and expected:
        return f"--{key[1]}: {given[1].strip()!r} is not {' or '.join(dict.fromkeys(expected))}"
    text = " ".join(message.split())
    return text.replace(f'Parser key "{key[1]}"', f"--{key[1]}") if key else text
