"""Entities of source code and the triples between them; read from JSON Lines of one's own, or kept between two questions."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from helpers.graphmer.graph.ontology import UNKNOWN

DEFINED = "defined"  # in the sources
EXTERNAL = "external"  # outside of them, known by its full name through an import or as a builtin
UNRESOLVED = "unresolved"  # mentioned, but nothing in the sources says for certain what it is
_NOT_RESOLVED = "?."  # before the name of what is
ENTITIES, TRIPLES = "entities.jsonl", "triples.jsonl"


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
    """Every head and tail is a key of `entities`; both are sorted, no triple is there twice.

    manifest: files, with path, module, language and sha256 of each source; failed, with path and error of each that could not be
        read. sites: the lines of the head's file that say a call or an instantiation.
    """

    entities: dict[str, Entity] = field(repr=False)
    triples: tuple[Triple, ...] = field(repr=False)
    manifest: dict[str, Any] = field(default_factory=dict, repr=False)
    sites: dict[Triple, tuple[int, ...]] = field(default_factory=dict, repr=False, compare=False)

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
        content = json.dumps([[*self.entities.values()], self.triples])
        return hashlib.sha256(content.encode()).hexdigest()


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
    by_name = {name: by_id[name] for name in sorted(by_id)}
    return KnowledgeGraph(by_name, tuple(map(Triple._make, ordered)), manifest, lines)


def read_graph(folder: str | Path) -> KnowledgeGraph:
    """A graph of one's own: `{"id", "type"}` and `{"head", "relation", "tail"}` a line suffice.

    Raises FileNotFoundError, and ValueError that names file and line: not JSON, a field that is missing or of a wrong
    type, an entity that is there twice, a head or tail that is no entity.
    """
    folder = Path(folder).expanduser()
    entities: dict[str, Entity] = {}
    for where, record in _records(folder / ENTITIES):
        given = _checked(record, where, ("id", "type"), Entity)
        status = UNRESOLVED if given["id"].startswith(_NOT_RESOLVED) else DEFINED
        status = EXTERNAL if status == DEFINED and given["type"] == UNKNOWN else status
        entity = Entity(**{"name": given["id"].rpartition(".")[2], "status": status} | given)
        if entity.status not in (DEFINED, EXTERNAL, UNRESOLVED):
            raise ValueError(f"{where}: status={entity.status!r}: must be one of {DEFINED}, {EXTERNAL}, {UNRESOLVED}")
        if entity.id in entities:
            raise ValueError(f"{where}: entity {entity.id!r} is there twice")
        entities[entity.id] = entity
    triples = []
    for where, record in _records(folder / TRIPLES):
        triple = Triple(**_checked(record, where, Triple._fields, Triple))
        if unknown := {triple.head, triple.tail} - entities.keys():
            raise ValueError(f"{where}: {min(unknown)!r} is no entity; add it to {ENTITIES}")
        triples.append(triple)
    return build_graph(entities.values(), triples, {"files": [], "failed": []})


def _records(path: Path) -> Iterator[tuple[str, dict]]:
    from helpers.data import data_files

    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: no such file; a graph is {ENTITIES} and {TRIPLES} in one folder")
    for where, _, record in data_files.jsonl(path.name, path):
        yield where, record


def _checked(record: dict, where: str, required: Iterable[str], kind: type[Entity | Triple]) -> dict[str, Any]:
    """The fields of a record that its kind has. Raises ValueError: one is missing, or of another type."""
    for name in dict.fromkeys((*required, *(name for name in kind._fields if name in record))):
        wanted = int if name.endswith("line") else str
        if type(record.get(name)) is not wanted:
            found = repr(record[name]) if name in record else "missing"
            raise ValueError(
                f"{where}: field {name!r} is {found}; it must be {'text' if wanted is str else 'a whole number'}"
            )
    return {name: record[name] for name in kind._fields if name in record}


# ---- kept between two questions: one JSON file a repository, whole or absent

# What a file that others wrote may be: no JSON, JSON of another form.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


def kept_graph(repository: Path, folder: str | Path | None, digest: str) -> KnowledgeGraph | None:
    """The graph that was kept for this digest; None where there is none, or one that is damaged."""
    try:
        kept = json.loads(_file(repository, folder).read_bytes())
        if kept["digest"] != digest:
            return None
        entities = [Entity._make(row) for row in kept["entities"]]
        names = [entity.id for entity in entities]
        triples, sites = [], {}
        for head, relation, tail, *lines in kept["triples"]:
            triple = Triple(names[head], kept["relations"][relation], names[tail])
            triples.append(triple)
            if lines:
                sites[triple] = tuple(lines)
        return KnowledgeGraph(dict(zip(names, entities, strict=True)), tuple(triples), kept["manifest"], sites)
    except _UNREADABLE:
        return None


def keep_graph(repository: Path, folder: str | Path | None, digest: str, graph: KnowledgeGraph) -> None:
    """Keeps a graph in place of the repository's former one; where nothing can be written, nothing is kept."""
    places = {name: place for place, name in enumerate(graph.entities)}
    relations = sorted({triple.relation for triple in graph.triples})
    numbers = {name: number for number, name in enumerate(relations)}
    triples = [
        (places[each.head], numbers[each.relation], places[each.tail], *graph.sites.get(each, ()))
        for each in graph.triples
    ]
    kept = {
        "digest": digest,
        "relations": relations,
        "entities": list(graph.entities.values()),
        "triples": triples,
        "manifest": graph.manifest,
    }
    file = _file(repository, folder)
    unfinished = None
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=file.parent, suffix=".unfinished", delete=False) as written:
            unfinished = written.name
            json.dump(kept, written, separators=(",", ":"))
        Path(unfinished).replace(file)
    except OSError:  # a full disk, a home that is read-only
        if unfinished:
            with contextlib.suppress(OSError):
                Path(unfinished).unlink()


def _file(repository: Path, folder: str | Path | None) -> Path:
    if folder is None:
        home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
        folder = Path(home) / "graphmer"
    name = hashlib.sha256(str(repository.resolve()).encode()).hexdigest()[:32]
    return Path(folder).expanduser() / f"{name}.json"
