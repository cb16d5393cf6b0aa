"""What one Java file defines and mentions, parsed by tree-sitter, and what its names stand for by the rules of the language.

A method's id has its parameter types as written, `a.b.C.run(String,int[])`; a method outside of the sources has none, and is
named by the type it is called on, as in bytecode. In a scope a method has the number of its arguments, `run/2`. Unresolved
are an overload that this number does not tell, a name that only an import on demand from outside can bring, a rarer type of
java.lang, a method that an anonymous class may inherit, and a class that an expression names with its package.
"""

import re

from .imports import Imports
from .knowledge_graph import Entity, last_name
from .resolution import CLASSES, OPEN, Resolver, Targets, only
from .scopes import OPAQUE, Expression, Module, Scope, Use, Value

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
_MENTIONS = {
    "superclass": "base", "type_list": "base", "catch_type": "caught", "throws": "raised", "instanceof_expression": "tested",
    "cast_expression": "annotated", "generic_type": "annotated", "type_arguments": "annotated", "array_type": "annotated",
    "local_variable_declaration": "annotated", "field_declaration": "annotated", "formal_parameter": "annotated",
    "method_declaration": "annotated", "class_literal": "read", "array_creation_expression": "called",
}  # fmt: skip
# In the type of a parameter: comments, annotations, type arguments, packages, space.
_NOISE = re.compile(r"//.*|/\*(?s:.*?)\*/|@[\w.]+(?:\((?s:.*?)\))?|<(?s:.*)>|\w+\.|\s")
_ABOVE = {"superclass": "inherits_from", "extends_interfaces": "inherits_from", "super_interfaces": "implements"}
_PRIMITIVE = ("boolean", "byte", "char", "short", "int", "long", "float", "double")
_MOST_VARIADIC = 10  # arguments of a call that a method with `...` answers, beyond those that it names
# Of the types that need no import (JLS 7.5.5), those that programs mention most.
_LANG_NAMES = """
    ArrayIndexOutOfBoundsException AssertionError AutoCloseable Boolean Byte CharSequence Character Class ClassCastException
    ClassLoader Cloneable Comparable Double Enum Error Exception Float IllegalArgumentException IllegalStateException
    IndexOutOfBoundsException Integer InterruptedException Iterable Long Math NullPointerException Number NumberFormatException
    Object Runnable Runtime RuntimeException Short StackTraceElement String StringBuffer StringBuilder System Thread ThreadLocal
    Throwable UnsupportedOperationException"""
_LANG = frozenset(_LANG_NAMES.split())
_OBJECT_METHODS = {"equals", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait", "clone", "finalize"}


# ---- what a file says: each function reads a `Node` of tree-sitter into the `Scope` that it stands in


def read_java(content: bytes, label: str) -> Module:
    """label: before the names of all that the file defines. Raises SyntaxError with the line of the first error, and ImportError: no parser."""
    import tree_sitter
    import tree_sitter_java

    root = tree_sitter.Parser(tree_sitter.Language(tree_sitter_java.language())).parse(content).root_node
    if root.has_error:
        wrong, inside = root, [root]
        while inside and not wrong.is_error:
            wrong = inside[0]
            inside = [child for child in wrong.children if child.has_error]
        raise SyntaxError("invalid syntax", ("", wrong.start_point[0] + 1, None, None))
    types = _children(root, *KINDS)
    package = ""
    for node in _children(root, "package_declaration"):
        package += _text(node.named_children[-1])
    words = [package, *map(_name, types[:1])]
    module = Module(label + ".".join(filter(None, words)))
    module.path, module.package, module.label = module.id, package, label
    owner = label + package
    prefix = f"{owner}." if package else label
    module.scope = Scope("module", owner, prefix, None, module)
    module.stars.append((package, 0))
    if package:
        name = last_name(package)
        module.entities.append(Entity(owner, "package", name, module=owner))
    for node in _children(root, "import_declaration"):
        *words, imported = _text(node).rstrip("; ").split()
        name = imported.removesuffix(".*")
        owner, _, last = name.rpartition(".")
        if imported != name:
            module.stars.append((name, 0))
        else:
            if "static" in words:
                name, last = owner, f"{last}/"
            module.scope.names[last] = [Expression(f"{name}:", module.scope)]
        _mention(module.scope, "imported", f"{name}:", node)
    _read(types, module)
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
                inside.names["this"] = [OPAQUE]
        if kind in _LOCALS and (inside.kind != "class" or kind in _FIELDS):
            _bind(node, inside)
        elif kind == "type_parameter":
            inside.names[_text(_children(node, "type_identifier", "identifier")[0])] = [OPAQUE]
        elif kind == "enum_constant":
            here.names[_name(node)] = [Value(here.owner, True)]
            here.define("field", _name(node), _lines(node))
        elif kind == "lambda_expression":
            parameters = node.child_by_field_name("parameters")
            for parameter in parameters.named_children or [parameters]:
                inside.names[_text(parameter)] = [OPAQUE]
        elif kind == "method_invocation":
            chain = _chain(node).removesuffix("()")
            _mention(here, "called", chain, node.child_by_field_name("name"))
        elif kind == "object_creation_expression":
            written = node.child_by_field_name("type")
            _mention(here, "called", _chain_of_type(written), written)
        elif kind in ("type_identifier", "scoped_type_identifier") and node.parent.type in _MENTIONS:
            _mention(here, _MENTIONS[node.parent.type], _chain_of_type(node), node)
        elif kind in ("marker_annotation", "annotation"):
            _mention(here, "decorates", _name(node), node)
        elif kind == "method_reference":
            words = [*map(_text, node.named_children)]
            _mention(here, "passed", f"{words[0]}.{words[-1]}/*", node)
        stack += [(child, inside) for child in children[::-1]]


def _mention(scope: Scope, kind: str, chain: str, node) -> None:
    line, column = node.start_point[0] + 1, node.end_point[1] - 1
    scope.module.uses.append(Use(scope, kind, chain, line, column))


def _type(node, around):
    name, module = _name(node), around.module
    entity = around.define(KINDS[node.type], name, _lines(node))
    around.bind(name, Value(entity))
    scope = module.classes.setdefault(entity, Scope("class", entity, f"{entity}.", around, module))
    for clause in _children(node, *_ABOVE):
        bases = clause.named_children[-1:]
        if bases[0].type == "type_list":
            bases = bases[0].named_children
        for base in bases:
            scope.bases.append((_ABOVE[clause.type], _chain_of_type(base)))
    return scope


def _method(node, outer):
    parameters = _children(node.child_by_field_name("parameters"), *_PARAMETERS)
    name, signature = _name(node), ",".join(map(_written, parameters))
    kind = "constructor" if "constructor" in node.type else "method"
    entity = outer.define(kind, name, _lines(node), f"({signature})")
    scope = Scope("function", entity, f"{entity}.", outer, outer.module)
    scope.names["this"] = [Value(outer.owner, True)]
    if kind == "constructor":
        return scope
    meaning = Value(entity)
    counts = range(len(parameters), len(parameters) + 1)
    if signature.endswith("..."):
        counts = range(len(parameters) - 1, len(parameters) + _MOST_VARIADIC)
    for count in counts:
        outer.bind(f"{name}/{count}", meaning)
    modifiers = " ".join(map(_text, _children(node, "modifiers")))
    if not {"static", "private"}.intersection(modifiers.split()):
        outer.names[f"{name}({signature})"] = [meaning]
    result = _chain_of_type(node.child_by_field_name("type"))
    if result != "?":
        outer.module.results[entity] = [Expression(f"{result}()", scope)]
    return scope


def _bind(node, scope):
    """Fields of a class, local variables or parameters; what is primitive, an array or not certain is opaque."""
    written = _declared_type(node)
    instance = f"{_chain_of_type(written)}()"
    for declared in _children(node, "variable_declarator") or [node]:
        # The name is "" in a test without a variable, and of a resource that is declared elsewhere; nothing looks it up.
        name, value, chain = _name(declared), declared.child_by_field_name("value"), instance
        if declared.child_by_field_name("dimensions") or node.type == "spread_parameter":
            chain = "?"
        elif instance == "var()":
            chain = "?"
            if value and node.type != "enhanced_for_statement":
                chain = _chain(value)
        if scope.kind == "class":
            scope.define("field", name, _lines(node))
        elif scope.kind == "function" and node.type in _PARAMETERS:
            scope.parameter(name, _lines(node))
        if chain[0] == "?":
            scope.bind(name, OPAQUE)
        else:
            scope.bind(name, Expression(chain, scope))


def _chain(node) -> str:
    """What an expression mentions, as `scopes` says it."""
    rest = ""
    while node is not None:
        kind = node.type
        if kind == "method_invocation":
            arguments = node.child_by_field_name("arguments").named_children
            count = sum(not argument.type.endswith("comment") for argument in arguments)
            rest = f".{_name(node)}/{count}(){rest}"
            node = node.child_by_field_name("object")
            if node is None:
                return rest[1:]
        elif kind == "field_access":
            rest = f".{_text(node.child_by_field_name('field'))}{rest}"
            node = node.child_by_field_name("object")
        elif kind == "parenthesized_expression":
            node = node.named_children[0]
        elif kind in ("identifier", "this"):
            return _text(node) + rest
        elif kind == "super":
            return f"super(){rest}"
        elif kind == "string_literal":
            return f"String(){rest}"
        elif kind in ("cast_expression", "object_creation_expression"):
            return f"{_chain_of_type(node.child_by_field_name('type'))}(){rest}"
        else:
            break
    if rest:
        return f"?.{rest.rpartition('.')[2]}"
    return "?"


def _declared_type(node):
    others = [child for child in node.named_children if child.type != "modifiers"]
    # "right" is that of `x instanceof Type name`.
    return node.child_by_field_name("type") or node.child_by_field_name("right") or others[0]


def _chain_of_type(node) -> str:
    """The name of a type, or for one with its package a chain that is looked up nowhere; "?" for all that is no class."""
    if node and (node.type == "generic_type" or (node.type == "catch_type" and node.named_child_count == 1)):
        node = node.named_children[0]
    name = _text(node)
    if not re.fullmatch(r"[\w$.]+", name) or not node.type.endswith("type_identifier"):
        return "?"
    if "." in name and name[0].islower():
        return f"<{name.replace('.', '/')}>"
    return name


def _written(parameter) -> str:
    """The type of a parameter as a signature shows it: without package, type arguments and annotations."""
    kind = _NOISE.sub("", _text(_declared_type(parameter)))
    kind += _text(parameter.child_by_field_name("dimensions"))
    if parameter.type == "spread_parameter":
        return f"{kind}..."
    return kind


def _name(node) -> str:
    return _text(node.child_by_field_name("name"))


def _text(node) -> str:
    return node.text.decode("utf-8", "replace") if node else ""


def _lines(node) -> tuple[int, int]:
    return node.start_point[0] + 1, node.end_point[0] + 1


def _children(node, *kinds: str) -> list:
    return [child for child in (node.named_children if node else ()) if child.type in kinds]


# ---- what a name stands for


class JavaResolver(Resolver):
    """Types by the rules of the language (JLS 6), methods by name and number of arguments."""

    no_base, beyond = (), ()

    def __init__(self, modules: list[Module]):
        self.label = modules[0].label if modules else ""
        numbered = {f"{module.id} {number}": module for number, module in enumerate(modules)}
        super().__init__(numbered, Imports((), ()))

    def module(self, name: str, importer: Module | None = None) -> Value:
        """A type or a package by its full name; outside of the sources a capital tells which of them it is."""
        if self.label + name in self.classes:
            return Value(self.label + name)
        last = last_name(name)
        return self._outside(name, "class" if last[:1].isupper() else "package")

    def _name(self, scope: Scope, name: str) -> Targets:
        if name[0] == "<":
            return only(self.module(name[1:-1].replace("/", ".")))
        owner = ""
        looking: Scope | None = scope
        while looking is not None:
            if looking.kind == "class":
                owner, order = looking.owner, self.order(looking.owner)
                inside = [entity for entity in order if entity in self.classes]
                if any(name in self.classes[entity].names for entity in inside):
                    return self.member(Value(owner), name)
                if "/" in name and looking.outer.kind == "class" and inside != order:
                    return OPEN  # inherited from outside, or a method of the class around
            elif name in looking.names:
                return self._meanings(looking.names[name])
            elif looking.hidden and "/" in name:
                return OPEN
            looking = looking.parent
        return self._imported(scope.module, name, owner)

    def _imported(self, module: Module, name: str, owner: str) -> Targets:
        """What imports bring; else a method without an owner is one that the outermost class has from outside."""
        method = f"{name.partition('/')[0]}/"
        if "/" in name and method in module.scope.names:
            imported = self._meanings(module.scope.names[method])
            return imported.map(lambda owner: self._attribute(owner, name))
        for origin, _ in module.stars:
            imported_from = self.label + origin
            if imported_from in self.classes and name in self.classes[imported_from].names:
                return self.member(Value(imported_from), name)
            full = f"{imported_from}.{name}" if origin else imported_from + name
            if full in self.classes:
                return only(Value(full))
        if "/" in name:
            return self.member(Value(owner), name)
        if name in _LANG:
            return only(self._outside(f"java.lang.{name}", "class"))
        return OPEN

    def _attribute(self, value: Value, name: str) -> Targets:
        if value.entity in self.classes:
            return self.member(Value(value.entity), name)
        if self.type_of(value.entity) not in CLASSES:
            return OPEN
        method, is_method, _ = name.partition("/")
        if is_method:
            return only(self._outside(f"{value.entity}.{method}", "method"))
        if name[0].isupper() and not name.isupper() and not value.is_instance:
            return only(self._outside(f"{value.entity}.{name}", "class"))
        return OPEN

    def _result(self, called: Value) -> Targets:
        if called.is_instance:
            return OPEN
        if self.type_of(called.entity) in CLASSES:
            return only(Value(called.entity, True))
        module = self.module_of.get(called.entity)
        if module is None:
            return OPEN
        return self._meanings(module.results.get(called.entity, ()))

    def lookup(self, order: list[str], name: str, is_instance: bool = False) -> Targets:
        outside = []
        for entity in order:
            if entity not in self.classes:
                outside.append(entity)
            elif name in self.classes[entity].names:
                targets = self._meanings(self.classes[entity].names[name])
                above = order[order.index(entity) + 1 :]
                # What stands above it and outside, or takes an object where this takes a number, may be a better one.
                if "(" not in name and (outside or self._is_boxed(targets, above, name)):
                    return OPEN
                return targets
        method, is_method, _ = name.partition("/")
        if method in _OBJECT_METHODS:
            outside = ["java.lang.Object"]
        if is_method and len(outside) == 1 and outside != ["?"]:  # it compiles, so it is there
            return only(self._outside(f"{outside[0]}.{method}", "method"))
        return OPEN

    def _is_boxed(self, targets: Targets, above: list[str], name: str) -> bool:
        """Whether a method above takes an object where this one takes a number, or the other way round."""
        kinds = {_is_primitive(value.entity) for value in targets.values}
        scopes = [self.classes[entity] for entity in above if entity in self.classes]
        for scope in scopes:
            for meaning in scope.names.get(name, ()):
                kinds.add(_is_primitive(meaning.entity) if isinstance(meaning, Value) else ())
        return len(kinds) > 1


def _is_primitive(method: str) -> tuple[bool, ...]:
    """Of each parameter."""
    types = method.partition("(")[2].rstrip(")").split(",")
    return tuple(kind in _PRIMITIVE for kind in types)
