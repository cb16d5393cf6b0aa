"""How well texts are predicted: each token's probability, and intervals over texts.

# P tokens of a stream of texts · R rows · S texts
"""

import lzma
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from helpers.show.intervals import FEWEST, Interval, bootstrap

from .training import STRETCH, begin_rows


@torch.no_grad()
def probabilities(model, tokens: np.ndarray, end: int) -> np.ndarray:
    """P of each token of a stream of texts after those of its text before it [P]."""
    model.eval()
    inputs = np.append(end, tokens[:-1]).astype(np.int64)
    starts = begin_rows(inputs, end)[:, None]
    stops = np.append(starts[1:], len(tokens))[:, None]
    probability_P, state = np.zeros(len(tokens)), None
    for begin in range(0, int((stops - starts).max()), STRETCH):
        places = starts + np.arange(begin, begin + STRETCH)
        inside = places < stops
        places = places.clip(max=len(tokens) - 1)
        ids_RT = torch.from_numpy(inputs[places]).to(model.device)
        output = model(ids_RT, state=state)
        state = output.state
        targets_RT = torch.from_numpy(tokens[places].astype(np.int64)).to(model.device)
        logs_RTV = output.logits.log_softmax(-1)
        logs_RT = logs_RTV.gather(-1, targets_RT[..., None]).squeeze(-1)
        p_RT = logs_RT.exp().cpu().numpy()
        probability_P[places[inside]] = p_RT[inside]
    return probability_P


def nats_of(probability_P: np.ndarray) -> np.ndarray:
    return -np.log(np.maximum(probability_P, 1e-30))


@dataclass(frozen=True)
class Score:
    """Nats and bytes of each text [S]."""

    nats_S: np.ndarray
    bytes_S: np.ndarray

    @classmethod
    def of(cls, probability_P: np.ndarray, tokens: np.ndarray, bytes_V: np.ndarray, end: int) -> "Score":
        text_P = np.append(0, np.cumsum(tokens[:-1] == end))
        nats_S = np.bincount(text_P, nats_of(probability_P))
        return cls(nats_S, np.bincount(text_P, bytes_V[tokens]))

    @property
    def bits_per_byte(self) -> float:
        """Unlike nats a token it compares models of different tokenisers."""
        bits = self.nats_S.sum() / np.log(2)
        return float(bits / self.bytes_S.sum())


def compare(score: Score, other: Score) -> Interval:
    """By what share the bits per byte of the first are lower, over the same texts."""

    def share(nats_S, others_S):
        return 1 - nats_S.sum() / others_S.sum()

    return bootstrap(share, score.nats_S, other.nats_S)


def compressed_bits(train: Sequence[str], test: Sequence[str]) -> float:
    """Bits per byte of the test texts by `lzma` (xz -9e) after the training texts: bits of both less those of the first."""
    before = "\n\n".join(train).encode()
    texts = "\n\n".join(test).encode()
    strongest = 9 | lzma.PRESET_EXTREME
    both = lzma.compress(before + texts, preset=strongest)
    added = len(both) - len(lzma.compress(before, preset=strongest))
    return 8 * added / len(texts)


def verdict(model: Score, counting: Score, compressed: float) -> str:
    """What training adds to counting on the test texts, with an interval over texts, and how far a compressor comes."""
    share = compare(model, counting)
    bits = (
        f"{model.bits_per_byte:.3f} bits per byte of the test texts; counting alone needs {counting.bits_per_byte:.3f}"
    )
    fewer = f"{share.value:.1%} fewer bits than counting ({share.low:.1%} to {share.high:.1%} over {share.items} test texts)"
    outcome = {"better": "Yes", "worse": "No"}.get(share.outcome, "Not shown")
    if share.items < FEWEST:
        fewer = f"{share.items} test texts are too few for an interval"
    return f"{outcome}: {bits}, and xz {compressed:.3f}. {fewer}; one training run."
