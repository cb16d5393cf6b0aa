"""Entities of source code and the triples between them; and how a graph is kept between two questions."""

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
        return (triple for triple in self.triples if not triple.tail.startswith(_NOT_RESOLVED))

    def digest(self) -> str:
        """sha256 over entities and triples: the same string means the same graph."""
        content = json.dumps([[*self.entities.values()], self.triples])
        return hashlib.sha256(content.encode()).hexdigest()


def build_graph(
    entities: Iterable[Entity],
    triples: Iterable[tuple[str, str, str]],
    manifest: dict[str, Any],
    sites: Mapping[Triple, Iterable[int]],
) -> KnowledgeGraph:
    """Sorts both and drops repeated triples; of two entities with one id the first stays, `unresolved` ones are added."""
    by_id: dict[str, Entity] = {}
    for entity in entities:
        by_id.setdefault(entity.id, entity)
    # not a set: sources come almost in order, which sorts in a third of the time
    ordered = sorted(dict.fromkeys(triples))
    for _, _, tail in ordered:
        if tail.startswith(_NOT_RESOLVED):
            by_id[tail] = Entity(tail, UNKNOWN, tail.removeprefix(_NOT_RESOLVED), UNRESOLVED)
    lines = {triple: tuple(sorted(set(at))) for triple, at in sites.items()}
    by_name = {name: by_id[name] for name in sorted(by_id)}
    return KnowledgeGraph(by_name, tuple(map(Triple._make, ordered)), manifest, lines)


# ---- kept between two questions: one file a repository, whole or absent

# What a file that others wrote may be: no JSON, JSON of another form.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def cache_folder(folder: str | Path | None) -> Path:
    """`folder`, or the user's own for what is kept."""
    with contextlib.suppress(RuntimeError):  # there is no home
        return Path(folder or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/graphmer").expanduser()
    return Path(tempfile.gettempdir(), "graphmer")


def keep(file: Path, content: bytes) -> None:
    """Writes a file of which no reader finds half; where nothing can be written, nothing is kept."""
    unfinished = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk, a home that is read-only
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(file)


def kept_graph(file: Path, digest: str) -> KnowledgeGraph | None:
    """The graph that was kept for this digest; None where there is none, or one that is damaged."""
    try:
        said, rows, kept, lines, manifest = json.loads(file.read_bytes())
        entities = {row[0]: Entity._make(row) for row in rows}
        triples = tuple(map(Triple._make, kept))
        sites = {triple: tuple(each) for triple, each in zip(triples, lines, strict=True) if each}
        return KnowledgeGraph(entities, triples, manifest, sites) if said == digest else None
    except _UNREADABLE:
        return None


def keep_graph(file: Path, digest: str, graph: KnowledgeGraph) -> None:
    """Keeps a graph in place of the repository's former one."""
    lines = [graph.sites.get(triple, ()) for triple in graph.triples]
    kept = [digest, [*graph.entities.values()], graph.triples, lines, graph.manifest]
    keep(file, json.dumps(kept, separators=(",", ":")).encode())
