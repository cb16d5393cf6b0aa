"""What one source file defines and what its names are bound to: a reader of a language fills it in, `resolution` looks it up.

An expression is kept as a *chain*, the text of what it mentions, with what only running would tell left out: `os.path.join`,
`f().x` and `<str>.join` (of a literal) can be looked up; `?.x`, an attribute of anything else, cannot. `C!` is an instance of C
or of a class below it, `f()~` what an awaited call gives, `module:name` what `from module import name` binds, and `module:` what `import module` does. In Java a method is
named with the number of its arguments: `list.add/1`.
"""

from __future__ import annotations

import json
import operator
from collections import defaultdict
from enum import Enum
from typing import NamedTuple

from .knowledge_graph import DEFINED, Entity

_VARIABLES = ("variable", "field")


class Value(NamedTuple):
    """A definition itself, or an instance of a class; `exact`: of no class below it, and no method that overrides it."""

    entity: str
    is_instance: bool = False
    exact: bool = True


# ---- what a name is bound to


class Expression(NamedTuple):
    """The value of a chain where `scope` reads it."""

    chain: str
    scope: Scope


class Unknown(Enum):
    OPAQUE = 0  # a value that only running would tell
    NOTHING = 1  # None, a placeholder for what another assignment binds


OPAQUE, NOTHING = Unknown.OPAQUE, Unknown.NOTHING
Meaning = Value | Expression | Unknown


class Use(NamedTuple):
    """A place that mentions a name: kind is "called", "raised", "passed" and so on."""

    scope: Scope
    kind: str
    chain: str
    line: int
    column: int  # of the last character of the name, from 0


def bind(names: dict[str, list[Meaning]], name: str, meaning: Meaning) -> None:
    """Adds a meaning of `name`; one that is there already changes nothing."""
    meanings = names.setdefault(name, [])
    if meaning not in meanings:
        meanings.append(meaning)


class Scope:
    """Names of a module, a class, a function, or a lambda, a comprehension or a nameless class (`block`)."""

    def __init__(self, kind: str, owner: str, prefix: str, parent: Scope | None, module: Module):
        self.kind, self.owner, self.prefix, self.parent, self.module = kind, owner, prefix, parent, module
        self.names: dict[str, list[Meaning]] = {}
        self.declared: dict[str, Scope] = {}  # global and nonlocal names
        self.self_name: str | None = None  # of a method: its first parameter
        self.hidden = False  # a block that may inherit methods which nobody looks up
        self.fields: dict[str, list[Meaning]] = {}  # of a class: what methods assign to self
        self.bases: list[tuple[str, str]] = []  # of a class: relation, chain
        self.metaclass = ""
        self.reads_members = False  # what attributes an object has is looked up in it
        self.number = len(module.scopes)
        module.scopes.append(self)

    @property
    def outer(self) -> Scope:
        """The scope around this one, which is no module's."""
        assert self.parent
        return self.parent

    def binder(self, name: str) -> Scope:
        """The scope that an assignment to `name` binds it in."""
        return self.declared.get(name, self)

    def bind(self, name: str, meaning: Meaning) -> None:
        """An assignment to `name`."""
        bind(self.binder(name).names, name, meaning)

    def define(self, kind: str, name: str, lines: tuple[int, int], suffix: str = "") -> str:
        """A new entity that the scope's own contains; returns its id.

        lines: the first and the last of the definition. suffix: what tells it from others of its name. A second function or
        class of one name is an entity of its own, `name#2`.
        """
        entity, module = f"{self.prefix}{name}{suffix}", self.module
        position = module.defined.get(entity)
        if position is not None and module.entities[position].type in _VARIABLES:
            if kind not in _VARIABLES:  # `Flag = None`, later the class
                module.entities[position] = Entity(entity, kind, name, DEFINED, module.id, *lines)
            return entity
        if position is not None:
            if kind in _VARIABLES:
                return entity
            module.repeated[entity] += 1
            entity = f"{entity}#{module.repeated[entity] + 1}"
        module.defined[entity] = len(module.entities)
        self._add(entity, kind, name, lines)
        if self.owner:
            module.triples.append((self.owner, "contains", entity))
        return entity

    def parameter(self, name: str, lines: tuple[int, int]) -> str:
        """A parameter of the function whose scope this is; returns its id."""
        entity = f"{self.owner}({name})"
        self._add(entity, "parameter", name, lines)
        self.module.triples.append((self.owner, "has_parameter", entity))
        return entity

    def _add(self, entity: str, kind: str, name: str, lines: tuple[int, int]) -> None:
        self.module.entities.append(Entity(entity, kind, name, DEFINED, self.module.id, *lines))


class Module:
    """One file.

    path: without suffix, from the folder of all sources; of a package its folder.
    """

    def __init__(self, name: str, path: str = "", is_package: bool = False):
        self.id, self.path, self.is_package = name, path, is_package
        self.package = self.label = ""  # of a Java file; label: before all its names
        self.record: dict = {}  # of the file, in the graph's manifest
        self.scopes: list[Scope] = []
        self.scope = Scope("module", self.id, f"{self.id}.", None, self)
        self.todo: list[tuple[Scope, list]] = []  # while it is read
        self.uses: list[Use] = []
        self.entities: list[Entity] = []
        self.triples: list[tuple] = []
        self.defined: dict[str, int] = {}  # position in `entities`
        self.repeated: dict[str, int] = defaultdict(int)
        self.classes: dict[str, Scope] = {}
        # By function: what its annotation says that it returns, what its statements return, its first parameter, and of one that is
        # decorated with functools.wraps the chain that it wraps and calls.
        self.results: dict[str, list[Meaning]] = {}
        self.returned: dict[str, list[Meaning]] = {}
        self.first: dict[str, str] = {}
        self.wrappers: dict[str, str] = {}
        self.asynchronous: set[str] = set()
        self.decorators: dict[str, list[Meaning]] = {}
        # Object, attribute ("" for one that is computed), value.
        self.stores: list[tuple[Expression, str, Meaning]] = []
        # What computed names can be: strings of a definition, and the strings and keywords of calls of a name.
        self.words: dict[str, set[str]] = defaultdict(set)
        self.stars: list[tuple[str, int]] = []  # origin, line
        self.exports: set[str] | None = None  # __all__, as far as it is written out

    def is_public(self, name: str) -> bool:
        """Whether `from this import *` brings a name."""
        if self.exports is None:
            return name[0] != "_"
        return name in self.exports


# ---- as JSON, for the cache

_MODULE_FIELDS = (
    "id", "path", "is_package", "package", "label", "record", "scope", "entities", "classes", "results", "returned", "first", "wrappers",
    "asynchronous", "decorators", "stores", "words", "stars", "exports",
)  # fmt: skip
_SCOPE_FIELDS = (
    "kind", "owner", "prefix", "parent", "names", "declared", "hidden", "fields", "bases", "metaclass", "reads_members",
)  # fmt: skip


def pack(module: Module) -> str:
    """All but the mentions, which are read again where somebody asks for them. A scope is its number, a meaning the list of its parts."""

    def plain(value: Scope | set[str] | Unknown) -> object:
        if isinstance(value, Scope):
            return value.number
        if isinstance(value, Unknown):
            return value.value
        return sorted(value)

    record = {name: getattr(module, name) for name in _MODULE_FIELDS}
    record["scopes"] = list(map(operator.attrgetter(*_SCOPE_FIELDS), module.scopes))
    return json.dumps(record, default=plain, separators=(",", ":"))


def unpack(text: str) -> Module:
    """Raises LookupError, TypeError, ValueError or AttributeError for what `pack` did not write."""
    record = json.loads(text)
    module = Module(record["id"])
    scopes = module.scopes
    scopes.clear()
    rows = record.pop("scopes")
    for _ in rows:
        Scope("", "", "", None, module)

    def meaning_of(row: int | list) -> Meaning:
        if isinstance(row, int):
            return Unknown(row)
        if len(row) == 2:
            return Expression(row[0], scopes[row[1]])
        return Value(*row)

    def table_of(table: dict[str, list]) -> dict[str, list[Meaning]]:
        return {name: [meaning_of(row) for row in meanings] for name, meanings in table.items()}

    for scope, row in zip(scopes, rows, strict=True):
        parts = dict(zip(_SCOPE_FIELDS, row, strict=True))
        if parts["parent"] is not None:
            parts["parent"] = scopes[parts["parent"]]
        parts["names"] = table_of(parts["names"])
        parts["fields"] = table_of(parts["fields"])
        parts["declared"] = {name: scopes[number] for name, number in parts["declared"].items()}
        vars(scope).update(parts)
    record["scope"] = scopes[record["scope"]]
    record["entities"] = [Entity._make(row) for row in record["entities"]]
    record["classes"] = {name: scopes[number] for name, number in record["classes"].items()}
    for name in ("results", "returned", "decorators"):
        record[name] = table_of(record[name])
    stores = record["stores"]
    record["stores"] = [(meaning_of(target), name, meaning_of(value)) for target, name, value in stores]
    vars(module).update(record)
    return module
