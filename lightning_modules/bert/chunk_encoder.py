"""A BERT-like encoder over chunks of documents: from token ids to the input of a head. Free of Lightning."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from lexical.encoders import load_encoder, load_pretrained
from lightning_modules.bert.heads.encoded import Encoded

FLAG = "--model.backbone"
DROPOUTS = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")  # BERT, DistilBERT
ATTENTION = "sdpa"  # torch's scaled-dot-product attention: flash or memory-efficient where the device has it


class ChunkEncoder(nn.Module):
    """Contextual vectors of queries and documents.

    Args:
        transformer: a Hugging Face encoder without pooler.
    """

    all_layers = False  # heads get the embeddings and all hidden layers, not the last layer alone

    def __init__(self, transformer: Any) -> None:
        super().__init__()
        self.transformer, self.config = transformer, transformer.config
        self._has_types = "token_type_ids" in inspect.signature(transformer.forward).parameters
        self._has_windows = "sliding_attention" in (getattr(self.config, "layer_types", None) or ())

    def freeze(self, layers: int) -> None:
        """Freeze the embeddings and the first `layers` hidden layers, and save their backward pass; nothing with 0."""
        if not layers:
            return
        count = int(self.config.num_hidden_layers)
        stacks = [part for part in self.transformer.modules() if isinstance(part, nn.ModuleList) and len(part) == count]
        trained = {id(weight) for layer in list(stacks[0])[layers:] for weight in layer.parameters()}
        for weight in self.transformer.parameters():
            weight.requires_grad_(id(weight) in trained)

    def forward(self, inputs: Any) -> Encoded:
        """Encode `EncoderInputs` of tensors on the encoder's device."""
        return self.gather(inputs, [self.hidden(group) for group in inputs.groups])

    def hidden(self, group: Any) -> tuple[Tensor, ...]:
        """Return (sequences, longest, width) for each layer that heads get."""
        mask = None if group.mask is None else group.mask.long() if self._has_windows else attention_mask(group.mask)
        types = {"token_type_ids": group.types} if self._has_types else {}
        output = self.transformer(
            input_ids=group.tokens, attention_mask=mask, **types, output_hidden_states=self.all_layers
        )
        return tuple(output.hidden_states) if self.all_layers else (output.last_hidden_state,)

    def gather(self, inputs: Any, hidden: list[tuple[Tensor, ...]]) -> Encoded:
        """Gather what heads get from the hidden states of all groups."""
        layers = [torch.cat([states.flatten(0, 1) for states in layer]) for layer in zip(*hidden, strict=True)]
        last, pairs = layers[-1], len(inputs.query_mask)  # each (positions of all groups, width)
        chunks = last.new_zeros(pairs).index_add(0, inputs.cls_pair, last.new_ones(len(inputs.cls_pair)))
        cls = last.new_zeros(pairs, last.shape[1]).index_add(0, inputs.cls_pair, last.index_select(0, inputs.cls_at))
        query, document = (
            tuple(layer.index_select(0, at.flatten()).unflatten(0, at.shape) for layer in layers)
            for at in (inputs.query_at, inputs.document_at)
        )
        return Encoded(cls / chunks[:, None], query, document, inputs.query_mask, inputs.document_mask)


def attention_mask(mask: Tensor) -> Tensor:
    """Return (sequences, 1, 1, longest) of a (sequences, longest) mask.

    transformers uses it as it is. Of two dimensions it would ask the device whether anything is masked, and a GPU would
    have to finish all its work before the answer.
    """
    return mask.bool()[:, None, None, :]


def new_transformer(name: str, dropout: float | None = None) -> nn.Module:
    """Return an encoder with the architecture of `name` and random weights; `dropout` replaces its own."""
    from transformers import AutoConfig, AutoModel

    config = load_pretrained(FLAG, name, AutoConfig.from_pretrained)
    for key in DROPOUTS if dropout is not None else ():
        if hasattr(config, key):
            setattr(config, key, dropout)
    options = {"attn_implementation": ATTENTION, "dtype": torch.float32, **_without_pooler(config)}
    return AutoModel.from_config(config, **options)


def pretrained_transformer(name: str) -> nn.Module:
    """Return the encoder `name` with its trained weights, all of them."""
    from transformers import AutoConfig

    options = _without_pooler(load_pretrained(FLAG, name, AutoConfig.from_pretrained))
    return load_encoder(FLAG, name, attn_implementation=ATTENTION, **options)


def _without_pooler(config: Any) -> dict[str, bool]:
    """A pooler that no head uses breaks plain DDP; some encoders have none."""
    from transformers import AutoModel

    model: Any = AutoModel._model_mapping[type(config)]
    return {"add_pooling_layer": False} if "add_pooling_layer" in inspect.signature(model).parameters else {}
