"""A search index of texts: FAISS's exact one on the CPU, saved whole and checked when it is loaded.

    index = TextIndex.build(model, ids, texts)
    ids, scores = index.search(["what is a monad"], k=5, model=model)

FAISS has no index on a TPU. To search on a GPU or a TPU itself, `sentence_transformers.util.semantic_search` takes
embeddings that lie there and finds the same; a TPU rounds products to bf16 before, unless it is told
`torch_xla.backends.set_mat_mul_precision("highest")`.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from helpers.lejepa.encoding import encode

# Q queries · N documents · K embedding

METRICS = ("cosine", "dot")
SCHEMA = 1
INDEX, RECORD = "index.faiss", "index.json"


class TextIndex:
    """Every document's embedding, id and text; on the CPU, without approximation.

    Args:
        dimension: K.
        metric: "cosine", for which the index holds embeddings of length 1, or "dot". More is better.
        model_name: of the model that embedded the documents; for the reader of a saved index.

    Raises ValueError for an unknown metric or a dimension below 1.
    """

    def __init__(self, dimension: int, *, metric: str = "cosine", model_name: str = "") -> None:
        if metric not in METRICS:
            raise ValueError(f"metric={metric!r}: choose one of {', '.join(METRICS)}")
        if dimension < 1:
            raise ValueError(f"dimension={dimension}: must be at least 1; it is the length of an embedding")
        self.metric, self.model_name = metric, model_name
        self.ids: list[str] = []
        self.texts: list[str] = []
        self._index = faiss.IndexFlatIP(dimension)

    @classmethod
    def build(
        cls,
        model: SentenceTransformer,
        ids: Sequence[str],
        texts: Sequence[str],
        *,
        metric: str = "cosine",
        batch_size: int = 32,
        max_seq_length: int | None = None,
    ) -> TextIndex:
        """Index of texts, embedded by `encode` as documents. Raises ValueError as `add` does, or without texts."""
        if not len(texts):
            raise ValueError("texts is empty: an index needs at least one document")
        embeddings_NK = encode(model, texts, task="document", batch_size=batch_size, max_seq_length=max_seq_length)
        card = model.model_card_data
        index = cls(embeddings_NK.shape[1], metric=metric, model_name=card.model_name or card.base_model or "")
        index.add(ids, texts, embeddings_NK)
        return index

    @property
    def dimension(self) -> int:
        return self._index.d

    def __len__(self) -> int:
        return self._index.ntotal

    def add(self, ids: Sequence[str], texts: Sequence[str], embeddings_NK: np.ndarray | torch.Tensor) -> None:
        """Appends documents.

        Raises ValueError, and adds nothing, for an id that is there already, and for embeddings of another shape or that are
        not finite.
        """
        embeddings_NK, together = self._matrix("embeddings_NK", embeddings_NK), [*self.ids, *ids]
        if not len(ids) == len(embeddings_NK) == len(texts):
            counts = f"{len(ids)} ids, {len(texts)} texts, {len(embeddings_NK)} embeddings"
            raise ValueError(f"{counts}: give one of each a document")
        if wrong := [name for name in ids if not isinstance(name, str)]:
            raise ValueError(f"ids: {wrong[0]!r} is no string; use strings, which JSON gives back as they were")
        if twice := [name for name, count in Counter(together).items() if count > 1]:
            raise ValueError(f"ids: {twice[0]!r} is there twice; give every document an id of its own")
        self._index.add(embeddings_NK)
        self.ids = together
        self.texts += texts

    def search(
        self,
        queries: Sequence[str] | np.ndarray | torch.Tensor,
        k: int = 10,
        *,
        model: SentenceTransformer | None = None,
        batch_size: int = 32,
    ) -> tuple[list[list[str]], np.ndarray]:
        """The k best documents of each query, best first; all where there are fewer.

        Args:
            queries: texts, embedded by `model.encode_query`, or embeddings [Q, K].
            k: hits a query.
            model: the one whose documents these are; for texts only.

        Returns ids, a list a query, and their similarities [Q, k].

        Raises ValueError for an empty index, k below 1, texts without a model, or embeddings that do not fit.
        """
        if not isinstance(queries, np.ndarray | torch.Tensor):
            if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
                raise ValueError("queries: must be a list of texts, or embeddings [Q, K] as an array or tensor")
            if model is None:
                raise ValueError("queries are texts: pass the model that embedded the documents, or embeddings")
            queries = encode(model, queries, task="query", batch_size=batch_size)
        if k < 1 or not len(self):
            raise ValueError(f"k={k} of {len(self)} documents: both must be at least 1")
        scores_Qk, rows_Qk = self._index.search(self._matrix("queries", queries), min(k, len(self)))
        return [[self.ids[row] for row in rows] for rows in rows_Qk], scores_Qk

    def _matrix(self, name: str, embeddings: np.ndarray | torch.Tensor) -> np.ndarray:
        """[rows, K] in fp32 on the host, as the metric compares them."""
        if isinstance(embeddings, torch.Tensor):
            embeddings = embeddings.detach().cpu().float().numpy()
        embeddings = np.array(embeddings, np.float32, order="C")  # a copy, which FAISS normalises in place
        if embeddings.ndim != 2 or embeddings.shape[1] != self.dimension:
            raise ValueError(
                f"{name} has shape {list(embeddings.shape)}: must be [rows, {self.dimension}], from the model of the documents"
            )
        if bad := int((~np.isfinite(embeddings).all(1)).sum()):
            raise ValueError(
                f"{name}: {bad} of {len(embeddings)} rows hold NaN or infinity; look at the model or the texts"
            )
        if self.metric == "cosine":
            faiss.normalize_L2(embeddings)
        return embeddings

    # -- on disk --

    def save(self, folder: str | Path) -> Path:
        """Writes `index.faiss` and `index.json`, whole or not at all; no pickle. Raises ValueError where the folder exists."""
        folder = Path(folder)
        if folder.exists():
            raise ValueError(f"folder={str(folder)!r} exists: choose another, or remove it first if it is not needed")
        staging = folder.with_name(f".staging-{folder.name}")
        shutil.rmtree(staging, ignore_errors=True)
        staging.mkdir(parents=True)
        faiss.write_index(self._index, str(staging / INDEX))
        record = {
            "schema": SCHEMA,
            "metric": self.metric,
            "dimension": self.dimension,
            "model_name": self.model_name,
            "sha256": _file_digest(staging / INDEX),
            "ids": self.ids,
            "texts": self.texts,
        }
        record["record_sha256"] = _digest(record)
        (staging / RECORD).write_text(json.dumps(record), encoding="utf-8")
        staging.rename(folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> TextIndex:
        """What `save` wrote, after its digests were compared.

        Raises FileNotFoundError where one of its files is missing, and ValueError where it is damaged.
        """
        folder = Path(folder)
        for name in (INDEX, RECORD):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"folder={str(folder)!r}: holds no {name}; give a folder that `save` wrote")
        damaged = f"folder={str(folder)!r}: damaged ({{}} is not what was saved); build the index anew and save it"
        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            if record.pop("record_sha256") != _digest(record):
                raise ValueError("its digest differs")
        except (ValueError, LookupError, AttributeError, TypeError) as error:
            raise ValueError(damaged.format(RECORD)) from error
        if record["schema"] != SCHEMA:
            raise ValueError(f"folder={str(folder)!r}: schema {record['schema']}, not {SCHEMA}; build the index anew")
        if record["sha256"] != _file_digest(folder / INDEX):
            raise ValueError(damaged.format(INDEX))
        index = cls(record["dimension"], metric=record["metric"], model_name=record["model_name"])
        index.ids, index.texts = record["ids"], record["texts"]
        index._index = faiss.read_index(str(folder / INDEX))
        return index


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest(record: dict) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
