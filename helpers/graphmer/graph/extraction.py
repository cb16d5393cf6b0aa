"""The knowledge graph of a folder of sources in Python and Java, and its cache."""

import contextlib
import gc
import hashlib
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from .build import Build
from .imports import Imports
from .java import JavaResolver, read_java
from .knowledge_graph import (
    DEFINED,
    Entity,
    KnowledgeGraph,
    build_graph,
    cache_folder,
    keep_graph,
    kept_graph,
)
from .python import read_python
from .resolution import Resolver
from .scopes import Module
from .sources import NO_PARSER, Sources, find_sources, standard_library

SAMPLE = "sample"


def load_graph(data_source: str | Path) -> KnowledgeGraph:
    """The graph of `data_source`.

    data_source: "sample" (the standard library of the running Python, without its tests), or a folder of Python and Java sources.

    Raises FileNotFoundError, ValueError (no sources) and ImportError (no parser, and nothing but Java).
    """
    return _graph(data_source, find_sources(folder_of(data_source), include_tests=data_source != SAMPLE))


def folder_of(data_source: str | Path) -> Path:
    """The folder of a data source's files."""
    return standard_library() if data_source == SAMPLE else Path(data_source).expanduser()


def cached_graph(repository: str | Path) -> KnowledgeGraph:
    """`load_graph`, kept for the next time in the user's cache folder as long as no file changes."""
    path = folder_of(repository)
    sources = find_sources(path, include_tests=repository != SAMPLE)
    digest = sources.digest(_code())
    file = cache_folder() / f"{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]}.json"
    found = kept_graph(file, digest)
    if found is None:
        found = _graph(repository, sources)
        if not _unparsed(found.manifest):  # the next time the parser may be there
            keep_graph(file, digest, found)
    return found


def _code() -> str:
    """sha256 of what reads sources: a graph that other code made is not that of this code."""
    digest = hashlib.sha256(sys.version.encode())
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _graph(data_source: str | Path, sources: Sources) -> KnowledgeGraph:
    if not sources.files:
        raise ValueError(f'data_source={str(data_source)!r}: no .py and no .java file; use "sample" or another folder')
    with _quiet():
        entities, triples = _merged({"": _python(sources)} | _java(sources))
        manifest = {"files": sources.read, "failed": sources.failed}
        graph = build_graph(entities, triples, manifest)
    unparsed = f"data_source={str(data_source)!r}: its Java files ({_unparsed(manifest)}) cannot be read. {NO_PARSER}"
    if not sources.read:
        if _unparsed(manifest):
            raise ImportError(unparsed)
        failed = [f"{each['path']} ({each['error']})" for each in sources.failed]
        raise ValueError(
            f"data_source={str(data_source)!r}: none of its {len(failed)} files can be read as Python 3 or Java: "
            f"{', '.join(failed[:3])}; give another folder"
        )
    if _unparsed(manifest):
        warnings.warn(unparsed, stacklevel=3)
    return graph


def _unparsed(manifest: dict) -> int:
    return sum(each["error"].startswith(NO_PARSER) for each in manifest["failed"])


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Without warnings of invalid escapes, in code that is not ours, and without the collector: the trees are millions of
    objects without cycles, and looking for some takes a fifth of the time."""
    gc.disable()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        gc.enable()


def _python(sources: Sources) -> Build:
    files = {sources.above + file: file for file in sources.files if file.endswith(".py")}
    imports = Imports(files, sources.projects)
    names = imports.names()
    modules = {}
    for path, file in files.items():
        place = imports.paths[path]
        empty = Module(names[place], place, place in imports.packages)
        if module := sources.parse(file, "python", partial(read_python, empty)):
            modules[module.id] = module
    return Build(Resolver(modules, imports))


def _java(sources: Sources) -> dict[str, Build]:
    """All files together; where two folders define one type, those of each by themselves."""
    roots: dict[str, list[Module]] = defaultdict(list)
    for file in sources.files:
        if file.endswith(".java") and (module := sources.parse(file, "java", read_java)) and module.id:
            root = f"/{file}".rpartition("/")[0] + "/"
            below = f"{module.package.replace('.', '/')}/" if module.package else ""
            roots[root.removesuffix(below).partition("/src/")[0].strip("/")].append(module)
    count = Counter(name for modules in roots.values() for name in {module.id for module in modules})
    builds, shared = {}, []
    for root, modules in roots.items():
        if any(count[module.id] > 1 for module in modules):
            builds[root] = Build(JavaResolver(modules))
        else:
            shared += modules
    return {"java": Build(JavaResolver(shared))} | builds


class _Names(dict):
    """Other names of some things; all else keeps its own."""

    def __missing__(self, name: str) -> str:
        return name


def _merged(builds: dict[str, Build]) -> tuple[list[Entity], dict[tuple[str, str, str], list[int]]]:
    """All parts; what two of them define under one name is two things, and says which part it is of."""
    count = Counter(name for build in builds.values() for name in build.defined)
    entities, triples = [], {}
    for label, build in builds.items():
        new = _Names({name: f"{label}:{name}" for name in build.defined if label and count[name] > 1})
        for module in build.modules.values():
            module.record["module"] = new[module.id]
        entities += [each._replace(id=new[each.id], module=new[each.module]) for each in build.entities]
        triples |= {(new[head], relation, new[tail]): at for (head, relation, tail), at in build.triples.items()}
    entities.sort(key=lambda entity: entity.status != DEFINED)
    return entities, triples
