"""All prepared data of one collection, step by step, each step cached on disk (see `cached_step`).

    cache/<data>/<fingerprint>/texts        collection (Arrow), query sets, notes on what was left out
                               fields-*     tokens and forward index of the fields, and the queries' tokens
                               tuning-*     k1 and b of the first stage
                               index-*      bm25s index of the first stage
                               dense-*      faiss index of the documents' vectors, for a dense first stage
                               candidates-* top documents of each query set, as TREC runs and arrays
                               negatives-*  sampled negative documents of the training queries

Free of Lightning, and of torch unless the first stage is dense; `RetrievalData` is its thin face towards the trainer.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np

from datamodules.cached_step import cached_step, code_version, fingerprint
from datamodules.candidates.candidate_sets import (
    CandidateSet,
    external_candidates,
    open_candidates,
    recall,
    retrieve,
    sample_negatives,
    write_candidates,
)
from datamodules.candidates.dense import FLAG, build_dense_index, load_dense_encoder, retrieve_dense
from datamodules.text.analysis import (
    LOOKUP,
    MAX_VOCABULARY,
    SPACY_FIELDS,
    WORD_PIECES,
    AnalysisSettings,
    analyser_identity,
)
from datamodules.text.collection import Collection
from datamodules.text.fields import Field, build_fields, tokenise_queries
from datamodules.text.query_sets import DEVELOPMENT, SAMPLES, SPLIT_SEED, TRAIN_MODELING, QuerySet
from datamodules.text.sources import TextSource
from datamodules.worker_pool import cores
from lexical.bm25 import BM25Parameters, Trial, search_space, tune
from lexical.encoders import PACKAGED, encoder_identity
from lexical.errors import UserError, require
from lexical.index.array_file import map_array
from lexical.index.ragged import Ragged
from lexical.index.retrieval import RetrievalIndex
from lexical.ranking.fusion import reciprocal_rank_fusion
from lexical.ranking.order import RankedTask
from lexical.terminal import say_once

BM25, DENSE, HYBRID = "bm25", "dense", "hybrid"
NEGATIVES, NEGATIVES_FROM = 20, 500  # "20 negative examples selected from a set of top-500 candidates"

# The modules whose source decides the content of a step.
FIELD_CODE = ["datamodules.text.analysis", "datamodules.text.fields", "datamodules.text.vocabulary"]
FIELD_CODE += ["lexical.index.forward_index", "lexical.index.ragged", "lexical.index.array_file"]
TUNING_CODE = ["lexical.bm25", "lexical.ranking.order", "lexical.index.retrieval"]
INDEX_CODE = ["lexical.index.retrieval", "lexical.bm25"]
DENSE_CODE = ["datamodules.candidates.dense"]
SAMPLING_CODE = ["datamodules.candidates.candidate_sets"]
CANDIDATE_CODE = [*SAMPLING_CODE, "lexical.ranking.trec_run", "lexical.ranking.order"]
MIXED_CODE = [*CANDIDATE_CODE, *DENSE_CODE, "lexical.ranking.fusion"]


@dataclass(frozen=True)
class PreparationSettings:
    """The settings `--data.*` of all data sets.

    Args:
        workers: processes that tokenise; 0 means one per core.
        depth: candidates kept for each query.
        k1: BM25 parameter of the first stage; tuned on development when not given.
        b: BM25 parameter of the first stage; tuned on development when not given.
        candidates: a TREC run (or a folder with QUERY_SET.run), gzipped or not, to use instead of the first stage.
        first_stage: "bm25", "dense" (vectors of an encoder), or "hybrid": both, fused by rank.
        dense_encoder: whose mean-pooled vectors are searched: "packaged", a Hugging Face name, or a folder.
        dense_pieces: word pieces of a document or query that this encoder reads.
        max_doc_tokens: tokens of a document that are indexed, per field; all when not given.
        max_vocabulary: words of a field that are numbered, the most frequent; rarer ones match nothing.
        spacy_model: "lookup" (needs no model), or an installed pipeline such as en_core_web_sm.
        tokenizer: of the field bwps: "packaged", a folder with tokenizer.json, or a Hugging Face name.
    """

    workers: int = 0
    depth: int = 1000
    k1: float | None = None
    b: float | None = None
    candidates: str | None = None
    first_stage: Literal["bm25", "dense", "hybrid"] = "bm25"
    dense_encoder: str = PACKAGED
    dense_pieces: int = 128
    max_doc_tokens: int | None = None
    max_vocabulary: int = MAX_VOCABULARY
    spacy_model: str = LOOKUP
    tokenizer: str = PACKAGED
    first_stage_field: ClassVar[str] = "lemm"

    def __post_init__(self) -> None:
        k1, b, longest = self.k1, self.b, self.max_doc_tokens
        require(self.depth >= 1, "--data.depth", self.depth, "1 or more")
        require(self.workers >= 0, "--data.workers", self.workers, "0 (one per core) or more")
        require(longest is None or longest >= 1, "--data.max_doc_tokens", longest, "1 or more")
        require(self.max_vocabulary >= 1, "--data.max_vocabulary", self.max_vocabulary, "1 or more")
        require(k1 is None or k1 >= 0, "--data.k1", k1, "0 or more")
        require(b is None or 0 <= b <= 1, "--data.b", b, "between 0 and 1")
        require(3 <= self.dense_pieces <= 512, "--data.dense_pieces", self.dense_pieces, "from 3 to 512")
        if self.external_run is not None and not self.external_run.exists():
            raise UserError(f"--data.candidates: there is no file or folder {self.external_run}")

    @property
    def worker_count(self) -> int:
        return self.workers or cores()

    @property
    def external_run(self) -> Path | None:
        return None if self.candidates is None else Path(self.candidates).expanduser()

    @property
    def analysis(self) -> AnalysisSettings:
        return AnalysisSettings(self.spacy_model, self.tokenizer, self.max_doc_tokens, self.max_vocabulary)


class Preparation:
    """The prepared data of one collection; each step is built when it is first used.

    Args:
        name: of the data set; the folder under the cache.
        source: of collection and query sets.
        settings: how it is prepared.
        cache_dir: the cache of all data sets.
    """

    def __init__(self, name: str, source: TextSource, settings: PreparationSettings, cache_dir: Path) -> None:
        self.name, self.source, self.settings = name, source, settings
        self.folder = cache_dir / name / fingerprint(source.identity())

    def _step(self, kind: str, label: str, build: Callable[[Path], None], code: Sequence[str], **inputs: Any) -> Path:
        """Return the folder of a step that is determined by `inputs` and the source of the modules `code`."""
        parameters = {**inputs, "code": code_version(code)}
        folder = self.folder / f"{kind}-{fingerprint(parameters)}"
        return cached_step(folder, build, f"{self.name}: {label}", parameters)

    # --- texts

    @cached_property
    def texts(self) -> Path:
        folder = cached_step(self.folder / "texts", self.source.write, f"{self.name}: texts", self.source.identity())
        for note in json.loads((folder / "notes.json").read_text()):
            say_once(note)
        return folder

    @cached_property
    def collection(self) -> Collection:
        return Collection(self.texts / "collection")

    @cached_property
    def query_sets(self) -> dict[str, QuerySet]:
        sets = json.loads((self.texts / "query_sets.json").read_text())
        return {name: QuerySet(self.texts / "query_sets", name, **settings) for name, settings in sets.items()}

    @cache  # noqa: B019 - lives as long as the program, as all caches here: each step is checked once
    def query_set(self, name: str) -> QuerySet:
        """Return a query set, or a sample of one."""
        if name not in SAMPLES:
            return self.query_sets[name]
        sample = SAMPLES[name]
        return QuerySet(self.texts / "query_sets", sample.of, sample.queries, self.query_sets[sample.of].relevant_from)

    @property
    def ranked_sets(self) -> tuple[str, ...]:
        """Query sets that get full candidate lists: all but train_modeling."""
        return tuple(name for name in self.query_sets if name != TRAIN_MODELING)

    # --- fields

    @cache  # noqa: B019
    def field(self, name: str) -> Field:
        return Field(self.field_folder(name) / name)

    def query_tokens(self, query_set: str, field: str) -> Ragged:
        """Return the token ids of each query, -1 for unknown words."""
        queries, folder = self.query_set(query_set), self.field_folder(field) / field / "queries"
        arrays = (map_array(folder / f"{queries.name}.{part}.npy") for part in ("offsets", "tokens"))
        return queries.select(Ragged(*arrays))

    @cache  # noqa: B019
    def field_folder(self, name: str) -> Path:
        """Return the folder of a field, which all fields of one analyser share."""
        fields, analysis = SPACY_FIELDS if name in SPACY_FIELDS else (name,), self.settings.analysis

        def build(folder: Path) -> None:
            build_fields(self.collection, fields, analysis, self.settings.worker_count, folder)
            tokenise_queries(self.query_sets.values(), {name: Field(folder / name) for name in fields}, analysis)

        label = {SPACY_FIELDS: "words and lemmas", (WORD_PIECES,): "word pieces"}.get(fields, fields[0])
        return self._step(
            f"fields-{fields[0]}", label, build, FIELD_CODE,
            fields=fields, analyser=analyser_identity(fields[0], analysis), max_doc_tokens=analysis.max_doc_tokens,
            max_vocabulary=analysis.max_vocabulary if fields == SPACY_FIELDS else None,
        )  # fmt: skip

    # --- first stage

    @cached_property
    def first_stage_parameters(self) -> BM25Parameters:
        """k1 and b of the first stage: as given, or tuned on development over the candidates of an untuned index."""
        settings, name = self.settings, self.settings.first_stage_field
        if settings.k1 is not None and settings.b is not None:
            return BM25Parameters(settings.k1, settings.b)

        def build(folder: Path) -> None:
            trials: list[Trial] = []
            forward, queries = self.field(name).forward, self.query_tokens(DEVELOPMENT, name)
            best = tune(forward, queries, self.tuning_task(), trials.append, *search_space(settings.k1, settings.b))
            report = {**best._asdict(), "trials": [(*trial.parameters, trial.mrr) for trial in trials]}
            (folder / "tuned.json").write_text(json.dumps(report, indent=1) + "\n")

        folder = self._step(
            "tuning", f"k1 and b of BM25 ({name})", build, TUNING_CODE,
            field=name, tokens=self.field_folder(name).name, k1=settings.k1, b=settings.b, depth=settings.depth,
            candidates=self._run_identity(),
        )  # fmt: skip
        tuned = json.loads((folder / "tuned.json").read_text())
        return BM25Parameters(tuned["k1"], tuned["b"])

    def tuning_task(self) -> RankedTask:
        """Return the development queries with the candidates of an untuned first stage, to tune parameters on."""
        if self.settings.candidates is not None:
            return self.ranked_task(DEVELOPMENT, self.settings.depth)
        folder = self._retrieved_folder(BM25, BM25Parameters(), (DEVELOPMENT,))
        return self.judged(DEVELOPMENT, open_candidates(folder, DEVELOPMENT).candidates)

    @cache  # noqa: B019
    def index_folder(self, bm25: BM25Parameters) -> Path:
        name = self.settings.first_stage_field

        def build(folder: Path) -> None:
            RetrievalIndex.build(self.field(name).forward, bm25).save(folder)

        return self._step(
            "index", f"BM25 ({name}) index, k1 {bm25.k1:g}, b {bm25.b:g}", build, INDEX_CODE,
            field=name, tokens=self.field_folder(name).name, bm25=bm25, bm25s=version("bm25s"),
        )  # fmt: skip

    @cached_property
    def _dense_folder(self) -> Path:
        settings = self.settings
        name, pieces = settings.dense_encoder, settings.dense_pieces
        if settings.max_doc_tokens is not None:
            pieces = min(pieces, settings.max_doc_tokens + 2)  # [CLS] and [SEP]

        def build(folder: Path) -> None:
            encoder = load_dense_encoder(name, pieces)
            build_dense_index(encoder, self.collection.path, len(self.collection), folder)

        return self._step(
            "dense", "vectors of the documents", build, DENSE_CODE, encoder=encoder_identity(FLAG, name), pieces=pieces
        )

    def _indexes(self, first_stage: str, bm25: BM25Parameters) -> list[str]:
        """Return what determines the retrieved documents."""
        return [self.index_folder(bm25).name, *([] if first_stage == BM25 else [first_stage, self._dense_folder.name])]

    def _retrieve(
        self, first_stage: str, bm25: BM25Parameters, query_sets: Sequence[str], depth: int
    ) -> Iterator[tuple[str, dict[str, CandidateSet]]]:
        """Retrieve each query set by BM25, and unless that is the first stage, by vectors and by both."""
        settings, id_order = self.settings, np.asarray(self.collection.id_order)
        index = RetrievalIndex.load(self.index_folder(bm25))
        encoder = None if first_stage == BM25 else load_dense_encoder(settings.dense_encoder, settings.dense_pieces)
        for name in query_sets:
            tokens = self.query_tokens(name, settings.first_stage_field)
            retrieved = {BM25: retrieve(index, tokens, name, depth, settings.worker_count, id_order)}
            if encoder is not None:
                texts = self.query_sets[name].texts
                retrieved[DENSE] = retrieve_dense(self._dense_folder, encoder, texts, name, depth)
                both = [candidate_set.candidates for candidate_set in retrieved.values()]
                retrieved[HYBRID] = CandidateSet(*reciprocal_rank_fusion(both, depth, len(self.collection), id_order))
            yield name, retrieved

    # --- candidates

    def candidates(self, query_set: str) -> CandidateSet:
        """Return the top documents of every query of the set, best first."""
        return open_candidates(self.candidate_folder(query_set), query_set)

    @cache  # noqa: B019
    def candidate_folder(self, query_set: str) -> Path:
        if self.settings.candidates is not None:
            folder = self._external_folder(query_set)
        else:
            folder = self._retrieved_folder(self.settings.first_stage, self.first_stage_parameters, self.ranked_sets)
        lengths = open_candidates(folder, query_set).candidates.lengths()
        if empty := np.count_nonzero(lengths == 0):
            say_once(f"{query_set}: queries without any candidate, which count as 0: {empty:,}")
        return folder

    @cache  # noqa: B019
    def _retrieved_folder(self, first_stage: str, bm25: BM25Parameters, query_sets: tuple[str, ...]) -> Path:
        """Return the folder of retrieved candidates; a dense or hybrid one has the recall of each retrieval too."""
        depth = self.settings.depth
        depths = sorted({100, depth})

        def build(folder: Path) -> None:
            recalls: dict[str, Any] = {}
            for name, retrieved in self._retrieve(first_stage, bm25, query_sets, depth):
                queries = self.query_sets[name]
                write_candidates(retrieved[first_stage], queries, self.collection, first_stage, folder)
                for kind, (candidates, _) in retrieved.items() if first_stage != BM25 else ():
                    values = {k: recall(candidates, queries.relevant, k) for k in depths}
                    recalls.setdefault(name, {})[kind] = values
            (folder / "recall.json").write_text(json.dumps(recalls, indent=1) + "\n")

        prefix = "" if first_stage == BM25 else f"{first_stage} "
        folder = self._step(
            f"candidates-{first_stage}", f"{prefix}candidates of {', '.join(query_sets)}", build,
            CANDIDATE_CODE if first_stage == BM25 else MIXED_CODE,
            indexes=self._indexes(first_stage, bm25), query_sets=query_sets, depth=depth,
        )  # fmt: skip
        for kind, values in json.loads((folder / "recall.json").read_text()).get(DEVELOPMENT, {}).items():
            say_once(
                f"{kind}: " + ", ".join(f"development recall@{depth} {value:.4f}" for depth, value in values.items())
            )
        return folder

    def _external_folder(self, query_set: str) -> Path:
        path, depth = self.settings.external_run, self.settings.depth
        assert path is not None

        def build(folder: Path) -> None:
            queries = self.query_sets[query_set]
            candidate_set, notes = external_candidates(path, queries, self.collection, depth)
            write_candidates(candidate_set, queries, self.collection, "external", folder)
            (folder / "notes.json").write_text(json.dumps(notes) + "\n")

        folder = self._step(
            "candidates-external", f"candidates of {query_set} from {path}", build, CANDIDATE_CODE,
            run=self._run_identity(), query_set=query_set, depth=depth,
        )  # fmt: skip
        for note in json.loads((folder / "notes.json").read_text()):
            say_once(note)
        return folder

    def _run_identity(self) -> Any:
        """Return what determines the content of an external run."""
        path = self.settings.external_run
        if path is None:
            return None
        files = sorted([*path.glob("*.run"), *path.glob("*.run.gz")]) if path.is_dir() else [path]
        return [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]

    @cache  # noqa: B019 - every row of a program ranks the same candidates
    def ranked_task(self, query_set: str, depth: int) -> RankedTask:
        """Return the `depth` best candidates of every query, with what is needed to judge a ranking of them."""
        queries = self.query_set(query_set)
        depth = min(depth, SAMPLES[query_set].depth) if query_set in SAMPLES else depth
        return self.judged(query_set, queries.select(self.candidates(queries.name).candidates.head(depth)))

    def depth(self, query_set: str) -> int:
        """Return the largest number of candidates of a query: as configured, or the longest list of an external run."""
        if query_set in SAMPLES:
            return min(SAMPLES[query_set].depth, self.depth(SAMPLES[query_set].of))
        if self.settings.candidates is None:
            return self.settings.depth
        return int(self.candidates(query_set).candidates.lengths().max())

    def judged(self, query_set: str, candidates: Ragged) -> RankedTask:
        """Return candidates of the queries of a set, with what is needed to judge a ranking of them."""
        documents, relevant = len(self.collection), self.query_set(query_set).relevant
        judged, pairs = (rows.row_numbers() * documents + rows.values for rows in (relevant, candidates))
        return RankedTask(candidates, np.asarray(self.collection.id_order), np.isin(pairs, judged))

    # --- training documents

    def training_candidates(self, depth: int) -> CandidateSet:
        """Return the `depth` best documents of every query of train_modeling."""
        folder = self._training_folder(depth)
        offsets, rows, scores = (map_array(folder / f"{part}.npy") for part in ("offsets", "rows", "scores"))
        return CandidateSet(Ragged(offsets, rows), scores)

    @cache  # noqa: B019
    def _training_folder(self, depth: int) -> Path:
        first_stage, external = self.settings.first_stage, self.settings.candidates is not None

        def build(folder: Path) -> None:
            if external:
                candidates, scores = self.candidates(TRAIN_MODELING)
                kept = candidates.positions() < depth
                candidates, scores = candidates.select(kept), scores[kept]
            else:
                ((_, retrieved),) = self._retrieve(first_stage, self.first_stage_parameters, [TRAIN_MODELING], depth)
                candidates, scores = retrieved[first_stage]
            np.save(folder / "offsets.npy", candidates.offsets)
            np.save(folder / "rows.npy", candidates.values.astype(np.int32))
            np.save(folder / "scores.npy", scores.astype(np.float32))

        indexes = None if external else self._indexes(first_stage, self.first_stage_parameters)
        return self._step(
            "training", "candidates of the training queries", build, CANDIDATE_CODE, depth=depth,
            source=self.candidate_folder(TRAIN_MODELING).name if external else indexes,
        )  # fmt: skip

    def negatives(self, depth: int = NEGATIVES_FROM) -> np.ndarray:
        """Return (train_modeling queries, 20) document rows drawn from the `depth` best candidates without the relevant
        ones, -1 where a query has fewer."""
        return map_array(self._negatives_folder(depth) / "rows.npy")

    def retrieved_relevant(self, depth: int = NEGATIVES_FROM) -> Ragged:
        """Return the relevant documents of train_modeling that are among the `depth` best candidates."""
        relevant = self.query_sets[TRAIN_MODELING].relevant
        return relevant.select(map_array(self._negatives_folder(depth) / "retrieved.npy"))

    @cache  # noqa: B019
    def _negatives_folder(self, depth: int) -> Path:
        first_stage, external = self.settings.first_stage, self.settings.candidates is not None

        def build(folder: Path) -> None:
            if external:
                candidates = self.candidates(TRAIN_MODELING).candidates.head(depth)
            else:
                ((_, retrieved),) = self._retrieve(first_stage, self.first_stage_parameters, [TRAIN_MODELING], depth)
                candidates = retrieved[first_stage].candidates
            relevant = self.query_sets[TRAIN_MODELING].relevant
            np.save(folder / "rows.npy", sample_negatives(candidates, relevant, SPLIT_SEED, NEGATIVES))
            pairs = zip(relevant.row_numbers(), relevant.values, strict=True)
            np.save(folder / "retrieved.npy", np.array([row in candidates.row(query) for query, row in pairs], bool))

        indexes = None if external else self._indexes(first_stage, self.first_stage_parameters)
        return self._step(
            "negatives", "negatives", build, SAMPLING_CODE, depth=depth, count=NEGATIVES, seed=SPLIT_SEED,
            source=self.candidate_folder(TRAIN_MODELING).name if external else indexes,
        )  # fmt: skip
