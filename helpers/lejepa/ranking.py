"""One ranking from whatever narrowed the documents down: exact scores in fp64, equal ones by row.

FAISS and an accelerator's matmul round differently, and near-ties would come back in another order. Both only propose
candidates here, a few more than asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

# Q queries · N documents · K embedding · C candidates

METRICS = ("cosine", "dot", "l2")
_SPARE = 16  # candidates beyond k
_QUERIES = 64  # narrowed down at a time
_BLOCK = 2**14  # documents scored in fp64 at a time, where candidates were not enough


@dataclass(frozen=True)
class Documents:
    """What is searched, wherever it is."""

    count: int  # N
    dimension: int  # K
    longest: float  # upper bound of their lengths
    narrow: Callable  # (queries_QK, C) -> approximate similarities [Q, C], best first, and rows [Q, C]
    rows: Callable  # rows of any shape -> embeddings [..., K] in fp32, of length 1 with "cosine"


def search(
    queries: np.ndarray | torch.Tensor, k: int, metric: str, documents: Documents
) -> tuple[np.ndarray, np.ndarray]:
    """Rows and scores [Q, k], best first; all documents where there are fewer. Scores are in fp64, distances with "l2".

    Raises ValueError: no documents, k below 1, or queries that do not fit.
    """
    if documents.count < 1:
        raise ValueError("no documents: add some before a search")
    if k < 1:
        raise ValueError(f"k={k}: must be at least 1")
    queries_QK = matrix("queries", queries, documents.dimension)
    if metric == "cosine":
        queries_QK = unit(queries_QK)
    k = min(k, documents.count)
    rows_Qk, scores_Qk = np.zeros((len(queries_QK), k), np.int64), np.zeros((len(queries_QK), k))
    for first in range(0, len(queries_QK), _QUERIES):
        block_QK = queries_QK[first : first + _QUERIES]
        approximate_QC, rows_QC = documents.narrow(block_QK, min(documents.count, k + _SPARE))
        candidates_QCK = documents.rows(rows_QC)
        for row, query_K in enumerate(block_QK):
            scores_C = _similarities(query_K, candidates_QCK[row], metric)
            best, scores_k = _best(rows_QC[row], scores_C, k)
            left_out = approximate_QC[row, -1] + _rounding(query_K, documents, metric)
            if rows_QC.shape[1] < documents.count and left_out >= scores_k[-1]:
                best, scores_k = _best_of_all(query_K, documents, k, metric)
            rows_Qk[first + row], scores_Qk[first + row] = best, scores_k
    return rows_Qk, np.sqrt(-scores_Qk) if metric == "l2" else scores_Qk


def _similarities(query_K, documents_CK, metric: str) -> np.ndarray:
    """Inner products or negative squared distances in fp64. No matmul: its sums would depend on the row's place."""
    query_K, documents_CK = query_K.astype(np.float64), documents_CK.astype(np.float64)
    if metric == "l2":
        return -np.square(documents_CK - query_K).sum(-1)
    return (documents_CK * query_K).sum(-1)


def _best(rows_C, scores_C, k: int) -> tuple[np.ndarray, np.ndarray]:
    order = np.lexsort((rows_C, -scores_C))[:k]
    return rows_C[order], scores_C[order]


def _best_of_all(query_K, documents: Documents, k: int, metric: str) -> tuple[np.ndarray, np.ndarray]:
    """Where more documents are alike than there were candidates: every one of them in fp64."""
    rows_C, scores_C = np.zeros(0, np.int64), np.zeros(0)
    for first in range(0, documents.count, _BLOCK):
        rows = np.arange(first, min(documents.count, first + _BLOCK))
        scores_C = np.concatenate((scores_C, _similarities(query_K, documents.rows(rows), metric)))
        rows_C, scores_C = _best(np.concatenate((rows_C, rows)), scores_C, k)
    return rows_C, scores_C


def _rounding(query_K, documents: Documents, metric: str) -> float:
    """How far a narrowing similarity can be off: fp32 sums of K products, or the three products of `_product`."""
    length = float(np.linalg.norm(query_K))
    scale = (length + documents.longest) ** 2 if metric == "l2" else length * documents.longest
    return max(2.0**-14, documents.dimension * 2.0**-23) * scale


def matrix(name: str, embeddings, dimension: int) -> np.ndarray:
    """[N, dimension] in fp32 on the host; ValueError for another shape, NaN or infinity."""
    if isinstance(embeddings, torch.Tensor):
        embeddings = embeddings.detach().cpu().float().numpy()
    embeddings = np.ascontiguousarray(embeddings, np.float32)
    if embeddings.ndim != 2 or embeddings.shape[1] != dimension:
        raise ValueError(
            f"{name} has shape {list(embeddings.shape)}: must be [rows, {dimension}], from the model of the documents"
        )
    if bad := int((~np.isfinite(embeddings).all(1)).sum()):
        raise ValueError(
            f"{name}: {bad} of {len(embeddings)} rows hold NaN or infinity; look at the model or the texts"
        )
    return embeddings


def longest(embeddings_NK) -> float:
    return float(np.linalg.norm(embeddings_NK, axis=1).max(initial=0))


def unit(embeddings: np.ndarray) -> np.ndarray:
    """Rows of length 1; zeros stay zeros."""
    length = np.sqrt(np.square(embeddings, dtype=np.float64).sum(-1, keepdims=True))
    return (embeddings / np.where(length == 0, 1, length)).astype(np.float32)


def check_metric(metric: str) -> None:
    if metric not in METRICS:
        raise ValueError(f"metric={metric!r}: choose one of {', '.join(METRICS)}")
