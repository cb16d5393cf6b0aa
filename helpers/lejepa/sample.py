"""Pairs and documents out of the docstrings of the installed Python's standard library (`helpers.docstrings`)."""

from __future__ import annotations

import re

from helpers.docstrings import Docstring
from helpers.docstrings import docstrings as docstrings  # callers find it here

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
MIN_WORDS = 4  # of the text that is to be found; shorter ones ("See above.") say nothing


def pairs(found: list[Docstring]) -> list[tuple[str, str]]:
    """(anchor, positive) of each docstring that has enough to say.

    The anchor is name and signature, and the first sentence where at least four words follow it; the positive is what
    follows, or the whole docstring.
    """
    rows = []
    for docstring in found:
        first, *rest = _SENTENCE.split(docstring.text, maxsplit=1)
        what = f"{docstring.name}{docstring.signature}"
        if rest and len(rest[0].split()) >= MIN_WORDS:
            rows.append((f"{what}: {' '.join(first.split())}", rest[0].strip()))
        elif len(docstring.text.split()) >= MIN_WORDS:
            rows.append((what, docstring.text))
    return rows


def documents(found: list[Docstring]) -> list[str]:
    """Name, signature and docstring as one text."""
    return [f"{d.name}{d.signature}\n{d.text}" for d in found if len(d.text.split()) >= MIN_WORDS]
