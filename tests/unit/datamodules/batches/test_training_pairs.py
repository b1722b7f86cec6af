"""Each epoch every usable query once, the same pairs however many processes and parts there are, from any place."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from datamodules.batches.epoch_loader import BATCHES_AHEAD, EpochLoader
from datamodules.batches.training_pairs import TrainingPairs
from lexical.batches import PairOptions
from lexical.errors import UserError
from lexical.index.forward_index import ForwardIndex
from lexical.index.ragged import Ragged, ragged
from tests.fixtures.tiny_collections import forward_index_of

QUERIES, DOCUMENTS = 23, 40
USABLE = [q for q in range(QUERIES) if q not in (4, 11, 17)]
RELEVANT = ragged([[] if q in (4, 17) else list(range(q % 3 + 1)) for q in range(QUERIES)], np.int32)
NEGATIVES = np.random.default_rng(0).integers(10, DOCUMENTS, (QUERIES, 5)).astype(np.int32)
NEGATIVES[::2, 3:] = -1
NEGATIVES[1::6, 0] = -1  # not only at the end
NEGATIVES[11] = -1
TOKENS = ragged([[q] * (q % 4 + 1) for q in range(QUERIES)], np.int32)  # so that a batch says whose they are

Pair = tuple[int, int, int]  # query, relevant and other document


@pytest.fixture(scope="module")
def forward() -> ForwardIndex:
    return forward_index_of([[number % 7] for number in range(DOCUMENTS)], QUERIES)


def pairs_of(
    forward: ForwardIndex, at_once: int = 3, parts: int = 1, process: tuple[int, int] = (0, 1), seed: int = 1
) -> TrainingPairs:
    options = PairOptions(seed, at_once, parts, collate=lambda batch: batch)
    return TrainingPairs(forward, TOKENS, RELEVANT, NEGATIVES, options, process)


def batch_of(pairs: TrainingPairs, epoch: int, number: int) -> list[Pair]:
    _, queries, candidates = pairs.batch(epoch, number)[:3]
    assert queries.rows == candidates.rows and (candidates.lengths() == 2).all()
    found = []
    for i in range(queries.rows):
        query = int(queries.row(i)[0])
        assert queries.row(i).tolist() == TOKENS.row(query).tolist()
        found.append((query, int(candidates.row(i)[0]), int(candidates.row(i)[1])))
    return found


def epoch_of(pairs: TrainingPairs, epoch: int) -> list[Pair]:
    return [pair for number in range(len(pairs)) for pair in batch_of(pairs, epoch, number)]


# ------------------------------------------------------------------------------------------------ an epoch


@pytest.mark.parametrize("processes", [1, 2, 3])
@pytest.mark.parametrize(("at_once", "parts"), [(1, 1), (3, 1), (2, 3), (5, 2), (50, 1)])
def test_an_epoch_has_every_usable_query_once(processes: int, at_once: int, parts: int, forward: ForwardIndex) -> None:
    shares = [pairs_of(forward, at_once, parts, (rank, processes)) for rank in range(processes)]
    assert len({len(share) for share in shares}) == 1  # or one process would wait for another for ever
    assert len(shares[0]) % parts == 0
    for epoch in (0, 1):
        found = [query for share in shares for query, _, _ in epoch_of(share, epoch)]
        assert sorted(found) == USABLE


@pytest.mark.parametrize(("processes", "at_once", "parts"), [(1, 2, 3), (1, 1, 6), (2, 3, 1), (3, 2, 1), (3, 1, 2)])
def test_a_step_has_the_pairs_that_one_process_would_have(
    processes: int, at_once: int, parts: int, forward: ForwardIndex
) -> None:
    alone = pairs_of(forward, at_once=6)
    shares = [pairs_of(forward, at_once, parts, (rank, processes)) for rank in range(processes)]
    assert len(shares[0]) == len(alone) * parts
    for epoch in (0, 3):
        for step in range(len(alone)):
            numbers = range(step * parts, (step + 1) * parts)
            shared = [pair for share in shares for number in numbers for pair in batch_of(share, epoch, number)]
            assert shared == batch_of(alone, epoch, step)


def test_the_last_batch_may_be_small_and_empty_for_a_process(forward: ForwardIndex) -> None:
    """20 queries, 18 of them a step: two are left for the first of three processes, none for the others."""
    shares = [pairs_of(forward, at_once=6, process=(rank, 3)) for rank in range(3)]
    assert [len(share) for share in shares] == [2, 2, 2]
    assert [len(batch_of(share, 0, 1)) for share in shares] == [2, 0, 0]
    _, queries, candidates = shares[2].batch(0, 1)[:3]
    for empty in (queries, candidates):
        assert empty.offsets.tolist() == [0] and len(empty.values) == 0
        assert np.issubdtype(empty.values.dtype, np.integer)


def test_a_query_without_tokens_stays_in_its_batch(forward: ForwardIndex) -> None:
    tokens = ragged([[5], [], [6, -1]], np.int32)
    relevant, negatives = ragged([[0], [1], [2]], np.int32), np.array([[10], [11], [12]], np.int32)
    pairs = TrainingPairs(forward, tokens, relevant, negatives, PairOptions(1, 3, 1, lambda batch: batch))
    _, queries, candidates = pairs.batch(0, 0)[:3]
    found = {tuple(candidates.row(i).tolist()): queries.row(i).tolist() for i in range(3)}
    assert found == {(0, 10): [5], (1, 11): [], (2, 12): [6, -1]}


# ------------------------------------------------------------------------------------------------ what is drawn


def test_draws_depend_on_seed_epoch_and_query_alone(forward: ForwardIndex) -> None:
    one, other = pairs_of(forward), pairs_of(forward, at_once=7, parts=2, process=(1, 2))
    backwards = {query: other.draw(2, query) for query in reversed(USABLE)}
    assert {query: one.draw(2, query) for query in USABLE} == backwards
    assert epoch_of(one, 2) == epoch_of(pairs_of(forward), 2)


def test_other_epochs_and_other_seeds_draw_others_in_another_order(forward: ForwardIndex) -> None:
    drawn = [epoch_of(pairs_of(forward, seed=seed), epoch) for seed, epoch in ((1, 0), (1, 1), (2, 0), (2, 1))]
    for found in (
        drawn,
        [sorted(documents) for documents in drawn],
        [[query for query, _, _ in documents] for documents in drawn],
    ):
        assert len({tuple(documents) for documents in found}) == 4


def test_going_back_to_an_epoch_gives_the_same_again(forward: ForwardIndex) -> None:
    pairs = pairs_of(forward)
    first = epoch_of(pairs, 0)
    assert epoch_of(pairs, 1) == epoch_of(pairs_of(forward), 1) != first
    assert epoch_of(pairs, 0) == first


def test_each_relevant_and_each_negative_document_has_its_turn_and_no_other(forward: ForwardIndex) -> None:
    pairs = pairs_of(forward)
    for query in USABLE:
        drawn = [pairs.draw(epoch, query) for epoch in range(200)]
        assert {relevant for relevant, _ in drawn} == set(RELEVANT.row(query).tolist())
        assert {other for _, other in drawn} == set(NEGATIVES[query].tolist()) - {-1}


# ------------------------------------------------------------------------------------------------ what is left out


def test_queries_without_relevant_or_other_documents_are_left_out_and_counted(
    forward: ForwardIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    assert pairs_of(forward).usable.tolist() == USABLE
    said = capsys.readouterr()
    assert said.err.startswith("3 training queries have no relevant document or no other candidate")
    assert said.out == ""


def test_queries_whose_relevant_documents_are_not_found_are_counted_too(
    forward: ForwardIndex, capsys: pytest.CaptureFixture[str]
) -> None:
    options = PairOptions(1, 3, 1, lambda batch: batch, retrieved_only=True)
    TrainingPairs(forward, TOKENS, RELEVANT, NEGATIVES, options)
    assert capsys.readouterr().err.startswith("3 training queries have no relevant candidate or no other candidate")


def test_where_all_can_be_used_nothing_is_said(forward: ForwardIndex, capsys: pytest.CaptureFixture[str]) -> None:
    options = PairOptions(1, 3, 1, lambda batch: batch)
    TrainingPairs(forward, ragged([[1]], np.int32), ragged([[0]], np.int32), np.array([[-1, 3]]), options)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("relevant", "negatives"),
    [([[], []], [[1], [2]]), ([[0], [1]], [[-1], [-1]]), ([[0], []], [[-1], [2]])],
)
def test_where_none_can_be_used_nothing_can_be_learned(
    relevant: list[list[int]], negatives: list[list[int]], forward: ForwardIndex
) -> None:
    options = PairOptions(1, 3, 1, lambda batch: batch)
    queries: Ragged = ragged([[1], [2]], np.int32)
    with pytest.raises(UserError, match="nothing can be learned"):
        TrainingPairs(forward, queries, ragged(relevant, np.int32), np.array(negatives), options)


# ------------------------------------------------------------------------------------------------ the loader


def name(epoch: int, number: int) -> str:
    return f"{epoch}:{number}"


@pytest.mark.parametrize("length", [0, 1, BATCHES_AHEAD, BATCHES_AHEAD + 1, 3 * BATCHES_AHEAD])
def test_batches_come_in_their_order(length: int) -> None:
    loader = EpochLoader(name, length, lambda: (2, 0))
    assert len(loader) == length
    assert list(loader) == [f"2:{number}" for number in range(length)]


@pytest.mark.parametrize("first", [1, 5, 9, 10])
def test_it_starts_where_the_trainer_stands(first: int) -> None:
    assert list(EpochLoader(name, 10, lambda: (7, first))) == [f"7:{number}" for number in range(first, 10)]


def test_the_trainer_is_asked_when_the_first_batch_is_wanted_and_once_an_epoch() -> None:
    """Lightning makes the iterator before it has restored where it stands."""
    place, asked = (0, 0), 0

    def position() -> tuple[int, int]:
        nonlocal asked
        asked += 1
        return place

    loader = EpochLoader(name, 3, position)
    batches = iter(loader)
    assert asked == 0
    place = (4, 1)
    assert list(batches) == ["4:1", "4:2"]
    place = (5, 0)
    assert list(loader) == ["5:0", "5:1", "5:2"]
    assert asked == 2


def test_an_epoch_through_the_loader_is_the_epoch(forward: ForwardIndex) -> None:
    pairs = pairs_of(forward, at_once=2)
    loader = EpochLoader(lambda epoch, number: batch_of(pairs, epoch, number), len(pairs), lambda: (3, 4))
    assert [pair for batch in loader for pair in batch] == epoch_of(pairs_of(forward, at_once=2), 3)[8:]


def test_an_error_reaches_whoever_asks_after_the_batches_before_it() -> None:
    def make(epoch: int, number: int) -> int:
        if number == 6:
            raise OSError("the disk is gone")
        return number

    batches = iter(EpochLoader(make, 20, lambda: (0, 0)))
    assert [next(batches) for _ in range(6)] == [0, 1, 2, 3, 4, 5]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)


def test_batches_are_made_ahead_but_not_far_and_not_here() -> None:
    made: list[tuple[int, str]] = []
    ready = threading.Event()

    def make(epoch: int, number: int) -> int:
        made.append((number, threading.current_thread().name))
        if number == BATCHES_AHEAD:
            ready.set()
        return number

    batches = iter(EpochLoader(make, 50, lambda: (0, 0)))
    assert next(batches) == 0
    assert ready.wait(10)  # the next ones are made while nobody asks
    assert [number for number, _ in made] == list(range(BATCHES_AHEAD + 1))
    assert all(thread.startswith("batches") for _, thread in made)


def test_whoever_leaves_early_waits_for_no_more_than_the_batch_in_hand() -> None:
    made: list[int] = []
    go_on = threading.Event()

    def make(epoch: int, number: int) -> int:
        made.append(number)
        if number > 0:
            assert go_on.wait(10)
        return number

    def leave() -> None:
        for _ in EpochLoader(make, 1000, lambda: (0, 0)):
            threading.Timer(0.2, go_on.set).start()  # when the loop has been left and has cancelled the others
            break

    before = set(threading.enumerate())  # other tests may have left loaders that are not collected yet
    leave()
    assert made in ([0], [0, 1])
    assert go_on.wait(10)
    started = set(threading.enumerate()) - before
    assert not [thread for thread in started if thread.name.startswith("batches")]
    assert len(started) <= 1  # the timer may be about to end
