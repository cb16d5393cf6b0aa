"""Knowledge graph of a SCIP index: what an indexer of any language says of definitions and references (scip.proto).

An index says where a name is defined and where it is mentioned, not whether a class that is mentioned is made or only named:
`contains`, `has_parameter`, `calls`, `inherits_from`, `implements` and `overrides` follow from it, and nothing else is guessed.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from pathlib import Path

from helpers.graphmer.graph.knowledge_graph import DEFINED, EXTERNAL, Entity, KnowledgeGraph, build_graph

INDEX = "index.scip"
DEFINITION = 1  # of SymbolRole
# Message -> field: number and type, * where it is repeated; of scip.proto what is read here.
_MESSAGES = {
    "Index": "documents:2:*Document external_symbols:3:*SymbolInformation",
    "Document": "language:4:string relative_path:1:string occurrences:2:*Occurrence symbols:3:*SymbolInformation",
    "Occurrence": "range:1:*int32 symbol:2:string symbol_roles:3:int32 enclosing_range:7:*int32",
    "SymbolInformation": "symbol:1:string relationships:4:*Relationship kind:5:int32",
    "Relationship": "symbol:1:string is_implementation:3:bool",
}
_SCALARS = ("string", "int32", "bool")
_KINDS = {9: "constructor", 11: "enum", 21: "interface", 29: "module", 35: "package", 42: "interface", 53: "interface"}
_NAME = r"(`(?:[^`]|``)+`|[\w+$-]+)"
_DESCRIPTOR = re.compile(rf"{_NAME}(\([^)]*\)\.|[/#.:!])|\({_NAME}\)|\[{_NAME}\]")
_OUTER, _CALLED = ("module", "package"), ("function", "method", "constructor")
_SMALL = ("parameter", "variable", "field")
_SUFFIXES = {"/": "module", ":": "module", "#": "class", ".": "variable", "!": "function"}


def index_message():
    """An empty `Index`, a message of protobuf, which comes with wandb."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="graphmer_scip.proto", package="scip", syntax="proto3")
    scalars = {name: getattr(descriptor_pb2.FieldDescriptorProto, f"TYPE_{name.upper()}") for name in _SCALARS}
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for each, number, kind in (field.split(":") for field in fields.split()):
            field = message.field.add(name=each, number=int(number), label=3 if kind.startswith("*") else 1)
            kind = kind.removeprefix("*")
            field.type = scalars.get(kind, 11)  # 11: a message
            if kind not in scalars:
                field.type_name = f".scip.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("scip.Index"))()


def scip_graph(folder: str | Path) -> KnowledgeGraph:
    """The graph of `index.scip` in a folder; sources that lie beside it, under the paths that it says, become documents.

    Raises ValueError: no index of SCIP.
    """
    from google.protobuf.message import DecodeError

    folder, index = Path(folder).expanduser().resolve(), index_message()
    try:
        index.ParseFromString((folder / INDEX).read_bytes())
    except DecodeError as error:
        raise ValueError(f"{str(folder / INDEX)!r}: not an index of SCIP ({error})") from error
    known = [*index.external_symbols, *(each for document in index.documents for each in document.symbols)]
    kinds = {each.symbol: _KINDS.get(each.kind, "") for each in known}
    entities: dict[str, Entity] = {}
    triples: list[tuple[str, str, str]] = []
    files: list[dict] = []
    bodies: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # of a module: first and last line, definition
    for module, document in ((_module(document), document) for document in index.documents):
        entities[module] = Entity(module, "module", module.rpartition(".")[2], DEFINED, module)
        path, language = (folder / document.relative_path).resolve(), document.language.lower()
        if path.is_relative_to(folder) and path.is_file():
            sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
            files.append({"path": document.relative_path, "module": module, "language": language, "sha256": sha256})
        for one in document.occurrences:
            found, owner = _entity(one.symbol, kinds), _entity(one.symbol, kinds, up=1)
            if one.symbol_roles & DEFINITION and found and found.type not in _OUTER:
                first, last = _lines(one.enclosing_range or one.range)
                entities[found.id] = found._replace(status=DEFINED, module=module, line=first + 1, end_line=last + 1)
                if found.type not in _SMALL:
                    bodies[module].append((first, last, found.id))
                owner = owner if owner and owner.type not in _OUTER else entities[module]
                entities.setdefault(owner.id, owner)
                triples.append((owner.id, "has_parameter" if found.type == "parameter" else "contains", found.id))
    for module, document in ((_module(document), document) for document in index.documents):
        for one in document.occurrences:
            called = _entity(one.symbol, kinds)
            if called and called.type in _CALLED and not one.symbol_roles & DEFINITION:
                line = one.range[0]
                around = [(last - first, name) for first, last, name in bodies[module] if first <= line <= last]
                entities.setdefault(called.id, called)
                triples.append((min(around, default=(0, module))[1], "calls", called.id))
        for symbol, one in ((each.symbol, one) for each in document.symbols for one in each.relationships):
            head, tail = _entity(symbol, kinds), _entity(one.symbol, kinds)
            if one.is_implementation and head and tail and head.id in entities:
                entities.setdefault(tail.id, tail)
                relation = "implements" if tail.type == "interface" else "inherits_from"
                triples.append((head.id, "overrides" if head.type in _CALLED else relation, tail.id))
    return build_graph(entities.values(), triples, {"schema": 1, "files": files, "failed": []})


def _module(document) -> str:
    return re.sub(r"\.\w+$", "", document.relative_path).replace("/", ".")


def _entity(symbol: str, kinds: dict[str, str], up: int = 0) -> Entity | None:
    """What a symbol stands for, or `up` levels above it; None for a local one and for what has no type of the ontology."""
    parts = list(_DESCRIPTOR.finditer(re.split(r"(?<! ) (?! )", symbol, maxsplit=4)[-1]))
    parts = parts[: len(parts) - up]
    if symbol.startswith("local ") or not parts or parts[-1][4]:
        return None
    names = [(part[1] or part[3]).strip("`").replace("``", "`") for part in parts]
    if parts[-1][3]:
        return Entity(f"{'.'.join(names[:-1])}({names[-1]})", "parameter", names[-1], EXTERNAL)
    suffix, in_class = parts[-1][2], len(parts) > 1 and parts[-2][2] == "#"
    kind = _SUFFIXES.get(suffix, "function")
    if in_class:
        kind = {"function": "method", "variable": "field"}.get(kind, kind)
    overload = f"({suffix[1:-2]})" if suffix[1:-2] else ""
    return Entity(".".join(names) + overload, (not up and kinds.get(symbol)) or kind, names[-1], EXTERNAL)


def _lines(span) -> tuple[int, int]:
    """First and last line, from 0, of [line, start, end] or [line, start, line, end]."""
    return span[0], span[2] if len(span) == 4 else span[0]
