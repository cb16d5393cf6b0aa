"""Text of a graph's entities: a name, and the source lines that define it, read once and cut out when asked for."""

from __future__ import annotations

import bisect
import hashlib
import importlib.util
import itertools
import re
from collections import defaultdict
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

from helpers.graphmer.graph.knowledge_graph import DEFINED, TRIPLES, Entity, KnowledgeGraph
from helpers.graphmer.graph.sources import standard_library

NAMES_ONLY = frozenset({"parameter", "variable", "field"})  # their lines are part of what they belong to
_ANNOTATIONS = 3  # a Java definition begins with its annotations: lines in which its name is looked for


class Anchor(NamedTuple):
    """Where an entity is named in a document, as characters of its text."""

    entity: str
    start: int
    end: int


def shown_name(entity_id: str) -> str:
    """`a.f.g` of `a.f.<locals>.g`: what is inside a function is owned by it."""
    return entity_id.replace(".<locals>", "")


def entity_text(entity: Entity) -> str:
    """What an entity is without its source: `method json.encoder.JSONEncoder.default`."""
    return f"{entity.type} {shown_name(entity.id)}"


def leaf_texts(entity: Entity) -> tuple[str, ...]:
    """Names of an entity as a tail, longest first: `JSONEncoder.default`, `default`; of a parameter `dumps(obj)`, `obj`."""
    name = entity.id.rpartition("/")[2]
    if entity.type == "parameter" and name.endswith(")"):
        owner, _, parameter = name[:-1].rpartition("(")
        return f"{owner.rpartition('.')[2]}({parameter})", parameter
    parts = [part for part in name.split(".") if part != "<locals>"]
    return tuple(dict.fromkeys((".".join(parts[-2:]), parts[-1])))


class Documents:
    """The text of every entity of a graph; of one without source lines only its name."""

    def __init__(self, graph: KnowledgeGraph, sources: dict[str, str]):
        """sources: text of each module; lines end in \\n."""
        self.graph = graph
        self._sources = sources
        self._split: dict[str, list[str]] = {}  # of a module: its lines
        self._inside: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # of a module: line, end_line, entity
        for entity in graph.entities.values():
            if entity.line and entity.status == DEFINED and entity.module in sources:
                self._inside[entity.module].append((entity.line, entity.end_line, entity.id))
        for found in self._inside.values():
            found.sort()

    @classmethod
    def read(cls, graph: KnowledgeGraph, data_source: str | Path | None = None) -> Documents:
        """Documents of the sources that the graph was built from.

        data_source: what `load_graph` was given. A folder with a written graph, or None, has no sources: every document is a
            name.

        Raises FileNotFoundError (a source is not there), ValueError (a source changed since the graph was built).
        """
        folder = standard_library() if data_source == "sample" else Path(data_source or "").expanduser().resolve()
        if data_source is None or (folder / TRIPLES).is_file():
            return cls(graph, {})
        return cls(
            graph, {file["module"]: _text(folder / file["path"], file) for file in graph.manifest.get("files", ())}
        )

    def sources(self, modules: Collection[str] | None = None) -> Iterator[str]:
        """Whole texts of all modules, or of these: what a tokenizer is trained on."""
        for module, text in self._sources.items():
            if modules is None or module in modules:
                yield text

    def has_source(self, entity_id: str) -> bool:
        """Whether the document is more than a name."""
        entity = self.graph.entities[entity_id]
        return bool(
            entity.line
            and entity.status == DEFINED
            and entity.type not in NAMES_ONLY
            and entity.module in self._sources
        )

    def text(self, entity_id: str) -> str:
        """The qualified name, a newline and the source lines, dedented; only the name where there are none."""
        if not self.has_source(entity_id):
            return shown_name(entity_id)
        entity = self.graph.entities[entity_id]
        source = "\n".join(self._lines(entity))
        if indentation := len(source) - len(source.lstrip(" \t")):
            source = re.sub(rf"(?m)^[ \t]{{1,{indentation}}}", "", source)
        return f"{shown_name(entity_id)}\n{source}"

    def anchors(self, entity_id: str, text: str | None = None) -> list[Anchor]:
        """The document's own name, then each definition whose name its text shows, in the order of lines.

        text: what is shown, the beginning of `self.text(entity_id)`; all of it by default.
        """
        text = self.text(entity_id) if text is None else text
        own, name_end = self.graph.entities[entity_id], len(shown_name(entity_id))
        found = [Anchor(entity_id, 0, min(name_end, len(text)))]
        if not self.has_source(entity_id) or len(text) <= name_end:
            return found
        starts = [name_end + 1]
        while (newline := text.find("\n", starts[-1])) >= 0:
            starts.append(newline + 1)
        ends = [*(start - 1 for start in starts[1:]), len(text)]
        inside, taken = self._inside[own.module], set()
        for line, end_line, inner in inside[bisect.bisect_left(inside, (own.line,)) :]:
            first = line - own.line
            if first >= len(starts):
                break
            if end_line > own.end_line or inner == entity_id or entity_id.startswith(inner):
                continue
            last = min(first + (1 if end_line == line else _ANNOTATIONS), len(starts)) - 1
            for at in _occurrences(text, self.graph.entities[inner].name, starts[first], ends[last]):
                if at not in taken:
                    taken.add(at)
                    found.append(Anchor(inner, at, at + len(self.graph.entities[inner].name)))
                    break
        return found

    def mention(self, entity_id: str, name: str) -> int:
        """The first line of an entity's source that has `name` as an identifier, its own name left out; 0 without one."""
        if not self.has_source(entity_id):
            return 0
        entity = self.graph.entities[entity_id]
        lines = enumerate(self._lines(entity), entity.line)
        found = (number for number, line in lines for _ in _occurrences(line, name, 0, len(line)))
        return next(itertools.islice(found, name == entity.name, None), 0)

    def _lines(self, entity: Entity) -> list[str]:
        """The lines of its module that define an entity."""
        if entity.module not in self._split:
            self._split[entity.module] = self._sources[entity.module].split("\n")
        lines = self._split[entity.module]
        if entity.line > len(lines):
            raise ValueError(
                f"{entity.id}: line={entity.line}: its module has {len(lines)} lines; build the graph again"
            )
        return lines[entity.line - 1 : max(entity.line, entity.end_line)]


def _text(path: Path, file: dict) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: no such file; give the folder that the graph was built from")
    content = path.read_bytes()
    if hashlib.sha256(content).hexdigest() != file["sha256"]:
        raise ValueError(f"{file['path']}: changed since the graph was built; build the graph again")
    if file["language"] == "python":
        return importlib.util.decode_source(content)  # by its coding line, as the interpreter does
    return content.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _occurrences(text: str, name: str, start: int, end: int) -> Iterator[int]:
    """Where `name` stands as a whole identifier."""
    at = text.find(name, start, end) if name else -1
    while at >= 0:
        after = at + len(name)
        if not (_in_word(text[at - 1 : at]) or _in_word(text[after : after + 1])):
            yield at
        at = text.find(name, after, end)


def _in_word(character: str) -> bool:
    return character.isalnum() or character == "_"
