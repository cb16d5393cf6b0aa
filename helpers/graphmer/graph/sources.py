"""Source files of a folder: which ones, with which hash, and which of them cannot be read."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

MOST_BYTES = 1_000_000  # of a source; the longest of the standard library has 0.8 million
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})  # idle_test: the standard library's, of IDLE
PROJECT_FILES = frozenset({"pyproject.toml", "setup.py", "setup.cfg"})  # in a folder that pip installs from
_READ = (".py", ".java")
NO_PARSER = "Java needs a parser: pip install tree-sitter tree-sitter-java"
# What is installed into or generated beside a project is not its source.
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules", "__pypackages__"})
# ValueError: NUL bytes, wrong encoding · ImportError: the language's parser is not installed
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError, ImportError)

if TYPE_CHECKING:
    from .scopes import Module


def standard_library() -> Path:
    """Folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def find_sources(folder: str | Path, include_tests: bool) -> Sources:
    """The .py and .java files of a folder, by path.

    Installed packages, caches, virtual environments and hidden folders are left out, links to folders are not followed.
    Raises FileNotFoundError: no such folder.
    """
    root = Path(folder).expanduser().resolve()
    if not root.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such folder; name one that holds .py or .java files")
    left_out = _FOREIGN if include_tests else _FOREIGN | TEST_FOLDERS
    found = []
    for inside, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in left_out and not name.startswith(".")]
        if "pyvenv.cfg" in files:
            inner.clear()
            continue
        below = Path(inside).relative_to(root)
        found += [(below / name).as_posix() for name in files if name in PROJECT_FILES or name.endswith(_READ)]
    return Sources(root, sorted(found))


class Sources:
    """Files of a folder, by their paths below it with forward slashes.

    above: the folders of packages around it, as "package/", where it lies in one. projects: folders below, named from the outermost
    package, that pip installs from. read: path, module, language and sha256 of each file that was parsed. failed: path and error of
    each other one.
    """

    def __init__(self, root: Path, found: list[str]):
        self.root, self.files = root, [file for file in found if file.endswith(_READ)]
        self.above = ""
        while root.name and (root / "__init__.py").is_file():
            self.above = f"{root.name}/{self.above}"
            root = root.parent
        parts = ((self.above + file).rpartition("/") for file in found)
        self.projects = {folder for folder, _, name in parts if name in PROJECT_FILES}
        self.read: list[dict] = []
        self.failed: list[dict] = []

    def digest(self, start: str) -> str:
        """sha256 of the paths and contents of all files, and of `start`."""
        digest = hashlib.sha256(start.encode())
        for file in self.files:
            try:
                said = _sha256(_read(self.root / file))
            except OSError as error:
                said = str(error)
            digest.update(f"\n{file}\n{said}".encode())
        return digest.hexdigest()

    def parse(self, file: str, language: str, parser: Callable[[bytes], Module]) -> Module | None:
        """What `parser` makes of a file; None where it cannot be read or parsed."""
        try:
            content = _read(self.root / file)
            module = parser(content)
        except _UNREADABLE as error:
            self.failed.append({"path": file, "error": _reason(error)})
            return None
        module.record = {"path": file, "module": module.id, "language": language, "sha256": _sha256(content)}
        self.read.append(module.record)
        return module


def _read(path: Path) -> bytes:
    """Raises OSError, also for a pipe, a device, and a file that is too long to be written by hand."""
    found = path.stat()
    if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
        raise OSError(errno.EFBIG, f"no file, or one of more than {MOST_BYTES:,} bytes")
    return path.read_bytes()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _reason(error: Exception) -> str:
    """Why a file could not be read, without its path, which differs between machines."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    if isinstance(error, RecursionError):
        return "nested too deep"
    if isinstance(error, ImportError):
        return f"{NO_PARSER} ({error})"
    return f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"
