"""A folder of sources in Python and Java: its knowledge graph, and its files as a resolver needs them.

Each file of a `Repository` is read once, and again where it changes. What was read is kept in the user's cache folder, a line of
JSON a file.
"""

from __future__ import annotations

import contextlib
import gc
import hashlib
import os
import re
import sys
import tempfile
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .build import Build
from .imports import Imports
from .java import JavaResolver, read_java
from .knowledge_graph import DEFINED, Entity, KnowledgeGraph, build_graph
from .python import read_python
from .resolution import Resolver
from .scopes import Module, Use, pack, unpack
from .sources import NO_PARSER, Sources, find_sources, notebook_code, standard_library

SAMPLE = "sample"
Reader = Callable[..., Module]
# What reading a file may raise that something else wrote: it is no JSON, or JSON of another form.
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def load_graph(data_source: str | Path) -> KnowledgeGraph:
    """The graph of `data_source`, with the relations of its entities.

    data_source: "sample" (the standard library of the running Python, without its tests), or a folder of Python and Java sources.

    Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java).
    """
    sources = find_sources(folder_of(data_source), include_tests=data_source != SAMPLE)
    with quiet():
        entities, triples = [], set()
        for resolver in read_modules(data_source, sources, _parse):
            build = Build(resolver)
            entities += build.entities
            triples |= build.triples
        entities.sort(key=lambda entity: entity.status != DEFINED)
        return build_graph(entities, triples, {"files": sources.read, "failed": sources.failed})


def folder_of(data_source: str | Path) -> Path:
    """The folder of a data source's files."""
    return standard_library() if data_source == SAMPLE else Path(data_source).expanduser()


class Repository:
    """Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java)."""

    def __init__(self, data_source: str | Path):
        self.data_source, self.folder = data_source, folder_of(data_source)
        path = str(self.folder.resolve())
        name = hashlib.sha256(path.encode()).hexdigest()[:32]
        self._cache = cache_folder() / f"{name}.jsonl"
        self._kept = _read_cache(self._cache)  # key of a file's content -> line of JSON
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
        self._keys = {}
        self._mentions: dict[str, list[Use]] = {}
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
                restored = _parse(language, file, module, content)
                self._kept[key] = pack(restored)
                restored.uses = []  # they are read again where somebody asks for them
                self._is_new = True
            self._modules[key] = restored
        self._keys[file] = key
        return self._modules[key]

    def _list(self) -> None:
        """Definitions by their names, modules by their files, and files of modules."""
        self.entities: dict[str, Entity] = {}
        self.resolver_of: dict[str, Resolver] = {}  # by the same names
        self.modules: dict[str, tuple[Resolver, Module]] = {}
        self.files: dict[str, str] = {}
        for resolver in self.resolvers:
            for module in resolver.modules.values():
                self.modules[module.record["path"]] = (resolver, module)
                self.files[module.id] = module.record["path"]
            for name, entity in resolver.defined.items():
                self.entities.setdefault(name, entity)
                self.resolver_of.setdefault(name, resolver)

    def _keep(self) -> None:
        used = sorted({*self._keys.values()})
        self._modules = {key: self._modules[key] for key in used}
        if self._is_new:
            self._kept = {key: self._kept[key] for key in used}
            body = "\n".join(map(" ".join, self._kept.items()))
            keep(self._cache, f"{_digest(body)}\n{body}".encode())
            self._is_new = False

    # ---- what is asked

    def graph(self) -> KnowledgeGraph:
        """All definitions, without the relations between them; as far as possible from the user's cache folder."""
        files = [file for file in self.sources.read if file["language"] != "notebook"]
        modules = {file["module"] for file in files}
        entities = [entity for entity in self.entities.values() if entity.module in modules]
        return build_graph(entities, (), {"files": files, "failed": self.failed})

    def files_with(self, words: set[str]) -> list[str]:
        """Files in which one of the words occurs."""
        encoded = [word.encode() for word in sorted(words)]
        pattern = re.compile(rb"\b(?:%b)\b" % b"|".join(map(re.escape, encoded)))
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
                fresh = _parse(language, file, empty, self.contents[file])
            self._mentions[file] = []
            for use in fresh.uses:
                scope = module.scopes[use.scope.number]
                self._mentions[file].append(use._replace(scope=scope))
        return self._mentions[file]

    def place(self, file: str, line: int) -> str:
        """`file:line`, of a notebook also the cell."""
        if file.endswith(".ipynb"):
            _, cells = notebook_code(self.contents[file])
            begun = [cell for cell in cells if cell[1] <= line]
            cell, first = begun[-1]
            return f"{file} cell {cell}:{line - first + 1}"
        return f"{file}:{line}"

    def lines(self, file: str) -> list[str]:
        content = self.contents[file]
        if file.endswith(".ipynb"):
            content, _ = notebook_code(content)
        return re.split("\r\n|\r|\n", content.decode("utf-8", "replace"))


# ---- reading all files


def _parse(language: str, file: str, module: Module, content: bytes) -> Module:
    if language == "java":
        return read_java(content, module.label)
    if language == "notebook":
        content, _ = notebook_code(content)
    return read_python(module, content)


def read_modules(data_source: str | Path, sources: Sources, read: Reader) -> list[Resolver]:
    """Resolvers of all files; each answers for the files of one language, in Java also of one of several folders.

    read: makes a module of a language, a path, an empty module and the content of a file.
    """
    if not sources.files:
        raise ValueError(f'data_source={str(data_source)!r}: no .py and no .java file; use "sample" or another folder')
    resolvers = [_python(sources, read), *_java(sources, read)]
    unparsed = sum(failure["error"].startswith(NO_PARSER) for failure in sources.failed)
    message = f"data_source={str(data_source)!r}: its Java files ({unparsed}) cannot be read. {NO_PARSER}"
    if not sources.read:
        if unparsed:
            raise ImportError(message)
        failed = [f"{failure['path']} ({failure['error']})" for failure in sources.failed]
        raise ValueError(
            f"data_source={str(data_source)!r}: none of its {len(failed)} files can be read as Python 3 or Java: "
            f"{', '.join(failed[:3])}; give another folder"
        )
    if unparsed:
        warnings.warn(message, stacklevel=5)
    return resolvers


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


def _python(sources: Sources, read: Reader) -> Resolver:
    files = {}
    for file in sources.files:
        if file.endswith(".ipynb"):
            files[f"{sources.above}{file}.py"] = file
        elif file.endswith(".py"):
            files[sources.above + file] = file
    imports = Imports(files, sources.projects)
    names = imports.names()
    modules = {}
    for path, file in files.items():
        place = imports.paths[path]
        empty = Module(names[place], place, place in imports.packages)
        language = "notebook" if file.endswith(".ipynb") else "python"
        module = sources.parse(file, language, partial(read, language, file, empty))
        if module:
            modules[module.id] = module
    return Resolver(modules, imports)


def _java(sources: Sources, read: Reader) -> Iterator[Resolver]:
    """All files together; where two projects define one type, those of each by themselves, their names behind that of its folder."""
    projects: dict[str, list[Module]] = defaultdict(list)
    for file in sources.files:
        if not file.endswith(".java"):
            continue
        module = _java_module(sources, read, file, "")
        if module and module.id:
            root = f"/{file}".rpartition("/")[0] + "/"
            below = f"{module.package.replace('.', '/')}/" if module.package else ""
            project = root.removesuffix(below).partition("/src/")[0]
            projects[project.strip("/")].append(module)
    count: Counter[str] = Counter()
    for modules in projects.values():
        count.update({module.id for module in modules})
    shared = []
    for project, modules in projects.items():
        if all(count[module.id] == 1 for module in modules):
            shared += modules
            continue
        for module in modules:
            sources.read.remove(module.record)
        labelled = [_java_module(sources, read, module.record["path"], f"{project}:") for module in modules]
        yield JavaResolver([*filter(None, labelled)])
    yield JavaResolver(shared)


def _java_module(sources: Sources, read: Reader, file: str, label: str) -> Module | None:
    empty = Module("")
    empty.label = label
    return sources.parse(file, "java", partial(read, "java", file, empty))


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


def _read_cache(file: Path) -> dict[str, str]:
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
