"""The command lines of train.py, evaluate.py, explain.py and serve.py: Lightning's own CLI with named configs."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import lightning as L
import yaml
from jsonargparse import ArgumentError, Namespace
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI

from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError
from pipeline.configs import Resolved, names


class RankerCLI(LightningCLI):
    """LightningCLI for classes that were chosen by name, with `--seed` and `--output_dir`.

    Builds the model and the data; the trainer is built later, when the folder of the results is known.
    """

    def __init__(self, resolved: Resolved) -> None:
        assert resolved.model is not None
        self.resolved, self.name = resolved, resolved.model.name
        super().__init__(
            model_class=resolved.model.target,
            datamodule_class=resolved.data.target,
            save_config_callback=None,
            parser_kwargs=_parser_settings(f"Train {self.name} on {resolved.data.name}."),
            args=_arguments(resolved),
            run=False,
            auto_configure_optimizers=False,
        )

    def add_default_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        assert self.resolved.model is not None
        file = self.resolved.model.file
        _add_run_arguments(parser)
        parser.add_argument("--skip_trained", type=bool, default=False, help="keep what is trained with these settings")
        parser.add_argument("--profile", type=str | None, default=self.resolved.profile, help="settings by model name")
        where = "YAML file of your own ranker: evaluate.py finds its class beside it"
        parser.add_argument("--model_file", type=str | None, default=file, help=where)

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        self.config = _parse(parser, args)

    def _set_seed(self) -> None:
        L.seed_everything(self.config["seed"], workers=True, verbose=False)

    def instantiate_classes(self) -> None:
        self.config_init = self.parser.instantiate_classes(self.config)
        self.model = self.config_init["model"]
        self.datamodule = _named_as_its_file(self.config_init["data"], self.resolved)

    def config_as_dict(self) -> dict[str, Any]:
        """Return the resolved configuration in plain types: printed, saved beside the results, sent to W&B."""
        text = self.parser.dump(self.config, skip_none=False, skip_validation=True)
        return {key: value for key, value in yaml.safe_load(text).items() if key != "config"}


def parse_data(
    resolved: Resolved, options: Mapping[str, Mapping[str, Any]] | None = None
) -> tuple[Namespace, RetrievalData]:
    """Return the parsed arguments and the data of a command without a single model.

    options: keyword arguments of `add_argument` for each further option of the command.
    """
    parser = LightningArgumentParser(**_parser_settings("Settings of data and trainer."))
    parser.add_argument("-c", "--config", action="config", help="a YAML file with any of these settings")
    _add_run_arguments(parser)
    for name, settings in (options or {}).items():
        parser.add_argument(f"--{name}", **settings)
    parser.add_lightning_class_args(L.Trainer, "trainer")
    parser.add_lightning_class_args(resolved.data.target, "data")
    parsed = _parse(parser, _arguments(resolved))
    return parsed, _named_as_its_file(parser.instantiate_classes(parsed)["data"], resolved)


def _named_as_its_file(data: Any, resolved: Resolved) -> Any:
    """Give data of the user's own YAML file the file's name in the outputs."""
    if resolved.data.name not in names("data"):
        data.name = resolved.data.name
    return data


def _parser_settings(description: str) -> dict[str, Any]:
    listing = "; ".join(f"{kind}s: {', '.join(names(kind))}" for kind in ("model", "profile"))
    listing += f"; data: {', '.join(names('data'))}"
    return {"description": description, "epilog": listing, "exit_on_error": False, "allow_abbrev": False}


def _add_run_arguments(parser: LightningArgumentParser) -> None:
    parser.add_argument("--seed", type=int, default=1, help="of everything random except the split of the data")
    parser.add_argument("--output_dir", type=str, default="outputs", help="results: OUTPUT_DIR/<data>/<model>/seed-<n>")


def _arguments(resolved: Resolved) -> list[str]:
    """Put the named configs first, as one inline config file: everything on the command line overrides them."""
    sections = {"trainer": resolved.trainer, "data": resolved.data.settings}
    if resolved.model is not None:
        sections["model"] = resolved.model.settings
    return ["--config", yaml.safe_dump(sections), *resolved.rest]


def _parse(parser: LightningArgumentParser, arguments: list[str]) -> Namespace:
    try:
        parsed = parser.parse_args(arguments)
    except (ArgumentError, TypeError, KeyError, ValueError) as error:
        raise UserError(_one_line(str(error))) from error
    if not 0 <= parsed.seed < 2**32:
        raise UserError(f"--seed {parsed.seed}: must be between 0 and {2**32 - 1}")
    return parsed


def _one_line(message: str) -> str:
    """Return jsonargparse's several lines as one: the flag, what was given, what is expected."""
    key = re.match(r'Parser key "([^"]+)"', message)
    given = re.search(r"(?:Given|Got) value: (.*)", message)
    expected = [kind for kind in re.findall(r"Expected an? <class '(\w+)'>", message) if kind != "NoneType"]
    if key and given and expected:
        return f"--{key[1]}: {given[1].strip()!r} is not {' or '.join(dict.fromkeys(expected))}"
    text = " ".join(message.split())
    return text.replace(f'Parser key "{key[1]}"', f"--{key[1]}") if key else text
