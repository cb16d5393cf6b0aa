"""F1 on texts, and how far one training run is from another: paired text by text.

# N texts
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.show.intervals import Interval, bootstrap


def macro_f1(labels_N: np.ndarray, predicted_N: np.ndarray) -> float:
    """Mean of F1 over the labels that have a text; as sklearn's `f1_score`, and fast enough for thousands of resamples."""
    classes = 1 + max(labels_N.max(), predicted_N.max())
    texts = np.bincount(labels_N, minlength=classes)
    hits = np.bincount(labels_N[labels_N == predicted_N], minlength=classes)
    predictions = np.bincount(predicted_N, minlength=classes)
    f1 = 2 * hits / np.maximum(texts + predictions, 1)
    return float(f1[texts > 0].mean())


@dataclass
class Trial:
    """A whole training run, and of a candidate how it compares with the reference."""

    settings: dict[str, Any]
    seconds: float  # of training, by `ClassifierTrainer.training_seconds`
    dev_losses: list[float]  # of each dev text
    dev_predictions: list[int]
    dev_loss: float
    dev_f1: float
    speed: float = 1.0  # seconds of the reference over its own
    loss: Interval | None = None  # by which the mean loss of a dev text is higher
    f1: Interval | None = None  # by which macro F1 on the dev texts is higher
    outcome: str = ""

    def compare(self, reference: "Trial", labels: np.ndarray) -> None:
        """Sets speed, loss and F1 beside the reference; labels: of the dev texts."""
        self.speed = reference.seconds / self.seconds
        difference_N = np.subtract(self.dev_losses, reference.dev_losses)
        self.loss = bootstrap(np.mean, difference_N)
        self.f1 = f1_difference(labels, reference.dev_predictions, self.dev_predictions)


def f1_difference(labels: np.ndarray, before: Sequence[int], after: Sequence[int]) -> Interval:
    """By how much macro F1 of the predictions `after` is higher, over the same texts."""
    columns = np.asarray((labels, before, after))
    return bootstrap(lambda labels_N, *runs: macro_f1(labels_N, runs[1]) - macro_f1(labels_N, runs[0]), *columns)
