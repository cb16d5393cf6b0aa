"""python -m helpers.graphmer ask REPOSITORY NAME [called_by|calls|impact]   what the sources prove, without a model
python -m helpers.graphmer impact REPOSITORY NAME                        all that a change of it reaches
python -m helpers.graphmer search REPOSITORY "QUESTION"                  functions and classes that fit a question best
python -m helpers.graphmer mcp REPOSITORY                                a server for a coding agent (pip install mcp)

With --json an answer is one JSON object. To train from the shell, run the notebook: `python -m helpers.batch
notebooks/graphmer_se.ipynb --output-dir runs config=mine.yaml max_steps=1000 data_source=my/repository`.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints answers. What cannot be asked ends with exit code 2."""
    parser = _parser()
    options = parser.parse_args(arguments)
    try:
        options.action(options)
    except (ValueError, FileNotFoundError, ImportError) as error:
        parser.error(str(error))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m helpers.graphmer")
    commands = parser.add_subparsers(metavar="ask | impact | search | mcp", required=True)
    ask = commands.add_parser("ask", help="who uses a function or class, from the sources alone")
    impact = commands.add_parser("impact", help="everything that a change of a function or class affects")
    search = commands.add_parser("search", help="functions and classes that match a question best")
    server = commands.add_parser("mcp", help="a server for coding agents (Model Context Protocol)")
    for command, action in ((ask, _ask), (impact, _ask), (search, _search), (server, _serve)):
        command.add_argument("repository", help="folder of Python and Java sources")
        command.set_defaults(action=action, relation="impact")
    for command, limit in ((ask, 20), (impact, 20), (search, 5)):
        command.add_argument(
            "--most", type=int, default=limit, help=f"answers to show for each status; default {limit}"
        )
        command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    for command in (ask, impact):
        command.add_argument("name", help="package.module.function, or a unique end of it")
    ask.add_argument("relation", nargs="?", default="called_by", help="called_by (the default), calls or impact")
    search.add_argument("question", help="what the function does, in words")
    search.add_argument(
        "--model", help="folder of a sentence encoder, such as `search_model` of a run; else BM25 alone"
    )
    return parser


def _ask(options: argparse.Namespace) -> None:
    from .ask import Asked

    report = Asked(options.repository).report(options.name, options.relation, options.most)
    if options.json:
        print(json.dumps(report))
        return
    counts = [f"{number:,} {status}" for status, number in report["count"].items()]
    summary = ", ".join(counts) or report["nothing"]
    _show(report["answers"], f"{report['name']} {report['relation']}: {summary}")
    _show_unread(report["unread"], options.most)


def _search(options: argparse.Namespace) -> None:
    report = _hits(options.repository, options.question, options.most, options.model)
    if options.json:
        print(json.dumps(report))
        return
    _show(report["hits"], options.question)
    _show_unread(report["unread"], options.most)


def _hits(repository: str, question: str, limit: int, model: str | None = None) -> dict[str, Any]:
    from .graph.repository import Repository
    from .search import search

    hits = search(repository, question, model=model, most=limit)
    return {"hits": [hit._asdict() for hit in hits], "unread": Repository(repository).failed}


def _serve(options: argparse.Namespace) -> None:
    """Answers over stdin and stdout until stdin ends; files that changed are read again at each question."""
    from .ask import Asked

    try:
        from mcp.server import MCPServer
    except ImportError:  # before mcp 2
        from mcp.server.fastmcp import FastMCP as MCPServer  # type: ignore[attr-defined, no-redef]  # other names there

    server, asked = MCPServer("graphmer"), Asked(options.repository)

    def report(name: str, relation: str, limit: int) -> dict[str, Any]:
        try:
            return asked.report(name, relation, limit)
        except ValueError as error:  # with near names, which the server would not pass on
            return {"error": str(error)}

    @server.tool()
    def ask(name: str, relation: str = "called_by", most: int = 50) -> dict[str, Any]:
        """Who uses a definition of the repository, or what it calls, proved from the sources, with file, line and kind of each.

        name: qualified name of a function, class, method or variable, or the end of one that no other has.
        relation: "called_by" for every use, "calls", or "impact" for all that a change reaches.
        status of an answer: "known" is proved; "one of" may be another of `could_be`; "inferred" is likely; "open" may be it.
        """
        return report(name, relation, most)

    @server.tool()
    def impact(name: str, most: int = 50) -> dict[str, Any]:
        """All definitions that a change of one reaches, nearest first, over uses that are proved."""
        return report(name, "impact", most)

    @server.tool()
    def search(question: str, most: int = 5) -> dict[str, Any]:
        """Functions and classes of the repository that fit a question in words best (BM25 over names and sources)."""
        return _hits(options.repository, question, most)

    server.run()


def _show_unread(failed: Sequence[dict], limit: int) -> None:
    if failed:
        _show(failed[:limit], f"{len(failed):,} files could not be read; the answers leave them out")


def _show(rows: Sequence[dict], caption: str) -> None:
    """Prints a line for each row. `helpers.show` would load pandas, which takes longer than an answer from a kept graph."""
    print(caption)
    for row in rows:
        print("  ".join(str(value) for value in row.values() if value != ""))


if __name__ == "__main__":
    sys.exit(main())
