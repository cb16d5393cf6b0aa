"""What one source file defines and what its names are bound to: a reader of a language fills it in, `resolution` looks it up.

An expression is kept as a *chain*, the text of what it mentions, with what only running would tell left out: `os.path.join`,
`f().x` and `<str>.join` (of a literal) can be looked up; `?.x`, an attribute of anything else, cannot. `C!` is an instance of C
or of a class below it (`list[C]!` says of what), `f()~` what an awaited call gives, `x*` an element that a loop over x gives,
`x@` one by index or key, `module:name` what `from module import name` binds. In Java a method
is named with the number of its arguments: `list.add/1`.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from .knowledge_graph import DEFINED, Entity

_VARIABLES = ("variable", "field")


class Value(NamedTuple):
    """A definition itself, or an instance of a class; `exact`: of no class below it, and no method that overrides it."""

    entity: str
    is_instance: bool = False
    exact: bool = True
    parts: tuple[Expression, ...] = ()  # of a container: what its annotation says of its elements


# ---- what a name is bound to


@dataclass(frozen=True, slots=True)
class Known:
    value: Value


@dataclass(frozen=True, slots=True)
class Expression:
    """The value of a chain where `scope` reads it."""

    chain: str
    scope: Scope


@dataclass(frozen=True, slots=True)
class ImportedModule:
    name: str


@dataclass(frozen=True, slots=True)
class ImportedName:
    module: str
    name: str


class Unknown(Enum):
    OPAQUE = 0  # a value that only running would tell
    NOTHING = 1  # None, a placeholder for what another assignment binds


OPAQUE, NOTHING = Unknown.OPAQUE, Unknown.NOTHING
Meaning = Known | Expression | ImportedModule | ImportedName | Unknown


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

    __slots__ = (
        "bases",
        "calls",
        "declared",
        "fields",
        "hidden",
        "kind",
        "metaclass",
        "module",
        "names",
        "number",
        "owner",
        "parent",
        "prefix",
        "reads_members",
        "relations",
        "self_name",
    )  # fmt: skip

    def __init__(self, kind: str, owner: str, prefix: str, parent: Scope | None, module: Module):
        self.kind, self.owner, self.prefix, self.parent, self.module = kind, owner, prefix, parent, module
        self.names: dict[str, list[Meaning]] = {}
        self.declared: dict[str, Scope] = {}  # global and nonlocal names
        self.calls: set[str] = set()  # chains
        self.relations: list[tuple] = []  # head, relation, chain
        self.self_name: str | None = None  # of a method: its first parameter
        self.hidden = False  # a block that may inherit methods which nobody looks up
        self.fields: dict[str, list[Meaning]] = {}  # of a class: what methods assign to self
        self.bases: list[tuple[str, str]] = []  # of a class: relation, chain
        self.metaclass = ""
        self.reads_members = False  # what attributes an object has is looked up in it
        self.number = len(module.scopes)
        module.scopes.append(self)

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
        self.package = ""  # of a Java file
        self.record: dict = {}  # of the file, in the graph's manifest
        self.scopes: list[Scope] = []
        self.scope = Scope("module", self.id, f"{self.id}.", None, self)
        self.todo: list[tuple[Scope, list]] = []  # while it is read
        self.uses: list[Use] | None = None  # a list where every mention is to be kept
        self.entities: list[Entity] = []
        self.triples: list[tuple] = []
        self.defined: dict[str, int] = {}  # position in `entities`
        self.repeated: dict[str, int] = defaultdict(int)
        self.classes: dict[str, Scope] = {}
        self.results: dict[str, list[Meaning]] = {}  # function -> what its annotations say that it returns
        self.returned: dict[str, list[Meaning]] = {}  # function -> what its statements return
        self.wrappers: dict[
            str, str
        ] = {}  # function decorated with functools.wraps -> the chain that it wraps and calls
        self.annotated: set[str] = set()  # functions whose results an annotation says
        self.asynchronous: set[str] = set()
        self.overloaded: set[str] = set()  # while it is read: functions whose signatures wait for their implementation
        self.parameters: dict[str, list[str]] = {}  # function -> names of those that a call gives by position
        self.decorators: dict[str, list[Expression]] = {}
        self.stores: list[
            tuple[Expression, str, Meaning]
        ] = []  # object, attribute ("" for one that is computed), value
        # What computed names can be: strings of a definition, and the strings and keywords of calls of a name.
        self.words: dict[str, set[str]] = defaultdict(set)
        self.imports: list[tuple[str, str | None]] = []
        self.stars: list[tuple[str, int]] = []  # origin, line
        self.exports: set[str] | None = None  # __all__, as far as it is written out


# ---- as JSON, for the cache


def pack(module: Module) -> dict:
    """All but the mentions, which are read again where somebody asks for them."""

    def packed(meanings: list[Meaning]) -> list:
        return [_packed(meaning) for meaning in meanings]

    def packed_names(names: dict[str, list[Meaning]]) -> dict:
        return {name: packed(meanings) for name, meanings in names.items()}

    scopes = []
    for scope in module.scopes:
        row = [scope.kind, scope.owner, scope.prefix, scope.parent.number if scope.parent else -1]
        row += [scope.hidden, scope.reads_members]
        declared = {name: outer.number for name, outer in scope.declared.items()}
        row += [packed_names(scope.names), declared]
        if scope.kind == "class":
            row += [packed_names(scope.fields), scope.bases, scope.metaclass]
        scopes.append(row)
    return {
        "id": module.id, "path": module.path, "is_package": module.is_package, "package": module.package,
        "record": module.record, "scopes": scopes, "scope": module.scope.number, "entities": module.entities,
        "classes": {name: scope.number for name, scope in module.classes.items()},
        "results": packed_names(module.results), "returned": packed_names(module.returned), "wrappers": module.wrappers,
        "parameters": module.parameters, "annotated": sorted(module.annotated),
        "asynchronous": sorted(module.asynchronous),
        "decorators": packed_names(module.decorators),
        "stores": [[_packed(target), name, _packed(meaning)] for target, name, meaning in module.stores],
        "stars": module.stars, "words": {owner: sorted(words) for owner, words in module.words.items() if words}, "exports": None if module.exports is None else sorted(module.exports),
    }  # fmt: skip


def _packed(meaning: Meaning) -> int | str | list:
    if isinstance(meaning, Expression):
        return [meaning.scope.number, meaning.chain]
    if isinstance(meaning, Known):
        return list(meaning.value[:3])
    if isinstance(meaning, ImportedModule):
        return meaning.name
    if isinstance(meaning, ImportedName):
        return ["", meaning.module, meaning.name, ""]
    return meaning.value


def unpack(record: dict) -> Module:
    """Raises LookupError, TypeError, ValueError or AttributeError for what `pack` did not write."""
    module = Module(record["id"], record["path"], record["is_package"])
    module.scopes.clear()
    for kind, owner, prefix, parent, hidden, reads_members, *_ in record["scopes"]:
        scope = Scope(kind, owner, prefix, module.scopes[parent] if parent >= 0 else None, module)
        scope.hidden, scope.reads_members = hidden, reads_members
    scopes = module.scopes

    def meaning_of(row: int | str | list) -> Meaning:
        if type(row) is list:
            if len(row) == 2:
                return Expression(row[1], scopes[row[0]])
            return Known(Value(*row)) if len(row) == 3 else ImportedName(row[1], row[2])
        return ImportedModule(row) if type(row) is str else Unknown(row)

    def names_of(rows: dict[str, list]) -> dict[str, list[Meaning]]:
        return {name: [meaning_of(row) for row in meanings] for name, meanings in rows.items()}

    for scope, row in zip(scopes, record["scopes"], strict=True):
        scope.names = names_of(row[6])
        scope.declared = {name: scopes[number] for name, number in row[7].items()}
        if scope.kind == "class":
            scope.fields, scope.bases, scope.metaclass = names_of(row[8]), row[9], row[10]
    module.scope, module.package, module.record = scopes[record["scope"]], record["package"], record["record"]
    module.entities = [Entity._make(row) for row in record["entities"]]
    module.classes = {name: scopes[number] for name, number in record["classes"].items()}
    module.results, module.decorators = names_of(record["results"]), names_of(record["decorators"])
    module.parameters, module.annotated = record["parameters"], {*record["annotated"]}
    module.words = record["words"]
    module.asynchronous, module.wrappers = {*record["asynchronous"]}, record["wrappers"]
    module.returned = names_of(record["returned"])
    module.stores = [(meaning_of(row), name, meaning_of(value)) for row, name, value in record["stores"]]
    module.stars = [tuple(star) for star in record["stars"]]
    module.exports = None if record["exports"] is None else {*record["exports"]}
    return module
