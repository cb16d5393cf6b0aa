"""Documents as tokens, shown in windows of a fixed number of roots, and the batches that ask a model about them.

# B rows · E entities · G leaves · S roots · L tokens of a leaf · C tokens of an entity's text
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from helpers.graphmer.text.documents import Documents, entity_text, leaf_texts, shown_name
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.tokenizer import LONGEST_TOKEN, MASK, PAD, SEP, encode, encodings

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast

CHUNK = 2000  # documents that are encoded at a time
_MARGIN = 16  # tokens; the last of a text that is cut inside a word are not those of the whole word
_PARTS = re.compile(r"[./(]")

Window = tuple[int, int]  # number of a document, and which window of it


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
        sizes = {"roots": roots, "windows": windows, "leaf_tokens": leaf_tokens}
        for name, value in (sizes | {"head_tokens": head_tokens, "entity_tokens": entity_tokens}).items():
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

    def document(self, number: int) -> np.ndarray:
        """Token ids of a document."""
        return self._ids[self._offsets[number] : self._offsets[number + 1]]

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
        limit = self.roots * self.windows
        characters = (limit + _MARGIN) * LONGEST_TOKEN  # at least so many tokens, where the source has them
        documents, names, anchors = [np.zeros(0, self._dtype)], [], []
        for start in range(0, len(self.entities), CHUNK):
            chunk = [entity.id for entity in self.entities[start : start + CHUNK]]
            texts = [self.documents.text(name)[:characters] for name in chunk]
            for entity_id, text, tokens in zip(chunk, texts, encodings(self.tokenizer, texts), strict=True):
                ids = np.asarray(tokens.ids[:limit], self._dtype)
                name = tokens.char_to_token(len(shown_name(entity_id)))  # the end of its line; none without source
                name = len(ids) if name is None else min(name, len(ids))
                documents.append(ids)
                names.append(min(name + 1, len(ids)))
                anchors.append([(self.number[entity_id], *self._own_anchor(shown_name(entity_id), tokens, name))])
                if name < len(ids):
                    anchors[-1] += self._inner_anchors(entity_id, text, tokens, len(ids))
        self._ids = np.concatenate(documents)
        self._offsets = np.cumsum([len(ids) for ids in documents], dtype=np.int64)
        self._names = np.asarray(names, np.int64)
        self._anchors = np.asarray([one for found in anchors for one in found], np.int32).reshape(-1, 3)
        self._anchor_offsets = np.cumsum([0, *map(len, anchors)], dtype=np.int64)

    def _inner_anchors(self, entity_id: str, text: str, tokens: Encoding, kept: int) -> Iterator[tuple[int, int, int]]:
        """Characters to tokens: both ends of a name are ends of tokens."""
        shown = text[: tokens.token_to_chars(kept - 1)[1]]
        for anchor in self.documents.anchors(entity_id, shown)[1:]:
            first = tokens.char_to_token(anchor.start)
            end = tokens.char_to_token(anchor.end) if anchor.end < len(text) else len(tokens)
            if end <= kept:
                yield self.number[anchor.entity], first, min(end - first, self.head_tokens)

    def _own_anchor(self, name: str, tokens: Encoding, length: int) -> tuple[int, int]:
        """First token and number of tokens of a document's own name, of a long one its last parts."""
        first = 0
        for match in _PARTS.finditer(name):
            if length - first <= self.head_tokens:
                break
            at = tokens.char_to_token(match.end())
            if at is not None and at < length and tokens.token_to_chars(at)[0] == match.end():
                first = at
        return first, min(length - first, self.head_tokens)


class Windows:
    """The documents of a graph in windows of at most `roots` tokens; all that is needed to ask about it.

    Raises ValueError for more roots than the documents are encoded for.
    """

    def __init__(self, encoded: EncodedDocuments, relations: Relations, roots: int):
        self.encoded, self.relations = encoded, relations
        Windows._set_roots(self, roots)

    def queries(
        self,
        entity_ids: Sequence[str],
        relations: Sequence[Sequence[str | int]],
        windows: Sequence[int] | None = None,
    ) -> dict[str, torch.Tensor]:
        """Evaluation batch: a row is a window of one document, leaf g is masked and asks for the tail of its relation g.

        relations: names or ids, for each row; the longest row is G, shorter ones have empty leaves behind.
        windows: of each row, less than `window_count` of its entity; the first by default.

        Nothing else is masked and there is no label. Raises ValueError: an unknown entity or relation, or a window that the
        document has not.
        """
        ids = [[self.relations.id(one) for one in row] for row in relations]
        G, rows = max(map(len, ids), default=0), []
        for entity_id, row, window in zip(entity_ids, ids, windows or [0] * len(ids), strict=True):
            if entity_id not in self.encoded.number:
                raise ValueError(f"entity_ids: {entity_id!r} is no entity of the graph")
            number = self.encoded.number[entity_id]
            if not 0 <= window < (count := self.window_count(entity_id)):
                raise ValueError(f"windows: {window} of {entity_id!r}: must be in [0, {count})")
            made, _ = self._roots([(number, window)])
            start, length = self._place((number, window), 0, *self.encoded.anchors(number)[0, 1:].tolist())
            shown = np.arange(G) < len(row)
            made["leaf_ids"] = np.where(shown[:, None], MASK, PAD) + np.zeros((1, self.leaf_tokens), np.int64)
            made["leaf_segments"] = shown.astype(np.int64)
            made["relation_ids"] = np.array([*row, *[0] * (G - len(row))], np.int64)
            made["head_start"] = shown * np.int64(start)
            made["head_length"] = shown * np.int64(length)
            rows.append(made)
        return stacked(rows)

    def window_count(self, entity_id: str) -> int:
        """Windows of an entity's document at this length, 1 where it is shown whole."""
        return self.encoded.count(self.encoded.number[entity_id], self.roots)

    @property
    def leaf_tokens(self) -> int:
        return self.encoded.leaf_ids_EL.shape[1]

    def _set_roots(self, roots: int) -> None:
        if not 2 <= roots <= self.encoded.roots:
            raise ValueError(f"roots={roots}: the documents are encoded for 2 to {self.encoded.roots}")
        self.roots = roots

    def _shown(self, window: Window) -> tuple[np.ndarray, int]:
        return self.encoded.window(*window, self.roots)

    def _roots(self, windows: Sequence[Window]) -> tuple[dict[str, np.ndarray], list[int]]:
        """Root tensors, and where each window begins."""
        ids, segments, positions = (np.zeros(self.roots, np.int64) for _ in range(3))
        begins, at = [], 0
        for segment, window in enumerate(windows, 1):
            tokens, _ = self._shown(window)
            end = at + len(tokens)
            ids[at:end] = tokens
            segments[at:end] = segment
            positions[at:end] = np.arange(len(tokens))
            begins.append(at)
            at = end
        return {"root_ids": ids, "root_segments": segments, "root_positions": positions}, begins

    def _place(self, window: Window, begin: int, start: int, length: int) -> tuple[int, int]:
        """First root and number of roots of an anchor, within what is shown of its document."""
        shown = len(self._shown(window)[0])
        start = start if start < shown else 0  # a name longer than the sequence
        return begin + start, min(length, shown - start)


def stacked(examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
    """Each field of the examples with a batch axis before its own."""
    return {name: torch.from_numpy(np.stack([example[name] for example in examples])) for name in examples[0]}
