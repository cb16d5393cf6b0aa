"""Text of a graph's entities: a name, and the source lines that define it, read once and cut out when asked for.

# E entities · S roots · L tokens of a leaf · C tokens of an entity's text
"""

from __future__ import annotations

import bisect
import hashlib
import importlib.util
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from helpers.graphmer.knowledge_graph import DEFINED, TRIPLES, Entity, KnowledgeGraph
from helpers.graphmer.sources import standard_library
from helpers.graphmer.tokenizer import PAD, SEP, encode, newline_id, token_lengths

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LANGUAGES = ("python", "java")
NAMES_ONLY = frozenset({"parameter", "variable", "field"})  # their lines are part of what they belong to
CHUNK = 2000  # documents that are encoded at a time
_MARGIN = 16  # tokens; the last of a text that is cut inside a word are not those of the whole word
_CHARACTERS = 6  # a token, at most so many on average, where a text is cut before it is encoded
_ANNOTATIONS = 3  # a Java definition begins with its annotations: lines in which its name is looked for
_PARTS = re.compile(r"[./(]")


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
        self._starts: dict[str, list[int]] = {}  # of a module: where each line begins
        self._inside: dict[str, list[tuple[int, int, str]]] = defaultdict(list)  # of a module: line, end_line, entity
        for entity in graph.entities.values():
            if entity.line and entity.status == DEFINED and entity.module in sources:
                self._inside[entity.module].append((entity.line, entity.end_line, entity.id))
        for found in self._inside.values():
            found.sort()

    @classmethod
    def read(
        cls,
        graph: KnowledgeGraph,
        data_source: str | Path | Sequence[str | Path] | None = None,
        *,
        languages: Collection[str] = LANGUAGES,
    ) -> Documents:
        """Documents of the sources that the graph was built from.

        data_source: what `load_graph` was given: "sample", a folder or several. A folder with a written graph, or None,
            has no sources: every document is a name.
        languages: of these only; documents of others are names.

        Raises FileNotFoundError (a source is not there), ValueError (a source changed since the graph was built, an
        unknown language).
        """
        if unknown := set(languages) - set(LANGUAGES):
            raise ValueError(f"languages={sorted(unknown)}: must be of {', '.join(LANGUAGES)}")
        if data_source is None:
            return cls(graph, {})
        given = [data_source] if isinstance(data_source, str | Path) else list(data_source)
        folders = [standard_library() if one == "sample" else Path(one).expanduser().resolve() for one in given]
        if len(folders) == 1 and (folders[0] / TRIPLES).is_file():
            return cls(graph, {})
        by_name = {folder.name: folder for folder in folders}
        sources = {}
        for file in graph.manifest.get("files", ()):
            if file["language"] in languages:
                repository, _, rest = file["path"].partition("/")
                path = folders[0] / file["path"] if len(folders) == 1 else by_name.get(repository, Path()) / rest
                sources[file["module"]] = _text(path, file)
        return cls(graph, sources)

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

    def text(self, entity_id: str, limit: int | None = None) -> str:
        """The qualified name, a newline and the source lines, dedented; only the name where there are none.

        limit: characters of source before it is dedented, to spare the work on what is cut off anyway.
        """
        if not self.has_source(entity_id):
            return shown_name(entity_id)
        entity = self.graph.entities[entity_id]
        start, end = self._span(entity)
        source = self._sources[entity.module][start : end if limit is None else min(end, start + limit)]
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

    def source_length(self, entity_id: str) -> int:
        """Characters of the source lines before they are dedented."""
        start, end = self._span(self.graph.entities[entity_id])
        return end - start

    def _span(self, entity: Entity) -> tuple[int, int]:
        starts = self._line_starts(entity.module)
        if entity.line >= len(starts):
            raise ValueError(
                f"{entity.id}: line={entity.line}: its module has {len(starts) - 1} lines; build the graph again"
            )
        return starts[entity.line - 1], starts[min(max(entity.line, entity.end_line), len(starts) - 1)] - 1

    def _line_starts(self, module: str) -> list[int]:
        """Where each line begins, and where one after the last would."""
        if module not in self._starts:
            text = self._sources[module]
            starts = [0, *(match.end() for match in re.finditer("\n", text))]
            self._starts[module] = [*starts, len(text) + 1]
        return self._starts[module]


def _text(path: Path, file: dict) -> str:
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r}: no such file; give the folders that the graph was built from")
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


# ---- tokens


class EncodedDocuments:
    """Tokens of every document and name of a graph, in flat arrays; made once for all lengths up to `roots`.

    A document is shown in windows: the name, and as much of the source as fits behind it; then the name and what comes next.
    `roots` tokens for each of `windows` are kept.

    entities: in the order of the graph; their place there is their number
    leaf_ids_EL: the name as a leaf; the end token behind it where there is room, then [PAD]
    text_ids_EC: `entity_text`; of one that is too long the end, where its own name is; [PAD] behind it
    """

    def __init__(
        self,
        documents: Documents,
        tokenizer: PreTrainedTokenizerFast,
        *,
        roots: int,
        leaf_tokens: int = 7,
        head_tokens: int = 8,
        entity_tokens: int = 32,
        windows: int = 1,
    ):
        for name, value in {
            "roots": roots,
            "windows": windows,
            "leaf_tokens": leaf_tokens,
            "head_tokens": head_tokens,
            "entity_tokens": entity_tokens,
        }.items():
            if value < 1:
                raise ValueError(f"{name}={value}: must be at least 1")
        self.documents, self.tokenizer = documents, tokenizer
        self.roots, self.head_tokens, self.windows = roots, head_tokens, windows
        self.entities = list(documents.graph.entities.values())
        self.number = {entity.id: number for number, entity in enumerate(self.entities)}
        self._dtype = np.uint16 if len(tokenizer) <= 1 << 16 else np.int32
        self.leaf_ids_EL = self._leaves(leaf_tokens)
        texts = encode(tokenizer, [entity_text(entity) for entity in self.entities])
        self.text_ids_EC = self._padded([ids[-entity_tokens:] for ids in texts], entity_tokens)
        self._own_names = encode(tokenizer, [entity.name for entity in self.entities])
        self._encode_documents()

    def document(self, number: int, roots: int | None = None) -> np.ndarray:
        """Token ids of a document, at most `roots`."""
        start, end = self._offsets[number], self._offsets[number + 1]
        return self._ids[start : end if roots is None else min(end, start + roots)]

    def length(self, number: int) -> int:
        return int(self._offsets[number + 1] - self._offsets[number])

    def count(self, number: int, roots: int) -> int:
        """Windows of a document in sequences of so many roots, at most `windows`; one where the name leaves too little room."""
        name, length = self.name_length(number), self.length(number)
        if length <= roots or 2 * name > roots:
            return 1
        return min(self.windows, -(-(length - name) // (roots - name)))

    def window(self, number: int, window: int, roots: int) -> tuple[np.ndarray, int]:
        """Token ids of a window, at most `roots`, and how far its source is from where it would be in the document."""
        tokens, name = self.document(number), self.name_length(number)
        if not window:
            return tokens[:roots], 0
        shift = window * (roots - name)
        return np.concatenate((tokens[:name], tokens[name + shift : roots + shift])), shift

    def name_length(self, number: int) -> int:
        """Tokens of a document's name and the end of its line, which every window begins with."""
        return int(self._names[number])

    def mentions(self, number: int, tail: int, roots: int) -> list[int]:
        """Windows of a document in which the tail's own name stands, all of it."""
        wanted = np.asarray(self._own_names[tail], self._dtype)
        name, count = self.name_length(number), self.count(number, roots)
        tokens = self.document(number)[name : roots + (count - 1) * (roots - name)]
        if not len(wanted) or len(wanted) > len(tokens):
            return []
        starts = np.flatnonzero(tokens[: len(tokens) - len(wanted) + 1] == wanted[0])
        for place, token in enumerate(wanted[1:], 1):
            starts = starts[tokens[starts + place] == token]
        first, last = starts // (roots - name), (starts + len(wanted) - 1) // (roots - name)
        return sorted(set(first[first == last].tolist()))

    def anchors(self, number: int) -> np.ndarray:
        """(entity, first token, tokens) of each anchor, int32 [anchors, 3], the document's own name first.

        Of a name of more than `head_tokens` tokens the last parts that fit: `JSONEncoder.default` of
        `json.encoder.JSONEncoder.default`.
        """
        return self._anchors[self._anchor_offsets[number] : self._anchor_offsets[number + 1]]

    def _padded(self, rows: list[list[int]], width: int) -> np.ndarray:
        padded = np.full((len(rows), width), PAD, dtype=self._dtype)
        for row, ids in zip(padded, rows, strict=True):
            row[: len(ids)] = ids
        return padded

    def _leaves(self, leaf_tokens: int) -> np.ndarray:
        names = [leaf_texts(entity) for entity in self.entities]
        encoded = iter(encode(self.tokenizer, [text for texts in names for text in texts]))
        rows = []
        for texts in names:
            ids = [next(encoded) for _ in texts]
            fitting = next((one for one in ids if len(one) <= leaf_tokens), ids[-1][:leaf_tokens])
            rows.append([*fitting, SEP][:leaf_tokens])
        return self._padded(rows, leaf_tokens)

    def _encode_documents(self) -> None:
        lengths_V, newline = token_lengths(self.tokenizer), newline_id(self.tokenizer)
        chunks, counts, names, anchors, anchor_counts = [], [], [], [], []
        limit = self.roots * self.windows
        for start in range(0, len(self.entities), CHUNK):
            chunk = self.entities[start : start + CHUNK]
            for entity, ids, text in zip(chunk, *self._cut(chunk), strict=True):
                ids = np.asarray(ids[:limit], dtype=self._dtype)
                found = self._token_anchors(entity, ids, text, lengths_V, newline)
                chunks.append(ids)
                counts.append(len(ids))
                # With the end of its line; without source all of a document is its name.
                names.append(int(np.argmax(ids == newline)) + 1 if (ids == newline).any() else len(ids))
                anchors.extend(found)
                anchor_counts.append(len(found))
        self._ids = np.concatenate(chunks) if chunks else np.zeros(0, self._dtype)
        self._offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
        self._names = np.asarray(names, np.int64)
        self._anchors = np.asarray(anchors, dtype=np.int32).reshape(-1, 3)
        self._anchor_offsets = np.concatenate([[0], np.cumsum(anchor_counts, dtype=np.int64)])

    def _cut(self, entities: list[Entity]) -> tuple[list[list[int]], list[str]]:
        """Ids, all that windows show or more where the source has so many, and the text that they are the beginning of."""
        limits = [self.roots * self.windows * _CHARACTERS] * len(entities)
        texts = [self.documents.text(entity.id, limit) for entity, limit in zip(entities, limits, strict=True)]
        ids = encode(self.tokenizer, texts)
        short = [n for n, entity in enumerate(entities) if self._more(entity, ids[n], limits[n])]
        while short:
            for n in short:
                limits[n] *= 2
                texts[n] = self.documents.text(entities[n].id, limits[n])
            for n, longer in zip(short, encode(self.tokenizer, [texts[n] for n in short]), strict=True):
                ids[n] = longer
            short = [n for n in short if self._more(entities[n], ids[n], limits[n])]
        return ids, texts

    def _more(self, entity: Entity, ids: list[int], limit: int) -> bool:
        """Whether there is room, and source that was cut off."""
        if len(ids) > self.roots * self.windows + _MARGIN or not self.documents.has_source(entity.id):
            return False
        return self.documents.source_length(entity.id) > limit

    def _token_anchors(
        self, entity: Entity, ids: np.ndarray, text: str, lengths_V: np.ndarray, newline: int
    ) -> list[tuple[int, int, int]]:
        """Characters to tokens: both ends of a name are ends of tokens."""
        name_end = int(np.argmax(ids == newline)) if (ids == newline).any() else len(ids)
        ends_S = np.cumsum(lengths_V[ids])  # bytes
        found = [(self.number[entity.id], *self._own_anchor(shown_name(entity.id), ends_S[:name_end]))]
        if name_end == len(ids):
            return found
        encoded = None if text.isascii() else text.encode()
        if encoded is not None:
            shown = encoded[: ends_S[-1]].decode(errors="ignore")
            bytes_before = np.concatenate([[0], np.cumsum([len(character.encode()) for character in shown])])
        else:
            shown = text[: ends_S[-1]]
        for anchor in self.documents.anchors(entity.id, shown)[1:]:
            start, end = anchor.start, anchor.end
            if encoded is not None:
                start, end = bytes_before[start], bytes_before[end]
            first = int(np.searchsorted(ends_S, start, side="right"))
            last = int(np.searchsorted(ends_S, end, side="left"))
            if last < len(ids):
                found.append((self.number[anchor.entity], first, min(last + 1 - first, self.head_tokens)))
        return found

    def _own_anchor(self, name: str, ends: np.ndarray) -> tuple[int, int]:
        """First token and number of tokens of a document's own name, of a long one its last parts."""
        if len(ends) <= self.head_tokens:
            return 0, len(ends)
        begins = np.concatenate([[0], ends[:-1]])
        first = 0
        for match in _PARTS.finditer(name):
            byte = len(name[: match.end()].encode())
            at = int(np.searchsorted(begins, byte))
            if at < len(begins) and begins[at] == byte:
                first = at
                if len(ends) - at <= self.head_tokens:
                    break
        return first, min(len(ends) - first, self.head_tokens)
