"""What W&B gets of trained and evaluated rankers: tables, summaries, and artifacts with what they were made from.

    data -> candidates -> model -> table -> runs

Online, inputs are declared with `use_artifact`, and W&B draws this graph. Offline that is not possible; therefore an
artifact also names its inputs in its metadata (name and digest), and so does the run's config.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from datamodules.retrieval_data import RetrievalData
from evaluation.results_table import Result
from lexical.small_files import read_json, write_text
from pipeline.results import MeasuredRow, SeedResults
from pipeline.run_folder import RunFolder
from pipeline.tracking import never_fatal, start_run

SAVED = "ranker"  # folder of a run that `from_pretrained` loads
HIDDEN = ("significance", "seed_values", "measurement")  # fields of a `Result` that have no column in W&B


def track_training(run: Any, folder: RunFolder, data: RetrievalData, summary: dict[str, float]) -> None:
    """Log data, candidates, the trained model and its table, and finish the W&B run of a training."""
    if run is None:
        return
    with never_fatal():
        run.summary.update(summary)
        model = model_artifact(folder, data)
        table = table_artifact(folder, data, model)
        for artifact in (*data_artifacts(data), model, *([table] if table else [])):
            log_artifact(run, artifact)
    with never_fatal():  # whatever happened before: the next training must not log into this run
        run.finish()


def track_evaluation(measured: SeedResults, data: RetrievalData) -> None:
    """Log the evaluation of one seed: results, each query's values, run files."""
    folder = measured.run

    def log(run: Any) -> None:
        log_results(run, measured.results, data)
        log_artifact(run, runs_artifact(measured, data))

    _track(log, folder.path, folder.load_config(), folder.model, data, folder.seed, "evaluate")


def track_summaries(rows: Sequence[MeasuredRow], data: RetrievalData, data_folder: Path) -> None:
    """Log the averages over the seeds of each row that has no summary of just these results.

    A row that is measured later may change the tests of the earlier ones: they are summarised again.
    """
    report = data_folder / "results.html"
    for row in rows:
        written = data_folder / row.model / "summarised.txt"
        entries = json.dumps([result.entry() for result in row.results])
        fingerprint = hashlib.sha256(entries.encode()).hexdigest()
        if written.is_file() and written.read_text(errors="replace") == fingerprint:
            continue

        def log(run: Any, results: Sequence[Result] = row.results) -> None:
            import wandb

            log_results(run, results, data)
            run.log({"report": wandb.Html(report.read_text(encoding="utf-8"), inject=False)})

        config = {key: value for key, value in row.seeds[0].run.load_config().items() if key != "seed"}
        if _track(log, written.parent, {**config, "seeds": len(row.seeds)}, row.model, data, None, "summary"):
            write_text(written, fingerprint)


def _track(
    log: Callable[[Any], None], folder: Path, config: dict[str, Any], model: str, data: RetrievalData,
    seed: int | None, job_type: str,
) -> bool:  # fmt: skip
    """Log into a W&B run of its own; return whether that has worked."""
    with never_fatal():
        run = start_run(folder, config, model=model, data=data.name, seed=seed, job_type=job_type)
        if run is None:
            return False
        try:
            log(run)
        finally:  # whatever happened: the next ranker must not log into this run
            run.finish()
        return True
    return False


def log_results(run: Any, results: Sequence[Result], data: RetrievalData) -> None:
    """Log means and spreads as the summary; tables of the results, of the tests, and of every query with its text."""
    import wandb

    for result in results:
        name = f"{result.query_set}/{result.measure}{'_alone' if result.alone else ''}"
        run.summary.update({name: result.value, **({f"{name}_spread": result.spread} if result.seeds > 1 else {})})
    run.summary.update({"ms_per_1k": results[0].ms_per_1k})
    columns = [field for field in Result._fields if field not in HIDDEN]
    values = [[getattr(result, column) for column in columns] for result in results]
    run.log({"results": wandb.Table(columns=list(columns), data=values)})
    if tests := [(result, verdict) for result in results for verdict in result.significance]:
        rows = [[result.query_set, result.measure, *verdict.values()] for result, verdict in tests]
        run.log({"significance": wandb.Table(columns=["query_set", "measure", *tests[0][1]], data=rows)})
    for name in dict.fromkeys(result.query_set for result in results):
        of_set = [result for result in results if result.query_set == name]
        measured = {f"{result.measure}{' alone' if result.alone else ''}": result.per_query for result in of_set}
        query_set = data.query_set(name)
        texts = dict(zip(query_set.ids, query_set.texts, strict=True))
        rows = [
            [query, texts[query], *(per_query[query] for per_query in measured.values())]
            for query in of_set[0].per_query
        ]
        run.log({f"per_query/{name}": wandb.Table(columns=["query", "text", *measured], data=rows)})


# --- artifacts


class Artifact(NamedTuple):
    """An artifact before it is logged. Without files it is a description."""

    name: str
    kind: str  # data, candidates, model, table or runs
    digest: str  # equal for equal content
    metadata: dict[str, Any]
    files: Sequence[Path] = ()
    inputs: tuple[Artifact, ...] = ()  # what it was made from

    @property
    def reference(self) -> str:
        return f"{self.name}@{self.digest}"


def data_artifacts(data: RetrievalData) -> tuple[Artifact, Artifact]:
    """Return the texts with the query sets, and the candidates."""
    prepared, settings = data.prepared, data.prepared.settings
    queries = {name: len(query_set) for name, query_set in prepared.query_sets.items()}
    texts = Artifact(f"data-{data.name}", "data", prepared.folder.name, {"queries": queries})
    parameters = {"first_stage": settings.first_stage, "depth": settings.depth}
    if settings.candidates is None:
        parameters |= prepared.first_stage_parameters._asdict()
    return texts, Artifact(f"candidates-{data.name}", "candidates", data.fingerprint(), parameters, inputs=(texts,))


def model_artifact(folder: RunFolder, data: RetrievalData) -> Artifact:
    """Return the trained weights and the settings; of a BERT ranker also what `from_pretrained` loads."""
    with folder.checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    files = [path for path in (folder.checkpoint, folder.config, folder.fusion) if path.is_file()]
    files += sorted((folder.path / SAVED).glob("*"))
    metadata = {"seed": folder.seed, **read_json(folder.development)}
    return Artifact(f"model-{data.name}-{folder.model}", "model", digest, metadata, files, (data_artifacts(data)[1],))


def table_artifact(folder: RunFolder, data: RetrievalData, model: Artifact) -> Artifact | None:
    """Return the translation table; None where there is none."""
    if not folder.table.is_dir():
        return None
    files = sorted(folder.table.iterdir())
    size = {"bytes": sum(path.stat().st_size for path in files)}
    return Artifact(f"table-{data.name}-{folder.model}", "table", model.digest, size, files, (model,))


def runs_artifact(measured: SeedResults, data: RetrievalData) -> Artifact:
    """Return run files and per-query values, made from the model (or its table) and the candidates."""
    folder = measured.run
    model = model_artifact(folder, data)
    files = [path for ranking in measured.rankings for path in (folder.run(*ranking), folder.per_query(*ranking))]
    inputs = (table_artifact(folder, data, model) or model, *model.inputs)
    return Artifact(f"runs-{data.name}-{folder.model}", "runs", model.digest, {"seed": folder.seed}, files, inputs)


def log_artifact(run: Any, artifact: Artifact) -> None:
    """Log an artifact of the run, and its inputs as inputs of the run; files are not copied on the way."""
    for source in artifact.inputs:
        declared = list(run.config.get("inputs", []))
        if source.reference not in declared:
            run.config.update({"inputs": [*declared, source.reference]}, allow_val_change=True)
            if not run.offline:
                run.use_artifact(_wandb_artifact(source))  # one of equal content is used, not stored again
    run.log_artifact(_wandb_artifact(artifact))


def _wandb_artifact(artifact: Artifact) -> Any:
    import wandb

    inputs = [source.reference for source in artifact.inputs]
    metadata = {**artifact.metadata, "digest": artifact.digest, "inputs": inputs}
    result = wandb.Artifact(artifact.name.replace("/", "-"), type=artifact.kind, metadata=metadata)
    if not artifact.files:
        with result.new_file("description.txt", encoding="utf-8") as file:  # equal for equal digests
            file.write(f"{artifact.reference}\n")
    for path in artifact.files:
        folder = f"{SAVED}/" if path.parent.name == SAVED else ""  # both folders may have a file of the same name
        result.add_file(str(path), name=folder + path.name, policy="immutable", skip_cache=True)
    return result
