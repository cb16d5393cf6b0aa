"""The Python files and notebooks of a folder: their texts, the names of their modules, and the folders that imports begin at."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import os
import re
import sys
import sysconfig
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from helpers.data.files import list_files
from helpers.parameters import SAMPLE

SUFFIXES = PYTHON, NOTEBOOK = (".py", ".ipynb")
MOST_BYTES = 1_000_000  # of a source; the longest of the standard library has 0.8 million
MOST_BYTES_OF_NOTEBOOK = 50_000_000  # with its pictures
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})  # idle_test: the standard library's, of IDLE
SOURCE_FOLDERS = ("src", "lib")  # folders that a project keeps its packages in
IMPORTED = re.compile(r"^[ \t]*(?:from|import)[ \t]+(\w+)", re.MULTILINE)
# UnicodeError and SyntaxError: another encoding than the file declares, or one that nobody knows
UNREADABLE = (OSError, ValueError, SyntaxError, RecursionError, MemoryError)


@dataclass
class Source:
    """One file.

    path: below the folder, with forward slashes. place: the same, from the folder above the outermost package around that folder.
    text: of a notebook the code of its cells. cells: of a notebook the number and the first line of each cell with code.
    root: the folder that names of its module begin at, as its place. module: its name, which no other file has.
    group: files of one group are looked up together, since no two of them are imported by one name.
    """

    path: str
    place: str
    text: str
    cells: Sequence[tuple[int, int]] = ()
    root: str = ""
    module: str = ""
    group: int = 0

    def line(self, number: int) -> str:
        """`file:line`, in a notebook also the cell."""
        if not self.cells:
            return f"{self.path}:{number}"
        cell, first = [cell for cell in self.cells if cell[1] <= number][-1]
        return f"{self.path} cell {cell}:{number - first + 1}"


def folder_of(data_source: str | Path) -> Path:
    """The folder of a data source's files."""
    return Path(sysconfig.get_paths()["stdlib"] if data_source == SAMPLE else data_source).expanduser()


def read_sources(data_source: str | Path) -> tuple[list[Source], list[dict[str, str]]]:
    """The sources of a folder, or those of "sample", the standard library without its tests; path and error of what cannot be read.

    What `list_files` passes over is left out: installed packages, hidden files and folders, links.
    Raises ValueError: no source that can be read.
    """
    folder = folder_of(data_source).resolve()
    name = f"data_source={str(data_source)!r}"
    without = TEST_FOLDERS if data_source == SAMPLE else ()
    files, passed_over = list_files(folder, SUFFIXES, name, without=without)
    left_out = [path for path in passed_over if path.endswith(SUFFIXES)]
    failed = [{"path": path, "error": "hidden, a link, or not to be opened"} for path in left_out]
    outermost = folder
    while outermost.name and (outermost / "__init__.py").is_file():
        outermost = outermost.parent
    sources = []
    for file in files:
        path = os.fsencode(file.relative_to(folder).as_posix()).decode(errors="replace")
        try:
            text, cells = read_text(file)
            place = file.relative_to(outermost).as_posix()
            place.encode()  # a name that is no text raises a UnicodeError
            sources.append(Source(path, place.replace(NOTEBOOK, "_ipynb.py"), text, cells))
        except UNREADABLE as error:
            failed.append({"path": path, "error": f"{type(error).__name__}: {error}"})
    if not sources:
        raise ValueError(f"{name}: none of its files can be read: {failed[:3]}")
    place_modules(sources)
    return sources, failed


def read_text(file: Path) -> tuple[str, Sequence[tuple[int, int]]]:
    """The code of a file, by the encoding that it declares, and the cells of a notebook. Raises those of `UNREADABLE`."""
    limit = MOST_BYTES_OF_NOTEBOOK if file.suffix == NOTEBOOK else MOST_BYTES
    if file.stat().st_size > limit:
        raise ValueError(f"more than {limit:,} bytes")
    content = file.read_bytes()
    return notebook_code(content) if file.suffix == NOTEBOOK else (importlib.util.decode_source(content), ())


def notebook_code(content: bytes) -> tuple[str, list[tuple[int, int]]]:
    """The code of a notebook's cells, and the number and first line of each; magics and shell commands are left out.

    Raises ValueError: it is no notebook.
    """
    lines: list[str] = []
    cells = []
    try:
        for number, cell in enumerate(json.loads(content)["cells"], 1):
            code = "".join(cell["source"])
            if cell["cell_type"] != "code" or re.match("%%(?!time|capture|writefile)", code):
                continue
            cells.append((number, len(lines) + 1))
            for line in code.split("\n"):
                command = line.strip()
                is_command = command.startswith(("%", "!", "?")) or command.endswith("?")
                lines.append(line.replace(command, "pass") if is_command else line)
    except (LookupError, TypeError) as error:
        raise ValueError(f"no notebook: {error}") from error
    return "\n".join(lines), cells


# ---- names of modules


def place_modules(sources: Sequence[Source]) -> None:
    """Gives each file its root, module and group."""
    packages = {_parent(source.place) for source in sources if source.place.endswith("/__init__.py")}
    inside: dict[str, set[str]] = defaultdict(set)  # folder -> what can be imported from there by its first name
    imported: dict[str, set[str]] = defaultdict(set)  # folder -> what its files import
    for source in sources:
        folder, _, name = path_of(source).rpartition("/")
        inside[folder].add(name)
        imported[_parent(source.place)] |= {*IMPORTED.findall(source.text)} - {name}
    starts = {}
    for source in sources:
        folder = _parent(source.place)
        if folder in packages:
            while folder in packages:
                folder = _parent(folder)
            source.root = starts[source.place] = folder
            continue
        around = [folder]
        while around[-1]:
            around.append(_parent(around[-1]))
        kept_in = (start for start in around if start.rpartition("/")[2] in SOURCE_FOLDERS)
        starts[source.place] = next(kept_in, "")
        # A script sees what is beside it, or beside a folder around it: the nearest that has something which it imports.
        near = (start for start in around if not inside[start].isdisjoint(imported[folder]))
        source.root = next(near, starts[source.place])
    names = {source.place: name_of(source, starts[source.place]) for source in sources}
    count = Counter(names.values())
    # Where two files would have one name, all modules beside these are named from the outermost folder.
    clashing = {(starts[place], name.partition(".")[0]) for place, name in names.items() if count[name] > 1}
    used: set[str] = set()
    for source in sources:
        name = names[source.place]
        if (starts[source.place], name.partition(".")[0]) in clashing:
            name = name_of(source, "")
        source.module = source.place if name in used else name  # a package hides a module of its name
        used.add(name)
    _group_roots(sources)


def _group_roots(sources: Sequence[Source]) -> None:
    """Roots that have modules of one name are in different groups, and one that hides a module of the standard library in its own."""
    names: dict[str, set[str]] = {"": set()}
    for source in sources:
        names.setdefault(source.root, set()).add(name_of(source, source.root))
    groups: list[set[str]] = []
    group_of = {}
    for root in sorted(names, key=len):
        hides = root != "" and not sys.stdlib_module_names.isdisjoint(names[root])
        fitting = (group for group, taken in enumerate(groups) if not hides and taken.isdisjoint(names[root]))
        group_of[root] = next(fitting, len(groups))
        if group_of[root] == len(groups):
            groups.append(set().union(*names.values()) if hides else set())
        groups[group_of[root]] |= names[root]
    for source in sources:
        source.group = group_of[source.root]


def name_of(source: Source, root: str) -> str:
    """The name by which a file is imported from a folder."""
    return path_of(source).removeprefix(f"{root}/").replace(".", "_").replace("/", ".")


def path_of(source: Source) -> str:
    return source.place.removesuffix(".py").removesuffix("/__init__")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without warnings of invalid escapes, in code that is not ours, and without the collector: the trees are millions of
    objects without cycles, and looking for some takes a fifth of the time."""
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        gc.enable()
