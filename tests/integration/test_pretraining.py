"""Target-corpus pretraining: the sequences, the training, its cache, and the encoder that a ranker then starts from."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file

from callbacks.target_pretraining import held_out_batches, share_of
from datamodules.batches.epoch_loader import EpochLoader
from datamodules.batches.sentence_pairs import SHORTEST, PretrainingTokens, SentencePairs
from datamodules import PyDocs
from lexical.batches import NOT_HIDDEN
from lexical.encoders import PACKAGED
from lexical.errors import UserError
from lexical.index.ragged import Ragged, ragged
from lightning_modules.bert.pretraining import PretrainingSettings, TargetPretraining, pretraining_network
from tests.fixtures.tiny_bert import with_packaged_tokenizer, write_tiny_bert, write_tiny_tokenizer
from tests.fixtures.training_place import Place, logged, weights
from train import train

TOKENS = PretrainingTokens(cls=2, sep=3, pad=0, mask=4, ends=(5,), pieces=1000)

STEPS = 300

pytestmark = pytest.mark.usefixtures("one_thread")


# --- sequences


def documents_of(lengths: list[int], every: int = 7) -> Ragged:
    """Document i says the piece 10 + i only, and ends a sentence after every so many."""
    return ragged([[5 if place % every == every - 1 else 10 + i for place in range(n)] for i, n in enumerate(lengths)],
                  np.int32)  # fmt: skip


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
    left = sum(lengths) - int(sizes.sum())
    assert left <= (SHORTEST - 1) * len(lengths)  # what is too short for two parts


def test_a_sequence_is_as_bert_reads_it() -> None:
    pairs = SentencePairs(documents_of([60] * 200), TOKENS, 32, held_out=10)
    chosen = pairs.order(0)[:64]
    batch, again = pairs.batch(0, chosen), pairs.batch(0, chosen)
    assert all(np.array_equal(a, b) for a, b in zip(batch, again, strict=True))  # of seed, epoch and sequence alone
    assert not np.array_equal(batch.tokens, pairs.batch(1, chosen).tokens)
    parts_a: list[list[int]] = []
    for tokens, types, mask, labels, follows in zip(*batch, strict=True):
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
    assert parts_a[::2] == parts_a[1::2]  # the two sequences of a span begin alike, and are equally long
    assert batch.mask[::2].sum(axis=1).tolist() == batch.mask[1::2].sum(axis=1).tolist()
    assert batch.follows.tolist() == [0, 1] * 32


def test_half_of_the_second_parts_follow_and_four_fifths_of_the_hidden_are_masked() -> None:
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


def test_the_form_of_a_second_part_does_not_tell_whose_it_is() -> None:
    """Equally long, and none but those of one piece ends as a sentence does; where it begins is a border either way."""
    pairs = SentencePairs(documents_of([60] * 500, every=5), TOKENS, 48)
    batch = pairs.batch(0, pairs.order(0))
    whole = np.where(batch.labels == NOT_HIDDEN, batch.tokens, batch.labels)
    sizes = batch.types.sum(axis=1) - 1
    last = whole[np.arange(len(whole)), batch.mask.sum(axis=1) - 2]
    assert sizes[::2].tolist() == sizes[1::2].tolist() and sizes.max() > 20
    assert not ((last == 5) & (sizes > 1)).any()


def test_the_only_document_has_no_stranger() -> None:
    pairs = SentencePairs(documents_of([200]), TOKENS, 32)
    assert len(pairs.order(0)) and not pairs.batch(0, pairs.order(0)).follows.any()


@settings(deadline=None)
@given(st.lists(st.integers(0, 90), min_size=2, max_size=8), st.integers(0, 5))
def test_a_stranger_is_of_another_document_of_the_same_part(lengths: list[int], epoch: int) -> None:
    pairs = SentencePairs(documents_of(lengths), TOKENS, 32, held_out=3)
    for held_apart, part in ((False, pairs.order(epoch)), (True, pairs.held_out)):
        found = [pairs.batch(epoch, part[i : i + 1]) for i in range(1, len(part), 2)]
        owners = [int(owner) for owner in pairs._owners[part[1::2] // 2]]
        for batch, owner in zip(found, owners, strict=True):
            whole = np.where(batch.labels == NOT_HIDDEN, batch.tokens, batch.labels)[0]
            begins = int(batch.types[0].argmax())
            documents = set(whole[begins:-1].tolist()) - {5}
            assert batch.follows[0] or len(set(owners)) == 1 or not held_apart
            assert not batch.follows[0] or 10 + owner not in documents
            held_out = {10 + i for i in range(len(lengths)) if i % 3 == 2}
            assert not documents or not batch.follows[0] or (documents <= held_out) == held_apart


def test_a_vocabulary_without_a_mask_gets_one_clear_line() -> None:
    with pytest.raises(UserError, match=r"have no \[MASK\]"):
        PretrainingTokens.of(["[PAD]", "[CLS]", "[SEP]", "word"])


@given(st.integers(1, 40), st.integers(1, 9))
def test_every_sequence_of_a_batch_belongs_to_one_process(count: int, processes: int) -> None:
    members = np.arange(count)
    shares = [share_of(members, rank, processes).tolist() for rank in range(processes)]
    assert all(shares) and {one for share in shares for one in share} == set(range(count))
    assert count < 2 * processes or sum(map(len, shares)) == count
    assert count < 2 * processes or all(share[0] % 2 == 0 for share in shares)  # the two of a span together


# --- training


@pytest.fixture(scope="module")
def place(small_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Place:
    os.environ["WANDB_MODE"] = "offline"
    return Place(small_folder, tmp_path_factory.mktemp("pretraining"))


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_packaged_tokenizer(write_tiny_bert(tmp_path_factory.mktemp("bert"), positions=128))


def small_pairs(place: Place) -> SentencePairs:
    field = place.opened().prepared.field("bwps")
    return SentencePairs(field.sequences, PretrainingTokens.of(field.vocabulary()), 128, held_out=6)


def learned(
    pairs: SentencePairs, backbone: str, frozen: bool, steps: int, rate: float, size: int = 32
) -> dict[str, float]:
    """What is measured on held-out sequences after so many steps."""
    network, new = pretraining_network(backbone, 1)
    module = TargetPretraining(network, PretrainingSettings(learning_rate=rate, batch_size=size), frozen, new)
    trainer = L.Trainer(
        max_steps=steps, logger=False, enable_progress_bar=False, enable_checkpointing=False, accelerator="cpu",
        enable_model_summary=False, limit_val_batches=0,
    )  # fmt: skip
    position: Any = lambda: (trainer.current_epoch, 0)  # noqa: E731
    order = pairs.order(0)
    batches = EpochLoader(lambda epoch, number: pairs.batch(epoch, order[number * size :][:size]), len(order) // size,
                          position)  # fmt: skip
    trainer.fit(module, batches)
    trainer.limit_val_batches = 1.0
    (measured,) = trainer.validate(module, held_out_batches(pairs, size), verbose=False)
    return dict(measured)


def test_an_encoder_that_learns_beats_one_that_is_frozen(place: Place, backbone: Path) -> None:
    losses = [learned(small_pairs(place), str(backbone), frozen, 60, 3e-3)["pretrain/held_out_masked_loss"]
              for frozen in (False, True)]  # fmt: skip
    assert losses[0] < losses[1] - 0.1


def test_heads_that_start_at_random_learn_faster(backbone: Path) -> None:
    network, new = pretraining_network(str(backbone), 1)
    assert {name.split(".")[0] for name in new} == {"bert", "cls"}  # the pooler, which a ranker's encoder has not
    module = TargetPretraining(network, PretrainingSettings(learning_rate=1e-3), new=new)
    module.trainer = L.Trainer(max_steps=10, logger=False, accelerator="cpu", enable_model_summary=False)
    known, others = module.configure_optimizers()["optimizer"].param_groups
    assert (known["initial_lr"], others["initial_lr"]) == pytest.approx((1e-3, 1e-2))
    by_name = dict(network.named_parameters())
    assert {id(one) for one in others["params"]} == {id(by_name[name]) for name in new if name in by_name}
    assert len(known["params"]) + len(others["params"]) == len(by_name)


@pytest.mark.slow
def test_the_packaged_encoder_learns_the_docstrings(tmp_path: Path) -> None:
    """Masked-LM loss below that of a frozen encoder with trained heads, next sentence above chance: on real text, STEPS
    steps of 16 sequences. 512 sequences of 256 held-out texts: 0.6 is 3.2 standard errors above chance at the least."""
    field = PyDocs("passage", cache_dir=str(tmp_path)).prepared.field("bwps")
    pairs = SentencePairs(field.sequences, PretrainingTokens.of(field.vocabulary()), 64)
    found = [learned(pairs, PACKAGED, frozen, STEPS, 2e-4, size=16) for frozen in (False, True)]
    (tmp_path / "learned.json").write_text(json.dumps(found))
    assert found[0]["pretrain/held_out_masked_loss"] < found[1]["pretrain/held_out_masked_loss"]
    assert found[0]["pretrain/held_out_next_sentence_accuracy"] > 0.6


def arguments(backbone: Path, *more: str, model: str = "bert_vanilla_short") -> list[str]:
    """A rate of almost nothing: the encoder stays what the ranker has started from."""
    return [
        "--model", model, "--model.backbone", str(backbone), "--model.pretrain", "true", "--trainer.accelerator=cpu",
        "--model.positions=64", "--model.query_pieces=8", "--model.train_queries=16", "--model.learning_rate=1e-30",
        "--model.pretrain_rate=0.001", *more,
    ]  # fmt: skip


def pretrained_folder(place: Place) -> Path:
    (found,) = (place.work / "cache").glob("*/*/pretrained-*")
    return found


def test_the_ranker_starts_from_the_saved_encoder_and_the_next_one_finds_it(
    place: Place, backbone: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train(place.command("first", *arguments(backbone, "--model.pretrain_sequences=96")))
    folder = pretrained_folder(place)
    saved, start = load_file(folder / "model.safetensors"), load_file(backbone / "model.safetensors")
    ranker = place.folder("first", "bert_vanilla_short")
    found = {name.removeprefix("encoder.transformer."): value for name, value in weights(ranker.checkpoint).items()}
    layer = "encoder.layer.0.attention.self.query.weight"
    assert torch.equal(found[layer], saved[layer]) and not torch.equal(found[layer], start[layer])
    for name, value in saved.items():
        assert name.startswith("pooler.") or torch.equal(found[name], value), name
    report = json.loads((folder / "pretraining.json").read_text())
    assert report["sequences"] == 96 and report["steps"] == 3
    assert len(logged(ranker, "pretrain/held_out_masked_loss")) == 1
    assert not list(folder.parent.glob(".pretrained-*.training"))
    assert "held-out masked-LM loss" in capfd.readouterr().err
    before = (folder / "model.safetensors").stat().st_mtime_ns
    train(place.command("second", *arguments(backbone, "--model.pretrain_sequences=96", model="bert_model1_short")))
    assert pretrained_folder(place) == folder and (folder / "model.safetensors").stat().st_mtime_ns == before
    other = weights(place.folder("second", "bert_model1_short").checkpoint)
    assert torch.equal(other[f"encoder.transformer.{layer}"], saved[layer])


def test_a_pretraining_that_was_killed_goes_on_to_the_same_weights(small_folder: Path, tmp_path: Path,
                                                                   backbone: Path) -> None:  # fmt: skip
    places = [Place(small_folder, tmp_path / name) for name in ("killed", "undisturbed")]
    for one in places:
        one.work.mkdir()
    same = arguments(backbone, "--model.pretrain_sequences=320", "--model.checkpoint_steps=1")
    process = places[0].process("out", *same)
    deadline, reached = time.monotonic() + 200, 0
    while time.monotonic() < deadline and process.poll() is None and reached < 3:
        for found in (places[0].work / "cache").glob("*/*/.pretrained-*.training/last.ckpt"):
            with contextlib.suppress(OSError, RuntimeError, EOFError):  # it is just being written
                reached = torch.load(found, weights_only=True)["global_step"]
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert reached >= 3 and not list((places[0].work / "cache").glob("*/*/pretrained-*"))
    outputs = [one.process("out", *same).communicate(timeout=300)[0] for one in places]
    assert "an unfinished pretraining is continued from" in outputs[0]
    first, second = (load_file(pretrained_folder(one) / "model.safetensors") for one in places)
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def test_two_processes_pretrain_together(small_folder: Path, tmp_path: Path, backbone: Path) -> None:
    place = Place(small_folder, tmp_path)
    process = place.process(
        "out", *arguments(backbone, "--model.pretrain_sequences=65", "--trainer.devices=2", "--model.pairs_at_once=4")
    )
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    report = json.loads((pretrained_folder(place) / "pretraining.json").read_text())
    assert report["steps"] == 3  # the last one has a single sequence


def test_only_a_bert_can_be_pretrained(tmp_path: Path) -> None:
    from transformers import DistilBertConfig, DistilBertModel

    DistilBertModel(DistilBertConfig(vocab_size=50, dim=16, n_heads=2, n_layers=1, hidden_dim=16)).save_pretrained(
        tmp_path
    )
    write_tiny_tokenizer(tmp_path, ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"t{i}" for i in range(45))])
    with pytest.raises(UserError, match="kind 'distilbert'"):
        pretraining_network(str(tmp_path), 1)
