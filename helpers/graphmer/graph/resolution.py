"""What a name in source code stands for: scopes, imports, inheritance. Second pass, after every file was read.

Nothing is guessed: a name with two different meanings, an attribute of a value of unknown class, or one that a base class
outside of the sources may define is unresolved.
"""

import builtins
import importlib
import sys
from types import BuiltinFunctionType
from typing import NamedTuple

from .imports import Imports
from .knowledge_graph import EXTERNAL, UNKNOWN, Entity
from .scopes import NOTHING, Module, Scope

_BUILTINS = {  # not all of vars(builtins): a notebook adds to them and replaces `input`
    name: value
    for name, value in vars(builtins).items()
    if (isinstance(value, type | BuiltinFunctionType) and not name.startswith("_")) or name in ("input", "__import__")
}

CLASSES = ("class", "exception", "interface", "enum", "annotation")


class Value(NamedTuple):
    entity: str
    is_instance: bool  # of the class `entity`; else `entity` itself


class Resolver:
    """Meaning of chains in the scopes of Python files."""

    def __init__(self, modules: dict[str, Module], imports: Imports):
        self.modules, self.imports = modules, imports
        self.files = {module.path: module for module in modules.values()}
        self.folders: dict[str, str] = {}  # entity of a folder without __init__.py -> its path
        self.classes, self.results, self.properties = {}, {}, set()
        for module in modules.values():
            self.classes |= module.classes
            self.results |= module.results
            self.properties |= module.properties
        self.defined = {entity.id: entity for module in modules.values() for entity in module.entities}
        self.external: dict[str, Entity] = {}
        self.orders: dict[str, list[str]] = {}
        self.members: dict[tuple[str, str], Value | None] = {}

    # ---- names

    def value(self, scope: Scope, chain: str) -> Value | None:
        """What a chain stands for where `scope` reads it; None where that is not certain."""
        values = scope.values
        if chain in values:
            return values[chain]
        values[chain] = None  # for `a = b` beside `b = a`
        before, dot, name = chain.rpartition(".")
        if chain[-1] == ")":
            # What `type(x)` gives is some class, not an instance of `type`.
            untold = chain[-2:] != "()" or chain in ("super()", "type()")
            found = None if untold else self._result(self.value(scope, chain[:-2]))
        elif not dot:
            found = self._name(scope, chain)
        elif before[:6] == "super(" and before[-1] == ")":
            found = self._inherited(scope, before[6:-1], name)
        else:
            found = self._attribute(self.value(scope, before), name)
        values[chain] = found
        return found

    def _name(self, scope: Scope, name: str) -> Value | None:
        if name[0] == "<":
            return self._builtin(name[1:-1])._replace(is_instance=True)
        looking: Scope | None = scope
        while looking:
            if name in looking.names and (looking is scope or looking.kind != "class"):
                return self._meaning(looking.names[name], looking.module)
            looking = looking.parent
        return self._starred(scope.module, name) or self._builtin(name)

    def _meaning(self, meaning: tuple, module: Module) -> Value | None:
        kind = meaning[0]
        if kind == "known":
            return Value(meaning[1], meaning[2])
        if kind == "chain":
            return self.value(meaning[2], meaning[1])
        if kind == "module":
            return self.module(meaning[1], module)
        if kind == "member":
            return self.imported(meaning[1], meaning[2], module)
        if kind == "any":
            return self._one(dict.fromkeys(self._meaning(one, module) for one in meaning[1] if one is not NOTHING))
        return None

    def _one(self, found: dict[Value | None, None]) -> Value | None:
        """Of several meanings the only one, but for two customs: C code has a fallback in the sources, and modules under
        one name (`os.path` on Unix and Windows) offer the same, so that the first stands for all."""
        if len(found) > 1 and None not in found:
            found = {value: None for value in found if not self._is_imported(value)} or found
            if all(self.type_of(value.entity) in ("module", "package") for value in found):
                return next(iter(found))
        return next(iter(found)) if len(found) == 1 else None

    def module(self, name: str, importer: Module) -> Value | None:
        """A module by the name that an import uses; None where two could be meant."""
        path = self.imports.find(name, importer.path)
        if path is None or path:
            return self._at(path) if path else None
        below = name.lstrip(".")
        dots = name[: len(name) - len(below)]
        if not below:  # `from . import x` in the folder of all sources
            return None
        package, _, last = below.rpartition(".")
        if not (package or dots):
            return self._outside(name, "module")
        parent = self.module(dots + package, importer)
        if parent is None:
            return None
        known = (
            None if self._is_external(parent.entity) else self._attribute(parent, last)
        )  # os.path is an attribute of os
        return known or self._outside(f"{parent.entity}.{last}", "module")

    def _at(self, path: str) -> Value:
        if path in self.files:
            return Value(self.files[path].id, False)
        found = self._outside(path.replace("/", "."), "module")
        self.folders[found.entity] = path
        return found

    def imported(self, origin: str, name: str, importer: Module) -> Value | None:
        module = self.module(origin, importer)
        if module and module.entity == importer.id and (sub := f"{importer.path}/{name}") in self.files:
            return self._at(sub)  # `from . import sub` in a package binds what it asks for
        return module and self._attribute(module, name)

    def _module_member(self, module: Module, name: str) -> Value | None:
        chain = f"from {name}"  # its cache beside that of chains, whose names hold no space
        values = module.scope.values
        if chain not in values:
            values[chain] = None
            meaning = module.scope.names.get(name)
            values[chain] = self._meaning(meaning, module) if meaning else self._starred(module, name)
        return values[chain]

    def _starred(self, module: Module, name: str) -> Value | None:
        """`name` through `from x import *`; several that have it must mean the same."""
        found = set()
        for origin in module.stars:
            starred = self.module(origin, module)
            if starred and starred.entity in self.modules and starred.entity != module.id:
                inside = self.modules[starred.entity]
                if name in inside.exports if inside.exports is not None else name[0] != "_":
                    found.add(self._module_member(inside, name))
        found.discard(None)
        return found.pop() if len(found) == 1 else None

    def _attribute(self, value: Value | None, name: str) -> Value | None:
        if value is None:
            return None
        entity = value.entity
        if entity in self.folders:
            path = f"{self.folders[entity]}/{name}"
            return self._at(path) if path in self.files or path in self.imports.folders else None
        if entity in self.modules:
            module = self.modules[entity]
            if (sub := f"{module.path}/{name}") in self.files and name not in module.scope.names:
                return self._at(sub)
            return self._module_member(module, name) or self._from_interpreter(module, name)
        if name == "__class__" and value.is_instance:
            return Value(entity, False)
        if entity in self.classes or _builtin_class(entity):
            found = self.member(entity, name)
            if found and value.is_instance and not found.is_instance and found.entity in self.properties:
                return self._result(found)
            return found
        if entity in self.properties and name in ("getter", "setter", "deleter"):
            return self._outside(f"builtins.property.{name}", "method")
        if self._is_imported(value):
            return self._outside(f"{entity}.{name}", UNKNOWN)
        return None

    def _result(self, called: Value | None) -> Value | None:
        """What calling a value gives: an instance of a class, or what the function's annotation says."""
        if called is None or called.is_instance:
            return None
        if self.type_of(called.entity) in CLASSES:
            return Value(called.entity, True)
        if called.entity in self.results:
            return self.value(*self.results[called.entity])
        return None

    # ---- classes

    def order(self, entity: str) -> list[str]:
        """Method resolution order (C3); what is not in the sources ends in a name that nothing knows."""
        if entity not in self.orders:
            self.orders[entity] = [entity, "?"]  # for a class that inherits from itself
            self.orders[entity] = self._order(entity)
        return self.orders[entity]

    def _order(self, entity: str) -> list[str]:
        if builtin := _builtin_class(entity):
            return [f"builtins.{kind.__name__}" for kind in builtin.__mro__]
        if entity not in self.classes:
            return [entity, *self.beyond]
        scope = self.classes[entity]
        values = [self.value(scope.parent, chain) for _, chain in scope.bases]
        bases = [value.entity if value and not value.is_instance else "?" for value in values] or [*self.no_base]
        rows = [[*self.order(base)] if base != "?" else ["?"] for base in bases]
        return [entity, *linear([*rows, bases] if self.bases_are_ordered else rows)]

    no_base: tuple[str, ...] = ("builtins.object",)  # of a class that names none
    beyond: tuple[str, ...] = ("?",)  # above a class outside of the sources
    bases_are_ordered = True

    def member(self, entity: str, name: str) -> Value | None:
        if (entity, name) not in self.members:
            self.members[entity, name] = None
            self.members[entity, name] = self.found(self.order(entity), name)
        return self.members[entity, name]

    def found(self, order: list[str], name: str) -> Value | None:
        for entity in order:
            if entity in self.classes:
                scope = self.classes[entity]
                if meanings := [names[name] for names in (scope.names, scope.fields) if name in names]:
                    return self._meaning(("any", meanings), scope.module)
            elif kind := _builtin_class(entity):
                if name in vars(kind):
                    return self._outside(f"{entity}.{name}", "method" if callable(vars(kind)[name]) else "field")
            else:
                return None  # a class outside of the sources, which may have it
        return None

    def _inherited(self, scope: Scope, after: str, name: str) -> Value | None:
        """`super().name` or `super(after, self).name`, in whichever class the scope is in."""
        within: Scope | None = scope
        while within is not None and within.kind != "class" and not within.hidden:
            within = within.parent
        if within is None or within.hidden:
            return None
        order = self.order(within.owner)
        start = self.value(scope, after) if after else Value(within.owner, False)
        if start is None or start.entity not in order:
            return None
        return self.found(order[order.index(start.entity) + 1 :], name)

    # ---- outside of the sources

    def _from_interpreter(self, module: Module, name: str) -> Value | None:
        """What a module has through `from posix import *`, C code of the interpreter, under its own name: `os.getcwd`."""
        if name[0] == "_" or name in module.scope.names:
            return None
        for origin in module.stars:
            if origin in sys.builtin_module_names and hasattr(importlib.import_module(origin), name):
                return self._outside(f"{module.id}.{name}", UNKNOWN)
        return None

    def _builtin(self, name: str) -> Value | None:
        value = _BUILTINS.get(name)
        if value is None:
            return None
        if not isinstance(value, type):
            return self._outside(f"builtins.{name}", "function")
        return self._outside(f"builtins.{value.__name__}", "exception" if issubclass(value, BaseException) else "class")

    def _outside(self, entity: str, kind: str) -> Value:
        if entity not in self.external:
            module = "builtins" if entity.startswith("builtins.") else entity if kind == "module" else ""
            self.external[entity] = Entity(entity, kind, entity.rpartition(".")[2], EXTERNAL, module)
        return Value(entity, False)

    def _is_external(self, entity: str) -> bool:
        return entity not in self.defined and (entity in self.external or entity.startswith("builtins."))

    def _is_imported(self, value: Value) -> bool:
        return self._is_external(value.entity) and not value.is_instance and not value.entity.startswith("builtins.")

    def type_of(self, entity: str) -> str:
        found = self.defined.get(entity) or self.external.get(entity)
        return found.type if found else UNKNOWN


def linear(rows: list[list[str]]) -> list[str]:
    """The C3 order of classes that all rows agree with (www.python.org/download/releases/2.3/mro); ["?"] where there is none."""
    order = []
    while rows := [row for row in rows if row]:
        head = next((row[0] for row in rows if not any(row[0] in other[1:] for other in rows)), None)
        if head is None:
            return ["?"]
        order.append(head)
        rows = [row[1:] if row[0] == head else row for row in rows]
    return order


def _builtin_class(entity: str) -> type | None:
    value = _BUILTINS.get(entity[9:]) if entity.startswith("builtins.") else None
    return value if isinstance(value, type) else None
