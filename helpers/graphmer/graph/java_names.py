"""What a name in Java source stands for: types by the rules of the language (JLS 6), methods by name and number of arguments."""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from helpers.graphmer.graph.java_tree import SAY_THEIR_TYPE, File, Method, Type, text, type_name

if TYPE_CHECKING:
    from tree_sitter import Node

OBJECT = "java.lang.Object"
# Of the types that need no import (JLS 7.5.5), those that programs mention.
_LANG_NAMES = """
    Appendable AutoCloseable Boolean Byte CharSequence Character Class ClassLoader Cloneable Comparable Deprecated Double
    Enum Float FunctionalInterface Integer Iterable Long Math Module Number Object Override Package Process ProcessBuilder
    Readable Record Runnable Runtime SafeVarargs Short StackTraceElement StackWalker StrictMath String StringBuffer
    StringBuilder SuppressWarnings System Thread ThreadGroup ThreadLocal Void"""
_LANG_EXCEPTION_NAMES = """
    ArithmeticException ArrayIndexOutOfBoundsException ArrayStoreException AssertionError ClassCastException
    ClassNotFoundException CloneNotSupportedException Error Exception ExceptionInInitializerError IllegalAccessException
    IllegalArgumentException IllegalMonitorStateException IllegalStateException IndexOutOfBoundsException
    InstantiationException InternalError InterruptedException LinkageError NegativeArraySizeException
    NoClassDefFoundError NoSuchFieldException NoSuchMethodException NullPointerException NumberFormatException
    OutOfMemoryError ReflectiveOperationException RuntimeException SecurityException StackOverflowError
    StringIndexOutOfBoundsException Throwable UnsatisfiedLinkError UnsupportedOperationException VirtualMachineError"""
_LANG, LANG_EXCEPTIONS = frozenset(_LANG_NAMES.split()), frozenset(_LANG_EXCEPTION_NAMES.split())
_OBJECT_METHODS = {"equals", "getClass", "hashCode", "notify", "notifyAll", "toString", "wait", "clone", "finalize"}

Reference = Type | str  # a type of the sources, or the full name of one outside


@dataclass(frozen=True)
class Place:
    """Where an expression stands."""

    type: Type
    variables: Set[str] = frozenset()  # type parameters of the method
    locals: dict[str, Reference | None] = field(default_factory=dict)
    anonymous: bool = False  # in the body of an anonymous or local class, whose own members nobody looks up


class JavaNames:
    def __init__(self, files: list[File]):
        self.known: dict[str, Type] = {}  # types of the sources by full name
        for file in files:
            for found in file.types:
                self.known.setdefault(found.id, found)
        self._resolved: dict[tuple[str, str], Reference | None] = {}

    # ---- types

    def resolve(self, name: str, within: Type, variables: Set[str] = frozenset()) -> Reference | None:
        """The type that `name` means in a body of `within`; None for a type parameter and for what is not certain."""
        if not name or name.partition(".")[0] in variables:
            return None
        key = (within.id, name)
        if key not in self._resolved:
            self._resolved[key] = None  # for a class that looks for its base in itself
            self._resolved[key] = self._resolve(name, within)
        return self._resolved[key]

    def _resolve(self, name: str, within: Type) -> Reference | None:
        first, *rest = name.split(".")
        for looking in within.around():
            if first in looking.variables:
                return None
            if looking.name == first:
                return self._nested(looking, rest)
            if above := self.having(looking, "members", first):
                return self._nested(above.members[first], rest)
        return self._elsewhere(name, within.file)

    def _elsewhere(self, name: str, file: File) -> Reference | None:
        """A type that is in no class around: imported, of the same package, of java.lang, or by its full name."""
        first, *rest = name.split(".")
        found = self._imported(first, file)
        if found is None and rest:  # nothing but a package is left for the first word
            return self.known.get(name) or name
        return self._nested(found, rest)

    def _imported(self, name: str, file: File) -> Reference | None:
        for full_name, static, on_demand in file.imports:
            if not static and not on_demand and full_name.rpartition(".")[2] == name:
                return self.known.get(full_name) or full_name
        if found := self.known.get(f"{file.package}.{name}" if file.package else name):
            return found
        origins = [full_name for full_name, static, on_demand in file.imports if on_demand and not static]
        for origin in origins:
            if found := self.known.get(f"{origin}.{name}"):
                return found
        return f"java.lang.{name}" if name in _LANG or name in LANG_EXCEPTIONS else None

    def _nested(self, found: Reference | None, names: list[str]) -> Reference | None:
        for name in names:
            if isinstance(found, str):
                found = f"{found}.{name}"
            elif found:
                above = self.having(found, "members", name)
                found = above.members[name] if above else None
        return found

    def bases(self, found: Type) -> list[Reference | None]:
        """What `extends` and `implements` name; looked up around the class, which has no members for its own bases."""
        names = [name for name in (*found.extends, *found.implements) if name.partition(".")[0] not in found.variables]
        if found.outer:
            return [self.resolve(name, found.outer) for name in names]
        return [self._elsewhere(name, found.file) for name in names]

    def above(self, found: Type) -> Iterator[Reference | None]:
        """The type itself and its supertypes, nearest first; None for one that is not certain."""
        queue: list[Reference | None] = [found]
        seen = set()
        for one in queue:
            key = one.id if isinstance(one, Type) else one
            if key not in seen:
                seen.add(key)
                yield one
                queue += self.bases(one) if isinstance(one, Type) else []

    # ---- members

    def having(self, found: Type, members: str, name: str) -> Type | None:
        """The nearest of a type and its supertypes in the sources that has such a member: one of `members`, `fields` or `methods`."""
        return next((one for one in self.above(found) if isinstance(one, Type) and name in getattr(one, members)), None)

    def method(self, owner: Reference, name: str, count: int) -> Method | str | None:
        """The method that a call with so many arguments reaches; the id of one outside of the sources."""
        if isinstance(owner, str):
            return f"{owner}.{name}"
        outside = []
        for one in self.above(owner):
            if not isinstance(one, Type):
                outside.append(one)
                continue
            candidates = [method for method in one.methods.get(name, []) if method.takes(count)]
            if candidates:  # what stands above it and outside may have a better one
                return candidates[0] if len(candidates) == 1 and not outside else None
        if name in _OBJECT_METHODS:
            return f"{OBJECT}.{name}"
        return f"{outside[0]}.{name}" if len(outside) == 1 and outside[0] else None  # it compiles, so it is there

    def field_type(self, owner: Reference, name: str) -> Reference | None:
        if isinstance(owner, str):
            return None
        for one in self.above(owner):
            if not isinstance(one, Type):
                return None
            if name in one.fields:
                return self.resolve(one.fields[name][0], one)
        return None

    def called(self, call: Node, place: Place) -> Method | str | None:
        """Target of a method_invocation."""
        name = text(call.child_by_field_name("name"))
        count = len(call.child_by_field_name("arguments").named_children)
        receiver = call.child_by_field_name("object")
        if receiver is not None:
            owner = self.type_of(receiver, place)
            return self.method(owner, name, count) if owner else None
        if place.anonymous:
            return None
        for looking in place.type.around():
            if self.having(looking, "methods", name):
                return self.method(looking, name, count)
            if looking.outer and not all(isinstance(one, Type) for one in self.above(looking)):
                return None  # inherited from outside, or of the class around
        return self._static(name, count, place.type.file) or self.method(place.type.top, name, count)

    def _static(self, name: str, count: int, file: File) -> Method | str | None:
        for full_name, static, on_demand in file.imports:
            owner, _, last = full_name.rpartition(".")
            if static and not on_demand and last == name:
                known = self.known.get(owner)
                return self.method(known, name, count) if known else full_name
            if static and on_demand and (known := self.known.get(full_name)) and name in known.methods:
                return self.method(known, name, count)
        return None

    # ---- expressions

    def type_of(self, node: Node, place: Place) -> Reference | None:
        """Static type of an expression, or the type that it names; None where that is not certain."""
        kind = node.type
        if kind == "identifier":
            return self._variable(text(node), place)
        if kind == "this":
            return None if place.anonymous else place.type
        if kind == "super":
            bases = [] if place.anonymous else place.type.extends
            return self.resolve(bases[0], place.type.outer or place.type) if bases else OBJECT
        if kind == "string_literal":
            return "java.lang.String"
        if kind == "parenthesized_expression":
            return self.type_of(node.named_children[0], place)
        if kind in SAY_THEIR_TYPE:
            return self.resolve(type_name(node.child_by_field_name("type")), place.type, place.variables)
        if kind == "field_access":
            owner = self.type_of(node.child_by_field_name("object"), place)
            name = text(node.child_by_field_name("field"))
            if owner is None:
                return self.known.get(text(node))
            nested = self._nested(owner, [name]) if isinstance(owner, Type) else None
            return self.field_type(owner, name) or nested
        if kind == "method_invocation":
            method = self.called(node, place)
            if isinstance(method, Method):
                return self.resolve(method.result, method.owner, method.variables)
        return None

    def _variable(self, name: str, place: Place) -> Reference | None:
        if name in place.locals:
            return place.locals[name]
        for looking in place.type.around():
            if self.having(looking, "fields", name):
                return self.field_type(looking, name)
        return self.resolve(name, place.type, place.variables)
