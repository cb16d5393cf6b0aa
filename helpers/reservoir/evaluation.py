"""How well texts are predicted: each token's probability, the counts' share of it, and intervals over texts.

# P tokens of a stream of texts · S texts
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from .counts import Counts
from .data import TokenBlocks

WEIGHTS = np.linspace(0, 1, 21)  # of the counts in the mixture
CACHE_WEIGHTS = np.array([0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3])
ORDERS = (3, 4, 5)
BOOTSTRAP = 2_000
BATCH = 16  # blocks


@torch.no_grad()
def probabilities(model, tokens: np.ndarray, end: int, length: int = 128) -> np.ndarray:
    """P of each token of a stream of texts after those of its text before it [P].

    The stream is read in blocks of `length` tokens; attention sees its own block only.
    """
    blocks = TokenBlocks(tokens, end, length).read_states(model)
    found_P = np.zeros(len(tokens))
    spans = zip(blocks.starts, blocks.sizes - 1, strict=True)
    for batch in torch.utils.data.DataLoader(blocks, BATCH):
        ids_BT, state_BS = (batch[key].to(model.device) for key in ("input_ids", "state"))
        logs_BTV = model(input_ids=ids_BT[:, :-1], state=state_BS).logits.log_softmax(-1)
        for p_T in logs_BTV.gather(-1, ids_BT[:, 1:, None]).squeeze(-1).exp().cpu().numpy():
            start, size = next(spans)
            found_P[start : start + size] = p_T[:size]
    return found_P


def fit_counts(train: np.ndarray, dev: np.ndarray, vocab_size: int, end: int) -> tuple[Counts, float]:
    """Counts of the training texts with the order, and the cache weight beside it, that predict dev best when alone."""
    tried = []
    for order in ORDERS:
        counts = Counts.fit(train, vocab_size, end, order)
        _, cache_weight, nats = best_mixture(np.ones(len(dev)), counts, dev, weights=(1.0,))
        tried.append((nats, -order, counts, cache_weight))
    _, _, counts, cache_weight = min(tried, key=lambda each: each[:2])
    return counts, cache_weight


def best_mixture(model_P, counts: Counts, tokens, weights=WEIGHTS) -> tuple[float, float, float]:
    """The weights of counts and cache that predict a stream best beside a model's probabilities, and the nats it then has."""
    tried = []
    for cache_weight, counted_P in zip(CACHE_WEIGHTS, counts.with_cache(tokens, CACHE_WEIGHTS[:, None]), strict=True):
        tried += [(nats_of((1 - w) * model_P + w * counted_P).sum(), w, cache_weight) for w in weights]
    nats, weight, cache_weight = min(tried)
    return float(weight), float(cache_weight), float(nats)


def chosen_mixture(model_P, counts, cache_weight, dev, bytes_V, end) -> tuple[float, float]:
    """The weights of counts and cache that are best on dev, or 1 and the cache weight of counting alone where dev shows no gain."""
    weight, cache, _ = best_mixture(model_P, counts, dev)
    mixed_P = (1 - weight) * model_P + weight * counts.with_cache(dev, cache)
    ours, counting = (Score.of(each_P, dev, bytes_V, end) for each_P in (mixed_P, counts.with_cache(dev, cache_weight)))
    return (weight, cache) if beside(ours, counting)[1] > 0 else (1.0, cache_weight)


def nats_of(probability_P: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(probability_P, 1e-30))


@dataclass(frozen=True)
class Score:
    """Nats and bytes of each text [S]."""

    nats_S: np.ndarray
    bytes_S: np.ndarray

    @classmethod
    def of(cls, probability_P: np.ndarray, tokens: np.ndarray, bytes_V: np.ndarray, end: int) -> Score:
        text_P = np.concatenate(([0], np.cumsum(tokens[:-1] == end)))
        return cls(np.bincount(text_P, nats_of(probability_P)), np.bincount(text_P, bytes_V[tokens]))

    @property
    def bits_per_byte(self) -> float:
        """Unlike nats a token it compares models of different tokenisers."""
        return float(self.nats_S.sum() / np.log(2) / self.bytes_S.sum())


def beside(ours: Score, theirs: Score) -> tuple[float, float, float]:
    """By what share our bits per byte are lower, with a 95 % interval: a bootstrap over the texts, paired."""
    drawn = np.random.default_rng(0).integers(0, len(ours.nats_S), size=(BOOTSTRAP, len(ours.nats_S)))
    shares = 1 - ours.nats_S[drawn].sum(1) / theirs.nats_S[drawn].sum(1)
    low, high = np.percentile(shares, (2.5, 97.5))
    return 1 - float(ours.nats_S.sum() / theirs.nats_S.sum()), float(low), float(high)


def in_words(name: str, other: str, ours: Score, theirs: Score) -> str:
    """One row of the verdict: better, worse or not told apart, by how much, and over how many texts."""
    share, low, high = beside(ours, theirs)
    verdict = "is better than" if low > 0 else "is worse than" if high < 0 else "is not told apart from"
    share, low, high = (f"{abs(each):.1%} {'fewer' if each >= 0 else 'more'}" for each in (share, low, high))
    return (
        f"{name} {verdict} {other}: {ours.bits_per_byte:.3f} against {theirs.bits_per_byte:.3f} bits per byte, {share} "
        f"(95 %: {low} to {high}, over {len(ours.nats_S)} test texts)."
    )


def verdict(scores: dict[str, Score]) -> list[str]:
    """What training adds to counting, what the mixture does, and whether counting is as good; by the names of the scores."""
    counting, ours = scores["counting"], scores["reservoir with counts"]
    rows = [
        in_words("The reservoir without counts", "counting alone", scores["reservoir without counts"], counting),
        in_words("The mixture of both", "counting alone", ours, counting),
    ]
    if "Llama with counts" in scores:
        rows.append(in_words("The mixture of both", "the Llama's mixture", ours, scores["Llama with counts"]))
    if beside(ours, counting)[1] <= 0:
        rows.append(
            "Counting alone is as good on this text: the test texts do not show that training adds anything. "
            "More text or more steps may help."
        )
    return rows
