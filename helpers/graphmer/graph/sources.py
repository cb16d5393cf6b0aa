"""The Python files and notebooks of a folder: their texts, the names of their modules, and the folders that imports begin at."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import re
import sys
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from helpers.data.files import list_files
from helpers.parameters import SAMPLE

NOTEBOOK = ".ipynb"
SUFFIXES = (".py", NOTEBOOK)
MOST_BYTES = 1_000_000  # of a source; the longest of the standard library has 0.8 million
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})  # idle_test: the standard library's, of IDLE
TOP = PurePosixPath()
TEST_FILE = re.compile(r"(test_.*|.*_test|tests|conftest)\.py")
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
    place: PurePosixPath
    text: str
    cells: Sequence[tuple[int, int]] = ()
    root: PurePosixPath = TOP
    module: str = ""
    group: int = 0

    @functools.cached_property
    def lines(self):
        return self.text.split("\n")

    @functools.cached_property
    def importable(self) -> PurePosixPath:
        """The file without its suffix, or the package."""
        if self.place.name == "__init__.py":
            return self.place.parent
        return self.place.with_suffix("")

    @property
    def is_test(self) -> bool:
        """Whether it is a file of tests, or in a folder of them."""
        return bool(TEST_FILE.fullmatch(self.place.name)) or not TEST_FOLDERS.isdisjoint(self.place.parts)

    def name_from(self, root: PurePosixPath) -> str:
        """The name by which it is imported from a folder."""
        parts = self.importable.relative_to(root).parts
        return ".".join(part.replace(".", "_") for part in parts)

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
    Raises ValueError: a folder without sources.
    """
    folder = folder_of(data_source).resolve()
    name = f"data_source={str(data_source)!r}"
    without = TEST_FOLDERS if data_source == SAMPLE else ()
    files, passed_over = list_files(folder, SUFFIXES, name, without=without)
    error = "hidden, a link, or not to be opened"
    failed = [{"path": path, "error": error} for path in passed_over if path.endswith(SUFFIXES)]
    outermost = folder
    while (outermost / "__init__.py").is_file():
        outermost = outermost.parent
    sources = []
    for file in files:
        path = os.fsencode(file.relative_to(folder).as_posix()).decode(errors="replace")
        place = file.relative_to(outermost).as_posix().replace(NOTEBOOK, "_ipynb.py")
        try:
            place.encode()  # a name that is no text raises a UnicodeError
            sources.append(Source(path, PurePosixPath(place), *read_text(file)))
        except UNREADABLE as error:
            failed.append({"path": path, "error": f"{type(error).__name__}: {error}"})
    place_modules(sources)
    return sources, failed


def read_text(file: Path) -> tuple[str, Sequence[tuple[int, int]]]:
    """The code of a file, by the encoding that it declares, and the cells of a notebook. Raises those of `UNREADABLE`."""
    content = file.read_bytes()
    if file.suffix == NOTEBOOK:
        return notebook_code(content)
    if len(content) > MOST_BYTES:
        raise ValueError(f"more than {MOST_BYTES:,} bytes")
    return importlib.util.decode_source(content), ()


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
    packages = {source.place.parent for source in sources if source.place.name == "__init__.py"}
    inside: dict[PurePosixPath, set[str]] = defaultdict(
        set
    )  # folder -> what can be imported from there by its first name
    imported: dict[PurePosixPath, set[str]] = defaultdict(set)  # folder -> what its files import
    for source in sources:
        inside[source.importable.parent].add(source.importable.name)
        imported[source.place.parent] |= {*IMPORTED.findall(source.text)} - {source.importable.name}
    starts = {}  # the folder that the name of a module begins at
    for source in sources:
        folders = source.place.parents
        if folders[0] in packages:
            source.root = start = next(folder for folder in folders if folder not in packages)
        else:
            start = next((folder for folder in folders if folder.name in SOURCE_FOLDERS), TOP)
            # A script sees what is beside it, or beside a folder around it: the nearest that has something which it imports.
            near = (folder for folder in folders if not inside[folder].isdisjoint(imported[folders[0]]))
            source.root = next(near, start)
        source.module = source.name_from(start)
        starts[source.place] = start, source.module.partition(".")[0]
    count = Counter(source.module for source in sources)
    # Where two files would have one name, all modules beside these are named from the outermost folder.
    clashing = {starts[source.place] for source in sources if count[source.module] > 1}
    used: set[str] = set()
    for source in sources:
        if starts[source.place] in clashing:
            source.module = source.name_from(TOP)
        if source.module in used:  # a package hides a module of its name
            source.module = str(source.place)
        used.add(source.module)
    _group_roots(sources)


def _group_roots(sources):
    """A root with a module of a name that the standard library or another root has gets a group of its own."""
    names = defaultdict(set)
    for source in sources:
        names[source.root].add(source.name_from(source.root))
    taken = sys.stdlib_module_names | names[TOP]
    groups = {TOP: 0}
    for root in sorted(names, key=lambda root: len(str(root))):
        groups.setdefault(root, 0 if taken.isdisjoint(names[root]) else len(groups))
        taken |= names[root]
    for source in sources:
        source.group = groups[source.root]
