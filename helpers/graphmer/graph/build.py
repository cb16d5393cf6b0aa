"""The knowledge graph of a folder of sources: entities, and the relations of the ontology between them, from how names are used."""

import builtins
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

from .index import CALLS, Index, read_index, spread
from .knowledge_graph import DEFINED, EXTERNAL, Entity, KnowledgeGraph, last_name, new_graph

CALLABLE = ("function", "method")
# The relation that a kind of use says, and what its other end may be; a call also says what it calls or makes.
RELATIONS = {
    "raised": ("raises", ["class"]),
    "caught": ("catches", ["class"]),
    "returns": ("returns", ["class"]),
    "has_type": ("has_type", ["class"]),
    "decorates": ("annotated_with", ["class", *CALLABLE]),
}
ABOVE = {"class": "inherits_from", "method": "overrides"}
LOOK_UP_CLASSES = ("builtins.super", "builtins.type")  # a call of these makes nothing
FILE_OF_TESTS = re.compile(r"(^|\.)(test_[^.]*|[^.]*_test|tests)$")
BUILTINS = {f"builtins.{name}": value for name, value in vars(builtins).items() if isinstance(value, type)}


def load_graph(data_source: str | Path, keep_in: Path | None = None) -> KnowledgeGraph:
    """The graph of a folder of sources, or of "sample", the standard library. Raises what `read_index` does."""
    return build_graph(read_index(data_source, keep_in))


def build_graph(index: Index) -> KnowledgeGraph:
    """Entities are what the sources define, and what of the language and its library has a relation to it."""
    definitions = index.definitions
    triples = {triple for triple in [*_structure(index), *_used(index)] if triple[0] in definitions}
    thrown = {tail for _, relation, tail in triples if relation in ("raises", "catches")}
    exceptions = {name for name, value in BUILTINS.items() if issubclass(value, BaseException)}
    types = dict.fromkeys([*spread(exceptions, index.below), *thrown], "exception")
    for name, definition in definitions.items():
        module = definition.source.module
        if definition.kind == "module" and definition.source.place.endswith("/__init__.py"):
            types[name] = "package"
        elif definition.kind in CALLABLE and last_name(name) == "__init__":
            types[name] = "constructor"
        elif definition.kind in CALLABLE and last_name(name).startswith("test") and FILE_OF_TESTS.search(module):
            types[name] = "test"
    for head, relation, tail in [*triples]:
        is_test = types.get(head) == "test" and relation in ("calls", "instantiates") and tail in definitions
        if is_test and not FILE_OF_TESTS.search(definitions[tail].source.module):
            triples.add((head, "tests", tail))
    entities = []
    for name in definitions.keys() | {tail for _, _, tail in triples}:
        kind = types.get(name) or index.kinds.get(name, "class")
        short = last_name(name).partition("(")[2].rstrip(")") if kind == "parameter" else last_name(name)
        if name in definitions:
            definition = definitions[name]
            lines = (definition.line, definition.end_line)
            entities.append(Entity(name, kind, short, DEFINED, definition.source.module, *lines))
        else:
            entities.append(Entity(name, kind, short, EXTERNAL))
    return new_graph(entities, triples, {module: source.text for module, source in index.modules.items()})


def _structure(index: Index) -> Iterator[tuple[str, str, str]]:
    """What definitions are part of, what they inherit from or override, and the types that pyrefly finds."""
    classes = defaultdict(list)
    for name, definition in index.definitions.items():
        if definition.kind == "class":
            classes[last_name(name)].append(name)
    for name, definition in index.definitions.items():
        owner, _, last = name.rpartition("(" if definition.kind == "parameter" else ".")
        yield owner.removesuffix(".<locals>"), "has_parameter" if last.endswith(")") else "contains", name
        for above in index.above.get(name, ()):
            if definition.kind in ABOVE:
                yield name, ABOVE[definition.kind], above
        of_type = [one for one in classes[last_name(definition.type)] if one.endswith(f".{definition.type}")]
        for exact in (f"builtins.{definition.type}", f"{definition.source.module}.{definition.type}"):
            if exact in of_type or exact in BUILTINS:
                of_type = [exact]
        if len(of_type) == 1:
            yield name, "returns" if definition.kind in CALLABLE else "has_type", of_type[0]


def _used(index: Index) -> Iterator[tuple[str, str, str]]:
    for use in index.uses:
        kind = index.kinds.get(use.target)
        relation, ends = RELATIONS.get(use.kind, ("", []))
        if kind in ends:
            yield use.owner, relation, use.target
        if kind and use.kind == "imported":
            yield use.owner, "imports" if kind == "module" else "imports_name", use.target
        elif use.kind in CALLS and kind in CALLABLE:
            yield use.owner, "calls", use.target
        elif use.kind in CALLS and kind == "class" and use.kind != "raised" and use.target not in LOOK_UP_CLASSES:
            yield use.owner, "instantiates", use.target
