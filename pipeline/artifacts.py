"""What goes to W&B as artifacts, and what each is made of: data -> candidates -> model -> table -> runs.

Online, inputs are declared with `use_artifact`, so that W&B draws the graph. Offline it takes no inputs; therefore an
artifact also names what it is made of in its metadata ("made_from": name and digest), and so does the run's config.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.retrieval_data import RetrievalData
from lexical.small_files import read_json
from pipeline.run_folder import RunFolder

SAVED = "ranker"  # folder of a run that `from_pretrained` loads


class Item(NamedTuple):
    """An artifact before it is logged. Without files it is a description."""

    name: str
    kind: str  # data, candidates, model, table or runs
    digest: str  # equal for equal content
    metadata: dict[str, Any]
    files: Sequence[Path] = ()
    made_from: tuple[Item, ...] = ()

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.digest}"


def data_items(data: RetrievalData) -> tuple[Item, Item]:
    """The texts and query sets, and the candidates found in them."""
    prepared, settings = data.prepared, data.prepared.settings
    queries = {name: len(one) for name, one in prepared.query_sets.items()}
    texts = Item(f"data-{data.name}", "data", prepared.folder.name, {"queries": queries})
    parameters = {"first_stage": settings.first_stage, "depth": settings.depth}
    if settings.candidates is None:
        parameters |= prepared.first_stage_parameters._asdict()
    candidates = Item(f"candidates-{data.name}", "candidates", data.fingerprint(), parameters, made_from=(texts,))
    return texts, candidates


def model_item(folder: RunFolder, name: str, data: RetrievalData) -> Item:
    """The trained weights and the settings; of a BERT ranker also what `from_pretrained` loads."""
    checkpoint = folder.checkpoint
    with checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    files = [path for path in (checkpoint, folder.config, folder.fusion) if path.is_file()]
    saved = sorted((folder.path / SAVED).glob("*"))
    metadata = {"seed": folder.seed, **read_json(folder.development)}
    return Item(f"model-{data.name}-{name}", "model", digest, metadata, [*files, *saved], (data_items(data)[1],))


def table_item(folder: RunFolder, name: str, data: RetrievalData, source: Item) -> Item | None:
    """The translation table, made from the model; None where there is none."""
    if not folder.table.is_dir():
        return None
    files = sorted(folder.table.iterdir())
    size = {"bytes": sum(path.stat().st_size for path in files)}
    return Item(f"table-{data.name}-{name}", "table", source.digest, size, files, (source,))


def runs_item(folder: RunFolder, name: str, data: RetrievalData, files: Sequence[Path]) -> Item:
    """Run files and per-query values, made from the model (and its table) and the candidates."""
    model = model_item(folder, name, data)
    made_from = (table_item(folder, name, data, model) or model, *model.made_from)
    return Item(f"runs-{data.name}-{name}", "runs", model.digest, {"seed": folder.seed}, files, made_from)


def log_item(run: Any, item: Item) -> None:
    """The item as an artifact of the run, and its inputs as inputs of the run; files are not copied on the way."""
    for source in item.made_from:
        use_item(run, source)
    run.log_artifact(_artifact(item))


def use_item(run: Any, item: Item) -> None:
    """Declares an input of the run."""
    used = list(run.config.get("inputs", []))
    if item.reference in used:
        return
    run.config.update({"inputs": [*used, item.reference]}, allow_val_change=True)
    if not run.offline:
        run.use_artifact(_artifact(item))  # one of equal content is found, not stored again


def _artifact(item: Item) -> Any:
    import wandb

    metadata = {**item.metadata, "digest": item.digest, "made_from": [one.reference for one in item.made_from]}
    artifact = wandb.Artifact(item.name.replace("/", "-"), type=item.kind, metadata=metadata)
    if not item.files:
        with artifact.new_file("description.txt", encoding="utf-8") as file:  # equal for equal digests
            file.write(f"{item.reference}\n")
    for path in item.files:
        inside = f"{SAVED}/" if path.parent.name == SAVED else ""  # both folders have a ranker.json
        artifact.add_file(str(path), name=inside + path.name, policy="immutable", skip_cache=True)
    return artifact
