"""The process of a step: how it is started, what share of the machine it has, and how it ends with its parent."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from datamodules.worker_pool import cores
from lexical.errors import UserError
from lexical.terminal import say
from pipeline.configs import CONFIGS, take_option

ROOT = CONFIGS.parent
PATIENCE = 20.0  # seconds that interrupted steps have to put their things away
Process = subprocess.Popen[bytes]


def start(command: Sequence[str], environment: Mapping[str, str], log: Path | None) -> Process:
    """`command`: python, a script of this project, its arguments. With a `log` all that it says goes there."""
    arguments, changed = [command[0], str(ROOT / command[1]), *command[2:]], {**os.environ, **environment}
    if log is None:
        return subprocess.Popen(arguments, env=changed)
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("wb") as output:
        return subprocess.Popen(
            arguments, env=changed, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )


def share(place: int, at_once: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Environment of the step at `place`, one of `at_once`: its threads, where the user has not said how many, and its
    GPUs; of fewer GPUs than steps several steps have the same."""
    if at_once == 1:
        return {}
    threads = str(max(1, cores() // at_once))
    found = {name: environment.get(name, threads) for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")}
    if gpus := _visible_gpus(environment):
        found["CUDA_VISIBLE_DEVICES"] = ",".join(gpus[place::at_once] or [gpus[place % len(gpus)]])
    return found


def check_devices(at_once: int, arguments: Sequence[str]) -> None:
    """Steps that run side by side have one device each; `arguments`: what all of them are given."""
    devices = take_option(arguments, "trainer.devices")[0]
    if at_once > 1 and devices not in (None, "1"):
        raise UserError(
            f"--at_once {at_once} gives each step GPUs of its own: --trainer.devices {devices} does not go with it"
        )


def _visible_gpus(environment: Mapping[str, str]) -> list[str]:
    if (visible := environment.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [one for one in visible.split(",") if one]
    import torch  # takes seconds: not before it is needed

    return [str(number) for number in range(torch.cuda.device_count())]


def checked(code: int) -> int:
    """The exit code of a step; Ctrl-C that it has seen ends the whole."""
    if code in (130, -signal.SIGINT):
        raise KeyboardInterrupt
    return code


@contextmanager
def ended_with_us(running: list[Process]) -> Iterator[None]:
    """No step outlives the block: of a block that is interrupted the steps get the time to put their things away.

    Ctrl-C in a terminal reaches them as well; where they have not seen it, they are told. A second Ctrl-C ends them at
    once. SIGTERM, as batch systems send it, is taken as Ctrl-C.
    """
    before = _take_sigterm_as_ctrl_c()
    try:
        yield
    except BaseException:
        left = [one for one in running if one.poll() is None]
        if left:
            say(
                f"ending {len(left)} running step(s); they have up to {2 * PATIENCE:g} s, a second Ctrl-C ends them now"
            )
        try:
            if not _all_end(left):
                for one in left:
                    one.send_signal(signal.SIGINT)
                _all_end(left)
        finally:
            for one in left:
                one.kill()
                one.wait()
        raise
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)


def _all_end(processes: Sequence[Process]) -> bool:
    until = time.perf_counter() + PATIENCE
    while any(one.poll() is None for one in processes):
        if time.perf_counter() > until:
            return False
        time.sleep(0.05)
    return True


def _take_sigterm_as_ctrl_c() -> Any:
    """The handler before; None where this thread may not set one."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    try:
        return signal.signal(signal.SIGTERM, interrupt)
    except ValueError:  # not the main thread
        return None
