"""What any language model must beat: predicting by how often a token occurs, or occurs after the one before.

# V vocabulary · B blocks · T tokens in a block
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from helpers.reservoir.blocks import TokenBlocks

MAX_TRAIN_TOKENS = 20_000_000  # bounds time (a sort) and memory (under 1 GB)
SMOOTHING = 0.1  # added to each token's count, so that an unseen token has a probability
HELD_OUT_SHARE = 0.1
PRIOR_STRENGTHS = tuple(2.0**power for power in range(-2, 17))


@dataclass(frozen=True)
class Unigram:
    """P(b) = (count(b) + 0.1) / (N + 0.1 V)."""

    probability_V: np.ndarray

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int) -> "Unigram":
        counts_V = np.bincount(tokens, minlength=vocab_size) + SMOOTHING
        return cls(counts_V / counts_V.sum())


@dataclass(frozen=True)
class Bigram:
    """P(b | a) = (count(a b) + k P(b)) / (count(a) + k): the bigram's frequency mixed with the unigram.

    The unigram's weight k / (count(a) + k) falls as the context a is seen more often (Dirichlet prior smoothing, MacKay
    and Peto 1995); k = `prior_strength`. A context never seen leaves the unigram.
    """

    unigram: Unigram
    context_counts_V: np.ndarray
    pairs: np.ndarray  # sorted codes a * V + b of the pairs seen
    pair_counts: np.ndarray
    prior_strength: float = 1.0

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, prior_strength: float = 1.0) -> "Bigram":
        pairs, pair_counts = np.unique(tokens[:-1] * vocab_size + tokens[1:], return_counts=True)
        context_counts_V = np.bincount(tokens[:-1], minlength=vocab_size)
        return cls(Unigram.fit(tokens, vocab_size), context_counts_V, pairs, pair_counts, prior_strength)

    def counts(self, context: np.ndarray, token: np.ndarray) -> np.ndarray:
        """How often `token` followed `context`, elementwise."""
        codes = context * len(self.context_counts_V) + token
        position = np.searchsorted(self.pairs, codes).clip(max=len(self.pairs) - 1)
        return np.where(self.pairs[position] == codes, self.pair_counts[position], 0)

    def probability(self, context: np.ndarray, token: np.ndarray) -> np.ndarray:
        """P(token | context), elementwise."""
        prior = self.prior_strength * self.unigram.probability_V[token]
        return (self.counts(context, token) + prior) / (self.context_counts_V[context] + self.prior_strength)


def unigram_nats(train_tokens: np.ndarray, blocks: TokenBlocks, vocab_size: int) -> float:
    """Mean nats per predicted token of `blocks` (all but the first of each block) under the unigram of `train_tokens`.

    train_tokens: [tokens], a memmap or array; the first 20 million count. Raises ValueError where there are too few
    or one is not below `vocab_size`.
    """
    nats_V = -np.log(Unigram.fit(_checked(train_tokens, vocab_size), vocab_size).probability_V)
    return _mean(blocks, lambda context, token: nats_V[token])


def bigram_nats(train_tokens: np.ndarray, blocks: TokenBlocks, vocab_size: int) -> float:
    """As `unigram_nats`, under the interpolated bigram; its mixing is chosen on the last 10 % of `train_tokens`."""
    tokens = _checked(train_tokens, vocab_size)
    bigram = Bigram.fit(tokens, vocab_size, prior_strength(tokens, vocab_size))
    return _mean(blocks, lambda context, token: -np.log(bigram.probability(context, token)))


def prior_strength(tokens: np.ndarray, vocab_size: int) -> float:
    """The k of `Bigram` that predicts the last 10 % of `tokens` best when counts come from the rest."""
    cut = len(tokens) - max(2, int(HELD_OUT_SHARE * len(tokens)))
    bigram = Bigram.fit(tokens[:cut], vocab_size)
    held_out, repeats = np.unique(tokens[cut:-1] * vocab_size + tokens[cut + 1 :], return_counts=True)
    context, token = np.divmod(held_out, vocab_size)
    pair_counts, context_counts = bigram.counts(context, token), bigram.context_counts_V[context]
    prior = bigram.unigram.probability_V[token]
    losses = [
        -float((repeats * np.log((pair_counts + k * prior) / (context_counts + k))).sum()) for k in PRIOR_STRENGTHS
    ]
    return PRIOR_STRENGTHS[int(np.argmin(losses))]


def _checked(train_tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    tokens = np.asarray(train_tokens[:MAX_TRAIN_TOKENS]).astype(np.int64)
    if len(tokens) < 4:
        raise ValueError(f"train_tokens: {len(tokens)} tokens are too few to count; use more stories")
    if tokens.max() >= vocab_size:
        raise ValueError(f"vocab_size={vocab_size}: train_tokens holds token {tokens.max()}; use len(tokenizer)")
    return tokens


def _mean(blocks: TokenBlocks, nats: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> float:
    total = sum(float(nats(ids_BT[:, :-1], ids_BT[:, 1:]).sum()) for ids_BT in blocks.arrays())
    return total / (len(blocks) * (blocks.sequence_length - 1))
