"""Features of masked leaves and of names in whole corpora, and the parts of the score of one against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from torch import nn

from helpers.graphmer.modeling_graphmer.copy_head import FIELDS, PATHS, CopyHead

# Q queries · X candidates · N of one or the other · F dense features (entity embedding, expected tokens, and what is added for
# each name, which a query has a 1 for) · V numbers of tokens, pairs and paths · G leaves and
# W windows of a document · T of its numbers that a leaf copies · P parts

PARTS = ("meaning", "own name", "owner", "rest", "pairs", "path", "path of the owner", "path above")
ROWS_AT_ONCE = 2**10


@dataclass(frozen=True)
class Features:
    """Of masked leaves with what they copy, or of names with what they offer to be copied: float32 dense_NF, sparse copies_NV.

    Half precision would save little beside the copies, and make 1e-3 of a difference in the last bit.
    """

    dense_NF: np.ndarray
    copies_NV: csr_array

    def __len__(self) -> int:
        return len(self.dense_NF)

    def __getitem__(self, rows: Sequence[int] | np.ndarray | slice) -> Features:
        return Features(self.dense_NF[rows], self.copies_NV[rows])

    @staticmethod
    def concatenated(batches: Sequence[Features]) -> Features:
        """All rows of these in one, in their order; 3 and 2 give 5."""
        return Features(
            np.concatenate([batch.dense_NF for batch in batches]),
            vstack([batch.copies_NV for batch in batches], format="csr"),
        )

    @classmethod
    def of_document(cls, dense_WGF: torch.Tensor, copies: Sequence[torch.Tensor], numbers: int) -> Features:
        """A row for each leaf of one document, from its windows: features are averaged, of copies the most counts.

        copies: numbers [W, T] and weights [W, G, T], or nothing.
        """
        G = dense_WGF.shape[1]
        dense = nn.functional.pad(dense_WGF.float(), (0, 1), value=1.0).mean(0).numpy()
        windows = [_bags((ids.expand(G, -1), weights), G, numbers) for ids, weights in zip(*copies, strict=True)]
        return cls(dense, reduce(csr_array.maximum, windows or [_bags((), G, numbers)]))

    @classmethod
    def of_texts(cls, dense_XF: torch.Tensor, bias_X: torch.Tensor, *tokens: torch.Tensor, numbers: int) -> Features:
        """tokens: numbers and weights [X, T], or nothing."""
        dense = torch.cat((dense_XF, bias_X[:, None]), dim=1).float().cpu().numpy()
        return cls(dense, _bags(tokens, len(dense), numbers))


def score_parts(queries: Features, names: Features, match: CopyHead | None) -> np.ndarray:
    """[P, Q, X]: the addends of scores, in the order of `PARTS`.

    match: whose numbers the copies are; without it the first part alone.
    """
    kinds = _kinds(match) if match else []
    parts_PQX = np.zeros((1 + len(kinds), len(queries), len(names)), np.float32)
    # BLAS adds up a row by itself in another order than rows of several: a score must not depend on what else is asked.
    dense_QF = queries.dense_NF if len(queries) > 1 else queries.dense_NF.repeat(2, axis=0)
    parts_PQX[0] = (dense_QF @ names.dense_NF.T)[: len(queries)]
    for scores_QX, columns in zip(parts_PQX[1:], kinds, strict=True):
        _add_copies(scores_QX, queries.copies_NV[:, columns], names.copies_NV[:, columns])
    return parts_PQX


def _add_copies(scores_QX: np.ndarray, copied_QV: csr_array, bags_XV: csr_array) -> None:
    """A dense factor is much faster than two sparse ones: a leaf may copy a lot."""
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


def _bags(tokens: Sequence[torch.Tensor], rows: int, numbers: int) -> csr_array:
    """Sparse [rows, V] of numbers [rows, length] and their weights [..., length], empty without; equal numbers add up."""
    if not tokens:
        return csr_array((rows, numbers), dtype=np.float32)
    ids, weights = tokens[0].cpu().numpy(), tokens[1].float().cpu().numpy()
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    found = csr_array((weights.ravel(), ids.ravel(), starts), shape=(rows, numbers))
    found.sum_duplicates()
    found.eliminate_zeros()
    return found
