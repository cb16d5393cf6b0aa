"""Entities and triples of files that were read: what they mention, resolved in all of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable

from helpers.graphmer.graph.knowledge_graph import Entity, Triple, unresolved
from helpers.graphmer.graph.ontology import UNKNOWN
from helpers.graphmer.graph.resolution import CLASSES, Resolver, Value
from helpers.graphmer.graph.scopes import Module, Scope

_CALLABLE = ("function", "method", "constructor", "test", UNKNOWN)
_METHODS = ("method", "constructor")
_TEST_CASE = ("unittest.case.TestCase", "unittest.TestCase")


class Build:
    """The part of a graph that the files of one language say.

    entities, triples: as `build_graph` takes them. sites: a call or an instantiation -> the lines that say it.
    """

    def __init__(self, names: Resolver):
        self.names, self.modules = names, names.modules
        self.triples: list[tuple[str, str, str]] = []
        self.sites: dict[Triple, list[int]] = defaultdict(list)
        self.thrown: set[str] = set()
        for module in self.modules.values():
            self._module(module)
        for entity, scope in names.classes.items():
            self._class(entity, scope)
        types = self._exceptions() | self._tests()
        entities = [
            Entity._make(entity) if entity[0] not in types else Entity(entity[0], types[entity[0]], *entity[2:])
            for module in self.modules.values()
            for entity in module.entities
            if entity[0] not in self.modules or entity[0] == module.id  # `ndbm = None` where importing it failed
        ]
        self.entities: list[Entity] = [*entities, *names.external.values()]

    def _module(self, module: Module) -> None:
        self.triples += module.triples
        package = self.names.files.get(module.path.rpartition("/")[0])
        if package:
            self.triples.append((package.id, "contains", module.id))
        for origin, name in module.imports:
            self._import(module, origin, name)
        for scope in module.scopes:
            for chain, lines in scope.calls.items():
                self._call(scope, chain, lines)
            for use in scope.uses:
                self._use(scope, *use)

    def _add(self, head: str, relation: str, tail: Value | None, mention: str) -> str | None:
        """The other end of a new triple; None where it has no name, as the result of a call."""
        if tail is not None:
            other = tail.entity
            if relation == "implements" and other in self.names.external:
                self.names.external[other] = self.names.external[other]._replace(type="interface")
        else:
            name = _last(mention)
            if not name.isidentifier():
                return None
            other = unresolved(name)
        self.triples.append((head, relation, other))
        return other

    def _import(self, module: Module, origin: str, name: str | None) -> None:
        source = self.names.module(origin, module)
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

    def _value(self, scope: Scope, chain: str) -> Value | None:
        try:
            return None if chain[0] == "?" else self.names.value(scope, chain)
        except RecursionError:  # hundreds of calls of what calls return
            return None

    def _call(self, scope: Scope, chain: str, lines: list[int]) -> None:
        called = self._value(scope, chain)
        if called and called.is_instance:
            called = self.names.member(called.entity, "__call__")
        kind = self.names.type_of(called.entity) if called else ""
        if called and chain in ("super", "type") and called.entity == f"builtins.{chain}":
            return  # they look a class up and make nothing
        relation = "instantiates" if kind in CLASSES else "calls"
        other = self._add(scope.owner, relation, called if kind in (*CLASSES, *_CALLABLE) else None, chain)
        if other:
            self.sites[Triple(scope.owner, relation, other)] += lines

    def _use(self, scope: Scope, head: str, relation: str, chain: str, line: int = 0) -> None:
        value = self._value(scope, chain)
        if relation == "returns a value":
            if value and value.is_instance:
                self.triples.append((head, "returns", value.entity))
        elif relation in ("annotated_with", "imports"):
            self._add(head, relation, value if value and not value.is_instance else None, chain)
        else:  # a class, or in `raise error` an instance of one
            known = value and self.names.type_of(value.entity) in (*CLASSES, UNKNOWN)
            known = known and (relation == "raises" or not value.is_instance)
            if known and relation in ("raises", "catches"):
                self.thrown.add(value.entity)
            other = self._add(head, relation, value if known else None, chain)
            if other and line:
                self.sites[Triple(head, relation, other)].append(line)

    def _class(self, entity: str, scope: Scope) -> None:
        for relation, chain in scope.bases:
            base = self._value(scope.parent, chain)
            known = base and not base.is_instance and self.names.type_of(base.entity) in (*CLASSES, UNKNOWN)
            self._add(entity, relation, base if known else None, chain)
        above = [base for base in self.names.order(entity)[1:] if base != "builtins.object"]
        for name in self.names.overriding(scope):
            meaning = scope.names[name]
            if meaning[0] == "known" and self.names.types.get(meaning[1]) in _METHODS:
                overridden = self.names.found(above, name)
                if overridden and self.names.type_of(overridden.entity) in _METHODS:
                    self.triples.append((meaning[1], "overrides", overridden.entity))

    def _exceptions(self) -> dict[str, str]:
        """Classes below a known exception; one with a base outside of the sources is one if it is raised or caught."""
        found = {}
        for entity in self.names.classes:
            order = self.names.order(entity)
            below = "builtins.BaseException" in order
            thrown = entity in self.thrown and order[-1] != "builtins.object"
            if below or thrown:
                found[entity] = "exception"
        return found

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
        others = {entity for entity, module in self.names.module_of.items() if module not in files} if found else ()
        self.triples += _tested(self.triples, found, others)
        return dict.fromkeys(found, "test")


def _last(mention: str) -> str:
    """The name that a chain ends with."""
    return mention.rpartition(".")[2].partition("/")[0]


def _tested(
    triples: Iterable[tuple[str, str, str]], tests: Container[str], others: Container[str]
) -> list[tuple[str, str, str]]:
    """A `tests` triple for each of `others` that one of `tests` calls or makes."""
    return [
        (head, "tests", tail)
        for head, relation, tail in triples
        if head in tests and relation in ("calls", "instantiates") and tail in others
    ]


def _is_test_file(module: Module) -> bool:
    last = module.id.rpartition(".")[2]
    return last.startswith("test_") or last.endswith("_test") or last == "tests"
