"""Entities and triples of files that were read: what they mention, resolved in all of them."""

import re

from .knowledge_graph import UNKNOWN, last_name, unresolved
from .resolution import CLASSES, Resolver
from .scopes import OPAQUE, Expression, Meaning, Module, Scope, Value

_CALLABLE = ("function", "method", "constructor", "test", UNKNOWN)
_RELATIONS = {"raised": "raises", "caught": "catches"}  # of the kinds of uses
_TELLING = {
    "implements": "interface",
    "raises": "exception",
    "catches": "exception",
}  # what a class outside of the sources is
_METHODS = ("method", "constructor")
_FILE_OF_TESTS = re.compile(r"(^|\.)(test_[^.]*|[^.]*_test|tests)$")
_TEST_CASE = ("unittest.case.TestCase", "unittest.TestCase")


class Build:
    """The part of a graph that the files of one language say.

    entities, triples: as `build_graph` takes them.
    """

    def __init__(self, resolver: Resolver):
        self.resolver, self.modules = resolver, resolver.modules
        self.triples: set[tuple[str, str, str]] = set()
        self.thrown: set[str] = set()
        for module in self.modules.values():
            self._module(module)
        for name, scope in resolver.classes.items():
            self._class(name, scope)
        types = self._exceptions() | self._tests()
        self.entities = []
        for module in self.modules.values():
            for entity in module.entities:
                if entity.id not in self.modules or entity.id == module.id:  # `ndbm = None` where importing it failed
                    kind = types.get(entity.id, entity.type)
                    self.entities.append(entity._replace(type=kind))
        self.entities += resolver.external.values()

    def _module(self, module: Module) -> None:
        self.triples.update(module.triples)
        package = self.resolver.files.get(module.path.rpartition("/")[0])
        if package:
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
                entity = f"{scope.prefix}{name}"
                if scope.kind == "function":
                    entity = f"{scope.owner}({name})"
                if entity in self.resolver.defined and OPAQUE not in meanings:  # a test of its class is no annotation
                    self._types(entity, "has_type", meanings)

    def _types(self, entity: str, relation: str, meanings: list[Meaning]) -> None:
        """What an annotation says, and of a function without one the classes of what it returns."""
        for meaning in meanings:
            if isinstance(meaning, Expression) and meaning.chain[-1] == "!":
                self._relate(meaning.scope, entity, relation, meaning.chain[:-1])
            elif relation == "returns" and isinstance(meaning, Expression | Value):
                value = self.resolver.meaning(meaning).one
                if value and value.is_instance:
                    self._add(entity, relation, value, "")

    def _add(self, head: str, relation: str, tail: Value | None, mention: str) -> None:
        """A new triple; none where its other end has no name, as the result of a call."""
        name = last_name(mention).partition("/")[0]
        if tail:
            entity = self.resolver.external.get(tail.entity)
            if relation in _TELLING and entity and entity.type == "class":
                self.resolver.external[entity.id] = entity._replace(type=_TELLING[relation])
            self.triples.add((head, relation, tail.entity))
        elif name.isidentifier():
            self.triples.add((head, relation, unresolved(name)))

    def _import(self, module: Module, origin: str, name: str) -> None:
        source = self.resolver.module(origin, module)
        if name in ("", "*") or source is None:
            self._add(module.id, "imports", source, origin)
            return
        member = self.resolver.imported(origin, name, module).one
        if member and self.resolver.type_of(member.entity) in ("module", "package"):
            self._add(module.id, "imports", member, name)
            return
        self._add(module.id, "imports", source, origin)
        variable = f"{source.entity}.{name}"  # its value may be unknown, its name is not
        if (member is None or member.is_instance) and variable in self.resolver.defined:
            member = Value(variable, False)
        if member and member.is_instance:
            member = None
        self._add(module.id, "imports_name", member, name)

    def _call(self, scope: Scope, chain: str) -> None:
        called = self.resolver.value(scope, chain).one
        if called and called.is_instance:
            called = self.resolver.member(called, "__call__").one
        if called and chain in ("super", "type") and called.entity == f"builtins.{chain}":
            return  # they look a class up and make nothing
        if called:
            kind = self.resolver.type_of(called.entity)
            is_class = kind in CLASSES
            if not is_class and kind not in _CALLABLE:
                called = None
        else:
            is_class = last_name(chain)[:1].isupper()
        relation = "instantiates" if is_class else "calls"
        self._add(scope.owner, relation, called, chain)

    def _relate(self, scope: Scope, head: str, relation: str, chain: str) -> None:
        value = self.resolver.value(scope, chain).one
        if value and value.is_instance and relation != "raises":  # `raise error` of an instance
            value = None
        if value and relation not in ("annotated_with", "imports"):
            if self.resolver.type_of(value.entity) not in (*CLASSES, UNKNOWN):
                value = None
            elif relation in ("raises", "catches"):
                self.thrown.add(value.entity)
        self._add(head, relation, value, chain)

    def _class(self, entity: str, scope: Scope) -> None:
        for relation, chain in scope.bases:
            self._relate(scope.outer, entity, relation, chain)
        above = [base for base in self.resolver.order(entity)[1:] if base != "builtins.object"]
        for name, meanings in scope.names.items():
            for meaning in meanings:
                if "/" not in name and isinstance(meaning, Value) and self._is_method(meaning):
                    overridden = self.resolver.lookup(above, name, is_instance=False).one
                    if overridden and self._is_method(overridden):
                        self._add(meaning.entity, "overrides", overridden, name)

    def _is_method(self, value: Value) -> bool:
        return self.resolver.type_of(value.entity) in _METHODS

    def _exceptions(self) -> dict[str, str]:
        """Classes below a known exception; one with a base outside of the sources is one if it is raised or caught."""
        types = {}
        for entity in self.resolver.classes:
            order = self.resolver.order(entity)
            if "builtins.BaseException" in order or (entity in self.thrown and order[-1] != "builtins.object"):
                types[entity] = "exception"
        return types

    def _tests(self) -> dict[str, str]:
        """Functions called test... of a test case or in a test file; each `tests` what it calls outside of such files."""
        files = set()
        types = {}
        for module in self.modules.values():
            is_file_of_tests = bool(_FILE_OF_TESTS.search(module.id))
            tests = [scope.owner for scope in module.scopes if self._is_test(scope, is_file_of_tests)]
            types.update(dict.fromkeys(tests, "test"))
            if tests or is_file_of_tests:
                files.add(module.id)
        for head, relation, tail in [*self.triples]:
            called = self.resolver.defined.get(tail)
            if called and head in types and relation in ("calls", "instantiates") and called.module not in files:
                self.triples.add((head, "tests", tail))
        return types

    def _is_test(self, scope: Scope, in_file: bool) -> bool:
        if scope.kind != "function" or not last_name(scope.owner).startswith("test"):
            return False
        outer = scope.outer
        if outer.kind == "class" and any(base in _TEST_CASE for base in self.resolver.order(outer.owner)):
            return True
        return in_file and outer.kind != "function"
