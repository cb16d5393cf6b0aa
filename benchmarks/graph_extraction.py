"""Time to extract the knowledge graph of the standard library, as a multiple of parsing the same files with `ast` alone.

    python benchmarks/graph_extraction.py

Both sides take turns in one process. Prints one line of JSON a comparison and writes all of them, with the machine and the
graph's counts, to docs/results.
"""

from __future__ import annotations

import ast
import gc
import json
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import KnowledgeGraph
from helpers.graphmer.graph.ontology import read_ontology, validate
from helpers.graphmer.graph.sources import find_sources, standard_library

TARGET_RATIO = 2.0  # at most
TARGET_TYPED_SHARE = 0.995


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=5, devices=("cpu",))
    arguments = report.parsed(parser, "graph_extraction")
    warnings.simplefilter("ignore")  # of invalid escapes in the standard library
    machine = report.machine(arguments.device)
    results = compare(arguments.repetitions)
    for result in results:
        print(json.dumps(result), flush=True)
    report.write(
        arguments.output,
        machine,
        repetitions=arguments.repetitions,
        comparisons=results,
        graph=describe_graph(load_graph("sample")),
    )


def compare(repetitions: int) -> list[dict]:
    """CPU seconds of each side: another process on the machine costs neither of them.

    Extraction finds, reads, hashes and parses the files and ends with the sorted graph in memory; the peer parses what was
    read beforehand, with Python's collector as the interpreter has it and without. No graph is alive meanwhile: with one
    the collector would cost the peer twice its time.
    """
    files = find_sources(standard_library(), include_tests=False).files
    sources = [(standard_library() / file).read_bytes() for file in files if file.endswith(".py")]
    times = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(-1, repetitions):  # the first is a warm-up
            graph, extraction = timed(lambda: load_graph("sample"))
            _, writing = timed(lambda graph=graph: graph.write(folder))
            del graph
            _, parsing = timed(lambda: parse(sources))
            _, uncollected = timed(lambda: parse_uncollected(sources))
            if turn >= 0:
                times["extraction"].append(extraction)
                times["extraction and JSONL files"].append(extraction + writing)
                times["ast.parse"].append(parsing)
                times["ast.parse, collector off"].append(uncollected)
    return [
        compared(times, what, peer, TARGET_RATIO if what == "extraction" else None)
        for what in ("extraction", "extraction and JSONL files")
        for peer in ("ast.parse", "ast.parse, collector off")
    ]


def compared(times: dict[str, list[float]], what: str, peer: str, target: float | None) -> dict:
    ours, theirs = times[what], times[peer]
    ratios = [mine / other for mine, other in zip(ours, theirs, strict=True)]
    return {
        "comparison": what,
        "peer": peer,
        "target_ratio": target,
        "ratio": round(statistics.median(ours) / statistics.median(theirs), 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        "ours_seconds": [round(seconds, 3) for seconds in sorted(ours)],
        "peer_seconds": [round(seconds, 3) for seconds in sorted(theirs)],
    }


def parse(sources: list[bytes]) -> None:
    for source in sources:
        ast.parse(source)


def parse_uncollected(sources: list[bytes]) -> None:
    gc.disable()
    try:
        parse(sources)
    finally:
        gc.enable()


def timed(call: Callable) -> tuple[Any, float]:
    gc.collect()
    begin = time.process_time()
    result = call()
    return result, time.process_time() - begin


def describe_graph(graph: KnowledgeGraph) -> dict:
    checked = validate(graph, read_ontology())
    return {
        "files": len(graph.manifest["files"]),
        "failed": len(graph.manifest["failed"]),
        "entities": len(graph.entities),
        "triples": len(graph.triples),
        **graph.counts(),
        "typed_share": checked.typed_share,
        "target_typed_share": TARGET_TYPED_SHARE,
        "undetermined": checked.undetermined,
        "violations": checked.counts,
        "same_in_a_second_run": load_graph("sample").digest() == graph.digest(),
    }


if __name__ == "__main__":
    main()
