"""Pairs out of the docstrings of the installed Python's standard library, which no download needs.

Sources are parsed, never imported; the texts are read where they lie, and none is part of this package.
"""

import ast
import functools
import itertools
import re
import sysconfig
from collections.abc import Iterator
from pathlib import Path

# Third-party code, tests, and generated tables that take long to parse.
LEFT_OUT = {"site-packages", "dist-packages", "test", "tests", "idle_test", "lib2to3", "pydoc_data", "encodings"}
SAMPLE_PAIRS = 1500  # a third of the standard library is enough to show a run
LEAST_WORDS = 4  # of an answer; shorter ones ("See above.") say nothing


def pairs() -> Iterator[tuple[str, str]]:
    """`module.name: first sentence` and the rest of the docstring, by path and line."""
    root = Path(sysconfig.get_paths()["stdlib"])
    for path in sorted(root.rglob("*.py")):
        if LEFT_OUT & {*path.relative_to(root).parts}:
            continue
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # templates and files for other versions of Python
            continue
        for node in ast.walk(tree):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            first, *rest = re.split(r"(?<=[.!?])\s+|\n\s*\n", ast.get_docstring(node) or "", maxsplit=1)
            if rest and len(rest[0].split()) >= LEAST_WORDS:
                yield f"{path.stem}.{node.name}: {' '.join(first.split())}", rest[0].strip()


@functools.cache
def first_pairs() -> tuple[tuple[str, str], ...]:
    """The data of `data_source="sample"`."""
    return tuple(itertools.islice(pairs(), SAMPLE_PAIRS))


def texts() -> Iterator[str]:
    """The texts from which the model of `base_model="sample"` has its words."""
    return itertools.chain.from_iterable(first_pairs())
