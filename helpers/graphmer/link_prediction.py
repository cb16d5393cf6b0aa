"""Scores of triples by a trained model: what a masked leaf at one end asks for against the name of the other, from both ends.

predictor = LinkPredictor(model, chains)
ranking.evaluate(predictor, splits, graph, ontology)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from scipy.sparse import csr_array, vstack

from helpers.cpu_copy import cpu_copy
from helpers.graphmer.collation import LeafyChains
from helpers.graphmer.model import GraphMERForPreTraining

# Q queries · X candidates · F dense features (entity embedding and expected tokens) · V vocabulary · C tokens of a text

ROOT_FIELDS = ("root_ids", "root_segments", "root_positions")


class Asked:
    """What leaves ask for: dense_QF float16 and the tokens that they copy, sparse [Q, V]."""

    def __init__(self, dense_QF: np.ndarray, copied_QV: csr_array):
        self.dense_QF, self.copied_QV = dense_QF, copied_QV


class LinkPredictor:
    """`ranking.Scorer` of a model. On XLA a copy of the model on the CPU asks.

    s(h, r, t) = what the leaf of r at h's document asks for against t's name + the same of r's inverse at t's against h's.
    A leaf sees source code and a name does not, so that each direction knows what the other cannot.

    chains: of the tokenizer, relations and sizes that the model was trained with.
    both_ends: False scores by the given end alone.
    batch_size: documents of one forward pass.
    """

    def __init__(
        self,
        model: GraphMERForPreTraining,
        chains: LeafyChains,
        *,
        both_ends: bool = True,
        batch_size: int = 64,
    ):
        self.model = (cpu_copy(model) if model.device.type == "xla" else model).eval()
        self.chains, self.both_ends, self.batch_size = chains, both_ends, batch_size
        self.number = chains.encoded.number
        self._names: tuple[np.ndarray, np.ndarray, csr_array] | None = None
        self._asked: dict[int, Asked] = {}  # by relation: of all candidates of a call so far
        self._row: dict[int, dict[int, int]] = {}  # by relation: entity -> its row there

    def tails(self, heads: list[str], relation: str, candidates: list[str]) -> np.ndarray:
        """[Q, X] of (head, relation, candidate)."""
        return self._scores(heads, self.chains.relations.id(relation), candidates)

    def heads(self, tails: list[str], relation: str, candidates: list[str]) -> np.ndarray:
        """[Q, X] of (candidate, relation, tail)."""
        return self._scores(tails, self.chains.relations.inverse(self.chains.relations.id(relation)), candidates)

    def _scores(self, given: list[str], relation: int, candidates: list[str]) -> np.ndarray:
        scores_QX = self._against(self.asked(given, relation), candidates)
        if self.both_ends:
            scores_QX += self._against(
                self._of_candidates(candidates, self.chains.relations.inverse(relation)), given
            ).T
        return scores_QX

    def _of_candidates(self, candidates: list[str], relation: int) -> Asked:
        """`asked`, remembered: candidates are most of the work, and the same ones come again."""
        row = self._row.setdefault(relation, {})
        numbers = [self.number[name] for name in candidates]
        new = [name for name, number in zip(candidates, numbers, strict=True) if number not in row]
        if new:
            found = self.asked(new, relation)
            if row:
                before = self._asked[relation]
                dense_QF = np.concatenate((before.dense_QF, found.dense_QF))
                found = Asked(dense_QF, vstack((before.copied_QV, found.copied_QV), format="csr"))
            self._asked[relation] = found
            row |= {self.number[name]: len(row) + place for place, name in enumerate(new)}
        rows = [row[number] for number in numbers]
        return Asked(self._asked[relation].dense_QF[rows], self._asked[relation].copied_QV[rows])

    def _against(self, asked: Asked, names: Sequence[str]) -> np.ndarray:
        dense_XF, bias_X, bags_XV = self._all_names()
        numbers = [self.number[name] for name in names]
        scores_QX = asked.dense_QF.astype(np.float32) @ dense_XF[numbers].astype(np.float32).T + bias_X[numbers]
        return scores_QX + (asked.copied_QV @ bags_XV[numbers].T.tocsr()).toarray()

    @torch.no_grad()
    def asked(self, given: Sequence[str], relation: int) -> Asked:
        """Of a masked leaf of `relation` at each document's own name; documents of like length go together."""
        lengths = np.array([min(self.chains.encoded.length(self.number[name]), self.chains.roots) for name in given])
        order = np.argsort(lengths, kind="stable")
        dense, copied = [], []
        for first in range(0, len(order), self.batch_size):
            places = order[first : first + self.batch_size]
            batch = self.chains.queries([given[place] for place in places], [relation])
            longest = max(2, int(lengths[places].max()))
            batch |= {name: batch[name][:, :longest] for name in ROOT_FIELDS}
            dense_F, tokens = self.model.asked(**{name: value.to(self.model.device) for name, value in batch.items()})
            dense.append(dense_F.squeeze(1).half().cpu().numpy())
            copied.append(_rows(batch["root_ids"], None if tokens is None else tokens.squeeze(1), self._vocabulary))
        back = np.argsort(order, kind="stable")
        return Asked(np.concatenate(dense)[back], vstack(copied, format="csr")[back])

    @torch.no_grad()
    def _all_names(self) -> tuple[np.ndarray, np.ndarray, csr_array]:
        """Of every entity: dense [X, F] float16, bias [X], bag of tokens [X, V]."""
        if self._names is None:
            texts_XC = torch.from_numpy(self.chains.encoded.text_ids_EC.astype(np.int64))
            lengths = (texts_XC != self.model.config.pad_token_id).sum(1)
            order = torch.argsort(lengths, stable=True)
            dense, bias, bags = [], [], []
            for first in range(0, len(order), 8 * self.batch_size):
                places = order[first : first + 8 * self.batch_size]
                ids_XC = texts_XC[places, : max(1, int(lengths[places].max()))]
                dense_F, bias_X, weights_XC = self.model.offered(ids_XC.to(self.model.device))
                dense.append(dense_F.half().cpu().numpy())
                bias.append(bias_X.float().cpu().numpy())
                bags.append(_rows(ids_XC, weights_XC, self._vocabulary))
            back = np.argsort(order.numpy(), kind="stable")
            self._names = (
                np.concatenate(dense)[back],
                np.concatenate(bias)[back],
                vstack(bags, format="csr")[back],
            )
        return self._names

    @property
    def _vocabulary(self) -> int:
        return self.model.config.vocab_size


def _rows(ids: torch.Tensor, weights: torch.Tensor | None, vocabulary: int) -> csr_array:
    """Sparse [n, V] of tokens and their weights [n, length]; equal tokens add up. Empty without weights."""
    if weights is None:
        return csr_array((len(ids), vocabulary), dtype=np.float32)
    ids, weights = ids.cpu().numpy(), weights.float().cpu().numpy()
    starts = np.arange(0, ids.size + 1, ids.shape[1])
    found = csr_array((weights.ravel(), ids.ravel(), starts), shape=(len(ids), vocabulary))
    found.sum_duplicates()
    found.eliminate_zeros()
    return found
