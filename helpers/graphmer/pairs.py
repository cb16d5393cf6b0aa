"""Pairs that a code search learns from: the first sentence of a docstring, and the definition without that docstring.

pairs(folders)                 a datasets.Dataset of question, code and package; nothing is imported
in_batches(rows, ...)          the rows of a run in the order in which they are trained on
"""

import ast
import itertools
import random
import re
import sysconfig
import textwrap
import warnings
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from datasets import Dataset

from .graph.sources import UNREADABLE, read_text

LEAST_WORDS, MOST_WORDS = 4, 40  # of a question; "See above." asks for nothing
MOST_PAIRS = 300  # of one package
ENOUGH = 6_000  # pairs of all packages
LEAST_HELD_OUT, MOST_HELD_OUT = 40, 100  # pairs of a package that is held out
LEFT_OUT = frozenset({"test", "tests", "testing", "testsuite", "idle_test", "conftest"})
LEFT_OUT |= {"site-packages", "dist-packages", "__pycache__", "node_modules", "lib2to3", "pydoc_data"}
LEFT_OUT |= {"_vendor", "_vendored", "vendored"}
STANDARD_LIBRARY = Path(sysconfig.get_paths()["stdlib"]).resolve()
DefinitionNode = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
PARAGRAPH, SENTENCE = re.compile(r"\n\s*\n"), re.compile(r"(?<=[.!?])\s")


class Definition(NamedTuple):
    """A function, method or class; `code` is its source without the docstring, of a class without its methods' bodies."""

    name: str  # qualified
    code: str
    sentence: str  # the first one of the docstring, "" without one

    @property
    def text(self) -> str:
        """What is searched: the qualified name and the source."""
        return f"{self.name}\n{self.code}"


def list_sources(root: Path) -> list[Path]:
    """Python files below a folder, but tests, copies of other packages and what is hidden."""
    sources = []
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_hidden_or_test = any(part.startswith((".", "test_")) for part in parts)
        if LEFT_OUT.isdisjoint(parts) and not is_hidden_or_test:
            sources.append(path)
    return sources


def read_file(path: Path, root: Path) -> list[Definition]:
    """Every definition of a file below `root`, none if it cannot be read. Names begin with that of `root`, but in the standard library."""
    try:
        text, _ = read_text(path)
        with warnings.catch_warnings(action="ignore"):  # of invalid escapes
            tree = ast.parse(text)
    except UNREADABLE:
        return []
    folder = root if root == STANDARD_LIBRARY else root.parent
    parts = path.relative_to(folder).with_suffix("").parts
    module = ".".join(parts).removesuffix(".__init__")
    return list(_read_body(tree, module, text.split("\n")))


def _read_body(node, owner, lines):
    for child in node.body:
        if isinstance(child, DefinitionNode):
            name = f"{owner}.{child.name}"
            yield Definition(name, _code_of(child, lines), first_sentence(ast.get_docstring(child) or ""))
            if isinstance(child, ast.ClassDef):
                yield from _read_body(child, name, lines)


def _code_of(node, lines):
    """Source lines without those of the docstring; of a class without the bodies of its methods."""
    parts = [(node, node.body[:1])] if ast.get_docstring(node) is not None else []
    if isinstance(node, ast.ClassDef):
        parts += [(method, method.body) for method in node.body if isinstance(method, DefinitionNode)]
    kept = {*range(min(part.lineno for part in (node, *node.decorator_list)), node.end_lineno + 1)}
    for header, body in parts:
        kept -= {*range(max(body[0].lineno, header.lineno + 1), body[-1].end_lineno + 1)}
    return textwrap.dedent("\n".join(lines[number - 1] for number in sorted(kept)))


def first_sentence(docstring: str) -> str:
    """The first sentence of the first paragraph, on one line."""
    paragraph = PARAGRAPH.split(docstring.strip(), maxsplit=1)[0]
    return SENTENCE.split(" ".join(paragraph.split()), maxsplit=1)[0]


def is_question(sentence: str) -> bool:
    """Whether a first sentence can be a question: words, and neither a doctest nor a table of fields."""
    if sentence.startswith((">>>", ":", "@", "..")):
        return False
    return LEAST_WORDS <= len(sentence.split()) <= MOST_WORDS


def installed_packages() -> list[Path]:
    """The standard library of the running Python, and the folders of the packages beside it."""
    site = Path(sysconfig.get_paths()["purelib"])
    return [STANDARD_LIBRARY, *sorted(path.parent for path in site.glob("*/__init__.py"))]


def pairs(folders: Sequence[str | Path], *, seed: int = 0) -> Dataset:
    """question, code and package of documented definitions of these folders, each folder a package.

    Files of a package are read in an order drawn with `seed`, until there are `MOST_PAIRS`. A question or a code that was there
    before is passed over.

    After `ENOUGH` pairs no further package is read. The first folder is read first, the others in a drawn order.
    """
    draw = random.Random(seed)
    first, *others = folders
    draw.shuffle(others)
    rows: list[dict[str, str]] = []
    used_texts: set[str] = set()
    for folder in (first, *others):
        root = Path(folder).expanduser().resolve()
        files = list_sources(root)
        draw.shuffle(files)
        package: list[dict[str, str]] = []
        for path in files:
            for definition in read_file(path, root) if len(package) < MOST_PAIRS else ():
                texts = {definition.sentence, definition.code}
                if is_question(definition.sentence) and used_texts.isdisjoint(texts):
                    used_texts |= texts
                    package.append({"question": definition.sentence, "code": definition.text, "package": root.name})
        rows += package[:MOST_PAIRS]
        if len(rows) >= ENOUGH:
            break
    return Dataset.from_list(rows)


class Pairs(NamedTuple):
    """No package is in two of them."""

    training: Dataset
    dev: Dataset  # chooses the checkpoint, and what the search is
    test: Dataset  # chooses nothing


def hold_out(rows: Dataset, *, dev: int, test: int, seed: int = 0) -> Pairs:
    """Parts the pairs by drawn packages, `dev` and `test` of them; the first package stays in training.

    Raises ValueError for too few packages.
    """
    places = _by_package(rows)
    own = rows[0]["package"]
    enough = [name for name in places if len(places[name]) >= LEAST_HELD_OUT and name != own]
    if len(enough) <= dev + test:
        raise ValueError(
            f"only {len(enough)} other packages have {LEAST_HELD_OUT} docstrings, and {dev + test} are needed to test: install more"
        )
    chosen = random.Random(seed).sample(enough, dev + test)
    held_out = [places.pop(name)[:MOST_HELD_OUT] for name in chosen]
    parts = (places.values(), held_out[:dev], held_out[dev:])
    return Pairs(*(rows.select([*itertools.chain(*part)]) for part in parts))


def _by_package(rows):
    places = defaultdict(list)
    for place, package in enumerate(rows["package"]):
        places[package].append(place)
    return places


def in_batches(rows: Dataset, *, batch_size: int, steps: int, seed: int) -> Dataset:
    """`steps` batches in a row: question and code, in the order in which a run is trained on them.

    All pairs of a batch are of one package, drawn by how many pairs it has: what else the batch holds, and what the loss takes for
    wrong answers, are then functions that a search has to tell apart. Packages too small for a batch fill batches together.

    Raises ValueError: fewer pairs than a batch has.
    """
    if len(rows) < batch_size:
        raise ValueError(f"batch_size={batch_size}: there are only {len(rows)} pairs; add packages, or lower it")
    groups: dict[str, list[int]] = defaultdict(list)
    for name, places in _by_package(rows).items():
        groups[name if len(places) >= batch_size else ""] += places
    small = groups.pop("", [])
    if len(small) >= batch_size:
        groups["small packages"] = small
    draw, order = random.Random(seed), []
    waiting: dict[str, list[int]] = defaultdict(list)
    for _ in range(steps):
        [name] = draw.choices([*groups], [*map(len, groups.values())])
        if len(waiting[name]) < batch_size:
            waiting[name] = draw.sample(groups[name], len(groups[name]))
        order += waiting[name][-batch_size:]
        del waiting[name][-batch_size:]
    return rows.select(order).select_columns(["question", "code"])
