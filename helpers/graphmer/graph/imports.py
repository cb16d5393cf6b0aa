"""Which file an import means: by the folder that the importing file is run from, as far as the sources prove it.

Paths are those below the folder of all sources, without suffix, with forward slashes; a package's is its folder.
"""

import sys
from collections import Counter
from collections.abc import Collection, Iterator

from .sources import TEST_FOLDERS

_SOURCES = ("src", "lib")  # folders that a project keeps its packages in


class Imports:
    """Python files by their paths, each with the name that imports use and the folder that its own imports begin at.

    files: relative paths of all .py files. projects: folders that pip installs from.
    """

    def __init__(self, files: Collection[str], projects: Collection[str]):
        self.packages = {_parent(file) for file in files if file.endswith("/__init__.py")}
        self.paths = {file: self._path(file) for file in files}
        self.files = set(self.paths.values())
        self.folders = set().union(*map(above, self.files)) - {""}
        # Folders that the names of modules begin at.
        self._starts = {"", *projects}
        for folder in self.folders - self.packages:
            if folder.rpartition("/")[2] in _SOURCES:
                self._starts.add(folder)
        # Folders that a program elsewhere may import from: not those of what tests bring.
        self._installed = {folder for folder in self._starts if TEST_FOLDERS.isdisjoint(folder.split("/"))}
        # What a program that begins at some folder of the sources can import, though nobody says that others can.
        self._beginnings: set[str] = set()
        for path in self.files:
            below = _below(path, self.root(path))
            self._beginnings.add(below.partition("/")[0])
        self._resolved: dict[tuple[str, str], str | None] = {}

    def _path(self, file: str) -> str:
        path = module_path(file)
        if path in self.packages and not file.endswith("/__init__.py"):
            return file  # a package hides a module
        return path

    def _package(self, path: str) -> str:
        """The folder of a file; of a package itself."""
        if path in self.packages:
            return path
        return _parent(path)

    def root(self, path: str) -> str:
        """The folder above the outermost package around a file; of a script its own folder."""
        folder = self._package(path)
        while folder in self.packages:
            folder = _parent(folder)
        return folder

    def names(self) -> dict[str, str]:
        """The name of each path as an import says it; where two have the same, all modules of both roots say which root it is."""
        places = {path: self.place(path) for path in sorted(self.files)}
        count = Counter(name for _, name in places.values())
        ambiguous: set[tuple[str, str]] = set()
        for root, name in places.values():
            if count[name] > 1:
                ambiguous.add((root, name.partition(".")[0]))
        names = {}
        for path, (root, name) in places.items():
            names[path] = name
            if root and (root, name.partition(".")[0]) in ambiguous:
                names[path] = f"{_dotted(root)}.{name}"
        return names

    def place(self, path: str) -> tuple[str, str]:
        """The folder that imports of a file or folder begin at, and its name from there."""
        root = self.root(path)
        if self._package(path) not in self.packages:
            root = next(folder for folder in above(path) if folder in self._starts)
        return root, _dotted(_below(path, root))

    def find(self, name: str, path: str) -> str | None:
        """The path of the file or folder that `import name` in another file means; dots before a name are those of a relative import.

        "" for what is outside of the sources; None where two files could be meant.
        """
        if name[:1] == ".":
            return self._relative(name, path)
        root = self.root(path)
        if (root, name) not in self._resolved:
            self._resolved[root, name] = self._absolute(name, root)
        return self._resolved[root, name]

    def _relative(self, name: str, path: str) -> str | None:
        rest = name.lstrip(".")
        base = self._package(path)
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
            path = self._in(folder, name)
            if path or _joined(folder, first) in self.files:
                return path
        owners = [folder for folder in self._installed if _joined(folder, first) in self.files]
        paths = {self._in(folder, name) for folder in owners or self._installed}
        paths.discard("")
        if len(owners) > 1 or len(paths) > 1:
            return None
        if paths:
            return paths.pop()
        if first in self._beginnings and not owners:
            return None
        return ""

    def _searched(self, root: str) -> Iterator[str]:
        """The folder that a program begins in, then those around it, each with the folders that it keeps sources in."""
        for folder in (root, *above(root)):
            yield folder
            for inner in _SOURCES:
                if _joined(folder, inner) in self._starts:
                    yield _joined(folder, inner)

    def _in(self, folder: str, name: str) -> str:
        path = _joined(folder, name)
        if path in self.files or path in self.folders:
            return path
        return ""


def module_path(file: str) -> str:
    return file.removesuffix(".py").removesuffix("/__init__")


def _below(path: str, folder: str) -> str:
    return path.removeprefix(f"{folder}/")


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name.replace('.', '/')}".strip("/")


def _dotted(path: str) -> str:
    return path.replace(".", "_").replace("/", ".")


def _parent(path: str) -> str:
    return path.rpartition("/")[0]


def above(path: str) -> list[str]:
    """The folders around a path, the nearest first; the last is ""."""
    folders = []
    while path:
        path = _parent(path)
        folders.append(path)
    return folders
