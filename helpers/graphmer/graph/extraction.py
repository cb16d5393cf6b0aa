"""The knowledge graph of a data source: sources in Python and Java, or a graph that was written before."""

from __future__ import annotations

import hashlib
import os
import shutil
import warnings
from pathlib import Path

from helpers.graphmer.graph.java_source import NO_PARSER, java_graph
from helpers.graphmer.graph.knowledge_graph import (
    DEFINED,
    ENTITIES,
    STATUSES,
    TRIPLES,
    KnowledgeGraph,
    build_graph,
    read_graph,
)
from helpers.graphmer.graph.python_source import python_graph
from helpers.graphmer.graph.sources import find_sources, standard_library


def load_graph(data_source: str | Path, *, include_tests: bool | None = None) -> KnowledgeGraph:
    """The graph of `data_source`.

    data_source: "sample" (the standard library of the running Python), a folder with triples.jsonl and entities.jsonl,
        or a folder of Python and Java sources.
    include_tests: folders called test or tests, too. Default: not those of the sample, but those of other sources.

    Raises FileNotFoundError, ValueError (no sources, malformed JSONL) and ImportError (no parser, and nothing but Java).
    """
    if data_source == "sample":
        return python_graph(standard_library(), include_tests=bool(include_tests))
    folder = Path(data_source).expanduser()
    if (folder / TRIPLES).is_file():
        return read_graph(folder)
    include_tests = include_tests is not False
    graphs = [read(data_source, include_tests=include_tests) for read in (python_graph, java_graph)]
    graphs = [graph for graph in graphs if graph.manifest["files"] or graph.manifest["failed"]]
    if not graphs:
        raise ValueError(f'data_source={data_source!r}: no .py and no .java file; use "sample" or another folder')
    unparsed = sum(_unparsed(graph) for graph in graphs)
    unread = f"data_source={str(data_source)!r}: its Java files ({unparsed}) cannot be read. {NO_PARSER}"
    if not any(graph.manifest["files"] for graph in graphs):
        if unparsed:
            raise ImportError(unread)
        failed = [f"{each['path']} ({each['error']})" for graph in graphs for each in graph.manifest["failed"]]
        raise ValueError(
            f"data_source={str(data_source)!r}: none of its {len(failed)} files can be read as Python 3 or Java: "
            f"{', '.join(failed[:3])}; give another folder"
        )
    if unparsed:
        warnings.warn(unread, stacklevel=2)
    return graphs[0] if len(graphs) == 1 else _merged(*graphs)


def _unparsed(graph: KnowledgeGraph) -> int:
    return sum(each["error"].startswith(NO_PARSER) for each in graph.manifest["failed"])


def _merged(python: KnowledgeGraph, java: KnowledgeGraph) -> KnowledgeGraph:
    """One graph of both languages; a name that both define would be two things under one id."""
    for name in python.entities.keys() & java.entities.keys():
        if python.entities[name].status == java.entities[name].status == DEFINED:
            raise ValueError(f"{name}: defined in Python and in Java; rename one, or give one language alone")
    both = sorted(
        (*python.entities.values(), *java.entities.values()), key=lambda entity: STATUSES.index(entity.status)
    )
    manifest = python.manifest | {key: python.manifest[key] + java.manifest[key] for key in ("files", "failed")}
    return build_graph(both, (*python.triples, *java.triples), manifest)


def cached_graph(repository: str | Path, cache: str | Path | None = None, digest: str = "") -> KnowledgeGraph:
    """`load_graph`, kept in `cache` (default ~/.cache/graphmer) under the hash of the files, and found there the next time."""
    folder = Path(repository).expanduser()
    if (folder / TRIPLES).is_file():
        return load_graph(folder)
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "graphmer"
    kept = (home if cache is None else Path(cache).expanduser()) / (digest or sources_digest(folder))
    if (kept / TRIPLES).is_file():
        return read_graph(kept)
    graph = load_graph(folder)
    if _unparsed(graph):  # the next time the parser may be there
        return graph
    unfinished = kept.with_name(f"{kept.name}.{os.getpid()}")
    graph.write(unfinished)
    try:
        unfinished.rename(kept)
    except OSError:  # another process was faster
        shutil.rmtree(unfinished)
    return graph


def sources_digest(repository: str | Path) -> str:
    """Of the paths and contents of all sources, and of a graph that is there instead."""
    folder, digest = Path(repository).expanduser(), hashlib.sha256()
    for name in (TRIPLES, ENTITIES):
        if (folder / name).is_file():
            digest.update((folder / name).read_bytes())
    for suffix in (".py", ".java"):
        for source in find_sources(folder, suffix, include_tests=True):
            try:
                sha256 = source.read()[1]
            except OSError as error:
                sha256 = str(error)
            digest.update(f"{source.relative}\n{sha256}\n".encode())
    return digest.hexdigest()[:32]
