"""The data sets that `--data NAME` chooses: where their texts come from."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from datamodules.pydocs.embedded_data import PyDocsTexts
from datamodules.retrieval_data import RetrievalData
from datamodules.text.query_sets import SplitSizes
from datamodules.text.sources import IrDatasetsTexts, RawTexts, SplitTexts, existing_path, folder_texts, official_texts
from lexical.errors import require


class PyDocs(RetrievalData):
    """The embedded data: docstrings of the packages in requirements.txt.

    Args:
        granularity: "passage" (the docstring) or "page" (the class or module that it belongs to).
        workers: processes that read the packages and tokenise; 0 means one per core.
        settings: those of `RetrievalData`.
    """

    def __init__(
        self, granularity: Literal["passage", "page"] = "passage", workers: int = 0, **settings: Any
    ) -> None:  # fmt: skip
        name = {"passage": "pydocs_passage", "page": "pydocs_doc"}[granularity]
        super().__init__(name, PyDocsTexts(granularity, workers), workers=workers, **settings)


class SplitData(RetrievalData):
    """Data whose query sets are drawn at random from training and development queries.

    Args:
        name: folder name under the cache and the outputs.
        texts: the collection and its raw query sets.
        train_fusion_queries: training queries that learn fusion weights (default: 10%, at most 20,000).
        development_queries: queries to tune on (default: all of dev, or half of it if there is no test).
        test_queries: queries to measure on (default: all of test, or the other half of dev).
        settings: those of `RetrievalData`.
    """

    def __init__(
        self,
        name: str,
        texts: RawTexts,
        train_fusion_queries: int | None = None,
        development_queries: int | None = None,
        test_queries: int | None = None,
        **settings: Any,
    ) -> None:
        sizes = SplitSizes(train_fusion_queries, development_queries, test_queries)
        for set_name, size in sizes._asdict().items():
            require(size is None or size >= 1, f"--data.{set_name}_queries", size, "1 or more")
        super().__init__(name, SplitTexts(texts, sizes), **settings)


class Folder(SplitData):
    """Any folder in the MS MARCO layout.

    Args:
        path: the folder with collection.tsv, queries.{train,dev,test}.tsv and qrels.{train,dev,test}.tsv.
        settings: those of `SplitData`.
    """

    def __init__(self, path: str | None = None, **settings: Any) -> None:
        folder = existing_path("--data.path", path)
        base = re.sub(r"[^\w.-]", "_", folder.resolve().name)
        digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]
        super().__init__(f"folder-{base}-{digest}", folder_texts(folder), **settings)


class MSMarco(SplitData):
    """MS MARCO v1 with TREC DL 2019/2020: the official files of a local folder, or `ir_datasets`.

    Query sets have the sizes of the paper's data table, or less where there are fewer queries, as with the
    official small dev set alone. Sizes that are given are not shrunk; too large ones
    are refused.

    Args:
        kind: "passage" or "document".
        path: folder of the official files (gz accepted); without it ir_datasets downloads them.
        settings: those of `SplitData`.
    """

    def __init__(
        self, kind: Literal["passage", "document"] = "passage", path: str | None = None, **settings: Any
    ) -> None:  # fmt: skip
        texts: RawTexts = IrDatasetsTexts(f"msmarco-{kind}")
        if path is not None:
            texts = official_texts(existing_path("--data.path", path), kind)
        super().__init__({"passage": "msmarco_passage", "document": "msmarco_doc"}[kind], texts, **settings)
