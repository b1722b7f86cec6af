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
from lexical.encoders import encoder_folder, load_pretrained
from lexical.errors import UserError
from lightning_modules.bert.chunk_encoder import ATTENTION, FLAG
from lightning_modules.neural_ranker import rate_factor, seed_batch

NEW_HEADS = 10.0


class PretrainingSettings(NamedTuple):
    """Everything that decides the pretrained encoder, beside the texts."""

    sequences: int | None = None  # as many as the collection fills when None
    learning_rate: float = 3e-5
    batch_size: int = 32  # sequences per optimiser step, over all processes
    length: int = 128  # pieces of a sequence
    warmup: float = 0.1
    weight_decay: float = 0.01
    seed: int = 1


class TargetPretraining(L.LightningModule):
    """An encoder with the two heads of its pretraining.

    Args:
        network: a `BertForPreTraining`.
        settings: rate, warm-up, seed.
        new: names of the weights of `network` that start at random.
    """

    network: Any

    def __init__(self, network: nn.Module, settings: PretrainingSettings, new: frozenset[str] = frozenset()) -> None:
        super().__init__()
        self.network, self.settings, self.new = network, settings, new

    def forward(self, batch: Any) -> dict[str, Tensor]:
        """Return both mean cross entropies, and the share of next-sentence labels that are predicted correctly."""
        output = self.network.bert(
            input_ids=batch.tokens, attention_mask=batch.mask, token_type_ids=batch.types, return_dict=True
        )
        hidden = batch.labels != NOT_HIDDEN
        logits = self.network.cls.predictions(output.last_hidden_state[hidden])  # (hidden pieces, vocabulary)
        follows = self.network.cls.seq_relationship(output.pooler_output).float()
        return {
            "masked_loss": F.cross_entropy(logits.float(), batch.labels[hidden]),
            "next_sentence_loss": F.cross_entropy(follows, batch.follows),
            "next_sentence_accuracy": (follows.argmax(dim=1) == batch.follows).float().mean(),
        }

    def transfer_batch_to_device(self, batch: Any, device: torch.device, dataloader_idx: int) -> Any:  # noqa: ARG002
        return SentenceBatch._make(torch.from_numpy(array).to(device, non_blocking=True) for array in batch)

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        seed_batch(self.settings.seed, self.current_epoch, batch_idx, self.global_rank)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:  # noqa: ARG002
        values = self(batch)
        loss: Tensor = values["masked_loss"] + values["next_sentence_loss"]
        self.log_dict({f"pretrain/{name}": value.detach() for name, value in values.items()}, on_step=True)
        self.log("pretrain/loss", loss.detach(), on_step=True)
        self.log("pretrain/learning_rate", self.optimizers().param_groups[0]["lr"])  # type: ignore[union-attr]
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:  # noqa: ARG002
        """Measure all held-out sequences in every process: they are few, and none is counted twice."""
        values = {f"pretrain/held_out_{name}": value for name, value in self(batch).items()}
        self.log_dict(values, batch_size=len(batch.tokens))

    def configure_optimizers(self) -> Any:
        settings = self.settings
        weights = {name: weight for name, weight in self.network.named_parameters() if weight.requires_grad}
        known = [weights[name] for name in weights if name not in self.new]
        new = [weights[name] for name in weights if name in self.new]
        rates = ((known, settings.learning_rate), (new, NEW_HEADS * settings.learning_rate))
        groups = [{"params": group, "lr": rate} for group, rate in rates if group]
        optimizer = torch.optim.AdamW(groups, weight_decay=settings.weight_decay)
        total = int(self.trainer.estimated_stepping_batches)
        rate = LambdaLR(optimizer, lambda step: rate_factor(step, total, total, settings.warmup, 1.0))
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": rate, "interval": "step"}}


def pretraining_network(name: str, seed: int) -> tuple[nn.Module, frozenset[str]]:
    """Return `BertForPreTraining` with the weights of the encoder `name`, and the names of weights that it lacks, which
    are random."""
    from transformers import AutoConfig, BertForPreTraining

    model_type = load_pretrained(FLAG, name, AutoConfig.from_pretrained).model_type
    if model_type != "bert":
        raise UserError(
            f"--model.pretrain: the backbone {name} is of type {model_type!r}; pretraining works for type 'bert' only: "
            "--model.pretrain false"
        )
    options: dict[str, Any] = {"attn_implementation": ATTENTION, "dtype": torch.float32, "output_loading_info": True}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network, loaded = load_pretrained(FLAG, name, lambda path: BertForPreTraining.from_pretrained(path, **options))
    return network.train(), frozenset(loaded["missing_keys"])  # Hugging Face returns it in evaluation mode


def save_encoder(module: TargetPretraining, backbone: str, folder: Any) -> None:
    """Write encoder and tokenizer as a folder that `--model.backbone` accepts."""
    from transformers import AutoTokenizer

    module.network.bert.save_pretrained(folder)
    AutoTokenizer.from_pretrained(encoder_folder(backbone)).save_pretrained(folder)
