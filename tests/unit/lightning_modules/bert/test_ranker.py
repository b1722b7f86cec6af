"""BERT rankers: the encoder's output is Hugging Face's, and a score depends on its query and document only."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import lightning_modules.bert.ranker
from lexical.batches import RankingBatch
from lexical.encoders import PACKAGED, read_tokenizer
from lexical.errors import UserError
from lexical.index.ragged import ragged
from lightning_modules import BertRanker
from lightning_modules.bert.chunk_encoder import attention_mask
from lightning_modules.neural_ranker import to_tensors
from lightning_modules.precision import BF16, cpu_has_bf16, encoder_dtype
from tests.fixtures.tiny_bert import VOCABULARY, tiny_ranker, write_tiny_bert, write_tiny_tokenizer

HEADS = ["vanilla", "knrm", "drmm", "pacrr", "model1"]
PRECISIONS = [None, BF16]  # both float32 on a CPU that cannot multiply in bfloat16
LENGTHS = [0, 1, 52, 53, 54, 159, 400]  # a chunk has 53 pieces
CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = write_tiny_bert(tmp_path_factory.mktemp("bert"), pieces=len(VOCABULARY), positions=64)
    write_tiny_tokenizer(folder, VOCABULARY)
    return folder


def batch_of(queries: list[list[int]], documents: list[list[int]], candidates: list[list[int]]) -> RankingBatch:
    forward: Any = None  # not read
    return RankingBatch(forward, ragged(queries, np.int32), ragged(candidates, np.int32), ragged(documents, np.int32))


def texts(lengths: list[int], seed: int = 0) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(4, len(VOCABULARY), length).tolist() for length in lengths]


def training_pairs() -> RankingBatch:
    """Return two queries with two documents each; one document has three chunks."""
    return batch_of(texts([4, 6], 1), texts([30, 120, 60, 5]), [[0, 1], [2, 3]])


def trainer_batch(ranker: BertRanker, batch: RankingBatch) -> Any:
    """Return the batch as the trainer passes it to the ranker."""
    return ranker.transfer_batch_to_device(ranker.collate(batch), CPU, 0)


# --- scores


@pytest.mark.parametrize(("head", "precision"), [*((head, None) for head in HEADS), ("model1", BF16), ("knrm", BF16)])
def test_a_score_depends_on_its_query_and_document_only(backbone: Path, head: str, precision: str | None) -> None:
    """Neither neighbours nor order nor padding change a bit of it; empty and overlong texts have a score."""
    ranker = tiny_ranker(backbone, head)
    ranker.use_precision(precision)
    queries, documents = texts([0, 1, 8, 25], 1), texts(LENGTHS)
    rows = list(range(len(documents)))
    together = ranker.score(batch_of(queries, documents, [rows] * len(queries))).reshape(len(queries), -1)
    assert np.isfinite(together).all()
    reversed_scores = ranker.score(batch_of(queries[::-1], documents, [rows[::-1]] * len(queries)))
    np.testing.assert_array_equal(reversed_scores.reshape(len(queries), -1)[::-1, ::-1], together)
    for q, query in enumerate(queries):
        for d in rows:
            np.testing.assert_array_equal(ranker.score(batch_of([query], documents, [[d]])), together[q, d])
    cut = [query[:8] for query in queries], [document[:159] for document in documents]
    scores = ranker.score(batch_of(*cut, [rows] * len(queries))).reshape(len(queries), -1)
    np.testing.assert_array_equal(scores, together)  # what lies behind the limits is not read


@pytest.mark.parametrize("head", HEADS)
def test_scores_computed_together_differ_by_rounding_only(
    backbone: Path, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on devices other than a CPU."""
    ranker = tiny_ranker(backbone, head)
    batch = batch_of(texts([0, 1, 8, 25], 1), texts(LENGTHS), [list(range(len(LENGTHS)))] * 4)
    exact = ranker.score(batch)
    monkeypatch.setattr(BertRanker, "exact", False)
    np.testing.assert_allclose(ranker.score(batch), exact, rtol=1e-4, atol=1e-5)


@pytest.mark.usefixtures("torch_threads")
@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_packaged_encoder_scores_the_same_to_the_bit_with_any_number_of_threads(
    precision: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lightning_modules.bert.ranker, "CPU_SLICE", 256)  # several slices: threads work side by side
    ids = read_tokenizer(PACKAGED).get_vocab()
    vocabulary = sorted(ids, key=lambda piece: ids[piece])
    ranker = BertRanker(head="model1", chunks=2, positions=128)
    ranker.use_precision(precision)
    ranker.build_for(vocabulary)
    ranker.start_weights(vocabulary)
    ranker.eval()
    rng = np.random.default_rng(0)
    queries = [rng.integers(1000, 30_000, size).tolist() for size in (1, 9, 32)]
    documents = [rng.integers(1000, 30_000, size).tolist() for size in (0, 1, 20, 92, 93, 94, 300)]
    together = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        together.append(ranker.score(batch_of(queries, documents, [list(range(len(documents)))] * len(queries))))
        np.testing.assert_array_equal(together[-1], together[0])
    alone = [ranker.score(batch_of([query], documents, [[d]])) for query in queries for d in range(len(documents))]
    np.testing.assert_array_equal(np.concatenate(alone), together[0])


def test_an_empty_batch_has_no_scores(backbone: Path) -> None:
    assert len(tiny_ranker(backbone).score(batch_of([], texts([5]), []))) == 0


def test_the_vectors_are_those_of_hugging_face(backbone: Path) -> None:
    from transformers import AutoModel

    ranker = tiny_ranker(backbone, "knrm")
    query, document = texts([5, 100], 3)
    (inputs,) = trainer_batch(ranker, batch_of([query], [document], [[0]])).graphs
    with torch.no_grad():
        encoded = ranker.encoder(inputs)
        model = AutoModel.from_pretrained(str(backbone), add_pooling_layer=False).eval()
        outputs = []
        for part in (document[:50], document[50:]):
            tokens = torch.tensor([[2, *query, 3, *part, 3]])
            types = torch.tensor([[0] * 7 + [1] * 51])
            states = model(tokens, token_type_ids=types, output_hidden_states=True).hidden_states
            outputs.append(torch.stack(states)[:, 0])  # (layers, tokens, width)
    torch.testing.assert_close(torch.cat(tuple(encoded.query)), outputs[0][:, 1:6], rtol=1e-4, atol=1e-5)
    expected = torch.cat([output[:, 7:57] for output in outputs], dim=1)
    torch.testing.assert_close(torch.cat(tuple(encoded.document)), expected, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(encoded.cls[0], (outputs[0][-1, 0] + outputs[1][-1, 0]) / 2, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("kind", ["DistilBert", "Electra"])
def test_other_encoders_of_the_family_can_be_used(kind: str, tmp_path: Path) -> None:
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=200, dim=16, n_heads=2, n_layers=1, hidden_dim=16, hidden_size=16, num_attention_heads=2,
        num_hidden_layers=1, intermediate_size=16, max_position_embeddings=64, embedding_size=16,
    )  # fmt: skip
    getattr(transformers, f"{kind}Model")(config).half().save_pretrained(tmp_path)
    ranker = tiny_ranker(tmp_path, "knrm")
    assert {weight.dtype for weight in ranker.parameters()} == {torch.float32}  # however it was saved
    assert np.isfinite(ranker.score(batch_of([[10, 11]], texts([5, 80]), [[0, 1]]))).all()


def test_an_encoder_whose_layers_attend_to_windows_keeps_them(tmp_path: Path) -> None:
    """Its own 2-dimensional mask is needed: one of four dimensions would be used in every layer."""
    import transformers

    config = transformers.ModernBertConfig(
        vocab_size=200, hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=16,
        max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=2, pad_token_id=0, cls_token_id=2,
        sep_token_id=3, bos_token_id=2, eos_token_id=3,
    )  # fmt: skip
    transformers.ModernBertModel(config).save_pretrained(tmp_path)
    ranker = tiny_ranker(tmp_path)
    (inputs,) = trainer_batch(ranker, batch_of(texts([4], 1), texts([40, 50]), [[0, 1]])).graphs
    (group,) = inputs.groups
    with torch.no_grad():
        expected = ranker.encoder.transformer(group.tokens, attention_mask=group.mask.long()).last_hidden_state
        assert torch.equal(ranker.encoder.hidden(group)[0], expected)
        everywhere = ranker.encoder.transformer(group.tokens, attention_mask=attention_mask(group.mask))
    assert not torch.allclose(everywhere.last_hidden_state[group.mask], expected[group.mask], atol=1e-3)


# --- the Model 1 layer


def test_model1_equals_the_formula_written_out(backbone: Path) -> None:
    ranker = tiny_ranker(backbone, "model1")
    batch = batch_of(texts([3], 1), texts([20, 70]), [[0, 1]])
    network: Any = ranker.head.network
    scores = ranker.score(batch)
    with torch.no_grad():
        encoded = ranker.encoder(trainer_batch(ranker, batch).graphs[0])
        for pair, length in enumerate((20, 70)):
            total = 0.0
            for q in range(3):
                x_q = network.query(encoded.query[-1][pair, q])
                p = 0.0
                for d in range(length):
                    x_d = network.document(encoded.document[-1][pair, d])
                    hidden = torch.relu(network.f1(torch.cat([x_q, x_d, x_q * x_d])))
                    p += float(torch.sigmoid(network.f3(torch.relu(network.f2(hidden))))) / length
                total += float(np.log(p))
            assert float(scores[pair]) == pytest.approx(total, abs=1e-4)


def test_the_model1_layer_starts_as_similarity(backbone: Path) -> None:
    """From `start` for orthogonal vectors to 0.9 for equal ones."""
    network: Any = tiny_ranker(backbone, "model1", start=1e-3, projection=512).head.network
    vectors = torch.randn(200, network.query.project.in_features, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        x_q, x_d = network.query(vectors), network.document(vectors)
        equal = network(x_q, x_d, torch.arange(200), torch.arange(200))
        different = network(x_q, x_d, torch.arange(200), torch.arange(200).roll(1))
    assert 0.8 < float(equal.median()) < 0.97
    assert 3e-4 < float(different.median()) < 3e-3
    ranker = tiny_ranker(backbone, "model1", start=1e-6)
    scores = ranker.score(batch_of([[10, 11, 12]], [[10, 11, 12, 13], [80, 81, 82, 83]], [[0, 1]]))
    assert scores[0] > scores[1] + 1  # untrained, it prefers the words of the query


# --- training


@pytest.mark.parametrize("head", HEADS)
def test_training_pairs_have_the_scores_of_ranking_and_gradients_reach_all_weights(backbone: Path, head: str) -> None:
    ranker, batch = tiny_ranker(backbone, head), training_pairs()
    with torch.no_grad():
        scores = torch.cat(ranker.pair_scores(trainer_batch(ranker, batch)))
    np.testing.assert_allclose(scores.numpy().ravel(), ranker.score(batch), rtol=1e-4, atol=1e-5)
    ranker.losses(trainer_batch(ranker, batch))[1].backward()
    gradients = {name: weight.grad for name, weight in ranker.named_parameters()}
    assert not [name for name, gradient in gradients.items() if gradient is None or not gradient.isfinite().all()]
    assert any(gradient.any() for name, gradient in gradients.items() if "encoder." in name and gradient is not None)


@pytest.mark.parametrize("head", HEADS)
def test_pairs_that_keep_their_margin_have_no_backward_pass_and_the_gradients_stay(backbone: Path, head: str) -> None:
    ranker = tiny_ranker(backbone, head)
    batch = batch_of(texts([4, 6, 3], 1), texts([30, 120, 60, 5, 9, 14]), [[0, 1], [2, 3], [4, 5]])
    with torch.no_grad():
        margins = torch.cat(ranker.pair_scores(trainer_batch(ranker, batch))).diff(dim=1).neg().flatten()
    ranker.margin = float(margins.sort().values[1:].mean())  # two pairs do not keep it
    whole = ranker(to_tensors(ranker.inputs_of(batch, np.arange(6)), CPU)).view(-1, 2)
    torch.relu(ranker.margin - whole[:, 0] + whole[:, 1]).sum().backward()
    expected = {name: weight.grad for name, weight in ranker.named_parameters()}
    ranker.zero_grad()
    graphs, backward_passes = ranker.pair_scores(trainer_batch(ranker, batch)), []
    for graph in graphs:
        graph.register_hook(lambda _: backward_passes.append(1))
    ranker.pair_scores = lambda _: graphs  # type: ignore[method-assign]
    losses, loss = ranker.losses(None)
    loss.backward()
    assert len(backward_passes) == 2 and int((losses > 0).sum()) == 2
    assert float(loss.detach()) == pytest.approx(float(losses.sum()))
    for name, weight in ranker.named_parameters():
        assert expected[name] is not None and weight.grad is not None, name
        torch.testing.assert_close(weight.grad, expected[name], rtol=1e-3, atol=1e-5, msg=name)


def test_where_all_pairs_keep_their_margin_every_weight_has_a_gradient_of_zero(backbone: Path) -> None:
    """So too where there is no pair, as at the end of an epoch: DDP waits for the gradients all the same."""
    ranker = tiny_ranker(backbone)
    ranker.margin = -100.0
    for batch, pairs in ((training_pairs(), 2), (batch_of([], [], []), 0)):
        losses, loss = ranker.losses(trainer_batch(ranker, batch))
        loss.backward()
        assert losses.shape == (pairs,) and float(loss.detach()) == 0.0
        assert all(weight.grad is not None and not weight.grad.any() for weight in ranker.parameters())
        ranker.zero_grad()


@pytest.mark.parametrize(("device", "graphs"), [("cpu", 2), ("meta", 1)])
def test_training_pairs_are_encoded_apart_on_a_cpu_and_together_elsewhere(
    backbone: Path, device: str, graphs: int
) -> None:
    assert len(tiny_ranker(backbone).to(device).collate(training_pairs()).graphs) == graphs


def test_the_rates_are_those_of_encoder_and_head(backbone: Path) -> None:
    ranker = tiny_ranker(backbone, "model1", learning_rate=1e-5, head_learning_rate=3e-4)
    groups = {group["name"]: group for group in ranker.optimizer().param_groups}
    assert groups["encoder"]["lr"] == 1e-5 and groups["head"]["lr"] == 3e-4
    assert sum(len(group["params"]) for group in groups.values()) == len(list(ranker.parameters()))


def test_the_head_depends_on_the_seed_and_the_encoder_on_the_backbone(backbone: Path) -> None:
    first, same, other = (tiny_ranker(backbone, "model1") for _ in range(3))
    other.seed = 2
    other.build_for(VOCABULARY)
    other.start_weights(VOCABULARY)
    assert first.fingerprint() == same.fingerprint() != other.fingerprint()
    for weight, other_weight in zip(first.encoder.parameters(), other.encoder.parameters(), strict=True):
        assert torch.equal(weight, other_weight)


@pytest.mark.parametrize("checkpointing", [False, True])
def test_frozen_layers_keep_their_weights_and_the_others_learn(backbone: Path, checkpointing: bool) -> None:
    for head in ("knrm", "model1"):
        ranker = tiny_ranker(backbone, head, frozen_layers=1, gradient_checkpointing=checkpointing)
        before = {name: weight.detach().clone() for name, weight in ranker.named_parameters()}
        ranker.train().losses(trainer_batch(ranker, training_pairs()))[1].backward()
        ranker.optimizer().step()
        unchanged = {name for name, weight in ranker.named_parameters() if torch.equal(weight, before[name])}
        frozen = {name for name in before if ".embeddings." in name or ".layer.0." in name}
        assert frozen and frozen <= unchanged
        assert not {name for name in unchanged - frozen if ".layer.1." in name and "key.bias" not in name}


@pytest.mark.parametrize(("given", "expected"), [(None, 0.1), (0.0, 0.0)])
def test_the_dropout_of_the_encoder_is_its_own_or_as_given(
    backbone: Path, given: float | None, expected: float
) -> None:
    ranker = tiny_ranker(backbone, encoder_dropout=given)
    dropouts = [module for module in ranker.encoder.modules() if isinstance(module, torch.nn.Dropout)]
    assert {module.p for module in dropouts} == {expected}


def test_a_window_is_trained_on_and_the_whole_is_ranked(backbone: Path) -> None:
    """3 chunks of 53 pieces are ranked; 16 positions are trained on, 5 of them of the document."""
    whole, window = tiny_ranker(backbone, "model1"), tiny_ranker(backbone, "model1", train_window=16)
    query, document = [10, 11], [*range(20, 120), 11, 10, *range(120, 160)]
    batch = batch_of([query], [document], [[0]])
    (group,) = window.collate(batch).graphs[0].groups
    assert group.tokens.shape == (1, 3 + 2 + 5) and {10, 11} <= set(group.tokens[0, 4:-1].tolist())
    np.testing.assert_array_equal(window.score(batch), whole.score(batch))
    assert len(whole.collate(batch).graphs[0].cls_at) == 3
    with pytest.raises(UserError, match=r"--model\.train_window 65: must be more than the query"):
        tiny_ranker(backbone, train_window=65)


# --- precision


def test_a_ranker_scores_in_its_precision_wherever_it_is(backbone: Path, tmp_path: Path) -> None:
    ranker = tiny_ranker(backbone, "model1")
    queries, documents = ["t1 t2 t3"], ["t4 t5 t6"]
    exact = ranker.score_texts(queries, documents)
    ranker.use_precision(BF16)
    expected = ranker.score_texts(queries, documents)
    assert (expected != exact) == cpu_has_bf16()
    assert expected == pytest.approx(exact, rel=0.02) and expected.dtype == np.float32
    ranker.save_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(
        BertRanker.from_pretrained(tmp_path / "saved").score_texts(queries, documents), expected
    )
    for name in ("bf16", "16-mixed", "16"):  # Lightning has several names for it, on a CPU
        ranker.use_precision(name)
        np.testing.assert_array_equal(ranker.score_texts(queries, documents), expected)
    ranker.use_precision("32-true")
    with torch.autocast("cpu", torch.bfloat16):  # the caller's autocast does not matter
        np.testing.assert_array_equal(ranker.score_texts(queries, documents), exact)
    settings = json.loads((tmp_path / "saved" / "ranker.json").read_text())
    del settings["precision"]  # as older versions saved it
    (tmp_path / "saved" / "ranker.json").write_text(json.dumps(settings))
    np.testing.assert_array_equal(BertRanker.from_pretrained(tmp_path / "saved").score_texts(queries, documents), exact)


def test_a_cpu_without_bfloat16_is_not_made_to_emulate_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("lightning_modules.precision.cpu_has_bf16", lambda: False)
    encoder_dtype.cache_clear()
    assert [encoder_dtype(BF16, "cpu") for _ in range(2)] == [None, None]
    assert capsys.readouterr().err.count("cannot multiply in bfloat16") == 1
    encoder_dtype.cache_clear()


# --- saved rankers


@pytest.mark.parametrize("head", HEADS)
def test_a_saved_ranker_gives_the_same_scores(backbone: Path, head: str, tmp_path: Path) -> None:
    ranker = tiny_ranker(backbone, head, chunks=2)
    with torch.no_grad():
        for weight in ranker.parameters():
            weight.add_(0.01 * torch.randn_like(weight))  # no longer the backbone
    queries, documents = ["t1 t2 t3", ""], ["t4 [SEP] t5 " * 40, "t2 t9"]
    expected = ranker.score_texts(queries, documents)
    ranker.save_pretrained(tmp_path / "saved")
    loaded = BertRanker.from_pretrained(tmp_path / "saved")
    np.testing.assert_array_equal(loaded.score_texts(queries, documents), expected)
    assert loaded.limits == ranker.limits and not loaded.training
    with pytest.raises(ValueError, match="give a query for each"):
        loaded.score_texts(["t1"], documents)


@pytest.mark.parametrize("file", ["ranker.json", "head.safetensors", "tokenizer.json", "model.safetensors"])
def test_a_damaged_folder_is_refused(backbone: Path, file: str, tmp_path: Path) -> None:
    tiny_ranker(backbone).save_pretrained(tmp_path / "saved")
    path = tmp_path / "saved" / file
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(UserError, match="is not a saved ranker"):
        BertRanker.from_pretrained(tmp_path / "saved")
    path.unlink()
    with pytest.raises(UserError, match="is not a saved ranker"):
        BertRanker.from_pretrained(tmp_path / "saved")


def test_the_head_of_another_ranker_is_refused(backbone: Path, tmp_path: Path) -> None:
    """A head that silently stays random would be the worst of all mistakes."""
    for name in ("vanilla", "model1"):
        tiny_ranker(backbone, name).save_pretrained(tmp_path / name)
    (tmp_path / "model1" / "head.safetensors").replace(tmp_path / "vanilla" / "head.safetensors")
    with pytest.raises(UserError, match="is not a saved ranker"):
        BertRanker.from_pretrained(tmp_path / "vanilla")


# --- mistakes


def test_a_backbone_that_does_not_fit_the_data_gets_one_clear_line(backbone: Path, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"positions": 64, "query_pieces": 8}
    with pytest.raises(UserError, match="has 200 word pieces and the data 201"):
        BertRanker(backbone=str(backbone), **settings).build_for([*VOCABULARY, "more"])
    shuffled = tmp_path / "shuffled"
    shutil.copytree(backbone, shuffled)
    write_tiny_tokenizer(shuffled, [*VOCABULARY[:5], *VOCABULARY[:4:-1]])  # as many pieces, with other numbers
    with pytest.raises(UserError, match="reads other word pieces"):
        BertRanker(backbone=str(shuffled), **settings).build_for(VOCABULARY)
    with pytest.raises(UserError, match="64 at most"):
        BertRanker(backbone=str(backbone), positions=512).build_for(VOCABULARY)
    with pytest.raises(UserError, match=r"no \[CLS\], \[SEP\] and \[PAD\]"):
        BertRanker(backbone=str(backbone)).build_for([f"t{i}" for i in range(200)])
    with pytest.raises(UserError, match="could not be fetched"):
        BertRanker(backbone=str(tmp_path)).build_for(VOCABULARY)
    with pytest.raises(UserError, match="there is no folder /no/such"):  # at once, before any data is prepared
        BertRanker(backbone="/no/such")


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("chunks", 0), ("query_pieces", 0), ("positions", 11), ("train_window", 11), ("projection", 0),
        ("hidden", [4]), ("dropout", 1.0), ("start", 0.0), ("start", 0.95), ("frozen_layers", -1),
        ("frozen_layers", 2), ("encoder_dropout", 1.0), ("train_queries", 0), ("cooldown", 2.0),
    ],
)  # fmt: skip
def test_a_setting_out_of_range_gets_one_clear_line(backbone: Path, setting: str, value: object) -> None:
    with pytest.raises(UserError, match=f"--model.{setting} "):
        tiny_ranker(backbone, "model1", **{setting: value})
