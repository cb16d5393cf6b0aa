"""What one Java file defines and mentions, parsed by tree-sitter, and what its names stand for by the rules of the language.

A method's id has its parameter types as written, `a.b.C.run(String,int[])`; a method outside of the sources has none, and is
named by the type it is called on, as in bytecode. In a scope a method has the number of its arguments, `run/2`. Unresolved
are an overload that this number does not tell, a name that only an import on demand from outside can bring, a method that an
anonymous class may inherit, and a class that an expression names with its package.
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
# Endings: there are compact constructors, and the elements of annotations.
_METHODS = ("method_declaration", "constructor_declaration", "element_declaration")
_PARAMETERS = ("formal_parameter", "spread_parameter")
_FIELDS = ("field_declaration", "constant_declaration", *_PARAMETERS)  # parameters: of a record
_LOCALS = (
    "local_variable_declaration", "enhanced_for_statement", "resource", "instanceof_expression", "catch_formal_parameter", *_FIELDS,
)  # fmt: skip
_BLOCKS = (
    "block", "class_body", "enhanced_for_statement", "try_with_resources_statement", "catch_clause", "lambda_expression",
)  # fmt: skip
_PRIMITIVE = {"boolean", "byte", "char", "double", "float", "int", "long", "short", "void"}
_NOISE = re.compile(r"//.*|/\*(?s:.*?)\*/|@[\w.]+(?:\((?s:.*?)\))?|\s")  # in a type: comments, annotations, space
_MOST_VARIADIC = 10  # arguments of a call that a method with `...` answers, beyond those that it names
_OBJECT_METHODS = {"equals", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait", "clone", "finalize"}
# Of the types that need no import (JLS 7.5.5), those that programs mention.
_LANG_NAMES = """
    AutoCloseable Boolean Byte CharSequence Character Class ClassLoader Cloneable Comparable Double Enum Float Integer Iterable
    Long Math Number Object Process ProcessBuilder Record Runnable Runtime Short StackTraceElement String StringBuffer
    StringBuilder System Thread ThreadLocal Void ArithmeticException ArrayIndexOutOfBoundsException AssertionError
    ClassCastException ClassNotFoundException CloneNotSupportedException Error Exception IllegalAccessException
    IllegalArgumentException IllegalStateException IndexOutOfBoundsException InterruptedException NoSuchFieldException
    NoSuchMethodException NullPointerException NumberFormatException OutOfMemoryError ReflectiveOperationException
    RuntimeException SecurityException StackOverflowError StackWalker Throwable UnsupportedOperationException"""
_LANG = frozenset(_LANG_NAMES.split())


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
    module = Module(".".join(filter(None, (package, *map(_name, _children(root, *KINDS)[:1])))))
    module.path, module.package = module.id, package
    module.scope = Scope("module", package, f"{package}." if package else "", None, module)
    module.stars.append(package)
    if package:
        module.entities.append(Entity(package, "package", package.rpartition(".")[2], module=package))
    for node in _children(root, "import_declaration"):
        *words, said = _text(node).rstrip("; ").split()
        name, static = said.removesuffix(".*"), "static" in words
        owner, _, last = name.rpartition(".")
        if said != name:
            imported = _full(name, "class" if static else "package")
            module.stars.append(name)
        elif static:
            imported, module.scope.names[f"{last}/"] = _full(owner), ("static", owner)
        else:
            imported = _full(name)
            module.scope.names[last] = ("chain", imported, module.scope)
        module.scope.uses.append((module.id, "imports", imported))
    _read(_children(root, *KINDS), module)
    return module


def _read(types, module):
    stack = [(node, module.scope) for node in types[::-1]]
    while stack:
        node, here = stack.pop()
        kind, inside, children = node.type, here, node.named_children
        if kind in KINDS and here.kind in ("module", "class"):
            inside = _type(node, here)
            children += children.pop().named_children  # those of its body
        elif kind.endswith(_METHODS) and here.kind == "class":
            inside = _method(node, here)
        elif kind in (*_BLOCKS, *KINDS):
            inside = Scope("block", here.owner, here.prefix, here, module)
            inside.hidden = kind == "class_body" or kind in KINDS  # a class without a name, or within a method
            if inside.hidden:
                inside.names["this"] = OPAQUE
        if kind in _LOCALS and (inside.kind != "class" or kind in _FIELDS):
            _bind(node, inside)
        elif kind == "type_parameter":
            inside.names[_text(_children(node, "type_identifier", "identifier")[0])] = OPAQUE
        elif kind == "enum_constant":
            here.names[_name(node)] = ("known", here.owner, True)
            here.define("field", _name(node), _lines(node))
        elif kind == "lambda_expression":
            parameters = node.child_by_field_name("parameters")
            named = [parameters, *parameters.named_children]
            inside.names |= {_text(one): OPAQUE for one in named if one.type == "identifier"}
        elif kind == "method_invocation":
            here.calls[_chain(node).removesuffix("()")].append(node.start_point[0] + 1)
        elif kind == "object_creation_expression":
            made = _chain_of_type(_bare(node.child_by_field_name("type")))
            here.uses.append((here.owner, "instantiates", made or "?", [node.start_point[0] + 1]))
        stack += [(child, inside) for child in children[::-1]]


def _type(node, around):
    name, module = _name(node), around.module
    entity = around.define(KINDS[node.type], name, _lines(node))
    around.bind(name, ("known", entity, False))
    scope = module.classes.setdefault(entity, Scope("class", entity, f"{entity}.", around, module))
    scope.bases = [("inherits_from", base) for base in _listed(node, "superclass", "extends_interfaces")]
    scope.bases += [("implements", base) for base in _listed(node, "super_interfaces")]
    return scope


def _method(node, outer):
    parameters = _children(node.child_by_field_name("parameters"), *_PARAMETERS)
    signature = ",".join(map(_written, parameters))
    name, kind = _name(node), "constructor" if "constructor" in node.type else "method"
    entity = outer.define(kind, name, _lines(node), f"({signature})")
    scope = Scope("function", entity, f"{entity}.", outer, outer.module)
    scope.names["this"] = ("known", outer.owner, True)
    for parameter in parameters:
        for each, _ in _variables(parameter):
            scope.parameter(each, _lines(parameter))
    if kind == "constructor":
        return scope
    meaning, more = ("known", entity, False), _MOST_VARIADIC if signature.endswith("...") else 0
    for count in range(len(parameters) - bool(more), len(parameters) + more + (not more)):
        outer.bind(f"{name}/{count}", meaning)
    if not {"static", "private"} & {word for each in _children(node, "modifiers") for word in _text(each).split()}:
        outer.names[f"{name}({signature})"] = meaning
    if result := _chain_of_type(_bare(node.child_by_field_name("type"))):
        outer.module.results[entity] = (scope, f"{result}()")
    return scope


def _bind(node, scope):
    """Those of a class are its fields."""
    for name, chain in _variables(node):
        if scope.kind == "class":
            scope.define("field", name, _lines(node))
        scope.bind(name, ("chain", chain, scope) if chain else OPAQUE)


# ---- chains


def _chain(node: Node | None) -> str:
    """What an expression mentions, as `scopes` says it."""
    names = ""
    while node is not None:
        kind = node.type
        if kind == "method_invocation":
            arguments = node.child_by_field_name("arguments").named_children
            count = sum(not each.type.endswith("comment") for each in arguments)
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
        elif kind in ("super", "string_literal"):
            return f"{'super' if kind == 'super' else _full('java.lang.String')}(){names}"
        else:
            made = kind in ("cast_expression", "object_creation_expression")
            if made and (name := _chain_of_type(_bare(node.child_by_field_name("type")))):
                return f"{name}(){names}"
            break
    return f"?.{names.rpartition('.')[2]}" if names else "?"


def _full(name: str, kind: str = "class") -> str:
    """A full name as a chain that is looked up nowhere."""
    return f"<{kind} {name.replace('.', '/')}>"


def _variables(node: Node) -> Iterator[tuple[str, str]]:
    """Name and chain of each field, local variable or parameter; "" for one that is primitive, an array or not certain."""
    written = _declared_type(node)
    said = _chain_of_type(_bare(written))
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


def _listed(node: Node, *clauses: str) -> list[str]:
    """Every type that a declaration lists in its `extends` or `implements`."""
    said = (re.sub("^(extends|implements)", "", _bare(clause)) for clause in _children(node, *clauses))
    return [_chain_of_type(name) for names in said for name in names.split(",")]


def _bare(node: Node | None) -> str:
    """The text of a type without type arguments, annotations and comments."""
    text, inner = "", _NOISE.sub("", _text(node))
    while inner != text:
        text, inner = inner, re.sub(r"<[^<>]*>", "", inner)
    return text


def _chain_of_type(bare: str) -> str:
    """The name, or the chain of a full one; "" for a type that is primitive or an array."""
    if not re.fullmatch(r"[\w$.]+", bare) or bare in _PRIMITIVE:
        return ""
    return _full(bare) if "." in bare and bare[0].islower() else bare


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

    def _name(self, scope: Scope, name: str) -> Value | None:
        if name[0] == "<":
            kind, _, full = name[1:-1].replace("/", ".").partition(" ")
            return Value(full, False) if full in self.classes else self._outside(full, kind)
        looking = scope
        while looking.parent is not None:
            if looking.kind == "class":
                order = self.order(looking.owner)
                if any(name in self.classes[one].names for one in order if one in self.classes):
                    return self.member(looking.owner, name)
                if "/" in name and looking.parent.kind == "class" and not self.classes.keys() >= {*order}:
                    return None  # inherited from outside, or a method of the class around
            elif name in looking.names:
                return self._meaning(looking.names[name], looking.module)
            elif looking.hidden and "/" in name:
                return None
            looking = looking.parent
        return self._of_file(looking, name, scope)

    def _of_file(self, file: Scope, name: str, scope: Scope) -> Value | None:
        module, method = file.module, name.partition("/")[0]
        if name in file.names:
            return self._meaning(file.names[name], module)
        if "/" in name and f"{method}/" in file.names:
            owner = file.names[f"{method}/"][1]
            return self.member(owner, name) if owner in self.classes else self._outside(f"{owner}.{method}", "method")
        for origin in module.stars:
            if origin in self.classes and name in self.classes[origin].names:
                return self.member(origin, name)
            full = f"{origin}.{name}" if origin else name
            if full in self.classes:
                return Value(full, False)
        if "/" in name:
            while scope.kind != "class" or scope.parent.kind == "class":
                scope = scope.parent
            return self.member(scope.owner, name)
        return self._outside(f"java.lang.{name}", "class") if name in _LANG else None

    def _attribute(self, value: Value | None, name: str) -> Value | None:
        if value is None or value.entity in self.classes:
            return value and self.member(value.entity, name)
        if self.type_of(value.entity) not in CLASSES:
            return None
        if "/" in name:
            return self._outside(f"{value.entity}.{name.partition('/')[0]}", "method")
        nested = not value.is_instance and name[0].isupper() and not name.isupper()
        return self._outside(f"{value.entity}.{name}", "class") if nested else None

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
