"""The knowledge graph of a data source: sources in Python and Java, an index of any language, or a graph that was written before."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from helpers.graphmer.graph.java_source import java_graph
from helpers.graphmer.graph.knowledge_graph import DEFINED, STATUSES, TRIPLES, KnowledgeGraph, build_graph, read_graph
from helpers.graphmer.graph.python_source import python_graph
from helpers.graphmer.graph.scip import INDEX, scip_graph
from helpers.graphmer.graph.sources import standard_library


def load_graph(data_source: str | Path | Sequence[str | Path], *, include_tests: bool | None = None) -> KnowledgeGraph:
    """The graph of `data_source`.

    data_source: "sample" (the standard library of the running Python), a folder with triples.jsonl and entities.jsonl
        or with index.scip, or one or several folders of Python and Java sources.
    include_tests: folders called test or tests, too. Default: not those of the sample, but those of other sources.

    Raises FileNotFoundError, ValueError (no sources, malformed JSONL) and ImportError (Java without its parser).
    """
    if data_source == "sample":
        return python_graph([standard_library()], include_tests=bool(include_tests))
    folders = [data_source] if isinstance(data_source, str | Path) else list(data_source)
    if len(folders) == 1 and (Path(folders[0]).expanduser() / TRIPLES).is_file():
        return read_graph(folders[0])
    if len(folders) == 1 and (Path(folders[0]).expanduser() / INDEX).is_file():
        return scip_graph(folders[0])
    include_tests = include_tests is not False
    graphs = [read(folders, include_tests=include_tests) for read in (python_graph, java_graph)]
    graphs = [graph for graph in graphs if graph.manifest["files"] or graph.manifest["failed"]]
    if not graphs:
        raise ValueError(f'data_source={data_source!r}: no .py and no .java file; use "sample" or another folder')
    if not any(graph.manifest["files"] for graph in graphs):
        failed = [f"{each['path']} ({each['error']})" for graph in graphs for each in graph.manifest["failed"]]
        raise ValueError(
            f"data_source={data_source!r}: none of its {len(failed)} files can be read as Python 3 or Java: "
            f"{', '.join(failed[:3])}; give another folder"
        )
    return graphs[0] if len(graphs) == 1 else _merged(*graphs)


def _merged(python: KnowledgeGraph, java: KnowledgeGraph) -> KnowledgeGraph:
    """One graph of both languages; a name that both define would be two things under one id."""
    for name in python.entities.keys() & java.entities.keys():
        if python.entities[name].status == java.entities[name].status == DEFINED:
            raise ValueError(f"{name}: defined in Python and in Java; give the two as folders of different names")
    both = sorted(
        (*python.entities.values(), *java.entities.values()), key=lambda entity: STATUSES.index(entity.status)
    )
    manifest = python.manifest | {key: python.manifest[key] + java.manifest[key] for key in ("files", "failed")}
    return build_graph(both, (*python.triples, *java.triples), manifest)
