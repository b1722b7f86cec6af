"""Runs of Weights & Biases: optional, never fatal. Without a key they are kept offline and sent later.

A group is a ranker on a data set. In it: a run per seed for the training and one for its evaluation, and one summary
over all seeds.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lexical.terminal import say

PROJECT = "lexical-translation-rankers"


def start_run(folder: Path, config: dict[str, Any], *, model: str, data: str, seed: int | None, job_type: str) -> Any:
    """Start a W&B run in `folder`, offline if it cannot be online; return None where tracking is off or fails.

    Its labels go into the config, too: W&B cannot group runs by tag.

    Args:
        seed: None for all seeds.
        job_type: train, evaluate or summary.
    """
    mode = wandb_mode()
    if mode == "disabled":
        return None
    import wandb

    name = f"{model}-summary" if seed is None else f"{model}-seed{seed}"
    labels: dict[str, Any] = {"group": f"{model}/{data}", "job_type": job_type, "name": name}
    config = {**config, "labels": {**labels, "model": model, "data": data, "seed": seed}}
    options: dict[str, Any] = {"project": os.environ.get("WANDB_PROJECT", PROJECT), "dir": str(folder), **labels}
    folder.mkdir(parents=True, exist_ok=True)
    for options["mode"] in dict.fromkeys((mode, "offline")):
        try:
            settings = wandb.Settings(silent=True, console="off", init_timeout=30)
            run = wandb.init(**options, config=config, tags=[model, data, job_type], settings=settings)
        except Exception as error:  # of whatever kind: tracking never stops a training
            say(f"W&B does not start ({options['mode']}): {_one_line(error)}")
            continue
        if options["mode"] == "offline":
            say(f"W&B: kept offline; send it with: wandb sync {Path(run.dir).parent}")
        return run
    return None


def wandb_mode() -> str:
    """Return WANDB_MODE where it is set; otherwise online with a key, offline without."""
    if mode := os.environ.get("WANDB_MODE"):
        return mode
    if os.environ.get("WANDB_API_KEY"):
        return "online"
    import wandb
    from wandb.sdk.lib.wbauth import read_netrc_auth

    try:
        host = os.environ.get("WANDB_BASE_URL") or wandb.Settings().base_url
        return "online" if read_netrc_auth(host=host) else "offline"
    except Exception:  # a damaged key
        return "offline"


@contextmanager
def finishing(run: Any) -> Iterator[None]:
    """Finish the run whatever happens: the next ranker must not log into it. An error becomes one line."""
    try:
        try:
            yield
        finally:
            run.finish()
    except Exception as error:
        say(f"W&B: {_one_line(error)}; local files are complete")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
