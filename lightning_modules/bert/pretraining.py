"""Target-corpus pretraining: an encoder learns the language of a collection before it is trained to rank.

Masked language modelling with next-sentence prediction (section "Training Models" of the paper; Devlin et al., "BERT",
2019). The loss is the mean cross entropy of the hidden pieces plus that of the next-sentence label. Hidden pieces alone
go through the wide output layer: 15% of the positions. Heads that an encoder does not bring along (one for sentence
vectors has none) start at random and learn at NEW_HEADS times the rate; otherwise they would be noise for most of a
short training.
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
from lightning_modules.batch_seed import seed_batch
from lightning_modules.bert.chunk_encoder import ATTENTION, FLAG
from lightning_modules.neural_ranker import rate_factor

NEW_HEADS = 10.0


class PretrainingSettings(NamedTuple):
    """How long and how fast; a change of any of them is another encoder."""

    sequences: int | None = None  # that are seen; as many as the collection fills when None
    learning_rate: float = 3e-5
    batch_size: int = 32  # sequences of an optimiser step, over all processes
    length: int = 128  # pieces of a sequence
    warmup: float = 0.1
    weight_decay: float = 0.01
    seed: int = 1

    def check(self) -> PretrainingSettings:
        require(
            self.sequences is None or self.sequences >= 1, "--model.pretrain_sequences", self.sequences, "1 or more"
        )
        require(self.learning_rate > 0, "--model.pretrain_rate", self.learning_rate, "more than 0")
        return self


class Losses(NamedTuple):
    """Of one batch."""

    masked: Tensor  # () mean cross entropy of the hidden pieces
    next_sentence: Tensor  # () mean cross entropy
    right: Tensor  # () share of the sequences whose next-sentence label is found


class TargetPretraining(L.LightningModule):
    """An encoder with both heads of its pretraining.

    Args:
        network: a `BertForPreTraining`.
        settings: rate, warm-up, seed.
        frozen: the heads alone learn; what the pretraining of the encoder is measured against.
        new: names of the weights of `network` that start at random.
    """

    def __init__(
        self, network: nn.Module, settings: PretrainingSettings, frozen: bool = False, new: frozenset[str] = frozenset()
    ) -> None:
        super().__init__()
        self.network, self.settings, self.new = network, settings, new
        if frozen:
            encoder: Any = network.bert
            encoder.requires_grad_(False)
            encoder.pooler.requires_grad_(True)  # it is part of the next-sentence head

    network: Any

    def losses(self, batch: Any) -> Losses:
        found = self.network.bert(
            input_ids=batch.tokens, attention_mask=batch.mask, token_type_ids=batch.types, return_dict=True
        )
        hidden = batch.labels != NOT_HIDDEN
        logits = self.network.cls.predictions(found.last_hidden_state[hidden])  # (hidden pieces, vocabulary)
        follows = self.network.cls.seq_relationship(found.pooler_output).float()
        return Losses(
            F.cross_entropy(logits.float(), batch.labels[hidden]),
            F.cross_entropy(follows, batch.follows),
            (follows.argmax(dim=1) == batch.follows).float().mean(),
        )

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        return SentenceBatch._make(torch.from_numpy(one).to(device, non_blocking=True) for one in batch)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        found = self.losses(batch)
        loss = found.masked + found.next_sentence
        rate = self.optimizers().param_groups[0]["lr"]  # type: ignore[union-attr]
        values = {"loss": loss, "masked_loss": found.masked, "next_sentence_loss": found.next_sentence}
        self.log_dict({f"pretrain/{name}": value.detach() for name, value in values.items()}, on_step=True)
        self.log("pretrain/learning_rate", rate)
        return loss

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        seed_batch(self.settings.seed, self.current_epoch, batch_idx, self.global_rank)

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Every process measures all of the held-out sequences: they are few, and none is counted twice."""
        found = self.losses(batch)
        values = {"masked_loss": found.masked, "next_sentence_accuracy": found.right}
        self.log_dict({f"pretrain/held_out_{name}": one for name, one in values.items()}, batch_size=len(batch.tokens))

    def configure_optimizers(self) -> Any:
        settings = self.settings
        weights = [(name, one) for name, one in self.network.named_parameters() if one.requires_grad]
        known, new = ([one for name, one in weights if (name in self.new) is wanted] for wanted in (False, True))
        groups = [{"params": known, "lr": settings.learning_rate}]
        if new:
            groups.append({"params": new, "lr": NEW_HEADS * settings.learning_rate})
        optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        rate = LambdaLR(optimizer, lambda step: rate_factor(step, total, total, settings.warmup, 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def pretraining_network(name: str, seed: int) -> tuple[nn.Module, frozenset[str]]:
    """`BertForPreTraining` with the weights of the encoder `name`; and the names of those that it does not have, which
    start at random."""
    from transformers import AutoConfig, BertForPreTraining

    kind = fetched(FLAG, name, AutoConfig.from_pretrained).model_type
    if kind != "bert":
        raise UserError(
            f"--model.pretrain: the backbone {name} is of the kind {kind!r}, and masked language modelling is known "
            "for the kind 'bert' only: --model.pretrain false"
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        options: dict[str, Any] = {"attn_implementation": ATTENTION, "dtype": torch.float32}
        options["output_loading_info"] = True
        network, loaded = fetched(FLAG, name, lambda place: BertForPreTraining.from_pretrained(place, **options))
    return network.train(), frozenset(loaded["missing_keys"])  # loaded for evaluation: without dropout


def save_encoder(module: TargetPretraining, name: str, folder: Any) -> None:
    """Encoder and tokenizer, as a folder that `--model.backbone` takes."""
    from transformers import AutoTokenizer

    module.network.bert.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder_folder(name)).save_pretrained(folder)
