"""F1 on texts, and how far one training run is from another: paired text by text.

# N texts
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.show.intervals import Interval, bootstrap


def macro_f1(labels: Sequence[int], predicted: Sequence[int]) -> float:
    """Mean of F1 over the labels that have a text; as sklearn's `f1_score`, and fast enough for thousands of resamples."""
    labels_N, predicted_N = np.asarray(labels), np.asarray(predicted)
    classes = 1 + max(labels_N.max(), predicted_N.max())
    texts = np.bincount(labels_N, minlength=classes)
    hits = np.bincount(labels_N[labels_N == predicted_N], minlength=classes)
    f1 = 2 * hits / np.maximum(texts + np.bincount(predicted_N, minlength=classes), 1)
    return float(f1[texts > 0].mean())


@dataclass(frozen=True)
class Trial:
    """A whole training run."""

    settings: dict[str, Any]
    seconds: float  # of training, by `training.clock`
    dev_losses: list[float]  # of each dev text
    dev_predictions: list[int]
    dev_loss: float
    dev_f1: float


@dataclass(frozen=True)
class Quality:
    """A tuned run beside a reference run with the same seed."""

    speed: float  # seconds of the reference run over those of the tuned one
    stock_loss: float  # of the reference run
    loss: Interval  # of the mean loss of a dev text
    f1: Interval  # of macro F1 on the dev texts

    def __str__(self) -> str:
        return f"{self.speed:.2f} times as fast, dev loss {self.loss}, dev F1 {self.f1}"


def compare_quality(labels: Sequence[int], reference: Trial, tuned: Trial) -> Quality:
    """Speed, dev loss and dev F1; labels: of the dev texts."""
    return Quality(
        speed=reference.seconds / tuned.seconds,
        stock_loss=reference.dev_loss,
        loss=bootstrap(np.mean, np.subtract(tuned.dev_losses, reference.dev_losses)),
        f1=f1_difference(labels, reference.dev_predictions, tuned.dev_predictions),
    )


def f1_difference(labels: Sequence[int], before: Sequence[int], after: Sequence[int]) -> Interval:
    """By how much macro F1 of the predictions `after` is higher, over the same texts."""

    def difference(labels_N, before_N, after_N):
        return macro_f1(labels_N, after_N) - macro_f1(labels_N, before_N)

    return bootstrap(difference, np.asarray(labels), np.asarray(before), np.asarray(after))
