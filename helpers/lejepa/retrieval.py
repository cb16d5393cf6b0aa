"""A search index of texts: FAISS's exact one by cosine, saved as files that need nothing of this package.

    index = TextIndex(model, ids, texts)
    ids, scores = index.search(model, ["what is a monad"], k=5)

FAISS has no index on a TPU. To search on a GPU or a TPU itself, `sentence_transformers.util.semantic_search` takes
embeddings that lie there and finds the same; a TPU rounds products to bf16 before, unless it is told
`torch_xla.backends.set_mat_mul_precision("highest")`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from helpers.lejepa.encoding import encode

# Q queries · N documents · K embedding

INDEX, RECORD = "index.faiss", "index.json"


class TextIndex:
    """Every document's embedding at length 1, id and text; on the CPU, without approximation.

    Args:
        model: embeds the documents.
        ids, texts: of the documents, one of each.
    """

    def __init__(self, model: SentenceTransformer, ids: Sequence[str], texts: Sequence[str]) -> None:
        self.ids, self.texts = list(ids), list(texts)
        embeddings_NK = _unit_rows(model, self.texts, "document")
        self.index = faiss.IndexFlatIP(embeddings_NK.shape[1])
        self.index.add(embeddings_NK)

    def search(
        self, model: SentenceTransformer, queries: Sequence[str], k: int = 10
    ) -> tuple[list[list[str]], np.ndarray]:
        """The k best documents of each query, best first, all where there are fewer: ids, and cosines [Q, k].

        model: the one that embedded the documents.
        """
        scores_Qk, rows_Qk = self.index.search(_unit_rows(model, queries, "query"), min(k, len(self.ids)))
        return [[self.ids[row] for row in rows] for rows in rows_Qk], scores_Qk

    def save(self, folder: str | Path) -> None:
        """Writes `index.faiss` and `index.json` (ids and texts in its order), whole or not at all, over what was there."""
        folder = Path(folder)
        staging = folder.with_name(f".staging-{folder.name}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        faiss.write_index(self.index, str(staging / INDEX))
        record = {"metric": "cosine", "ids": self.ids, "texts": self.texts}
        (staging / RECORD).write_text(json.dumps(record), encoding="utf-8")
        shutil.rmtree(folder, ignore_errors=True)
        staging.rename(folder)


def _unit_rows(model: SentenceTransformer, texts: Sequence[str], task: str) -> np.ndarray:
    embeddings = encode(model, texts, task=task)
    faiss.normalize_L2(embeddings)
    return embeddings
