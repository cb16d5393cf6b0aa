"""Entities of source code and the triples between them; and how a graph is kept between two questions."""

import hashlib
import json
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

DEFINED = "defined"  # in the sources
EXTERNAL = "external"  # outside of them, known by its full name through an import or as a builtin
UNRESOLVED = "unresolved"  # mentioned, but nothing in the sources says for certain what it is
UNKNOWN = "unknown"  # type of an entity that the sources mention and do not define
_NOT_RESOLVED = "?."  # before the name of a mention that nothing resolves


class Entity(NamedTuple):
    """`id` is the qualified name, `module.Class.method(parameter)`.

    An unresolved one has the id `?.name` and stands for every mention of that name that nothing resolves.
    """

    id: str
    type: str
    name: str
    status: str = DEFINED
    module: str = ""  # "" where it is not known
    line: int = 0  # first and last of the definition, from 1; 0 where the sources have none
    end_line: int = 0


def last_name(name: str) -> str:
    """`f` of `a.b.f`."""
    return name.rpartition(".")[2]


def unresolved(name: str) -> str:
    """Id of what stands for every mention of a name that nothing resolves."""
    return f"{_NOT_RESOLVED}{name}"


class Triple(NamedTuple):
    head: str
    relation: str
    tail: str


@dataclass(frozen=True, repr=False)
class KnowledgeGraph:
    """Every head and tail is a key of `entities`; both are sorted, no triple is there twice.

    manifest: files, with path, module, language and sha256 of each source; failed, with path and error of each that could not be
        read.
    """

    entities: dict[str, Entity]
    triples: tuple[Triple, ...]
    manifest: dict[str, Any] = field(default_factory=dict)

    def place(self, entity: Entity) -> str:
        """`file:line` of an entity's definition; "" where that is not known."""
        path = self._paths.get(entity.module)
        return f"{path}:{entity.line}" if path and entity.line else ""

    @cached_property
    def _paths(self) -> dict[str, str]:
        return {file["module"]: file["path"] for file in self.manifest.get("files", ())}

    def resolved(self) -> Iterator[Triple]:
        """Triples whose both ends are known; an unresolved one says that there is a relation, not with what."""
        return (triple for triple in self.triples if not triple.tail.startswith(_NOT_RESOLVED))

    def digest(self) -> str:
        """sha256 over entities and triples: the same string means the same graph."""
        content = json.dumps([[*self.entities.values()], self.triples])
        return hashlib.sha256(content.encode()).hexdigest()


def build_graph(
    entities: Iterable[Entity], triples: Iterable[tuple[str, str, str]], manifest: dict[str, Any]
) -> KnowledgeGraph:
    """Sorts entities and triples. Of two entities with one id the first stays; those of unresolved tails are added."""
    by_id: dict[str, Entity] = {}
    for entity in entities:
        by_id.setdefault(entity.id, entity)
    ordered = sorted(map(Triple._make, triples))
    for _, _, tail in ordered:
        if tail.startswith(_NOT_RESOLVED):
            by_id[tail] = Entity(tail, UNKNOWN, tail.removeprefix(_NOT_RESOLVED), UNRESOLVED)
    return KnowledgeGraph(dict(sorted(by_id.items())), tuple(ordered), manifest)


# ---- the ontology: types of entities, relations between them, and what each relation forbids


@dataclass(frozen=True, kw_only=True)
class Relation:
    """One relation; `domain` and `range` hold the subtypes of what the file names, too."""

    name: str
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

    def of(types: list[str]) -> frozenset[str]:
        return frozenset().union(*(below[one] for one in types))

    relations = {}
    for name, table in tables["relations"].items():
        table |= {"name": name, "domain": of(table["domain"]), "range": of(table["range"])}
        relations[name] = Relation(**table)
    return relations
