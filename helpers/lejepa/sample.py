"""Pairs and documents out of the docstrings of the installed Python's standard library.

Real text about real things, on every machine, without a network. Sources are parsed, never imported; the texts are read
where they lie, and none is part of this package.
"""

from __future__ import annotations

import ast
import os
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n\s*\n")
MIN_WORDS = 4  # of the text that is to be found; shorter ones ("See above.") say nothing
# Third-party and generated code, tests, and two tables of literals that have no docstrings but take long to parse.
_LEFT_OUT = {"site-packages", "dist-packages", "__pycache__", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "encodings"}  # fmt: skip


@dataclass(frozen=True)
class Docstring:
    name: str  # "textwrap.TextWrapper.fill", or a module's name
    signature: str  # "(self, text)", "" of a module
    text: str  # without the indentation


def docstrings(folder: str | Path | None = None) -> list[Docstring]:
    """Docstrings of all modules, public classes and public functions below `folder`, by path and line.

    folder: of .py files; None: the running interpreter's standard library, without tests. Another version of Python has
        other docstrings.

    Raises FileNotFoundError where there is no source (a Python packed into a zip file) or no docstring in it.
    """
    root = Path(sysconfig.get_paths()["stdlib"] if folder is None else folder)
    found = [docstring for path in _files(root) for docstring in _of_file(path, root)]
    if not found:
        raise FileNotFoundError(
            f"{root}: no Python source with docstrings here; give data_source a file or folder of your own"
        )
    return found


def _files(root: Path) -> Iterator[Path]:
    for folder, inner, files in os.walk(root):
        inner[:] = sorted(name for name in inner if name not in _LEFT_OUT and not name.startswith((".", "config-")))
        yield from (Path(folder, name) for name in sorted(files) if name.endswith(".py"))


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
        yield Docstring(name, f"({inside})" if function or inside else "", text)
    for child in () if function else node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield from _of_node(child, f"{name}.{child.name}")


def pairs(found: list[Docstring]) -> list[tuple[str, str]]:
    """(anchor, positive) of each docstring that has enough to say.

    The anchor is name and signature, and the first sentence where at least four words follow it; the positive is what
    follows, or the whole docstring.
    """
    rows = []
    for docstring in found:
        first, *rest = _SENTENCE.split(docstring.text, maxsplit=1)
        what = f"{docstring.name}{docstring.signature}"
        if rest and len(rest[0].split()) >= MIN_WORDS:
            rows.append((f"{what}: {' '.join(first.split())}", rest[0].strip()))
        elif len(docstring.text.split()) >= MIN_WORDS:
            rows.append((what, docstring.text))
    return rows


def documents(found: list[Docstring]) -> list[str]:
    """Name, signature and docstring as one text."""
    return [f"{d.name}{d.signature}\n{d.text}" for d in found if len(d.text.split()) >= MIN_WORDS]
