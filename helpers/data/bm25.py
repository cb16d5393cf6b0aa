"""Okapi BM25 over documents that are lists of words, by the package bm25s."""

import logging
import sys
from collections.abc import Sequence

import numpy as np


class Bm25:
    """Scores of documents for a question; k1 and b are those of Robertson and Zaragoza (2009), and rare words weigh as in Lucene."""

    def __init__(self, documents: Sequence[Sequence[str]], *, k1: float = 1.5, b: float = 0.75):
        self.index = import_bm25s().BM25(k1=k1, b=b)
        tokens = [list(words) or [""] for words in documents]
        self.index.index(tokens, show_progress=False)

    def scores(self, question: Sequence[str]) -> np.ndarray:
        """float32 [documents]; a word that the question repeats counts once, and one that no document has not at all."""
        return self.index.get_scores([*dict.fromkeys(question)] or ["\0"])  # not an empty list


def import_bm25s():
    """bm25s without JAX, which it calls while it is imported: that takes a GPU's memory, or a TPU away from torch_xla."""
    if "bm25s" not in sys.modules:
        jax = sys.modules.get("jax")
        sys.modules["jax"] = None  # type: ignore[assignment]  # which makes `import jax` fail
        try:
            import bm25s  # noqa: F401
        finally:
            del sys.modules["jax"]
            if jax is not None:
                sys.modules["jax"] = jax
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it writes to a log that torch_xla shows
    return sys.modules["bm25s"]
