"""Scores of triples by a trained model: what masked leaves ask for at the documents of both ends.

scorers = LinkPredictor(model, chains).ends()
scorer = ScoreFusion.fitted(scorers, splits, graph, ontology)  # weighed on validation
ranking.evaluate(scorer, splits, graph, ontology)

A leaf sees the source of its document and a name does not: who calls `f` is answered by the code of each caller, not by f's.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial, reduce
from itertools import pairwise

import numpy as np
import torch
from scipy.sparse import csr_array, vstack
from scipy.special import logsumexp
from torch import nn

from helpers.graphmer.graph.ontology import UNKNOWN
from helpers.graphmer.links.ranking import TAIL, Scorer
from helpers.graphmer.modeling_graphmer.copy_head import FIELDS, PATHS, CopyHead
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.windows import Windows
from helpers.machine.engine import cpu_copy

# Q queries · X candidates · N of one or the other · F dense features (entity embedding, expected tokens, and what is added for
# each name, which a query has a 1 for) · V numbers of tokens, pairs and paths · C tokens of a text · G leaves and W windows of a
# document · T of its numbers that a leaf copies · P parts of a score

PARTS = ("meaning", "own name", "owner", "rest", "pairs", "path", "path of the owner", "path above")
ROOT_FIELDS = ("root_ids", "root_segments", "root_positions")
MOST_ANSWERS = 2**13  # names that stand for all that a leaf could ask for
SCORES_AT_ONCE = 2**21  # each of all parts
NAMES_AT_ONCE = 2**9
ROWS_AT_ONCE = 2**10


class LinkPredictor:
    """What the masked leaf of a relation asks for at a document, against each name; `ends` are scorers of both ends of a triple.

    A document is read once, with a masked leaf of each relation that its type may have, and what they ask for is remembered: of
    a long one in windows; of what these copy the most counts, and their features are averaged.
    On XLA a copy of the model on the CPU asks.

    chains: of the tokenizer, relations and sizes that the model was trained with.
    batch_size: documents of one forward pass; 0 is 64 on a GPU. On a CPU it is 1, at a fifth more time: what shares a batch with
        a document changes the last bits of its sums, and then scores would depend on what was asked before.
    """

    def __init__(self, model: GraphMERForPreTraining, chains: Windows, *, batch_size: int = 0):
        self.model = (cpu_copy(model) if model.device.type == "xla" else model).eval()
        self.chains, self.relations = chains, chains.relations
        self.batch_size = batch_size or (1 if self.model.device.type == "cpu" else 64)
        self._number = chains.encoded.number
        self._entities: Features | None = None
        self._queries: dict[int, dict[str, Features]] = defaultdict(dict)  # by relation id: entity -> a row
        self._totals: dict[int, dict[str, float]] = defaultdict(dict)
        self._last: tuple[list[str], int, list[str], np.ndarray] | None = None

    def ends(self) -> dict[str, Scorer]:
        """Scorers for a score fusion: of each part at each end, by names such as "given end: path" and "other end: total"."""
        parts, inverse = PARTS if self.model.token_match is not None else PARTS[:1], self.relations.inverse

        def of_given(relation: str, direction: str) -> int:
            """The relation that a leaf of what is given asks for."""
            number = self.relations.id(relation)
            return number if direction == TAIL else inverse(number)

        def at_given(part: int, given: list[str], relation: str, names: list[str], direction: str) -> np.ndarray:
            return self.parts(given, of_given(relation, direction), names)[part]

        def at_other(part: int, given: list[str], relation: str, names: list[str], direction: str) -> np.ndarray:
            """What the candidates' own documents say of what is given."""
            return self.parts(names, inverse(of_given(relation, direction)), given)[part].T

        def total(given: list[str], relation: str, names: list[str], direction: str) -> np.ndarray:
            totals_X = self.totals(names, inverse(of_given(relation, direction)))
            return np.broadcast_to(-totals_X, (len(given), len(names)))

        return {
            **{f"given end: {name}": partial(at_given, place) for place, name in enumerate(parts)},
            **{f"other end: {name}": partial(at_other, place) for place, name in enumerate(parts)},
            "other end: total": total,
        }

    # ---- queries

    def query_features(self, names: Sequence[str], relation: int) -> Features:
        """Of a masked leaf of `relation` at each document's own name."""
        known = self._queries[relation]
        self._read([name for name in dict.fromkeys(names) if name not in known], relation)
        return Features.concatenated([known[name] for name in names])

    @torch.no_grad()
    def _read(self, names: Sequence[str], relation: int) -> None:
        """Documents with as many leaves and of like length go together."""
        encoded, number = self.chains.encoded, self._number
        wanted = {}
        # Leaves of one document see each other: the same ones stand together whatever is asked first.
        for name in names:
            usual = self.relations.of_head(encoded.entities[number[name]].type)
            wanted[name] = usual if relation in usual else [relation]
        length = {name: min(encoded.length(number[name]), self.chains.roots) for name in names}
        windows = {name: self.chains.window_count(name) for name in names}
        names = sorted(names, key=lambda name: (len(wanted[name]), length[name]))
        for part in _parts(names, windows, self.batch_size):
            rows = [(name, window) for name in part for window in range(windows[name])]
            batch = self.chains.queries(
                [name for name, _ in rows],
                [wanted[name] for name, _ in rows],
                windows=[window for _, window in rows],
            )
            longest = max(2, *(length[name] for name in part))
            batch |= {name: batch[name][:, :longest] for name in ROOT_FIELDS}
            found = self.model.query_features(**{name: value.to(self.model.device) for name, value in batch.items()})
            of_documents = [each.cpu().split([windows[name] for name in part]) for each in found]
            for name, dense_WGF, *copies in zip(part, *of_documents, strict=True):
                queries = Features.of_document(dense_WGF, copies, self._numbers)
                for leaf, one in enumerate(wanted[name]):
                    self._queries[one].setdefault(name, queries[[leaf]])

    def totals(self, names: Sequence[str], relation: int) -> np.ndarray:
        """log of the sum of exp(score) over all names that the relation's range admits, float32 [Q].

        It says how much a document asks for anything. Of more than `MOST_ANSWERS` names it is that of as many, drawn.
        """
        known = self._totals[relation]
        if new := [name for name in dict.fromkeys(names) if name not in known]:
            answers, scale = self._answers(relation)
            offered, queries = self._entity_features(answers), self.query_features(new, relation)
            rows = max(1, SCORES_AT_ONCE // len(answers))
            for first in range(0, len(new), rows):
                part = new[first : first + rows]
                scores_QX = score_parts(queries[first : first + rows], offered, self.model.token_match).sum(0)
                known |= zip(part, (logsumexp(scores_QX, axis=1) + scale).tolist(), strict=True)
        return np.array([known[name] for name in names], np.float32)

    def _answers(self, relation: int) -> tuple[list[str], float]:
        """Names that a leaf of the relation may mean, and log of how many each of them stands for."""
        types = {*self.relations.tail_types(relation), UNKNOWN}
        names = [entity.id for entity in self.chains.encoded.entities if entity.type in types]
        if len(names) <= MOST_ANSWERS:
            return names, 0.0
        drawn = np.random.default_rng(relation).choice(len(names), MOST_ANSWERS, replace=False)
        return [names[place] for place in np.sort(drawn)], float(np.log(len(names) / MOST_ANSWERS))

    # ---- entities

    def parts(self, askers: list[str], relation: int, names: list[str]) -> np.ndarray:
        """[P, Q, X]: the addends of a score, in the order of `PARTS`; the last are kept, as a fusion asks for one after the other."""
        last = self._last
        if last is None or last[0] is not askers or last[1] != relation or last[2] is not names:
            queries, offered = self.query_features(askers, relation), self._entity_features(names)
            found = score_parts(queries, offered, self.model.token_match)
            self._last = last = (askers, relation, names, found)
        return last[3]

    @torch.no_grad()
    def _entity_features(self, names: Sequence[str]) -> Features:
        """Features of these names; all entities' are computed at the first call."""
        if self._entities is None:
            texts_XC = torch.from_numpy(self.chains.encoded.text_ids_EC.astype(np.int64))
            lengths = (texts_XC != self.model.config.pad_token_id).sum(1)
            order, found = torch.argsort(lengths, stable=True), []
            for first in range(0, len(order), NAMES_AT_ONCE):
                places = order[first : first + NAMES_AT_ONCE]
                ids_XC = texts_XC[places, : max(1, int(lengths[places].max()))]
                features = self.model.entity_features(ids_XC.to(self.model.device))
                found.append(Features.of_texts(*features, numbers=self._numbers))
            self._entities = Features.concatenated(found)[np.argsort(order.numpy(), kind="stable")]
        return self._entities[[self._number[name] for name in names]]

    @property
    def _numbers(self) -> int:
        return 0 if self.model.token_match is None else self.model.token_match.numbers


def _parts(names: Sequence[str], windows: dict[str, int], most: int) -> Iterator[list[str]]:
    """Neighbours of at most so many windows together, or one."""
    part, rows = [], 0
    for name in names:
        if part and rows + windows[name] > most:
            yield part
            part, rows = [], 0
        part.append(name)
        rows += windows[name]
    if part:
        yield part


# ---- features


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
