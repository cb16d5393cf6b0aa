"""Which file an import means: by the folder that the importing file is run from, as far as the sources prove it.

Paths are those below the folder of all sources, without suffix, with forward slashes; a package's is its folder.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterator
from pathlib import PurePosixPath

from .sources import TEST_FOLDERS

_SOURCES = ("src", "lib")  # folders that a project keeps its packages in


class Imports:
    """Python files by their paths, each with the name that imports use and the folder that its own imports begin at.

    files: relative paths of all .py files. projects: folders that pip installs from.
    """

    def __init__(self, files: Collection[str], projects: Collection[str]):
        initial = {_parent(file) for file in files if file.rpartition("/")[2] == "__init__.py"}
        self.packages = initial - {""}
        self.paths = {file: self._path(file) for file in files}
        self.files = set(self.paths.values())
        self.folders = {folder for path in self.files for folder in above(path)} - {""}
        sources = {folder for folder in self.folders if folder.rpartition("/")[2] in _SOURCES} - self.packages
        self._named_from = sources | set(projects) | {""}
        # Folders that a program elsewhere may import from: not those of what tests bring.
        self._installed = {folder for folder in self._named_from if not TEST_FOLDERS & {*folder.split("/")}}
        # What a program that begins at some folder of the sources can import, though nobody says that others can.
        self._beginnings = {_below(path, self.root(path)).partition("/")[0] for path in self.files}
        self._found: dict[tuple[str, str], str | None] = {}

    def _path(self, file: str) -> str:
        path = module_path(file)
        return file if path in self.packages and not file.endswith("/__init__.py") else path  # a package hides a module

    def root(self, path: str) -> str:
        """The folder above the outermost package around a file; of a script its own folder."""
        folder = path if path in self.packages else _parent(path)
        while folder in self.packages:
            folder = _parent(folder)
        return folder

    def names(self) -> dict[str, str]:
        """The name of each path as an import says it; where two have the same, all modules of both roots say which root it is."""
        named = {path: self.named(path) for path in sorted(self.files)}
        count = Counter(name for _, name in named.values())
        twice = {(root, name.partition(".")[0]) for root, name in named.values() if count[name] > 1}
        return {
            path: f"{_dotted(root)}.{name}" if root and (root, name.partition(".")[0]) in twice else name
            for path, (root, name) in named.items()
        }

    def named(self, path: str) -> tuple[str, str]:
        """The folder that imports of a file or folder begin at, and its name from there."""
        root = self.root(path)
        if path not in self.packages and _parent(path) not in self.packages:
            root = next(folder for folder in above(path) if folder in self._named_from)
        return root, _dotted(_below(path, root))

    def find(self, name: str, path: str) -> str | None:
        """The path of the file or folder that `import name` in another file means; dots before a name are those of a relative import.

        "" for what is outside of the sources; None where two files could be meant.
        """
        key = (path if name[:1] == "." else self.root(path), name)
        if key not in self._found:
            self._found[key] = self._relative(name, path) if name[:1] == "." else self._absolute(name, key[0])
        return self._found[key]

    def _relative(self, name: str, path: str) -> str | None:
        rest = name.lstrip(".")
        base = path if path in self.packages else _parent(path)
        for _ in range(len(name) - len(rest) - 1):
            if not base or _parent(base) == self.root(path):
                return None  # it leaves the outermost package
            base = _parent(base)
        return self._in(base, rest)

    def _absolute(self, name: str, root: str) -> str | None:
        first = name.partition(".")[0]
        if first in sys.stdlib_module_names:  # another folder's file of such a name hides nothing
            return self._in(root, name) or ""
        for folder in self._searched(root):
            if found := self._in(folder, name):
                return found
            if _joined(folder, first) in self.files:
                return ""
        owners = [folder for folder in self._installed if _joined(folder, first) in self.files]
        paths = {self._in(folder, name) for folder in owners or self._installed} - {""}
        if len(owners) > 1 or len(paths) > 1:
            return None
        if paths:
            return paths.pop()
        return None if not owners and first in self._beginnings else ""

    def _searched(self, root: str) -> Iterator[str]:
        """The folder that a program begins in, then those around it, each with the folders that it keeps sources in."""
        for folder in (root, *above(root)) if root else ("",):
            yield folder
            yield from (_joined(folder, inner) for inner in _SOURCES if _joined(folder, inner) in self._named_from)

    def _in(self, folder: str, name: str) -> str:
        path = _joined(folder, name)
        return path if path in self.files or path in self.folders else ""


def module_path(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__")


def _below(path: str, folder: str) -> str:
    return path[len(folder) + 1 :] if folder else path


def _joined(folder: str, name: str) -> str:
    below = name.replace(".", "/")
    return f"{folder}/{below}" if folder and below else folder or below


def _dotted(path: str) -> str:
    return path.replace(".", "_").replace("/", ".")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def above(path: str) -> list[str]:
    """The folders around a path, the nearest first; the last is ""."""
    return ["" if str(folder) == "." else str(folder) for folder in PurePosixPath(path).parents]
