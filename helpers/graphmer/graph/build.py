"""The knowledge graph of a folder of sources: entities, and the relations of the ontology between them, from how names are used."""

import builtins
import itertools
from collections import defaultdict
from pathlib import Path
from typing import Any

from .index import CALLS, Index, read_index, spread
from .knowledge_graph import Entity, KnowledgeGraph, last_name, new_graph

CALLABLE = ("function", "method")
# The relation that a kind of use says of a class.
OF_CLASSES = {"raised": "raises", "caught": "catches", "returns": "returns", "has_type": "has_type"}
ABOVE = {"class": "inherits_from", "method": "overrides"}
MAKE_NOTHING = ("builtins.super", "builtins.type")  # classes that are called to look something up
BUILTINS = {f"builtins.{name}": value for name, value in vars(builtins).items() if isinstance(value, type)}


def load_graph(data_source: str | Path, keep_in: Path | None = None) -> KnowledgeGraph:
    """The graph of a folder of sources, or of "sample", the standard library. Raises what `read_index` does."""
    return build_graph(read_index(data_source, keep_in))


def build_graph(index: Index) -> KnowledgeGraph:
    """Entities are what the sources define, and what of the language and its library has a relation to it."""
    definitions = index.definitions
    triples = {triple for triple in itertools.chain(_structure(index), _used(index)) if triple[0] in definitions}
    builtin = [name for name, value in BUILTINS.items() if issubclass(value, BaseException)]
    exceptions = spread(builtin, index.below)
    exceptions += [tail for _, relation, tail in triples if relation in ("raises", "catches")]
    types = index.kinds | dict.fromkeys(exceptions, "exception")
    for name, definition in definitions.items():
        last, source = last_name(name), definition.source
        if definition.kind == "module" and source.place.name == "__init__.py":
            types[name] = "package"
        elif definition.kind in CALLABLE and last == "__init__":
            types[name] = "constructor"
        elif definition.kind in CALLABLE and last.startswith("test") and source.is_test:
            types[name] = "test"
    for head, relation, tail in [*triples]:
        is_test = types[head] == "test" and relation in ("calls", "instantiates") and tail in definitions
        if is_test and not definitions[tail].source.is_test:
            triples.add((head, "tests", tail))
    entities = []
    for name in definitions.keys() | {tail for _, _, tail in triples}:
        place: Any = ()
        if name in definitions:
            place = definitions[name].source.module, definitions[name].line, definitions[name].end_line
        entities.append(Entity(name, types.get(name, "class"), *place))
    return new_graph(entities, triples, {module: source.text for module, source in index.modules.items()})


def _structure(index):
    """What definitions are part of, what they inherit from or override, and the types that pyrefly finds."""
    classes = defaultdict(list)
    for name, definition in index.definitions.items():
        if definition.kind == "class":
            classes[last_name(name)].append(name)
    for name, definition in index.definitions.items():
        owner, separator, _ = name.rpartition("(" if definition.kind == "parameter" else ".")
        yield owner.removesuffix(".<locals>"), "has_parameter" if separator == "(" else "contains", name
        if definition.kind in ABOVE:
            for above in index.above.get(name, ()):
                yield name, ABOVE[definition.kind], above
        of_type = [one for one in classes[last_name(definition.type)] if one.endswith(f".{definition.type}")]
        for exact in (f"builtins.{definition.type}", f"{definition.source.module}.{definition.type}"):
            if exact in of_type or exact in BUILTINS:
                of_type = [exact]
        if len(of_type) == 1:
            yield name, "returns" if definition.kind in CALLABLE else "has_type", of_type[0]


def _used(index):
    for use in index.uses:
        kind, is_call = index.kinds.get(use.target), use.kind in CALLS
        relations = []
        if kind == "class":
            relations = [OF_CLASSES.get(use.kind)]
            if is_call and use.kind != "raised" and use.target not in MAKE_NOTHING:
                relations.append("instantiates")
        elif kind in CALLABLE and is_call:
            relations = ["calls"]
        if kind and use.kind == "imported":
            relations = ["imports" if kind == "module" else "imports_name"]
        elif use.kind == "decorates" and kind in ("class", *CALLABLE):
            relations.append("annotated_with")
        for relation in filter(None, relations):
            yield use.owner, relation, use.target
