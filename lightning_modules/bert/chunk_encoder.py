"""A BERT-like encoder over chunks of documents: from token ids to what a head gets. Free of Lightning."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lexical.encoders import fetched, trained_encoder
from lexical.errors import UserError
from lexical.terminal import say
from lightning_modules.bert.chunks import EncoderInputs, Group, Specials
from lightning_modules.bert.heads.encoded import Encoded

FLAG = "--model.backbone"
BF16 = "bf16-mixed"
HALF = {BF16: torch.bfloat16, "bf16": torch.bfloat16, "16-mixed": torch.float16, "16": torch.float16}  # of Lightning
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")  # BERT, DistilBERT
ATTENTION = "sdpa"  # torch's scaled-dot-product attention: flash or memory-efficient where the device has it


class ChunkEncoder(nn.Module):
    """Contextual vectors of queries and documents.

    Args:
        transformer: a Hugging Face encoder without pooler.
        all_layers: embeddings and all hidden layers are handed on, not the last one alone.
    """

    def __init__(self, transformer: nn.Module, all_layers: bool) -> None:
        super().__init__()
        self.transformer, self.all_layers = transformer, all_layers
        self._has_types = "token_type_ids" in inspect.signature(transformer.forward).parameters

    @property
    def width(self) -> int:
        return int(self._config.hidden_size)

    @property
    def _config(self) -> Any:
        return self.transformer.config

    @property
    def layers(self) -> int:
        """Layers that are handed on."""
        return int(self._config.num_hidden_layers) + 1 if self.all_layers else 1

    def freeze(self, layers: int) -> None:
        """The embeddings and the first `layers` hidden layers keep their weights; nothing is frozen where it is 0.

        Their backward pass is spared.
        """
        if not layers:
            return
        count = int(self._config.num_hidden_layers)
        stacks = [one for one in self.transformer.modules() if isinstance(one, nn.ModuleList) and len(one) == count]
        learning = {id(weight) for layer in list(stacks[0])[layers:] for weight in layer.parameters()}
        for weight in self.transformer.parameters():
            weight.requires_grad_(id(weight) in learning)

    def forward(self, inputs: Any) -> Encoded:
        """`inputs`: `EncoderInputs` of tensors on the encoder's device."""
        return self.hand_on(inputs, [self.hidden(group) for group in inputs.groups])

    def hand_on(self, inputs: Any, hidden: list[tuple[Tensor, ...]]) -> Encoded:
        """What the heads get of the `hidden` states of all groups."""
        layers = [torch.cat([one.flatten(0, 1) for one in of_layer]) for of_layer in zip(*hidden, strict=True)]
        last, pairs = layers[-1], len(inputs.query_mask)  # each (positions of all groups, width)
        chunks = last.new_zeros(pairs).index_add(0, inputs.cls_pair, last.new_ones(len(inputs.cls_pair)))
        cls = last.new_zeros(pairs, last.shape[1]).index_add(0, inputs.cls_pair, last.index_select(0, inputs.cls_at))
        query, document = (
            tuple(one.index_select(0, at.flatten()).unflatten(0, at.shape) for one in layers)
            for at in (inputs.query_at, inputs.document_at)
        )
        return Encoded(cls / chunks[:, None], query, document, inputs.query_mask, inputs.document_mask)

    def hidden(self, group: Any) -> tuple[Tensor, ...]:
        """(sequences, longest, width) of each layer that is handed on."""
        mask = None if group.mask is None else group.mask.long()
        types = {"token_type_ids": group.types} if self._has_types else {}
        found = self.transformer(
            input_ids=group.tokens, attention_mask=mask, **types, output_hidden_states=self.all_layers
        )
        return tuple(found.hidden_states) if self.all_layers else (found.last_hidden_state,)


def new_transformer(name: str, dropout: float | None = None) -> nn.Module:
    """An encoder with the architecture of `name` and random weights; `dropout` in place of its own."""
    from transformers import AutoConfig, AutoModel

    config = fetched(FLAG, name, AutoConfig.from_pretrained)
    for key in DROPOUTS if dropout is not None else ():
        if hasattr(config, key):
            setattr(config, key, dropout)
    options = {"attn_implementation": ATTENTION, "dtype": torch.float32, **_without_pooler(config)}
    return AutoModel.from_config(config, **options)


def pretrained_transformer(name: str) -> nn.Module:
    """The encoder `name` with its trained weights, all of them."""
    from transformers import AutoConfig

    options = _without_pooler(fetched(FLAG, name, AutoConfig.from_pretrained))
    return trained_encoder(FLAG, name, attn_implementation=ATTENTION, **options)


def _without_pooler(config: Any) -> dict[str, bool]:
    """A pooler that no head uses breaks plain DDP; some encoders have none."""
    from transformers import AutoModel

    kind: Any = AutoModel._model_mapping[type(config)]
    known = inspect.signature(kind).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in known else {}


def encoder_precision(gpu: bool) -> str | None:
    """bfloat16 for the encoder where the GPU, or the CPU, multiplies in it; heads and scores are float32 anyway."""
    has = torch.cuda.is_bf16_supported(including_emulation=False) if gpu else cpu_has_bf16()
    return BF16 if has else None


def encoder_type(precision: str | None, device: str) -> torch.dtype | None:
    """What an encoder multiplies in on this device, by Lightning's name of a precision; None: float32.

    A CPU without instructions for bfloat16 would take many times as long as in float32.
    """
    half = HALF.get(str(precision))
    if half is None or device != "cpu":
        return half
    return torch.bfloat16 if cpu_has_bf16() else _say_float32()


@cache
def cpu_has_bf16() -> bool:
    has = torch.cpu.get_capabilities()
    return bool(has.get("avx512_bf16") or has.get("amx_bf16"))


@cache
def _say_float32() -> None:
    """Once."""
    say("this CPU does not multiply in bfloat16, which the ranker was trained in: float32, other digits")


def on_device(inputs: EncoderInputs, device: torch.device) -> Any:
    """The inputs as tensors on a device."""

    def moved(array: np.ndarray | None) -> Tensor | None:
        return None if array is None else torch.from_numpy(array).to(device, non_blocking=True)

    groups = tuple(Group._make(map(moved, group)) for group in inputs.groups)
    return EncoderInputs._make([groups, *(moved(one) for one in inputs[1:])])


def specials_of(vocabulary: list[str], name: str) -> Specials:
    """The ids of [CLS], [SEP] and [PAD]."""
    place = {piece: number for number, piece in enumerate(vocabulary) if piece in ("[CLS]", "[SEP]", "[PAD]")}
    if len(place) < 3:
        raise UserError(
            f"--model.backbone {name}: the word pieces of this data have no [CLS], [SEP] and [PAD]; "
            "give the tokenizer of the backbone: --data.tokenizer"
        )
    return Specials(place["[CLS]"], place["[SEP]"], place["[PAD]"])
