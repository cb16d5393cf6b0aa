"""Functions of a repository found by a question: BM25 over their names and sources.

No model is asked: beside BM25 the encoder adds nothing (docs/graphmer.md).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.feature_extraction.text import CountVectorizer

from helpers.graphmer.graph.extraction import cached_graph
from helpers.graphmer.graph.knowledge_graph import DEFINED
from helpers.graphmer.text.documents import Documents

WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


class Found(NamedTuple):
    name: str
    score: float  # of BM25
    defined: str  # file:line


def search(repository: str | Path, question: str, *, most: int = 5, cache: str | Path | None = None) -> list[Found]:
    """The functions and methods that fit a question best, at most `most`.

    Raises what `load_graph` does, and ValueError: a question without words, a repository without functions.
    """
    if not words(question):
        raise ValueError(f"question={question!r}: has no word to look for")
    graph = cached_graph(repository, cache)
    documents = Documents.read(graph, repository)
    functions = [
        one for one in graph.entities.values() if one.type in ("function", "method", "test") and one.status == DEFINED
    ]
    if not functions:
        raise ValueError(f"repository={str(repository)!r}: defines no function or method")
    scores_N = bm25([question], [documents.text(one.id) for one in functions], words)[0]
    best = [place for place in np.argsort(-scores_N, kind="stable")[:most] if scores_N[place] > 0]
    return [Found(functions[n].id, float(scores_N[n]), graph.place(functions[n])) for n in best]


def words(text: str) -> list[str]:
    """Words of identifiers and of prose, in lower case."""
    return [word.lower() for word in WORD.findall(text)]


def bm25(
    queries: Sequence[str], texts: Sequence[str], analyzer: Callable[[str], list[str]], k: float = 1.2, b: float = 0.75
) -> np.ndarray:
    """[queries, texts] of Okapi BM25; a word that a query repeats counts once (Robertson and Zaragoza, 2009)."""
    counter = CountVectorizer(analyzer=analyzer)
    count_NV = counter.fit_transform(texts).astype(np.float64).tocsc()
    length_N = np.asarray(count_NV.sum(1)).ravel()
    found_V = np.diff(count_NV.indptr)
    rarity_V = np.log(1 + (len(texts) - found_V + 0.5) / (found_V + 0.5))
    norm_N = k * (1 - b + b * length_N / length_N.mean())
    weight_NV = count_NV.copy()
    weight_NV.data = count_NV.data * (k + 1) / (count_NV.data + norm_N[count_NV.indices])
    asked_QV = (counter.transform(queries) > 0).astype(np.float64)
    return (asked_QV.multiply(rarity_V) @ weight_NV.T).toarray()
