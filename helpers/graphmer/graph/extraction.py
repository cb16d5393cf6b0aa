"""The knowledge graph of a folder of sources in Python and Java, and its cache."""

import contextlib
import gc
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from .build import Build
from .imports import Imports
from .java import JavaResolver, read_java
from .knowledge_graph import DEFINED, KnowledgeGraph, build_graph
from .python import read_python
from .resolution import Resolver
from .scopes import Module
from .sources import NO_PARSER, Sources, find_sources, standard_library

SAMPLE = "sample"
Reader = Callable[[str, str, Module, bytes], Module]


def load_graph(data_source: str | Path) -> KnowledgeGraph:
    """The graph of `data_source`.

    data_source: "sample" (the standard library of the running Python, without its tests), or a folder of Python and Java sources.

    Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java).
    """
    return _graph(data_source, find_sources(folder_of(data_source), include_tests=data_source != SAMPLE))


def folder_of(data_source: str | Path) -> Path:
    """The folder of a data source's files."""
    return standard_library() if data_source == SAMPLE else Path(data_source).expanduser()


def _graph(data_source: str | Path, sources: Sources) -> KnowledgeGraph:
    with quiet():
        builds = [Build(resolver) for resolver in read_modules(data_source, sources, _read)]
        entities = [entity for build in builds for entity in build.entities]
        entities.sort(key=lambda entity: entity.status != DEFINED)
        triples = set().union(*(build.triples for build in builds))
        return build_graph(entities, triples, {"files": sources.read, "failed": sources.failed})


def _read(language: str, file: str, module: Module, content: bytes) -> Module:
    return read_java(content, module.label) if language == "java" else read_python(module, content)


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
        if module := sources.parse(file, language, partial(read, language, file, empty)):
            modules[module.id] = module
    return Resolver(modules, imports)


def _java(sources: Sources, read: Reader) -> Iterator[Resolver]:
    """All files together; where two projects define one type, those of each by themselves, their names behind that of its folder."""
    projects: dict[str, list[Module]] = defaultdict(list)
    for file in sources.files:
        module = _java_module(sources, read, file, "") if file.endswith(".java") else None
        if module and module.id:
            root = f"/{file}".rpartition("/")[0] + "/"
            below = f"{module.package.replace('.', '/')}/" if module.package else ""
            projects[root.removesuffix(below).partition("/src/")[0].strip("/")].append(module)
    count = Counter(name for modules in projects.values() for name in {module.id for module in modules})
    shared = []
    for project, modules in projects.items():
        if all(count[module.id] == 1 for module in modules):
            shared += modules
            continue
        for module in modules:
            sources.read.remove(module.record)
        files = [module.record["path"] for module in modules]
        yield JavaResolver([_java_module(sources, read, file, f"{project}:") for file in files])
    yield JavaResolver(shared)


def _java_module(sources: Sources, read: Reader, file: str, label: str) -> Module | None:
    empty = Module("")
    empty.label = label
    return sources.parse(file, "java", partial(read, "java", file, empty))
