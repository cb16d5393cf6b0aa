"""How often masked tokens and whole masked leaves are the likeliest, counted over batches on the device.

# B sequences · M masked tokens · G leaves · L tokens of a leaf · V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from helpers.graphmer.links.ranking import rate

IGNORED = -100


class TokenAccuracy:
    """Top-k accuracy of masked tokens over batches, and of whole leaves where the labels have them.

    For MLM give logits [B, M, V] and labels [B, M], for MNM logits [B, G, L, V] and labels [B, G, L] with `leaves=True`: a
    leaf is right when each of its labelled tokens is the likeliest. Labels of -100 count nowhere. The counts stay on the
    device until `summary`.
    """

    def __init__(self, k: Sequence[int] = (1, 5, 10), *, leaves: bool = False):
        if not k or min(k) < 1:
            raise ValueError(f"k={list(k)}: must be numbers of at least 1")
        self.k, self.leaves = tuple(sorted(set(k))), leaves
        self._counts: torch.Tensor | None = None  # a token each k, tokens, leaves right, leaves

    def update(self, logits: torch.Tensor, labels: torch.Tensor) -> None:
        """Raises ValueError for shapes that do not fit."""
        if logits.shape[:-1] != labels.shape:
            raise ValueError(
                f"logits {list(logits.shape)}, labels {list(labels.shape)}: give one row of logits a label"
            )
        asked = labels != IGNORED
        of_labels = logits.gather(-1, labels.clamp_min(0)[..., None])
        # Equal logits count against the label, so that a constant model is never right.
        places = (logits >= of_labels).sum(-1)
        places = places.masked_fill(logits.isnan().any(-1), logits.shape[-1] + max(self.k))
        counts = [((places <= k) & asked).sum() for k in self.k] + [asked.sum()]
        if self.leaves:
            there = asked.any(-1)
            counts += [(((places <= 1) | ~asked).all(-1) & there).sum(), there.sum()]
        counts = torch.stack(counts)
        self._counts = counts if self._counts is None else self._counts + counts

    def summary(self) -> dict:
        """{"top1": {"rate", "count", "of", "interval"}, "top5": ..., "leaf": ...}, Wilson, 95 %."""
        counts = [0] * (len(self.k) + 3) if self._counts is None else self._counts.tolist()
        tokens = counts[len(self.k)]
        found = {f"top{k}": rate(count, tokens) for k, count in zip(self.k, counts, strict=False)}
        return found | ({"leaf": rate(*counts[len(self.k) + 1 :])} if self.leaves else {})
