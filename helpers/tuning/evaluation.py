"""Scores on texts, and whether a candidate trains as well as the stock Trainer: paired text by text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

MARGIN = 0.02  # of the stock run's dev loss: what a candidate may lose and still be called as good
FEWEST_TEXTS = 20  # below it an interval says nothing
RESAMPLES = 1000


def scores(predicted: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """`f1`, the mean over the labels that have a row, and `accuracy`."""
    from sklearn.metrics import accuracy_score, f1_score

    f1 = f1_score(labels, predicted, average="macro", labels=np.unique(labels), zero_division=0)
    return {"f1": float(f1), "accuracy": float(accuracy_score(labels, predicted))}


@dataclass(frozen=True)
class Trial:
    """A whole training run on the same examples as every other one."""

    settings: dict[str, Any]
    seed: int
    seconds: float  # of training, by `training.clock`
    dev_losses: list[float]  # of each dev text

    @property
    def dev_loss(self) -> float:
        return float(np.mean(self.dev_losses))


@dataclass(frozen=True)
class Quality:
    """Tuned runs beside stock runs with the same seeds."""

    speed: float  # seconds of the stock runs over those of the tuned ones
    difference: float  # of the mean loss of a dev text, tuned less stock
    low: float
    high: float
    margin: float
    by_seed: list[float]  # the difference of each seed

    def __str__(self) -> str:
        seeds = ", ".join(f"{difference:+.3f}" for difference in self.by_seed)
        return (
            f"{self.speed:.2f} times as fast, dev loss {self.difference:+.3f} ({self.low:+.3f} to {self.high:+.3f}); as good is at most "
            f"{self.margin:+.3f}; by seed {seeds}"
        )


def compare_quality(stock: Sequence[Trial], tuned: Sequence[Trial]) -> Quality:
    """The difference in dev loss, mean over seeds, with Student's 95 % interval over dev texts, which all runs share.

    The interval says nothing of other seeds; `by_seed` shows how far these are apart. Fewer than 20 dev texts give an interval
    without ends.
    """
    losses = np.array([trial.dev_losses for trial in tuned]) - np.array([trial.dev_losses for trial in stock])
    half = math.inf
    if losses.shape[1] >= FEWEST_TEXTS:
        half = _half_width(losses.mean(axis=0))
    mean = float(losses.mean())
    return Quality(
        speed=sum(trial.seconds for trial in stock) / sum(trial.seconds for trial in tuned),
        difference=mean,
        low=mean - half,
        high=mean + half,
        margin=MARGIN * float(np.mean([trial.dev_loss for trial in stock])),
        by_seed=losses.mean(axis=1).tolist(),
    )


def _half_width(values: np.ndarray) -> float:
    """Of Student's 95 % interval of the mean."""
    from scipy.stats import t

    return float(t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / math.sqrt(len(values)))


def f1_difference(labels: Sequence[int], stock: np.ndarray, tuned: np.ndarray) -> tuple[float, float, float]:
    """Macro F1 of the tuned runs less that of the stock runs, mean over seeds, and its 95 % interval over test texts.

    stock, tuned: predictions, [seeds, texts], of the same seeds. The bootstrap draws texts, so that each pair shares them.
    """
    labels = np.asarray(labels)
    classes = int(max(labels.max(), stock.max(), tuned.max())) + 1
    draw, drawn = np.random.default_rng(0), []
    for _ in range(RESAMPLES):
        texts = draw.integers(len(labels), size=len(labels))
        drawn.append(
            _mean_f1(labels[texts], tuned[:, texts], classes) - _mean_f1(labels[texts], stock[:, texts], classes)
        )
    low, high = np.quantile(drawn, (0.025, 0.975))
    mean = _mean_f1(labels, tuned, classes) - _mean_f1(labels, stock, classes)
    return float(mean), float(low), float(high)


def _mean_f1(labels: np.ndarray, predictions: np.ndarray, classes: int) -> float:
    """Mean over seeds of macro F1, as `scores` computes it."""
    present = np.bincount(labels, minlength=classes)
    total = 0.0
    for predicted in predictions:
        hits = np.bincount(labels[labels == predicted], minlength=classes)
        f1 = 2 * hits / np.maximum(present + np.bincount(predicted, minlength=classes), 1)
        total += f1[present > 0].mean()
    return float(total / len(predictions))
