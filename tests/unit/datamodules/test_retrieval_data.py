"""The data modules: what ``--data NAME`` builds, and the batches for rankers."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from datamodules import Folder, MSMarco, retrieval_data
from datamodules.text.query_sets import QuerySet
from lexical.batches import DataNeeds, PairOptions, RankingBatch, ValidationSample
from lexical.errors import UserError
from lexical.index.ragged import Ragged, concatenated
from tests.fixtures.official_files import pack, write_official
from tests.fixtures.plain_reference import plain_bm25, plain_idf
from tests.fixtures.small_folder import serve, write_lines, write_small_folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def data(small_folder: Path, cache: Path) -> Folder:
    return Folder(str(small_folder), cache_dir=str(cache), workers=1, k1=1.2, b=0.75)


def same(first: Ragged, second: Ragged) -> bool:
    return first.offsets.tolist() == second.offsets.tolist() and first.values.tolist() == second.values.tolist()


# ------------------------------------------------------------------------------------------------- names and sets


def test_a_folder_is_named_after_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = (write_small_folder(tmp_path / parent / "texts", 20, 20, 4, 0) for parent in ("a", "b"))
    names = [Folder(str(path), cache_dir=str(tmp_path)).name for path in (one, two)]
    monkeypatch.chdir(tmp_path / "a")
    assert Folder("texts", cache_dir=str(tmp_path)).name == names[0] != names[1]
    assert all(name.startswith("folder-texts-") and len(name) == len("folder-texts-") + 6 for name in names)


def test_test_and_further_sets_are_evaluated(data: Folder) -> None:
    assert data.evaluation_sets() == ["test", "test_cpu"] and data.evaluation_sets(sampled=True) == ["test_cpu"]
    assert list(data.prepared.query_sets) == ["train_modeling", "train_fusion", "development", "test"]
    assert data.prepared.ranked_sets == ("train_fusion", "development", "test")
    assert len(data.query_set("train_fusion")) == 30


@pytest.mark.parametrize(("kind", "name"), [("passage", "msmarco_passage"), ("document", "msmarco_doc")])
def test_ms_marco_from_the_official_files(tmp_path: Path, kind: Any, name: str) -> None:
    folder = write_official(tmp_path / "official", kind)
    pack(folder)
    data = MSMarco(
        kind,
        str(folder),
        train_fusion_queries=4,
        development_queries=5,
        test_queries=3,
        cache_dir=str(tmp_path),
        workers=1,
    )
    assert data.name == name and data.evaluation_sets() == ["test", "trec2019", "trec2020", "test_cpu"]
    sizes = {name: len(queries) for name, queries in data.prepared.query_sets.items()}
    assert sizes == {"train_modeling": 16, "train_fusion": 4, "development": 5, "test": 3, "trec2019": 2, "trec2020": 2}
    data.prepare_data()
    task = data.ranked_task("trec2019", 1000)
    assert task.candidates.rows == 2


# --------------------------------------------------------------------------------------------------------- batches


@pytest.mark.parametrize("batch_size", [1, 7, 40, 256])
def test_evaluation_batches_hold_every_query_once_in_order(
    small_folder: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    monkeypatch.setattr(retrieval_data, "QUERIES_PER_RANKING_BATCH", batch_size)
    data = Folder(str(small_folder), cache_dir=str(cache), workers=1, k1=1.2, b=0.75)
    batches = data.evaluation_batches("test", DataNeeds(("lemm",), train="candidates", depth=10))
    rankings: list[Any] = [batch.ranking for batch in batches]
    assert [ranking.queries.rows for ranking in rankings[:-1]] == [batch_size] * (len(batches) - 1)
    assert all(ranking.queries.rows == ranking.candidates.rows for ranking in rankings)
    assert all(ranking.queries.offsets[0] == ranking.candidates.offsets[0] == 0 for ranking in rankings)
    assert same(concatenated([ranking.queries for ranking in rankings]), data.prepared.query_tokens("test", "lemm"))
    expected = data.prepared.candidates("test").candidates.head(10)
    assert same(concatenated([ranking.candidates for ranking in rankings]), expected)
    assert same(expected, data.ranked_task("test", 10).candidates) and expected.lengths().max() == 10
    assert [batch.last for batch in batches] == [False] * (len(batches) - 1) + [True]
    first_stage = np.concatenate([batch.first_stage for batch in batches])
    assert np.array_equal(first_stage, data.first_stage_scores("test", 10))


def test_batches_have_the_field_of_the_ranker_and_the_candidates_of_the_first_stage(
    small_folder: Path, cache: Path
) -> None:
    data = Folder(str(small_folder), cache_dir=str(cache), workers=1, k1=1.2, b=0.75)
    serve(data, DataNeeds(("bwps",), train="candidates", depth=3))
    data.prepare_data()
    ((batch,), _) = data.test_dataloader()
    assert batch.ranking.forward.vocabulary_size == 30_522
    assert same(batch.ranking.queries, data.prepared.query_tokens("test", "bwps"))
    assert same(batch.ranking.candidates, data.prepared.candidates("test").candidates.head(3))


def test_tuning_has_a_batch_of_all_development_queries(data: Folder) -> None:
    serve(data, DataNeeds(("lemm",), train="candidates"))
    (batch,) = data.train_dataloader()
    assert same(batch.queries, data.prepared.query_tokens("development", "lemm"))
    assert batch.task.candidates.rows == 60 and len(batch.task.relevant) == len(batch.task.candidates.values)
    assert batch.task.id_order.tolist() == data.prepared.collection.id_order.tolist()


@pytest.mark.parametrize("retrieved_only", [False, True])
def test_positives_of_pairs_may_be_candidates_only(data: Folder, retrieved_only: bool) -> None:
    options = PairOptions(1, 8, 1, lambda batch: batch, negatives_from=5, retrieved_only=retrieved_only)
    serve(data, DataNeeds(("lemm",), train="pairs", pairs=options))
    batches: list[RankingBatch] = list(data.train_dataloader())
    relevant = data.query_set("train_modeling").relevant
    expected = data.prepared.retrieved_relevant(5) if retrieved_only else relevant
    positives = np.concatenate([batch.candidates.values[::2] for batch in batches])
    has_negatives = (data.prepared.negatives(5) >= 0).any(axis=1)
    count = np.count_nonzero((expected.lengths() > 0) & has_negatives)
    assert len(positives) == count < relevant.rows + (not retrieved_only)
    assert set(positives.tolist()) <= set(expected.values.tolist())


def test_validation_queries_are_divided_among_the_processes(data: Folder) -> None:
    needs = DataNeeds(("lemm",), train="pairs", validation=ValidationSample(queries=25, depth=7))

    def judged_lists(process: tuple[int, int]) -> list[tuple[list[int], list[int], list[bool]]]:
        ((ranking, task, _),) = data.validation_batches(needs, process)
        lists = []
        for query, bounds in enumerate(pairwise(task.candidates.offsets)):
            arrays = ranking.queries.row(query), task.candidates.row(query), task.relevant[slice(*bounds)]
            lists.append(tuple(array.tolist() for array in arrays))
        return lists

    shares = [judged_lists((rank, 3)) for rank in range(3)]
    assert [len(share) for share in shares] == [9, 8, 8]
    assert sorted(query for share in shares for query in share) == sorted(judged_lists((0, 1)))


def test_all_development_queries_are_validated_batch_by_batch(data: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    needs = DataNeeds(("word",), train="pairs", validation=ValidationSample(queries=None, depth=7))
    whole = data.ranked_task("development", 7)
    first_stage = data.first_stage_scores("development", 7)
    monkeypatch.setattr("datamodules.retrieval_data.QUERIES_PER_RANKING_BATCH", 6)
    for processes in (1, 2):
        batches = [batch for rank in range(processes) for batch in data.validation_batches(needs, (rank, processes))]
        assert max(batch.ranking.queries.rows for batch in batches) == 6
        assert sum(batch.ranking.queries.rows for batch in batches) == whole.candidates.rows
        for name, expected in (("first_stage", first_stage), ("relevant", whole.relevant)):
            values = [getattr(batch if name == "first_stage" else batch.task, name) for batch in batches]
            assert sorted(np.concatenate(values)) == sorted(expected)
    assert np.array_equal(np.concatenate([batch.first_stage for batch in data.validation_batches(needs)]), first_stage)


def test_a_sample_has_the_first_candidates_of_some_queries(small_folder: Path, cache: Path) -> None:
    data = Folder(str(small_folder), cache_dir=str(cache), workers=1, k1=1.2, b=0.75)
    whole, sample = data.query_set("test"), data.query_set("test_cpu")
    assert sample.ids == whole.ids and data.prepared.depth("test_cpu") == 20  # of 40 queries a sample of 200 has all
    sample = QuerySet(whole.folder, "test", queries=7)
    rows = [whole.ids.index(query) for query in sample.ids]
    assert len(sample) == 7 and rows == sorted(rows) and sample.texts == [whole.texts[row] for row in rows]
    assert [sample.relevant.row(i).tolist() for i in range(7)] == [whole.relevant.row(row).tolist() for row in rows]
    assert [query for query, _, _ in sample.qrels()] == sample.ids
    task, full = data.ranked_task("test_cpu", 1000), data.ranked_task("test", 20)
    assert same(task.candidates, full.candidates) and np.array_equal(task.relevant, full.relevant)


def test_first_stage_scores_are_bm25_over_the_sum_of_idf(data: Folder) -> None:
    sequences = data.prepared.field("lemm").sequences
    documents = [sequences.row(i).tolist() for i in range(sequences.rows)]
    tokens = data.prepared.query_tokens("test", "lemm")
    candidates = data.prepared.candidates("test").candidates.head(4)
    scores = data.first_stage_scores("test", 4)
    assert len(scores) == len(candidates.values) and scores.dtype == np.float32
    for pair, (row, document) in enumerate(zip(candidates.row_numbers(), candidates.values, strict=True)):
        query = tokens.row(row).tolist()
        idf = sum(plain_idf(documents, token) for token in set(query))
        assert scores[pair] == pytest.approx(plain_bm25(documents, query, document, 1.2, 0.75) / idf, rel=1e-5)


# ---------------------------------------------------------------------------------------------------- fingerprints


def fingerprint(folder: Path, cache: Path, **settings: Any) -> str:
    settings = {"cache_dir": str(cache), "workers": 1, "k1": 1.2, "b": 0.75, **settings}
    return Folder(str(folder), **settings).fingerprint()


def test_the_fingerprint_depends_on_everything_that_changes_the_candidates(small_folder: Path, cache: Path) -> None:
    base = fingerprint(small_folder, cache)
    assert fingerprint(small_folder, cache) == base
    others: list[dict[str, Any]] = [
        {"k1": 0.9},
        {"b": 0.4},
        {"depth": 10},
        {"max_doc_tokens": 5},
        {"development_queries": 30},
    ]
    assert len({base, *(fingerprint(small_folder, cache, **settings) for settings in others)}) == 6


def test_the_fingerprint_changes_with_the_external_run(small_folder: Path, cache: Path, tmp_path: Path) -> None:
    queries = [f"{name}{i}" for name, count in (("train", 300), ("dev", 60), ("test", 40)) for i in range(count)]
    run = write_lines(tmp_path / "other.run", [f"{query} Q0 D1 1 2.0 x" for query in queries])
    before = fingerprint(small_folder, cache, candidates=str(run))
    write_lines(run, [f"{query} Q0 D2 1 20.0 x" for query in queries])
    assert fingerprint(small_folder, cache, candidates=str(run)) != before


# -------------------------------------------------------------------------------------------------------- mistakes


def test_missing_paths_are_one_clear_line(small_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"^give the folder of the data with --data\.path DIR$"):
        Folder()
    with pytest.raises(UserError, match=r"^--data\.path: there is no folder .*/nowhere$"):
        MSMarco("passage", str(tmp_path / "nowhere"))
    with pytest.raises(UserError, match=r"^--data\.candidates: there is no file or folder .*/nowhere\.run$"):
        Folder(str(small_folder), candidates=str(tmp_path / "nowhere.run"))


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("depth", 0),
        ("depth", -1),
        ("max_doc_tokens", 0),
        ("max_vocabulary", 0),
        ("k1", -0.5),
        ("b", 1.5),
        ("workers", -1),
        ("test_queries", -1),
    ],
)
def test_an_impossible_setting_is_named(small_folder: Path, flag: str, value: Any) -> None:
    with pytest.raises(UserError, match=rf"--data\.{flag}"):
        Folder(str(small_folder), **{flag: value})


def test_an_unknown_field_is_named(data: Folder) -> None:
    with pytest.raises(UserError, match="there is no field 'stems': choose one of word, lemm, word_all, bwps"):
        data.prepared.field("stems")
