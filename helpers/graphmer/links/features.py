"""Query and candidate features of whole corpora: dense ones, and sparse numbers of tokens, pairs and paths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from helpers.graphmer.modeling_graphmer.copy_head import FIELDS, PATHS, CopyHead

# Q queries · X candidates · F dense features (entity embedding and expected tokens) · V numbers of tokens, pairs and paths ·
# G leaves of a document · T of them that a leaf copies · P parts

PARTS = ("meaning", "own name", "owner", "rest", "pairs", "path", "path of the owner", "path above")
ROWS_AT_ONCE = 2**10


class QueryFeatures:
    """Of masked leaves: dense_QF float32 and what they copy, sparse [Q, V].

    Half precision would save little beside the copies, and make 1e-3 of a difference in the last bit.
    """

    def __init__(self, dense_QF: np.ndarray, copied_QV: csr_array):
        self.dense_QF, self.copied_QV = dense_QF, copied_QV

    def __len__(self) -> int:
        return len(self.dense_QF)

    def __getitem__(self, rows: Sequence[int] | slice) -> QueryFeatures:
        return QueryFeatures(self.dense_QF[rows], self.copied_QV[rows])

    @staticmethod
    def concatenated(batches: Sequence[QueryFeatures]) -> QueryFeatures:
        """All queries of these in one, in their order; 3 and 2 queries give 5."""
        return QueryFeatures(
            np.concatenate([batch.dense_QF for batch in batches]),
            vstack([batch.copied_QV for batch in batches], format="csr"),
        )

    @classmethod
    def of_documents(
        cls, dense_BGF: torch.Tensor, copies: Sequence[torch.Tensor], windows: Sequence[int], numbers: int
    ) -> QueryFeatures:
        """A row for each document and leaf, from its windows in turn: of copies the most counts, features are averaged.

        copies: numbers [B, T] and weights [B, G, T], or nothing.
        """
        B, G, _ = dense_BGF.shape
        if copies:
            ids_BT, weights_BGT = copies
            copied = _bags(ids_BT.repeat_interleave(G, 0), weights_BGT, numbers)
        else:
            copied = _empty(B * G, numbers)
        dense = dense_BGF.flatten(0, 1).float().cpu().numpy()
        if len(windows) < B:
            document_B = np.repeat(np.arange(len(windows)), windows)
            row = (document_B[:, None] * G + np.arange(G)).ravel()
            add = csr_array((np.ones(B * G, np.float32), (row, np.arange(B * G))), shape=(len(windows) * G, B * G))
            dense = add @ dense / np.repeat(windows, G)[:, None]
            copied = _largest(copied, row, len(windows) * G)
        return cls(dense.astype(np.float32), copied)


class CandidateFeatures:
    """Of names: dense_XF float32, an addend bias_X and sparse numbers with weights, bags_XV.

    match: whose numbers they are; None where names have features alone.
    """

    def __init__(self, dense_XF: np.ndarray, bias_X: np.ndarray, bags_XV: csr_array, match: CopyHead | None):
        self.dense_XF, self.bias_X, self.bags_XV, self.match = dense_XF, bias_X, bags_XV, match

    def __getitem__(self, rows: Sequence[int] | np.ndarray) -> CandidateFeatures:
        return CandidateFeatures(self.dense_XF[rows], self.bias_X[rows], self.bags_XV[rows], self.match)

    @staticmethod
    def concatenated(batches: Sequence[CandidateFeatures]) -> CandidateFeatures:
        """All names of these in one, in their order; 3 and 2 names give 5. All are of one model."""
        return CandidateFeatures(
            np.concatenate([batch.dense_XF for batch in batches]),
            np.concatenate([batch.bias_X for batch in batches]),
            vstack([batch.bags_XV for batch in batches], format="csr"),
            batches[0].match,
        )

    @classmethod
    def of_texts(
        cls, dense_XF: torch.Tensor, bias_X: torch.Tensor, *tokens: torch.Tensor, match: CopyHead | None
    ) -> CandidateFeatures:
        """tokens: numbers and weights [X, T], or nothing."""
        bags_XV = _bags(*tokens, match.numbers) if match else _empty(len(bias_X), 0)
        return cls(dense_XF.float().cpu().numpy(), bias_X.float().cpu().numpy(), bags_XV, match)

    def scores(self, queries: QueryFeatures) -> np.ndarray:
        """[Q, X] of queries and these names."""
        scores_QX = self._meaning(queries)
        if self.match:
            # Paths apart: of their million numbers few are ever met.
            for columns in (slice(self.match.first_path), slice(self.match.first_path, None)):
                self._add_copies(scores_QX, queries, columns)
        return scores_QX

    def parts(self, queries: QueryFeatures) -> np.ndarray:
        """[P, Q, X]: the addends of `scores`, in the order of `PARTS`; without tokens the first alone."""
        meaning_QX, kinds = self._meaning(queries), _kinds(self.match) if self.match else []
        parts_PQX = np.zeros((1 + len(kinds), *meaning_QX.shape), np.float32)
        parts_PQX[0] = meaning_QX
        for part, columns in enumerate(kinds, 1):
            self._add_copies(parts_PQX[part], queries, columns)
        return parts_PQX

    def _meaning(self, queries: QueryFeatures) -> np.ndarray:
        # BLAS adds up a row by itself in another order than rows of several: a score must not depend on what else is asked.
        dense_QF = queries.dense_QF if len(queries) > 1 else queries.dense_QF.repeat(2, axis=0)
        return (dense_QF @ self.dense_XF.T)[: len(queries)] + self.bias_X

    def _add_copies(self, scores_QX: np.ndarray, queries: QueryFeatures, columns: slice) -> None:
        """A dense factor is much faster than two sparse ones: a leaf may copy a lot."""
        copied_QV, bags_XV = queries.copied_QV[:, columns], self.bags_XV[:, columns]
        met = np.unique(bags_XV.indices)
        copied_QV, bags_XV = copied_QV[:, met], bags_XV[:, met]
        for first in range(0, len(scores_QX), ROWS_AT_ONCE):
            copied_Vq = np.ascontiguousarray(copied_QV[first : first + ROWS_AT_ONCE].toarray().T)
            scores_QX[first : first + ROWS_AT_ONCE] += (bags_XV @ copied_Vq).T


def _kinds(match: CopyHead) -> list[slice]:
    """Numbers of each kind of copies, in the order of `PARTS`."""
    ends = [field * match.vocab_size for field in range(FIELDS + 1)]
    ends += [match.first_path + field * PATHS for field in range(FIELDS + 1)]
    return [slice(*pair) for pair in pairwise(ends)]


def _largest(values_RV: csr_array, row_R: np.ndarray, rows: int) -> csr_array:
    """[rows, V]: of the lines with one number the largest value of each column; all values are positive."""
    found = values_RV.tocoo()
    place = row_R[found.row].astype(np.int64) * found.shape[1] + found.col
    order = np.argsort(place, kind="stable")
    first = np.flatnonzero(np.diff(place[order], prepend=-1))
    values, place = np.maximum.reduceat(found.data[order], first) if len(first) else found.data, place[order][first]
    return csr_array((values, np.divmod(place, found.shape[1])), shape=(rows, found.shape[1]))


def _empty(rows: int, numbers: int) -> csr_array:
    return csr_array((rows, numbers), dtype=np.float32)


def _bags(ids: torch.Tensor, weights: torch.Tensor, numbers: int) -> csr_array:
    """Sparse [n, V] of numbers [n, length] and their weights [..., length]; equal numbers add up."""
    ids, weights = ids.cpu().numpy(), weights.float().cpu().numpy()
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    found = csr_array((weights.ravel(), ids.ravel(), starts), shape=(len(ids), numbers))
    found.sum_duplicates()
    found.eliminate_zeros()
    return found
