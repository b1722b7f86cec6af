"""Weights & Biases.

Optional, never fatal. Without a key runs are kept offline and a line says how to send them later.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from netrc import NetrcParseError, netrc
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlparse

from lexical.terminal import say

PROJECT = "lexical-translation-rankers"
MODES = ("online", "offline", "disabled")


class RunLabels(NamedTuple):
    """How a run is found in W&B. The same values go into its config: runs cannot be grouped by tag."""

    model: str
    data: str
    seed: int | None  # None: all seeds
    job_type: str  # train, evaluate, summary

    def init_arguments(self, config: dict[str, Any], folder: Path) -> dict[str, Any]:
        folder.mkdir(parents=True, exist_ok=True)
        labels = {
            "group": f"{self.model}/{self.data}",
            "job_type": self.job_type,
            "name": f"{self.model}-seed{self.seed}" if self.seed is not None else f"{self.model}-summary",
        }
        return {
            "project": os.environ.get("WANDB_PROJECT", PROJECT),
            "mode": wandb_mode(),
            "dir": str(folder),
            "tags": [self.model, self.data, self.job_type],
            "config": {**config, "labels": {**labels, **self._asdict()}},
            **labels,
        }


def wandb_mode() -> str:
    """WANDB_MODE where it is set; otherwise online with a key, offline without."""
    chosen = os.environ.get("WANDB_MODE", "")
    if chosen in MODES:
        return chosen
    os.environ.pop("WANDB_MODE", None)  # wandb itself would refuse to start with it
    if chosen:
        say(f"WANDB_MODE={chosen} is unknown (known: {', '.join(MODES)}); runs are kept offline")
        return "offline"
    return "online" if _has_key() else "offline"


def start_run(arguments: dict[str, Any]) -> Any:
    """``wandb.init`` that falls back to offline, then to nothing; None where tracking is off."""
    if arguments["mode"] == "disabled":
        return None
    import wandb

    for mode in dict.fromkeys((arguments["mode"], "offline")):
        try:
            settings = wandb.Settings(silent=True, console="off", init_timeout=30)
            run = wandb.init(**{**arguments, "mode": mode}, settings=settings)
        except Exception as error:  # whatever it is: tracking never stops a training
            say(f"W&B does not start ({mode}): {' '.join(str(error).split())[:200]}")
            continue
        if mode == "offline":
            say(f"W&B: kept offline; send it with: wandb sync {Path(run.dir).parent}")
        return run
    return None


@contextmanager
def never_fatal() -> Iterator[None]:
    """Tracking that fails costs a line, not the results."""
    try:
        yield
    except Exception as error:
        say(f"W&B: {' '.join(str(error).split())[:200]}; local files are complete")


def finish_run(run: Any, summary: dict[str, float]) -> None:
    if run is not None:
        run.summary.update(summary)
        run.finish()


def _has_key() -> bool:
    if os.environ.get("WANDB_API_KEY"):
        return True
    import wandb

    host = urlparse(os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url).hostname or ""
    try:
        return netrc(Path(os.environ.get("NETRC", "~/.netrc")).expanduser()).authenticators(host) is not None
    except (OSError, UnicodeDecodeError, NetrcParseError):
        return False
