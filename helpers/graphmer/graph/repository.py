"""The files of a repository as a resolver needs them; each is read once, and again where it changes.

What was read is kept in the user's cache folder, a line of JSON a file.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import sys
import tempfile
from pathlib import Path

from .extraction import SAMPLE, folder_of, quiet, read_modules
from .java import read_java
from .knowledge_graph import Entity, KnowledgeGraph
from .python import read_python
from .resolution import Resolver
from .scopes import Module, Use, pack, unpack
from .sources import find_sources, notebook_code

# What reading a file may raise that something else wrote: it is no JSON, or JSON of another form.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


class Repository:
    """Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java)."""

    def __init__(self, data_source: str | Path):
        self.data_source, self.folder = data_source, folder_of(data_source)
        name = hashlib.sha256(str(self.folder.resolve()).encode()).hexdigest()[:32]
        self._cache = cache_folder() / f"{name}.jsonl"
        self._kept = _kept(self._cache)  # key of a file's content -> line of JSON
        self._keys: dict[str, str] = {}  # of each file
        self._modules: dict[str, Module] = {}  # by that key
        self._state: list[tuple] | None = None
        self._is_new = False  # whether a file was read that the cache lacks
        self.refresh()

    def refresh(self) -> None:
        """Reads again what has changed."""
        sources = find_sources(self.folder, include_tests=self.data_source != SAMPLE, notebooks=True)
        state = sources.state()
        if state == self._state:
            return
        self._keys, self._mentions = {}, {}
        self.contents: dict[str, bytes] = {}
        with quiet():
            self.resolvers = read_modules(self.data_source, sources, self._read)
            self.sources, self.failed = sources, sources.failed
            self._list()
            self._keep()
        self._state = state

    def _read(self, language: str, file: str, module: Module, content: bytes) -> Module:
        """What a file defines, from memory, from the cache or from the file itself."""
        self.contents[file] = content
        identity = f"{file}\n{module.id}\n{module.is_package}\n{module.label}\n"
        key = hashlib.sha256(identity.encode() + content).hexdigest()
        if key not in self._modules:
            restored = None
            with contextlib.suppress(*_UNREADABLE):
                restored = unpack(self._kept[key])
            if restored is None:
                restored = _parse(language, module, content)
                self._kept[key] = pack(restored)
                restored.uses = []  # they are read again where somebody asks for them
                self._is_new = True
            self._modules[key] = restored
        self._keys[file] = key
        return self._modules[key]

    def _list(self) -> None:
        """Definitions by their names, modules by their files, and files of modules."""
        self.entities: dict[str, tuple[Resolver, Entity]] = {}
        self.modules: dict[str, tuple[Resolver, Module]] = {}
        self.files: dict[str, str] = {}
        for resolver in self.resolvers:
            for module in resolver.modules.values():
                self.modules[module.record["path"]] = (resolver, module)
                self.files[module.id] = module.record["path"]
            for name, entity in resolver.defined.items():
                self.entities.setdefault(name, (resolver, entity))

    def _keep(self) -> None:
        used = {*self._keys.values()}
        self._modules = {key: module for key, module in self._modules.items() if key in used}
        if self._is_new:
            self._kept = {key: self._kept[key] for key in sorted(used)}
            body = "\n".join(f"{key} {line}" for key, line in self._kept.items())
            keep(self._cache, f"{_digest(body)}\n{body}".encode())
            self._is_new = False

    # ---- what is asked

    def graph(self) -> KnowledgeGraph:
        """All definitions, without the relations between them."""
        files = [file for file in self.sources.read if file["language"] != "notebook"]
        modules = {file["module"] for file in files}
        entities = {name: entity for name, (_, entity) in sorted(self.entities.items()) if entity.module in modules}
        return KnowledgeGraph(entities, (), {"files": files, "failed": self.failed})

    def files_with(self, words: set[str]) -> list[str]:
        """Files in which one of the words occurs."""
        encoded = [word.encode() for word in sorted(words)]
        pattern = re.compile(b"|".join(rb"\b%b\b" % re.escape(word) for word in encoded))
        files = []
        for file in self.modules:
            content = self.contents[file]
            if any(word in content for word in encoded) and pattern.search(content):
                files.append(file)
        return files

    def mentions(self, file: str) -> list[Use]:
        """Every mention of a name in a file."""
        if file not in self._mentions:
            _, module = self.modules[file]
            language = module.record["language"]
            empty = Module(module.id, module.path, module.is_package)
            empty.label = module.label
            with quiet():
                fresh = _parse(language, empty, self.contents[file])
            self._mentions[file] = [use._replace(scope=module.scopes[use.scope.number]) for use in fresh.uses]
        return self._mentions[file]

    def place(self, file: str, line: int) -> str:
        """`file:line`, of a notebook also the cell."""
        if file.endswith(".ipynb"):
            _, cells = notebook_code(self.contents[file])
            cell, first = [cell for cell in cells if cell[1] <= line][-1]
            return f"{file} cell {cell}:{line - first + 1}"
        return f"{file}:{line}"

    def lines(self, file: str) -> list[str]:
        content = self.contents[file]
        if file.endswith(".ipynb"):
            content, _ = notebook_code(content)
        return re.split("\r\n|\r|\n", content.decode("utf-8", "replace"))

    def line(self, file: str, line: int) -> str:
        """The text of a line."""
        lines = self.lines(file)
        return lines[line - 1].strip() if line <= len(lines) else ""


def _parse(language: str, module: Module, content: bytes) -> Module:
    if language == "java":
        return read_java(content, module.label)
    if language == "notebook":
        content, _ = notebook_code(content)
    return read_python(module, content)


def cached_graph(data_source: str | Path) -> KnowledgeGraph:
    """The definitions of a data source, without relations, as far as possible from the user's cache folder."""
    return Repository(data_source).graph()


# ---- kept between two questions: one file a repository, whole or absent


def cache_folder() -> Path:
    """The user's folder for what is kept: that of XDG_CACHE_HOME, or below the home."""
    with contextlib.suppress(RuntimeError):  # there is no home
        return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache", "graphmer").expanduser()
    return Path(tempfile.gettempdir(), "graphmer")


def keep(file: Path, content: bytes) -> None:
    """Writes a file of which no reader finds half; where nothing can be written, nothing is kept."""
    unfinished = file.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):  # a full disk, a home that is read-only
        file.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_bytes(content)
        unfinished.replace(file)


def _kept(file: Path) -> dict[str, str]:
    """Lines of JSON by their keys; none where other code wrote them."""
    with contextlib.suppress(*_UNREADABLE):
        digest, _, body = file.read_text().partition("\n")
        if digest == _digest(body):
            return dict(line.split(" ", 1) for line in body.split("\n"))
    return {}


def _digest(body: str) -> str:
    """sha256 of what was kept and of what reads sources: what other code read is not what this code would read."""
    digest = hashlib.sha256(sys.version.encode() + body.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()
