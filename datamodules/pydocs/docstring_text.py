"""A docstring as plain text: its one-line summary, the rest, and light cleaning of reST and Markdown.

No pattern depends on Python's version: the embedded data has a pinned content hash.
"""

from __future__ import annotations

import inspect
import re

# Lines that begin a block even without a blank line before them.
_NEW_BLOCK = re.compile(
    r"""(?: >>> | \.\.\s | [-*+]\s | @\w | ```
    | :\w+[^:`]*:(?!`)                                                    # reST field, e.g. :param x:
    | (?:args|arguments|parameters|params|inputs?|returns?|yields?|raises|examples?|notes?|attributes|usage
        |shape|references|warnings?|see\ also|keyword\ args|kwargs|options|todo)\s*:{0,2}\s*$ )""",
    re.IGNORECASE | re.VERBOSE,
)
_UNDERLINE = re.compile(r"([-=~^*#+_.`:\"'])\1{2,}$")
_SIGNATURE = re.compile(r"(?:[\w.]+\s*=\s*)?[A-Za-z_][\w.]*\s*\(.*\)\s*(?:->.*|:)?$")
_PARAMETER = re.compile(r"`?\w+`?\s*\(.*?\)\s*:|\w+\s+:\s|\w+\s*=\s*\S|\*{1,2}\w+\s*:")
_SENTENCE_END = re.compile(r"[.!?][\"')\]]*\s+(?=[A-Z`\"'(\[:*])")
_ABBREVIATION = re.compile(r"(?:\b(?:e\.g|i\.e|etc|vs|cf|al|resp|approx|Fig|Eq|Sec|No|Dr|St|[A-Z])|\.\.)\.$")

_ROLE_WITH_TARGET = re.compile(r"(?::[\w.+:-]+:)?`([^`<>]+?)\s*<[^`<>]+>`_{0,2}")
_ROLE = re.compile(r":[\w.+:-]+:`[~!]?([^`]*)`")
_BOLD = re.compile(r"(?<![\w*)\]])\*\*([^*\s](?:[^*]*[^*\s])?)\*\*(?![\w*(\[])")  # but not the power x**y**z
_DIRECTIVE = re.compile(r"\.\. *([\w-]+)::")
_REFERENCE_MARK = re.compile(r"\.\. +(?=\[)|(?<=\])_(?!\w)")
_MARKDOWN_LINK = re.compile(r"\[~([\w.]+)\]")
_PLACEHOLDER = re.compile(r"(?<![\w}\\^])\{[A-Za-z_][\w.]*\}|(?<![\w}\\^])\{\}|%\(\w+\)[sdr]|\$\{\w+\}")
_UNPRINTABLE = re.compile("[\x00-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060\ufeff\ud800-\udfff]")


def split_docstring(docstring: str) -> tuple[str, str]:
    """Return the summary, the first sentence of the first paragraph, and the rest: plain text in one line each.

    The summary may be empty. A leading signature (`abs(input) -> Tensor`, as in C functions) is skipped.
    """
    paragraphs = _paragraphs(docstring)
    while paragraphs and _SIGNATURE.match(paragraphs[0][0]) and len(paragraphs[0]) == 1:
        paragraphs.pop(0)
    if not paragraphs:
        return "", ""
    first = " ".join(paragraphs[0])
    following = [" ".join(paragraph) for paragraph in paragraphs[1:]]
    if _NEW_BLOCK.match(paragraphs[0][0]) or _PARAMETER.match(first):  # a section or an argument: no summary
        return "", plain_text(" ".join([first, *following]))
    sentence, remainder = _first_sentence(first)
    return plain_text(sentence).rstrip(" .:;,"), plain_text(" ".join([remainder, *following]))


def plain_text(text: str) -> str:
    """Reduce roles, back-quotes, underlines and directives to the words that a reader sees."""
    text = _ROLE_WITH_TARGET.sub(r"\1", text)
    text = _ROLE.sub(r"\1", text)
    text = _DIRECTIVE.sub(r"\1:", text)
    text = _REFERENCE_MARK.sub("", text)
    text = _BOLD.sub(r"\1", text)
    text = _MARKDOWN_LINK.sub(r"\1", text.replace("`", ""))
    return single_spaced(text)


def single_spaced(text: str) -> str:
    """Return one line without tabs, control characters or lone surrogates: safe in a TSV file and in UTF-8."""
    return " ".join(_UNPRINTABLE.sub(" ", text).split())


def without_phrase(text: str, phrase: str) -> str:
    """Cut every verbatim occurrence of the phrase, including those that a cut creates."""
    phrase = phrase.lower()
    while phrase and phrase in (lowered := text.lower()):
        if len(lowered) != len(text):  # a letter such as "İ" has a longer lower case: positions would not match
            text = lowered
        start = lowered.index(phrase)
        text = single_spaced(f"{text[:start]} {text[start + len(phrase) :]}")
    return text


def without_placeholders(text: str) -> str:
    """Remove format fields such as `{name}` and `%(klass)s`, which users never see in this form."""
    return single_spaced(_PLACEHOLDER.sub(" ", text))


def _paragraphs(docstring: str) -> list[list[str]]:
    """Return paragraphs as lists of stripped lines, without section underlines and code fences."""
    paragraphs: list[list[str]] = [[]]
    for line in inspect.cleandoc(docstring).splitlines():
        line = line.strip()
        if _UNDERLINE.match(line):
            continue
        if not line or _NEW_BLOCK.match(line):
            paragraphs.append([])
        if line:
            paragraphs[-1].append(line)
    return [paragraph for paragraph in paragraphs if paragraph]


def _first_sentence(paragraph: str) -> tuple[str, str]:
    for end in _SENTENCE_END.finditer(paragraph):
        if not _ABBREVIATION.search(paragraph[: end.start() + 1]):
            return paragraph[: end.end()], paragraph[end.end() :]
    return paragraph, ""
