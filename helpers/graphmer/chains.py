"""Leafy chains: documents packed into sequences of roots, triples as leaves, and what is hidden of both.

# B sequences · S roots · G leaves · L tokens of a leaf · M masked roots · C tokens of an entity's text · U wrong tails ·
# X = B G in-batch tails · V vocabulary · E entities
"""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset

from .graph.knowledge_graph import UNRESOLVED, Relation
from .text import (
    LONGEST_TOKEN,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    Documents,
    encodings,
    entity_text,
    identifier_tokens,
    leaf_text,
    shown_name,
)

if TYPE_CHECKING:
    from .configuration import Configuration

IGNORED = -100  # label where nothing is asked for
MASKED, REPLACED = 0.8, 0.1  # of what is chosen; the rest stays as it is (BERT)
HEAD_TOKENS = 8  # of a head's name that a leaf looks at
OPEN = 64  # sequences that documents are packed into at a time
TRIES = 12  # draws after which there counts as being no wrong tail of a kind
CHUNK = 2000  # documents that are encoded at a time


# ---- relations and wrong tails


class Relations:
    """Ids of an ontology's relations from 1, and of their inverses after them; 0 is none.

    names: by id; an inverse without a name of its own is `inverse calls`. properties: what a `GraphMERConfig` says about relations;
    an inverse forbids what its relation does.
    """

    def __init__(self, ontology: dict[str, Relation]):
        forward = [*ontology.values()]
        self.forward, both = len(forward), [*enumerate([*forward, *forward], 1)]
        self.names = ("", *ontology, *(one.inverse or f"inverse {one.name}" for one in forward))
        self.tail_types = (frozenset(), *(one.range for one in forward), *(one.domain for one in forward))
        self.properties = {
            "num_relations": len(both),
            "antisymmetric_relations": [number for number, one in both if one.antisymmetric],
            "acyclic_relations": [number for number, one in both if one.acyclic],
        }

    def id(self, name: str) -> int:
        return self.names.index(name)

    def inverse(self, relation: int) -> int:
        return (relation + self.forward - 1) % (2 * self.forward) + 1


class NegativeSampler:
    """Draws tails of a type that the relation admits; never one that is known to be true, or whose leaf reads like a true one's.

    known: the true tails of (head, relation), all as numbers.
    """

    def __init__(self, encoded: EncodedDocuments, relations: Relations, known: dict[tuple[int, int], set[int]]):
        self._entities, self._known, self._types = encoded.entities, known, relations.tail_types
        # The same number for all entities whose leaves have the same tokens.
        self._look = np.unique(encoded.leaf_ids_EL, axis=0, return_inverse=True)[1].reshape(-1).tolist()
        of_type, self._of_module = defaultdict(list), defaultdict(list)
        for number, entity in enumerate(self._entities):
            if entity.status != UNRESOLVED:
                of_type[entity.type].append(number)
                self._of_module[entity.module].append(number)
        self._admitted = {types: [n for name in sorted(types) for n in of_type[name]] for types in self._types}

    def type_consistent(self, draw: random.Random, head: int, relation: int, tail: int) -> int | None:
        """Any entity of a type that the relation admits; None where there is none."""
        return self._draw(draw, self._admitted[self._types[relation]], head, relation, tail)

    def hard(self, draw: random.Random, head: int, relation: int, tail: int) -> int | None:
        """One of the tail's module; where there is none, any."""
        wrong = self._draw(draw, self._of_module[self._entities[tail].module], head, relation, tail)
        return self.type_consistent(draw, head, relation, tail) if wrong is None else wrong

    def _draw(self, draw: random.Random, pool: list[int], head: int, relation: int, tail: int) -> int | None:
        right = {self._look[number] for number in (tail, *self._known.get((head, relation), ()))}
        for _ in range(TRIES if pool else 0):
            wrong = draw.choice(pool)
            if self._look[wrong] not in right and self._entities[wrong].type in self._types[relation]:
                return wrong
        return None


# ---- masks


def mask_slots(roots: int, mask_prob: float) -> int:
    """M: room for the roots that are masked in a sequence of `roots`."""
    return max(1, math.ceil(round(roots * mask_prob, 6)))


def mask_roots(
    ids_S: np.ndarray,
    segments_S: np.ndarray,
    *,
    mask_prob: float,
    identifiers_V: np.ndarray | None,
    vocab_size: int,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """root_ids with `mask_prob` of the roots hidden [S], mlm_positions and mlm_labels of those [M]; unused ones have the label -100.

    Spans are drawn until the share is reached to the token; one that does not fit any more is passed over. Of the spans 80 % become
    [MASK], 10 % other tokens, 10 % stay. Padding (segment 0) is never chosen.

    identifiers_V: which tokens are part of identifiers, whose tokens are hidden together; None: each token is a span.
    """
    slots = mask_slots(len(ids_S), mask_prob)
    hidden_S, places_M, labels_M = ids_S.copy(), np.zeros(slots, np.int64), np.full(slots, IGNORED, np.int64)
    used = int(np.count_nonzero(segments_S))
    missing = int(used * mask_prob + generator.random())
    begins_S = np.ones(used, dtype=bool)
    if identifiers_V is not None:
        inside_S = identifiers_V[ids_S[:used]]
        begins_S[1:] = ~(inside_S[1:] & inside_S[:-1]) | (segments_S[1:used] != segments_S[: used - 1])
    span_S = np.cumsum(begins_S) - 1
    lengths = np.bincount(span_S)
    fate_of = np.full(len(lengths), 2.0)  # of a span: hidden below 0.8, replaced below 0.9, kept below 1, not chosen
    for span in generator.permutation(len(lengths)):
        if lengths[span] <= missing:
            missing -= int(lengths[span])
            fate_of[span] = generator.random()
        if not missing:
            break
    fate_S = fate_of[span_S]
    places = np.flatnonzero(fate_S < 1)
    places_M[: len(places)], labels_M[: len(places)] = places, ids_S[places]
    hidden_S[np.flatnonzero(fate_S < MASKED)] = MASK
    replaced = np.flatnonzero((fate_S >= MASKED) & (fate_S < MASKED + REPLACED))
    hidden_S[replaced] = generator.integers(len(SPECIAL_TOKENS), vocab_size, len(replaced))
    return {"root_ids": hidden_S, "mlm_positions": places_M, "mlm_labels": labels_M}


# ---- documents as tokens


class EncodedDocuments:
    """Tokens of every document and name of a graph, up to `roots` a document; made once for all lengths up to that.

    entities: in the order of the graph; their place there is their number
    leaf_ids_EL: the name as a leaf, [SEP] behind it where there is room, then [PAD]
    text_ids_EC: type and name; of one that is too long the end, where its own name is
    documents: token ids of each · anchors: (first token, tokens) of the end of each document's own name, where its leaves hang
    """

    def __init__(self, documents: Documents, tokenizer, *, roots: int, leaf_tokens: int, entity_tokens: int):
        self.tokenizer, self.roots = tokenizer, roots
        self.entities = list(documents.graph.entities.values())
        self.number = {entity.id: number for number, entity in enumerate(self.entities)}
        leaves = encodings(tokenizer, map(leaf_text, self.entities))
        self.leaf_ids_EL = _pad([[*leaf.ids, SEP][:leaf_tokens] for leaf in leaves], leaf_tokens)
        texts = encodings(tokenizer, map(entity_text, self.entities))
        self.text_ids_EC = _pad([text.ids[-entity_tokens:] for text in texts], entity_tokens)
        self.documents: list[np.ndarray] = []
        self.anchors: list[tuple[int, int]] = []
        characters = (roots + 16) * LONGEST_TOKEN  # at least so many tokens, where the source has them
        for start in range(0, len(self.entities), CHUNK):
            names = [entity.id for entity in self.entities[start : start + CHUNK]]
            texts = [documents.text(name)[:characters] for name in names]
            for name, tokens in zip(names, encodings(tokenizer, texts), strict=True):
                ids = tokens.ids[:roots]
                end = tokens.char_to_token(len(shown_name(name)))  # the end of its line; None where the name is all
                end = len(ids) if end is None else min(end, len(ids))
                first = max(0, end - HEAD_TOKENS)
                self.documents.append(np.asarray(ids, np.int64))
                self.anchors.append((first, end - first))


def _pad(rows: list[list[int]], width: int) -> np.ndarray:
    return np.array([[*ids, *[PAD] * (width - len(ids))] for ids in rows], np.int64)


# ---- sequences


class Leaf(NamedTuple):
    segment: int
    start: int
    length: int
    head: int
    relation: int
    tail: int
    true: bool


@dataclass
class Room:
    """What is left of a sequence that is being packed, and its documents."""

    roots: int
    leaves: int
    numbers: list[int]


class LeafyChains(Dataset):
    """Sequences of a graph. The sequence of a number is always the same; after the last number the next epoch begins.

    Every end of `triples` is a document. Documents are packed into sequences once; an epoch is all of these in an order of its own,
    with leaves, masks and wrong tails of its own. A leaf hangs at its head's own name: a document has the triples that it is the head
    of, and under the inverse relation those that it is the tail of. No two of its leaves have one tail, so that no leaf tells what a
    masked one hides.

    triples: resolved ones to train on. known: further true ones (of validation and test), never a wrong tail.
    configuration: sizes, shares and seed; sequences have the length of its first stage.
    """

    def __init__(
        self,
        triples: Iterable[tuple[str, str, str]],
        encoded: EncodedDocuments,
        relations: Relations,
        configuration: Configuration,
        *,
        known: Iterable[tuple[str, str, str]] = (),
    ):
        self.encoded, self.relations = encoded, relations
        self.seed, self.roots = configuration.run.seed, configuration.roots(configuration.stages()[0][1])
        self.pack, self.leaves = (
            configuration.training_data.pack_sequences,
            configuration.encoding.max_leaves_per_sequence,
        )
        self.anchor = configuration.encoding.leaves_per_anchor
        self.mlm, self.mnm = configuration.objectives.mlm, configuration.objectives.mnm
        self._identifiers_V = identifier_tokens(encoded.tokenizer) if self.mlm.span_mask_identifiers else None
        true = self._number(triples)
        self.known: dict[tuple[int, int], set[int]] = defaultdict(set)  # true tails of (head, relation)
        for head, relation, tail in (*true, *self._number(known)):
            self.known[head, relation].add(tail)
            self.known[tail, relations.inverse(relation)].add(head)
        self.sampler = NegativeSampler(encoded, relations, self.known)
        own = defaultdict(list)  # (relation, other end) of each document
        for head, relation, tail in true:
            own[head].append((relation, tail))
            if head != tail:
                own[tail].append((relations.inverse(relation), head))
        self._own = dict(sorted(own.items()))
        self._sequences = self._pack_documents()

    def __len__(self) -> int:
        """Sequences of an epoch."""
        return len(self._sequences)

    def with_roots(self, roots: int) -> LeafyChains:
        """The same data in sequences of another length; nothing is read or encoded again."""
        other = copy.copy(self)
        other.roots = roots
        other._sequences = other._pack_documents()
        return other

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Fields of one sequence, without the batch axis and `known_BGX`."""
        epoch, index = divmod(index, len(self))
        draw = random.Random(f"{self.seed} {self.roots} {epoch} {index}")
        generator = np.random.default_rng(draw.getrandbits(64))
        numbers = self._sequences[np.random.default_rng([self.seed, epoch]).permutation(len(self))[index]]
        fields, begins = self._root_fields(numbers)
        leaves = []
        for segment, (number, begin) in enumerate(zip(numbers, begins, strict=True), 1):
            leaves += self._draw_leaves(number, segment, begin, draw)
        leaves = leaves[: self.leaves]  # packing made room for all but the last wrong ones
        draw.shuffle(leaves)  # that true ones come first would tell which are
        fields |= self._leaf_fields(leaves, draw)
        return fields | mask_roots(
            fields["root_ids"],
            fields["root_segments"],
            mask_prob=self.mlm.mask_prob,
            identifiers_V=self._identifiers_V,
            vocab_size=len(self.encoded.tokenizer),
            generator=generator,
        )

    def query(self, number: int, relation: int) -> dict[str, torch.Tensor]:
        """A document as a batch, whose one leaf is masked and asks for the tail of `relation`; nothing else is hidden."""
        fields, _ = self._root_fields([number])
        start, length = self._place_anchor(number, 0)
        fields["leaf_ids"] = np.full((1, self.encoded.leaf_ids_EL.shape[1]), MASK, np.int64)
        values = {"leaf_segments": 1, "relation_ids": relation, "head_start": start, "head_length": length}
        for name, value in values.items():
            fields[name] = np.full(1, value, np.int64)
        return stack([fields])

    # ---- packing

    def _pack_documents(self) -> list[list[int]]:
        """Documents in a drawn order, each into the first open sequence that has room for its roots and its leaves."""
        order = list(self._own)
        random.Random(f"{self.seed} {self.roots} packing").shuffle(order)
        if not self.pack:
            return [[number] for number in order]
        sequences, rooms = [], []
        for number in order:
            length, need = self._length(number), self._count_leaves(number)
            fitting = [room for room in rooms if room.roots >= length and room.leaves >= need]
            if fitting:
                room = fitting[0]
            else:
                room = Room(self.roots, self.leaves, [])
                sequences.append(room.numbers)
                rooms = [*rooms[1 - OPEN :], room]
            room.roots -= length
            room.leaves -= need
            room.numbers.append(number)
        return sequences

    def _length(self, number: int) -> int:
        return min(len(self.encoded.documents[number]), self.roots)

    def _count_leaves(self, number: int) -> int:
        return min(len(self._own[number]), self.anchor.positive) + self.anchor.negatives

    # ---- roots and leaves

    def _root_fields(self, numbers: Sequence[int]) -> tuple[dict[str, np.ndarray], list[int]]:
        """root_ids, root_segments and root_positions of these documents in a row, and where each begins."""
        ids, segments, positions = np.zeros((3, self.roots), np.int64)
        begins, begin = [], 0
        for segment, number in enumerate(numbers, 1):
            end = begin + self._length(number)
            ids[begin:end] = self.encoded.documents[number][: end - begin]
            segments[begin:end] = segment
            positions[begin:end] = np.arange(end - begin)
            begins.append(begin)
            begin = end
        return {"root_ids": ids, "root_segments": segments, "root_positions": positions}, begins

    def _place_anchor(self, number: int, begin: int) -> tuple[int, int]:
        """First root and number of roots of a document's own name, within what is shown of it."""
        start, length = self.encoded.anchors[number]
        shown = self._length(number)
        if start >= shown:  # a name longer than the sequence
            start = 0
        return begin + start, min(length, shown - start)

    def _draw_leaves(self, number: int, segment: int, begin: int, draw: random.Random) -> list[Leaf]:
        """True leaves of one document, no two with one tail, then wrong ones for some of the same relations."""
        place, true, wrong = self._place_anchor(number, begin), {}, []
        for relation, tail in draw.sample(self._own[number], len(self._own[number])):
            if len(true) < self.anchor.positive and tail not in true:
                true[tail] = Leaf(segment, *place, number, relation, tail, True)
        for _ in range(self.anchor.negatives):
            leaf = draw.choice([*true.values()])
            kind = draw.choice([self.sampler.hard, self.sampler.type_consistent])
            tail = kind(draw, number, leaf.relation, leaf.tail)
            if tail is not None:
                wrong.append(leaf._replace(tail=tail, true=False))
        return [*true.values(), *wrong]

    def _leaf_fields(self, leaves: list[Leaf], draw: random.Random) -> dict[str, np.ndarray]:
        padding = [Leaf(*[0] * len(Leaf._fields))] * (self.leaves - len(leaves))
        columns = np.array([*leaves, *padding], np.int64).T
        segment_G, start_G, length_G, head_G, relation_G, tail_G, true_G = columns
        true = np.flatnonzero(true_G)
        count = int(len(true) * self.mnm.mask_prob + draw.random())
        masked = true[sorted(draw.sample(range(len(true)), min(count, len(true))))]
        leaf_ids_GL = np.where(segment_G[:, None] > 0, self.encoded.leaf_ids_EL[tail_G], PAD)
        labels_GL = np.full_like(leaf_ids_GL, IGNORED)
        labels_GL[masked] = np.where(leaf_ids_GL[masked] == PAD, IGNORED, leaf_ids_GL[masked])
        leaf_ids_GL[masked] = MASK
        truth_G = np.where(segment_G > 0, true_G, IGNORED).astype(np.float32)
        truth_G[masked] = IGNORED
        fields = {
            "leaf_ids": leaf_ids_GL,
            "leaf_segments": segment_G,
            "relation_ids": relation_G,
            "head_start": start_G,
            "head_length": length_G,
            "mnm_labels": labels_GL,
            "triple_labels": truth_G,
        }
        for end, numbers_G in (("head", head_G), ("tail", tail_G)):
            fields[f"{end}_entities"] = np.where(true_G, numbers_G, -1)
            fields[f"{end}_text_ids"] = np.where(true_G[:, None], self.encoded.text_ids_EC[numbers_G], PAD)
        kinds = [self.sampler.type_consistent] * self.mnm.type_consistent_negatives
        kinds += [self.sampler.hard] * self.mnm.hard_negatives
        if kinds:
            wrong_GUC = np.full((self.leaves, len(kinds), self.encoded.text_ids_EC.shape[1]), PAD, np.int64)
            for place in masked.tolist():
                for column, kind in enumerate(kinds):
                    leaf = leaves[place]
                    tail = kind(draw, leaf.head, leaf.relation, leaf.tail)
                    if tail is not None:
                        wrong_GUC[place, column] = self.encoded.text_ids_EC[tail]
            fields["negative_text_ids"] = wrong_GUC
        return fields

    def _number(self, triples: Iterable[tuple[str, str, str]]) -> list[tuple[int, int, int]]:
        """Triples in numbers, sorted, none twice."""
        number = self.encoded.number
        return sorted({(number[head], self.relations.id(relation), number[tail]) for head, relation, tail in triples})

    def collate(self, examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """A batch, with known_BGX [B, G, B G]: in-batch tail x is also true for this leaf's head and relation."""
        batch = stack(examples)
        heads, relations = batch["head_entities"].flatten().tolist(), batch["relation_ids"].flatten().tolist()
        tails_X = batch["tail_entities"].flatten().numpy()
        known = [np.isin(tails_X, [*self.known.get(pair, ())]) for pair in zip(heads, relations, strict=True)]
        known_XX = np.stack(known)
        np.fill_diagonal(known_XX, False)
        batch["known_BGX"] = torch.from_numpy(known_XX).view(*batch["tail_entities"].shape, -1)
        return batch


def stack(examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Each field of the examples with a batch axis before its own."""
    return {name: torch.from_numpy(np.stack([example[name] for example in examples])) for name in examples[0]}


# ---- short sequences first


def phase_steps(begins: Sequence[float], steps: int) -> tuple[int, ...]:
    """Optimizer steps in each phase of a run, from the step, or below 1 the share of the run, that each begins with."""
    edges = [*(min(steps, round(begin * steps if begin < 1 else begin)) for begin in begins), steps]
    return tuple(max(0, end - begin) for begin, end in pairwise(edges))


def curriculum(
    chains: LeafyChains, stages: Sequence[tuple[float, int]], *, steps: int, examples_per_step: int
) -> ConcatDataset:
    """All sequences of a run of `steps`, in order: those of the first length, then those of the next; no batch has two lengths.

    stages: optimizer step, or share of the run, that each begins with, and S in it.
    examples_per_step: sequences of an optimizer step, accumulation and all devices counted.
    """
    begins, lengths = zip(*stages, strict=True)
    phases = []
    for roots, count in zip(lengths, phase_steps(begins, steps), strict=True):
        phases.append(Subset(chains.with_roots(roots), range(count * examples_per_step)))
    return ConcatDataset(phases)
