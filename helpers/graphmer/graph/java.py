"""What one Java file defines and mentions, parsed by tree-sitter, and what its names stand for by the rules of the language.

A method's id has its parameter types as written, `a.b.C.run(String,int[])`; one outside of the sources has none, and is
named by the type it is called on, as in bytecode. In a scope it has the number of its arguments, `run/2`: an overload that
this number does not tell, a name that only an import on demand from outside can bring, and what an anonymous class may inherit
are unresolved.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from .imports import Imports
from .knowledge_graph import Entity
from .resolution import CLASSES, Resolver, Value
from .scopes import OPAQUE, Module, Scope

if TYPE_CHECKING:
    from tree_sitter import Node

NO_PARSER = "Java needs a parser: pip install tree-sitter tree-sitter-java"
KINDS = {
    "class_declaration": "class", "record_declaration": "class", "interface_declaration": "interface",
    "enum_declaration": "enum", "annotation_type_declaration": "annotation",
}  # fmt: skip
_METHODS = (
    "method_declaration",
    "constructor_declaration",
    "element_declaration",
)  # also a compact one, an annotation's
_PARAMETERS = ("formal_parameter", "spread_parameter")
_FIELDS = ("field_declaration", "constant_declaration")
_LOCALS = (
    "local_variable_declaration", "enhanced_for_statement", "resource", "formal_parameter", "instanceof_expression",
    "catch_formal_parameter", "field_declaration",
)  # fmt: skip
_PRIMITIVE = {"boolean", "byte", "char", "double", "float", "int", "long", "short", "void"}
_NOISE = re.compile(r"//.*|/\*(?s:.*?)\*/|@[\w.]+(?:\((?s:.*?)\))?|\s")  # in a type: comments, annotations, space
_MOST_VARIADIC = 10  # arguments of a call that a method with `...` answers, beyond those that it names
# Of the types that need no import (JLS 7.5.5), those that programs mention.
_LANG_NAMES = """
    Appendable AutoCloseable Boolean Byte CharSequence Character Class ClassLoader Cloneable Comparable Deprecated Double Enum Float
    FunctionalInterface Integer Iterable Long Math Module Number Object Override Package Process ProcessBuilder Readable Record
    Runnable Runtime SafeVarargs Short StackTraceElement StackWalker StrictMath String StringBuffer StringBuilder SuppressWarnings
    System Thread ThreadGroup ThreadLocal Void ArithmeticException ArrayIndexOutOfBoundsException ArrayStoreException AssertionError
    ClassCastException ClassNotFoundException CloneNotSupportedException Error Exception ExceptionInInitializerError
    IllegalAccessException IllegalArgumentException IllegalMonitorStateException IllegalStateException IndexOutOfBoundsException
    InstantiationException InternalError InterruptedException LinkageError NegativeArraySizeException NoClassDefFoundError
    NoSuchFieldException NoSuchMethodException NullPointerException NumberFormatException OutOfMemoryError
    ReflectiveOperationException RuntimeException SecurityException StackOverflowError StringIndexOutOfBoundsException Throwable
    UnsatisfiedLinkError UnsupportedOperationException VirtualMachineError"""
_LANG = frozenset(_LANG_NAMES.split())
_OBJECT_METHODS = {"equals", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait", "clone", "finalize"}


# ---- what a file says: each function reads a `Node` of tree-sitter into the `Scope` that it stands in


def read_java(content: bytes) -> Module:
    """Raises SyntaxError with the line of the first error, and ImportError: no parser."""
    try:
        import tree_sitter
        import tree_sitter_java
    except ImportError as error:
        raise ImportError(f"{NO_PARSER} ({error})") from error
    root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_java.language())).parse(content).root_node
    if root.has_error:
        wrong = root
        while not wrong.is_error and (inside := [child for child in wrong.children if child.has_error]):
            wrong = inside[0]
        raise SyntaxError("invalid syntax", ("", wrong.start_point[0] + 1, None, None))
    package = "".join(_text(node.named_children[-1]) for node in _children(root, "package_declaration"))
    types = _children(root, *KINDS)
    module = Module(".".join(filter(None, (package, *map(_name, types[:1])))))
    module.path, module.package = module.id, package
    module.scope = Scope("module", package, f"{package}." if package else "", None, module)
    if package:
        module.entities.append(Entity(package, "package", package.rpartition(".")[2], module=package))
        module.stars.append(package)
    for node in _children(root, "import_declaration"):
        _import(_text(node), module)
    for node in types:
        _type(node, module.scope)
    return module


def _import(text: str, module: Module) -> None:
    *words, said = text.rstrip("; ").split()
    static, name = "static" in words, said.removesuffix(".*")
    on_demand, (owner, _, last) = said != name, name.rpartition(".")
    kind = "package" if on_demand and not static else "class"
    chain = f"<{kind} {(owner if static and not on_demand else name).replace('.', '/')}>"  # a full name is looked up nowhere
    module.scope.uses.append((module.id, "imports", chain))
    if on_demand:
        module.stars.append(name)
    elif static:
        module.scope.names[f"{last}/"] = ("static", owner)
    else:
        module.scope.names[last] = ("chain", chain, module.scope)


def _type(node, around):
    name, module = _name(node), around.module
    entity = around.define(KINDS[node.type], name, _lines(node))
    around.bind(name, ("known", entity, False))
    scope = module.classes.setdefault(entity, Scope("class", entity, f"{entity}.", around, module))
    scope.names |= dict.fromkeys(_type_parameters(node), OPAQUE)
    above = "implements" if node.type != "interface_declaration" else "inherits_from"
    scope.bases = [("inherits_from", base) for base in _listed(node, "superclass", "extends_interfaces")]
    scope.bases += [(above, base) for base in _listed(node, "super_interfaces")]
    for parameter in _children(node.child_by_field_name("parameters"), *_PARAMETERS):  # of a record: its fields
        _bind(parameter, scope)
    for member in node.child_by_field_name("body").named_children:
        _member(member, scope)


def _member(node, scope):
    if node.type in KINDS:
        _type(node, scope)
    elif node.type == "enum_body_declarations":
        for member in node.named_children:
            _member(member, scope)
    elif node.type.endswith(_METHODS):
        _method(node, scope)
    else:
        if node.type == "enum_constant":
            scope.define("field", _name(node), _lines(node))
            scope.names[_name(node)] = ("known", scope.owner, True)
        elif node.type in _FIELDS:
            _bind(node, scope)
        _body(node, Scope("block", scope.owner, scope.prefix, scope, scope.module))


def _bind(node, scope):
    """Variables of one name and two types have none; those of a class are its fields."""
    for name, chain in _variables(node):
        if scope.kind == "class":
            scope.define("field", name, _lines(node))
        scope.bind(name, ("chain", chain, scope) if chain else OPAQUE)


def _method(node, outer):
    parameters = _children(node.child_by_field_name("parameters"), *_PARAMETERS)
    signature = ",".join(map(_written, parameters))
    name, kind = _name(node), "constructor" if "constructor" in node.type else "method"
    entity = outer.define(kind, name, _lines(node), f"({signature})")
    scope = Scope("function", entity, f"{entity}.", outer, outer.module)
    scope.names |= {"this": ("known", outer.owner, True)} | dict.fromkeys(_type_parameters(node), OPAQUE)
    meaning = ("known", entity, False)
    if kind != "constructor":
        more = _MOST_VARIADIC if signature.endswith("...") else 0
        for count in range(len(parameters) - bool(more), len(parameters) + more + (not more)):
            outer.bind(f"{name}/{count}", meaning)
        if not {"static", "private"} & {word for each in _children(node, "modifiers") for word in _text(each).split()}:
            outer.names[f"{name}({signature})"] = meaning
        result = _chain_of_type(node.child_by_field_name("type"))
        if result and result not in scope.names:
            outer.module.results[entity] = (scope, f"{result}()")
    for parameter in parameters:
        for each, _ in _variables(parameter):
            scope.parameter(each, _lines(parameter))
        _bind(parameter, scope)
    if body := node.child_by_field_name("body"):
        _body(body, scope)


def _body(whole, scope):
    """Locals, calls and what is made."""
    head = scope.owner
    stack = [(whole, scope)]
    while stack:
        node, here = stack.pop()
        kind = node.type
        if kind in _LOCALS:
            _bind(node, here)
        elif kind == "lambda_expression":
            parameters = node.child_by_field_name("parameters")
            for one in [parameters] if parameters.type == "identifier" else parameters.named_children:
                if one.type == "identifier":
                    here.bind(_text(one), OPAQUE)
        elif kind == "method_invocation":
            here.calls[_chain(node).removesuffix("()")].append(node.start_point[0] + 1)
        elif kind == "object_creation_expression":
            made = _chain_of_type(node.child_by_field_name("type"))
            here.uses.append((head, "instantiates", made or "?", [node.start_point[0] + 1]))
        inside = here
        if kind in ("class_body", *KINDS):
            inside = Scope("block", head, here.prefix, here, here.module)
            inside.hidden = True
            inside.names["this"] = OPAQUE
        stack += [(child, inside) for child in node.named_children[::-1]]


# ---- chains


def _chain(node: Node | None) -> str:
    """What an expression mentions, as `scopes` says it."""
    names = ""
    while node is not None:
        kind = node.type
        if kind == "method_invocation":
            count = len(node.child_by_field_name("arguments").named_children)
            names = f".{_name(node)}/{count}(){names}"
            node = node.child_by_field_name("object")
            if node is None:
                return names[1:]
        elif kind == "field_access":
            names = f".{_text(node.child_by_field_name('field'))}{names}"
            node = node.child_by_field_name("object")
        elif kind == "parenthesized_expression":
            node = node.named_children[0]
        elif kind in ("identifier", "this"):
            return _text(node) + names
        elif kind == "super":
            return f"super(){names}"
        elif kind == "string_literal":
            return f"<String>{names}"
        else:
            made = kind in ("cast_expression", "object_creation_expression")
            if made and (name := _chain_of_type(node.child_by_field_name("type"))):
                return f"{name}(){names}"
            break
    return f"?.{names.rpartition('.')[2]}" if names else "?"


def _variables(node: Node) -> Iterator[tuple[str, str]]:
    """Name and chain of each field, local variable or parameter; "" for one that is primitive, an array or not certain."""
    written = _declared_type(node)
    said = _chain_of_type(written)
    for declarator in _children(node, "variable_declarator") or [node]:
        name = _name(declarator)
        if declarator.child_by_field_name("dimensions") or node.type == "spread_parameter":
            yield name, ""
        elif _text(written) == "var":
            value = declarator.child_by_field_name("value")
            chain = _chain(value) if value is not None and node.type != "enhanced_for_statement" else "?"
            yield name, "" if chain[0] == "?" else chain
        elif name:  # else a test without a variable, or a resource that is declared elsewhere
            yield name, f"{said}()" if said else ""


def _declared_type(node: Node) -> Node:
    said = node.child_by_field_name("type") or node.child_by_field_name("right")  # x instanceof Type name
    return said or next(child for child in node.named_children if child.type != "modifiers")


def _type_parameters(node: Node) -> list[str]:
    parameters = [one for clause in _children(node, "type_parameters") for one in _children(clause, "type_parameter")]
    return [_text(_children(one, "type_identifier", "identifier")[0]) for one in parameters]


def _listed(node: Node, *clauses: str) -> list[str]:
    """Every type that a declaration lists in its `extends` or `implements`."""
    said = (re.sub("^(extends|implements)", "", _bare(clause)) for clause in _children(node, *clauses))
    return [name for names in said for name in names.split(",")]


def _bare(node: Node | None) -> str:
    """The text of a type without type arguments, annotations and comments."""
    text, inner = "", _NOISE.sub("", _text(node))
    while inner != text:
        text, inner = inner, re.sub(r"<[^<>]*>", "", inner)
    return text


def _chain_of_type(node: Node | None) -> str:
    """`a.b.C` of `a.b.C<D>`; "" for a type that is primitive or an array."""
    bare = _bare(node)
    return bare if re.fullmatch(r"[\w$.]+", bare) and bare not in _PRIMITIVE else ""


def _written(parameter: Node) -> str:
    """The type of a parameter as a signature shows it: without package, type arguments and annotations."""
    said = re.sub(r"\w+\.", "", _bare(_declared_type(parameter)))
    return said + _text(parameter.child_by_field_name("dimensions")) + "..." * (parameter.type == "spread_parameter")


def _name(node: Node) -> str:
    return _text(node.child_by_field_name("name"))


def _text(node: Node | None) -> str:
    return node.text.decode("utf-8", "replace") if node else ""


def _lines(node: Node) -> tuple[int, int]:
    return node.start_point[0] + 1, node.end_point[0] + 1


def _children(node: Node | None, *kinds: str) -> list[Node]:
    return [child for child in (node.named_children if node else ()) if child.type in kinds]


# ---- what a name stands for


class JavaResolver(Resolver):
    """Types by the rules of the language (JLS 6), methods by name and number of arguments."""

    no_base = ()

    def __init__(self, modules: list[Module]):
        super().__init__({f"{module.id} {number}": module for number, module in enumerate(modules)}, Imports((), ()))
        full = [chain for module in modules for _, _, chain, *_ in module.scope.uses]
        starts = [module.package.partition(".")[0] for module in modules]
        starts += [chain.partition(" ")[2].partition("/")[0] for chain in full]
        self.packages = {"java", "javax", *starts}

    def _name(self, scope: Scope, name: str) -> Value | None:
        if name == "<String>":
            return Value(self._lang("String").entity, True)
        if name[0] == "<":
            kind, _, full = name[1:-1].replace("/", ".").partition(" ")
            return Value(full, False) if full in self.classes else self._outside(full, kind)
        looking = scope
        while looking.parent is not None:
            if looking.kind == "class":
                if found := self._in_class(looking, name):
                    return found[0]
            elif name in looking.names:
                return self._meaning(looking.names[name], looking.module)
            elif looking.hidden and "/" in name:
                return None
            looking = looking.parent
        return self._of_file(looking, name, scope)

    def _in_class(self, scope: Scope, name: str) -> tuple[Value | None] | None:
        """What a class says of a name in its body; None where what is around it is asked."""
        if scope.owner == f"{scope.parent.prefix}{name}":
            return (Value(scope.owner, False),)
        order = self.order(scope.owner)
        if any(one in self.classes and name in self.classes[one].names for one in order):
            return (self.member(scope.owner, name),)
        outside = any(one not in self.classes for one in order)
        # A method is inherited from outside, or one of the class around.
        return (None,) if "/" in name and outside and scope.parent.kind == "class" else None

    def _of_file(self, file: Scope, name: str, scope: Scope) -> Value | None:
        module, method = file.module, name.partition("/")[0]
        if name in file.names:
            return self._meaning(file.names[name], module)
        if "/" in name and f"{method}/" in file.names:
            owner = file.names[f"{method}/"][1]
            return self.member(owner, name) if owner in self.classes else self._outside(f"{owner}.{method}", "method")
        for origin in (module.package, *module.stars):
            if origin in self.classes and name in self.classes[origin].names:
                return self.member(origin, name)
            full = f"{origin}.{name}" if origin else name
            if full in self.classes:
                return Value(full, False)
        if "/" in name:
            while scope.kind != "class" or scope.parent.kind == "class":
                scope = scope.parent
            return self.member(scope.owner, name)
        return Value(name, False) if name in self.packages else self._lang(name)

    def _lang(self, name: str) -> Value | None:
        return self._outside(f"java.lang.{name}", "class") if name in _LANG else None

    def _attribute(self, value: Value | None, name: str) -> Value | None:
        if value is None:
            return None
        full = f"{value.entity}.{name}"
        if value.entity in self.classes:
            return self.member(value.entity, name)
        if value.entity in self.packages:
            if full in self.classes or "/" in name:
                return Value(full, False) if full in self.classes else None
            if name[0].islower():
                self.packages.add(full)
                return Value(full, False)
            return self._outside(full, "class")
        if self.type_of(value.entity) not in CLASSES:
            return None
        if "/" in name:
            return self._outside(full.partition("/")[0], "method")
        nested = not value.is_instance and name[0].isupper() and not name.isupper()
        return self._outside(full, "class") if nested else None

    def found(self, order: list[str], name: str) -> Value | None:
        outside = []
        for entity in order:
            if entity not in self.classes:
                outside.append(entity)
            elif meaning := self.classes[entity].names.get(name):
                scope = self.classes[entity]
                # What stands above it and outside may have a better one.
                return self._meaning(meaning, scope.module) if "(" in name or not outside else None
        method, is_method, _ = name.partition("/")
        if is_method and method in _OBJECT_METHODS:
            return self._outside(f"java.lang.Object.{method}", "method")
        if is_method and len(outside) == 1 and outside[0] != "?":  # it compiles, so it is there
            return self._outside(f"{outside[0]}.{method}", "method")
        return None

    def _order_outside(self, entity: str) -> list[str]:
        return [entity]

    def _no_order(self, rows: list[list[str]]) -> list[str]:
        return list(dict.fromkeys(name for row in rows for name in row))

    def overriding(self, scope: Scope) -> Iterable[str]:
        return [name for name in scope.names if "(" in name]
