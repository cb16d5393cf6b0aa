"""The questions of the shell for a coding agent: a server of the Model Context Protocol (package mcp) over stdin and stdout."""

from pathlib import Path
from typing import Any

from .ask import Asked


def serve(repository: str | Path) -> None:
    """Answers until stdin ends; files that changed are read again at each question. Raises ImportError: no package mcp."""
    try:
        from mcp.server import MCPServer
    except ImportError:  # before mcp 2
        from mcp.server.fastmcp import FastMCP as MCPServer

    server, asked = MCPServer("graphmer"), Asked(repository)

    def report(name: str, relation: str, most: int) -> dict[str, Any]:
        try:
            return asked.report(name, relation, most)
        except ValueError as error:  # with near names, which the server would not pass on
            return {"error": str(error)}

    @server.tool()
    def ask(name: str, relation: str = "called_by", most: int = 50) -> dict[str, Any]:
        """Who uses a definition of the repository, or what it calls, proved from the sources, with file, line and kind of each.

        name: qualified name of a function, class, method or variable, or the end of one that no other has.
        relation: "called_by" for every use, "calls", or "impact" for all that a change reaches.
        status of an answer: "known" is proved; "one of" may be another of `could_be`; "inferred" is jedi's; "open" may be it.
        """
        return report(name, relation, most)

    @server.tool()
    def impact(name: str, most: int = 50) -> dict[str, Any]:
        """All definitions that a change of one reaches, nearest first, over uses that are proved."""
        return report(name, "impact", most)

    @server.tool()
    def search(question: str, most: int = 5) -> dict[str, Any]:
        """Functions and classes of the repository that fit a question in words best (BM25 over names and sources)."""
        from .search import search as search_words

        hits = search_words(repository, question, most=most)
        asked.repository.refresh()
        return {"hits": [hit._asdict() for hit in hits], "unread": asked.failed}

    server.run()
