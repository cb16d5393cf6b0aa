"""Batches of few shapes: each column of texts padded to one of at most four lengths, on XLA to one, with the model's prompts."""

from __future__ import annotations

from collections.abc import Callable

import torch
from sentence_transformers import SentenceTransformer
from torch.nn.functional import pad

# N texts · T tokens

BUCKETS = 4  # lengths that a GPU meets: less padding than one, and few shapes to choose kernels for
MULTIPLE = 32  # tokens


def padded_lengths(max_seq_length: int, *, one: bool) -> tuple[int, ...]:
    """Lengths that texts are padded to, ascending; the last is `max_seq_length`, where texts are cut.

    Args:
        max_seq_length: tokens, prompt and special tokens included.
        one: only the last, for XLA, which compiles anew for every shape.
    """
    if one:
        return (max_seq_length,)
    step = -(-max_seq_length // (BUCKETS * MULTIPLE)) * MULTIPLE
    return (*range(step, max_seq_length, step), max_seq_length)


class PaddedTexts:
    """`model.preprocess` whose input_ids, attention_mask and token_type_ids [N, T] are padded to the next of `lengths`.

    As `preprocess_fn` of sentence-transformers' collator it leaves labels, prompts, routers and data set names to that.
    Features without padding (a flash-attention batch is one row) or without tokens stay as they are.

    Args:
        model: its preprocessing and tokenizer.
        lengths: ascending, in tokens (see `padded_lengths`); longer texts are cut to the last.
    """

    def __init__(self, model: SentenceTransformer, lengths: tuple[int, ...]) -> None:
        self.preprocess: Callable = model.preprocess
        self.lengths = tuple(lengths)
        tokenizer = model.tokenizer
        self.left = getattr(tokenizer, "padding_side", "right") == "left"
        self.fills = {
            "input_ids": getattr(tokenizer, "pad_token_id", None) or 0,
            "attention_mask": 0,
            "token_type_ids": getattr(tokenizer, "pad_token_type_id", 0),
        }

    def __call__(self, inputs: list, **kwargs) -> dict:
        """Features of texts; takes what `model.preprocess` does."""
        features = self.preprocess(inputs, **{"max_length": self.lengths[-1], **kwargs})
        ids_NT = features.get("input_ids")
        if not torch.is_tensor(ids_NT) or "attention_mask" not in features or len(ids_NT) != len(inputs):
            return features
        tokens = ids_NT.shape[1]
        missing = next((length for length in self.lengths if length >= tokens), tokens) - tokens
        sides = (missing, 0) if self.left else (0, missing)
        return {
            name: pad(value, sides, value=self.fills[name]) if name in self.fills else value
            for name, value in features.items()
        }
