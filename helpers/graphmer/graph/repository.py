"""A folder of sources in Python and Java: its knowledge graph, and its files as a resolver needs them.

Each file of a `Repository` is read once, and again where it changes.
"""

from __future__ import annotations

import contextlib
import gc
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from .build import Build
from .imports import Imports
from .java import JavaResolver, read_java
from .knowledge_graph import DEFINED, Entity, KnowledgeGraph, build_graph
from .python import read_python
from .resolution import Resolver
from .scopes import Module, Use
from .sources import NO_PARSER, find_sources, notebook_code, standard_library

SAMPLE = "sample"


def load_graph(data_source: str | Path) -> KnowledgeGraph:
    """The graph of `data_source`, with the relations of its entities.

    data_source: "sample" (the standard library of the running Python, without its tests), or a folder of Python and Java sources.

    Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java).
    """
    repository = Repository(data_source, notebooks=False)
    entities, triples = [], set()
    with quiet():
        for resolver in repository.resolvers:
            build = Build(resolver)
            entities += build.entities
            triples |= build.triples
    entities.sort(key=lambda entity: entity.status != DEFINED)
    return build_graph(entities, triples, {"files": repository.sources.read, "failed": repository.failed})


def folder_of(data_source: str | Path) -> Path:
    """The folder of a data source's files."""
    return standard_library() if data_source == SAMPLE else Path(data_source).expanduser()


class Repository:
    """Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java)."""

    def __init__(self, data_source: str | Path, notebooks: bool = True):
        self.data_source, self.folder, self.notebooks = data_source, folder_of(data_source), notebooks
        self._modules: dict[tuple, Module] = {}  # by what they were read from
        self._state: list[tuple] | None = None
        self.refresh()

    def refresh(self) -> None:
        """Reads again what has changed."""
        sources = find_sources(self.folder, include_tests=self.data_source != SAMPLE, notebooks=self.notebooks)
        state = sources.state()
        if state == self._state:
            return
        self.sources, self.failed = sources, sources.failed
        self._former, self._modules = self._modules, {}
        self.contents: dict[str, bytes] = {}
        with quiet():
            self.resolvers = [self._read_python(), *self._read_java()]
        self._check()
        self._list()
        self._state = state

    # ---- reading all files

    def _read(self, file: str, language: str, module: Module) -> Module | None:
        """Fills the module of a file; None where that cannot be read or parsed. Only what has changed is parsed again."""

        def parse(content: bytes) -> Module:
            self.contents[file] = content
            key = (file, module.id, module.is_package, module.label, content)
            self._modules[key] = self._former.get(key) or _parse(language, module, content)
            return self._modules[key]

        return self.sources.parse(file, language, parse)

    def _read_python(self) -> Resolver:
        files = {}
        for file in self.sources.files:
            if file.endswith(".ipynb"):
                files[f"{self.sources.above}{file}.py"] = file
            elif file.endswith(".py"):
                files[self.sources.above + file] = file
        imports = Imports(files, self.sources.projects)
        names = imports.names()
        modules = {}
        for path, file in files.items():
            place = imports.paths[path]
            empty = Module(names[place], place, place in imports.packages)
            language = "notebook" if file.endswith(".ipynb") else "python"
            module = self._read(file, language, empty)
            if module:
                modules[module.id] = module
        return Resolver(modules, imports)

    def _read_java(self) -> Iterator[Resolver]:
        """All files together; where two projects define one type, those of each by themselves, their names behind that of its folder."""
        projects: dict[str, list[Module]] = defaultdict(list)
        for file in self.sources.files:
            if not file.endswith(".java"):
                continue
            module = self._read(file, "java", Module(""))
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
            labelled = []
            for module in modules:
                self.sources.read.remove(module.record)
                empty = Module("")
                empty.label = f"{project}:"
                labelled.append(self._read(module.record["path"], "java", empty))
            yield JavaResolver([*filter(None, labelled)])
        yield JavaResolver(shared)

    def _check(self) -> None:
        """Raises ValueError, or ImportError for Java without a parser: nothing could be read."""
        source = f"data_source={str(self.data_source)!r}"
        if not self.sources.files:
            raise ValueError(f'{source}: no .py and no .java file; use "sample" or another folder')
        unparsed = sum(failure["error"].startswith(NO_PARSER) for failure in self.failed)
        message = f"{source}: its Java files ({unparsed}) cannot be read. {NO_PARSER}"
        if unparsed and not self.sources.read:
            raise ImportError(message)
        if not self.sources.read:
            failed = [f"{failure['path']} ({failure['error']})" for failure in self.failed]
            raise ValueError(
                f"{source}: none of its {len(failed)} files can be read as Python 3 or Java: {', '.join(failed[:3])}; "
                "give another folder"
            )
        if unparsed:
            warnings.warn(message, stacklevel=4)

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

    # ---- what is asked

    def graph(self) -> KnowledgeGraph:
        """All definitions, without the relations between them."""
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
        _, module = self.modules[file]
        return module.uses

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


def _parse(language: str, module: Module, content: bytes) -> Module:
    if language == "java":
        return read_java(content, module.label)
    if language == "notebook":
        content, _ = notebook_code(content)
    return read_python(module, content)


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
