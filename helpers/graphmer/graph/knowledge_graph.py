"""Entities of source code and the triples between them, and the ontology of both."""

import hashlib
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class Entity(NamedTuple):
    """`id` is the qualified name, `module.Class.method(parameter)`."""

    id: str
    type: str
    module: str = ""  # "" of what is outside of the sources: of the language or its library
    line: int = 0  # first and last of the definition, from 1; 0 where the sources have none
    end_line: int = 0


def last_name(name: str) -> str:
    """`f` of `a.b.f`."""
    return name.rpartition(".")[2]


class Triple(NamedTuple):
    head: str
    relation: str
    tail: str


@dataclass(frozen=True, repr=False)
class KnowledgeGraph:
    """Every head and tail is a key of `entities`; both are sorted, no triple is there twice. texts: the source of each module."""

    entities: Mapping[str, Entity]
    triples: tuple[Triple, ...]
    texts: Mapping[str, str]

    def digest(self) -> str:
        """sha256 over entities, triples and texts: the same string means the same graph of the same sources."""
        content = json.dumps([[*self.entities.values()], self.triples, [*self.texts.items()]])
        return hashlib.sha256(content.encode()).hexdigest()


def new_graph(
    entities: Iterable[Entity], triples: Iterable[tuple[str, str, str]], texts: Mapping[str, str]
) -> KnowledgeGraph:
    """Sorts entities and triples."""
    by_id = {entity.id: entity for entity in sorted(entities)}
    ordered = sorted(Triple(*triple) for triple in triples)
    return KnowledgeGraph(by_id, tuple(ordered), texts)


# ---- the ontology: types of entities, relations between them, and what each relation forbids


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One relation; `domain` and `range` hold the subtypes of what the file names, too."""

    domain: frozenset[str]
    range: frozenset[str]
    antisymmetric: bool = False
    acyclic: bool = False
    inverse: str = ""  # its name in the other direction; extraction never says it


def read_ontology() -> dict[str, Relation]:
    """The relations of software, by name."""
    tables = tomllib.loads(Path(__file__).with_name("ontology.toml").read_text(encoding="utf-8"))
    below = defaultdict(set)  # of each type itself and all kinds of it
    for kind, above in tables["types"].items():
        below[kind].add(kind)
        while above:
            below[above].add(kind)
            above = tables["types"][above]

    relations = {}
    for name, table in tables["relations"].items():
        for end in ("domain", "range"):
            table[end] = frozenset().union(*(below[kind] for kind in table[end]))
        relations[name] = Relation(**table)
    return relations
