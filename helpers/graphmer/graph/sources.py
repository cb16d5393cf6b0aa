"""Source files of a folder: which ones, under which name, with which hash."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MOST_BYTES = 1_000_000  # of a source; the longest of the standard library has 0.8 million
TEST_FOLDERS = frozenset({"test", "tests", "idle_test"})  # idle_test: the standard library's, of IDLE
# What is installed into or generated beside a project is not its source.
_FOREIGN = frozenset({"site-packages", "dist-packages", "__pycache__", "node_modules", "__pypackages__"})


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


def _files(root: Path, suffix: str, include_tests: bool) -> Iterator[Path]:
    left_out = _FOREIGN if include_tests else _FOREIGN | TEST_FOLDERS
    for folder, inner, files in os.walk(root):
        inner[:] = [name for name in inner if name not in left_out and not name.startswith(".")]
        if "pyvenv.cfg" in files:
            inner.clear()
            continue
        yield from (Path(folder, name) for name in files if name.endswith(suffix))
