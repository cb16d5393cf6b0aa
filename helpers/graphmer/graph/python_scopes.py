"""Scopes of Python source: which names they bind, to what, and what is mentioned in them.

An expression is kept as a *chain*, the text of what it mentions, with what only running would tell left out: `os.path.join`,
`f().x` and `<str>.join` (of a literal) can be looked up; `?.x`, an attribute of anything else, cannot.
"""

from __future__ import annotations

import ast

from helpers.graphmer.graph.knowledge_graph import DEFINED

# What a name is bound to: ("known", entity, is_instance) · ("chain", chain, scope): the value of an expression ·
# ("module", name) · ("member", module, name): from module import name · ("any", [...]): more than one of these.
OPAQUE = ("opaque",)  # a value that only running would tell
NOTHING = ("nothing",)  # None, a placeholder for what another assignment binds
_VARIABLES = ("variable", "field")
_LITERALS = {
    ast.JoinedStr: "<str>",
    ast.List: "<list>",
    ast.ListComp: "<list>",
    ast.Dict: "<dict>",
    ast.DictComp: "<dict>",
    ast.Set: "<set>",
    ast.SetComp: "<set>",
    ast.Tuple: "<tuple>",
}
_CONSTANTS = {kind: f"<{kind.__name__}>" for kind in (str, bytes, int, float, complex, bool)}
_TYPE_OPERATORS = {"Optional", "Union", "Annotated", "ClassVar", "Final", "InitVar", "Required", "NotRequired", "Type"}


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
    """Names of a module, a class, a function, or a lambda or comprehension (`block`), and what is mentioned there."""

    __slots__ = (
        "bases", "calls", "declared", "fields", "kind", "module", "names", "owner", "parent", "prefix", "self_name",
        "uses", "values",
    )  # fmt: skip

    def __init__(self, kind: str, owner: str, prefix: str, parent: Scope | None, module: Module):
        self.kind, self.owner, self.prefix, self.parent, self.module = kind, owner, prefix, parent, module
        self.names: dict[str, tuple] = {}
        self.declared: dict[str, Scope] | None = None  # global and nonlocal names
        self.calls: dict[str, None] = {}  # chains; a dict, for its order
        self.uses: list[tuple[str, str, str]] = []  # head, relation, chain
        self.values: dict = {}  # chain -> what it stands for, as that becomes known
        self.self_name: str | None = None  # of a method: its first parameter
        if kind == "class":
            self.fields: dict[str, tuple] = {}  # what methods assign to self
            self.bases: list[str] = []  # chains
        module.scopes.append(self)

    def binder(self, name: str) -> Scope:
        """The scope that an assignment to `name` binds it in."""
        return self.declared.get(name, self) if self.declared else self

    def define(self, kind: str, name: str, node: ast.AST) -> str:
        """A new entity that the scope's own contains; returns its id."""
        entity = self.prefix + name
        module = self.module
        new = (entity, kind, name, DEFINED, module.id, node.lineno, node.end_lineno)
        position = module.defined.setdefault(entity, len(module.entities))
        if position == len(module.entities):
            module.entities.append(new)
            module.triples.append((self.owner, "contains", entity))
        elif kind not in _VARIABLES and module.entities[position][1] in _VARIABLES:  # `Flag = None`, later the class
            module.entities[position] = new
        return entity

    def parameter(self, node: ast.arg) -> str:
        """A parameter of the function whose scope this is; returns its id."""
        entity = f"{self.owner}({node.arg})"
        module = self.module
        module.entities.append((entity, "parameter", node.arg, DEFINED, module.id, node.lineno, node.end_lineno))
        module.triples.append((self.owner, "has_parameter", entity))
        return entity


class Module:
    def __init__(self, name: str, is_package: bool):
        self.id, self.is_package = name, is_package
        self.scopes: list[Scope] = []
        self.scope = Scope("module", self.id, f"{self.id}.", None, self)
        self.todo: list[tuple[Scope, list]] = []  # while it is read
        self.entities: list[tuple] = []
        self.triples: list[tuple] = []
        self.defined: dict[str, int] = {}  # position in `entities`
        self.classes: dict[str, Scope] = {}
        self.properties: set[str] = set()  # methods that are called by naming them
        self.results: dict[str, tuple[Scope, str]] = {}  # function -> what its annotation says that it returns
        self.imports: list[tuple[str, str | None]] = []
        self.stars: list[str] = []
        self.exports: set[str] | None = None  # __all__, as far as it is written out

    def export(self, names: ast.AST) -> None:
        if isinstance(names, ast.List | ast.Tuple):
            written = {element.value for element in names.elts if isinstance(element, ast.Constant)}
            self.exports = (self.exports or set()) | written

    def absolute(self, name: str, level: int) -> str:
        """The module that a relative import means; "" where it leaves the outermost package."""
        if not level:
            return name
        parts = self.id.split(".")
        package = parts[: len(parts) - level + self.is_package]
        return ".".join([*package, name] if name else package) if package else ""


def chain_of(node: ast.AST) -> str:
    names = ""
    while True:
        kind = type(node)
        if kind is ast.Attribute:
            names = f".{node.attr}{names}"
            node = node.value
        elif kind is ast.Name:
            return node.id + names
        elif kind is ast.Call:
            if type(node.func) is ast.Name and node.func.id == "super" and node.args:
                return f"super({chain_of(node.args[0])}){names}"
            names = f"(){names}"
            node = node.func
        else:
            root = _CONSTANTS.get(type(node.value)) if kind is ast.Constant else _LITERALS.get(kind)
            if root is None:
                return "?." + names.rpartition(".")[2] if names else "?"
            return root + names


def annotated_types(node: ast.AST | None) -> list[str]:
    """Chains of the types that an annotation names; of `list[int]` only the outer one, of `X | None` only X."""
    if node is None:
        return []
    kind = type(node)
    if kind is ast.Name or kind is ast.Attribute:
        return [chain_of(node)]
    if kind is ast.BinOp:
        return annotated_types(node.left) + annotated_types(node.right)
    if kind is ast.Subscript:
        outer = chain_of(node.value)
        if outer.rpartition(".")[2] not in _TYPE_OPERATORS:
            return [] if outer.rpartition(".")[2] == "Literal" else [outer]
        inner = node.slice
        if type(inner) is ast.Tuple:
            union = outer.endswith("Union")
            return [chain for part in inner.elts[: None if union else 1] for chain in annotated_types(part)]
        return annotated_types(inner)
    if kind is ast.Constant and type(node.value) is str:
        try:
            return annotated_types(ast.parse(node.value.strip(), mode="eval").body)
        except (SyntaxError, ValueError):
            return []
    return []
