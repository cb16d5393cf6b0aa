"""What a name in source code stands for: scopes, imports, inheritance. Second pass, after every file was read.

Nothing is guessed. A chain has *targets*: every definition that may be meant, and whether these are all of them. A target is known
where it is the only one; what several bindings, branches, subclasses or assignments from elsewhere may put in its place stands
beside it. Annotations are believed.
"""

import builtins
import contextlib
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import BuiltinFunctionType
from typing import NamedTuple

from .imports import Imports
from .knowledge_graph import EXTERNAL, UNKNOWN, Entity, last_name
from .python import ANYTHING, THIS_MODULE
from .scopes import NOTHING, OPAQUE, Expression, Meaning, Module, Scope, Value


def _is_builtin(name: str) -> bool:
    """Whether `builtins` has it of its own: a notebook adds to them and replaces `input`."""
    if name in ("input", "__import__"):
        return True
    return isinstance(vars(builtins)[name], type | BuiltinFunctionType) and not name.startswith("_")


_BUILTINS = {name: value for name, value in vars(builtins).items() if _is_builtin(name)}

CLASSES = ("class", "exception", "interface", "enum", "annotation")
FUNCTIONS = ("function", "method", "constructor", "test")
_PROPERTIES = {"builtins.property", "functools.cached_property", "abc.abstractproperty", "enum.property"}
# Decorators that give back what they decorate, or what does the same when it is called and returns the same.
_TRANSPARENT = {
    *_PROPERTIES, "builtins.staticmethod", "builtins.classmethod", "functools.lru_cache", "functools.cache", "functools.wraps", "functools.total_ordering",
    "abc.abstractmethod", "abc.abstractclassmethod", "abc.abstractstaticmethod", "typing.overload", "typing.final",
    "typing.override", "typing.no_type_check", "typing.runtime_checkable", "typing.dataclass_transform",
    "typing_extensions.overload", "typing_extensions.final", "typing_extensions.override", "typing_extensions.deprecated",
    "typing_extensions.runtime_checkable", "typing_extensions.dataclass_transform", "warnings.deprecated",
    "dataclasses.dataclass", "attr.s", "attr.attrs", "attr.define", "attr.frozen", "attrs.define", "attrs.frozen",
    "enum.unique", "atexit.register", "types.coroutine",
}  # fmt: skip
# What gives its first argument, a copy of it, or what does the same when it is called; and the method that decides instead.
_GIVING_ARGUMENT = dict.fromkeys(("functools.partial", "builtins.staticmethod", "builtins.classmethod"), "<none>")
_GIVING_ARGUMENT |= {"copy.copy": "__copy__", "copy.deepcopy": "__deepcopy__"}
# Those whose calls run what they decorate, and give something else.
_RUNNING = {"contextlib.contextmanager", "contextlib.asynccontextmanager", "functools.update_wrapper"}
# Bases outside of the sources that bring no method which a class in them could need.
_PLAIN_BASES = {
    "typing.Generic",
    "typing.Protocol",
    "typing_extensions.Protocol",
    "typing_extensions.Generic",
    "abc.ABC",
}


_SUPER = re.compile(r"super\([^)]*\)")


class Targets(NamedTuple):
    """What a chain may stand for; complete: it is one of these for certain."""

    values: tuple[Value, ...] = ()
    complete: bool = False

    @property
    def one(self) -> Value | None:
        if self.complete and len(self.values) == 1:
            return self.values[0]
        return None

    def map(self, function: "Callable[[Value], Targets]") -> "Targets":
        """The targets that a function gives for the values."""
        if not self.values:
            return self
        joined = join([function(value) for value in self.values])
        return joined._replace(complete=joined.complete and self.complete)


OPEN = Targets()
NONE_YET = Targets((), True)  # while what depends on itself is looked up
_MOST_STEPS, _DEEPEST = 3_000, 50  # of one look-up; what takes more stays open


def only(value: Value | None) -> Targets:
    if value is None:
        return OPEN
    return Targets((value,), True)


def join(parts: list[Targets]) -> Targets:
    """All that one of the parts may stand for."""
    is_exact: dict[tuple[str, bool], bool] = {}
    for part in parts:
        for value in part.values:
            key = (value.entity, value.is_instance)
            is_exact[key] = value.exact and is_exact.get(key, True)
    values = [Value(*key, exact) for key, exact in is_exact.items()]
    return Targets(tuple(values), bool(parts) and all(part.complete for part in parts))


class Resolver:
    """Meaning of chains in the scopes of Python files."""

    def __init__(self, modules: dict[str, Module], imports: Imports):
        self.modules, self.imports = modules, imports
        self.files = {module.path: module for module in modules.values()}
        self.folders: dict[str, str] = {}  # entity of a folder without __init__.py -> its path
        self.classes: dict[str, Scope] = {}
        self.defined: dict[str, Entity] = {}
        self.module_of: dict[str, Module] = {}  # of a function or class
        for module in modules.values():
            self.classes |= module.classes
            for entity in module.entities:
                self.defined.setdefault(entity.id, entity)
                self.module_of[entity.id] = module
        self.external: dict[str, Entity] = {}
        self.definers: dict[str, set[str]] = defaultdict(set)  # attribute -> the classes that bind it
        for owner, scope in self.classes.items():
            for name in (*scope.names, *scope.fields):
                self.definers[name].add(owner)
        # Assignments from elsewhere: to an attribute of what is known, to one of something else, and under computed names.
        self.patched: dict[tuple[str, str, bool], list[Meaning]] = defaultdict(list)
        self.loose: dict[str, list[Meaning]] = defaultdict(list)
        self.tainted: set[str] = set()  # any of its attributes may be another
        self._forget()
        self._read_stores()
        self._forget()

    def _forget(self) -> None:
        self.values: dict[tuple, Targets | None] = {}  # of chains in scopes, of members of classes and of modules
        self.active: dict[tuple, tuple[int, Targets | None]] = {}  # depth, and what is assumed
        self.lowest = sys.maxsize  # of the depths that the present look-up depends on
        self.steps = 0
        self.orders: dict[str, list[str]] = {}
        self.kinds: dict[str, type] = {"?": type("?", (), {})}
        self.passing: dict[str, int] = {}
        self._below: dict[str, list[str]] | None = None
        self._subclasses: dict[str, list[str]] = {}

    def _read_stores(self) -> None:
        for module in self.modules.values():
            for target, name, meaning in module.stores:
                scope = target.scope
                owners = only(Value(module.id))
                if target.chain != THIS_MODULE:
                    owners = self.value(scope, target.chain)
                is_any = name == ANYTHING or (not name and scope.reads_members)
                words = {name}
                if not name:
                    words = self._computed_names(scope)
                for owner in owners.values:
                    if name == "__class__":
                        kind = self.meaning(meaning).one
                        is_any = kind is None or kind.entity != owner.entity
                    if is_any:
                        self.tainted.add(owner.entity)
                    elif owner.entity in self.defined and name != "__class__":
                        for word in words:
                            self._store(owner, word, meaning)
                if not owners.complete:
                    for word in words:
                        self.loose[word].append(meaning)

    def _computed_names(self, scope: Scope) -> set[str]:
        """What a computed name can be in a function: its own strings, and those that calls of it give."""
        name = last_name(scope.owner.removesuffix(".__init__"))
        words: set[str] = set()
        for module in self.modules.values():
            words.update(module.words.get(scope.owner, ()), module.words.get(name, ()))
        return words

    def _store(self, owner: Value, name: str, meaning: Meaning) -> None:
        entities = [owner.entity]
        if owner.entity in self.classes and not (owner.exact or owner.is_instance):
            entities += self.subclasses(owner.entity)
        for entity in entities:
            self.patched[entity, name, owner.is_instance].append(meaning)
            if entity in self.classes:
                self.definers[name].add(entity)

    # ---- names

    def value(self, scope: Scope, chain: str) -> Targets:
        """What a chain may stand for where `scope` reads it."""
        return self._solve((scope, chain), lambda: self._value(scope, chain))  # type: ignore[return-value]  # as `_value`

    def _solve(self, key: tuple, look_up: Callable[[], Targets | None]) -> Targets | None:
        """The least targets that agree with themselves, as `a = b` may stand beside `b = f(a)`.

        What depends on one that is still looked up is kept only with that one.
        """
        if key in self.values:
            return self.values[key]
        if key in self.active:
            depth, assumed = self.active[key]
            self.lowest = min(self.lowest, depth)
            return assumed
        depth, lowest, assumed = len(self.active), self.lowest, NONE_YET
        self.steps += 1
        if depth == 0:
            self.steps = 0
        if self.steps > _MOST_STEPS or depth > _DEEPEST:
            return OPEN
        try:
            for _ in range(5):
                self.lowest = sys.maxsize
                self.active[key] = (depth, assumed)
                targets = look_up()
                if self.lowest > depth or targets == assumed:
                    break
                assumed = targets
            else:
                targets = targets and targets._replace(complete=False)
        finally:
            del self.active[key]
            own = self.lowest
            self.lowest = lowest
            if own < depth:
                self.lowest = min(lowest, own)
        if own >= depth:
            self.values[key] = targets
        return targets

    def _value(self, scope: Scope, chain: str) -> Targets:
        last = chain[-1]
        if last == ")":
            return self._value_of_call(scope, chain)
        if last == "!":
            return self.value(scope, chain[:-1]).map(self._declared)
        if last == "^":
            instances = self.value(scope, chain[:-1])
            return instances.map(lambda instance: only(instance._replace(is_instance=False)))
        if chain.endswith("()~"):
            return self.value(scope, chain[:-3]).map(lambda called: self._returned(called, is_awaited=True))
        if last == "~" or chain[0] == "?":
            return OPEN
        if ":" in chain:
            origin, _, name = chain.partition(":")
            if name:
                return self.imported(origin, name, scope.module)
            return only(self.module(origin, scope.module))
        before, dot, name = chain.rpartition(".")
        if not dot:
            return self._name(scope, chain)
        if _SUPER.fullmatch(before):
            return self._inherited(scope, before[6:-1], name)
        return self.value(scope, before).map(lambda owner: self._attribute(owner, name))

    def _value_of_call(self, scope: Scope, chain: str) -> Targets:
        if chain.endswith("()"):
            called, argument = chain[:-2], ""
        else:
            called, _, argument = chain[:-1].partition("(")
        targets = self.value(scope, called)
        method = targets.one and _GIVING_ARGUMENT.get(targets.one.entity)
        if argument and method:
            return self.value(scope, argument).map(lambda value: self._by_method(value, method))
        if called in ("super", "type"):  # what `type(x)` gives is some class, not an instance of `type`
            return OPEN
        return targets.map(self._result)

    def mentioned(self, scope: Scope, chain: str) -> Targets:
        """The definitions that a chain may name: of a property itself, not what it returns."""
        before, dot, name = chain.rpartition(".")
        if not dot or chain[-1] in ")!~" or chain[0] == "?" or ":" in chain or _SUPER.fullmatch(before):
            targets = self.value(scope, chain)
        else:
            targets = self.value(scope, before).map(lambda owner: self.attribute(owner, name))
        return targets._replace(values=self._uncovered(targets.values))

    def _uncovered(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        """Without methods that override another of the values, which stands for them, too; a static one does not."""
        covered: set[str] = set()
        for value in values:
            if not value.exact and not self._is_static(value.entity):
                covered.update(self.overriders(value.entity))
        return tuple(value for value in values if value.entity not in covered)

    def _is_static(self, method: str) -> bool:
        owner = self.classes.get(method.rpartition(".")[0])
        return owner is not None and Expression("staticmethod", owner) in self._decorators(method)

    def _name(self, scope: Scope, name: str) -> Targets:
        if name[0] == "<":
            value = self._builtin(name[1:-1])
            return only(value and value._replace(is_instance=True))
        binder = self.binder(scope, name)
        if binder is None or binder.kind == "module":
            return self._module_member(scope.module, name) or only(self._builtin(name))
        targets = self._meanings(binder.names[name])
        if binder.kind == "class":  # before its line a name in a class is that of the module
            outer = self._name(binder.outer, name)
            if outer.values:
                return join([targets, outer])
        return targets

    def binder(self, scope: Scope, name: str) -> Scope | None:
        """The scope whose name it is."""
        looking: Scope | None = scope.declared.get(name, scope)
        while looking and (name not in looking.names or (looking is not scope and looking.kind == "class")):
            looking = looking.parent
        return looking

    def _meanings(self, meanings: Iterable[Meaning]) -> Targets:
        return join([self.meaning(meaning) for meaning in meanings if meaning is not NOTHING])

    def meaning(self, meaning: Meaning) -> Targets:
        if isinstance(meaning, Expression):
            return self.value(meaning.scope, meaning.chain)
        if not isinstance(meaning, Value):
            return OPEN
        is_complete = meaning.is_instance or not meaning.exact or self.passes(meaning.entity) > 0
        return Targets((meaning,), is_complete)

    def module(self, name: str, importer: Module) -> Value | None:
        """A module by the name that an import uses; None where two could be meant."""
        path = self.imports.find(name, importer.path)
        if path is None:
            return None
        if path:
            return self._at(path)
        below = name.lstrip(".")
        dots = name[: len(name) - len(below)]
        if not below:  # `from . import x` in the folder of all sources
            return None
        package, _, last = below.rpartition(".")
        if not (package or dots):
            return self._outside(name, "module")
        parent = self.module(dots + package, importer)
        if parent is None:
            return None
        if parent.entity not in self.external:  # os.path is an attribute of os, one of two that offer the same
            for value in self._attribute(parent, last).values:
                if self.type_of(value.entity) in ("module", "package"):
                    return value
        return self._outside(f"{parent.entity}.{last}", "module")

    def _at(self, path: str) -> Value:
        if path in self.files:
            return Value(self.files[path].id)
        folder = self._outside(self.imports.place(path)[1], "module")
        self.folders[folder.entity] = path
        return folder

    def imported(self, origin: str, name: str, importer: Module) -> Targets:
        module = self.module(origin, importer)
        if module is None:
            return OPEN
        submodule = f"{importer.path}/{name}"
        if module.entity == importer.id and submodule in self.files:
            return only(self._at(submodule))  # `from . import submodule` in a package binds what it asks for
        return self._attribute(module, name)

    def _module_member(self, module: Module, name: str) -> Targets | None:
        """What a module may have under a name; None where it binds none."""
        return self._solve((module, name), lambda: self._bound_in(module, name))

    def _bound_in(self, module: Module, name: str) -> Targets | None:
        parts = []
        if name in module.scope.names:
            parts.append(self._meanings(module.scope.names[name]))
        parts += self._starred(module, name)
        if (module.id, name, False) in self.patched:
            parts.append(self._meanings(self.patched[module.id, name, False]))
        if not parts:
            return None
        parts += self._stored_anywhere(name)
        if module.id in self.tainted:
            parts.append(OPEN)
        return join(parts)

    def _stored_anywhere(self, name: str) -> list[Targets]:
        """What may be assigned to an attribute of an object that is not known."""
        if name not in self.loose:
            return []
        return [self._meanings(self.loose[name])]

    def _starred(self, module: Module, name: str) -> list[Targets]:
        """`name` through `from x import *`; one from outside may replace what stands above it."""
        entity = self.defined.get(f"{module.id}.{name}")
        starred = []
        for origin, line in module.stars:
            source = self.module(origin, module)
            if source and source.entity in self.modules and source.entity != module.id:
                inside = self.modules[source.entity]
                if inside.is_public(name):
                    member = self._module_member(inside, name)
                    if member:
                        starred.append(member)
            elif entity and 0 < entity.line < line:
                starred.append(OPEN)
        return starred

    def _attribute(self, value: Value, name: str) -> Targets:
        """What `value.name` gives; of a property what it returns."""
        targets = self.attribute(value, name)
        if value.is_instance:
            return targets.map(self._read)
        return targets

    def _read(self, value: Value) -> Targets:
        if self.is_property(value):
            return self._result(value)
        return self._by_method(value, "__get__")

    def attribute(self, value: Value, name: str) -> Targets:
        """The definition that `value.name` reaches."""
        entity = value.entity
        if entity in self.folders:
            path = f"{self.folders[entity]}/{name}"
            if path in self.files or path in self.imports.folders:
                return only(self._at(path))
            return OPEN
        if entity in self.modules:
            module = self.modules[entity]
            path = f"{module.path}/{name}"
            if path in self.files and name not in module.scope.names:
                return only(self._at(path))
            return self._module_member(module, name) or OPEN
        if name == "__class__" and value.is_instance:
            return only(Value(entity, False, value.exact))
        if entity in self.classes or _builtin_class(entity):
            return self.member(value, name)
        if entity in self.external and not value.is_instance and not entity.startswith("builtins."):
            return only(self._outside(f"{entity}.{name}", UNKNOWN))
        return OPEN

    # ---- calls

    def _result(self, called: Value) -> Targets:
        """What calling a value gives: an instance of a class, or what the function's annotation or its statements say."""
        entity = called.entity
        if entity == "builtins.property":
            return OPEN
        if called.is_instance:
            if entity not in self.classes:
                return OPEN
            return self.member(called, "__call__").map(self._result_of_function)
        if self.type_of(entity) in CLASSES:
            instance = Value(entity, True, called.exact)
            return Targets((instance,), self.makes_instances(entity))
        return self._returned(called, is_awaited=False)

    def _result_of_function(self, called: Value) -> Targets:
        if called.is_instance:
            return OPEN
        return self._result(called)

    def _by_method(self, value: Value, name: str) -> Targets:
        """What a method of an object makes of it; the object where its class has no such method."""
        if not value.is_instance:
            return only(value)
        methods = self.member(value._replace(is_instance=False), name)
        if not methods.values:
            return only(value)
        return methods.map(self._result)

    def _returned(self, called: Value, is_awaited: bool) -> Targets:
        if called.is_instance:
            return OPEN
        functions = [called.entity]
        if not called.exact:
            functions += self.overriders(called.entity)
        parts = []
        for function in functions:
            module = self.module_of.get(function)
            if module is None or self.passes(function) < 2 or is_awaited != (function in module.asynchronous):
                return OPEN
            targets = self._meanings(module.results.get(function, ()))
            if not targets.values:  # no annotation says what it is
                targets = self._meanings(module.returned.get(function, ()))
            parts.append(targets)
        return join(parts)

    def _declared(self, value: Value) -> Targets:
        """An instance of the class that an annotation admits; of any other where it names a protocol."""
        if value.is_instance or self.type_of(value.entity) not in CLASSES:
            return OPEN
        if value.entity in ("builtins.object", "builtins.type"):
            return OPEN
        scope = self.classes.get(value.entity)
        if scope and any("Protocol" in base for _, base in scope.bases):
            return OPEN
        return only(Value(value.entity, True, False))

    def makes_instances(self, entity: str) -> bool:
        """Whether calling a class gives an instance of it: no `__new__` and no metaclass gives another thing."""
        for owner in self.order(entity):
            scope = self.classes.get(owner)
            if scope and scope.metaclass:
                kind = self.value(scope.outer, scope.metaclass).one
                if kind is None or (kind.entity in self.classes and self._in_sources(kind.entity, "__call__")):
                    return False
        return not self._in_sources(entity, "__new__")

    def _in_sources(self, entity: str, name: str) -> bool:
        """Whether a class has a function of the sources under a name."""
        targets = self.lookup(self.order(entity), name, is_instance=False)
        return any(value.entity in self.module_of for value in targets.values)

    def constructor(self, value: Value) -> Targets:
        """The `__init__` in the sources that calling a class runs; the value itself where it is no class of theirs."""
        if value.is_instance or value.entity not in self.classes:
            return only(value)
        classes = [value.entity]
        if not value.exact:
            classes += self.subclasses(value.entity)
        parts = []
        for entity in classes:
            is_run = self.makes_instances(entity)
            parts.append(self.lookup(self.order(entity), "__init__", False) if is_run else OPEN)
        return join(parts)

    # ---- decorators

    def _decorators(self, entity: str) -> Iterable[Meaning]:
        module = self.module_of.get(entity)
        if module is None:
            return ()
        return module.decorators.get(entity, ())

    def is_property(self, value: Value) -> bool:
        """Whether it is a method that is called by naming it."""
        if value.is_instance:
            return False
        for decorator in self._decorators(value.entity):
            if isinstance(decorator, Expression):
                kind = self.value(decorator.scope, decorator.chain.removesuffix("()")).one
                if kind and self._makes_properties(kind.entity):
                    return True
        return False

    def _makes_properties(self, decorator: str) -> bool:
        if decorator in _PROPERTIES:
            return True
        if decorator in self.classes:
            return "builtins.property" in self.order(decorator)
        return decorator.endswith("cached_property")

    def passes(self, entity: str) -> int:
        """0: its decorators may put anything in its place · 1: its calls run it · 2: and they give what it gives."""
        if entity not in self.passing:
            self.passing[entity] = 0
            self.passing[entity] = min(map(self._passed, self._decorators(entity)), default=2)
        return self.passing[entity]

    def _passed(self, decorator: Meaning) -> int:
        if not isinstance(decorator, Expression):
            return 0
        name = decorator.chain.removesuffix("()")
        function = self.value(decorator.scope, name).one
        if function is None or function.is_instance or name[-1] == ")":
            return 0
        entity = function.entity
        if entity in _TRANSPARENT or entity.startswith("collections.abc.") or self._makes_properties(entity):
            return 2
        if entity in _RUNNING:
            return 1
        maker = self.value(decorator.scope, decorator.chain).one  # of a decorator with arguments what it makes
        if maker is None:
            return 0
        return self._gives_argument(maker.entity)

    def _gives_argument(self, function: str) -> int:
        """Whether a function returns its first argument (2), or a function that wraps and calls it (1)."""
        module, level = self.module_of.get(function), 2
        if not module or function not in module.first or function in module.decorators:
            return 0
        if function not in module.returned:
            return 0
        first = module.first[function]
        for meaning in module.returned[function]:
            if not isinstance(meaning, Expression):
                return 0
            if meaning.chain == first:
                if len(meaning.scope.names.get(first, ())) != 1:
                    return 0
                continue
            bound = meaning.scope.names.get(meaning.chain, ())
            if len(bound) != 1 or not isinstance(bound[0], Value):
                return 0
            wrapper = bound[0].entity
            if module.wrappers.get(wrapper) != first:
                return 0
            level = 1
        return level

    # ---- classes

    def order(self, entity: str) -> list[str]:
        """Method resolution order; what is not in the sources ends in a name that nothing knows."""
        if entity not in self.orders:
            self.orders[entity] = [kind.__name__ for kind in self._kind(entity).__mro__[:-1]]
        return self.orders[entity]

    def _kind(self, entity: str) -> type:
        """An empty class with the bases of this one: Python itself puts them into an order."""
        if entity not in self.kinds:
            self.kinds[entity] = type(entity, (self.kinds["?"],), {})  # of a class that inherits from itself
            bases = [self._kind(base) for base in self._direct_bases(entity)]
            # Java may name an interface before one that extends it; the latter brings the former along.
            for base in tuple(bases):
                if any(issubclass(other, base) for other in bases if other is not base):
                    bases.remove(base)
            with contextlib.suppress(TypeError):  # there is no such order
                self.kinds[entity] = type(entity, tuple(bases), {})
        return self.kinds[entity]

    def _direct_bases(self, entity: str) -> Iterable[str]:
        builtin = _builtin_class(entity)
        if builtin:
            return [f"builtins.{base.__name__}" for base in builtin.__bases__ if base is not builtin]
        if entity not in self.classes:
            return self.no_base if entity in _PLAIN_BASES else self.beyond
        bases: dict[str, None] = {}
        for classes in self._bases(entity):
            bases[classes[0] if len(classes) == 1 else "?"] = None
        return bases or self.no_base

    no_base: tuple[str, ...] = ("builtins.object",)  # of a class that names none
    beyond: tuple[str, ...] = ("?",)  # above a class outside of the sources

    def _bases(self, entity: str) -> Iterator[list[str]]:
        """Of each base the classes that it may be; a second "?" where these are not all."""
        scope = self.classes[entity]
        for _, chain in scope.bases:
            targets = self.value(scope.outer, chain)
            classes = [value.entity for value in targets.values if not value.is_instance]
            if not (targets.complete and classes):
                classes += ["?", "?"]
            yield classes

    def subclasses(self, entity: str) -> list[str]:
        """All classes in the sources that are or may be below one."""
        if self._below is None:
            self._below = defaultdict(list)
            for name in self.classes:
                for base in set().union(*self._bases(name)):
                    self._below[base].append(name)
        if entity not in self._subclasses:
            self._subclasses[entity] = []  # for a class that inherits from itself
            below: dict[str, None] = {}
            for child in self._below.get(entity, ()):
                below |= dict.fromkeys((child, *self.subclasses(child)))
            self._subclasses[entity] = [*below]
        return self._subclasses[entity]

    def overriders(self, method: str) -> list[str]:
        """Methods of subclasses that have the name of this one."""
        owner, _, name = method.partition("#")[0].rpartition(".")
        if owner not in self.classes or name not in self.definers:
            return []
        methods = []
        for below in self.subclasses(owner):
            if below in self.definers[name] and owner in self.order(below):
                for value in self.lookup([below], name, is_instance=False).values:
                    if value.entity.rpartition(".")[0] == below:
                        methods.append(value.entity)
        return methods

    def member(self, owner: Value, name: str) -> Targets:
        return self._solve((*owner, name), lambda: self._member(owner, name))  # type: ignore[return-value]  # as `_member`

    def _member(self, owner: Value, name: str) -> Targets:
        classes = [owner.entity]
        if not owner.exact:
            classes += self._related(owner.entity, name)
        orders = [self.order(entity) for entity in classes]
        targets = self._in_orders(orders, name, owner.is_instance)
        if targets.values:
            targets = join([targets, *self._stored_anywhere(name)])
        values = []
        for value in targets.values:
            if self.type_of(value.entity) in FUNCTIONS:
                value = value._replace(exact=owner.exact)
            values.append(value)
        return targets._replace(values=tuple(values))

    def _in_orders(self, orders: list[list[str]], name: str, is_instance: bool) -> Targets:
        """What the first order has; a method stands for those of subclasses that override it, all else is one of several."""
        first, *others = [self.lookup(order, name, is_instance) for order in orders]
        method = first.one
        if method and self.type_of(method.entity) in FUNCTIONS:
            is_property = self.is_property(method)
            covered = []
            for entity in (method.entity, *self.overriders(method.entity)):
                if self.is_property(Value(entity)) == is_property:
                    covered.append((Value(entity),))
            overriding = [other for other in others if other.values in covered]
            others = [other for other in others if other.values not in covered]
            is_exact = all(other.values == first.values for other in overriding)
            first = only(method._replace(exact=is_exact))
        return join([first, *others])

    def _related(self, entity: str, name: str) -> list[str]:
        """Subclasses in whose order of resolution another class has the name."""
        others = self.definers.get(name, set()) | self.tainted
        others.difference_update(self.order(entity))
        if not others:
            return []
        return [below for below in self.subclasses(entity) if not others.isdisjoint(self.order(below))]

    def lookup(self, order: list[str], name: str, is_instance: bool) -> Targets:
        """What the classes of an order have under a name, and what their methods assign to it."""
        parts = []
        is_certain = self.tainted.isdisjoint(order)
        if is_instance:
            intercepting = self.definers["__getattribute__"] | self.definers["__setattr__"]
            is_certain = is_certain and intercepting.isdisjoint(order)
            for entity in order:
                fields = self._bound_to(entity, name, is_instance=True)
                if set(fields) - {NOTHING}:
                    parts.append(self._meanings(fields))
        for entity in order:
            builtin = _builtin_class(entity)
            if entity in self.classes:
                meanings = self._bound_to(entity, name, is_instance=False)
                if set(meanings) == {NOTHING} and parts:
                    break
                if meanings:
                    parts.append(self._member_of(entity, meanings))
                    break
            elif builtin:
                if name in vars(builtin):
                    kind = "method" if callable(vars(builtin)[name]) else "field"
                    parts.append(only(self._outside(f"{entity}.{name}", kind)))
                    break
            elif entity not in _PLAIN_BASES:  # a class outside of the sources, which may have it
                break
        joined = join(parts)
        return joined._replace(complete=joined.complete and is_certain)

    def _bound_to(self, entity: str, name: str, is_instance: bool) -> list[Meaning]:
        """What a class binds an attribute of itself or of its instances to, and what others assign to it."""
        scope = self.classes.get(entity)
        if scope is None:
            return []
        table = scope.fields if is_instance else scope.names
        return [*table.get(name, ()), *self.patched.get((entity, name, is_instance), ())]

    def _member_of(self, entity: str, meanings: list[Meaning]) -> Targets:
        targets = self._meanings(meanings)
        is_value = not any(isinstance(meaning, Value) for meaning in meanings)
        if is_value and "?" in self.order(entity):
            # A base outside of the sources may make something else of it, as an enumeration does.
            return targets._replace(complete=False)
        return targets

    def _inherited(self, scope: Scope, after: str, name: str) -> Targets:
        """`super().name` or `super(after, self).name`, in whichever class the scope is in: the next of the instance's class."""
        within: Scope | None = scope
        while within is not None and within.kind != "class" and not within.hidden:
            within = within.parent
        if within is None or within.hidden:
            return OPEN
        start: Value | None = Value(within.owner)
        if after:
            start = self.value(scope, after).one
        if start is None or start.entity not in self.order(within.owner):
            return OPEN
        rests = []
        for entity in (within.owner, *self.subclasses(within.owner)):
            order = self.order(entity)
            if start.entity in order:
                rests.append(order[order.index(start.entity) + 1 :])
        return self._in_orders(rests, name, is_instance=False).map(self._read)

    # ---- where a name is defined, whatever it stands for

    def places(self, scope: Scope, chain: str) -> Targets:
        """The variables, fields and properties that a chain may name, as entities."""
        if ":" in chain:
            origin, name = chain.split(":")
            module = self.module(origin, scope.module)
            if module is None:
                return OPEN
            return self._places_in(module, name)
        before, dot, name = chain.rpartition(".")
        if dot:
            return self.value(scope, before).map(lambda owner: self._places_in(owner, name))
        binder = self.binder(scope, name)
        if binder is None:
            return OPEN
        return self._place_of(binder, name)

    def _place_of(self, scope: Scope, name: str) -> Targets:
        entity = f"{scope.prefix}{name}"
        if entity in self.defined:
            return only(Value(entity))
        meanings = scope.names.get(name, [OPAQUE])
        if isinstance(meanings[0], Expression) and ":" in meanings[0].chain[:-1]:
            return self.places(scope, meanings[0].chain)
        return Targets((), scope.kind != "module")  # a local variable is nothing else

    def _places_in(self, owner: Value, name: str) -> Targets:
        if owner.entity in self.modules:
            return self._place_of(self.modules[owner.entity].scope, name)
        classes = self.order(owner.entity)
        if not owner.exact:
            classes = classes + self.subclasses(owner.entity)
        places = [f"{entity}.{name}" for entity in classes]
        values = [Value(place) for place in places if place in self.defined]
        return Targets(tuple(values), bool(values))

    # ---- outside of the sources

    def _builtin(self, name: str) -> Value | None:
        value = _BUILTINS.get(name)
        if value is None:
            return None
        if not isinstance(value, type):
            return self._outside(f"builtins.{name}", "function")
        kind = "exception" if issubclass(value, BaseException) else "class"
        return self._outside(f"builtins.{value.__name__}", kind)

    def _outside(self, entity: str, kind: str) -> Value:
        if entity not in self.external:
            module = ""
            if entity.startswith("builtins."):
                module = "builtins"
            elif kind == "module":
                module = entity
            self.external[entity] = Entity(entity, kind, last_name(entity), EXTERNAL, module)
        return Value(entity)

    def type_of(self, name: str) -> str:
        entity = self.defined.get(name) or self.external.get(name)
        if entity is None:
            return UNKNOWN
        return entity.type


def _builtin_class(entity: str) -> type | None:
    if not entity.startswith("builtins."):
        return None
    value = _BUILTINS.get(entity.removeprefix("builtins."))
    return value if isinstance(value, type) else None
