"""Entities of source code and the triples between them; read from sources or from JSONL, written as JSONL."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from helpers.data import row_files
from helpers.graphmer.graph.ontology import UNKNOWN

DEFINED = "defined"  # in the sources
EXTERNAL = "external"  # outside of them, known by its full name through an import or as a builtin
UNRESOLVED = "unresolved"  # mentioned, but nothing in the sources says for certain what it is
STATUSES = (DEFINED, EXTERNAL, UNRESOLVED)
_NOT_RESOLVED = "?."  # before the name of what is
ENTITIES, TRIPLES, MANIFEST = "entities.jsonl", "triples.jsonl", "manifest.json"


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


def unresolved(name: str) -> str:
    """Id of what stands for every mention of a name that nothing resolves."""
    return f"{_NOT_RESOLVED}{name}"


class Triple(NamedTuple):
    head: str
    relation: str
    tail: str


@dataclass(frozen=True)
class KnowledgeGraph:
    """Every head and tail is a key of `entities`; both are sorted, no triple is there twice."""

    entities: dict[str, Entity] = field(repr=False)
    triples: tuple[Triple, ...] = field(repr=False)
    # files: path, module, language, sha256 of each source · failed: path and error of each that could not be read
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    sites: dict[Triple, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)  # lines that say it

    def place(self, entity: Entity, line: int = 0) -> str:
        """`file:line` of an entity's definition, or of another line of its module; "" where that is not known."""
        path, line = self._paths.get(entity.module), line or entity.line
        return f"{path}:{line}" if path and line else ""

    @cached_property
    def _paths(self) -> dict[str, str]:
        return {file["module"]: file["path"] for file in self.manifest.get("files", ())}

    def resolved(self) -> Iterator[Triple]:
        """Triples whose both ends are known; an unresolved one says that there is a relation, not with what."""
        entities = self.entities
        for triple in self.triples:
            if entities[triple.tail].status != UNRESOLVED and entities[triple.head].status != UNRESOLVED:
                yield triple

    def digest(self) -> str:
        """sha256 over entities and triples: the same string means the same graph."""
        digest = hashlib.sha256()
        for line in (*_lines(self.entities.values()), *_lines(self.triples)):
            digest.update(line.encode())
        return digest.hexdigest()

    def counts(self) -> dict[str, dict[str, int]]:
        """Entities by type and by status, triples by relation and by the status of their tail; each most first."""
        entities = self.entities.values()
        return {
            "types": _most_first(entity.type for entity in entities),
            "statuses": _most_first(entity.status for entity in entities),
            "relations": _most_first(triple.relation for triple in self.triples),
            "tails": _most_first(self.entities[triple.tail].status for triple in self.triples),
        }

    def write(self, folder: str | Path) -> None:
        """entities.jsonl, triples.jsonl and manifest.json; equal graphs are equal bytes."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / ENTITIES).write_text("".join(_lines(self.entities.values())), encoding="utf-8", newline="\n")
        (folder / TRIPLES).write_text("".join(_lines(self.triples)), encoding="utf-8", newline="\n")
        manifest = json.dumps(self.manifest, indent=1, sort_keys=True) + "\n"
        (folder / MANIFEST).write_text(manifest, encoding="utf-8", newline="\n")


def build_graph(
    entities: Iterable[Entity],
    triples: Iterable[tuple[str, str, str]],
    manifest: dict[str, Any],
    sites: Mapping[Triple, Iterable[int]] | None = None,
) -> KnowledgeGraph:
    """Sorts both and drops repeated triples; of two entities with one id the first stays, `unresolved` ones may be left out."""
    by_id: dict[str, Entity] = {}
    for entity in entities:
        by_id.setdefault(entity.id, entity)
    # not a set: sources come almost in order, which sorts in a third of the time
    ordered = sorted(dict.fromkeys(triples))
    for _, _, tail in ordered:
        if tail.startswith(_NOT_RESOLVED) and tail not in by_id:
            by_id[tail] = Entity(tail, UNKNOWN, tail.removeprefix(_NOT_RESOLVED), UNRESOLVED)
    lines = {triple: tuple(sorted(set(at))) for triple, at in (sites or {}).items()}
    return KnowledgeGraph(
        {name: by_id[name] for name in sorted(by_id)}, tuple(map(Triple._make, ordered)), manifest, lines
    )


def read_graph(folder: str | Path) -> KnowledgeGraph:
    """The graph that `write` wrote, or one's own: `{"id", "type"}` and `{"head", "relation", "tail"}` a line suffice.

    Raises FileNotFoundError, and ValueError that names file and line: not JSON, a field that is missing or of a wrong
    type, an entity that is there twice, a head or tail that is no entity.
    """
    folder = Path(folder).expanduser()
    entities: dict[str, Entity] = {}
    for where, record in _records(folder / ENTITIES):
        entity = _entity(record, where)
        if entity.id in entities:
            raise ValueError(f"{where}: entity {entity.id!r} is there twice")
        entities[entity.id] = entity
    triples = []
    for where, record in _records(folder / TRIPLES):
        triple = Triple(*(_field(record, name, str, where) for name in Triple._fields))
        for end in (triple.head, triple.tail):
            if end not in entities:
                raise ValueError(f"{where}: {end!r} is no entity; add it to {ENTITIES}")
        triples.append(triple)
    known: dict[str, Any] = {"files": [], "failed": []}
    if (folder / MANIFEST).is_file():
        try:
            known |= json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(f"{MANIFEST}: not a JSON object ({error})") from error
    return build_graph(entities.values(), triples, known)


def _records(path: Path) -> Iterator[tuple[str, dict]]:
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: no such file; a graph is {ENTITIES} and {TRIPLES} in one folder")
    for where, _, record in row_files.jsonl(path.name, path):
        yield where, record


def _entity(record: dict, where: str) -> Entity:
    name, entity_type = (_field(record, key, str, where) for key in ("id", "type"))
    status = UNRESOLVED if name.startswith(_NOT_RESOLVED) else EXTERNAL if entity_type == UNKNOWN else DEFINED
    record = Entity._field_defaults | {"name": name.rpartition(".")[2], "status": status} | record
    found = Entity(*(_field(record, key, int if key.endswith("line") else str, where) for key in Entity._fields))
    if found.status not in STATUSES:
        raise ValueError(f"{where}: status={found.status!r}: must be one of {', '.join(STATUSES)}")
    return found


def _field(record: dict, name: str, kind: type, where: str) -> Any:
    if type(record.get(name)) is not kind:
        found = repr(record[name]) if name in record else "missing"
        raise ValueError(
            f"{where}: field {name!r} is {found}; it must be {'text' if kind is str else 'a whole number'}"
        )
    return record[name]


def _lines(records: Iterable[Entity | Triple]) -> list[str]:
    encode = json.JSONEncoder().encode
    return [encode(record._asdict()) + "\n" for record in records]


def _most_first(values: Iterable[str]) -> dict[str, int]:
    return dict(sorted(Counter(values).items(), key=lambda item: (-item[1], item[0])))
