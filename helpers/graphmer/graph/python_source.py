"""Knowledge graph of Python sources, in two passes: every file is read, then what they mention is looked up in all of them."""

from __future__ import annotations

import ast
import gc
import sys
import warnings
from itertools import takewhile
from pathlib import Path

from helpers.graphmer.graph.knowledge_graph import Entity, KnowledgeGraph, build_graph, tested, unresolved
from helpers.graphmer.graph.ontology import UNKNOWN
from helpers.graphmer.graph.python_names import Resolver, Value
from helpers.graphmer.graph.python_scopes import Module, Scope
from helpers.graphmer.graph.python_tree import read_tree
from helpers.graphmer.graph.sources import SourceFile, read_sources

_CLASSES = ("class", "exception")
_CALLABLE = ("function", "method", "constructor", UNKNOWN)
_TEST_CASE = ("unittest.case.TestCase", "unittest.TestCase")


def python_graph(folder: str | Path, *, include_tests: bool = True) -> KnowledgeGraph:
    """The graph of every .py file in a folder; one that cannot be read or parsed is listed in the manifest.

    Raises FileNotFoundError: no such folder.
    """
    modules: dict[str, Module] = {}

    def read(source: SourceFile, content: bytes) -> tuple[Module, str]:
        tree = ast.parse(content)
        module = Module(_module_name(source), source.path.name == "__init__.py")
        if module.id in modules:  # two files that an import could mean
            module = Module(_dotted(source.relative), module.is_package)
        read_tree(tree, module, content.count(b"\n") + 1)
        modules[module.id] = module
        return module, module.id

    # The trees are millions of objects without cycles; looking for some takes the collector a fifth of the time.
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():  # of invalid escapes, in code that is not ours
            warnings.simplefilter("ignore")
            _, files, failed = read_sources(folder, ".py", include_tests, read)
        manifest = {"schema": 1, "files": files, "failed": failed, "python": "{}.{}".format(*sys.version_info)}
        return build_graph(*_Triples(modules).all(), manifest)
    finally:
        if collecting:
            gc.enable()


def _module_name(source: SourceFile) -> str:
    """As an import says it: from the folder above the outermost `__init__.py`, else from the root or its `src`."""
    inside = takewhile(lambda folder: folder.name and (folder / "__init__.py").is_file(), source.path.parents)
    package = [folder.name for folder in inside][::-1]
    if not package:
        return _dotted(source.relative.removeprefix("src/"))
    stem = source.path.stem
    return ".".join(package if stem == "__init__" else (*package, stem.replace(".", "_")))


def _dotted(relative: str) -> str:
    return relative.removesuffix(".py").replace(".", "_").replace("/", ".")


class _Triples:
    """Second pass: what the modules mention, resolved."""

    def __init__(self, modules: dict[str, Module]):
        self.modules = modules
        self.names = Resolver(modules)
        self.triples: list[tuple[str, str, str]] = []
        self.thrown: set[str] = set()

    def all(self) -> tuple[list[Entity], list[tuple[str, str, str]]]:
        for module in self.modules.values():
            self.triples += module.triples
            self._place(module)
            for origin, name in module.imports:
                self._import(module, origin, name)
            for scope in module.scopes:
                for chain in scope.calls:
                    self._call(scope, chain)
                for head, relation, chain in scope.uses:
                    self._use(scope, head, relation, chain)
        for entity, scope in self.names.classes.items():
            self._class(entity, scope)
        types = self._exceptions() | self._tests()
        entities = [
            Entity._make(entity) if entity[0] not in types else Entity(entity[0], types[entity[0]], *entity[2:])
            for module in self.modules.values()
            for entity in module.entities
            if entity[0] not in self.modules or entity[0] == module.id  # `ndbm = None` where importing it failed
        ]
        return [*entities, *self.names.external.values()], self.triples

    def _add(self, head: str, relation: str, tail: Value | None, mention: str) -> None:
        if tail is not None:
            self.triples.append((head, relation, tail.entity))
            return
        name = mention.rpartition(".")[2]
        if name.isidentifier():  # the result of a call has no name
            self.triples.append((head, relation, unresolved(name)))

    def _place(self, module: Module) -> None:
        package = module.id.rpartition(".")[0]
        if package in self.modules:
            self.triples.append((package, "contains", module.id))

    def _import(self, module: Module, origin: str, name: str | None) -> None:
        source = self.names.module(origin)
        if name is None or name == "*" or source is None:
            self._add(module.id, "imports", source, origin)
            return
        member = self.names.imported(origin, name, module)
        if member and self.names.type_of(member.entity) in ("module", "package"):
            self.triples.append((module.id, "imports", member.entity))
            return
        self.triples.append((module.id, "imports", source.entity))
        variable = f"{source.entity}.{name}"  # its value may be unknown, its name is not
        if (member is None or member.is_instance) and variable in self.names.types:
            member = Value(variable, False)
        self._add(module.id, "imports_name", None if member and member.is_instance else member, name)

    def _call(self, scope: Scope, chain: str) -> None:
        called = None if chain[0] == "?" else self.names.value(scope, chain)
        if called and called.is_instance:
            called = self.names.member(called.entity, "__call__")
        kind = self.names.type_of(called.entity) if called else ""
        if called and chain in ("super", "type") and called.entity == f"builtins.{chain}":
            return  # they look a class up and make nothing
        if kind in _CLASSES:
            self.triples.append((scope.owner, "instantiates", called.entity))
        elif kind in _CALLABLE:
            self.triples.append((scope.owner, "calls", called.entity))
        else:
            self._add(scope.owner, "calls", None, chain)

    def _use(self, scope: Scope, head: str, relation: str, chain: str) -> None:
        value = None if chain[0] == "?" else self.names.value(scope, chain)
        if relation == "returns a value":
            if value and value.is_instance:
                self.triples.append((head, "returns", value.entity))
        elif relation == "annotated_with":
            self._add(head, relation, value if value and not value.is_instance else None, chain)
        else:  # a class, or in `raise error` an instance of one
            known = value and self.names.type_of(value.entity) in (*_CLASSES, UNKNOWN)
            known = known and (relation == "raises" or not value.is_instance)
            if known and relation in ("raises", "catches"):
                self.thrown.add(value.entity)
            self._add(head, relation, value if known else None, chain)

    def _class(self, entity: str, scope: Scope) -> None:
        for chain in scope.bases:
            base = None if chain[0] == "?" else self.names.value(scope.parent, chain)
            known = base and not base.is_instance and self.names.type_of(base.entity) in (*_CLASSES, UNKNOWN)
            self._add(entity, "inherits_from", base if known else None, chain)
        above = [base for base in self.names.order(entity)[1:] if base != "builtins.object"]
        for name, meaning in scope.names.items():
            if meaning[0] == "known" and self.names.types.get(meaning[1]) in ("method", "constructor"):
                overridden = self.names.found(above, name)
                if overridden and self.names.type_of(overridden.entity) in ("method", "constructor"):
                    self.triples.append((meaning[1], "overrides", overridden.entity))

    def _exceptions(self) -> dict[str, str]:
        """Classes below BaseException; one with a base outside of the sources is one if it is raised or caught."""
        order, thrown = self.names.order, self.thrown
        found = {"builtins.BaseException"}
        found |= {
            entity for entity in self.names.classes if entity in thrown and order(entity)[-1] != "builtins.object"
        }
        return {entity: "exception" for entity in self.names.classes if not found.isdisjoint(order(entity))}

    def _tests(self) -> dict[str, str]:
        """Functions called test... of a test case or in a test file; each `tests` what it calls outside of such files."""
        files = {module.id for module in self.modules.values() if _is_test_file(module)}
        found = {}
        for module in self.modules.values():
            for scope in module.scopes:
                if scope.kind == "function" and scope.owner.rpartition(".")[2].startswith("test"):
                    outer = scope.parent
                    order = self.names.order(outer.owner) if outer.kind == "class" else ()
                    case = any(base in _TEST_CASE for base in order)
                    if case or (module.id in files and outer.kind != "function"):
                        found[scope.owner] = module.id
        files |= set(found.values())
        in_tests = {entity[0] for name in files for entity in self.modules[name].entities}
        self.triples += tested(self.triples, found, self.names.types.keys() - in_tests if found else ())
        return dict.fromkeys(found, "test")


def _is_test_file(module: Module) -> bool:
    last = module.id.rpartition(".")[2]
    return last.startswith("test_") or last.endswith("_test") or last == "tests"
