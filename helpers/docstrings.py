"""Docstrings of the installed Python's standard library: real text about real things, on every machine, without a network.

Sources are parsed, never imported. The texts are read where they lie; none is part of this package.
"""

from __future__ import annotations

import ast
import os
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

# Third-party and generated code, tests, and two tables of literals that have no docstrings but take long to parse.
_LEFT_OUT = frozenset(
    {
        "site-packages",
        "dist-packages",
        "__pycache__",
        "test",
        "tests",
        "idle_test",
        "lib2to3",
        "pydoc_data",
        "encodings",
    }
)


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
    yield from _of_node(tree, ".".join(parts[:-1] if parts[-1] == "__init__" and len(parts) > 1 else parts), "")


def _of_node(node: ast.AST, name: str, signature: str) -> Iterator[Docstring]:
    text = ast.get_docstring(node)
    if text and text.strip():
        yield Docstring(name, signature, text.strip())
    for child in node.body:
        if isinstance(child, ast.ClassDef) and not child.name.startswith("_"):
            bases = ", ".join(ast.unparse(base) for base in child.bases)
            yield from _of_node(child, f"{name}.{child.name}", f"({bases})" if bases else "")
        elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            text = ast.get_docstring(child)
            if text and text.strip():
                yield Docstring(f"{name}.{child.name}", f"({ast.unparse(child.args)})", text.strip())
