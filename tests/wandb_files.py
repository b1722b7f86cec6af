"""Reads W&B's offline run files back: a LevelDB log (blocks of 32 KiB) of protobuf records."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, FILE_HEADER, RECORD_HEADER = 32 * 1024, 7, 7
FULL, FIRST, MIDDLE, LAST = 1, 2, 3, 4


class OfflineRun(NamedTuple):
    name: str
    group: str
    job_type: str
    tags: list[str]
    config: dict[str, Any]
    summary: dict[str, Any]
    history: list[dict[str, Any]]
    artifacts: list[str]
    metadata: dict[str, dict[str, Any]]  # of each artifact, with its type
    kept: dict[str, str]  # metric -> what the summary keeps of it: min, max, mean


def read_offline_runs(folder: Path) -> list[OfflineRun]:
    return [read_offline_run(path) for path in sorted(folder.glob("offline-run-*/*.wandb"))]


def read_offline_run(path: Path) -> OfflineRun:
    found = OfflineRun("", "", "", [], {}, {}, [], [], {}, {})
    for record in _records(path):
        kind = record.WhichOneof("record_type")
        if kind == "run":
            run = record.run
            found.config.update(_values(run.config.update))
            found = found._replace(
                name=run.display_name, group=run.run_group, job_type=run.job_type, tags=list(run.tags)
            )
        elif kind == "config":
            found.config.update(_values(record.config.update))
        elif kind == "summary":
            found.summary.update(_values(record.summary.update))
        elif kind == "history":
            found.history.append(_values(record.history.item))
        elif kind == "artifact":
            _add_artifact(found, record.artifact)
        elif kind == "request" and record.request.HasField("log_artifact"):
            _add_artifact(found, record.request.log_artifact.artifact)
        elif kind == "metric":
            for name in ("min", "max", "mean"):
                if getattr(record.metric.summary, name):
                    found.kept[record.metric.name] = name
    return found


def _add_artifact(found: OfflineRun, artifact: Any) -> None:
    found.artifacts.append(artifact.name)
    found.metadata[artifact.name] = {"type": artifact.type, **json.loads(artifact.metadata or "{}")}


def _values(items: Any) -> dict[str, Any]:
    return {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def _records(path: Path) -> Iterator[Record]:
    content = path.read_bytes()
    at, parts = FILE_HEADER, b""
    while at + RECORD_HEADER <= len(content):
        if BLOCK - at % BLOCK < RECORD_HEADER:  # a header never crosses a block: the rest is padding
            at += BLOCK - at % BLOCK
            continue
        length, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        parts += content[at + RECORD_HEADER : at + RECORD_HEADER + length]
        at += RECORD_HEADER + length
        if kind in (FULL, LAST):
            record = Record()
            record.ParseFromString(parts)
            parts = b""
            yield record
