"""What one Java file declares: its types, their methods and fields, as written; the first half of `java_source`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

KINDS = {
    "class_declaration": "class",
    "record_declaration": "class",
    "interface_declaration": "interface",
    "enum_declaration": "enum",
    "annotation_type_declaration": "annotation",
}
SAY_THEIR_TYPE = ("cast_expression", "object_creation_expression")  # expressions
_METHODS = (
    "method_declaration", "constructor_declaration", "compact_constructor_declaration", "annotation_type_element_declaration",
)  # fmt: skip
_PARAMETERS = ("formal_parameter", "spread_parameter")


@dataclass(eq=False)
class File:
    package: str
    tree: object = field(repr=False)  # keeps the nodes alive
    types: list[Type] = field(default_factory=list)  # inner ones after the type that they are inside of
    imports: list[tuple[str, bool, bool]] = field(default_factory=list)  # name, static, on demand


@dataclass(eq=False)
class Type:
    id: str
    kind: str
    name: str
    file: File
    outer: Type | None
    node: Node
    variables: set[str]  # type parameters
    extends: list[str]
    implements: list[str]
    members: dict[str, Type] = field(default_factory=dict)
    fields: dict[str, tuple[str, Node]] = field(default_factory=dict)  # name -> type as written, node
    methods: dict[str, list[Method]] = field(default_factory=dict)
    values: list[Node] = field(default_factory=list)  # what runs outside of methods

    def around(self) -> Iterator[Type]:
        """The type itself and those that it is inside of, the outermost last."""
        looking: Type | None = self
        while looking:
            yield looking
            looking = looking.outer

    @property
    def top(self) -> Type:
        return list(self.around())[-1]


@dataclass(eq=False)
class Method:
    id: str
    name: str
    owner: Type
    node: Node
    parameters: list[tuple[str, str, Node]]  # name, type as written, node
    signature: tuple[str, ...]  # types as written, without type arguments
    variables: set[str]
    result: str

    def takes(self, count: int) -> bool:
        if self.signature and self.signature[-1].endswith("..."):
            return count >= len(self.signature) - 1
        return count == len(self.signature)

    @property
    def is_constructor(self) -> bool:
        return "constructor" in self.node.type


def read_file(tree) -> File:
    """Declarations of a parsed file. Raises SyntaxError with the line of the first error."""
    root = tree.root_node
    if root.has_error:
        wrong = root
        while not wrong.is_error and (inside := [child for child in wrong.children if child.has_error]):
            wrong = inside[0]
        raise SyntaxError("invalid syntax", ("", wrong.start_point[0] + 1, None, None))
    file = File("", tree)
    for node in root.named_children:
        if node.type == "package_declaration":
            file.package = text(node.named_children[-1])
        elif node.type == "import_declaration":
            words = {child.type for child in node.children}
            name = next(text(child) for child in node.named_children if "identifier" in child.type)
            file.imports.append((name, "static" in words, "asterisk" in words))
        elif node.type in KINDS:
            _declare_type(node, file, None)
    return file


def _declare_type(node: Node, file: File, outer: Type | None) -> None:
    name = text(node.child_by_field_name("name"))
    above = outer.id if outer else file.package
    found = Type(
        id=f"{above}.{name}" if above else name,
        kind=KINDS[node.type],
        name=name,
        file=file,
        outer=outer,
        node=node,
        variables=_type_parameters(node),
        extends=listed(node, "superclass", "extends_interfaces"),
        implements=listed(node, "super_interfaces"),
    )
    if outer:
        outer.members[name] = found
    for parameter in _children(node.child_by_field_name("parameters"), *_PARAMETERS):  # of a record: its fields
        found.fields |= {name: (written, parameter) for name, written in variables(parameter)}
    file.types.append(found)
    for member in node.child_by_field_name("body").named_children:
        _declare(member, found)


def _declare(node: Node, owner: Type) -> None:
    if node.type in KINDS:
        _declare_type(node, owner.file, owner)
    elif node.type == "enum_body_declarations":
        for member in node.named_children:
            _declare(member, owner)
    elif node.type in ("field_declaration", "constant_declaration"):
        owner.fields |= {name: (written, node) for name, written in variables(node)}
        owner.values.append(node)
    elif node.type == "enum_constant":
        owner.fields[text(node.child_by_field_name("name"))] = (owner.name, node)
        owner.values.append(node)
    elif node.type in _METHODS:
        method = _method(node, owner)
        owner.methods.setdefault(method.name, []).append(method)
    else:
        owner.values.append(node)


def _method(node: Node, owner: Type) -> Method:
    declared = node if node.type != "compact_constructor_declaration" else owner.node  # a record's parameters
    parameters, signature = [], []
    for parameter in _children(declared.child_by_field_name("parameters"), *_PARAMETERS):
        variadic = parameter.type == "spread_parameter"
        parameters += [(name, "" if variadic else written, parameter) for name, written in variables(parameter)]
        dimensions = text(parameter.child_by_field_name("dimensions"))
        signature.append(_erased(_declared_type(parameter)) + dimensions + "..." * variadic)
    name = text(node.child_by_field_name("name"))
    result = node.child_by_field_name("type")
    return Method(
        id=f"{owner.id}.{name}({','.join(signature)})",
        name=name,
        owner=owner,
        node=node,
        parameters=parameters,
        signature=tuple(signature),
        variables=_type_parameters(node),
        result=type_name(result) if result else "",
    )


def variables(node: Node) -> Iterator[tuple[str, str]]:
    """Name and type of each field, local variable or parameter; "" for a type that is primitive, an array or not certain."""
    written = type_name(_declared_type(node))
    for declarator in [*_children(node, "variable_declarator")] or [node]:
        name = text(declarator.child_by_field_name("name"))
        if declarator.child_by_field_name("dimensions"):
            yield name, ""
        elif written == "var":
            said = node.type != "enhanced_for_statement" and next(_children(declarator, *SAY_THEIR_TYPE), None)
            yield name, type_name(said.child_by_field_name("type")) if said else ""
        elif name:  # else a test without a variable, or a resource that is declared elsewhere
            yield name, written


def _declared_type(node: Node) -> Node:
    said = node.child_by_field_name("type") or node.child_by_field_name("right")  # x instanceof Type name
    return said or next(child for child in node.named_children if child.type != "modifiers")


def _type_parameters(node: Node) -> set[str]:
    parameters = node.child_by_field_name("type_parameters") or next(_children(node, "type_parameters"), None)
    return {
        text(next(_children(parameter, "type_identifier", "identifier")))
        for parameter in _children(parameters, "type_parameter")
    }


def listed(node: Node, *clauses: str) -> list[str]:
    """Every type that a declaration lists in its `extends`, `implements` or `throws`."""
    return [name for clause in _children(node, *clauses) for name in types(clause)]


def types(node: Node) -> list[str]:
    """Every type that a clause lists."""
    named = [child for child in node.named_children if child.type != "modifiers"]
    if len(named) == 1 and named[0].type == "type_list":
        named = named[0].named_children
    return [name for child in named if (name := type_name(child))]


def type_name(node: Node | None) -> str:
    """`a.b.C` of `a.b.C<D>`; "" for a type that is primitive or an array."""
    if node is None:
        return ""
    if node.type in ("type_identifier", "identifier"):
        return text(node)
    if node.type in ("scoped_type_identifier", "scoped_identifier"):
        parts = [type_name(child) for child in node.named_children if "annotation" not in child.type]
        return ".".join(parts) if all(parts) else ""
    if node.type == "generic_type":
        return type_name(node.named_children[0])
    if node.type == "catch_type":
        return type_name(node.named_children[0]) if len(node.named_children) == 1 else ""
    return type_name(node.named_children[-1]) if node.type == "annotated_type" else ""


def _erased(node: Node) -> str:
    """A type as a signature shows it: without package, type arguments and annotations."""
    if node.type == "array_type":
        return _erased(node.child_by_field_name("element")) + text(node.child_by_field_name("dimensions"))
    return type_name(node).rpartition(".")[2] or text(node)


def annotations(node: Node) -> list[str]:
    modifiers = next(_children(node, "modifiers"), None)
    found = _children(modifiers, "marker_annotation", "annotation")
    return [type_name(annotation.child_by_field_name("name")) for annotation in found]


def modifiers(node: Node) -> set[str]:
    found = next(_children(node, "modifiers"), None)
    return {child.type for child in found.children} if found else set()


def text(node: Node | None) -> str:
    return node.text.decode("utf-8", "replace") if node else ""


def _children(node: Node | None, *kinds: str) -> Iterator[Node]:
    return (child for child in node.named_children if child.type in kinds) if node else iter(())
