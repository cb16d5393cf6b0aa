"""Whole runs of the start and of the tuned settings at equal quality, and the step back where quality was lost."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import tables, tracking

from .experiment import row
from .settings import Settings
from .task import Task
from .training import ClassifierTrainer, new_trainer

START, TUNED = "start", "tuned"

Rows = Mapping[int, Mapping[str, Mapping]]  # seed -> name of the settings -> what `row` found


@dataclass(frozen=True)
class Verdict:
    """Start and chosen settings at equal quality."""

    f1: dict[str, list[float]]  # of the test, a value a seed
    speed_up: list[float]  # training time of the start over that of the chosen, a seed each
    quality_kept: bool | None  # None with one seed: the spread is not known
    why: str

    def rows(self) -> list[dict[str, str]]:
        """For `tables.show`; evaluation and compilation are left out of the time."""
        speed_ups = {START: [1.0], **dict.fromkeys(self.f1.keys() - {START}, self.speed_up)}
        return [
            {
                "settings": name,
                "test F1": _spread(f1, ".4f"),
                "training, times as fast": _spread(speed_ups[name], ".2f"),
            }
            for name, f1 in self.f1.items()
        ]


@dataclass(frozen=True)
class Comparison:
    """What the whole runs gave."""

    rows: dict[int, dict[str, dict]]
    chosen: str  # name of the settings that stay
    settings: Settings  # these
    trainer: ClassifierTrainer  # of the first seed, trained with them
    verdict: Verdict

    def table(self) -> list[dict[str, Any]]:
        """Every run, for `tables.show`."""
        shown = {"steps": "steps", "test F1": "f1", "accuracy": "accuracy", "validation F1": "validation_f1"}
        return [
            {"settings": name, "seed": seed, **{column: found[key] for column, key in shown.items()}}
            | {"training": tables.seconds(found["training_seconds"])}
            for seed, models in self.rows.items()
            for name, found in models.items()
        ]


def compare(trainer: ClassifierTrainer, task: Task, folder: Path) -> Comparison:
    """Trains the start and the tuned settings with every seed; where quality is lost, steps back until it is not.

    trainer: the tuned run of the first seed, trained. folder: in which every further run gets one.
    """
    params, start, tuned = task.params, task.start, trainer.settings
    seeds = range(params.seed, params.seed + 1 + params.further_seeds)
    rows: dict[int, dict[str, dict]] = {seed: {} for seed in seeds}

    def run(name: str, settings: Settings, seed: int) -> ClassifierTrainer:
        tracking.say(f"\n{name}, seed {seed}")
        made = new_trainer(task, settings, folder / f"{name.replace(' ', '-')}-{seed}", seed=seed)
        made.train(resume_from_checkpoint=params.resume)
        rows[seed][name] = row(made, task)
        return made

    chosen = TUNED, tuned
    rows[params.seed][TUNED] = row(trainer, task)
    for seed in seeds:
        if TUNED not in rows[seed]:
            run(TUNED, tuned, seed)
        if params.compare_start:
            run(START, start, seed)
    for name, settings in steps_back(tuned, start) if params.compare_start else ():
        if not (lost := quality_lost(rows, chosen[0])):
            break
        tracking.say(f"\n{lost}: once more, {name}")
        chosen = name, settings
        trainer = run(name, settings, params.seed)
        for seed in seeds[1:]:
            run(name, settings, seed)
    return Comparison(rows, *chosen, trainer, verdict(rows, chosen[0]))


def steps_back(tuned: Settings, start: Settings) -> tuple[tuple[str, Settings], ...]:
    """(Name, settings) without one more of the changes that alter what is learnt; the others leave the arithmetic as it is.

    What is likeliest to cost quality for what it gives goes first.
    """
    found, settings = [], tuned
    for name, changes in (
        ("not grouped", {"padding": "dynamic"} if tuned.padding == "grouped" else {}),
        ("full length", {"length": start.length}),
        ("first batch size", {"batch_size": start.batch_size}),
        ("first precision", {"precision": start.precision}),
    ):
        back = dataclasses.replace(settings, **changes)
        if back != settings:
            settings = back
            found.append((name, settings))
    return tuple(found)


def quality_lost(rows: Rows, name: str) -> str:
    """What to say if validation F1 is below the start's by more than the standard error over seeds; "" if not.

    Stricter than the verdict, and blind to the test: what is chosen by a number is flattered by it.
    """
    if len(rows) == 1:
        return ""
    differences = [found[name]["validation_f1"] - found[START]["validation_f1"] for found in rows.values()]
    mean, error = statistics.mean(differences), statistics.stdev(differences) / math.sqrt(len(differences))
    if mean >= -error:
        return ""
    return f"{name}: validation F1 {mean:+.4f} against the start, more than its standard error of {error:.4f}"


def verdict(rows: Rows, chosen: str = TUNED) -> Verdict:
    """Whether the runs of the chosen settings are faster and not worse.

    Not worse: the mean of the seeds' differences in test F1 is not below 0 by more than their standard deviation. Start and
    chosen of a seed share their data, order and first weights, so what differs between seeds alone is left out.
    """
    f1 = {name: [found[name]["f1"] for found in rows.values() if name in found] for name in (START, chosen)}
    if not f1[START]:
        return Verdict({chosen: f1[chosen]}, [], None, "compare_start=False: nothing to compare with")
    speed_up = [found[START]["training_seconds"] / found[chosen]["training_seconds"] for found in rows.values()]
    differences = [after - before for after, before in zip(f1[chosen], f1[START], strict=True)]
    mean = statistics.mean(differences)
    if len(rows) == 1:
        return Verdict(f1, speed_up, None, f"F1 {mean:+.4f}; one seed has no spread: set further_seeds=2")
    spread = statistics.stdev(differences)
    said = "within the spread of" if abs(mean) <= spread else "above" if mean > 0 else "BELOW the start by more than"
    return Verdict(f1, speed_up, mean >= -spread, f"F1 {mean:+.4f}: {said} {spread:.4f} over {len(rows)} seeds")


def _spread(values: Sequence[float], form: str) -> str:
    """Mean and standard deviation; nothing where there are no values."""
    if len(values) < 2:
        return "".join(format(value, form) for value in values)
    return f"{format(statistics.mean(values), form)} ± {format(statistics.stdev(values), form)}"
