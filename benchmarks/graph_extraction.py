"""Time to extract the knowledge graph of the standard library, as a multiple of parsing the same files with `ast` alone.

    python benchmarks/graph_extraction.py

Both sides take turns in one process. Prints one line of JSON a comparison and writes all of them, with the machine and the
graph's counts, to docs/results.
"""

from __future__ import annotations

import argparse
import ast
import gc
import json
import os
import platform
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from helpers.graphmer.knowledge_graph import KnowledgeGraph, load_graph  # noqa: E402
from helpers.graphmer.ontology import read_ontology  # noqa: E402
from helpers.graphmer.sources import find_sources, standard_library  # noqa: E402
from helpers.graphmer.validation import validate  # noqa: E402

TARGET_RATIO = 2.0  # at most
TARGET_TYPED_SHARE = 0.995


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/graph_extraction_cpu.json")
    parser.add_argument("--repetitions", type=int, default=5, help="of each side, taking turns; at least 3")
    arguments = parser.parse_args()
    if arguments.repetitions < 3:
        parser.error(f"--repetitions {arguments.repetitions}: must be at least 3 for a median")
    warnings.simplefilter("ignore")  # of invalid escapes in the standard library
    machine = describe()
    results = compare(arguments.repetitions)
    for result in results:
        print(json.dumps(result), flush=True)
    report = {
        "machine": machine | {"load_average_after": load_average()},
        "repetitions": arguments.repetitions,
        "comparisons": results,
        "graph": describe_graph(load_graph("sample")),
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def compare(repetitions: int) -> list[dict]:
    """CPU seconds of each side: another process on the machine costs neither of them.

    Extraction finds, reads, hashes and parses the files and ends with the sorted graph in memory; the peer parses what was
    read beforehand, with Python's collector as the interpreter has it and without. No graph is alive meanwhile: with one
    the collector would cost the peer twice its time.
    """
    sources = [source.read()[0] for source in find_sources([standard_library()], ".py", include_tests=False)]
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


# ---- the machine


def describe() -> dict:
    return {
        "device": cpu_name(),
        "cpus": os.cpu_count(),
        "load_average_before": load_average(),
        "python": platform.python_version(),
    }


def cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    lines = cpuinfo.read_text(encoding="utf-8").splitlines() if cpuinfo.exists() else []
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())


def load_average() -> float | None:
    """Processes that want a CPU, over the last minute: above `cpus`, others were running."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


if __name__ == "__main__":
    main()
