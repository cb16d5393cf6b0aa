"""Whole runs: what is expected and found of one, start and tuned at equal quality, the model elsewhere."""

from __future__ import annotations

import copy
import dataclasses
import math
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.machine import ranks
from helpers.plan.forecast import Forecast, here
from helpers.plan.range import around
from helpers.plan.settings import Plan
from helpers.show import tables, tracking

from .climb import Climb
from .data import LabelledTexts, load_labelled
from .decision import half_width
from .evaluation import choose_threshold, scores
from .parameters import TuningParameters
from .task import Settings, Task
from .training import ClassifierTrainer

SAME_LOGITS = 1e-4  # of the largest, between a model and its reloaded copy
START, TUNED = "start", "tuned"
MEASURED, SAME_MODEL = "measured", 1.2  # either way, of timings at the same size
Rows = Mapping[int, Mapping[str, Mapping]]  # seed -> name of the settings -> what `row` found


def load_texts(params: TuningParameters) -> LabelledTexts:
    """The texts of `data_source`; arguments and errors as of `load_labelled`."""
    named = ("text_column", "label_column", "num_rows", "eval_rows", "positive_label", "seed")
    return load_labelled(params.data_source, **params.model_dump(include={*named}))


def forecast(climb: Climb, plan: Plan, task: Task) -> Forecast:
    """Time, memory and cost that the tuned run is expected to take, by the timings of its settings in the climb."""
    rung = climb.top
    spread = max(SAME_MODEL, rung.speed_up_high / rung.speed_up, rung.speed_up / rung.speed_up_low)
    changes = {"phases": ((plan.max_steps, around(1 / rung.steps_per_second, spread, MEASURED)),)}
    if rung.peak_memory_bytes:
        changes["memory"] = around(rung.peak_memory_bytes, SAME_MODEL, MEASURED)
    return dataclasses.replace(here(task.step, plan, task.runtime), **changes)


def examine(trainer: ClassifierTrainer, task: Task) -> dict:
    """Test scores of a trained model; of two labels the threshold is the best one of the validation rows."""
    logits = {split: trainer.logits(task.encoded(split, trainer.settings.length)) for split in ("validation", "test")}
    threshold = choose_threshold(logits["validation"], task.labels("validation"))
    validation, test = (scores(logits[split], task.labels(split), threshold) for split in logits)
    return {**test, "threshold": threshold, "validation_f1": validation["f1"]}


def row(trainer: ClassifierTrainer, task: Task) -> dict:
    """`examine` of a trained model, and what its training took."""
    measured = trainer.results()["train"]
    return {
        **examine(trainer, task),
        "steps": trainer.state.global_step,
        "training_seconds": round(trainer.training_seconds(), 2),  # by `calibrate.clock`
        "total_seconds": measured["seconds"],  # by the wall clock, with evaluation and saving
        "examples_per_second": measured["examples_per_second"],
        "loss_last": measured["loss_last"],
    }


# ---- start and tuned


@dataclass(frozen=True)
class Verdict:
    """Tuned settings against the start."""

    f1: dict[str, list[float]]  # of the test, a value a seed
    speed_up: list[float]  # training time of the start over that of the tuned, a seed each
    quality_kept: bool | None  # None with one seed: the spread is not known
    why: str


@dataclass(frozen=True)
class Comparison:
    """What the whole runs gave."""

    rows: dict[int, dict[str, dict]]
    verdict: Verdict

    def results(self) -> dict[str, Any]:
        """Parts of results.json."""
        return {"comparison": self.rows, "verdict": vars(self.verdict)}

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
    """Trains the start and the tuned settings with every seed.

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
    return Comparison(rows, verdict(rows))


def _differences(rows: Rows) -> list[float]:
    """Of test F1 from the start of the same seed, which shares data, order and first weights: what differs between seeds is left out."""
    return [found[TUNED]["f1"] - found[START]["f1"] for found in rows.values()]


def verdict(rows: Rows) -> Verdict:
    """Whether the tuned runs are faster, and whether their test F1 is told apart from the start's over seeds."""
    f1 = {name: [found[name]["f1"] for found in rows.values() if name in found] for name in (START, TUNED)}
    if not f1[START]:
        return Verdict({TUNED: f1[TUNED]}, [], None, "quality not checked: the start was not trained")
    speed_up = [found[START]["training_seconds"] / found[TUNED]["training_seconds"] for found in rows.values()]
    differences = _differences(rows)
    mean = statistics.mean(differences)
    if len(rows) == 1:
        why = f"quality not checked: F1 {mean:+.4f}, and one seed has no spread; raise further_seeds or tuning_minutes"
        return Verdict(f1, speed_up, None, why)
    half = half_width(statistics.variance(differences), len(rows) - 1, len(rows))
    said = "not told apart from" if abs(mean) <= half else "better than" if mean > 0 else "WORSE than"
    why = f"F1 {mean:+.4f} ({mean - half:+.4f} to {mean + half:+.4f} over {len(rows)} seeds): {said} the start"
    return Verdict(f1, speed_up, mean >= -half, why)


# ---- elsewhere


def save_and_reload(trainer: ClassifierTrainer, task: Task, folder: Path):
    """Saves model and tokeniser, loads them as anybody would, and compares logits of eight test texts in fp32 on the CPU.

    Returns (model, tokeniser, largest difference). Raises RuntimeError where the reloaded model differs.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ours = copy.deepcopy(task.model)  # the trained one is wrapped by what its precision needs
    ours.load_state_dict({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
    trainer.save_model(str(folder))
    reloaded = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    cut = {"padding": True, "truncation": True, "max_length": trainer.settings.length, "return_tensors": "pt"}
    encoded = tokenizer([text for text, _ in task.texts.test[:8]], **cut)
    with torch.no_grad():
        a, b = (model.eval()(**encoded).logits for model in (ours, reloaded))
    difference = float((a - b).abs().max() / a.abs().max())
    if difference > SAME_LOGITS:
        raise RuntimeError(f"the model saved in {folder} differs from the trained one by {difference:.1e}")
    return reloaded, tokenizer, difference
