"""Entities and triples of files that were read: what they mention, resolved in all of them."""

import re

from .knowledge_graph import UNKNOWN, unresolved
from .resolution import CLASSES, Resolver
from .scopes import OPAQUE, Expression, Known, Meaning, Module, Scope, Value

_CALLABLE = ("function", "method", "constructor", "test", UNKNOWN)
_RELATIONS = {"raised": "raises", "caught": "catches"}  # of the kinds of uses
_TELLING = {
    "implements": "interface",
    "raises": "exception",
    "catches": "exception",
}  # what a class outside of the sources is
_METHODS = ("method", "constructor")
_TEST_CASE = ("unittest.case.TestCase", "unittest.TestCase")


class Build:
    """The part of a graph that the files of one language say.

    entities, triples: as `build_graph` takes them.
    """

    def __init__(self, names: Resolver):
        self.names, self.modules = names, names.modules
        self.triples: set[tuple[str, str, str]] = set()
        self.thrown: set[str] = set()
        for module in self.modules.values():
            self._module(module)
        for entity, scope in names.classes.items():
            self._class(entity, scope)
        types = self._exceptions() | self._tests()
        entities = [
            entity._replace(type=types.get(entity.id, entity.type))
            for module in self.modules.values()
            for entity in module.entities
            if entity.id not in self.modules or entity.id == module.id  # `ndbm = None` where importing it failed
        ]
        self.entities = [*entities, *names.external.values()]

    def _module(self, module: Module) -> None:
        self.triples |= {*module.triples}
        if package := self.names.files.get(module.path.rpartition("/")[0]):
            self.triples.add((package.id, "contains", module.id))
        for scope, kind, chain in dict.fromkeys(use[:3] for use in module.uses):
            if kind == "imported":
                self._import(module, *chain.split(":"))
            elif kind in ("called", "with", "awaited"):
                self._call(scope, chain)
            elif kind in _RELATIONS:
                self._relate(scope, scope.owner, _RELATIONS[kind], chain)
        for entity, decorators in module.decorators.items():
            for decorator in decorators:
                if isinstance(decorator, Expression):
                    chain = decorator.chain.removesuffix("()")
                    self._relate(decorator.scope, entity, "annotated_with", chain)
        for entity, meanings in (module.returned | module.results).items():
            self._types(entity, "returns", meanings)
        for scope in module.scopes:
            for name, meanings in (scope.names | scope.fields).items():
                entity = f"{scope.owner}({name})" if scope.kind == "function" else f"{scope.prefix}{name}"
                if entity in self.names.defined and OPAQUE not in meanings:  # a test of its class is no annotation
                    self._types(entity, "has_type", meanings)

    def _types(self, entity: str, relation: str, meanings: list[Meaning]) -> None:
        """What an annotation says, and of a function without one the classes of what it returns."""
        for meaning in meanings:
            if isinstance(meaning, Expression) and meaning.chain[-1] == "!":
                self._relate(meaning.scope, entity, relation, meaning.chain[:-1])
            elif relation == "returns" and isinstance(meaning, Expression | Known):
                value = self.names.meaning(meaning).one
                if value and value.is_instance:
                    self._add(entity, relation, value, "")

    def _add(self, head: str, relation: str, tail: Value | None, mention: str) -> None:
        """A new triple; none where its other end has no name, as the result of a call."""
        external = self.names.external
        if tail:
            if relation in _TELLING and tail.entity in external and external[tail.entity].type == "class":
                external[tail.entity] = external[tail.entity]._replace(type=_TELLING[relation])
            self.triples.add((head, relation, tail.entity))
        elif (name := mention.rpartition(".")[2].partition("/")[0]).isidentifier():
            self.triples.add((head, relation, unresolved(name)))

    def _import(self, module: Module, origin: str, name: str) -> None:
        source = self.names.module(origin, module)
        if name in ("", "*") or source is None:
            self._add(module.id, "imports", source, origin)
            return
        member = self.names.imported(origin, name, module).one
        if member and self.names.type_of(member.entity) in ("module", "package"):
            self._add(module.id, "imports", member, name)
            return
        self._add(module.id, "imports", source, origin)
        variable = f"{source.entity}.{name}"  # its value may be unknown, its name is not
        if (member is None or member.is_instance) and variable in self.names.defined:
            member = Value(variable, False)
        self._add(module.id, "imports_name", None if member and member.is_instance else member, name)

    def _value(self, scope: Scope, chain: str) -> Value | None:
        return self.names.value(scope, chain).one

    def _call(self, scope: Scope, chain: str) -> None:
        called = self._value(scope, chain)
        if called and called.is_instance:
            called = self.names.member(called, "__call__").one
        if called and chain in ("super", "type") and called.entity == f"builtins.{chain}":
            return  # they look a class up and make nothing
        kind = self.names.type_of(called.entity) if called else ""
        is_class = kind in CLASSES or (not called and chain.rpartition(".")[2][:1].isupper())
        relation = "instantiates" if is_class else "calls"
        self._add(scope.owner, relation, called if kind in (*CLASSES, *_CALLABLE) else None, chain)

    def _relate(self, scope: Scope, head: str, relation: str, chain: str) -> None:
        value = self._value(scope, chain)
        if value and value.is_instance and relation != "raises":  # `raise error` of an instance
            value = None
        if value and relation not in ("annotated_with", "imports"):
            if self.names.type_of(value.entity) not in (*CLASSES, UNKNOWN):
                value = None
            elif relation in ("raises", "catches"):
                self.thrown.add(value.entity)
        self._add(head, relation, value, chain)

    def _class(self, entity: str, scope: Scope) -> None:
        for relation, chain in scope.bases:
            self._relate(scope.outer, entity, relation, chain)
        above = [base for base in self.names.order(entity)[1:] if base != "builtins.object"]
        for name, meanings in scope.names.items():
            for meaning in meanings:
                if (
                    isinstance(meaning, Known)
                    and "/" not in name
                    and self.names.type_of(meaning.value.entity) in _METHODS
                ):
                    overridden = self.names.lookup(above, name, is_instance=False).one
                    if overridden and self.names.type_of(overridden.entity) in _METHODS:
                        self._add(meaning.value.entity, "overrides", overridden, name)

    def _exceptions(self) -> dict[str, str]:
        """Classes below a known exception; one with a base outside of the sources is one if it is raised or caught."""
        orders = {entity: self.names.order(entity) for entity in self.names.classes}
        return {
            entity: "exception"
            for entity, order in orders.items()
            if "builtins.BaseException" in order or (entity in self.thrown and order[-1] != "builtins.object")
        }

    def _tests(self) -> dict[str, str]:
        """Functions called test... of a test case or in a test file; each `tests` what it calls outside of such files."""
        modules = self.modules.values()
        files = {module.id for module in modules if re.search(r"(^|\.)(test_[^.]*|[^.]*_test|tests)$", module.id)}
        found = {
            scope.owner: module.id
            for module in modules
            for scope in module.scopes
            if self._is_test(scope, module.id in files)
        }
        files |= {*found.values()}
        for head, relation, tail in [*self.triples]:
            called = self.names.defined.get(tail) if head in found and relation in ("calls", "instantiates") else None
            if called and called.module not in files:
                self.triples.add((head, "tests", tail))
        return dict.fromkeys(found, "test")

    def _is_test(self, scope: Scope, in_file: bool) -> bool:
        if scope.kind != "function" or not scope.owner.rpartition(".")[2].startswith("test"):
            return False
        outer = scope.outer
        above = self.names.order(outer.owner) if outer.kind == "class" else ()
        return any(base in _TEST_CASE for base in above) or (in_file and outer.kind != "function")
