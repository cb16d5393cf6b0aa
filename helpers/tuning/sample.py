"""Texts that need no network: docstrings of the installed Python, labelled by package."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Packages that every installed Python has; which of them a docstring is from is its label.
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sample_rows() -> Iterator[dict[str, str]]:
    """A docstring as `text` and its package as `label`."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        for file in sorted((library / package).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_bytes())):
                text = isinstance(node, DOCUMENTED) and ast.get_docstring(node)
                if text:
                    yield {"text": text, "label": package}
