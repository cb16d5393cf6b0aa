"""A training example to read: the roots as they stand, each leaf with its relation, its tokens and what is masked."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from helpers.graphmer.text.masking import IGNORED
from helpers.graphmer.text.tokenizer import MASK, PAD

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from helpers.graphmer.text.negatives import Relations


def chain_text(
    example: dict[str, np.ndarray], tokenizer: PreTrainedTokenizerFast, relations: Relations, *, roots: int = 120
) -> str:
    """The first `roots` roots of an example without a batch axis, then a line for each leaf."""
    lines = ["roots: " + tokenizer.decode(example["root_ids"][:roots].tolist()).replace("\n", "\n       ")]
    for leaf in np.flatnonzero(example["leaf_segments"]):
        start, length = int(example["head_start"][leaf]), int(example["head_length"][leaf])
        head = tokenizer.decode(example["root_ids"][start : start + length].tolist())
        labels_L = example["mnm_labels"][leaf]
        masked = (labels_L != IGNORED).any()
        ids_L = labels_L[labels_L != IGNORED] if masked else example["leaf_ids"][leaf]
        tail = tokenizer.decode([one for one in ids_L.tolist() if one not in (PAD, MASK)])
        truth = {1.0: "true", 0.0: "wrong"}.get(float(example["triple_labels"][leaf]), "")
        relation = relations.names[int(example["relation_ids"][leaf])]
        lines.append(f"leaf:  {head} --{relation}--> {'[MASK] was ' if masked else ''}{tail}  {truth}".rstrip())
    return "\n".join(lines)
