"""Graphs of repositories kept between two questions: one JSON file a repository, whole or absent."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path

from helpers.graphmer.graph.knowledge_graph import Entity, KnowledgeGraph, Triple

# What a file that others wrote may be: no JSON, JSON of another form.
_UNREADABLE = (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError)


def read(repository: Path, folder: str | Path | None, digest: str) -> KnowledgeGraph | None:
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


def write(repository: Path, folder: str | Path | None, digest: str, graph: KnowledgeGraph) -> None:
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
