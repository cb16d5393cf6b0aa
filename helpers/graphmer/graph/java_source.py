"""Knowledge graph of Java sources, parsed by tree-sitter: every file is read, then what they mention is looked up in all.

A method's id has its parameter types as written, `a.b.C.run(String,int[])`; one outside of the sources has none, and is
named by the type it is called on, as in bytecode. An overload that the number of arguments does not tell, a name that
only an import on demand from outside can bring, and what an anonymous class may inherit are unresolved.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.graphmer.graph import java_tree
from helpers.graphmer.graph.java_names import LANG_EXCEPTIONS, JavaNames, Place, Reference
from helpers.graphmer.graph.java_tree import File, Method, Type, annotations, listed, modifiers, text, type_name, types
from helpers.graphmer.graph.knowledge_graph import (
    DEFINED,
    EXTERNAL,
    Entity,
    KnowledgeGraph,
    build_graph,
    tested,
    unresolved,
)
from helpers.graphmer.graph.sources import TOO_DEEP, SourceFile, read_sources

if TYPE_CHECKING:
    from tree_sitter import Node

NO_PARSER = "Java needs a parser: pip install tree-sitter tree-sitter-java"
_DECLARATIONS = (
    "local_variable_declaration", "enhanced_for_statement", "resource", "formal_parameter", "instanceof_expression",
    "catch_formal_parameter",
)  # fmt: skip
_TEST_ANNOTATIONS = ("Test", "ParameterizedTest", "RepeatedTest", "TestFactory", "TestTemplate")
# How much a use tells of a type outside.
_CERTAINTY = {"package": 0, "method": 0, "class": 1, "interface": 2, "exception": 3, "annotation": 4}


def java_graph(folder: str | Path, *, include_tests: bool = True) -> KnowledgeGraph:
    """The graph of every .java file in a folder; one that cannot be read or parsed is listed in the manifest.

    Without tree-sitter that is every file. Raises FileNotFoundError: no such folder.
    """
    files, listed, failed = read_sources(folder, ".java", include_tests, _read)
    graph = _Graph(files)
    failed += [{"path": listed.pop(at)["path"], "error": TOO_DEEP} for at in reversed(graph.too_deep)]
    return build_graph(graph.entities(), graph.triples, {"schema": 1, "files": listed, "failed": failed})


def _read(source: SourceFile, content: bytes) -> tuple[File, str]:
    try:
        import tree_sitter
        import tree_sitter_java
    except ImportError as error:
        raise ImportError(f"{NO_PARSER} ({error})") from error
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_java.language()))
    file = java_tree.read_file(parser.parse(content))
    return file, file.types[0].id if file.types else file.package


class _Graph:
    """Second pass: entities, and what the files mention, resolved."""

    def __init__(self, files: list[File]):
        self.files = files
        self.names = JavaNames(files)
        self.defined: dict[str, Entity] = {}
        self.outside: dict[str, Entity] = {}
        self.triples: list[tuple[str, str, str]] = []
        for file in files:
            for found in file.types:
                self._declare(found)
        self.too_deep: list[int] = []  # files of which not all could be said
        for at, file in enumerate(files):
            try:
                for found in file.types:
                    self._type(found)
                self._imports(file)
            except RecursionError:
                self.too_deep.append(at)
        self._classify()

    def entities(self) -> list[Entity]:
        return [*self.defined.values(), *self.outside.values()]

    # ---- what is declared

    def _declare(self, found: Type) -> None:
        file = found.file
        package = file.package
        if package and package not in self.defined:
            self.defined[package] = Entity(package, "package", package.rpartition(".")[2], DEFINED, package)
        if found.outer or package:
            self.triples.append((found.outer.id if found.outer else package, "contains", found.id))
        self._define(found.id, found.kind, found.name, found, found.node)
        for name, (_, node) in found.fields.items():
            self._member(found, f"{found.id}.{name}", "field", name, node)
        for method in (method for overloads in found.methods.values() for method in overloads):
            is_test = any(name.rpartition(".")[2] in _TEST_ANNOTATIONS for name in annotations(method.node))
            kind = "constructor" if method.is_constructor else "test" if is_test else "method"
            self._member(found, method.id, kind, method.name, method.node)
            for name, _, node in method.parameters:
                self._define(f"{method.id}({name})", "parameter", name, found, node)
                self.triples.append((method.id, "has_parameter", f"{method.id}({name})"))

    def _member(self, owner: Type, entity: str, kind: str, name: str, node: Node) -> None:
        self._define(entity, kind, name, owner, node)
        self.triples.append((owner.id, "contains", entity))

    def _define(self, entity: str, kind: str, name: str, within: Type, node: Node) -> None:
        lines = node.start_point[0] + 1, node.end_point[0] + 1
        self.defined.setdefault(entity, Entity(entity, kind, name, DEFINED, within.top.id, *lines))

    # ---- what is mentioned

    def _say(self, head: str, relation: str, tail: Reference | Method | None, mention: str, kind: str) -> None:
        """One triple; `kind` is what the language asks of the tail, should it be outside of the sources."""
        if isinstance(tail, Type | Method):
            self.triples.append((head, relation, tail.id))
            return
        name = mention.rpartition(".")[2]
        entity = tail or unresolved(name)
        if tail and (tail not in self.outside or _CERTAINTY[kind] > _CERTAINTY[self.outside[tail].type]):
            self.outside[tail] = Entity(tail, kind, name, EXTERNAL)
        self.triples.append((head, relation, entity))

    def _imports(self, file: File) -> None:
        if not file.types:
            return
        head = file.types[0].id
        for name, static, on_demand in file.imports:
            owner, _, member = name.rpartition(".") if static and not on_demand else (name, "", "")
            known = self.names.known.get(owner)
            if on_demand and not static and not known:
                self._say(head, "imports", name, name, "package")
                continue
            self._say(head, "imports", known or owner, owner, "class")
            if known and member in known.fields:
                self.triples.append((head, "imports_name", f"{known.id}.{member}"))
            elif known and member:
                overloads = known.methods.get(member, [])
                self._say(head, "imports_name", overloads[0] if len(overloads) == 1 else None, member, "method")

    def _type(self, found: Type) -> None:
        around, here = found.outer or found, Place(found)
        above = "interface" if found.kind == "interface" else "class"
        self._mention(found.id, "inherits_from", found.extends, above, Place(around, found.variables))
        self._mention(found.id, "implements", found.implements, "interface", Place(around, found.variables))
        self._mention(found.id, "annotated_with", annotations(found.node), "annotation", here)
        for name, (written, node) in found.fields.items():
            entity = f"{found.id}.{name}"
            self._typed(entity, "has_type", written, here)
            if node.type != "enum_constant":
                self._mention(entity, "annotated_with", annotations(node), "annotation", here)
        self._body(found.id, found.values, here)
        for method in (method for overloads in found.methods.values() for method in overloads):
            self._method(method)

    def _mention(self, head: str, relation: str, names: list[str], kind: str, place: Place) -> None:
        """One triple for each type as it is written."""
        for name in names:
            self._say(head, relation, self.names.resolve(name, place.type, place.variables), name, kind)

    def _typed(self, head: str, relation: str, written: str, place: Place) -> None:
        """A triple for the type of a declaration; none for a type parameter."""
        if written and written not in place.variables | place.type.variables:
            self._mention(head, relation, [written], "class", place)

    def _method(self, method: Method) -> None:
        place = Place(method.owner, method.variables)
        self._mention(method.id, "annotated_with", annotations(method.node), "annotation", place)
        for name, written, node in method.parameters:
            parameter = f"{method.id}({name})"
            self._typed(parameter, "has_type", written, place)
            self._mention(parameter, "annotated_with", annotations(node), "annotation", place)
            place.locals[name] = self.names.resolve(written, place.type, place.variables)
        self._typed(method.id, "returns", method.result, place)
        self._mention(method.id, "raises", listed(method.node, "throws"), "exception", place)
        if not method.is_constructor and not {"static", "private"} & modifiers(method.node):
            self._overrides(method)
        body = method.node.child_by_field_name("body")
        if body is not None:
            self._body(method.id, [body], place)

    def _overrides(self, method: Method) -> None:
        """The nearest method of the same parameter types (as written) on each way up."""
        for base in self.names.bases(method.owner):
            same = (
                one
                for above in self.names.above(base)
                if isinstance(above, Type)
                for one in above.methods.get(method.name, [])
                if one.signature == method.signature
            )
            if nearest := next(same, None):
                self.triples.append((method.id, "overrides", nearest.id))

    # ---- bodies

    def _body(self, head: str, nodes: list[Node], place: Place) -> None:
        self._declare_locals(nodes, place)
        hidden = replace(place, anonymous=True)
        stack = [(node, place) for node in nodes[::-1]]
        while stack:
            node, here = stack.pop()
            kind = node.type
            if kind == "method_invocation":
                name = text(node.child_by_field_name("name"))
                self._say(head, "calls", self.names.called(node, here), name, "method")
            elif kind == "object_creation_expression" and node.parent.type != "throw_statement":
                made = type_name(node.child_by_field_name("type"))
                self._mention(head, "instantiates", [made], "class", place)
            elif kind == "throw_statement":
                thrown = node.named_children[0]
                name = type_name(thrown.child_by_field_name("type")) if "creation" in thrown.type else text(thrown)
                found = self.names.type_of(thrown, here)
                if found or "creation" in thrown.type:
                    self._say(head, "raises", found, name, "exception")
            elif kind == "catch_type":
                self._mention(head, "catches", types(node), "exception", place)
            inside = hidden if kind in ("class_body", *java_tree.KINDS) else here
            stack += [(child, inside) for child in node.named_children[::-1]]

    def _declare_locals(self, nodes: list[Node], place: Place) -> None:
        """Every variable of a body; one that is declared with two types has none."""
        found = {name: {reference} for name, reference in place.locals.items()}
        stack = [*nodes]
        while stack:
            node = stack.pop()
            if node.type in _DECLARATIONS:
                for name, written in java_tree.variables(node):
                    found.setdefault(name, set()).add(self.names.resolve(written, place.type, place.variables))
            elif node.type == "lambda_expression":
                parameters = node.child_by_field_name("parameters")
                for name in [parameters] if parameters.type == "identifier" else parameters.named_children:
                    if name.type == "identifier":
                        found.setdefault(text(name), set()).add(None)
            stack += node.named_children
        place.locals.update(
            {name: next(iter(options)) if len(options) == 1 else None for name, options in found.items()}
        )

    # ---- what follows from all of it

    def _classify(self) -> None:
        """Exceptions, by their bases or because they are thrown; and what tests test."""
        thrown = {tail for _, relation, tail in self.triples if relation in ("raises", "catches")}
        for file in self.files:
            for found in file.types:
                above = [one.id if isinstance(one, Type) else one for one in self.names.above(found)]
                lang = any(one and one.startswith("java.lang.") and one[10:] in LANG_EXCEPTIONS for one in above)
                outside = any(one in self.outside and self.outside[one].type == "exception" for one in above if one)
                if found.kind == "class" and (lang or outside or found.id in thrown):
                    self.defined[found.id] = self.defined[found.id]._replace(type="exception")
        for entity in list(self.outside.values()):
            if entity.id.startswith("java.lang.") and entity.name in LANG_EXCEPTIONS:
                self.outside[entity.id] = entity._replace(type="exception")
        tests = {entity.id: entity.module for entity in self.defined.values() if entity.type == "test"}
        in_tests = set(tests.values())
        self.triples += tested(
            self.triples, tests, {name for name, one in self.defined.items() if one.module not in in_tests}
        )
