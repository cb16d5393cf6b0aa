"""Leafy chains: documents packed into sequences of roots, triples as leaves, and what is hidden of both.

# B sequences · S roots · G leaves · L tokens of a leaf · M masked roots · C tokens of an entity's text · U wrong tails ·
# X = B G in-batch tails · V vocabulary · E entities
"""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from .configuration import Configuration
from .graph.knowledge_graph import Triple, read_ontology
from .text import (
    LONGEST_TOKEN,
    MASK,
    PAD,
    SEP,
    SPECIAL_TOKENS,
    encodings,
    entity_text,
    identifier_tokens,
    leaf_text,
    shown_name,
)

IGNORED = -100  # label where nothing is asked for
MASKED, REPLACED = 0.8, 0.9  # of the chosen spans 80 % are masked, 10 % replaced, the rest stays as it is (BERT)
HEAD_TOKENS = 8  # of a head's name that a leaf looks at
OPEN = 64  # sequences that documents are packed into at a time
TRIES = 12  # draws after which there counts as being no wrong tail of a kind


class Leaf(NamedTuple):
    segment: int
    start: int
    length: int
    head: int
    relation: int
    tail: int
    true: bool


# ---- relations


class Relations:
    """Ids of the ontology's relations from 1, and of their inverses after them; 0 is none.

    names: by id; an inverse without a name of its own is `inverse calls`. properties: what a `GraphMERConfig` says about relations;
    an inverse forbids what its relation does.
    """

    def __init__(self):
        ontology = read_ontology()
        relations = [*ontology.values()]
        self.forward = len(relations)
        inverses = [relation.inverse or f"inverse {name}" for name, relation in ontology.items()]
        self.names = ["", *ontology, *inverses]
        tail_types = [relation.range for relation in relations] + [relation.domain for relation in relations]
        self.tail_types = [frozenset(), *tail_types]
        numbered = [*enumerate(relations * 2, 1)]
        self.properties = {
            "num_relations": len(numbered),
            "antisymmetric_relations": [number for number, relation in numbered if relation.antisymmetric],
            "acyclic_relations": [number for number, relation in numbered if relation.acyclic],
        }

    def id(self, name: str) -> int:
        return self.names.index(name)

    def inverse(self, relation: int) -> int:
        return (relation + self.forward - 1) % (2 * self.forward) + 1


# ---- masks


def mask_roots(
    ids_S,
    segments_S,
    *,
    mask_prob: float,
    identifiers_V,
    generator: np.random.Generator,
) -> dict[str, np.ndarray]:
    """root_ids with `mask_prob` of the roots hidden [S], mlm_positions and mlm_labels of those [M]; unused ones have the label -100.

    Spans are drawn until the share is reached to the token; one that does not fit any more is passed over. Of the spans 80 % become
    [MASK], 10 % other tokens, 10 % stay. Padding (segment 0) is never chosen.

    identifiers_V: tokens whose neighbours of this kind belong to the same identifier, which is one span; any other token is a span.
    """
    used = np.count_nonzero(segments_S)
    missing = int(used * mask_prob + generator.random())
    inside_S = identifiers_V[ids_S[:used]]
    is_same_segment_S = segments_S[1:used] == segments_S[: used - 1]
    continues_S = inside_S[1:] & inside_S[:-1] & is_same_segment_S
    begins_S = np.append(True, ~continues_S)[:used]
    span_S = np.cumsum(begins_S) - 1
    lengths = np.bincount(span_S)
    fates = np.full(len(lengths), 2.0)  # of each span: below 1 where it is chosen
    for span in generator.permutation(len(lengths)):
        if lengths[span] <= missing:
            missing -= lengths[span]
            fates[span] = generator.random()
        if not missing:
            break
    fate_S = np.full(len(ids_S), 2.0)
    fate_S[:used] = fates[span_S]
    places = np.flatnonzero(fate_S < 1)
    slots = max(1, math.ceil(round(len(ids_S) * mask_prob, 6)))
    places_M = np.zeros(slots, np.int64)
    labels_M = np.full(slots, IGNORED, np.int64)
    places_M[: len(places)] = places
    labels_M[: len(places)] = ids_S[places]
    replaced_S = (fate_S >= MASKED) & (fate_S < REPLACED)
    hidden_S = np.where(fate_S < MASKED, MASK, ids_S)
    hidden_S[replaced_S] = generator.integers(len(SPECIAL_TOKENS), len(identifiers_V), replaced_S.sum())
    return {"root_ids": hidden_S, "mlm_positions": places_M, "mlm_labels": labels_M}


# ---- the graph in tokens and numbers


class EncodedGraph:
    """Tokens of every document and name of a graph, its true triples in numbers, and wrong tails for them.

    entities: in the order of the graph; their place there is their number
    true_tails: of (head, relation)
    leaf_ids_EL: the name as a leaf, [SEP] behind it where there is room, then [PAD]
    text_ids_EC: type and name; of one that is too long the end, where its own name is
    documents: token ids of each, as many as the longest sequence has roots
    anchors: (first token, tokens) of the end of each document's own name, where its leaves hang
    """

    def __init__(self, documents, tokenizer, configuration):
        encoding = configuration.encoding
        self.tokenizer, self.identifiers_V = tokenizer, identifier_tokens(tokenizer)
        self.entities = list(documents.graph.entities.values())
        self.number = {entity.id: number for number, entity in enumerate(self.entities)}
        self.relations = Relations()
        self.true_tails = defaultdict(set)
        for head, relation, tail in self.in_both_directions(documents.graph.triples):
            self.true_tails[head, relation].add(tail)
        leaves = encodings(tokenizer, map(leaf_text, self.entities))
        self.leaf_ids_EL = _pad([[*leaf.ids, SEP] for leaf in leaves], encoding.leaf_tokens)
        self.leaves = [ids_L.tobytes() for ids_L in self.leaf_ids_EL]  # which are equal for entities that read alike
        texts = encodings(tokenizer, map(entity_text, self.entities))
        ends = [text.ids[-encoding.entity_tokens :] for text in texts]
        self.text_ids_EC = _pad(ends, encoding.entity_tokens)
        self.of_module = defaultdict(list)
        for number, entity in enumerate(self.entities):
            self.of_module[entity.module].append(number)
        self.admitted = {}  # tails by the types that a relation admits
        for types in self.relations.tail_types:
            self.admitted[types] = [number for number, entity in enumerate(self.entities) if entity.type in types]
        self.documents, self.anchors = [], []
        roots = configuration.roots(configuration.training_data.max_seq_len)
        characters = (roots + 16) * LONGEST_TOKEN  # at least so many tokens, where the source has them
        sources = (documents.text(entity.id)[:characters] for entity in self.entities)
        for entity, tokens in zip(self.entities, encodings(tokenizer, sources), strict=True):
            ids = tokens.ids[:roots]
            end = tokens.char_to_token(len(shown_name(entity.id)))  # the end of its line; None where the name is all
            end = len(ids) if end is None else min(end, len(ids))
            length = min(end, HEAD_TOKENS)
            self.documents.append(np.array(ids))
            self.anchors.append((end - length, length))

    def in_both_directions(self, triples: Iterable[Triple]) -> Iterator[tuple[int, int, int]]:
        """Triples in numbers, sorted, and behind a triple its inverse."""
        number, relations = self.number, self.relations
        numbered = [(number[head], relations.id(relation), number[tail]) for head, relation, tail in triples]
        for head, relation, tail in sorted(numbered):
            yield head, relation, tail
            yield tail, relations.inverse(relation), head

    def wrong_tail(self, draw: random.Random, leaf: Leaf, is_hard: bool) -> int | None:
        """A tail of a type that the relation of a true leaf admits, a hard one of the tail's module where there is some.

        Never a true one, or one whose leaf reads like a true one's; None where there is none.
        """
        types = self.relations.tail_types[leaf.relation]
        true_leaves = {self.leaves[tail] for tail in self.true_tails[leaf.head, leaf.relation]}
        pools = [self.admitted[types]]
        if is_hard:
            pools.insert(0, self.of_module[self.entities[leaf.tail].module])
        for pool in filter(None, pools):
            for _ in range(TRIES):
                wrong = draw.choice(pool)
                if self.leaves[wrong] not in true_leaves and self.entities[wrong].type in types:
                    return wrong
        return None


def _pad(rows, width):
    return np.array([(ids + [PAD] * width)[:width] for ids in rows])


# ---- sequences


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

    triples: those to train on. configuration: sizes, shares and seed; sequences have the length of its first stage.
    """

    def __init__(self, triples: Iterable[Triple], encoded: EncodedGraph, configuration: Configuration):
        self.encoded, self.configuration = encoded, configuration
        self.seed, self.leaves = configuration.run.seed, configuration.encoding.max_leaves_per_sequence
        self.own: dict[int, list[tuple[int, int]]] = defaultdict(list)  # (relation, other end) of each document
        for head, relation, tail in encoded.in_both_directions(triples):
            if head != tail or relation <= encoded.relations.forward:
                self.own[head].append((relation, tail))
        self.roots = configuration.roots(configuration.stages()[0][1])
        self.sequences = self._pack_documents()

    def __len__(self) -> int:
        """Sequences of an epoch."""
        return len(self.sequences)

    def with_roots(self, roots: int) -> LeafyChains:
        """The same data in sequences of another length; nothing is read or encoded again."""
        other = copy.copy(self)
        other.roots = roots
        other.sequences = other._pack_documents()
        return other

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        """Fields of one sequence, without the batch axis and `known_BGX`."""
        epoch, index = divmod(index, len(self))
        draw = random.Random(f"{self.seed} {self.roots} {epoch} {index}")
        generator = np.random.default_rng(draw.getrandbits(64))
        shuffle = np.random.default_rng([self.seed, epoch])
        order = shuffle.permutation(len(self))
        numbers = self.sequences[order[index]]
        fields = self._root_fields(numbers)
        leaves, begin = [], 0
        for segment, number in enumerate(numbers, 1):
            leaves += self._draw_leaves(number, segment, begin, draw)
            begin += self.length(number)
        leaves = leaves[: self.leaves]  # packing made room for all but the last wrong ones
        draw.shuffle(leaves)  # that true ones come first would tell which are
        fields |= self._leaf_fields(leaves, draw)
        mlm = self.configuration.objectives.mlm
        hidden = mask_roots(
            fields["root_ids"],
            fields["root_segments"],
            mask_prob=mlm.mask_prob,
            identifiers_V=self.encoded.identifiers_V & mlm.span_mask_identifiers,
            generator=generator,
        )
        return fields | hidden

    def query(self, number: int, relation: int) -> dict[str, torch.Tensor]:
        """A document as a batch, whose one leaf is masked and asks for the tail of `relation`; nothing else is hidden."""
        start, length = self._place_anchor(number)
        fields = self._root_fields([number]) | {
            "leaf_ids": np.full((1, self.configuration.encoding.leaf_tokens), MASK),
            "leaf_segments": np.array([1]),
            "relation_ids": np.array([relation]),
            "head_start": np.array([start]),
            "head_length": np.array([length]),
        }
        return default_collate([fields])

    # ---- packing

    def _pack_documents(self):
        """Documents in a drawn order, each into the first open sequence that has room for its roots and its leaves."""
        order = sorted(self.own)
        random.Random(f"{self.seed} {self.roots} packing").shuffle(order)
        sequences = []
        rooms = []
        for number in order:
            length, leaves = self.length(number), self.count_leaves(number)
            fitting = (room for room in rooms if room.roots >= length and room.leaves >= leaves)
            room = next(fitting, None)
            if room is None:
                room = Room(self.roots, self.leaves, [])
                sequences.append(room.numbers)
                if self.configuration.training_data.pack_sequences:
                    rooms = [*rooms, room][-OPEN:]
            room.roots -= length
            room.leaves -= leaves
            room.numbers.append(number)
        return sequences

    def length(self, number: int) -> int:
        """Roots of a document."""
        return min(len(self.encoded.documents[number]), self.roots)

    def count_leaves(self, number: int) -> int:
        """Leaves of a document at most."""
        anchor = self.configuration.encoding.leaves_per_anchor
        return min(len(self.own[number]), anchor.positive) + anchor.negatives

    # ---- roots and leaves

    def _root_fields(self, numbers):
        """These documents in a row, and padding."""
        documents = [self.encoded.documents[number][: self.roots] for number in numbers]
        lengths = [len(document) for document in documents]
        fields = {
            "root_ids": np.concatenate(documents),
            "root_segments": np.repeat(range(1, len(numbers) + 1), lengths),
            "root_positions": np.concatenate([np.arange(length) for length in lengths]),
        }
        padding = 0, self.roots - sum(lengths)
        return {name: np.pad(field, padding) for name, field in fields.items()}

    def _place_anchor(self, number):
        """First root and number of roots of a document's own name, within what is shown of it."""
        start, length = self.encoded.anchors[number]
        shown = self.length(number)
        if start >= shown:  # a name longer than the sequence
            start = 0
        return start, min(length, shown - start)

    def _draw_leaves(self, number, segment, begin, draw):
        """True leaves of one document, no two with one tail, then wrong ones for some of the same relations."""
        anchor = self.configuration.encoding.leaves_per_anchor
        start, length = self._place_anchor(number)
        own = self.own[number]
        leaves = {}
        for relation, tail in draw.sample(own, len(own)):
            if len(leaves) < anchor.positive and tail not in leaves:
                leaves[tail] = Leaf(segment, begin + start, length, number, relation, tail, True)
        true, wrong = list(leaves.values()), []
        for _ in range(anchor.negatives):
            leaf = draw.choice(true)
            other = self.encoded.wrong_tail(draw, leaf, draw.choice([True, False]))
            if other is not None:
                wrong.append(leaf._replace(tail=other, true=False))
        return true + wrong

    def _leaf_fields(self, leaves, draw):
        columns = np.zeros((self.leaves, len(Leaf._fields)), np.int64)
        columns[: len(leaves)] = leaves
        segment_G, start_G, length_G, head_G, relation_G, tail_G, true_G = columns.T
        mnm, text_ids_EC = self.configuration.objectives.mnm, self.encoded.text_ids_EC
        true = np.flatnonzero(true_G)
        count = int(len(true) * mnm.mask_prob + draw.random())
        chosen = draw.sample(range(len(true)), min(count, len(true)))
        masked = true[sorted(chosen)]
        is_leaf_G = segment_G > 0
        leaf_ids_GL = np.where(is_leaf_G[:, None], self.encoded.leaf_ids_EL[tail_G], PAD)
        masked_ids_ML = leaf_ids_GL[masked]
        labels_GL = np.full_like(leaf_ids_GL, IGNORED)
        labels_GL[masked] = np.where(masked_ids_ML == PAD, IGNORED, masked_ids_ML)
        leaf_ids_GL[masked] = MASK
        truth_G = np.where(is_leaf_G, true_G, IGNORED).astype(np.float32)
        truth_G[masked] = IGNORED
        fields = {
            "leaf_ids": leaf_ids_GL,
            "leaf_segments": segment_G,
            "relation_ids": relation_G,
            "head_start": start_G,
            "head_length": length_G,
            "mnm_labels": labels_GL,
            "triple_labels": truth_G,
            "head_entities": np.where(true_G, head_G, -1),
            "tail_entities": np.where(true_G, tail_G, -1),
            "head_text_ids": np.where(true_G[:, None], text_ids_EC[head_G], PAD),
            "tail_text_ids": np.where(true_G[:, None], text_ids_EC[tail_G], PAD),
        }
        kinds = [False] * mnm.type_consistent_negatives + [True] * mnm.hard_negatives
        if kinds:
            wrong_GUC = np.full((self.leaves, len(kinds), text_ids_EC.shape[1]), PAD)
            for place in masked:
                for column, is_hard in enumerate(kinds):
                    tail = self.encoded.wrong_tail(draw, leaves[place], is_hard)
                    if tail is not None:
                        wrong_GUC[place, column] = text_ids_EC[tail]
            fields["negative_text_ids"] = wrong_GUC
        return fields

    def collate(self, examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        """A batch, with known_BGX [B, G, B G]: in-batch tail x is also true for this leaf's head and relation."""
        batch = default_collate(examples)
        heads, tails, relations = (batch[name] for name in ("head_entities", "tail_entities", "relation_ids"))
        rows = []
        for question in zip(heads.flatten().tolist(), relations.flatten().tolist(), strict=True):
            rows.append(np.isin(tails.flatten(), [*self.encoded.true_tails.get(question, ())]))
        known_XX = np.stack(rows)
        np.fill_diagonal(known_XX, False)
        batch["known_BGX"] = torch.from_numpy(known_XX).view(*tails.shape, -1)
        return batch


# ---- short sequences first


def phase_steps(begins: Sequence[float], steps: int) -> tuple[int, ...]:
    """Optimizer steps in each phase of a run, from the step, or below 1 the share of the run, that each begins with."""
    edges = [min(steps, round(begin * steps if begin < 1 else begin)) for begin in begins]
    return tuple(np.diff([*edges, steps]).clip(0))


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
