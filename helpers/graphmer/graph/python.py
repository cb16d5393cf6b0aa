"""What one Python file defines and what it mentions, in one pass over its tree.

A handler of one kind of node gets the node, the `Scope` that it stands in, and the stack of what is still to be read there.
"""

import ast
import contextlib

from .knowledge_graph import DEFINED, Entity
from .scopes import NOTHING, OPAQUE, Module, Scope, bind

_CLASS_METHODS = {"__new__", "__init_subclass__", "__class_getitem__"}

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
_NAMES = (ast.Name, ast.Attribute)
_TYPE_OPERATORS = {"Optional", "Union", "Annotated", "ClassVar", "Final", "InitVar", "Required", "NotRequired", "Type"}


def read_python(module: Module, content: bytes) -> Module:
    """Fills `module`. Raises what `ast.parse` does."""
    tree, kind = ast.parse(content), "package" if module.is_package else "module"
    lines = (1, content.count(b"\n") + 1)
    module.entities.append(Entity(module.id, kind, module.id.rpartition(".")[2], DEFINED, module.id, *lines))
    todo = module.todo
    todo.append((module.scope, [tree.body]))
    for scope, stack in todo:  # grows: functions and classes are read after what surrounds them
        while stack:
            node = stack.pop()
            kind = type(node)
            if kind in _NAMES:
                if type(node.ctx) is ast.Store:  # in a target whose value is not known
                    _bind(scope, node, OPAQUE)
                if kind is ast.Attribute:
                    stack.append(node.value)
            elif kind is ast.Constant:
                continue
            elif kind is ast.Call:
                called = node.func
                scope.calls[chain_of(called)].append(called.end_lineno)
                stack += (called, *node.args, *node.keywords)
            elif kind in _HANDLERS:
                _HANDLERS[kind](node, scope, stack)
            elif kind is list:
                stack += node[::-1]
            else:  # of what is no node there is nothing to read
                stack += [getattr(node, name) for name in getattr(kind, "_fields", ())[::-1]]
    todo.clear()
    return module


def _meaning(value: ast.AST, scope: Scope) -> tuple:
    """What a name is bound to by `name = value`."""
    if type(value) is ast.Constant and value.value is None:
        return NOTHING
    chain = chain_of(value)
    return OPAQUE if chain[0] == "?" else ("chain", chain, scope)


def _bind(scope: Scope, target: ast.Name | ast.Attribute, meaning: tuple) -> str:
    """The entity that a name, or `self.name` in a method, is; "" of a local variable and of any other attribute."""
    if type(target) is ast.Name:
        name, scope = target.id, scope.binder(target.id)
        bind(scope.names, name, meaning)
    elif type(target.value) is ast.Name and target.value.id == scope.self_name:
        name, scope = target.attr, scope.parent
        bind(scope.fields, name, meaning)
    else:
        return ""
    if scope.kind == "function":
        return ""
    return scope.define("field" if scope.kind == "class" else "variable", name, _lines(target))


def _used(node: ast.AST, stack: list) -> str:
    """Chain of a decorator or of what is raised, called or not; what else is in it is read as anything else."""
    if type(node) is not ast.Call:
        stack.append(node)
        return chain_of(node)
    stack += node.args + node.keywords
    return chain_of(node.func)


def _decorated(node: ast.FunctionDef | ast.ClassDef, entity: str, scope: Scope, stack: list) -> set[str]:
    """Last names of the decorators of a definition."""
    chains = [_used(decorator, stack) for decorator in node.decorator_list]
    scope.uses += [(entity, "annotated_with", chain) for chain in chains]
    return {chain.rpartition(".")[2] for chain in chains}


def _lines(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.end_lineno


def _export(module: Module, names: ast.AST) -> None:
    if isinstance(names, ast.List | ast.Tuple):
        written = {element.value for element in names.elts if isinstance(element, ast.Constant)}
        module.exports = (module.exports or set()) | written


# ---- statements and expressions that bind, define or say more than a call


def _function(node, scope, stack):
    in_class = scope.kind == "class"
    name, arguments = node.name, node.args
    kind = ("constructor" if name == "__init__" else "method") if in_class else "function"
    entity = _defined(kind, node, scope)
    inner = Scope("function", entity, f"{entity}.<locals>.", scope, scope.module)
    decorators = _decorated(node, entity, scope, stack)
    if decorators & {"property", "cached_property"}:
        scope.module.properties.add(entity)

    parameters = [*arguments.posonlyargs, *arguments.args]
    if in_class and parameters and "staticmethod" not in decorators:
        first = parameters.pop(0).arg
        is_instance = name not in _CLASS_METHODS and "classmethod" not in decorators
        inner.names[first] = ("known", scope.owner, is_instance)
        inner.self_name = first if is_instance else None
    for rest, chain in ((arguments.vararg, "<tuple>"), (arguments.kwarg, "<dict>")):
        if rest:
            inner.names[rest.arg] = ("chain", chain, inner)
            inner.parameter(rest.arg, _lines(rest))
    for parameter in (*parameters, *arguments.kwonlyargs):
        parameter_id = inner.parameter(parameter.arg, _lines(parameter))
        inner.names[parameter.arg], uses = _annotated(parameter.annotation, scope)
        scope.uses += [(parameter_id, "has_type", chain) for chain in uses]
    stack += arguments.defaults + arguments.kw_defaults

    returned = annotated_types(node.returns)
    scope.uses += [(entity, "returns", chain) for chain in returned]
    if len(returned) == 1 and type(node) is ast.FunctionDef:  # calling a coroutine function returns no such thing
        scope.module.results[entity] = (scope, f"{returned[0]}()")
    scope.module.todo.append((inner, [node.body]))


def _defined(kind: str, node: ast.FunctionDef | ast.ClassDef, scope: Scope) -> str:
    entity = scope.define(kind, node.name, _lines(node))
    scope.bind(node.name, ("known", entity, False))
    return entity


def _annotated(annotation: ast.AST | None, scope: Scope) -> tuple[tuple, list[str]]:
    """What a name with this annotation is bound to, and the chains of all types that it names."""
    types = annotated_types(annotation)
    return ("chain", f"{types[0]}()", scope) if len(types) == 1 else OPAQUE, types


def _lambda(node, scope, stack):
    inner = Scope("block", scope.owner, scope.prefix, scope, scope.module)
    inner.names |= {each.arg: OPAQUE for each in ast.iter_child_nodes(node.args) if type(each) is ast.arg}
    stack += node.args.defaults + node.args.kw_defaults
    scope.module.todo.append((inner, [node.body]))


def _comprehension(node, scope, stack):
    inner = Scope("block", scope.owner, scope.prefix, scope, scope.module)
    inner_stack = [node.key, node.value] if type(node) is ast.DictComp else [node.elt]
    for number, generator in enumerate(node.generators):
        (inner_stack if number else stack).append(generator.iter)  # the first is evaluated outside
        inner_stack += (generator.target, *generator.ifs)
    scope.module.todo.append((inner, inner_stack))


def _class(node, scope, stack):
    entity = _defined("class", node, scope)
    _decorated(node, entity, scope, stack)
    stack += node.bases + node.keywords
    classes = scope.module.classes
    if entity not in classes:
        inner = classes[entity] = Scope("class", entity, f"{entity}.", scope, scope.module)
        bases = [chain_of(base.value if type(base) is ast.Subscript else base) for base in node.bases]
        inner.bases = [("inherits_from", chain) for chain in bases]
    scope.module.todo.append((classes[entity], [node.body]))


def _assign(node, scope, stack):
    value = node.value
    stack.append(value)
    for target in getattr(node, "targets", None) or [node.name]:  # of `type X = ...` one name
        if type(target) not in _NAMES:
            stack.append(target)
            continue
        _bind(scope, target, _meaning(value, scope))
        if type(target) is ast.Attribute:
            stack.append(target.value)
        elif target.id == "__all__" and scope.kind == "module":
            _export(scope.module, value)


def _annotated_assign(node, scope, stack):
    meaning, types = _annotated(node.annotation, scope)
    if type(node.target) in _NAMES and (entity := _bind(scope, node.target, meaning)):
        scope.uses += [(entity, "has_type", chain) for chain in types]
    if node.value:
        stack.append(node.value)


def _augmented_assign(node, scope, stack):
    if type(node.target) is ast.Name and node.target.id == "__all__":
        _export(scope.module, node.value)
    stack += (*ast.iter_child_nodes(node.target), node.value)  # not the target itself: it is bound elsewhere


def _walrus(node, scope, stack):
    while scope.kind == "block":
        scope = scope.parent
    _bind(scope, node.target, _meaning(node.value, scope))
    stack.append(node.value)


def _except(node, scope, stack):
    caught = node.type.elts if type(node.type) is ast.Tuple else [node.type] if node.type else []
    chains = [chain_of(kind) for kind in caught]
    scope.uses += [(scope.owner, "catches", chain) for chain in chains if chain != "?"]
    if node.name:
        meaning = ("chain", f"{chains[0]}()", scope) if len(chains) == 1 else OPAQUE
        scope.bind(node.name, meaning)
    stack.append(node.body)


def _raise(node, scope, stack):
    if node.exc is not None:
        chain = _used(node.exc, stack)  # `raises` says it all: an `instantiates` beside it would give its answer away
        if chain != "?":
            scope.uses.append((scope.owner, "raises", chain))
    if node.cause:
        stack.append(node.cause)


def _return(node, scope, stack):
    if node.value is not None:
        if scope.kind == "function":
            scope.uses.append((scope.owner, "returns a value", chain_of(node.value)))
        stack.append(node.value)


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
        scope.module.imports.append((alias.name, None))
        first = alias.name.partition(".")[0]
        scope.bind(alias.asname or first, ("module", alias.name if alias.asname else first))


def _import_from(node, scope, stack):
    origin = "." * node.level + (node.module or "")
    for alias in node.names:
        scope.module.imports.append((origin, alias.name))
        if alias.name == "*":
            scope.module.stars.append(origin)
        else:
            scope.bind(alias.asname or alias.name, ("member", origin, alias.name))


def _capture(node, scope, stack):
    if name := node.rest if type(node) is ast.MatchMapping else node.name:
        scope.bind(name, OPAQUE)
    stack += ast.iter_child_nodes(node)


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
    kind = type(node)
    if kind is ast.Name or kind is ast.Attribute:
        return [chain_of(node)]
    if kind is ast.BinOp:
        return annotated_types(node.left) + annotated_types(node.right)
    if kind is ast.Subscript:
        outer, inner = chain_of(node.value), node.slice
        name = outer.rpartition(".")[2]
        if name not in _TYPE_OPERATORS:
            return [] if name == "Literal" else [outer]
        parts = inner.elts if type(inner) is ast.Tuple else [inner]
        return [chain for part in parts[: None if name == "Union" else 1] for chain in annotated_types(part)]
    if kind is ast.Constant and type(node.value) is str:
        with contextlib.suppress(SyntaxError, ValueError):
            return annotated_types(ast.parse(node.value.strip(), mode="eval").body)
    return []


_HANDLERS = {
    ast.FunctionDef: _function,
    ast.AsyncFunctionDef: _function,
    ast.ClassDef: _class,
    ast.Lambda: _lambda,
    ast.ListComp: _comprehension,
    ast.SetComp: _comprehension,
    ast.DictComp: _comprehension,
    ast.GeneratorExp: _comprehension,
    ast.Assign: _assign,
    ast.AnnAssign: _annotated_assign,
    ast.AugAssign: _augmented_assign,
    ast.NamedExpr: _walrus,
    ast.ExceptHandler: _except,
    ast.Raise: _raise,
    ast.Return: _return,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.MatchAs: _capture,
    ast.MatchStar: _capture,
    ast.MatchMapping: _capture,
}
if hasattr(ast, "TypeAlias"):  # Python 3.12
    _HANDLERS[ast.TypeAlias] = _assign
