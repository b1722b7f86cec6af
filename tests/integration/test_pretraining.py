"""Target-corpus pretraining: the sequences, the training, its cache, and the encoder that a ranker then starts from."""

from __future__ import annotations

import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from callbacks.target_pretraining import (
    NEW_HEADS,
    PretrainedEncoder,
    check_backbone,
    held_out_batches,
    share_of,
    training_batches,
)
from datamodules import Folder, PyDocs
from datamodules.batches.sentence_pairs import SHORTEST, PretrainingTokens, SentencePairs
from lexical.batches import NOT_HIDDEN
from lexical.encoders import PACKAGED
from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lightning_modules import BertRanker
from tests.fixtures.bert_training import SMALL, logged, open_data, trainer_in
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert, write_tiny_tokenizer

TOKENS = PretrainingTokens(cls=2, sep=3, pad=0, mask=4, ends=(5,), pieces=1000)

pytestmark = pytest.mark.usefixtures("one_thread")


# --- sequences


def documents_of(lengths: list[int], every: int = 7) -> Ragged:
    """Document i repeats the piece 10 + i; every `every`-th piece ends a sentence."""
    rows = [[5 if k % every == every - 1 else 10 + i for k in range(n)] for i, n in enumerate(lengths)]
    return ragged(rows, np.int32)


@settings(deadline=None)  # the first call compiles
@given(st.lists(st.integers(0, 90), min_size=1, max_size=12), st.integers(2, 9), st.integers(16, 40))
def test_spans_hold_every_piece_at_most_once_and_fit(lengths: list[int], every: int, length: int) -> None:
    documents = documents_of(lengths, every)
    pairs = SentencePairs(documents, TOKENS, length)
    sizes = pairs.ends - pairs.starts
    assert ((sizes >= SHORTEST) & (sizes <= length - 3)).all()
    assert (pairs.starts[1:] >= pairs.ends[:-1]).all()
    for start, end in zip(pairs.starts, pairs.ends, strict=True):
        assert len(set(documents.values[start:end].tolist()) - {5}) <= 1  # of one document
    left_out = sum(lengths) - int(sizes.sum())
    assert left_out <= (SHORTEST - 1) * len(lengths)  # too short for two parts


def test_a_sequence_has_the_form_that_bert_reads() -> None:
    pairs = SentencePairs(documents_of([60] * 200), TOKENS, 32, held_out=10)
    chosen = pairs.order(0)[:64]
    batch, again = pairs.batch(0, chosen), pairs.batch(0, chosen)
    assert all(np.array_equal(a, b) for a, b in zip(batch, again, strict=True))  # of seed, epoch and sequence only
    assert not np.array_equal(batch.tokens, pairs.batch(1, chosen).tokens)
    parts_a: list[list[int]] = []
    rows = batch.tokens, batch.types, batch.mask, batch.labels, batch.follows
    assert np.array_equal(batch.hidden_at, np.flatnonzero(batch.labels != NOT_HIDDEN))
    for tokens, types, mask, labels, follows in zip(*rows, strict=True):
        size = int(mask.sum())
        assert (tokens[size:] == 0).all() and (labels[size:] == NOT_HIDDEN).all() and size <= 32
        whole = np.where(labels == NOT_HIDDEN, tokens, labels)[:size]
        first, second = np.flatnonzero(whole == 3)
        assert whole[0] == 2 and second == size - 1
        assert types[: first + 1].sum() == 0 and types[first + 1 : size].all()
        a, b = (set(part.tolist()) - {5} for part in (whole[1:first], whole[first + 1 : second]))
        assert (a != b) == bool(follows) or not (a and b)
        parts_a.append(whole[1:first].tolist())
        hidden = labels != NOT_HIDDEN
        assert hidden.sum() == max(1, round(0.15 * (size - 3))) and not hidden[[0, first, second]].any()
    assert parts_a[::2] == parts_a[1::2]  # the two sequences of a span have the same A and length
    assert batch.mask[::2].sum(axis=1).tolist() == batch.mask[1::2].sum(axis=1).tolist()
    assert batch.follows.tolist() == [0, 1] * 32


def test_half_of_the_b_follow_and_four_fifths_of_the_hidden_pieces_are_masked() -> None:
    pairs = SentencePairs(documents_of([60] * 2000), TOKENS, 64)
    batch = pairs.batch(0, pairs.order(0)[:1500])
    assert batch.follows.mean() == 0.5
    hidden = batch.labels != NOT_HIDDEN
    assert (batch.tokens[hidden] == 4).mean() == pytest.approx(0.8, abs=0.03)
    assert (batch.tokens[hidden] == batch.labels[hidden]).mean() == pytest.approx(0.1, abs=0.03)


def test_held_out_text_is_never_trained_on() -> None:
    pairs = SentencePairs(documents_of([40] * 100), TOKENS, 32, held_out=10)
    apart = {10 + i for i in range(100) if i % 10 == 9}
    drawn = pairs.batch(0, pairs.order(0)).labels
    assert not apart & set(drawn.ravel().tolist())
    assert set(np.unique(pairs.batch(0, pairs.held_out).labels)) <= apart | {5, NOT_HIDDEN}


def test_the_form_of_b_does_not_tell_whether_it_follows() -> None:
    """Both are equally long, and none that has two pieces or more ends as a sentence does."""
    pairs = SentencePairs(documents_of([60] * 500, every=5), TOKENS, 48)
    batch = pairs.batch(0, pairs.order(0))
    whole = np.where(batch.labels == NOT_HIDDEN, batch.tokens, batch.labels)
    sizes = batch.types.sum(axis=1) - 1
    last = whole[np.arange(len(whole)), batch.mask.sum(axis=1) - 2]
    assert sizes[::2].tolist() == sizes[1::2].tolist() and sizes.max() > 20
    assert not ((last == 5) & (sizes > 1)).any()


def test_a_single_document_has_no_other_b() -> None:
    pairs = SentencePairs(documents_of([200]), TOKENS, 32)
    assert len(pairs.order(0)) and not pairs.batch(0, pairs.order(0)).follows.any()


@settings(deadline=None, max_examples=40)
@given(st.lists(st.integers(0, 90), min_size=2, max_size=8), st.integers(0, 5))
def test_a_b_that_does_not_follow_is_of_another_document_of_the_same_part(lengths: list[int], epoch: int) -> None:
    pairs = SentencePairs(documents_of(lengths), TOKENS, 32, held_out=3)
    for held_out_part, part in ((False, pairs.order(epoch)), (True, pairs.held_out)):
        batches = [pairs.batch(epoch, part[i : i + 1]) for i in range(1, len(part), 2)]
        owners = [int(owner) for owner in pairs._documents_of[part[1::2] // 2]]
        for batch, owner in zip(batches, owners, strict=True):
            whole = np.where(batch.labels == NOT_HIDDEN, batch.tokens, batch.labels)[0]
            begins = int(batch.types[0].argmax())
            documents = set(whole[begins:-1].tolist()) - {5}
            assert batch.follows[0] or len(set(owners)) == 1 or not held_out_part
            assert not batch.follows[0] or 10 + owner not in documents
            held_out = {10 + i for i in range(len(lengths)) if i % 3 == 2}
            assert not documents or not batch.follows[0] or (documents <= held_out) == held_out_part


def test_a_vocabulary_without_a_mask_gets_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"have no \[MASK\]"):
        PretrainingTokens.of(["[PAD]", "[CLS]", "[SEP]", "word"])


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_sequence_of_a_batch_is_in_one_share(count: int, processes: int) -> None:
    members = np.arange(count)
    shares = [share_of(members, rank, processes).tolist() for rank in range(processes)]
    assert all(shares) and {member for share in shares for member in share} == set(range(count))
    assert count < 2 * processes or sum(map(len, shares)) == count
    assert count < 2 * processes or all(share[0] % 2 == 0 for share in shares)  # the two of a span together


@pytest.mark.parametrize(("processes", "parts"), [(1, 1), (1, 4), (4, 1), (2, 3)])
def test_processes_and_their_parts_share_the_sequences_of_a_step(processes: int, parts: int) -> None:
    """64 sequences in steps of 24: the last step has 16."""
    pairs = SentencePairs(documents_of([60] * 200), TOKENS, 32)
    sequences, shown = pairs.order(0)[:64], []
    for rank in range(processes):
        trainer: Any = SimpleNamespace(global_rank=rank, world_size=processes, accumulate_grad_batches=parts)
        loader = training_batches(trainer, pairs, sequences, 24)
        assert len(loader) == 3 * parts
        shown.append([loader.make(0, number).labels for number in range(len(loader))])
    for step, expected in enumerate((24, 24, 16)):
        shares = [len(labels) for batches in shown for labels in batches[step * parts : (step + 1) * parts]]
        assert sum(shares) == expected and max(shares) - min(shares) <= 2
    first = {row.tobytes() for batches in shown for labels in batches[:parts] for row in _padded(labels)}
    assert first == {row.tobytes() for row in _padded(pairs.batch(0, sequences[:24]).labels)}


def _padded(labels: np.ndarray) -> np.ndarray:
    return np.pad(labels, ((0, 0), (0, 32 - labels.shape[1])), constant_values=NOT_HIDDEN)


def test_the_defaults_are_two_million_sequences_in_steps_of_256() -> None:
    hparams = BertRanker(pretrain=True).hparams
    assert (hparams["pretrain_sequences"], hparams["pretrain_batch_size"]) == (2_000_000, 256)


# --- training


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pretraining")


@pytest.fixture(scope="module")
def data(small_folder: Path, work: Path) -> Folder:
    return open_data(small_folder, work / "cache")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(with_packaged_tokenizer(write_tiny_bert(tmp_path_factory.mktemp("bert"), positions=128)))


def held_out_measures(
    pairs: SentencePairs, backbone: str, frozen: bool, steps: int, rate: float, size: int
) -> dict[str, float]:
    """Pretrain for so many steps and measure on the held-out sequences; `frozen`: only the heads learn."""
    module = PretrainedEncoder(backbone, rate)
    module.network.bert.requires_grad_(not frozen)
    module.network.bert.pooler.requires_grad_(True)  # part of the next-sentence head
    trainer = L.Trainer(
        max_steps=steps, logger=False, enable_progress_bar=False, enable_checkpointing=False, accelerator="cpu",
        enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(module, training_batches(trainer, pairs, pairs.order(0), size))
    trainer.limit_val_batches = 1.0
    (measured,) = trainer.validate(module, held_out_batches(pairs, size), verbose=False)
    return dict(measured)


def test_an_encoder_that_learns_beats_a_frozen_one(data: Folder, backbone: str) -> None:
    tokens = PretrainingTokens.of(data.vocabulary("bwps"))
    pairs = SentencePairs(data.sequences("bwps"), tokens, 128, held_out=6)
    losses = [
        held_out_measures(pairs, backbone, frozen, 30, 5e-3, 16)["pretrain/held_out_masked_loss"]
        for frozen in (False, True)
    ]
    assert losses[0] < losses[1] - 0.1


def test_heads_that_start_at_random_learn_faster(backbone: str) -> None:
    module = PretrainedEncoder(backbone, 1e-3)
    assert {name.split(".")[0] for name in module.new} == {"bert", "cls"}  # the pooler, which a ranker's encoder lacks
    module.trainer = L.Trainer(max_steps=10, logger=False, accelerator="cpu", enable_model_summary=False)
    known, others = module.configure_optimizers()["optimizer"].param_groups
    assert (known["initial_lr"], others["initial_lr"]) == pytest.approx((1e-3, NEW_HEADS * 1e-3))
    by_name = dict(module.network.named_parameters())
    assert {id(weight) for weight in others["params"]} == {id(by_name[name]) for name in module.new & by_name.keys()}
    assert len(known["params"]) + len(others["params"]) == len(by_name)


@pytest.mark.slow
def test_the_packaged_encoder_learns_the_docstrings(tmp_path: Path) -> None:
    """On real text, the masked-LM loss is below that of a frozen encoder with trained heads, and the next-sentence
    accuracy above chance: 0.6 is 3.2 standard errors above it for 512 sequences of 256 held-out texts."""
    field = PyDocs("passage", cache_dir=str(tmp_path)).prepared.field("bwps")
    pairs = SentencePairs(field.sequences, PretrainingTokens.of(field.vocabulary()), 64)
    learned, frozen = (held_out_measures(pairs, PACKAGED, frozen, 300, 2e-4, 16) for frozen in (False, True))
    assert learned["pretrain/held_out_masked_loss"] < frozen["pretrain/held_out_masked_loss"]
    assert learned["pretrain/held_out_next_sentence_accuracy"] > 0.6


def new_ranker(backbone: str, **settings: Any) -> BertRanker:
    """A rate of almost nothing: the encoder stays the one that training has started from."""
    rates = {"learning_rate": 1e-30, "pretrain_rate": 1e-3}
    settings = {**SMALL, **rates, "train_queries": 16, "pretrain_batch_size": 32, **settings}
    return BertRanker(backbone=backbone, pretrain=True, **settings)


def pretrained_folder(cache: Path) -> Path:
    (folder,) = cache.glob("*/*/pretrained-*")
    return folder


def encoder_weights(ranker: BertRanker) -> dict[str, torch.Tensor]:
    return dict(ranker.encoder.transformer.state_dict())


def test_a_ranker_starts_from_the_pretrained_encoder_and_the_next_one_shares_it(
    data: Folder, work: Path, backbone: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("callbacks.target_pretraining.UNTIMED", 1)
    monkeypatch.setattr("callbacks.target_pretraining.TIMED", 1)
    monkeypatch.setattr("callbacks.target_pretraining.AT_ONCE", 16)  # two parts a step
    first = new_ranker(backbone, pretrain_sequences=96)
    trainer_in(work / "first").fit(first, data)
    folder = pretrained_folder(work / "cache")
    saved, start = load_file(folder / "model.safetensors"), load_file(Path(backbone) / "model.safetensors")
    layer = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(saved[layer], start[layer])
    trained = encoder_weights(first)
    for name, value in saved.items():
        assert name.startswith("pooler.") or torch.equal(trained[name], value), name
    report = json.loads((folder / "pretraining.json").read_text())
    assert report["sequences"] == 96 and report["steps"] == 3
    assert len(logged(work / "first", "pretrain/held_out_masked_loss")) == 1
    assert not list(folder.parent.glob(".pretrained-*.training"))
    output = capfd.readouterr().err
    plan = r"96 sequences of 128 pieces \((\d+)% of the collection\), 3 steps of 32, on 1 x cpu in 32-true\n"
    (share,) = re.findall(plan, output)
    assert 0 < int(share) < 100
    assert re.search(plan + r".*\n?1 more steps at \d+\.\d\d s: about 0 s\n", output)
    assert "pretrained on 96 sequences: masked_loss" in output

    before = (folder / "model.safetensors").stat().st_mtime_ns
    second = new_ranker(backbone, head="model1", pretrain_sequences=96)
    trainer_in(work / "second").fit(second, data)
    assert pretrained_folder(work / "cache") == folder
    assert (folder / "model.safetensors").stat().st_mtime_ns == before
    assert torch.equal(encoder_weights(second)[layer], saved[layer])


def test_an_interrupted_pretraining_resumes_to_the_same_weights(
    small_folder: Path,
    tmp_path: Path,
    backbone: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    settings: dict[str, Any] = {"pretrain_sequences": 160, "checkpoint_steps": 1}

    def pretrain(name: str) -> None:
        trainer_in(tmp_path / name, limit_val_batches=0).fit(
            new_ranker(backbone, **settings), open_data(small_folder, tmp_path / name / "cache")
        )

    pretrain("whole")
    start_batch = PretrainedEncoder.on_train_batch_start

    def interrupt(module: PretrainedEncoder, batch: Any, batch_idx: int) -> None:
        if batch_idx == 3:
            raise RuntimeError("interrupted")
        start_batch(module, batch, batch_idx)

    monkeypatch.setattr(PretrainedEncoder, "on_train_batch_start", interrupt)
    with pytest.raises(RuntimeError, match="interrupted"):
        pretrain("parts")
    monkeypatch.undo()
    assert not list((tmp_path / "parts" / "cache").glob("*/*/pretrained-*"))
    pretrain("parts")
    assert "resuming the unfinished pretraining from" in capfd.readouterr().err
    whole, parts = (
        load_file(pretrained_folder(tmp_path / name / "cache") / "model.safetensors") for name in ("whole", "parts")
    )
    for name, value in whole.items():
        assert torch.equal(value, parts[name]), name


def test_only_a_bert_can_be_pretrained(tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    config = DistilBertConfig(vocab_size=50, dim=16, n_heads=2, n_layers=1, hidden_dim=16)
    DistilBertModel(config).save_pretrained(tmp_path)
    write_tiny_tokenizer(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"t{i}" for i in range(45))])
    with pytest.raises(UserError, match="type 'distilbert'"):
        check_backbone(str(tmp_path))
