"""F1 on the test texts; the stock Trainer and the tuned settings over paired seeds."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.special import softmax

from helpers.machine import ranks
from helpers.show import tracking

# N texts · C labels
START, TUNED = "stock", "tuned"


def scores(logits_NC: np.ndarray, labels_N: Sequence[int]) -> dict[str, float]:
    """`f1` (of the second of two labels, else the mean over labels), `accuracy` and mean `log_loss` in nats."""
    from sklearn.metrics import accuracy_score, f1_score

    logits_NC = np.asarray(logits_NC, dtype=np.float64)
    predicted_N, C = logits_NC.argmax(axis=1), logits_NC.shape[1]
    chosen_N = softmax(logits_NC, axis=1)[np.arange(len(labels_N)), labels_N]
    # A label without a row has no F1.
    of = {"average": "binary"} if C == 2 else {"average": "macro", "labels": np.unique(labels_N)}
    return {
        "f1": float(f1_score(labels_N, predicted_N, zero_division=0, **of)),
        "accuracy": float(accuracy_score(labels_N, predicted_N)),
        "log_loss": float(-np.log(np.maximum(chosen_N, 1e-12)).mean()),
    }


def test_scores(trainer, task) -> dict[str, float]:
    """Of a trained model."""
    rows = task.rows("test", trainer.settings)
    return scores(trainer.logits(rows), [row["labels"] for row in rows])


# ---- stock and tuned at equal quality

Runs = Mapping[int, Mapping[str, Mapping[str, Any]]]  # seed -> START or TUNED -> scores and training_seconds


@dataclass(frozen=True)
class Verdict:
    """The tuned settings against the stock Trainer, over the seeds that trained both."""

    runs: Runs
    quality_kept: bool | None  # None: not checked
    why: str


def measured(trainer, task) -> dict[str, float]:
    return {**test_scores(trainer, task), "training_seconds": trainer.training_seconds()}


def paired_seeds(trainer, task, folder: Path, train, *, seconds: float) -> Verdict:
    """Trains the stock and the tuned settings with each seed, as far as they are expected to end within `seconds`.

    Args:
        trainer: the tuned run of the first seed, trained.
        train: (settings, folder, seed) -> a trained trainer.
    """
    params, began = task.params, time.monotonic()
    runs = {params.seed: {TUNED: measured(trainer, task)}}
    tuned = trainer.settings
    if tuned == task.start:
        why = "No change was kept: the stock Trainer was trained once, and there is nothing to compare."
        return Verdict(runs, None, why)
    last = trainer.results()["train"]["seconds"]
    for seed in range(params.seed, params.seed + params.paired_seeds):
        for name, settings in ((START, task.start), (TUNED, tuned)):
            if name in runs.get(seed, {}):
                continue
            left = seconds - ranks.broadcast(time.monotonic() - began)
            if last > left:
                tracking.say(f"Seed {seed}, {name}: left out, since no time of tuning_minutes is left.")
                return verdict(runs)
            tracking.say(f"Seed {seed}, {name}")
            started = time.monotonic()
            runs.setdefault(seed, {})[name] = measured(train(settings, folder / f"{name}-{seed}", seed), task)
            last = max(last, ranks.broadcast(time.monotonic() - started))
    return verdict(runs)


def verdict(runs: Runs) -> Verdict:
    """Whether test F1 is told apart over paired seeds: Student's 95 % interval of the mean difference."""
    from scipy.stats import t

    pairs = [pair for pair in runs.values() if len(pair) == 2]
    differences = [pair[TUNED]["f1"] - pair[START]["f1"] for pair in pairs]
    if len(pairs) < 3:
        said = f" F1 {statistics.fmean(differences):+.4f} over {len(pairs)} seed(s)." if pairs else ""
        return Verdict(runs, None, f"Quality was not checked: that takes three seeds with both settings.{said}")
    mean = statistics.fmean(differences)
    half = float(t.ppf(0.975, len(pairs) - 1)) * statistics.stdev(differences) / math.sqrt(len(pairs))
    said = "not told apart from" if abs(mean) <= half else "better than" if mean > 0 else "WORSE than"
    why = f"Test F1 {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f} over {len(pairs)} seeds): {said} the stock Trainer."
    return Verdict(runs, mean >= -half, why)
