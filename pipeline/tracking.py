"""Runs of Weights & Biases: optional, never fatal. Without a key they are kept offline and sent later.

A group is a ranker on a data set. In it: a run per seed for the training and one for its evaluation, and one summary
over all seeds. Artifacts name what they were made from:

    data -> candidates -> model -> table -> runs

Online, inputs are declared with `use_artifact`, and W&B draws this graph. That is not possible offline, so artifacts
also name their inputs in their metadata (name and digest), and runs in their config.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from datamodules.retrieval_data import RetrievalData
from evaluation.results_table import Result
from lexical.small_files import read_json, write_text
from lexical.terminal import say, say_once
from pipeline.results import MeasuredRow, SeedResults
from pipeline.run_folder import RunFolder

PROJECT = "lexical-translation-rankers"
SAVED = "ranker"  # folder of a run that `from_pretrained` loads


def start_run(folder: Path, config: dict[str, Any], *, model: str, data: str, seed: int | None, job_type: str) -> Any:
    """Start a W&B run in `folder`, offline if it cannot be online; return None where tracking is off or fails.

    Its labels go into the config, too: W&B cannot group runs by tag. `job_type` is train, evaluate or summary; a
    summary is of all seeds, its `seed` None.
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
            say_once(f"W&B does not start ({options['mode']}): {_one_line(error)}")
            continue
        if options["mode"] == "offline":
            outputs = folder.parents[0 if seed is None else 1]
            say_once(f"W&B: runs are kept offline; send them with: wandb sync $(find {outputs} -name 'offline-run-*')")
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


def finish_failed_run(run: Any) -> None:
    """Finish the run of a training that was interrupted or failed."""
    if run is not None:
        with suppress(Exception):  # the failure itself is what is reported
            run.finish(exit_code=1)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]


# --- what they hold


def track_training(run: Any, folder: RunFolder, data: RetrievalData, summary: dict[str, float]) -> None:
    """Log data, candidates, the trained model and its table, and finish the W&B run of a training."""
    if run is None:
        return
    with finishing(run):
        run.summary.update(summary)
        texts, candidates, *trained = made_artifacts(folder, data)
        log_artifacts(run, [texts, candidates], [texts, candidates, *trained] if run.offline else trained)


def track_evaluation(measured: SeedResults, data: RetrievalData) -> None:
    """Log the evaluation of one seed: results, each query's values, and the run files with what they were made from."""
    folder, config = measured.run, measured.run.load_config()
    run = start_run(folder.path, config, model=folder.model, data=data.name, seed=folder.seed, job_type="evaluate")
    if run is None:
        return
    with finishing(run):
        log_results(run, measured.results, data)
        _, candidates, *_, scorer = made_artifacts(folder, data)
        files = [path for ranking in measured.rankings for path in (folder.run(*ranking), folder.per_query(*ranking))]
        name, digest = f"{data.name}-{folder.model}", scorer.metadata["digest"]
        runs = _artifact("runs", name, digest, files, [scorer, candidates], seed=folder.seed)
        log_artifacts(run, [scorer, candidates], [runs])


def track_summaries(rows: Sequence[MeasuredRow], data: RetrievalData, data_folder: Path) -> None:
    """Log the averages over the seeds of each row that has no summary of just these results.

    A row that is measured later may change the tests of the earlier ones: they are summarised again.
    """
    for row in rows:
        folder = data_folder / row.model
        written = folder / "summarised.txt"
        entries = json.dumps([result.entry() for result in row.results])
        fingerprint = hashlib.sha256(entries.encode()).hexdigest()
        if written.is_file() and written.read_text(errors="replace") == fingerprint:
            continue
        config = {**row.seeds[0].run.load_config(), "seeds": len(row.seeds)}
        config.pop("seed", None)
        run = start_run(folder, config, model=row.model, data=data.name, seed=None, job_type="summary")
        if run is None:
            continue
        with finishing(run):
            import wandb

            log_results(run, row.results, data)
            page = (data_folder / "results.html").read_text(encoding="utf-8")
            run.log({"report": wandb.Html(page, inject=False)})
            run.finish()
            write_text(written, fingerprint)  # what was not sent is sent again


def log_results(run: Any, results: Sequence[Result], data: RetrievalData) -> None:
    """Log means and spreads as the summary; tables of the results, of the tests, and of every query with its text."""
    import pandas as pd
    import wandb

    for result in results:
        name = f"{result.query_set}/{result.measure}{'_alone' if result.alone else ''}"
        run.summary.update({name: result.value, **({f"{name}_spread": result.spread} if result.seeds > 1 else {})})
    run.summary.update({"ms_per_1k": results[0].ms_per_1k})
    tables = {
        "results": pd.DataFrame([result.entry() for result in results]).drop(columns=["significance", "seed_values"])
    }
    if tests := [
        {"query_set": result.query_set, "measure": result.measure, **verdict}
        for result in results
        for verdict in result.significance
    ]:
        tables["significance"] = pd.DataFrame(tests)
    for name in dict.fromkeys(result.query_set for result in results):
        values = {
            f"{result.measure}{' alone' if result.alone else ''}": result.measured.per_query
            for result in results
            if result.query_set == name and result.measurement
        }
        query_set = data.query_set(name)
        table = tables[f"per_query/{name}"] = pd.DataFrame(values)
        table.insert(0, "query", table.index)
        table.insert(1, "text", table["query"].map(dict(zip(query_set.ids, query_set.texts, strict=True))))
    for name, table in tables.items():
        run.log({name: wandb.Table(dataframe=table)})


# --- artifacts


def made_artifacts(folder: RunFolder, data: RetrievalData) -> list[Any]:
    """Return the artifacts data, candidates, model and, where there is one, table; each is made from the one before.

    The model has the trained weights and the settings; of a BERT ranker also what `from_pretrained` loads.
    """
    prepared, settings = data.prepared, data.prepared.settings
    queries = {name: len(query_set) for name, query_set in prepared.query_sets.items()}
    parameters: dict[str, Any] = {"first_stage": settings.first_stage, "depth": settings.depth}
    if settings.candidates is None:
        parameters |= prepared.first_stage_parameters._asdict()
    with folder.checkpoint.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    weights = [path for path in (folder.checkpoint, folder.config, folder.fusion) if path.is_file()]
    saved = sorted((folder.path / SAVED).glob("*"))
    about: dict[str, Any] = {"seed": folder.seed, **read_json(folder.development)}
    texts = _artifact("data", data.name, prepared.folder.name, queries=queries)
    candidates = _artifact("candidates", data.name, data.fingerprint(), inputs=[texts], **parameters)
    model = _artifact("model", f"{data.name}-{folder.model}", digest, [*weights, *saved], [candidates], **about)
    if not folder.table.is_dir():
        return [texts, candidates, model]
    files = sorted(folder.table.iterdir())
    size = sum(path.stat().st_size for path in files)
    table = _artifact("table", f"{data.name}-{folder.model}", digest, files, [model], bytes=size)
    return [texts, candidates, model, table]


def _artifact(
    kind: str, name: str, digest: str, files: Sequence[Path] = (), inputs: Sequence[Any] = (), **metadata: Any
) -> Any:
    """Return an artifact that names its inputs, with a digest of its content; without files it is a description."""
    import wandb

    metadata |= {"digest": digest, "inputs": [_reference(source) for source in inputs]}
    artifact = wandb.Artifact(f"{kind}-{name}".replace("/", "-"), type=kind, metadata=metadata)
    if not files:
        with artifact.new_file("description.txt", encoding="utf-8") as file:
            file.write(f"{_reference(artifact)}\n")
    for path in files:
        folder = f"{SAVED}/" if path.parent.name == SAVED else ""  # both folders may have a file of the same name
        artifact.add_file(str(path), name=folder + path.name, policy="immutable", skip_cache=True)
    return artifact


def _reference(artifact: Any) -> str:
    return f"{artifact.name}@{artifact.metadata['digest']}"


def log_artifacts(run: Any, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
    run.config.update({"inputs": [_reference(artifact) for artifact in inputs]}, allow_val_change=True)
    for artifact in inputs if not run.offline else ():
        run.use_artifact(artifact)  # one of equal content is used, not stored again
    for artifact in outputs:
        run.log_artifact(artifact)
