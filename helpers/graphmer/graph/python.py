"""What one Python file defines and what it mentions, in one pass over its tree.

A handler of one kind of node gets the node, the `Scope` that it stands in, and the stack of what is still to be read there. What
stands around a name says how it is used: a handler writes this kind into the node before the name is read.
"""

import ast
import contextlib
import itertools
import re
from collections.abc import Iterable

from .knowledge_graph import DEFINED, Entity
from .scopes import (
    NOTHING,
    OPAQUE,
    Expression,
    ImportedModule,
    ImportedName,
    Known,
    Meaning,
    Module,
    Scope,
    Use,
    Value,
    bind,
)

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
_TYPE_OPERATORS = {"Optional", "Union", "Annotated", "ClassVar", "Final", "InitVar", "Required", "NotRequired"}
_TYPING = ("typing", "typing_extensions", "t", "te")  # `import typing as t` is the custom
THIS_MODULE = "<module>"  # as the chain of what is assigned to
_MEMBERS = ("dir", "vars", "getmembers", "globals", "locals", "__dir__", "getmro")
_BY_NAME = {"getattr": "read", "hasattr": "read", "setattr": "written", "delattr": "deleted"}


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
                _name(node, scope)
                if kind is ast.Attribute:
                    stack.append(node.value)
            elif kind is ast.Constant:
                if type(node.value) is str and node.value.isidentifier():
                    module.words[scope.owner].add(node.value)
            elif kind in _HANDLERS:
                _HANDLERS[kind](node, scope, stack)
            elif kind is list:
                stack += node[::-1]
            else:  # of what is no node there is nothing to read
                stack += [getattr(node, name) for name in getattr(kind, "_fields", ())[::-1]]
    todo.clear()
    return module


# ---- mentions


def _name(node: ast.Name | ast.Attribute, scope: Scope) -> None:
    context = type(node.ctx)
    if context is ast.Store or (context is ast.Del and _outlives(node, scope)):
        _bind(
            scope, node, OPAQUE
        )  # a target whose value is not known, or a name that may mean another thing once it is deleted
    elif type(node) is ast.Attribute and node.attr == "__dict__":
        scope.reads_members = True
    if scope.module.uses is not None:
        kinds = {ast.Store: "written", ast.Del: "deleted"}
        _mention(scope, kinds.get(context) or getattr(node, "use", "read"), chain_of(node), node)


def _outlives(node: ast.Name | ast.Attribute, scope: Scope) -> bool:
    """Whether a name that is deleted is more than a local variable or an attribute of `self`."""
    if type(node) is ast.Name:
        return scope.binder(node.id).kind in ("module", "class")
    return type(node.value) is not ast.Name or _class_of_self(scope, node.value.id) is None


def _mention(scope: Scope, kind: str, chain: str, node: ast.AST) -> None:
    if scope.module.uses is not None:
        scope.module.uses.append(Use(scope, kind, chain, node.end_lineno, node.end_col_offset - 1))


def _mark(nodes: Iterable[ast.AST | None], kind: str) -> None:
    """Says how names are used that stand alone in `nodes`; of what is called, that the call is used so."""
    for node in nodes:
        if type(node) is ast.Starred:
            node = node.value
        if type(node) in _NAMES and not hasattr(node, "use"):
            node.use = kind


def _call(node, scope, stack):
    called, arguments = node.func, node.args
    if type(called) in _NAMES:
        called.use = getattr(node, "use", "called")
        name = called.id if type(called) is ast.Name else called.attr
        if name in _MEMBERS:
            scope.reads_members = True
        if name in ("isinstance", "issubclass") and len(arguments) == 2:
            _tested(arguments, scope)
        elif name == "cast" and arguments:
            _annotation(arguments[0], scope, stack)
            arguments = arguments[1:]
        elif name in _BY_NAME and len(arguments) > 1:
            _by_name(name, arguments, scope)
        elif name == "__setattr__" and len(arguments) == 3:
            _by_name("setattr", arguments, scope)
        elif (name in ("exec", "eval") and len(arguments) == 1) or (
            name == "update" and type(called) is ast.Attribute and chain_of(called.value) in ("globals()", "vars()")
        ):
            _replace_anything(scope)
    _mark((*arguments, *(keyword.value for keyword in node.keywords)), "passed")
    words = {keyword.arg for keyword in node.keywords if keyword.arg}
    words |= {
        argument.value for argument in arguments if type(argument) is ast.Constant and type(argument.value) is str
    }
    scope.module.words[chain_of(called).rpartition(".")[2]] |= words
    if getattr(node, "use", "") not in ("raised", "decorates"):  # another relation of the graph says so
        scope.calls.add(chain_of(called))
    stack += (called, *arguments, *(keyword.value for keyword in node.keywords))


def _replace_anything(scope: Scope) -> None:
    """Any name of the module may be bound again."""
    scope.reads_members = True
    _store(scope, THIS_MODULE, "", OPAQUE)


def _tested(arguments: list[ast.expr], scope: Scope) -> None:
    """`isinstance(x, C)`: where it holds `x` is a C, whatever else is known of it."""
    tested, kinds = arguments
    kinds = kinds.elts if type(kinds) is ast.Tuple else [kinds]
    _mark(kinds, "tested")
    _narrow(scope, tested, kinds)


def _narrow(scope: Scope, tested: ast.expr, kinds: list[ast.expr]) -> None:
    names = _names_of(scope, tested)
    if names is not None:
        for kind in kinds:
            chain = chain_of(kind)
            bind(*names, OPAQUE if chain[0] == "?" else Expression(f"{chain}!", scope))


def _names_of(scope: Scope, target: ast.expr) -> tuple[dict, str] | None:
    """Where a local name or an attribute of `self` is bound."""
    if type(target) is ast.Name and target.id in scope.names:
        return scope.names, target.id
    if type(target) is ast.Attribute and type(target.value) is ast.Name:
        owner = _class_of_self(scope, target.value.id)
        return owner and (owner.fields, target.attr)
    return None


def _by_name(function: str, arguments: list[ast.expr], scope: Scope) -> None:
    """`getattr(x, "name")` and its like."""
    target, name = arguments[:2]
    written = name.value if type(name) is ast.Constant and type(name.value) is str else None
    if written:
        _mention(scope, _BY_NAME[function], f"{chain_of(target)}.{written}", name)
    if function in ("setattr", "delattr"):
        meaning = _meaning(arguments[2], scope) if len(arguments) > 2 else OPAQUE
        _store(scope, chain_of(target), written or "", meaning)


def _store(scope: Scope, chain: str, name: str, meaning: Meaning) -> None:
    """An assignment to an attribute of an object that need not be `self`; `name` is "" for a computed one."""
    name = re.sub(r"^_\w*?(?=__\w)", "", name)  # the mangled `_C__name` is `__name` in C
    scope.module.stores.append((Expression(chain, scope), name, meaning))


# ---- bindings


def _meaning(value: ast.AST, scope: Scope) -> Meaning:
    """What a name is bound to by `name = value`."""
    if type(value) is ast.Constant and value.value is None:
        return NOTHING
    chain = chain_of(value)
    return OPAQUE if chain[0] == "?" else Expression(chain, scope)


def _class_of_self(scope: Scope, name: str) -> Scope | None:
    """The class whose method calls its instance so, here or in a function around."""
    while scope.kind in ("function", "block"):
        if name == scope.self_name:
            return scope.parent
        if name in scope.names:
            return None
        scope = scope.parent
    return None


def _bind(scope: Scope, target: ast.Name | ast.Attribute, meaning: Meaning) -> str:
    """The entity that a name, or `self.name` in a method, is; "" of a local variable and of any other attribute."""
    if type(target) is ast.Name:
        name, scope = target.id, scope.binder(target.id)
        bind(scope.names, name, meaning)
    else:
        name = target.attr
        owner = _class_of_self(scope, target.value.id) if type(target.value) is ast.Name else None
        if owner is None:
            _store(scope, chain_of(target.value), name, meaning)
            return ""
        scope = owner
        bind(scope.fields, name, meaning)
    if scope.kind in ("function", "block"):
        return ""
    return scope.define("field" if scope.kind == "class" else "variable", name, _lines(target))


def _lines(node: ast.AST) -> tuple[int, int]:
    return node.lineno, node.end_lineno


def _export(scope: Scope, names: ast.AST) -> None:
    if isinstance(names, ast.List | ast.Tuple):
        module = scope.module
        written = [element for element in names.elts if isinstance(element, ast.Constant)]
        module.exports = (module.exports or set()) | {element.value for element in written}
        for element in written:
            _mention(scope, "exported", str(element.value), element)


# ---- statements and expressions that bind, define or say more than a call


def _function(node, scope, stack):
    in_class = scope.kind == "class"
    name, arguments, module = node.name, node.args, scope.module
    decorators = [chain_of(_called(decorator)) for decorator in node.decorator_list]
    is_overload = any(_is_overload(chain, module) for chain in decorators)
    kind = ("constructor" if name == "__init__" else "method") if in_class else "function"
    first_of_name = f"{scope.prefix}{name}"
    accessors = {f"{name}.{accessor}" for accessor in ("getter", "setter", "deleter")}
    if accessors & {*decorators} or (is_overload and first_of_name in module.defined):
        entity = first_of_name  # the same property, or another signature
    elif first_of_name in module.overloaded:
        entity = first_of_name  # the implementation of overloads
    else:
        entity = _defined(kind, node, scope)
    is_implementation = first_of_name in module.overloaded and not is_overload
    module.overloaded.discard(first_of_name)
    if is_overload:
        module.overloaded.add(first_of_name)
    inner = Scope("function", entity, f"{entity}.<locals>.", scope, module)
    _decorated(node, entity, scope, stack)
    for decorator in node.decorator_list:
        if type(decorator) is ast.Call and chain_of(decorator.func).rpartition(".")[2] == "wraps" and decorator.args:
            wrapped = chain_of(decorator.args[0])
            calls = (chain_of(part.func) for part in ast.walk(node) if type(part) is ast.Call)
            if wrapped in calls:
                module.wrappers[entity] = wrapped

    parameters = [*arguments.posonlyargs, *arguments.args]
    module.parameters.setdefault(entity, [parameter.arg for parameter in parameters])
    if in_class and parameters and "staticmethod" not in decorators:
        first = parameters.pop(0).arg
        is_instance = name not in _CLASS_METHODS and "classmethod" not in decorators
        inner.names[first] = [Known(Value(scope.owner, is_instance, False))]
        inner.self_name = first if is_instance else None
    for rest, chain in ((arguments.vararg, "<tuple>"), (arguments.kwarg, "<dict>")):
        if rest:
            inner.names[rest.arg] = [Expression(chain, inner)]
            inner.parameter(rest.arg, _lines(rest))
            _annotation(rest.annotation, scope, stack)
    for parameter in (*parameters, *arguments.kwonlyargs):
        parameter_id = inner.parameter(parameter.arg, _lines(parameter))
        inner.names[parameter.arg] = _declared(parameter.annotation, scope)
        scope.relations += [(parameter_id, "has_type", chain) for chain in annotated_types(parameter.annotation)]
        _annotation(parameter.annotation, scope, stack)
    defaults = arguments.defaults + arguments.kw_defaults
    _mark(defaults, "default")
    stack += defaults
    _annotation(node.returns, scope, stack)

    returned = annotated_types(node.returns)
    scope.relations += [(entity, "returns", chain) for chain in returned]
    results = module.results.setdefault(entity, [])
    if is_implementation:
        module.annotated.add(entity)
    elif node.returns is not None:
        module.annotated.add(entity)
        for meaning in _declared(node.returns, scope):
            if meaning not in results:
                results.append(meaning)
    if type(node) is ast.AsyncFunctionDef:
        module.asynchronous.add(entity)
    module.todo.append((inner, [node.body]))


def _called(node: ast.expr) -> ast.expr:
    return node.func if type(node) is ast.Call else node


def _is_overload(chain: str, module: Module) -> bool:
    """Whether a decorator is that of `typing`; another of its name makes something of its own."""
    before, _, name = chain.rpartition(".")
    if name != "overload":
        return False
    meanings = module.scope.names.get(before or name, ())
    return any(
        (isinstance(meaning, ImportedName) and meaning.module in _TYPING)
        or (isinstance(meaning, ImportedModule) and meaning.name in _TYPING)
        for meaning in meanings
    )


def _decorated(node: ast.FunctionDef | ast.ClassDef, entity: str, scope: Scope, stack: list) -> None:
    chains = []
    for decorator in node.decorator_list:
        chain = chain_of(decorator)
        chains.append(OPAQUE if chain[0] == "?" else Expression(chain, scope))
        decorator.use = "decorates"
        scope.relations.append((entity, "annotated_with", chain_of(_called(decorator))))
        if type(decorator) is ast.Call:
            _mark(decorator.args, "passed")
    if chains:
        scope.module.decorators.setdefault(entity, chains)
    stack += node.decorator_list


def _defined(kind: str, node: ast.FunctionDef | ast.ClassDef, scope: Scope) -> str:
    entity = scope.binder(node.name).define(kind, node.name, _lines(node))
    scope.bind(node.name, Known(Value(entity)))
    return entity


def _annotation(node: ast.expr | None, scope: Scope, stack: list) -> None:
    """Every name in an annotation, also in one that is a string."""
    if node is None or scope.module.uses is None:
        return
    for part in ast.walk(node):
        if type(part) in _NAMES:
            _mention(scope, "annotated", chain_of(part), part)
        elif type(part) is ast.Constant and type(part.value) is str:
            with contextlib.suppress(SyntaxError, ValueError):
                for inner in ast.walk(ast.parse(part.value.strip(), mode="eval")):
                    if type(inner) in _NAMES:
                        _mention(scope, "annotated", chain_of(inner), part)


def _declared(annotation: ast.AST | None, scope: Scope) -> list[Meaning]:
    """What a name with this annotation may be."""
    if annotation is None:
        return [OPAQUE]
    meanings = []
    for chain in declared_types(annotation):
        if chain == "None":
            meaning = NOTHING
        elif chain.rpartition(".")[2] == "Self" and scope.kind == "class":
            meaning = Known(Value(scope.owner, True, False))
        else:
            meaning = OPAQUE if chain[0] == "?" else Expression(f"{chain}!", scope)
        meanings.append(meaning)
    return meanings


def _lambda(node, scope, stack):
    inner = Scope("block", scope.owner, scope.prefix, scope, scope.module)
    for parameter in ast.walk(node.args):
        if type(parameter) is ast.arg:
            inner.names[parameter.arg] = [OPAQUE]
    defaults = node.args.defaults + node.args.kw_defaults
    _mark(defaults, "default")
    stack += defaults
    scope.module.todo.append((inner, [node.body]))


def _comprehension(node, scope, stack):
    inner = Scope("block", scope.owner, scope.prefix, scope, scope.module)
    results = [node.key, node.value] if type(node) is ast.DictComp else [node.elt]
    _mark(results, "table")
    for condition in (condition for generator in node.generators for condition in generator.ifs):
        _narrow_names(condition, results, inner)
    inner_stack = results
    for number, generator in enumerate(node.generators):
        (inner_stack if number else stack).append(generator.iter)  # the first is evaluated outside
        _loop(generator.target, generator.iter, inner if number else scope, inner, inner_stack)
        inner_stack += generator.ifs
    scope.module.todo.append((inner, inner_stack))


def _class(node, scope, stack):
    entity = _defined("class", node, scope)
    _decorated(node, entity, scope, stack)
    bases = [base.value if type(base) is ast.Subscript else base for base in node.bases]
    _mark(bases, "base")
    stack += node.bases
    inner = Scope("class", entity, f"{entity}.", scope, scope.module)
    inner.bases = [("inherits_from", chain_of(base)) for base in bases]
    for keyword in node.keywords:
        _mark([keyword.value], "passed")
        stack.append(keyword.value)
        if keyword.arg == "metaclass":
            inner.metaclass = chain_of(keyword.value)
    scope.module.classes[entity] = inner
    scope.module.todo.append((inner, [node.body]))


def _assign(node, scope, stack):
    value = node.value
    _mark([value], "aliased")
    stack.append(value)
    for target in getattr(node, "targets", None) or [node.name]:  # of `type X = ...` one name
        if type(target) not in _NAMES:
            if type(target) is ast.Subscript:
                _subscript_store(target, value, scope)
            stack.append(target)
            continue
        _bind(scope, target, _meaning(value, scope))
        _mention(scope, "written", chain_of(target), target)
        if type(target) is ast.Attribute:
            stack.append(target.value)
        elif target.id == "__all__" and scope.kind == "module":
            _export(scope, value)


def _subscript_store(target: ast.Subscript, value: ast.expr, scope: Scope) -> None:
    """`globals()["name"] = value`, `vars(x)[name] = value` and `x.__dict__[name] = value`."""
    key = str(target.slice.value) if type(target.slice) is ast.Constant else ""
    table = target.value
    if type(table) is ast.Attribute and table.attr == "__dict__":
        _store(scope, chain_of(table.value), key, _meaning(value, scope))
    elif type(table) is ast.Call and chain_of(table) in ("globals()", "vars()", "locals()"):
        owner = chain_of(table.args[0]) if table.args else THIS_MODULE
        _store(scope, owner, key, _meaning(value, scope))
    elif chain_of(table) == "sys.modules" and key:
        scope.reads_members = True
        _store(scope, f"{key}:", "", OPAQUE)


def _annotated_assign(node, scope, stack):
    types = annotated_types(node.annotation)
    _annotation(node.annotation, scope, stack)
    if type(node.target) in _NAMES:
        for meaning in _declared(node.annotation, scope):
            entity = _bind(scope, node.target, meaning)
        _mention(scope, "written", chain_of(node.target), node.target)
        if node.value is not None and type(node.target) is ast.Name and node.target.id == "__all__":
            _export(scope, node.value)
        if entity:
            scope.relations += [(entity, "has_type", chain) for chain in types]
        if types and types[0].rpartition(".")[2] == "TypeAlias" and node.value:
            _bind(scope, node.target, _meaning(node.value, scope))
    if node.value:
        _mark([node.value], "aliased")
        stack.append(node.value)


def _augmented_assign(node, scope, stack):
    if type(node.target) is ast.Name and node.target.id == "__all__":
        _export(scope, node.value)
    _mark([node.value], "read")
    stack += (node.target, node.value)


def _walrus(node, scope, stack):
    _mention(scope, "written", node.target.id, node.target)
    _mark([node.value], "aliased")
    stack.append(node.value)
    meaning = _meaning(node.value, scope)
    while scope.kind == "block":
        scope = scope.parent
    _bind(scope, node.target, meaning)


def _except(node, scope, stack):
    caught = node.type.elts if type(node.type) is ast.Tuple else [node.type] if node.type else []
    _mark(caught, "caught")
    chains = [chain_of(kind) for kind in caught]
    scope.relations += [(scope.owner, "catches", chain) for chain in chains if chain != "?"]
    if node.name:
        meaning = Expression(f"{chains[0]}!", scope) if len(chains) == 1 else OPAQUE
        scope.bind(node.name, meaning)
    stack += (node.body, *caught)


def _raise(node, scope, stack):
    for raised in (node.exc, node.cause):
        if raised is None:
            continue
        raised.use = "raised"
        if raised is node.exc:
            chain = chain_of(
                _called(raised)
            )  # `raises` says it all: an `instantiates` beside it would give its answer away
            if chain != "?":
                scope.relations.append((scope.owner, "raises", chain))
        stack.append(raised)


def _return(node, scope, stack):
    if scope.kind == "function":
        meaning = NOTHING if node.value is None else _meaning(node.value, scope)
        bind(scope.module.returned, scope.owner, meaning)
        if node.value is not None:
            scope.relations.append((scope.owner, "returns a value", chain_of(node.value)))
    if node.value is not None:
        _mark([node.value], "returned")
        stack.append(node.value)


def _yield(node, scope, stack):
    outer = scope
    while outer.kind == "block":
        outer = outer.parent
    bind(scope.module.returned, outer.owner, OPAQUE)  # a generator
    if node.value is not None:
        _mark([node.value], "yielded")
        stack.append(node.value)


def _await(node, scope, stack):
    node.value.use = "awaited"
    stack.append(node.value)


def _with(node, scope, stack):
    stack.append(node.body)
    entered = ".__enter__()" if type(node) is ast.With else ".__aenter__()~"
    for item in node.items:
        item.context_expr.use = "with"
        if item.optional_vars:
            _assign_chain(item.optional_vars, chain_of(item.context_expr), entered, scope, stack)
        stack.append(item.context_expr)


def _assign_chain(target: ast.expr, chain: str, rest: str, scope: Scope, stack: list) -> None:
    """Binds a target to a chain and the rest of it."""
    if type(target) in _NAMES:
        _bind(scope, target, OPAQUE if chain[0] == "?" else Expression(chain + rest, scope))
        _mention(scope, "written", chain_of(target), target)
        target = target.value if type(target) is ast.Attribute else []
    stack.append(target)


def _for(node, scope, stack):
    stack += (node.orelse, node.body)
    _loop(node.target, node.iter, scope, scope, stack)
    stack.append(node.iter)


def _loop(target: ast.expr, iterated: ast.expr, outer: Scope, scope: Scope, stack: list) -> None:
    """Binds the variables of a loop in `scope` to elements of what `outer` reads."""
    chain = chain_of(iterated)
    if type(target) is ast.Tuple and len(target.elts) == 2 and chain[0] != "?":
        first, second = target.elts
        if chain.endswith(".items()"):
            chain = chain.removesuffix(".items()")
            _assign_chain(first, chain, "*", scope, stack)
            _assign_chain(second, chain, ".values()*", scope, stack)
            return
        if chain == "enumerate()" and iterated.args:
            stack.append(first)
            _assign_chain(second, chain_of(iterated.args[0]), "*", scope, stack)
            return
    _assign_chain(target, chain, "*", scope, stack)


def _if(node, scope, stack):
    _narrow_names(node.test, [node.body], scope)
    stack += (node.orelse, node.body, node.test)


def _and(node, scope, stack):
    if type(node.op) is ast.And:
        for number, value in enumerate(node.values):
            _narrow_names(value, node.values[number + 1 :], scope)
    stack += node.values[::-1]


def _narrow_names(test: ast.expr, body: list, scope: Scope) -> None:
    """Within what only runs where `isinstance(x, C)` holds, a local `x` that is not bound again is a C."""
    tests = test.values if type(test) is ast.BoolOp and type(test.op) is ast.And else [test]
    for one in tests:
        if type(one) is not ast.Call or chain_of(one.func) != "isinstance" or len(one.args) != 2:
            continue
        name, chain = one.args[0], chain_of(one.args[1])
        if type(name) is not ast.Name or name.id not in scope.names or scope.kind == "module" or chain[0] in "?<":
            continue
        parts = [part for node in body for part in _walk(node) if type(part) is ast.Name and part.id == name.id]
        if all(type(part.ctx) is ast.Load for part in parts):
            for part in parts:
                part.narrowed = f"{chain}!"


def _walk(node: ast.AST | list) -> Iterable[ast.AST]:
    return itertools.chain.from_iterable(map(ast.walk, node)) if type(node) is list else ast.walk(node)


def _table(node, scope, stack):
    parts = [part for part in (*node.keys, *node.values) if part] if type(node) is ast.Dict else node.elts
    if type(getattr(node, "ctx", None)) is not ast.Store:
        _mark(parts, "table")
    stack += parts


def _subscript(node, scope, stack):
    if type(node.value) in _NAMES:  # of a type that is an expression, `Optional[C]`
        name = node.value.id if type(node.value) is ast.Name else node.value.attr
        if name[:1].isupper() or name in ("list", "dict", "tuple", "set", "type"):
            parts = node.slice.elts if type(node.slice) is ast.Tuple else [node.slice]
            _mark(parts, "annotated")
            stack += (node.value, *parts)
            return
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
        scope.module.imports.append((alias.name, None))
        first = alias.name.partition(".")[0]
        scope.bind(alias.asname or first, ImportedModule(alias.name if alias.asname else first))
        _mention(scope, "imported", f"{alias.name}:", alias)


def _import_from(node, scope, stack):
    origin = "." * node.level + (node.module or "")
    for alias in node.names:
        scope.module.imports.append((origin, alias.name))
        if alias.name == "*":
            scope.module.stars.append((origin, node.lineno))
        else:
            scope.bind(alias.asname or alias.name, ImportedName(origin, alias.name))
            _mention(scope, "imported", f"{origin}:{alias.name}", alias)


def _capture(node, scope, stack):
    if name := node.rest if type(node) is ast.MatchMapping else node.name:
        scope.bind(name, OPAQUE)
    stack += ast.iter_child_nodes(node)


def _match(node, scope, stack):
    for case in node.cases:
        kinds = [part.cls for part in ast.walk(case.pattern) if type(part) is ast.MatchClass]
        _mark(kinds, "matched")
        _narrow(scope, node.subject, kinds)
    stack += (node.subject, *node.cases)


def chain_of(node: ast.AST) -> str:
    names = ""
    while True:
        kind = type(node)
        if kind is ast.Attribute:
            names = f".{node.attr}{names}"
            node = node.value
        elif kind is ast.Name:
            return getattr(node, "narrowed", node.id) + names
        elif kind is ast.Subscript:
            if type(node.slice) is ast.Slice:
                return "?." + names.rpartition(".")[2] if names else "?"
            names = f"@{names}"
            node = node.value
        elif kind is ast.Call:
            if type(node.func) is ast.Name and node.func.id == "super" and node.args:
                return f"super({chain_of(node.args[0])}){names}"
            names = f"(){names}"
            node = node.func
        elif kind is ast.Await:
            names = f"~{names}"
            node = node.value
        elif kind is ast.NamedExpr:
            node = node.value
        else:
            root = _CONSTANTS.get(type(node.value)) if kind is ast.Constant else _LITERALS.get(kind)
            if root is None:
                return "?." + names.rpartition(".")[2] if names else "?"
            return root + names


def annotated_types(node: ast.AST | None) -> list[str]:
    """Chains of the types that an annotation names; of `list[int]` only the outer one, of `X | None` only X."""
    if node is None:
        return []
    chains = (chain.partition("[")[0] for chain in declared_types(node))
    return [
        chain for chain in chains if chain not in ("?", "None") and chain.rpartition(".")[2] not in ("type", "Type")
    ]


def declared_types(node: ast.AST) -> list[str]:
    """Every type that an annotation admits, as a chain: `list[C]` with what it holds, "?" for what is no class, "None"."""
    kind = type(node)
    if kind is ast.Name or kind is ast.Attribute:
        return [chain_of(node)]
    if kind is ast.BinOp:
        return declared_types(node.left) + declared_types(node.right)
    if kind is ast.Subscript:
        outer = chain_of(node.value)
        parts = node.slice.elts if type(node.slice) is ast.Tuple else [node.slice]
        name = outer.rpartition(".")[2]
        if name in _TYPE_OPERATORS:
            types = [chain for part in parts[: None if name == "Union" else 1] for chain in declared_types(part)]
            return [*types, "None"] if name == "Optional" else types
        if name == "Literal":
            return ["?"]
        inner = [declared_types(part) for part in parts]
        if all(len(types) == 1 for types in inner):
            return [f"{outer}[{','.join(types[0] for types in inner)}]"]
        return [outer]
    if kind is ast.Constant:
        if node.value is None:
            return ["None"]
        if type(node.value) is str:
            with contextlib.suppress(SyntaxError, ValueError):
                return declared_types(ast.parse(node.value.strip(), mode="eval").body)
        return ["..."] if node.value is ... else ["?"]
    return ["?"]


_HANDLERS = {
    ast.Call: _call,
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
    ast.Yield: _yield,
    ast.YieldFrom: _yield,
    ast.Await: _await,
    ast.For: _for,
    ast.AsyncFor: _for,
    ast.If: _if,
    ast.IfExp: _if,
    ast.BoolOp: _and,
    ast.With: _with,
    ast.AsyncWith: _with,
    ast.List: _table,
    ast.Tuple: _table,
    ast.Set: _table,
    ast.Dict: _table,
    ast.Subscript: _subscript,
    ast.Global: _global,
    ast.Nonlocal: _nonlocal,
    ast.Import: _import,
    ast.ImportFrom: _import_from,
    ast.Match: _match,
    ast.MatchAs: _capture,
    ast.MatchStar: _capture,
    ast.MatchMapping: _capture,
}
if hasattr(ast, "TypeAlias"):  # Python 3.12
    _HANDLERS[ast.TypeAlias] = _assign
