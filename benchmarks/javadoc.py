"""Javadoc in front of Java methods: its first sentence in plain words, and the source without it."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Callable
from functools import cache

from helpers.graphmer.text.documents import Documents, shown_name

JAVADOC = "/**"
MARKUP = re.compile(r"\{@(?P<tag>\w+)\s*(?P<text>(?:[^{}]|\{[^{}]*\})*)\}|</?[a-zA-Z][^>]*>")


def split_javadoc(source: str) -> tuple[str, str] | None:
    """First sentence of the Javadoc that Java source begins with, in plain words, and the source without it; None if it says nothing."""
    comment, _, code = source.removeprefix(JAVADOC).partition("*/")
    lines = re.sub(r"(?m)^[ \t]*\*+", "", comment)
    description = re.split(r"(?m)^\s*@", lines, maxsplit=1)[0]  # before @param and the like
    for paragraph in re.split(r"\n\s*\n|<[pP]\s*/?>", description):
        if plain := " ".join(html.unescape(MARKUP.sub(_shown, paragraph)).split()):
            return re.split(r"(?<=[.!?])\s", plain, maxsplit=1)[0], code.lstrip("\n")
    return None


def _shown(found: re.Match) -> str:
    """What a reader sees of `{@code text}`, `{@link Type#method text}` and `<b>`."""
    tag, text = found["tag"], found["text"] or ""
    if tag in ("link", "linkplain"):
        target, _, label = text.strip().partition(" ")
        return label or target.lstrip("#").replace("#", ".")
    return text if tag else " "


def javadoc_above(module: str, line: int) -> str:
    """The Javadoc that ends right above a line of a module's text, and a newline; "" without one."""
    above = "\n".join(module.split("\n")[: line - 1]).rstrip()
    before = above.rfind("*/", 0, -2)
    start = above.find("/*", before + 2 if before >= 0 else 0)
    is_javadoc = above.endswith("*/") and above.startswith(JAVADOC, start) and len(above) - start > len("/**/")
    return textwrap.dedent(f"{above[start:]}\n") if is_javadoc else ""


def with_javadoc(documents: Documents) -> Callable[[str], str]:
    """Texts of Java entities with the Javadoc, which stands above the lines that define them."""
    source_of = cache(lambda module: "".join(documents.sources({module})))

    def text(name: str) -> str:
        entity, header = documents.graph.entities[name], f"{shown_name(name)}\n"
        javadoc = javadoc_above(source_of(entity.module), entity.line)
        return header + javadoc + documents.text(name).removeprefix(header)

    return text
