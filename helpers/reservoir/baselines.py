"""What any language model must beat: predicting by how often a token occurs, or occurs after the one or two before.

# V vocabulary · B blocks · T tokens in a block
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from helpers.reservoir.blocks import TokenBlocks

MAX_TRAIN_TOKENS = 20_000_000  # bounds time (a sort) and memory (under 1 GB; 2 GB where no three tokens repeat)


@dataclass(frozen=True)
class KneserNey:
    """Interpolated modified Kneser-Ney n-grams (Chen and Goodman, Computer Speech and Language 13, 1999, section 3).

    P(c | a b) = (count(a b c) - D(count(a b c))) / count(a b) + gamma(a b) P(c | b), gamma making it sum to 1, and so
    on down to 1 / V. The counts of all but the highest order are numbers of different tokens seen before them.
    """

    vocab_size: int
    levels: tuple["Level", ...]  # unigram, bigram, ...

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, order: int) -> "KneserNey":
        count = len(tokens) - order + 1
        codes = tokens[:count]
        for place in range(1, order):  # three tokens fit 63 bits for V up to 2**21
            codes = codes * vocab_size + tokens[place : place + count]
        grams, counts = np.unique(codes, return_counts=True)
        levels = [Level.fit(grams, counts, vocab_size)]
        for shorter in range(order - 1, 0, -1):
            grams, counts = np.unique(grams % vocab_size**shorter, return_counts=True)
            levels.insert(0, Level.fit(grams, counts, vocab_size))
        return cls(vocab_size, tuple(levels))

    def probability(self, context: Sequence[np.ndarray], token: np.ndarray) -> np.ndarray:
        """P(token | context), elementwise; `context` is the tokens before it, fewer than `order`, in the order of the text."""
        probability, code = 1 / self.vocab_size, 0
        for order, level in enumerate(self.levels[: len(context) + 1]):
            if order:
                code = code + context[-order] * self.vocab_size ** (order - 1)
            share = _look_up(level.grams, level.shares, code * self.vocab_size + token, 0.0)
            probability = share + _look_up(level.contexts, level.weights, code, 1.0) * probability
        return probability

    def of_next(self, ids_BT: np.ndarray) -> np.ndarray:
        """P of every token but the first of a row after those before it in the row, at most order - 1 of them, [B, T - 1]."""
        T, most = ids_BT.shape[1], len(self.levels) - 1
        begin = [self.probability(list(ids_BT[:, :t].T[..., None]), ids_BT[:, t : t + 1]) for t in range(1, most)]
        contexts = [ids_BT[:, place : T - most + place] for place in range(most)]
        return np.concatenate([*begin, self.probability(contexts, ids_BT[:, max(1, most) :])], axis=1)


@dataclass(frozen=True)
class Level:
    """One order of `KneserNey`: P(c | context) = share(context c) + weight(context) P(c | shorter context)."""

    grams: np.ndarray  # sorted codes context * V + c
    shares: np.ndarray
    contexts: np.ndarray  # sorted codes
    weights: np.ndarray

    @classmethod
    def fit(cls, grams: np.ndarray, counts: np.ndarray, vocab_size: int) -> "Level":
        contexts, starts = np.unique(grams // vocab_size, return_index=True)
        totals = np.add.reduceat(counts, starts)
        discounts = _discounts(counts)[np.minimum(counts, 3)]
        weights = np.add.reduceat(discounts, starts) / totals
        shares = (counts - discounts) / np.repeat(totals, np.diff(starts, append=len(grams)))
        return cls(grams, shares, contexts, weights)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """(0, D1, D2, D3+) from how many n-grams occur once to four times (Chen and Goodman 1999, equation 17).

    Where a small text does not give them, n1 / (n1 + 2 n2) for every count (Ney, Essen and Kneser 1994), or else 1/2.
    """
    n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=5)[1:5].tolist()
    single = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if n1 and n2 and n3 and n4:
        discounts = np.array([0.0, single, 2 - 3 * single * n3 / n2, 3 - 4 * single * n4 / n3])
        if (discounts[1:] > 0).all():
            return discounts
    return np.array([0.0, single, single, single])


def kneser_ney_nats(train_tokens: np.ndarray, blocks: TokenBlocks, vocab_size: int, order: int) -> float:
    """Mean nats per predicted token of `blocks` (all but the first of each block) under the n-grams of `train_tokens`."""
    model = KneserNey.fit(np.asarray(train_tokens[:MAX_TRAIN_TOKENS]).astype(np.int64), vocab_size, order)
    return -float(np.log(model.of_next(blocks.ids_BT.astype(np.int64))).mean())


def _look_up(keys: np.ndarray, values: np.ndarray, codes: np.ndarray, absent: float) -> np.ndarray:
    """The value of each code in the sorted `keys`, elementwise, or `absent`."""
    position = np.searchsorted(keys, codes).clip(max=len(keys) - 1)
    return np.where(keys[position] == codes, values[position], absent)
