"""What is hidden from the model: whole identifiers among the roots, whole leaves.

# S roots · M masked roots, at most · V vocabulary
"""

from __future__ import annotations

import math
import random

import numpy as np

from helpers.graphmer.text.tokenizer import MASK, SPECIAL_TOKENS

IGNORED = -100  # label where nothing is asked for
MASKED, REPLACED = 0.8, 0.1  # of what is chosen; the rest stays as it is (BERT)


def mask_slots(roots: int, mask_prob: float) -> int:
    """M: room for the roots that are masked in a sequence of `roots`."""
    return max(1, math.ceil(round(roots * mask_prob, 6)))


def spans(ids_S: np.ndarray, segments_S: np.ndarray, identifiers_V: np.ndarray | None) -> np.ndarray:
    """Number of the span that each root is in, from 0, int64 [S]: a whole identifier, or one token.

    identifiers_V: which tokens are part of identifiers; None makes every token a span of its own.
    """
    if identifiers_V is None:
        return np.arange(len(ids_S))
    inside_S = identifiers_V[ids_S]
    begins_S = np.ones(len(ids_S), dtype=bool)
    begins_S[1:] = ~(inside_S[1:] & inside_S[:-1]) | (segments_S[1:] != segments_S[:-1])
    return np.cumsum(begins_S) - 1


def mask_roots(
    ids_S: np.ndarray,
    segments_S: np.ndarray,
    *,
    mask_prob: float,
    identifiers_V: np.ndarray | None,
    vocab_size: int,
    generator: np.random.Generator,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids with `mask_prob` of the roots hidden, int64 [S], and the places and labels of those, int64 [M] each.

    Spans are drawn until the share is reached to the token; one that does not fit any more is passed over. Of the spans
    80 % become [MASK], 10 % other tokens, 10 % stay. Unused places are 0 with the label -100. Padding (segment 0) is never
    chosen.
    """
    slots = mask_slots(len(ids_S), mask_prob)
    hidden_S, places_M, labels_M = ids_S.copy(), np.zeros(slots, np.int64), np.full(slots, IGNORED, np.int64)
    used = int(np.count_nonzero(segments_S))
    wanted = int(used * mask_prob + generator.random())
    if not wanted:
        return hidden_S, places_M, labels_M
    span_S = spans(ids_S[:used], segments_S[:used], identifiers_V)
    lengths = np.bincount(span_S)
    order = generator.permutation(len(lengths))
    whole = int(np.searchsorted(np.cumsum(lengths[order]), wanted, side="right"))
    chosen, missing = order[:whole].tolist(), wanted - int(lengths[order[:whole]].sum())
    for span in order[whole:].tolist():
        if not missing:
            break
        if lengths[span] <= missing:
            chosen.append(span)
            missing -= int(lengths[span])
    fate = generator.random(len(chosen))
    fate_of = np.full(len(lengths), 2.0)
    fate_of[chosen] = fate
    fate_S = fate_of[span_S]
    places = np.flatnonzero(fate_S < 1)
    places_M[: len(places)] = places
    labels_M[: len(places)] = ids_S[places]
    hidden_S[np.flatnonzero(fate_S < MASKED)] = MASK
    replaced = np.flatnonzero((fate_S >= MASKED) & (fate_S < MASKED + REPLACED))
    hidden_S[replaced] = generator.integers(len(SPECIAL_TOKENS), vocab_size, len(replaced))
    return hidden_S, places_M, labels_M


def mask_leaves(count: int, mask_prob: float, draw: random.Random) -> set[int]:
    """Which of `count` leaves are hidden: `mask_prob` of them, rounded up or down so that the mean is exact."""
    return set(draw.sample(range(count), int(count * mask_prob + draw.random())))
