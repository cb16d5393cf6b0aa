"""python -m helpers.graphmer ask NAME [called_by|calls|impact]    who uses a definition, what it calls, what a change of it reaches
python -m helpers.graphmer search "QUESTION"                    functions and classes that fit a question best

Asked is about the repository in the present folder, or in that of --folder. With --json an answer is one JSON object, for a program or a
coding agent. To train from the shell, run the notebook: `python -m helpers.batch notebooks/graphmer_se.ipynb --output-dir runs
config=mine.yaml max_steps=1000 data_source=my/repository`.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from .ask import Asked
from .graph.index import read_index


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints answers. What cannot be asked ends with exit code 2."""
    parser = argparse.ArgumentParser(
        prog="python -m helpers.graphmer", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=("ask", "search"))
    parser.add_argument(
        "name", help="package.module.function, or an end of it that no other has; or a question in words"
    )
    parser.add_argument("relation", nargs="?", default="called_by", help="called_by, calls or impact")
    parser.add_argument(
        "--model", help="folder of a sentence encoder, such as `search_model` of a run; else BM25 alone"
    )
    parser.add_argument("--folder", default=".", help="of Python sources; default: the present one")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args(arguments)
    try:
        report = answer(options)
    except (ValueError, FileNotFoundError, ImportError) as error:
        parser.error(str(error))
    if options.json:
        print(json.dumps(report))
        return 0
    counts = [f"{number:,} {status}" for status, number in report.get("count", {}).items()]
    print(f"{report['name']} {report['relation']}: {', '.join(counts) or len(report['answers']) or 'nothing'}")
    for row in [*report["answers"], *report["unread"]]:
        print("  ".join(str(value) for value in row.values() if value != ""))
    return 0


def answer(options):
    """What a command asks for."""
    folder = os.path.realpath(options.folder)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    digest = hashlib.sha256(folder.encode()).hexdigest()
    keep_in = caches / "graphmer" / digest[:32]
    index = read_index(folder, keep_in)
    if options.command == "ask":
        return Asked(index).report(options.name, options.relation)
    from .search import search

    hits = search(index, options.name, model=options.model)
    answers = [hit._asdict() for hit in hits]
    return {"name": options.name, "relation": "search", "answers": answers, "unread": index.failed}


if __name__ == "__main__":
    sys.exit(main())
