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

from helpers.machine import ranks
from helpers.show import tracking

START, TUNED = "stock", "tuned"
MARGIN = 0.01  # of F1: quality counts as kept where the whole interval lies above a loss of so much


def scores(predicted: Sequence[int], labels: Sequence[int]) -> dict[str, float]:
    """`f1`, the mean over the labels that have a row, and `accuracy`."""
    from sklearn.metrics import accuracy_score, f1_score

    f1 = f1_score(labels, predicted, average="macro", labels=np.unique(labels), zero_division=0)
    return {"f1": float(f1), "accuracy": float(accuracy_score(labels, predicted))}


# ---- stock and tuned at equal quality

Runs = Mapping[int, Mapping[str, Mapping[str, Any]]]  # seed -> START or TUNED -> scores and training_seconds


@dataclass(frozen=True)
class Verdict:
    """The tuned settings against the stock Trainer, over the seeds that trained both."""

    runs: Runs
    quality_kept: bool | None  # None: not decided
    why: str


def measured(trainer, task) -> dict[str, float]:
    """Scores of a trained model on the test texts, and the seconds that its training took."""
    rows = task.rows("test", trainer.settings)
    found = scores(trainer.logits(rows).argmax(axis=1), [row["labels"] for row in rows])
    return {**found, "training_seconds": trainer.training_seconds()}


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
    """Whether test F1 is kept: Student's 95 % interval of the mean difference over paired seeds, against `MARGIN`.

    A loss that is not shown is not a quality that is kept: where the interval holds both, quality is not decided.
    """
    from scipy.stats import t

    pairs = [pair for pair in runs.values() if len(pair) == 2]
    differences = [pair[TUNED]["f1"] - pair[START]["f1"] for pair in pairs]
    seeds = len(pairs)
    if seeds < 3:
        measured_so_far = f" F1 {statistics.fmean(differences):+.4f} over {seeds} seed(s)." if pairs else ""
        return Verdict(
            runs, None, f"Quality: not decided, since that takes three seeds with both settings.{measured_so_far}"
        )
    mean = statistics.fmean(differences)
    half = float(t.ppf(0.975, seeds - 1)) * statistics.stdev(differences) / math.sqrt(seeds)
    low, high = mean - half, mean + half
    difference = f"Test F1 {mean:+.4f} ({low:+.4f} to {high:+.4f} over {seeds} seeds)"
    smaller_batch = "If the batch has grown, training had fewer steps: set batch_size to the stock batch and run again in a new folder."
    if high < 0:
        return Verdict(runs, False, f"{difference}: WORSE than the stock Trainer. {smaller_batch}")
    if low >= -MARGIN:
        word = "better than" if low > 0 else "as good as"
        return Verdict(runs, True, f"{difference}: {word} the stock Trainer, within {MARGIN:g}.")
    why = f"{difference}: not decided, since a loss of more than {MARGIN:g} is possible"
    if max(differences) < 0:
        why += f" and F1 was lower with each of the {seeds} seeds. {smaller_batch}"
        return Verdict(runs, None, why)
    return Verdict(runs, None, f"{why}.")
