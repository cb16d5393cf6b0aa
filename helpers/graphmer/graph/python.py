"""What one Python file defines and what it mentions, in one pass over its tree.

A handler of one kind of node gets the node, the `Scope` that it stands in, and the stack of what is still to be read there. What
stands around a name says how it is used: this kind is written into the node before the name is read.
"""

import ast
import contextlib
import functools
import re
from collections.abc import Iterable

from . import scopes
from .knowledge_graph import DEFINED, Entity, last_name
from .scopes import NOTHING, OPAQUE, Expression, Meaning, Module, Scope, Value

_CLASS_METHODS = {"__new__", "__init_subclass__", "__class_getitem__"}
_MAKE_CONSTRUCTORS = ("dataclass", "define", "frozen", "mutable", "attrs", "s")
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
_CONSTANTS = (str, bytes, int, float, complex, bool)
_NAMES = (ast.Name, ast.Attribute)
_TYPE_OPERATORS = {"Optional", "Union", "Annotated", "ClassVar", "Final", "InitVar", "Required", "NotRequired"}
_MEMBERS = ("dir", "vars", "getmembers", "globals", "locals", "__dir__", "getmro")
_BY_NAME = {"getattr": "read", "hasattr": "read", "setattr": "written", "delattr": "deleted", "__setattr__": "written"}
_WITH_ARGUMENT = (
    "super",
    "copy",
    "deepcopy",
    "partial",
    "staticmethod",
    "classmethod",
)  # calls that stand in a chain with their first argument
THIS_MODULE = "<module>"  # as the chain of what is assigned to
ANYTHING = "*"  # as the attribute that is assigned
# How names are used that stand in a field of a node; in `value` it is the node that tells.
_USES = {
    "context_expr": "with",
    "exc": "raised",
    "type": "caught",
    "cls": "matched",
    "decorator_list": "decorates",
    "bases": "base",
    "args": "passed",
    "elts": "table",
    "elt": "table",
    "key": "table",
    "keys": "table",
    "values": "table",
}
_USES_OF_VALUES = {
    ast.Await: "awaited",
    ast.keyword: "passed",
    ast.Assign: "aliased",
    ast.AnnAssign: "aliased",
    ast.NamedExpr: "aliased",
    ast.Return: "returned",
    ast.Yield: "yielded",
    ast.YieldFrom: "yielded",
    ast.DictComp: "table",
}
_OF_CALLS = ("with", "raised", "decorates", "awaited")  # a call in such a place is used so
_OF_CALLS_ALONE = ("with", "awaited")


def read_python(module: Module, content: bytes) -> Module:
    """Fills `module`. Raises what `ast.parse` does."""
    tree = ast.parse(content)
    kind_of_module = "package" if module.is_package else "module"
    name = last_name(module.id)
    lines = (1, content.count(b"\n") + 1)
    module.entities.append(Entity(module.id, kind_of_module, name, DEFINED, module.id, *lines))
    todo = module.todo
    todo.append((module.scope, [tree.body]))
    for scope, stack in todo:  # grows: functions and classes are read after what surrounds them
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind in _NAMES:
                _name(node, scope)
                if kind is ast.Attribute:
                    stack.append(node.value)
            elif kind is ast.Constant:
                if type(node.value) is str and node.value.isidentifier():
                    module.words[scope.owner].add(node.value)
            elif kind is list:
                stack += node[::-1]
            else:  # of what is no node there is nothing to read
                for field, use in _used_fields(kind):  # type: ignore[arg-type]  # a class can be hashed
                    _mark(getattr(node, field), use)
                if kind in _HANDLERS:
                    _HANDLERS[kind](node, scope, stack)
                else:
                    fields = getattr(kind, "_fields", ())
                    stack += [getattr(node, field) for field in reversed(fields)]
    todo.clear()
    return module


# ---- mentions


@functools.cache
def _used_fields(kind: type) -> list[tuple[str, str]]:
    fields = []
    for field in getattr(kind, "_fields", ()):
        use = _USES.get(field)
        if field == "value":
            use = _USES_OF_VALUES.get(kind)
        if use and kind is not ast.BoolOp:
            fields.append((field, use))
    return fields


def _mark(node: ast.AST | list | None, use: str) -> None:
    """Says how the names are used that stand alone in a field."""
    parts: list = node if isinstance(node, list) else [node]
    for part in parts:
        if type(part) is ast.Starred or (use == "base" and type(part) is ast.Subscript):
            part = part.value
        if type(part) is ast.Tuple and use in ("caught", "tested"):
            _mark(part.elts, use)
        is_used_so = type(part) in _NAMES and use not in _OF_CALLS_ALONE
        if type(part) is ast.Call:
            is_used_so = use in _OF_CALLS
        if is_used_so and (use == "tested" or not hasattr(part, "use")):
            part.use = use


def _name(node: ast.Name | ast.Attribute, scope: Scope) -> None:
    context = type(node.ctx)
    if context is ast.Store or (context is ast.Del and _outlives(node, scope)):
        _bind(scope, node, OPAQUE)
    elif type(node) is ast.Attribute and node.attr == "__dict__":
        scope.reads_members = True
    uses = {ast.Store: "written", ast.Del: "deleted"}
    kind = uses.get(context, getattr(node, "use", "read"))
    _mention(scope, kind, chain_of(node), node)


def _outlives(node: ast.Name | ast.Attribute, scope: Scope) -> bool:
    """Whether a name that is deleted is more than a local variable or an attribute of `self`."""
    if isinstance(node, ast.Name):
        return scope.binder(node.id).kind in ("module", "class")
    return _class_of_self(scope, node.value) is None


def _mention(scope: Scope, kind: str, chain: str, node: ast.AST) -> None:
    line, end = node.end_lineno, node.end_col_offset  # type: ignore[attr-defined]  # what is mentioned has a place
    scope.module.uses.append(scopes.Use(scope, kind, chain, line, end - 1))


def _call(node, scope, stack):
    called, arguments = node.func, node.args
    words = scope.module.words
    chain, use = chain_of(called), getattr(node, "use", "called")
    name = last_name(chain)
    if type(called) in _NAMES:
        called.use = use
        if name in _MEMBERS:
            scope.reads_members = True
        if name in ("isinstance", "issubclass") and len(arguments) == 2:
            _mark(arguments[1:], "tested")
            kinds = getattr(arguments[1], "elts", arguments[1:])
            _narrow(scope, arguments[0], kinds)
        elif name == "cast" and arguments:
            _annotation(scope, arguments[0])
            arguments = arguments[1:]
        elif name in _BY_NAME and len(arguments) > 1:
            _by_name(name, arguments, scope)
        elif name in ("exec", "eval") and len(arguments) == 1:
            _store(scope, THIS_MODULE, ANYTHING, OPAQUE)
        elif name == "update":
            owner = _owner_of_table(getattr(called, "value", None))
            if owner:
                _store(scope, owner, "", OPAQUE)
    for argument in (*arguments, *node.keywords):
        for part in ast.walk(argument):
            if type(part) is ast.keyword and part.arg:
                words[scope.owner].add(part.arg)
                words[name].add(part.arg)
            elif type(part) is ast.Constant and type(part.value) is str:
                words[name].add(part.value)
    stack += (called, *arguments, *node.keywords)


def _narrow(scope: Scope, tested: ast.expr, kinds: list[ast.expr]) -> None:
    """`isinstance(x, C)`: a local name or an attribute of `self` may be a C, whatever else is known of it."""
    table = name = None
    if type(tested) is ast.Name:
        table, name = scope.names, tested.id
    elif type(tested) is ast.Attribute:
        owner = _class_of_self(scope, tested.value)
        if owner:
            table, name = owner.fields, tested.attr
    if table and name in table:
        for kind in kinds:
            scopes.bind(table, name, _expression(scope, kind, "!"))


def _by_name(function: str, arguments: list[ast.expr], scope: Scope) -> None:
    """`getattr(x, "name")` and its like."""
    target, name = arguments[:2]
    attribute, use = _string(name), _BY_NAME[function]
    if attribute:
        _mention(scope, use, f"{chain_of(target)}.{attribute}", name)
    if use == "read":
        return
    meanings: list[Meaning] = [OPAQUE]
    if len(arguments) > 2:
        meanings = _meanings(arguments[2], scope)
    for meaning in meanings:
        _store(scope, chain_of(target), attribute, meaning)


def _string(node: ast.AST | None) -> str:
    """What a literal string holds; "" for all else."""
    if type(node) is ast.Constant and type(node.value) is str:
        return node.value
    return ""


def _owner_of_table(table: ast.expr | None) -> str:
    """The chain of x in `x.__dict__` and `vars(x)`, or that of the module; else ""."""
    if type(table) is ast.Attribute and table.attr == "__dict__":
        return chain_of(table.value)
    if type(table) is ast.Call and chain_of(table) in ("globals()", "vars()", "locals()"):
        if not table.args:
            return THIS_MODULE
        return chain_of(table.args[0])
    return ""


def _store(scope: Scope, chain: str, name: str, meaning: Meaning) -> None:
    """An assignment to an attribute of an object that need not be `self`; `name` is "" for a computed one."""
    name = re.sub(r"^_\w*?(?=__\w)", "", name)  # the mangled `_C__name` is `__name` in C
    scope.module.stores.append((Expression(chain, scope), name, meaning))


# ---- bindings


def _expression(scope: Scope, node: ast.AST, end: str = "") -> Meaning:
    chain = chain_of(node)
    if chain[0] == "?":
        return OPAQUE
    return Expression(chain + end, scope)


def _meanings(value: ast.AST | None, scope: Scope) -> list[Meaning]:
    """What a name may be bound to by `name = value`, or a result by `return value`."""
    if isinstance(value, ast.IfExp):
        return _meanings(value.body, scope) + _meanings(value.orelse, scope)
    if isinstance(value, ast.BoolOp):
        meanings = []
        for part in value.values:
            meanings += _meanings(part, scope)
        return meanings
    if value is None or (type(value) is ast.Constant and value.value is None):
        return [NOTHING]
    return [_expression(scope, value)]


def _class_of_self(scope: Scope, node: ast.expr) -> Scope | None:
    """The class whose method calls its instance so, here or in a function around."""
    while type(node) is ast.Name and scope.kind in ("function", "block"):
        if node.id == scope.self_name:
            return scope.parent
        if node.id in scope.names:
            return None
        scope = scope.outer
    return None


def _bind(scope: Scope, target: ast.Name | ast.Attribute, meaning: Meaning) -> None:
    """Binds a name, or `self.name` in a method; any other attribute is a store."""
    if isinstance(target, ast.Name):
        name, scope = target.id, scope.binder(target.id)
        scopes.bind(scope.names, name, meaning)
    else:
        name = target.attr
        owner = _class_of_self(scope, target.value)
        if owner is None:
            _store(scope, chain_of(target.value), name, meaning)
            return
        scope = owner
        scopes.bind(scope.fields, name, meaning)
    if scope.kind in ("module", "class"):
        kind = "field" if scope.kind == "class" else "variable"
        scope.define(kind, name, _lines(target))


def _lines(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.end_lineno  # type: ignore[attr-defined]  # what is defined has a place


def _export(scope: Scope, table: ast.AST | None) -> None:
    if isinstance(table, ast.List | ast.Tuple):
        exports = scope.module.exports = scope.module.exports or set()
        for element in table.elts:
            if isinstance(element, ast.Constant):
                exports.add(str(element.value))
                _mention(scope, "exported", str(element.value), element)


# ---- statements and expressions that bind, define or say more than a call


def _function(node, scope, stack):
    name, module = node.name, scope.module
    _annotation(scope, node.returns)
    for part in ast.walk(node.args):
        if type(part) is ast.arg:
            _annotation(scope, part.annotation)
    decorators = [chain_of(_called(decorator)) for decorator in node.decorator_list]
    _defaults(node.args, stack)
    stack.append(node.decorator_list)
    if any(last_name(chain) == "overload" for chain in decorators):
        module.uses.append(scopes.Use(scope, "overloaded", name, node.lineno, node.col_offset))
        return  # the implementation is what is defined

    in_class = scope.kind == "class"
    if any(decorator in (f"{name}.setter", f"{name}.getter", f"{name}.deleter") for decorator in decorators):
        entity = f"{scope.prefix}{name}"  # the same property
    else:
        kind = "method" if in_class else "function"
        if in_class and name == "__init__":
            kind = "constructor"
        entity = _defined(kind, node, scope)
        _decorated(node, entity, scope)
    inner = Scope("function", entity, f"{entity}.<locals>.", scope, module)
    module.todo.append((inner, [node.body]))

    parameters = [*node.args.posonlyargs, *node.args.args]
    if parameters:
        module.first.setdefault(entity, parameters[0].arg)
    if in_class and parameters and "staticmethod" not in decorators:
        first = parameters.pop(0).arg
        is_instance = name not in _CLASS_METHODS and "classmethod" not in decorators
        inner.names[first] = [Value(scope.owner, is_instance, False)]
        if is_instance:
            inner.self_name = first
    for rest, chain in ((node.args.vararg, "<tuple>"), (node.args.kwarg, "<dict>")):
        if rest:
            inner.names[rest.arg] = [Expression(chain, inner)]
            inner.parameter(rest.arg, _lines(rest))
    for parameter in (*parameters, *node.args.kwonlyargs):
        inner.parameter(parameter.arg, _lines(parameter))
        inner.names[parameter.arg] = _declared(parameter.annotation, scope)
    if node.returns is not None:
        module.results.setdefault(entity, _declared(node.returns, scope))
    if type(node) is ast.AsyncFunctionDef:
        module.asynchronous.add(entity)


def _defaults(arguments: ast.arguments, stack: list) -> None:
    for values in (arguments.defaults, arguments.kw_defaults):
        _mark(values, "default")
        stack.append(values)


def _called(node: ast.expr) -> ast.expr:
    return node.func if type(node) is ast.Call else node


def _decorated(node: ast.FunctionDef | ast.ClassDef, entity: str, scope: Scope) -> None:
    module = scope.module
    for decorator in node.decorator_list:
        module.decorators.setdefault(entity, []).append(_expression(scope, decorator))
        chain = chain_of(_called(decorator))
        if last_name(chain) == "wraps" and type(decorator) is ast.Call and decorator.args:
            wrapped = chain_of(decorator.args[0])
            if any(type(part) is ast.Call and chain_of(part.func) == wrapped for part in ast.walk(node)):
                module.wrappers[entity] = wrapped


def _defined(kind: str, node: ast.FunctionDef | ast.ClassDef, scope: Scope) -> str:
    entity = scope.binder(node.name).define(kind, node.name, _lines(node))
    scope.bind(node.name, Value(entity))
    return entity


def _annotation(scope: Scope, node: ast.expr | None) -> None:
    """Mentions every name in an annotation, also in one that is a string."""
    if node is None:
        return
    for part in ast.walk(node):
        inner = _written_type(part)
        if type(part) in _NAMES:
            _mention(scope, "annotated", chain_of(part), part)
        elif inner:
            for name in ast.walk(inner):
                if type(name) in _NAMES:
                    _mention(scope, "annotated", chain_of(name), part)


def _written_type(node: ast.AST | None) -> ast.expr | None:
    """The annotation that is written in a string."""
    text = _string(node)
    if text:
        with contextlib.suppress(SyntaxError, ValueError):
            return ast.parse(text.strip(), mode="eval").body
    return None


def _declared(annotation: ast.AST | None, scope: Scope) -> list[Meaning]:
    """What a name with this annotation may be."""
    meanings: list[Meaning] = []
    for chain in declared_types(annotation):
        if chain == "None":
            meanings.append(NOTHING)
        elif last_name(chain) == "Self" and scope.kind == "class":
            meanings.append(Value(scope.owner, True, False))
        elif chain[0] == "?":
            meanings.append(OPAQUE)
        elif chain[-1] == "^":
            meanings.append(Expression(chain, scope))
        else:
            meanings.append(Expression(f"{chain}!", scope))
    return meanings


def _block(scope: Scope, body: list) -> Scope:
    inner = Scope("block", scope.owner, scope.prefix, scope, scope.module)
    scope.module.todo.append((inner, body))
    return inner


def _lambda(node, scope, stack):
    inner = _block(scope, [node.body])
    for parameter in ast.walk(node.args):
        if type(parameter) is ast.arg:
            inner.names[parameter.arg] = [OPAQUE]
    _defaults(node.args, stack)


def _comprehension(node, scope, stack):
    first = node.generators[0]
    stack.append(first.iter)  # is evaluated outside
    first.iter = None
    _block(scope, [getattr(node, field) for field in node._fields])


def _class(node, scope, stack):
    entity = _defined("class", node, scope)
    _decorated(node, entity, scope)
    stack += (node.keywords, node.bases, node.decorator_list)
    inner = Scope("class", entity, f"{entity}.", scope, scope.module)
    for decorator in node.decorator_list:
        chain = chain_of(_called(decorator))
        if last_name(chain) in _MAKE_CONSTRUCTORS:
            inner.names["__init__"] = [OPAQUE]
    for base in node.bases:
        if type(base) is ast.Subscript:
            base = base.value
        inner.bases.append(("inherits_from", chain_of(base)))
    for keyword in node.keywords:
        if keyword.arg == "metaclass":
            inner.metaclass = chain_of(keyword.value)
    scope.module.classes[entity] = inner
    scope.module.todo.append((inner, [node.body]))


def _assign(node, scope, stack):
    stack.append(node.value)
    for target in getattr(node, "targets", None) or [node.name]:  # of `type X = ...` one name
        if type(target) in _NAMES:
            _assign_name(scope, target, _meanings(node.value, scope), node.value, stack)
            continue
        stack.append(target)
        if type(target) is ast.Subscript:
            key = ""
            if type(target.slice) is ast.Constant:
                key = str(target.slice.value)
            owner = _owner_of_table(target.value)
            if owner:
                _store(scope, owner, key, _expression(scope, node.value))
            elif key and chain_of(target.value) == "sys.modules":
                _store(scope, f"{key}:", ANYTHING, OPAQUE)


def _assign_name(
    scope: Scope, target: ast.Name | ast.Attribute, meanings: Iterable[Meaning], value: ast.expr | None, stack
) -> None:
    for meaning in meanings:
        _bind(scope, target, meaning)
    _mention(scope, "written", chain_of(target), target)
    if isinstance(target, ast.Attribute):
        stack.append(target.value)
    elif target.id == "__all__":
        _export(scope, value)


def _annotated_assign(node, scope, stack):
    _annotation(scope, node.annotation)
    stack.append(node.value)
    if type(node.target) not in _NAMES:
        return
    meanings = _declared(node.annotation, scope)
    if "TypeAlias" in chain_of(node.annotation) and node.value:
        meanings += _meanings(node.value, scope)
    _assign_name(scope, node.target, meanings, node.value, stack)


def _augmented_assign(node, scope, stack):
    if type(node.target) is ast.Name and node.target.id == "__all__":
        _export(scope, node.value)
    stack += (node.target, node.value)


def _walrus(node, scope, stack):
    outer = scope
    while outer.kind == "block":
        outer = outer.parent
    _assign_name(outer, node.target, _meanings(node.value, scope), node.value, stack)
    stack.append(node.value)


def _except(node, scope, stack):
    caught = _elements(node.type)
    if node.name and len(caught) == 1:
        scope.bind(node.name, _expression(scope, caught[0], "!"))
    elif node.name:
        scope.bind(node.name, OPAQUE)
    stack += (node.body, node.type)


def _return(node, scope, stack):
    if scope.kind == "function":
        for meaning in _meanings(node.value, scope):
            scopes.bind(scope.module.returned, scope.owner, meaning)
    stack.append(node.value)


def _yield(node, scope, stack):
    scopes.bind(scope.module.returned, scope.owner, OPAQUE)  # a generator
    stack.append(node.value)


def _subscript(node, scope, stack):
    name = last_name(chain_of(node.value))
    if name[:1].isupper() or name in ("list", "dict", "tuple", "set", "type"):  # a type as an expression, `Optional[C]`
        _mark(getattr(node.slice, "elts", node.slice), "annotated")
    stack += (node.value, node.slice)


def _global(node, scope, stack):
    scope.declared |= dict.fromkeys(node.names, scope.module.scope)


def _nonlocal(node, scope, stack):
    for name in node.names:
        outer = scope.parent
        while outer.parent and (outer.kind != "function" or name not in outer.names):
            outer = outer.parent
        scope.declared[name] = outer


def _import(node, scope, stack):
    for alias in node.names:
        if alias.asname:
            scope.bind(alias.asname, Expression(f"{alias.name}:", scope))
        else:
            first = alias.name.partition(".")[0]
            scope.bind(first, Expression(f"{first}:", scope))
        _mention(scope, "imported", f"{alias.name}:", alias)


def _import_from(node, scope, stack):
    origin = "." * node.level + (node.module or "")
    for alias in node.names:
        chain = f"{origin}:{alias.name}"
        _mention(scope, "imported", chain, alias)
        if alias.name == "*":
            scope.module.stars.append((origin, node.lineno))
        else:
            scope.bind(alias.asname or alias.name, Expression(chain, scope))


def _capture(node, scope, stack):
    name = node.rest if type(node) is ast.MatchMapping else node.name
    if name:
        scope.bind(name, OPAQUE)
    stack += ast.iter_child_nodes(node)


def _match(node, scope, stack):
    for case in node.cases:
        classes = [part.cls for part in ast.walk(case.pattern) if type(part) is ast.MatchClass]
        _narrow(scope, node.subject, classes)
    stack += (node.cases, node.subject)


def chain_of(node: ast.AST) -> str:
    rest = ""
    while True:
        if isinstance(node, ast.Attribute):
            rest = f".{node.attr}{rest}"
            node = node.value
        elif isinstance(node, ast.Name):
            return node.id + rest
        elif isinstance(node, ast.Call):
            function = chain_of(node.func)
            if last_name(function) in _WITH_ARGUMENT and node.args and "(" not in function:
                return f"{function}({chain_of(node.args[0])}){rest}"
            rest = f"(){rest}"
            node = node.func
        elif isinstance(node, ast.Await):
            rest = f"~{rest}"
            node = node.value
        elif isinstance(node, ast.NamedExpr):
            node = node.value
        else:
            root = _LITERALS.get(type(node))
            if isinstance(node, ast.Constant) and isinstance(node.value, _CONSTANTS):
                root = f"<{type(node.value).__name__}>"
            if root:
                return root + rest
            if rest:
                return f"?.{rest.rpartition('.')[2]}"
            return "?"


def _elements(node: ast.expr) -> list[ast.expr]:
    """Of a tuple its elements."""
    return node.elts if type(node) is ast.Tuple else [node]


def declared_types(node: ast.AST | None) -> list[str]:
    """Every type that an annotation admits, as a chain: of `list[C]` the outer one, "?" for what is no class, "None"."""
    if isinstance(node, _NAMES):
        return [chain_of(node)]
    if isinstance(node, ast.BinOp):
        return declared_types(node.left) + declared_types(node.right)
    if isinstance(node, ast.Subscript):
        outer = chain_of(node.value)
        name = last_name(outer)
        if name in ("type", "Type"):
            return [f"{chain}!^" for chain in declared_types(node.slice)]
        if name == "Literal":
            return ["?"]
        if name not in _TYPE_OPERATORS:
            return [outer]
        parts = _elements(node.slice)
        if name != "Union":
            parts = parts[:1]
        types = []
        for part in parts:
            types += declared_types(part)
        if name == "Optional":
            types.append("None")
        return types
    if isinstance(node, ast.Constant) and node.value is None:
        return ["None"]
    inner = _written_type(node)
    if inner is None:
        return ["?"]
    return declared_types(inner)


_HANDLERS = {
    ast.Call: _call,
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Lambda: _lambda,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated_assign,
    ast.AugAssign: _augmented_assign,
    ast.NamedExpr: _walrus,
    ast.ExceptHandler: _except,
    ast.Return: _return,
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Subscript: _subscript,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Match: _match,
}
_HANDLERS |= dict.fromkeys((ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp), _comprehension)
_HANDLERS |= dict.fromkeys((ast.MatchAs, ast.MatchStar, ast.MatchMapping), _capture)
if hasattr(ast, "TypeAlias"):  # Python 3.12
    _HANDLERS[ast.TypeAlias] = _assign
