"""What one source file defines and mentions: what a reader of a language fills in, and what `resolution` looks up.

An expression is kept as a *chain*, the text of what it mentions, with what only running would tell left out: `os.path.join`,
`f().x` and `<str>.join` (of a literal) can be looked up; `?.x`, an attribute of anything else, cannot. In Java a method is
named with the number of its arguments: `list.add/1`.
"""

from __future__ import annotations

from collections import defaultdict

from .knowledge_graph import DEFINED, Entity

# What a name is bound to: ("known", entity, is_instance) · ("chain", chain, scope): the value of an expression ·
# ("module", name) · ("member", module, name): from module import name · ("any", [...]): more than one of these.
OPAQUE = ("opaque",)  # a value that only running would tell
NOTHING = ("nothing",)  # None, a placeholder for what another assignment binds
_VARIABLES = ("variable", "field")


def bind(names: dict, name: str, meaning: tuple) -> None:
    """Adds a meaning of `name`; one that is there already changes nothing."""
    known = names.get(name)
    if known is None:
        names[name] = meaning
    elif known == meaning or known is OPAQUE:
        pass
    elif meaning is OPAQUE:
        names[name] = OPAQUE
    elif known[0] != "any":
        names[name] = ("any", [known, meaning])
    elif meaning not in known[1]:
        known[1].append(meaning)


class Scope:
    """Names of a module, a class, a function, or a lambda, a comprehension or a nameless class (`block`)."""

    def __init__(self, kind: str, owner: str, prefix: str, parent: Scope | None, module: Module):
        self.kind, self.owner, self.prefix, self.parent, self.module = kind, owner, prefix, parent, module
        self.names: dict[str, tuple] = {}
        self.declared: dict[str, Scope] = {}  # global and nonlocal names
        self.calls = defaultdict(list)  # chain -> lines
        self.uses: list[tuple] = []  # head, relation, chain, and maybe its lines
        self.values: dict = {}  # chain -> what it stands for, as that becomes known
        self.self_name: str | None = None  # of a method: its first parameter
        self.hidden = False  # a block that may inherit methods which nobody looks up
        if kind == "class":
            self.fields: dict[str, tuple] = {}  # what methods assign to self
            self.bases: list[tuple[str, str]] = []  # relation, chain
        module.scopes.append(self)

    def binder(self, name: str) -> Scope:
        """The scope that an assignment to `name` binds it in."""
        return self.declared.get(name, self)

    def bind(self, name: str, meaning: tuple) -> None:
        """An assignment to `name`."""
        bind(self.binder(name).names, name, meaning)

    def define(self, kind: str, name: str, lines: tuple[int, int], suffix: str = "") -> str:
        """A new entity that the scope's own contains; returns its id.

        lines: the first and the last of the definition. suffix: what tells it from others of its name.
        """
        entity, module = f"{self.prefix}{name}{suffix}", self.module
        position = module.defined.setdefault(entity, len(module.entities))
        if position == len(module.entities):
            self._add(entity, kind, name, lines)
            if self.owner:
                module.triples.append((self.owner, "contains", entity))
        elif kind not in _VARIABLES and module.entities[position].type in _VARIABLES:  # `Flag = None`, later the class
            module.entities[position] = Entity(entity, kind, name, DEFINED, module.id, *lines)
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
        self.entities: list[Entity] = []
        self.triples: list[tuple] = []
        self.defined: dict[str, int] = {}  # position in `entities`
        self.classes: dict[str, Scope] = {}
        self.properties: set[str] = set()  # methods that are called by naming them
        self.results: dict[str, tuple[Scope, str]] = {}  # function -> what its annotation says that it returns
        self.imports: list[tuple[str, str | None]] = []
        self.stars: list[str] = []
        self.exports: set[str] | None = None  # __all__, as far as it is written out
