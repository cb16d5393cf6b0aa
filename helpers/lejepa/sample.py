"""Pairs and documents out of the docstrings of the installed Python's standard library.

Sources are parsed, never imported; the texts are read where they lie, and none is part of this package.
"""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
MIN_WORDS = 4  # of the text that is to be found; shorter ones ("See above.") say nothing
# Third-party and generated code, tests, and two tables of literals that have no docstrings but take long to parse.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "encodings"}  # fmt: skip


class Docstring(NamedTuple):
    name: str  # "textwrap.TextWrapper.fill(self, text)", or a module's name
    text: str  # without the indentation


def docstrings(folder: str | Path | None = None) -> list[Docstring]:
    """Docstrings of all modules, public classes and public functions below `folder`, by path and line.

    None: of the running interpreter's standard library, without tests. Raises FileNotFoundError where there is none.
    """
    root = Path(sysconfig.get_paths()["stdlib"] if folder is None else folder)
    paths = [path for path in root.rglob("*.py") if not _LEFT_OUT & set(path.relative_to(root).parts)]
    paths.sort(key=lambda path: [*((True, part) for part in path.parts[:-1]), (False, path.name)])  # folders last
    found = [docstring for path in paths for docstring in _of_file(path, root)]
    if not found:
        raise FileNotFoundError(
            f"{root}: no Python source with docstrings here; give data_source a file or folder of your own"
        )
    return found


def _of_file(path: Path, root: Path) -> Iterator[Docstring]:
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # templates and files for other versions of Python
        return
    parts = path.relative_to(root).with_suffix("").parts
    yield from _of_node(tree, ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts))


def _of_node(node: ast.AST, name: str) -> Iterator[Docstring]:
    function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    if text := (ast.get_docstring(node) or "").strip():
        inside = ast.unparse(node.args) if function else ", ".join(map(ast.unparse, getattr(node, "bases", ())))
        yield Docstring(f"{name}({inside})" if function or inside else name, text)
    for child in () if function else node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield from _of_node(child, f"{name}.{child.name}")


def pairs(found: list[Docstring]) -> list[tuple[str, str]]:
    """(anchor, positive) of each docstring: `name(signature): first sentence` and the rest, or where that is short the name and all."""
    rows = []
    for docstring in found:
        first, *rest = _SENTENCE.split(docstring.text, maxsplit=1)
        if rest and len(rest[0].split()) >= MIN_WORDS:
            rows.append((f"{docstring.name}: {' '.join(first.split())}", rest[0].strip()))
        elif len(docstring.text.split()) >= MIN_WORDS:
            rows.append((docstring.name, docstring.text))
    return rows


def documents(found: list[Docstring]) -> list[str]:
    """A text of each docstring that is not too short: a line `name(signature)`, then the docstring."""
    return [f"{each.name}\n{each.text}" for each in found if len(each.text.split()) >= MIN_WORDS]
