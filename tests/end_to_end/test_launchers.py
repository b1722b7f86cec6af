"""Two processes that somebody else has started: torchrun, and SLURM as its tasks see it."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert
from tests.fixtures.training_place import ROOT, Place, logged

pytestmark = pytest.mark.slow


def arguments(place: Place, backbone: Path, output: str) -> list[str]:
    return place.command(
        output, "--model", "bert_vanilla_short", "--model.backbone", str(backbone), "--model.positions=64",
        "--model.query_pieces=8", "--model.train_queries=32", "--model.pairs_at_once=4", "--trainer.accelerator=cpu",
        "--trainer.devices=2",
    )  # fmt: skip


@pytest.fixture
def place(small_folder: Path, tmp_path: Path) -> Place:
    return Place(small_folder, tmp_path)


@pytest.fixture
def backbone(tmp_path: Path) -> Path:
    return with_packaged_tokenizer(write_tiny_bert(tmp_path / "bert", positions=64))


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "WANDB_MODE": "offline", "OMP_NUM_THREADS": "1", **more}


def prepare(place: Place) -> None:
    """As scripts/slurm.sh does: one process, before the others start."""
    output = place.process("out", "--model", "bm25_lemm").communicate(timeout=300)[0]
    assert "saved in" in output


def test_torchrun(place: Place, backbone: Path) -> None:
    prepare(place)
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc_per_node=2",
        str(ROOT / "train.py"),
    ]
    done = subprocess.run(
        [*command, *arguments(place, backbone, "out")], cwd=place.work, env=environment(), capture_output=True,
        text=True, timeout=400, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(logged(place.folder("out", "bert_vanilla_short"), "val/mrr")) == 1


def test_the_tasks_of_slurm(place: Place, backbone: Path) -> None:
    prepare(place)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tasks = [
        subprocess.Popen(
            [sys.executable, str(ROOT / "train.py"), *arguments(place, backbone, "out")], cwd=place.work, text=True,
            env=environment(
                SLURM_JOB_ID="1", SLURM_JOB_NAME="rank", SLURM_NTASKS="2", SLURM_NTASKS_PER_NODE="2", SLURM_NNODES="1",
                SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank), SLURM_NODEID="0", SLURM_NODELIST="127.0.0.1",
                MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port),
            ),
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )
        for rank in (0, 1)
    ]  # fmt: skip
    outputs = [task.communicate(timeout=400)[0] for task in tasks]
    assert [task.returncode for task in tasks] == [0, 0], outputs
    assert "development MRR" in outputs[0] and "development MRR" not in outputs[1]
