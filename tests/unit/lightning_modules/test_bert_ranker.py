"""The BERT rankers: the encoder's output is what Hugging Face gives, scores depend on the pair alone."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lexical.batches import RankingBatch
from lexical.encoders import packaged_encoder
from lexical.errors import UserError
from lexical.index.ragged import ragged
from lightning_modules.bert import scores as bert_scores
from lightning_modules.bert.chunk_encoder import BF16, _say_float32, cpu_has_bf16, encoder_type, on_device
from lightning_modules.bert.ranker import BertRanker
from lightning_modules.bert.saved_ranker import read_tokenizer
from tests.fixtures.tiny_bert import write_tiny_bert, write_tiny_tokenizer

HEADS = ["vanilla", "knrm", "drmm", "pacrr", "model1"]
PRECISIONS = [None, BF16]  # float32 both on a CPU that cannot multiply in the other
VOCABULARY = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"t{i}" for i in range(195))]


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"), pieces=len(VOCABULARY), positions=64)


def new_ranker(backbone: Path, head: str = "vanilla", chunks: int = 3, **settings: object) -> BertRanker:
    arguments = {"positions": 64, "query_pieces": 8, **settings}
    ranker = BertRanker(head=head, chunks=chunks, backbone=str(backbone), **arguments)  # type: ignore[arg-type]
    ranker.use_vocabulary(VOCABULARY)
    ranker.start_weights(VOCABULARY)
    return ranker.eval()


def batch_of(queries: list[list[int]], documents: list[list[int]], candidates: list[list[int]]) -> RankingBatch:
    forward: Any = None  # not looked at
    return RankingBatch(forward, ragged(queries, np.int32), ragged(candidates, np.int32), ragged(documents, np.int32))


def texts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, len(VOCABULARY), length).tolist() for length in lengths]


def learned_from(ranker: BertRanker, batch: RankingBatch) -> Any:
    """The batch as the trainer gives it to the ranker."""
    return ranker.transfer_batch_to_device(ranker.collate(batch), torch.device("cpu"), 0)


LENGTHS = [0, 1, 52, 53, 54, 159, 400]  # a chunk has 53 pieces


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("head", HEADS)
def test_a_score_depends_on_its_query_and_document_alone(backbone: Path, head: str, precision: str | None) -> None:
    """Neither neighbours nor order nor padding change a bit of it; empty and overlong texts have one."""
    ranker = new_ranker(backbone, head)
    ranker.use_precision(precision)
    queries, documents = texts([0, 1, 8, 25], 1), texts(LENGTHS)
    everyone = list(range(len(documents)))
    together = ranker.score(batch_of(queries, documents, [everyone] * len(queries))).reshape(len(queries), -1)
    assert np.isfinite(together).all()
    backwards = ranker.score(batch_of(queries[::-1], documents, [everyone[::-1]] * len(queries)))
    np.testing.assert_array_equal(backwards.reshape(len(queries), -1)[::-1, ::-1], together)
    for q, query in enumerate(queries):
        for d in everyone:
            alone = ranker.score(batch_of([query], documents, [[d]]))
            np.testing.assert_array_equal(alone, together[q, d])
    cut = [query[:8] for query in queries], [document[:159] for document in documents]
    same = ranker.score(batch_of(*cut, [everyone] * len(queries))).reshape(len(queries), -1)
    np.testing.assert_array_equal(same, together)  # what lies behind the limits is not read


@pytest.mark.parametrize("head", HEADS)
def test_scores_that_are_computed_together_are_the_same_but_for_rounding(
    backbone: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What devices other than a CPU do."""
    ranker = new_ranker(backbone, head)
    batch = batch_of(texts([0, 1, 8, 25], 1), texts(LENGTHS), [list(range(len(LENGTHS)))] * 4)
    one_by_one = ranker.score(batch)
    monkeypatch.setattr(BertRanker, "to_the_bit", False)
    np.testing.assert_allclose(ranker.score(batch), one_by_one, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_packaged_encoder_scores_a_pair_to_the_bit_alone_and_beside_others_and_with_any_number_of_threads(
    precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bert_scores, "PIECES", {"cpu": 256})  # several slices: threads work side by side
    tokenizer = read_tokenizer(packaged_encoder()).get_vocab()
    vocabulary = sorted(tokenizer, key=lambda piece: tokenizer[piece])
    ranker = BertRanker(head="model1", chunks=2, positions=128)
    ranker.use_precision(precision)
    ranker.use_vocabulary(vocabulary)
    ranker.start_weights(vocabulary)
    ranker.eval()
    rng = np.random.default_rng(0)
    queries = [rng.integers(1000, 30_000, size).tolist() for size in (1, 3, 9, 32)]
    documents = [rng.integers(1000, 30_000, size).tolist() for size in (0, 1, 5, 20, 50, 77, 92, 93, 94, 150, 300)]
    together = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        together.append(ranker.score(batch_of(queries, documents, [list(range(len(documents)))] * len(queries))))
        np.testing.assert_array_equal(together[-1], together[0])
    alone = [ranker.score(batch_of([query], documents, [[d]])) for query in queries for d in range(len(documents))]
    np.testing.assert_array_equal(np.concatenate(alone), together[0])


@pytest.mark.parametrize(("device", "graphs"), [("cpu", 2), ("meta", 1)])
def test_on_a_cpu_pairs_are_learned_from_apart_elsewhere_together(backbone: Path, device: str, graphs: int) -> None:
    ranker = new_ranker(backbone).to(device)
    batch = batch_of(texts([4, 6], 1), texts([30, 120, 60, 5]), [[0, 1], [2, 3]])
    assert len(ranker.collate(batch).graphs) == graphs


def test_the_model1_layer_starts_as_similarity(backbone: Path) -> None:
    """From `start` where vectors are orthogonal to 0.9 where they are equal."""
    ranker = new_ranker(backbone, "model1", start=1e-3, projection=512)
    network: Any = ranker.head.network  # type: ignore[union-attr]
    vectors = torch.randn(200, network.query.project.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x_q, x_d = network.query(vectors), network.document(vectors)
        equal = network(x_q, x_d, torch.arange(200), torch.arange(200))
        unlike = network(x_q, x_d, torch.arange(200), torch.arange(200).roll(1))
    assert 0.8 < float(equal.median()) < 0.97
    assert 3e-4 < float(unlike.median()) < 3e-3
    with pytest.raises(UserError, match=r"--model.start 0.95: must be between 0 and 0.9"):
        new_ranker(backbone, "model1", start=0.95)


def test_the_vectors_are_those_of_the_model_itself(backbone: Path) -> None:
    from transformers import AutoModel

    ranker = new_ranker(backbone, "knrm")
    query, document = texts([5, 100], 3)
    (inputs,) = learned_from(ranker, batch_of([query], [document], [[0]])).graphs
    with torch.no_grad():
        encoded = ranker.encoder(inputs)
        model = AutoModel.from_pretrained(str(backbone), add_pooling_layer=False).eval()
        outputs = []
        for part in (document[:50], document[50:]):
            tokens = torch.tensor([[2, *query, 3, *part, 3]])
            types = torch.tensor([[0] * 7 + [1] * 51])
            found = model(tokens, token_type_ids=types, output_hidden_states=True)
            outputs.append(torch.stack(found.hidden_states)[:, 0])  # (layers, tokens, width)
    torch.testing.assert_close(torch.cat(tuple(encoded.query)), outputs[0][:, 1:6], rtol=1e-4, atol=1e-5)
    expected = torch.cat([one[:, 7:57] for one in outputs], dim=1)
    torch.testing.assert_close(torch.cat(tuple(encoded.document)), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoded.cls[0], (outputs[0][-1, 0] + outputs[1][-1, 0]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_pairs_of_a_training_batch_are_scored_as_in_ranking(backbone: Path, head: str) -> None:
    ranker = new_ranker(backbone, head)
    batch = batch_of(texts([4, 6], 1), texts([30, 120, 60, 5]), [[0, 1], [2, 3]])
    with torch.no_grad():
        found = torch.cat(ranker.pair_scores(learned_from(ranker, batch)))
    np.testing.assert_allclose(found.numpy().ravel(), ranker.score(batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("head", HEADS)
def test_all_weights_of_the_head_and_the_encoder_get_gradients(backbone: Path, head: str) -> None:
    ranker = new_ranker(backbone, head)
    batch = batch_of(texts([4, 6], 1), texts([30, 120, 60, 5]), [[0, 1], [2, 3]])
    ranker.hinge(learned_from(ranker, batch))[1].backward()
    without = [name for name, one in ranker.named_parameters() if one.grad is None]
    assert not without
    assert all(torch.isfinite(one.grad).all() for one in ranker.parameters() if one.grad is not None)
    assert any(one.grad.abs().max() > 0 for one in ranker.encoder.parameters() if one.grad is not None)


@pytest.mark.parametrize("head", HEADS)
def test_what_keeps_its_margin_is_not_computed_backwards_and_the_gradients_are_those_of_all(
    backbone: Path, head: str
) -> None:
    ranker = new_ranker(backbone, head)
    batch = batch_of(texts([4, 6, 3], 1), texts([30, 120, 60, 5, 9, 14]), [[0, 1], [2, 3], [4, 5]])
    with torch.no_grad():
        margins = torch.cat(ranker.pair_scores(learned_from(ranker, batch))).diff(dim=1).neg().flatten()
    ranker.margin = float(margins.sort().values[1:].mean())  # two pairs do not keep it
    whole = ranker(on_device(ranker.inputs_of(batch, np.arange(6)), torch.device("cpu"))).view(-1, 2)
    torch.relu(ranker.margin - whole[:, 0] + whole[:, 1]).sum().backward()
    expected = {name: one.grad for name, one in ranker.named_parameters()}
    ranker.zero_grad()
    backwards: list[int] = []
    for graph in (graphs := ranker.pair_scores(learned_from(ranker, batch))):
        graph.register_hook(lambda _: backwards.append(1))
    ranker.pair_scores = lambda _: graphs  # type: ignore[method-assign]
    losses, loss = ranker.hinge(None)
    loss.backward()
    assert len(backwards) == 2 and int((losses > 0).sum()) == 2
    assert float(loss.detach()) == pytest.approx(float(losses.sum()))
    for name, one in ranker.named_parameters():
        assert expected[name] is not None and one.grad is not None, name
        torch.testing.assert_close(one.grad, expected[name], rtol=1e-3, atol=1e-5, msg=name)


def test_where_all_pairs_keep_their_margin_every_weight_has_a_gradient_of_zero(backbone: Path) -> None:
    """Or there is no pair at all, as at the end of an epoch: DDP waits for the gradients all the same."""
    ranker = new_ranker(backbone)
    ranker.margin = -100.0
    kept = batch_of(texts([4, 6], 1), texts([30, 120, 60, 5]), [[0, 1], [2, 3]])
    for batch, pairs in ((kept, 2), (batch_of([], [], []), 0)):
        losses, loss = ranker.hinge(learned_from(ranker, batch))
        loss.backward()
        assert losses.shape == (pairs,) and float(loss.detach()) == 0.0
        assert all(one.grad is not None and not one.grad.any() for one in ranker.parameters())
        ranker.zero_grad()


def test_model1_equals_the_formula_written_out(backbone: Path) -> None:
    ranker = new_ranker(backbone, "model1")
    batch = batch_of(texts([3], 1), texts([20, 70]), [[0, 1]])
    with torch.no_grad():
        encoded = ranker.encoder(learned_from(ranker, batch).graphs[0])
        network: torch.nn.Module = ranker.head.network  # type: ignore[assignment]
        for pair, length in enumerate((20, 70)):
            total = 0.0
            for q in range(3):
                x_q = network.query(encoded.query[-1][pair, q])  # type: ignore[operator]
                p = 0.0
                for d in range(length):
                    x_d = network.document(encoded.document[-1][pair, d])  # type: ignore[operator]
                    hidden = torch.relu(network.f1(torch.cat([x_q, x_d, x_q * x_d])))  # type: ignore[operator]
                    p += float(torch.sigmoid(network.f3(torch.relu(network.f2(hidden))))) / length  # type: ignore[operator]
                total += float(np.log(p))
            assert float(ranker.score(batch)[pair]) == pytest.approx(total, abs=1e-4)


def test_rates_are_those_of_encoder_and_head(backbone: Path) -> None:
    ranker = new_ranker(backbone, "model1", learning_rate=1e-5, head_learning_rate=3e-4)
    groups = {group["name"]: group for group in ranker.optimizer().param_groups}
    assert groups["encoder"]["lr"] == 1e-5 and groups["head"]["lr"] == 3e-4
    count = sum(len(group["params"]) for group in groups.values())
    assert count == len(list(ranker.parameters()))


def test_the_head_depends_on_the_seed_and_the_encoder_on_the_backbone(backbone: Path) -> None:
    one, same, other = (new_ranker(backbone, "model1") for _ in range(3))
    other.seed = 2
    other.use_vocabulary(VOCABULARY)
    other.start_weights(VOCABULARY)
    assert one.fingerprint() == same.fingerprint() != other.fingerprint()
    for mine, theirs in zip(one.encoder.parameters(), other.encoder.parameters(), strict=True):
        assert torch.equal(mine, theirs)


def test_mistakes_get_one_clear_line(backbone: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="has 200 word pieces and the data 201"):
        BertRanker(backbone=str(backbone), positions=64, query_pieces=8).use_vocabulary([*VOCABULARY, "more"])
    shuffled = tmp_path / "shuffled"
    shutil.copytree(backbone, shuffled)
    write_tiny_tokenizer(shuffled, [*VOCABULARY[:5], *VOCABULARY[:4:-1]])  # as many pieces, with other numbers
    with pytest.raises(UserError, match="reads other word pieces"):
        BertRanker(backbone=str(shuffled), positions=64, query_pieces=8).use_vocabulary(VOCABULARY)
    with pytest.raises(UserError, match="64 at the most"):
        BertRanker(backbone=str(backbone), positions=512).use_vocabulary(VOCABULARY)
    with pytest.raises(UserError, match=r"no \[CLS\], \[SEP\] and \[PAD\]"):
        BertRanker(backbone=str(backbone)).use_vocabulary([f"t{i}" for i in range(200)])
    with pytest.raises(UserError, match="could not be fetched"):
        BertRanker(backbone=str(tmp_path)).use_vocabulary(VOCABULARY)
    with pytest.raises(UserError, match="there is no folder /no/such"):  # at once, before any data is prepared
        BertRanker(backbone="/no/such")
    with pytest.raises(UserError, match=r"--model\.positions"):
        BertRanker(positions=34)


def test_without_a_gpu_the_profile_is_a_sample(backbone: Path) -> None:
    ranker = new_ranker(backbone)
    ranker.choose_profile(gpu=False)
    assert ranker.profile == "cpu" and ranker.sampled
    needs = ranker.needs()
    assert needs.pairs is not None and needs.pairs.queries == 500
    assert needs.sample == (50, 10)
    asked = new_ranker(backbone, profile="full")
    asked.choose_profile(gpu=False)
    assert not asked.sampled and asked.needs().sample == (500, 100)
    assert isinstance(asked.needs().pairs.queries, type(None))  # type: ignore[union-attr]


def test_a_start_from_similarity_likes_the_words_of_the_query(backbone: Path) -> None:
    ranker = new_ranker(backbone, "model1", start=1e-6)
    found = ranker.score(batch_of([[10, 11, 12]], [[10, 11, 12, 13], [80, 81, 82, 83]], [[0, 1]]))
    assert found[0] > found[1] + 1


@pytest.mark.parametrize("kind", ["DistilBert", "Electra"])
def test_other_encoders_of_the_family_are_read_too(kind: str, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=200, dim=16, n_heads=2, n_layers=1, hidden_dim=16, hidden_size=16, num_attention_heads=2,
        num_hidden_layers=1, intermediate_size=16, max_position_embeddings=64, embedding_size=16,
    )  # fmt: skip
    getattr(transformers, f"{kind}Model")(config).half().save_pretrained(tmp_path)
    ranker = new_ranker(tmp_path, "knrm")
    assert {one.dtype for one in ranker.parameters()} == {torch.float32}  # however it was saved
    assert np.isfinite(ranker.score(batch_of([[10, 11]], texts([5, 80]), [[0, 1]]))).all()


def test_an_empty_batch_has_no_scores(backbone: Path) -> None:
    empty = batch_of([], texts([5]), [])
    assert len(new_ranker(backbone).score(empty)) == 0


@pytest.mark.parametrize("head", HEADS)
def test_a_saved_ranker_gives_the_same_scores_anywhere(backbone: Path, head: str, tmp_path: Path) -> None:
    write_tiny_tokenizer(backbone, VOCABULARY)
    ranker = new_ranker(backbone, head, chunks=2)
    with torch.no_grad():
        for one in ranker.parameters():
            one.add_(0.01 * torch.randn_like(one))  # not the backbone any more
    queries, documents = ["t1 t2 t3", ""], ["t4 [SEP] t5 " * 40, "t2 t9"]
    expected = ranker.score_texts(queries, documents)
    ranker.save_pretrained(tmp_path / "saved")
    loaded = BertRanker.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.score_texts(queries, documents), expected)
    assert loaded.limits == ranker.limits and not loaded.training
    with pytest.raises(ValueError, match="give a query for each"):
        loaded.score_texts(["t1"], documents)


def test_a_ranker_scores_in_the_precision_of_its_training_wherever_it_is(backbone: Path, tmp_path: Path) -> None:
    write_tiny_tokenizer(backbone, VOCABULARY)
    ranker = new_ranker(backbone, "model1")
    queries, documents = ["t1 t2 t3"], ["t4 t5 t6"]
    exact = ranker.score_texts(queries, documents)
    ranker.use_precision(BF16)
    expected = ranker.score_texts(queries, documents)
    assert (expected != exact) == cpu_has_bf16()
    assert expected == pytest.approx(exact, rel=0.02) and expected.dtype == np.float32
    ranker.save_pretrained(tmp_path / "saved")
    loaded = BertRanker.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.score_texts(queries, documents), expected)
    for name in ("bf16", "16-mixed", "16"):  # Lightning has several names for it, on a CPU
        ranker.use_precision(name)
        np.testing.assert_array_equal(ranker.score_texts(queries, documents), expected)
    ranker.use_precision("32-true")
    with torch.autocast("cpu", torch.bfloat16):  # what is around it does not matter
        np.testing.assert_array_equal(ranker.score_texts(queries, documents), exact)
    settings = json.loads((tmp_path / "saved" / "ranker.json").read_text())
    del settings["precision"]  # as older versions saved it
    (tmp_path / "saved" / "ranker.json").write_text(json.dumps(settings))
    np.testing.assert_array_equal(BertRanker.from_pretrained(tmp_path / "saved").score_texts(queries, documents), exact)


def test_a_cpu_without_bfloat16_is_not_made_to_emulate_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightning_modules.bert.chunk_encoder.cpu_has_bf16", lambda: False)
    _say_float32.cache_clear()
    assert [encoder_type(BF16, "cpu") for _ in range(2)] == [None, None]
    assert capsys.readouterr().err.count("does not multiply in bfloat16") == 1
    assert encoder_type(BF16, "cuda") is torch.bfloat16 and encoder_type("16-mixed", "cuda") is torch.float16
    assert encoder_type(None, "cuda") is encoder_type("32-true", "cuda") is None


@pytest.mark.parametrize("broken", ["ranker.json", "head.safetensors", "tokenizer.json", "model.safetensors"])
def test_a_saved_ranker_that_is_not_whole_is_refused(backbone: Path, broken: str, tmp_path: Path) -> None:
    write_tiny_tokenizer(backbone, VOCABULARY)
    new_ranker(backbone).save_pretrained(tmp_path / "saved")
    file = tmp_path / "saved" / broken
    file.write_bytes(file.read_bytes()[:20])
    with pytest.raises(UserError, match="is no saved ranker"):
        BertRanker.from_pretrained(tmp_path / "saved")
    file.unlink()
    with pytest.raises(UserError, match="is no saved ranker"):
        BertRanker.from_pretrained(tmp_path / "saved")


def test_a_head_of_another_ranker_is_refused(backbone: Path, tmp_path: Path) -> None:
    """A head that silently stays random would be the worst of all mistakes."""
    write_tiny_tokenizer(backbone, VOCABULARY)
    for name in ("vanilla", "model1"):
        new_ranker(backbone, name).save_pretrained(tmp_path / name)
    (tmp_path / "model1" / "head.safetensors").replace(tmp_path / "vanilla" / "head.safetensors")
    with pytest.raises(UserError, match="is no saved ranker"):
        BertRanker.from_pretrained(tmp_path / "vanilla")


def trained_step(ranker: BertRanker) -> dict[str, torch.Tensor]:
    """The weights before one optimiser step; the ranker has made it."""
    before = {name: one.detach().clone() for name, one in ranker.named_parameters()}
    batch = batch_of(texts([4, 6], 1), texts([30, 120, 60, 5]), [[0, 1], [2, 3]])
    ranker.train().hinge(learned_from(ranker, batch))[1].backward()
    ranker.optimizer().step()
    return before


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("head", HEADS)
def test_frozen_layers_keep_their_weights_and_the_others_learn(backbone: Path, head: str, checkpointing: bool) -> None:
    ranker = new_ranker(backbone, head, frozen_layers=1, gradient_checkpointing=checkpointing)
    before = trained_step(ranker)
    still = {name for name, one in ranker.named_parameters() if torch.equal(one, before[name])}
    frozen = {name for name in before if ".embeddings." in name or ".layer.0." in name}
    assert frozen and frozen <= still
    assert not {name for name in still - frozen if ".layer.1." in name and "key.bias" not in name}


def test_the_cpu_profile_freezes_a_third_and_drops_nothing_out(tmp_path: Path) -> None:
    folder = write_tiny_bert(tmp_path, pieces=len(VOCABULARY), positions=64, layers=3)
    ranker = BertRanker(backbone=str(folder), positions=64, query_pieces=8)
    ranker.choose_profile(gpu=False)
    ranker.use_vocabulary(VOCABULARY)
    learning = {name.split(".layer.")[1][0] for name, one in ranker.encoder.named_parameters() if one.requires_grad}
    assert learning == {"1", "2"}
    assert {one.p for one in ranker.encoder.modules() if isinstance(one, torch.nn.Dropout)} == {0.0}
    ranker = BertRanker(backbone=str(folder), positions=64, query_pieces=8)
    ranker.choose_profile(gpu=True)
    ranker.use_vocabulary(VOCABULARY)
    assert all(one.requires_grad for one in ranker.parameters())
    assert {one.p for one in ranker.encoder.modules() if isinstance(one, torch.nn.Dropout)} == {0.1}


@pytest.mark.parametrize(("setting", "value"), [("frozen_layers", -1), ("frozen_layers", 2), ("encoder_dropout", 1.0)])
def test_wrong_settings_of_the_encoder_get_one_line(backbone: Path, setting: str, value: float) -> None:
    with pytest.raises(UserError, match=f"--model.{setting}"):
        new_ranker(backbone, **{setting: value})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("chunks", 0), ("query_pieces", 0), ("positions", 11), ("train_window", 11), ("projection", 0),
        ("hidden", [4]), ("dropout", 1.0), ("start", 0.0),
    ],
)  # fmt: skip
def test_settings_out_of_range_get_one_line(backbone: Path, setting: str, value: object) -> None:
    with pytest.raises(UserError, match=f"--model.{setting} "):
        new_ranker(backbone, "model1", **{setting: value})


def test_a_short_training_reads_the_window_that_speaks_of_the_query_and_ranks_by_the_whole(backbone: Path) -> None:
    """53 pieces of a chunk are ranked by, 3 chunks of them; 16 positions are learned from: 5 of a document."""
    whole, short = new_ranker(backbone, "model1"), new_ranker(backbone, "model1", train_window=16)
    query, document = [10, 11], [*range(20, 120), 11, 10, *range(120, 160)]
    batch = batch_of([query], [document], [[0]])
    (group,) = short.collate(batch).graphs[0].groups
    assert group.tokens.shape == (1, 3 + 2 + 5) and {10, 11} <= set(group.tokens[0, 4:-1].tolist())
    np.testing.assert_array_equal(short.score(batch), whole.score(batch))
    assert len(whole.collate(batch).graphs[0].cls_at) == 3
    with pytest.raises(UserError, match=r"--model\.train_window 65: must be more than the query"):
        new_ranker(backbone, train_window=65)
