"""Pages of documentation: the docstrings of a class or module together, small ones folded into their parent.

A small class stands on its module's page, a small module on that of its package, as in a manual.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from datamodules.pydocs.mining import Docstring

SMALLEST_PAGE = 500  # words; a smaller page folds into its parent


class PageKey(NamedTuple):
    """A class (`owner`) of a module, or the module itself when `owner` is empty."""

    module: str
    owner: str

    @property
    def doc_id(self) -> str:
        """`package.module` or `package.module:Class`."""
        return f"{self.module}:{self.owner}" if self.owner else self.module

    @property
    def parent(self) -> PageKey | None:
        """Outer class, then module, then package, then its parent package; None at the top."""
        if self.owner:
            return PageKey(self.module, self.owner.rpartition(".")[0])
        package = self.module.rpartition(".")[0]
        return PageKey(package, "") if package else None

    @property
    def depth(self) -> int:
        """Steps from the top package."""
        return 0 if self.parent is None else 1 + self.parent.depth


def fold_pages(docstrings: Sequence[Docstring], shown: Collection[int], texts: Sequence[str]) -> dict[str, list[int]]:
    """Return page id -> positions of its docstrings, in source order; each of `shown` is on exactly one page.

    `texts` holds what each docstring contributes to a page: sizes are counted in its words.
    """
    members: dict[PageKey, list[int]] = {}
    for position in shown:
        key = PageKey(docstrings[position].module, docstrings[position].owner)
        members.setdefault(key, []).append(position)
        while key.parent is not None:
            key = key.parent
            members.setdefault(key, [])
    words = {key: sum(len(texts[position].split()) for position in page) for key, page in members.items()}
    for key in sorted(members, key=lambda key: (-key.depth, key)):  # children before their parents
        if key.parent is not None and words[key] < SMALLEST_PAGE:
            members[key.parent] += members.pop(key)
            words[key.parent] += words[key]
    pages = sorted((sorted(page), key.doc_id) for key, page in members.items() if page)
    return {doc_id: page for page, doc_id in pages}
