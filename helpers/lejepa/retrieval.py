"""Exact search over text embeddings: a FAISS index on the CPU, or the same search by matmul on an accelerator.

    index = TextIndex.build(model, ids, texts, metric="cosine")
    hits, scores = index.search(["what is a monad"], k=5, model=model)

Both only narrow the documents down; `ranking` scores what they leave in fp64: the same ids on every device.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from helpers.lejepa.encoding import encode
from helpers.lejepa.ranking import Documents, check_metric, longest, matrix, search, unit

# Q queries · N documents · K embedding · C candidates

SCHEMA = 1
INDEX, RECORD = "index.faiss", "index.json"


class TextIndex:
    """Every document's embedding and id, and its text where wanted; no approximation. Lives on the CPU.

    FAISS has no TPU index: on a TPU this is FAISS on the host's CPU, and `search_by_matmul` is the search on the chip.

    Args:
        dimension: K.
        metric: "cosine" and "dot" give similarities, higher is better; "l2" gives Euclidean distances (FAISS itself
            returns their squares), lower is better. With "cosine" the index holds embeddings of length 1.
        model_name: of the model that embedded the documents; for the reader of a saved index.

    Raises:
        ValueError: an unknown metric, or a dimension below 1.
    """

    def __init__(self, dimension: int, *, metric: str = "cosine", model_name: str = "") -> None:
        check_metric(metric)
        if dimension < 1:
            raise ValueError(f"dimension={dimension}: must be at least 1; it is the length of an embedding")
        self.metric, self.model_name = metric, model_name
        self.ids: list[str] = []
        self.texts: list[str] | None = None
        self._index = faiss.IndexFlatL2(dimension) if metric == "l2" else faiss.IndexFlatIP(dimension)
        self._longest = 0.0

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
        keep_texts: bool = True,
    ) -> TextIndex:
        """Index of texts, embedded by `encode` as documents. Raises ValueError as `add` does, or without texts."""
        if not len(texts):
            raise ValueError("texts is empty: an index needs at least one document")
        check_metric(metric)
        embeddings_NK = encode(model, texts, task="document", batch_size=batch_size, max_seq_length=max_seq_length)
        card = model.model_card_data
        index = cls(embeddings_NK.shape[1], metric=metric, model_name=card.model_name or card.base_model or "")
        index.add(ids, embeddings_NK, texts if keep_texts else None)
        return index

    @property
    def dimension(self) -> int:
        return self._index.d

    def __len__(self) -> int:
        return self._index.ntotal

    def add(self, ids: Sequence[str], embeddings_NK: np.ndarray | torch.Tensor, texts: Sequence[str] | None = None):
        """Appends documents.

        Raises:
            ValueError: an id that is there already, embeddings of another shape or not finite, or texts for only some
                of the index's documents. Nothing is added then.
        """
        embeddings_NK = matrix("embeddings_NK", embeddings_NK, self.dimension)
        ids = list(ids)
        if len(ids) != len(embeddings_NK) or (texts is not None and len(texts) != len(ids)):
            counts = f"{len(ids)} ids, {len(embeddings_NK)} embeddings" + (f", {len(texts)} texts" if texts else "")
            raise ValueError(f"{counts}: give one of each a document")
        known = set(self.ids)
        for name in ids:
            if not isinstance(name, str):
                raise ValueError(f"ids: {name!r} is no string; use strings, which JSON gives back as they were")
            if name in known:
                raise ValueError(f"ids: {name!r} is there twice; give every document an id of its own")
            known.add(name)
        if self.ids and (texts is None) != (self.texts is None):
            raise ValueError(
                f"texts: the index {'holds no texts' if self.texts is None else 'holds the text of every document'}; "
                f"{'leave them out' if self.texts is None else 'give them'} here too"
            )
        embeddings_NK = unit(embeddings_NK) if self.metric == "cosine" else embeddings_NK
        self._index.add(embeddings_NK)
        self._longest = max(self._longest, longest(embeddings_NK))
        self.ids += ids
        if texts is not None:
            self.texts = [*(self.texts or ()), *texts]

    def embeddings(self) -> np.ndarray:
        """What is searched, [N, K] in fp32, in the order of `ids`; of length 1 with "cosine". A copy."""
        return self._index.reconstruct_n(0, len(self))

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

        Returns:
            ids, a list a query, and scores [Q, k] in fp64: similarities, or distances with "l2".

        Raises:
            ValueError: an empty index, k below 1, texts without a model, or embeddings that do not fit.
        """
        if not isinstance(queries, np.ndarray | torch.Tensor):
            if isinstance(queries, str) or not all(isinstance(query, str) for query in queries):
                raise ValueError("queries: must be a list of texts, or embeddings [Q, K] as an array or tensor")
            if model is None:
                raise ValueError("queries are texts: pass the model that embedded the documents, or embeddings")
            queries = encode(model, queries, task="query", batch_size=batch_size)
        documents = Documents(len(self), self.dimension, self._longest, self._narrow, self._rows)
        rows_Qk, scores_Qk = search(queries, k, self.metric, documents)
        return [[self.ids[row] for row in rows] for rows in rows_Qk], scores_Qk

    def _narrow(self, queries_QK: np.ndarray, count: int):
        scores_QC, rows_QC = self._index.search(queries_QK, count)
        return (-scores_QC if self.metric == "l2" else scores_QC), rows_QC

    def _rows(self, rows: np.ndarray) -> np.ndarray:
        return self._index.reconstruct_batch(rows.ravel()).reshape(*rows.shape, self.dimension)

    # -- on disk --

    def save(self, folder: str | Path) -> Path:
        """Writes `index.faiss` (`faiss.write_index`) and `index.json`, whole or not at all; no pickle.

        Raises:
            ValueError: the folder exists.
        """
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
        record["record_sha256"] = _record_digest(record)
        (staging / RECORD).write_text(json.dumps(record), encoding="utf-8")
        staging.rename(folder)
        return folder

    @classmethod
    def load(cls, folder: str | Path) -> TextIndex:
        """What `save` wrote, after its digests were compared.

        Raises:
            FileNotFoundError: one of its files is missing.
            ValueError: damaged, or no exact index.
        """
        folder = Path(folder)
        for name in (INDEX, RECORD):
            if not (folder / name).is_file():
                raise FileNotFoundError(f"folder={str(folder)!r}: holds no {name}; give a folder that `save` wrote")
        damaged = f"folder={str(folder)!r}: damaged ({{}}); build the index anew and save it"
        try:
            record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
            if record.pop("record_sha256") != _record_digest(record):
                raise ValueError("not what was saved")
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(damaged.format(f"{RECORD}: {error}")) from error
        if record["schema"] != SCHEMA:
            raise ValueError(f"folder={str(folder)!r}: schema {record['schema']}, not {SCHEMA}; build the index anew")
        if record["sha256"] != _file_digest(folder / INDEX):
            raise ValueError(damaged.format(f"{INDEX}: not what was saved"))
        index = cls(record["dimension"], metric=record["metric"], model_name=record["model_name"])
        stored = faiss.read_index(str(folder / INDEX))
        if (type(stored), stored.d, stored.ntotal) != (type(index._index), index.dimension, len(record["ids"])):
            kind = f"{stored.ntotal} x {stored.d} in a {type(stored).__name__}"
            raise ValueError(f"folder={str(folder)!r}: holds {kind}, which `save` does not write; build the index anew")
        index.ids, index.texts, index._index = record["ids"], record["texts"], stored
        index._longest = longest(index.embeddings())
        return index


def search_by_matmul(
    queries_QK: torch.Tensor | np.ndarray,
    documents_NK: torch.Tensor,
    k: int,
    *,
    metric: str = "cosine",
    chunk: int = 2**16,
) -> tuple[np.ndarray, np.ndarray]:
    """The search of `TextIndex` on the device that `documents_NK` is on: CPU, CUDA or XLA.

    Args:
        queries_QK, documents_NK: embeddings as they came from the model; also "cosine" normalises both by itself.
        chunk: documents multiplied at a time, with 64 queries: 256 bytes of scores each.

    Returns:
        Rows of documents_NK [Q, k], best first, and scores [Q, k] in fp64 as `TextIndex.search` gives them.

    Raises:
        ValueError: shapes that do not fit, embeddings that are not finite, k or chunk below 1.
    """
    check_metric(metric)
    if chunk < 1:
        raise ValueError(f"chunk={chunk}: must be at least 1; 65536 documents are usual")
    if documents_NK.dim() != 2 or not documents_NK.is_floating_point():
        raise ValueError(f"documents_NK is {documents_NK.dtype} {list(documents_NK.shape)}: must be floats [N, K]")
    if not torch.isfinite(documents_NK).all():
        raise ValueError("documents_NK holds NaN or infinity: remove those documents, or look at the model")
    documents_NK, device = documents_NK.detach(), documents_NK.device

    def narrow(queries_QK, count):
        queries_QK = torch.from_numpy(queries_QK).to(device)
        parts, first = [], 0
        with torch.autocast(device.type, enabled=False):
            for part_NK in documents_NK.split(chunk):
                part_NK = part_NK.float()
                if metric == "cosine":
                    part_NK = torch.nn.functional.normalize(part_NK, dim=1)
                scores_QN = _product(queries_QK, part_NK)
                if metric == "l2":
                    lengths_Q1, lengths_N = queries_QK.square().sum(1, keepdim=True), part_NK.square().sum(1)
                    scores_QN = 2 * scores_QN - lengths_N - lengths_Q1
                best = scores_QN.topk(min(count, len(part_NK)), dim=1)
                parts.append((best.values, best.indices + first))
                first += len(part_NK)
            scores_QC, rows_QC = (torch.cat(tensors, 1) for tensors in zip(*parts, strict=True))
            best = scores_QC.topk(count, dim=1)
            return best.values.cpu().numpy(), rows_QC.gather(1, best.indices).cpu().numpy()

    def rows(rows):
        picked = documents_NK[torch.from_numpy(rows).to(device)].cpu().float().numpy()
        return unit(picked) if metric == "cosine" else picked

    bound = 1.0 if metric == "cosine" or not len(documents_NK) else float(documents_NK.float().norm(dim=1).max())
    return search(queries_QK, k, metric, Documents(*documents_NK.shape, bound, narrow, rows))


def _product(queries_QK, documents_NK):
    """queries @ documents.T in fp32; in three products where a device may round its inputs (TPU: bf16; TF32)."""
    if queries_QK.device.type == "cpu":
        return queries_QK @ documents_NK.T
    (high_QK, low_QK), (high_NK, low_NK) = _halves(queries_QK), _halves(documents_NK)
    return high_QK @ high_NK.T + (high_QK @ low_NK.T + low_QK @ high_NK.T)


def _halves(tensor):
    """x = high + low, high of 8 bits (Veltkamp). A cast to bf16 and back would be optimised away by XLA."""
    scaled = tensor * (2**16 + 1)
    high = scaled - (scaled - tensor)
    return high, tensor - high


# ---- digests of a saved index


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _record_digest(record: dict) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
