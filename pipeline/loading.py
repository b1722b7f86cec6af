"""A trained ranker read back from the folder of its run, with the trained rankers that it is made of."""

from __future__ import annotations

from math import isfinite

import torch

from datamodules.retrieval_data import RetrievalData
from lexical.errors import UserError
from lightning_modules.ranker import Ranker, Source
from pipeline.configs import import_class
from pipeline.dependencies import changed_part, digest, part_folders
from pipeline.run_folder import RunFolder, entry, read_json


def load_ranker(folder: RunFolder, name: str, data: RetrievalData) -> Ranker:
    """Class and settings as saved, weights strictly loaded; a ranker of other tokens than the data has is refused."""
    settings, saved = folder.load_config(), read_json(folder.ranker)
    try:
        target = import_class(saved["class"], name)
        if not issubclass(target, Ranker):
            raise TypeError(f"{saved['class']} is no ranker")
        model: Ranker = target(**settings["model"])
        model.seed = int(settings["seed"]) if model.random else 1
        model.use_precision(settings["trainer"]["precision"])
        vocabulary = data.prepared.field(model.field).vocabulary()
        model.use_vocabulary(vocabulary)
        weights = torch.load(folder.trained_checkpoint, map_location="cpu", weights_only=True)["state_dict"]
        if "digest" in weights:  # before the shapes of other weights are compared: the message is clearer
            model.load_state_dict({"digest": weights["digest"]}, strict=False)
            model.check_vocabulary(vocabulary)
        model.load_state_dict(weights, strict=True)
        model.load_files(folder.path)
        model.check_vocabulary(data.prepared.field(model.field).vocabulary())
    except Exception as error:  # damaged, hostile or of another version: whatever it is, it is not trusted
        first = (str(error).splitlines() or [type(error).__name__])[0]
        raise UserError(
            f"{folder.path}: the trained ranker cannot be loaded ({first}); "
            f"train it again: python train.py --model {name}"
        ) from error
    if model.ranks_with_sources:
        if (part := changed_part(folder)) is not None:
            raise UserError(f"{part} was trained again since {name} was made of it: python train.py --model {name}")
        hand_over_sources(model, name, folder, data)
    return model.eval()


def check_trained_on(folder: RunFolder, name: str, data: RetrievalData) -> None:
    """A ranker of other candidates would be judged by what it has not learned."""
    if entry(folder.development, "data") != data.fingerprint():
        raise UserError(
            f"{name} was trained on other data or candidates than these: give the same --data settings, "
            f"or train it again: python train.py --model {name}"
        )


def fusion_weights(folder: RunFolder) -> list[float]:
    """Of the first stage and of the ranker itself."""
    weights = entry(folder.fusion, "weights")
    numbers = isinstance(weights, list) and all(isinstance(one, (int, float)) and isfinite(one) for one in weights)
    if not numbers or len(weights) != 2:
        raise UserError(f"{folder.fusion} is damaged (two finite weights are expected): train this ranker again")
    return weights


def hand_over_sources(model: Ranker, name: str, folder: RunFolder, data: RetrievalData) -> None:
    """Gives a ranker the trained ones that it is made of: of the same data, and of its seed where they have seeds."""
    sources = []
    for part, place in zip(model.made_from, part_folders(name, model.made_from, folder), strict=True):
        if read_json(place.development).get("data") != data.fingerprint():
            raise UserError(
                f"{name} is made from {part}, which was trained on other data or candidates than these: give the same "
                f"--data settings, or train it again: python train.py --model {part}"
            )
        sources.append(Source(part, load_ranker(place, part, data), place.path, digest(place)))
    model.use_sources(sources)
