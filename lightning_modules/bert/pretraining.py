"""Target-corpus pretraining: an encoder learns the language of a collection before it is trained to rank.

Masked language modelling with next-sentence prediction (section "Training Models" of the paper; Devlin et al., "BERT",
2019). The loss is the mean cross entropy of the hidden pieces plus that of the next-sentence label. Only hidden pieces,
15% of the positions, go through the wide output layer. Heads that an encoder lacks (an encoder of sentence vectors has
none) start at random and learn at `NEW_HEADS` times the rate; otherwise they would be noise for most of a short
training.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.lr_scheduler import LambdaLR

from lexical.batches import NOT_HIDDEN, SentenceBatch
from lexical.encoders import encoder_folder, fetched
from lexical.errors import UserError, require
from lightning_modules.bert.chunk_encoder import ATTENTION, FLAG
from lightning_modules.neural_ranker import rate_factor, seed_batch

NEW_HEADS = 10.0


class PretrainingSettings(NamedTuple):
    """Length and rate of the pretraining; any change gives another encoder."""

    sequences: int | None = None  # as many as the collection fills when None
    learning_rate: float = 3e-5
    batch_size: int = 32  # sequences per optimiser step, over all processes
    length: int = 128  # pieces of a sequence
    warmup: float = 0.1
    weight_decay: float = 0.01
    seed: int = 1

    def check(self) -> PretrainingSettings:
        sequences, rate = self.sequences, self.learning_rate
        require(sequences is None or sequences >= 1, "--model.pretrain_sequences", sequences, "1 or more")
        require(rate > 0, "--model.pretrain_rate", rate, "more than 0")
        return self


class Losses(NamedTuple):
    """Of one batch."""

    masked: Tensor  # () mean cross entropy of the hidden pieces
    next_sentence: Tensor  # () mean cross entropy
    accuracy: Tensor  # () share of the sequences whose next-sentence label is predicted


class TargetPretraining(L.LightningModule):
    """An encoder with the two heads of its pretraining.

    Args:
        network: a `BertForPreTraining`.
        settings: rate, warm-up, seed.
        frozen: train the heads only; what the pretraining of the encoder is compared with.
        new: names of the weights of `network` that start at random.
    """

    network: Any

    def __init__(
        self, network: nn.Module, settings: PretrainingSettings, frozen: bool = False, new: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self.network, self.settings, self.new = network, settings, new
        if frozen:
            self.network.bert.requires_grad_(False)
            self.network.bert.pooler.requires_grad_(True)  # part of the next-sentence head

    def losses(self, batch: Any) -> Losses:
        output = self.network.bert(
            input_ids=batch.tokens, attention_mask=batch.mask, token_type_ids=batch.types, return_dict=True
        )
        hidden = batch.labels != NOT_HIDDEN
        logits = self.network.cls.predictions(output.last_hidden_state[hidden])  # (hidden pieces, vocabulary)
        follows = self.network.cls.seq_relationship(output.pooler_output).float()
        return Losses(
            F.cross_entropy(logits.float(), batch.labels[hidden]),
            F.cross_entropy(follows, batch.follows),
            (follows.argmax(dim=1) == batch.follows).float().mean(),
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        return SentenceBatch._make(torch.from_numpy(array).to(device, non_blocking=True) for array in batch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        seed_batch(self.settings.seed, self.current_epoch, batch_idx, self.global_rank)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        losses = self.losses(batch)
        loss = losses.masked + losses.next_sentence
        values = {"loss": loss, "masked_loss": losses.masked, "next_sentence_loss": losses.next_sentence}
        self.log_dict({f"pretrain/{name}": value.detach() for name, value in values.items()}, on_step=True)
        self.log("pretrain/learning_rate", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Measure all held-out sequences in every process: they are few, and none is counted twice."""
        losses = self.losses(batch)
        values = {"held_out_masked_loss": losses.masked, "held_out_next_sentence_accuracy": losses.accuracy}
        self.log_dict({f"pretrain/{name}": value for name, value in values.items()}, batch_size=len(batch.tokens))

    def configure_optimizers(self) -> Any:
        settings = self.settings
        weights = [(name, weight) for name, weight in self.network.named_parameters() if weight.requires_grad]
        known = [weight for name, weight in weights if name not in self.new]
        new = [weight for name, weight in weights if name in self.new]
        groups = [{"params": known, "lr": settings.learning_rate}]
        if new:
            groups.append({"params": new, "lr": NEW_HEADS * settings.learning_rate})
        optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        rate = LambdaLR(optimizer, lambda step: rate_factor(step, total, total, settings.warmup, 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def pretraining_network(name: str, seed: int) -> tuple[nn.Module, frozenset[str]]:
    """Return `BertForPreTraining` with the weights of the encoder `name`, and the names of weights that it lacks, which
    are random."""
    from transformers import AutoConfig, BertForPreTraining

    model_type = fetched(FLAG, name, AutoConfig.from_pretrained).model_type
    if model_type != "bert":
        raise UserError(
            f"--model.pretrain: the backbone {name} is of type {model_type!r}; pretraining works for type 'bert' only: "
            "--model.pretrain false"
        )
    options: dict[str, Any] = {"attn_implementation": ATTENTION, "dtype": torch.float32, "output_loading_info": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, loaded = fetched(FLAG, name, lambda path: BertForPreTraining.from_pretrained(path, **options))
    return network.train(), frozenset(loaded["missing_keys"])  # Hugging Face returns it in evaluation mode


def save_encoder(module: TargetPretraining, backbone: str, folder: Any) -> None:
    """Write encoder and tokenizer as a folder that `--model.backbone` accepts."""
    from transformers import AutoTokenizer

    module.network.bert.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder_folder(backbone)).save_pretrained(folder)
