"""A BERT-like encoder over chunks of documents: from token ids to what a head gets. Free of Lightning."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lightning_modules.chunks import Specials
from lightning_modules.heads.encoded import Encoded
from packaged_encoder import PACKAGED, packaged_encoder
from user_error import UserError

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

    def forward(self, inputs: Any) -> Encoded:
        """`inputs`: `EncoderInputs` of tensors on the encoder's device."""
        outputs = [self._hidden(group) for group in inputs.groups]  # each (layers, positions of the group, width)
        flat = torch.cat(outputs, dim=1)
        pairs = len(inputs.query_mask)
        chunks = flat.new_zeros(pairs).index_add(0, inputs.cls_pair, flat.new_ones(len(inputs.cls_pair)))
        cls = flat.new_zeros(pairs, flat.shape[2]).index_add(
            0, inputs.cls_pair, flat[-1].index_select(0, inputs.cls_at)
        )
        query, document = (
            flat.index_select(1, at.flatten()).unflatten(1, at.shape) for at in (inputs.query_at, inputs.document_at)
        )
        return Encoded(cls / chunks[:, None], query, document, inputs.query_mask, inputs.document_mask)

    def _hidden(self, group: Any) -> Tensor:
        mask = None if group.mask is None else group.mask.long()
        types = {"token_type_ids": group.types} if self._has_types else {}
        found = self.transformer(
            input_ids=group.tokens, attention_mask=mask, **types, output_hidden_states=self.all_layers
        )
        hidden = torch.stack(found.hidden_states) if self.all_layers else found.last_hidden_state[None]
        return hidden.flatten(1, 2)


def encoder_folder(name: str) -> str:
    """What the Hugging Face loaders are given: "packaged" is the encoder of the requirements, others as they are."""
    return (
        str(packaged_encoder()) if name == PACKAGED else str(Path(name).expanduser() if Path(name).exists() else name)
    )


def encoder_identity(name: str) -> list[Any]:
    """What tells this encoder from another one: files of a folder, the commit of a Hugging Face name."""
    from transformers import AutoConfig

    place = Path(encoder_folder(name))
    files = sorted(place.glob("*.*")) if place.is_dir() else []
    config = fetched(name, AutoConfig.from_pretrained)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [str(place.resolve()) if files else name, getattr(config, "_commit_hash", None), stats]


def new_transformer(name: str) -> nn.Module:
    """An encoder with the architecture of `name` and random weights."""
    from transformers import AutoConfig, AutoModel

    config = fetched(name, AutoConfig.from_pretrained)
    return AutoModel.from_config(config, attn_implementation=ATTENTION, **_without_pooler(config))


def pretrained_transformer(name: str) -> nn.Module:
    """The encoder `name` with its trained weights, all of them."""
    from transformers import AutoConfig, AutoModel

    options = _without_pooler(fetched(name, AutoConfig.from_pretrained))
    model, loaded = fetched(
        name,
        lambda place: AutoModel.from_pretrained(
            place, attn_implementation=ATTENTION, output_loading_info=True, **options
        ),
    )
    if missing := sorted(loaded["missing_keys"]):
        raise UserError(f"--model.backbone {name}: weights are missing, such as {missing[0]}; they would be random")
    return model


def _without_pooler(config: Any) -> dict[str, bool]:
    """A pooler that no head uses breaks plain DDP; some encoders have none."""
    from transformers import AutoModel

    kind: Any = AutoModel._model_mapping[type(config)]
    known = inspect.signature(kind).parameters
    return {"add_pooling_layer": False} if "add_pooling_layer" in known else {}


def specials_of(vocabulary: list[str], name: str) -> Specials:
    """The ids of [CLS], [SEP] and [PAD]."""
    place = {piece: number for number, piece in enumerate(vocabulary) if piece in ("[CLS]", "[SEP]", "[PAD]")}
    if len(place) < 3:
        raise UserError(
            f"--model.backbone {name}: the word pieces of this data have no [CLS], [SEP] and [PAD]; "
            "give the tokenizer of the backbone: --data.tokenizer"
        )
    return Specials(place["[CLS]"], place["[SEP]"], place["[PAD]"])


def fetched(name: str, load: Callable[[str], Any]) -> Any:
    """What `load` makes of the encoder's folder or name, with one clear line where there is none."""
    from transformers.utils import logging

    place = encoder_folder(name)
    logging.disable_progress_bar()  # a bar over 37 tensors tells nobody anything
    logging.set_verbosity_error()  # nor does a list of weights that are left out; missing ones are an error of ours
    try:
        return load(place)
    except Exception as error:  # the hub client has no common base class for "no network" and "no such model"
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"--model.backbone {name}: it is no folder of an encoder and could not be fetched ({first})"
        ) from error
