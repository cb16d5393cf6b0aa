"""Scores on texts, and how far tuned runs are from stock runs: paired text by text and seed by seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from helpers.show.intervals import Interval, bootstrap


def scores(predicted: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """`f1`, the mean over the labels that have a row, and `accuracy`."""
    from sklearn.metrics import accuracy_score, f1_score

    f1 = f1_score(labels, predicted, average="macro", labels=np.unique(labels), zero_division=0)
    return {"f1": float(f1), "accuracy": float(accuracy_score(labels, predicted))}


@dataclass(frozen=True)
class Trial:
    """A whole training run."""

    settings: dict[str, Any]
    seed: int
    seconds: float  # of training, by `training.clock`
    dev_losses: list[float]  # of each dev text
    dev_predictions: list[int]

    @property
    def dev_loss(self) -> float:
        return float(np.mean(self.dev_losses))


@dataclass(frozen=True)
class Quality:
    """Tuned runs beside stock runs with the same seeds."""

    speed: float  # seconds of the stock runs over those of the tuned ones
    stock_loss: float
    loss: Interval  # of the mean loss of a dev text
    f1: Interval  # of macro F1 on the dev texts

    def __str__(self) -> str:
        return f"{self.speed:.2f} times as fast, dev loss {self.loss}, dev F1 {self.f1}"


def compare_quality(labels: Sequence[int], stock: Sequence[Trial], tuned: Sequence[Trial]) -> Quality:
    """Speed, dev loss and dev F1 of tuned runs beside stock runs with the same seeds; labels: of the dev texts."""
    stock_seconds, stock_losses, stock_predictions = _columns(stock)
    tuned_seconds, tuned_losses, tuned_predictions = _columns(tuned)
    losses = (tuned_losses - stock_losses).mean(axis=0)
    return Quality(
        speed=stock_seconds / tuned_seconds,
        stock_loss=float(np.mean([trial.dev_loss for trial in stock])),
        loss=bootstrap(np.mean, losses),
        f1=f1_difference(labels, stock_predictions, tuned_predictions),
    )


def _columns(trials: Sequence[Trial]) -> tuple[float, np.ndarray, np.ndarray]:
    """Seconds of all trials; losses and predictions, [seeds, texts]."""
    seconds = sum(trial.seconds for trial in trials)
    losses = np.array([trial.dev_losses for trial in trials])
    return seconds, losses, np.array([trial.dev_predictions for trial in trials])


def f1_difference(labels: Sequence[int], stock: np.ndarray, tuned: np.ndarray) -> Interval:
    """Of macro F1, mean over seeds, with an interval over texts. stock, tuned: predictions, [seeds, texts], of the same seeds."""
    truth = np.asarray(labels)
    classes = int(max(truth.max(), stock.max(), tuned.max())) + 1

    def difference(labels: np.ndarray, stock: np.ndarray, tuned: np.ndarray) -> float:
        return _mean_f1(labels, tuned.T, classes) - _mean_f1(labels, stock.T, classes)

    return bootstrap(difference, truth, stock.T, tuned.T)


def _mean_f1(labels: np.ndarray, predictions: np.ndarray, classes: int) -> float:
    """Mean over seeds of macro F1, as `scores` computes it."""
    present = np.bincount(labels, minlength=classes)
    total = 0.0
    for predicted in predictions:
        hits = np.bincount(labels[labels == predicted], minlength=classes)
        f1 = 2 * hits / np.maximum(present + np.bincount(predicted, minlength=classes), 1)
        total += f1[present > 0].mean()
    return float(total / len(predictions))
