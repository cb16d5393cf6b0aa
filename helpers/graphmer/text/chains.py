"""Training examples: documents packed into sequences of roots, triples as leaves, labels for every objective.

# B sequences · S roots · G leaves · L tokens of a leaf · M masked roots · C tokens of an entity's text · U wrong tails ·
# X = B·G in-batch tails
"""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from helpers.graphmer.graph.knowledge_graph import UNRESOLVED
from helpers.graphmer.text.masking import IGNORED, mask_leaves, mask_roots
from helpers.graphmer.text.negatives import KnownTails, NegativeSampler, NumberedTriple, Relations
from helpers.graphmer.text.tokenizer import MASK, PAD, identifier_tokens
from helpers.graphmer.text.windows import EncodedDocuments, Window, Windows

_OPEN = 64  # sequences that documents are packed into at a time


@dataclass(frozen=True)
class _Leaf:
    segment: int
    start: int
    length: int
    head: int
    relation: int
    tail: int
    true: bool


class LeafyChains(Windows, torch.utils.data.Dataset):
    """Sequences of a graph: number `index` of epoch `epoch` is the same whoever asks for it, and when.

    Every defined or external entity of `triples` is a document, shown in windows where its source is long; these are packed
    into sequences once, and an epoch is all of these in an order of its own, with leaves, masks and wrong tails of its own. A
    leaf hangs where the head's name begins: at the document's own name (the document's triples, and under the inverse relation
    those that it is the tail of), or at a definition that its text shows (that definition's triples). Of a document with
    several windows a triple is asked for in those that mention its tail, or else in the first; a window without any is left
    out. No pair of entities is in two leaves of a window, so that no leaf tells what a masked one hides.

    triples: to train on; a triple with an unresolved end is refused.
    encoded: documents of the graph, to share them between several of these; they say leaf_tokens L and entity_tokens C.
    relations: ids of both directions.
    roots, leaves: S, G.
    mask_prob: of the roots, whole identifiers at a time with `span_mask_identifiers`.
    leaf_mask_prob: of the true leaves, each with all its slots.
    positives, negatives: leaves of an anchor, at most, that are true, and that show a wrong tail.
    type_consistent_negatives, hard_negatives: wrong tails for each masked leaf; U is their sum, and without any their field is left out.
    pack: several windows a sequence; otherwise one.
    known: further true triples (of validation and test), never a wrong tail.
    seed: of everything drawn.

    What the numbers may be is checked in `configuration.py`. Raises ValueError for an unknown or unresolved entity, an
    unknown relation, more roots than the documents are encoded for, and where there is no triple.
    """

    def __init__(
        self,
        triples: Iterable[tuple[str, str, str]],
        encoded: EncodedDocuments,
        relations: Relations,
        *,
        roots: int,
        leaves: int,
        mask_prob: float = 0.15,
        span_mask_identifiers: bool = True,
        leaf_mask_prob: float = 0.2,
        positives: int = 2,
        negatives: int = 2,
        type_consistent_negatives: int = 2,
        hard_negatives: int = 2,
        pack: bool = True,
        known: Iterable[tuple[str, str, str]] = (),
        seed: int,
    ):
        super().__init__(encoded, relations, roots)
        self.leaves, self.seed, self._pack = leaves, seed, pack
        self.mask_prob, self.leaf_mask_prob = mask_prob, leaf_mask_prob
        self.positives, self.negatives = positives, negatives
        self.type_consistent_negatives, self.hard_negatives = type_consistent_negatives, hard_negatives
        self._identifiers_V = identifier_tokens(encoded.tokenizer) if span_mask_identifiers else None
        self._vocab_size = len(encoded.tokenizer)

        true = self._numbered(triples)
        self.known = KnownTails([*true, *self._numbered(known)], relations)
        self.sampler = NegativeSampler(encoded.entities, relations, self.known, encoded.leaf_ids_EL)
        self._leaves_of: dict[int, list[tuple[int, int]]] = defaultdict(list)  # forward (relation, tail) of a head
        self._inverse_of: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for head, relation, tail in true:
            self._leaves_of[head].append((relation, tail))
            if head != tail:
                self._inverse_of[tail].append((relations.inverse(relation), head))
        self._leaves_of, self._inverse_of = dict(self._leaves_of), dict(self._inverse_of)
        self._documents = sorted(self._leaves_of.keys() | self._inverse_of.keys())
        if not self._documents:
            raise ValueError("triples: there are none; give those of a split")
        self._set_roots(roots)

    # ---- what there is

    def __len__(self) -> int:
        """Sequences of an epoch."""
        return len(self._sequences)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """`example` of epoch 0; an index behind its end goes on in the next ones."""
        if index < 0:
            raise IndexError(index)
        return self.example(*divmod(index, len(self)))

    def with_roots(self, roots: int) -> LeafyChains:
        """The same data in sequences of another length; nothing is read or encoded again."""
        other = copy.copy(self)
        other._set_roots(roots)
        return other

    def fill(self) -> tuple[float, float]:
        """Shares of the roots that are no padding, and of the leaves that documents' own names may take."""
        roots = sum(len(self._shown(one)[0]) for row in self._sequences for one in row)
        leaves = sum(self._need(one) for row in self._sequences for one in row)
        return roots / (len(self) * self.roots), leaves / (len(self) * self.leaves)

    # ---- one example

    def example(self, epoch: int, index: int) -> dict[str, np.ndarray]:
        """Tensors of one sequence, without the batch axis and `known_BGX`."""
        draw = random.Random(f"{self.seed} {self.roots} {epoch} {index}")
        generator = np.random.default_rng(draw.getrandbits(64))
        row = self._sequences[self._order(epoch)[index]]
        made, begins = self._roots(row)
        leaves = self._choose(row, begins, draw)
        draw.shuffle(leaves)  # that true ones come first would tell which are
        made |= self._leaf_tensors(leaves, draw)
        made["root_ids"], made["mlm_positions"], made["mlm_labels"] = mask_roots(
            made["root_ids"],
            made["root_segments"],
            mask_prob=self.mask_prob,
            identifiers_V=self._identifiers_V,
            vocab_size=self._vocab_size,
            generator=generator,
        )
        return made

    # ---- packing

    def _set_roots(self, roots: int) -> None:
        super()._set_roots(roots)
        self._there = self._triples_of_windows()
        self._sequences = self._packed() if self._pack else [[window] for window in self._there]
        self._ordered: tuple[int, np.ndarray] | None = None

    def _triples_of_windows(self) -> dict[Window, list[tuple[int, int]]]:
        """(relation, tail) to be asked for at the own name of each window; of one that is shown whole, all."""
        found: dict[Window, list[tuple[int, int]]] = {}
        for number in self._documents:
            forward, inverse = self._leaves_of.get(number, []), self._inverse_of.get(number, [])
            if self.encoded.count(number, self.roots) == 1:
                found[number, 0] = forward + inverse
                continue
            windows: dict[int, list[tuple[int, int]]] = defaultdict(list)
            for relation, tail in forward:
                for window in self.encoded.mentions(number, tail, self.roots) or [0]:
                    windows[window].append((relation, tail))
            windows[0] += inverse
            found |= {(number, window): leaves for window, leaves in sorted(windows.items()) if leaves}
        return found

    def _packed(self) -> list[list[Window]]:
        """Windows in a drawn order, each into the open sequence that it fills best: its roots, and own leaves, fit."""
        order = list(self._there)
        random.Random(f"{self.seed} {self.roots} packing").shuffle(order)
        sequences: list[list[Window]] = []
        open_rooms: list[list] = []  # roots left, leaves left, sequence
        for window in order:
            length, need = len(self._shown(window)[0]), self._need(window)
            best = min((room for room in open_rooms if room[0] >= length and room[1] >= need), default=None, key=_first)
            if best is None:
                best = [self.roots, self.leaves, []]
                sequences.append(best[2])
                open_rooms.append(best)
                if len(open_rooms) > _OPEN:
                    # the one with the least use for what is to come, by what it is short of
                    fullest = min(open_rooms, key=lambda room: min(room[0] * self.leaves, room[1] * self.roots))
                    open_rooms.remove(fullest)
            best[0] -= length
            best[1] -= need
            best[2].append(window)
        return sequences

    def _need(self, window: Window) -> int:
        """Leaves at the document's own name."""
        return min(len(self._there[window]), self.positives) + self.negatives

    def _order(self, epoch: int) -> np.ndarray:
        if self._ordered is None or self._ordered[0] != epoch:
            order = np.random.default_rng([self.seed, epoch]).permutation(len(self))
            self._ordered = (epoch, order)
        return self._ordered[1]

    # ---- roots and leaves

    def _choose(self, windows: Sequence[Window], begins: Sequence[int], draw: random.Random) -> list[_Leaf]:
        """Leaves of own names first, as packing made room for them, then of definitions while there is room."""
        own, inner = [], []
        for segment, (window, begin) in enumerate(zip(windows, begins, strict=True), 1):
            (_, start, length), *others = self.encoded.anchors(window[0]).tolist()
            pairs: set[tuple[int, int]] = set()
            own.append((segment, begin, (window[0], start, length), pairs))
            tokens, shift = self._shown(window)
            first = self.encoded.name_length(window[0]) if shift else 0
            inner += [
                (segment, begin, (number, start - shift, length), pairs)
                for number, start, length in others
                if number in self._leaves_of and first <= start - shift < len(tokens)
            ]
        draw.shuffle(own)
        draw.shuffle(inner)
        leaves: list[_Leaf] = []
        room = self.leaves
        for anchors, is_own in ((own, True), (inner, False)):
            for segment, begin, (number, start, length), pairs in anchors:
                if room <= 0:
                    return leaves
                place = (segment, *self._place(windows[segment - 1], begin, start, length))
                there = self._there[windows[segment - 1]] if is_own else self._leaves_of[number]
                found = self._at(number, place, there, pairs, draw)
                leaves += found[:room]
                room -= len(found)
        return leaves

    def _at(
        self, number: int, place: tuple[int, int, int], there: list, pairs: set, draw: random.Random
    ) -> list[_Leaf]:
        """True leaves of one anchor, then wrong ones for some of the same heads and relations."""
        true, tried = [], min(len(there), self.positives + 4)  # some pairs are in the document already
        for relation, tail in (there[one] for one in draw.sample(range(len(there)), tried)):
            pair = (number, tail) if number < tail else (tail, number)
            if pair not in pairs:
                pairs.add(pair)
                true.append(_Leaf(*place, number, relation, tail, True))
                if len(true) == self.positives:
                    break
        wrong = []
        for _ in range(self.negatives if true else 0):
            leaf = true[int(draw.random() * len(true))]
            kind = self.sampler.hard if draw.random() < 0.5 else self.sampler.type_consistent
            tail = kind(draw, number, leaf.relation, leaf.tail)
            if tail is not None:
                wrong.append(_Leaf(*place, number, leaf.relation, tail, False))
        return true + wrong

    def _leaf_tensors(self, leaves: list[_Leaf], draw: random.Random) -> dict[str, np.ndarray]:
        G, L, C = self.leaves, self.leaf_tokens, self.encoded.text_ids_EC.shape[1]
        U = self.type_consistent_negatives + self.hard_negatives
        n = len(leaves)
        made = {name: np.zeros(G, np.int64) for name in ("leaf_segments", "relation_ids", "head_start", "head_length")}
        for name, field in zip(made, ("segment", "relation", "start", "length"), strict=True):
            made[name][:n] = [getattr(leaf, field) for leaf in leaves]
        heads = np.array([leaf.head for leaf in leaves], np.int64)
        tails = np.array([leaf.tail for leaf in leaves], np.int64)
        true = np.array([leaf.true for leaf in leaves], bool)
        places = np.flatnonzero(true)
        masked = places[sorted(mask_leaves(len(places), self.leaf_mask_prob, draw))]

        shown = np.full((G, L), PAD, np.int64)
        shown[:n] = self.encoded.leaf_ids_EL[tails]
        labels = np.full((G, L), IGNORED, np.int64)
        labels[masked] = np.where(shown[masked] == PAD, IGNORED, shown[masked])
        shown[masked] = MASK
        classified = np.full(G, IGNORED, np.float32)
        classified[:n] = true
        classified[masked] = IGNORED
        made |= {"leaf_ids": shown, "mnm_labels": labels, "triple_labels": classified}

        made |= {name: np.full(G, -1, np.int64) for name in ("tail_entities", "head_entities")}
        made |= {name: np.full((G, C), PAD, np.int64) for name in ("tail_text_ids", "head_text_ids")}
        for name, numbers in (("tail", tails[places]), ("head", heads[places])):
            made[f"{name}_entities"][places] = numbers
            made[f"{name}_text_ids"][places] = self.encoded.text_ids_EC[numbers]
        if not U:  # none to encode
            return made
        wrong_texts = np.full((G, U, C), PAD, np.int64)
        for place in masked.tolist():
            leaf = leaves[place]
            for u in range(U):
                kind = self.sampler.type_consistent if u < self.type_consistent_negatives else self.sampler.hard
                tail = kind(draw, leaf.head, leaf.relation, leaf.tail)
                if tail is not None:
                    wrong_texts[place, u] = self.encoded.text_ids_EC[tail]
        return made | {"negative_text_ids": wrong_texts}

    def _numbered(self, triples: Iterable[tuple[str, str, str]]) -> list[NumberedTriple]:
        """Triples in numbers, each in the direction of the ontology's table, sorted, none twice."""
        number, relations, found = self.encoded.number, self.relations, set()
        for head, relation, tail in triples:
            for end in (head, tail):
                if end not in number:
                    raise ValueError(f"triples: {end!r} is no entity of the graph")
                if self.encoded.entities[number[end]].status == UNRESOLVED:
                    raise ValueError(
                        f"triples: {end!r} ({relation}) is unresolved; give those of `graph.resolved()` or of a split"
                    )
            one = relations.id(relation)
            if one <= relations.forward:
                found.add((number[head], one, number[tail]))
            else:
                found.add((number[tail], relations.inverse(one), number[head]))
        return sorted(found)


def _first(room: list) -> int:
    return room[0]
