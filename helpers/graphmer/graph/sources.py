"""Source files of a folder: which ones, under which name, with which hash."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sysconfig
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

MOST_BYTES = 1_000_000  # of a source; the longest of the standard library has 0.8 million
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})  # idle_test: the standard library's, of IDLE
# What is installed into or generated beside a project is not its source.
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules", "__pypackages__"})
TOO_DEEP = "nested too deep"
_LANGUAGES = {".py": "python", ".java": "java"}
# ValueError: NUL bytes, wrong encoding · ImportError: the language's parser is not installed
_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError, OSError, ImportError)

Read = TypeVar("Read")


@dataclass(frozen=True)
class SourceFile:
    path: Path
    relative: str  # to its folder, with forward slashes

    def read(self) -> tuple[bytes, str]:
        """Content and its sha256. Raises OSError, also for a pipe, a device, or what nobody wrote by hand."""
        found = self.path.stat()
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_BYTES:
            raise OSError(errno.EFBIG, f"no file, or one of more than {MOST_BYTES:,} bytes")
        content = self.path.read_bytes()
        return content, hashlib.sha256(content).hexdigest()


def standard_library() -> Path:
    """Folder of the running interpreter's standard library."""
    return Path(sysconfig.get_paths()["stdlib"])


def find_sources(folder: str | Path, suffix: str, include_tests: bool) -> list[SourceFile]:
    """Files that end in `suffix` in a folder, by path.

    Installed packages, caches, virtual environments and hidden folders are left out, links to folders are not followed.
    Raises FileNotFoundError: no such folder.
    """
    path = Path(folder).expanduser().resolve()
    if not path.is_dir():
        raise FileNotFoundError(f"{str(folder)!r}: no such folder; name one that holds {suffix} files")
    found = [SourceFile(file, file.relative_to(path).as_posix()) for file in _files(path, suffix, include_tests)]
    return sorted(found, key=lambda file: file.relative)


def read_sources(
    folder: str | Path, suffix: str, include_tests: bool, read: Callable[[SourceFile, bytes], tuple[Read, str]]
) -> tuple[list[Read], list[dict], list[dict]]:
    """What `read` makes of each file's content; what a manifest says of these files, and of those that cannot be read or parsed.

    read: gives also the name of the module. Raises FileNotFoundError: no such folder.
    """
    found, files, failed = [], [], []
    for source in find_sources(folder, suffix, include_tests):
        try:
            content, sha256 = source.read()
            one, module = read(source, content)
        except _UNREADABLE as error:
            failed.append({"path": source.relative, "error": _reason(error)})
            continue
        found.append(one)
        files.append({"path": source.relative, "module": module, "language": _LANGUAGES[suffix], "sha256": sha256})
    return found, files, failed


def _reason(error: Exception) -> str:
    """Without the path, which differs between machines."""
    if isinstance(error, SyntaxError):
        return f"line {error.lineno}: {error.msg}" if error.lineno else str(error.msg)
    if isinstance(error, RecursionError):
        return TOO_DEEP
    if isinstance(error, ImportError):
        return str(error)
    return f"{type(error).__name__}: {error.strerror if isinstance(error, OSError) else error}"


def _files(root: Path, suffix: str, include_tests: bool) -> Iterator[Path]:
    left_out = _FOREIGN if include_tests else _FOREIGN | TEST_FOLDERS
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in left_out and not name.startswith(".")]
        if "pyvenv.cfg" in files:
            inner.clear()
            continue
        yield from (Path(folder, name) for name in files if name.endswith(suffix))
