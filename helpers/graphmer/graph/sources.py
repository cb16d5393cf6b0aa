"""Source files of a folder: which ones, with which hash, and which of them cannot be read."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import stat
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.data.files import list_files

MOST_BYTES = 1_000_000  # of a source; the longest of the standard library has 0.8 million
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})  # idle_test: the standard library's, of IDLE
PROJECT_FILES = frozenset({"pyproject.toml", "setup.py", "setup.cfg"})  # in a folder that pip installs from
_READ, NOTEBOOK = (".py", ".java"), ".ipynb"
MOST_BYTES_OF_NOTEBOOK = 50_000_000  # with its pictures
NO_PARSER = "Java needs a parser: pip install tree-sitter tree-sitter-java"
# ValueError: NUL bytes, wrong encoding · ImportError: the language's parser is not installed
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError, ImportError)

if TYPE_CHECKING:
    from .scopes import Module


def standard_library() -> Path:
    """Folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def find_sources(folder: str | Path, include_tests: bool, notebooks: bool = False) -> Sources:
    """The .py and .java files of a folder, by path, and its notebooks where they are wanted.

    What `list_files` skips is left out: installed packages, virtual environments, hidden folders, links to folders.
    Raises FileNotFoundError: no such folder; ValueError: it has no such file.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such folder; name one that holds .py or .java files")
    without = () if include_tests else TEST_FOLDERS
    suffixes = (*_READ, NOTEBOOK) if notebooks else _READ
    source = f"data_source={str(folder)!r}"
    paths, passed_over = list_files(root, suffixes, source, names=PROJECT_FILES, without=without)
    closed = [name for name in passed_over if (root / name).exists() and not os.access(root / name, os.R_OK)]
    return Sources(root, paths, closed)


class Sources:
    """Files of a folder, by their paths below it with forward slashes.

    above: the folders of packages around it, as "package/", where it lies in one; outermost: the folder above them. projects: folders below, named from the outermost
    package, that pip installs from. read: path, module, language and sha256 of each file that was parsed. failed: path and error of
    each other one.
    """

    def __init__(self, root: Path, files: list[Path], closed: list[str]):
        self.root = root
        paths = sorted(path.relative_to(self.root).as_posix() for path in files)
        self.files = [path for path in paths if path.endswith((*_READ, NOTEBOOK))]
        self.above = ""
        while root.name and (root / "__init__.py").is_file():
            self.above = f"{root.name}/{self.above}"
            root = root.parent
        self.outermost = root
        parts = [f"{self.above}{path}".rpartition("/") for path in paths]
        self.projects = {folder for folder, _, name in parts if name in PROJECT_FILES}
        self.read: list[dict] = []
        self.failed = [{"path": path, "error": "it may not be opened"} for path in closed]

    def state(self) -> list[tuple]:
        """What changes when a file does."""
        rows = []
        for file in self.files:
            with contextlib.suppress(OSError):
                status = (self.root / file).stat()
                rows.append((file, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns))
        return rows

    def parse(self, file: str, language: str, parser: Callable[[bytes], Module]) -> Module | None:
        """What `parser` makes of a file; None where it cannot be read or parsed."""
        try:
            content = _read(self.root / file)
            module = parser(content)
        except _UNREADABLE as error:
            self.failed.append({"path": file, "error": _reason(error)})
            return None
        digest = hashlib.sha256(content).hexdigest()
        module.record = {"path": file, "module": module.id, "language": language, "sha256": digest}
        self.read.append(module.record)
        return module


def notebook_code(content: bytes) -> tuple[bytes, list[tuple[int, int]]]:
    """The code of a notebook's cells, and of each its number and first line; magics and shell commands are left out.

    Raises ValueError: it is no notebook.
    """
    sources = {}
    try:
        for number, cell in enumerate(json.loads(content)["cells"], 1):
            if cell["cell_type"] == "code":
                sources[number] = "".join(cell["source"])
    except (LookupError, TypeError) as error:
        raise ValueError(f"no notebook: {error}") from error
    lines: list[str] = []
    cells = []
    for number, source in sources.items():
        cells.append((number, len(lines) + 1))
        code = source.split("\n")
        is_other_language = code[0].startswith("%%") and not code[0].startswith(("%%time", "%%capture", "%%writefile"))
        for line in code:
            indentation = line[: len(line) - len(line.lstrip())]
            if is_other_language:
                line = ""
            elif line.lstrip().startswith(("%", "!", "?")) or line.rstrip().endswith("?"):
                line = f"{indentation}pass"
            lines.append(line)
    return "\n".join(lines).encode(), cells


def _read(path: Path) -> bytes:
    """Raises OSError, also for a pipe, a device, and a file that is too long to be written by hand."""
    status = path.stat()
    limit = MOST_BYTES_OF_NOTEBOOK if path.suffix == NOTEBOOK else MOST_BYTES
    if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
        raise OSError(errno.EFBIG, f"no file, or one of more than {limit:,} bytes")
    return path.read_bytes()


def _reason(error: Exception) -> str:
    """Why a file could not be read, without its path, which differs between machines."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, ImportError):
        return f"{NO_PARSER} ({error})"
    reason = error.strerror if isinstance(error, OSError) else error
    return f"{type(error).__name__}: {reason}"
