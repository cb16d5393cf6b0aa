"""How well texts are predicted: each token's probability, and intervals over texts.

# P tokens of a stream of texts · R rows · S texts
"""

from __future__ import annotations

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
    def of(cls, probability_P: np.ndarray, tokens: np.ndarray, bytes_V: np.ndarray, end: int) -> Score:
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


def describe(name: str, other_name: str, score: Score, other: Score) -> str:
    """One row of the verdict: better, worse or no significant difference, by how much, and over how many texts."""
    share = compare(score, other)
    measured = f"{score.bits_per_byte:.3f} against {other.bits_per_byte:.3f} bits per byte, {_fewer(share.value)}"
    if share.items < FEWEST:
        return f"{name} and {other_name}: {measured}. {share.items} test texts are too few for a verdict."
    interval = f"95 %: {_fewer(share.low)} to {_fewer(share.high)}, over {share.items} test texts"
    return f"{name} compared with {other_name}: {share.outcome}, {measured} ({interval})."


def _fewer(share: float) -> str:
    if share < 0:
        return f"{-share:.1%} more"
    return f"{share:.1%} fewer"


def verdict(scores: dict[str, Score], model: str) -> list[str]:
    """What training adds to counting, and how the model stands beside each rival; by the names of the scores."""
    rows = []
    for rival, score in scores.items():
        if rival != model:
            name = rival
            if rival != "counting":
                name = f"the {rival}"
            rows.append(describe(f"The {model}", name, scores[model], score))
    gain = compare(scores[model], scores["counting"])
    if gain.items >= FEWEST and gain.low <= 0:
        rows.append("Counting alone is as good on this text. More text or more steps may help.")
    return rows
