"""Whole runs of the start and of the tuned settings at equal quality, and the step back where quality was lost."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import ranks, tables, tracking

from .decision import half_width
from .experiment import row
from .settings import Settings
from .task import Task
from .training import ClassifierTrainer

START, TUNED = "start", "tuned"
# What is taken back, and which settings that is: what is likeliest to cost quality for what it gives goes first.
STEPS_BACK = {
    "not grouped": ("padding",),
    "full length": ("length",),
    "first optimizer": ("optimizer",),
    "first batch size": ("batch_size", "gradient_checkpointing"),
    "first precision": ("precision", "tf32"),
}
Rows = Mapping[int, Mapping[str, Mapping]]  # seed -> name of the settings -> what `row` found


@dataclass(frozen=True)
class Verdict:
    """Chosen settings against the start."""

    f1: dict[str, list[float]]  # of the test, a value a seed
    speed_up: list[float]  # training time of the start over that of the chosen, a seed each
    quality_kept: bool | None  # None with one seed: the spread is not known
    why: str


@dataclass(frozen=True)
class Comparison:
    """What the whole runs gave."""

    rows: dict[int, dict[str, dict]]
    chosen: str  # name of the settings that stay
    settings: Settings  # these
    trainer: ClassifierTrainer  # of the first seed, trained with them
    verdict: Verdict

    def results(self) -> dict[str, Any]:
        """Parts of results.json."""
        return {"comparison": self.rows, "chosen": self.chosen, "verdict": vars(self.verdict)}

    def table(self) -> list[dict[str, Any]]:
        """Every run, for `tables.show`; evaluation and compilation are left out of the time."""
        return [
            {
                "settings": name,
                "seed": seed,
                "steps": found["steps"],
                "test F1": found["f1"],
                "accuracy": found["accuracy"],
                "validation F1": found["validation_f1"],
                "training": tables.seconds(found["training_seconds"]),
                "times as fast": models[START]["training_seconds"] / found["training_seconds"]
                if START in models
                else None,
            }
            for seed, models in self.rows.items()
            for name, found in models.items()
        ]


def compare(
    trainer: ClassifierTrainer, task: Task, folder: Path, *, spent: float = 0.0, speed_up: float = 1.0
) -> Comparison:
    """Trains the start and the tuned settings with every seed; where quality is lost, steps back until it is not.

    Args:
        trainer: the tuned run of the first seed, trained.
        folder: in which every further run gets one.
        spent: seconds of `tuning_minutes` that are gone; a run is begun only where it is expected to end within the rest.
        speed_up: of the tuned settings over the start, as they were timed.
    """
    params, start, tuned = task.params, task.start, trainer.settings
    rows: dict[int, dict[str, dict]] = {params.seed: {TUNED: row(trainer, task)}}
    began, reference = time.monotonic(), rows[params.seed]
    seconds = 60 * params.tuning_minutes - spent if params.tuning_minutes else math.inf

    def run(name: str, settings: Settings, seed: int) -> ClassifierTrainer:
        tracking.say(f"\n{name}, seed {seed}")
        made = ClassifierTrainer(task, settings, folder / f"{name.replace(' ', '-')}-{seed}", seed=seed)
        made.train(resume_from_checkpoint=params.resume)
        rows.setdefault(seed, {})[name] = row(made, task)
        return made

    def time_for(name: str, needed: float) -> bool:
        """Whether runs of so many seconds end in time; says so where they do not."""
        left = seconds - ranks.broadcast(time.monotonic() - began)
        if needed > left:
            tracking.say(
                f"\n{name} is left out: {tables.seconds(needed)} expected, {tables.seconds(max(left, 1))} left"
            )
        return needed <= left

    tuned_seconds = reference[TUNED]["total_seconds"]
    if params.compare_start and time_for(START, tuned_seconds * speed_up):
        run(START, start, params.seed)
        one = reference[START]["total_seconds"]
        for seed in range(params.seed + 1, params.seed + 1 + params.further_seeds):
            if not time_for(f"seed {seed}", one + tuned_seconds):
                break
            run(TUNED, tuned, seed)
            run(START, start, seed)
    chosen = TUNED, tuned
    for name, settings in steps_back(tuned, start).items() if START in reference else ():
        lost = quality_lost(rows, chosen[0])
        if not lost or not time_for(name, one * len(rows)):
            break
        tracking.say(f"\n{lost}: once more, {name}")
        chosen = name, settings
        trainer = run(name, settings, params.seed)
        for seed in [*rows][1:]:
            run(name, settings, seed)
    return Comparison(rows, *chosen, trainer, verdict(rows, chosen[0]))


def steps_back(tuned: Settings, start: Settings) -> dict[str, Settings]:
    """Name -> settings without one more of the changes that alter what is learnt; the others leave the arithmetic as it is."""
    found, last = {}, tuned
    for name, fields in STEPS_BACK.items():
        back = dataclasses.replace(last, **{field: getattr(start, field) for field in fields})
        if back != last:
            found[name] = last = back
    return found


def quality_lost(rows: Rows, name: str) -> str:
    """What to say if validation F1 is below the start's by more than the standard error over seeds; "" if not.

    Stricter than the verdict, and blind to the test: what is chosen by a number is flattered by it.
    """
    differences = _differences(rows, name, "validation_f1")
    if len(differences) == 1:
        return ""
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    if mean >= -error:
        return ""
    return f"{name}: validation F1 {mean:+.4f} against the start, more than its standard error of {error:.4f}"


def _differences(rows: Rows, name: str, score: str) -> list[float]:
    """From the start of the same seed, which shares data, order and first weights: what differs between seeds is left out."""
    return [found[name][score] - found[START][score] for found in rows.values()]


def verdict(rows: Rows, chosen: str = TUNED) -> Verdict:
    """Whether the runs of the chosen settings are faster, and whether their test F1 is told apart from the start's over seeds."""
    f1 = {name: [found[name]["f1"] for found in rows.values() if name in found] for name in (START, chosen)}
    if not f1[START]:
        return Verdict({chosen: f1[chosen]}, [], None, "quality not checked: the start was not trained")
    speed_up = [found[START]["training_seconds"] / found[chosen]["training_seconds"] for found in rows.values()]
    differences = _differences(rows, chosen, "f1")
    mean = statistics.mean(differences)
    if len(rows) == 1:
        why = f"quality not checked: F1 {mean:+.4f}, and one seed has no spread; raise further_seeds or tuning_minutes"
        return Verdict(f1, speed_up, None, why)
    half = half_width(statistics.variance(differences), len(rows) - 1, len(rows))
    said = "not told apart from" if abs(mean) <= half else "better than" if mean > 0 else "WORSE than"
    why = f"F1 {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f} over {len(rows)} seeds): {said} the start"
    return Verdict(f1, speed_up, mean >= -half, why)
