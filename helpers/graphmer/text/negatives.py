"""Relations in both directions, what is known to be true, and wrong tails that are hard to tell from true ones.

Entities are numbers, their place in the graph; relations are ids: 1 to F as the ontology has them, F + 1 to 2F their
inverses in the same order; 0 is none.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from helpers.graphmer.graph.knowledge_graph import UNRESOLVED, Entity
from helpers.graphmer.graph.ontology import UNKNOWN, Ontology

_TRIES = 12  # draws before a wrong tail of a kind is taken for not to be had
_WORDS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[^\W\d_A-Z]+|[A-Z]+|\d+")

NumberedTriple = tuple[int, int, int]  # head, relation id, tail


class Relations:
    """Ids of an ontology's relations and of their inverses, named there or not: that of `calls` is `inverse calls`.

    names: by id, from 1. A triple of a named inverse (`part_of`) is the same as its mirror image (`contains`).
    """

    def __init__(self, ontology: Ontology):
        forward = [relation for relation in ontology.relations.values() if relation.canonical]
        self.forward = len(forward)
        self.names = ("", *(one.name for one in forward), *(one.inverse or f"inverse {one.name}" for one in forward))
        self._forward = forward
        self._ids = {name: number for number, name in enumerate(self.names) if number}
        self._tails = (
            frozenset(),
            *(one.range for one in forward),
            *(one.domain for one in forward),
        )

    def __len__(self) -> int:
        """Number of ids, 0 not counted: 2F."""
        return 2 * self.forward

    def id(self, name: str | int) -> int:
        """Id of a name; an id as it is. Raises ValueError for a relation that the ontology does not have."""
        if not isinstance(name, str) and 1 <= name <= len(self):
            return int(name)
        if name not in self._ids:
            raise ValueError(f"relation={name!r}: not in the ontology; known: {', '.join(self.names[1:])}")
        return self._ids[name]

    def inverse(self, relation: int) -> int:
        return relation + self.forward if relation <= self.forward else relation - self.forward

    def properties(self) -> dict[str, Any]:
        """What a `GraphMERConfig` says about relations; an inverse forbids what its relation does."""
        both = [*enumerate(self._forward, 1), *enumerate(self._forward, 1 + self.forward)]
        return {
            "num_relations": len(self),
            "antisymmetric_relations": [number for number, one in both if one.antisymmetric],
            "acyclic_relations": [number for number, one in both if one.acyclic],
        }

    def of_head(self, entity_type: str) -> list[int]:
        """Ids, of inverses too, whose head an entity of this type may be; of an unknown type, all."""
        every = range(1, len(self) + 1)
        return [one for one in every if entity_type == UNKNOWN or entity_type in self._tails[self.inverse(one)]]

    def tail_types(self, relation: int) -> frozenset[str]:
        """Types that a tail may have; of an inverse, those that a head may have."""
        return self._tails[relation]


class KnownTails:
    """True tails of (head, relation), in both directions."""

    def __init__(self, triples: Iterable[NumberedTriple], relations: Relations):
        self._ids = len(relations) + 1
        self._tails: dict[int, set[int]] = defaultdict(set)
        for head, relation, tail in triples:
            self._tails[head * self._ids + relation].add(tail)
            self._tails[tail * self._ids + relations.inverse(relation)].add(head)
        self._tails = dict(self._tails)

    def of(self, head: int, relation: int) -> set[int] | frozenset[int]:
        return self._tails.get(head * self._ids + relation, frozenset())


class NegativeSampler:
    """Draws tails that are not known to be true, of a type that the relation admits.

    entities: of the graph, in its order.
    known: no tail of it is drawn, and none whose leaf reads the same as that of one.
    leaf_ids_EL: how each entity looks as a leaf.
    """

    def __init__(self, entities: Sequence[Entity], relations: Relations, known: KnownTails, leaf_ids_EL: np.ndarray):
        self._entities, self._relations, self._known = entities, relations, known
        self._look = np.unique(leaf_ids_EL, axis=0, return_inverse=True)[1].reshape(-1).tolist()
        self._looks: dict[tuple[int, int], frozenset[int]] = {}
        by_type: dict[str, list[int]] = defaultdict(list)
        self._of_module: dict[str, list[int]] = defaultdict(list)
        self._of_word: dict[str, list[int]] = defaultdict(list)
        for number, entity in enumerate(entities):
            if entity.status != UNRESOLVED:
                by_type[entity.type].append(number)
                self._of_module[entity.module].append(number)
                for word in set(words(entity.name)):
                    self._of_word[word].append(number)
        admitted = {relations.tail_types(relation) for relation in range(1, len(relations) + 1)}
        self._pools = {types: [n for name in sorted(types) for n in by_type.get(name, ())] for types in admitted}

    def type_consistent(self, draw: random.Random, head: int, relation: int, tail: int) -> int | None:
        """Any entity of a type that the relation admits; None where there is none that is not known."""
        pool = self._pools[self._relations.tail_types(relation)]
        return self._drawn(draw, (pool,), head, relation, tail)

    def hard(self, draw: random.Random, head: int, relation: int, tail: int) -> int | None:
        """One of the tail's module, or one whose name shares a word with the tail's, of a type that the relation admits.

        Where there is none, any that `type_consistent` gives.
        """
        entity = self._entities[tail]
        shared = words(entity.name)
        pools = [self._of_word.get(shared[int(draw.random() * len(shared))], ())] if shared else []
        if entity.module:
            pools.insert(int(draw.random() * (len(pools) + 1)), self._of_module[entity.module])
        found = self._drawn(draw, pools, head, relation, tail)
        return self.type_consistent(draw, head, relation, tail) if found is None else found

    def _drawn(
        self, draw: random.Random, pools: Iterable[Sequence[int]], head: int, relation: int, tail: int
    ) -> int | None:
        admitted, looks = self._relations.tail_types(relation), self._known_looks(head, relation)
        own_look = self._look[tail]
        for pool in pools:
            for _ in range(_TRIES if pool else 0):
                found = pool[int(draw.random() * len(pool))]
                look = self._look[found]
                if look != own_look and look not in looks and self._entities[found].type in admitted:
                    return found
        return None

    def _known_looks(self, head: int, relation: int) -> frozenset[int]:
        key = (head, relation)
        if key not in self._looks:
            self._looks[key] = frozenset(self._look[tail] for tail in self._known.of(head, relation))
        return self._looks[key]


def words(name: str) -> list[str]:
    """Words of an identifier, in lower case: `readHTTPLine_2` is read, http, line, 2."""
    return [word.lower() for word in _WORDS.findall(name)]
