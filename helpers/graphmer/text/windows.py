"""Windows of documents as rows of roots, and the batches that ask a model at a document's own name.

# B rows · S roots · G leaves
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from helpers.graphmer.text.encoded_documents import EncodedDocuments
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.tokenizer import MASK, PAD

Window = tuple[int, int]  # number of a document, and which window of it


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
