"""A search index of texts: FAISS's exact one by cosine, saved as files that need nothing of this package.

On a GPU or a TPU itself `sentence_transformers.util.semantic_search` finds the same; a TPU rounds products to bf16, unless it is
told `torch_xla.backends.set_mat_mul_precision("highest")`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import faiss
import numpy as np
from sentence_transformers import SentenceTransformer

from helpers.lejepa.encoding import encode, on_cpu

# N documents · K embedding

WIDTH = 100  # characters of a text in a table


class TextIndex:
    """Every text's embedding at length 1; on the CPU, without approximation."""

    def __init__(self, model: SentenceTransformer, texts: Sequence[str]) -> None:
        self.model, self.texts = on_cpu(model), list(texts)
        embeddings_NK = self._unit_rows(self.texts, "document")
        self.index = faiss.IndexFlatIP(embeddings_NK.shape[1])
        self.index.add(embeddings_NK)

    def search(self, query: str, k: int = 10) -> list[tuple[float, str]]:
        """Cosine and text of the k nearest, best first; all where there are fewer."""
        scores, rows = self.index.search(self._unit_rows([query], "query"), min(k, len(self.texts)))
        return [(float(score), self.texts[row]) for score, row in zip(scores[0], rows[0], strict=True)]

    def save(self, folder: str | Path) -> None:
        """Writes `index.faiss` and `index.json` (the texts in its order), over what was there."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        faiss.write_index(self.index, str(folder / "index.faiss"))
        record = {"metric": "cosine", "texts": self.texts}
        (folder / "index.json").write_text(json.dumps(record), encoding="utf-8")

    def _unit_rows(self, texts: Sequence[str], task: str) -> np.ndarray:
        embeddings = encode(self.model, texts, task=task)
        faiss.normalize_L2(embeddings)
        return embeddings


def side_by_side(indexes: Mapping[str, TextIndex], query: str, k: int = 10) -> list[dict[str, str]]:
    """What each index finds for a query, nearest first, in a column each, for `tables.show`."""
    found = [index.search(query, k) for index in indexes.values()]
    return [
        {name: _cut(f"{score:.3f} {text}") for name, (score, text) in zip(indexes, hits, strict=True)}
        for hits in zip(*found, strict=True)
    ]


def _cut(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= WIDTH else line[: WIDTH - 1] + "…"
