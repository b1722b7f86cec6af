"""The data sets that `--data NAME` chooses: where their texts come from. The settings are those of `RetrievalData`."""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal

from datamodules.pydocs.embedded_data import PyDocsTexts
from datamodules.retrieval_data import RetrievalData
from datamodules.text.query_sets import SplitSizes
from datamodules.text.sources import IrDatasetsTexts, existing_path, folder_texts, official_texts
from lexical.errors import require


class PyDocs(RetrievalData):
    """The embedded data: docstrings of the packages in requirements.txt.

    Args:
        granularity: "passage" (the docstring) or "page" (the class or module that it belongs to).
    """

    def __init__(
        self, granularity: Literal["passage", "page"] = "passage", workers: int = 0, **settings: Any
    ) -> None:  # fmt: skip
        name = {"passage": "pydocs_passage", "page": "pydocs_doc"}[granularity]
        super().__init__(name, PyDocsTexts(granularity, workers), workers=workers, **settings)


class Folder(RetrievalData):
    """Any folder in the MS MARCO layout.

    Args:
        path: the folder with collection.tsv, queries.{train,dev,test}.tsv and qrels.{train,dev,test}.tsv.
        train_fusion_queries: training queries that learn fusion weights (default: 10%, at most 20,000).
        development_queries: queries to tune on (default: all of dev, or half of it if there is no test).
        test_queries: queries to measure on (default: all of test, or the other half of dev).
    """

    def __init__(
        self,
        path: str | None = None,
        train_fusion_queries: int | None = None,
        development_queries: int | None = None,
        test_queries: int | None = None,
        **settings: Any,
    ) -> None:
        folder = existing_path("--data.path", path)
        base = re.sub(r"[^\w.-]", "_", folder.resolve().name)
        digest = hashlib.sha256(str(folder.resolve()).encode()).hexdigest()[:6]
        sizes = _sizes(train_fusion_queries, development_queries, test_queries)
        super().__init__(f"folder-{base}-{digest}", folder_texts(folder, sizes), **settings)


class MSMarco(RetrievalData):
    """MS MARCO v1 with TREC DL 2019/2020: the official files of a local folder, or `ir_datasets`.

    Args:
        kind: "passage" or "document".
        path: folder of the official files (gz accepted); without it ir_datasets downloads them.
        train_fusion_queries: training queries that learn fusion weights.
        development_queries: queries to tune on.
        test_queries: queries to measure on.
    """

    def __init__(
        self,
        kind: Literal["passage", "document"] = "passage",
        path: str | None = None,
        train_fusion_queries: int | None = None,
        development_queries: int | None = None,
        test_queries: int | None = None,
        **settings: Any,
    ) -> None:
        sizes = _sizes(train_fusion_queries, development_queries, test_queries)
        if path is None:
            texts: Any = IrDatasetsTexts(f"msmarco-{kind}", sizes)
        else:
            texts = official_texts(existing_path("--data.path", path), kind, sizes)
        super().__init__({"passage": "msmarco_passage", "document": "msmarco_doc"}[kind], texts, **settings)


def _sizes(train_fusion: int | None, development: int | None, test: int | None) -> SplitSizes:
    sizes = SplitSizes(train_fusion, development, test)
    for name, size in sizes._asdict().items():
        require(size is None or size >= 1, f"--data.{name}_queries", size, "1 or more")
    return sizes
