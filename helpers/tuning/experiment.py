"""What is expected of a whole run and found of it, the planner's calibration, and the model elsewhere."""

from __future__ import annotations

import copy
import dataclasses
from pathlib import Path
from typing import Any

from helpers import run_folder, tables, tracking
from helpers.plan import Plan
from helpers.planning import calibration
from helpers.planning.calibrate import calibrate as time_steps
from helpers.planning.forecast import Forecast, here
from helpers.planning.range import around
from helpers.planning.speed import MEASURED, SAME_MODEL

from .climb import Climb
from .data import LabelledTexts, load_labelled
from .evaluation import choose_threshold, scores
from .parameters import TuningParameters
from .task import Task
from .training import ClassifierTrainer

SAME_LOGITS = 1e-4  # of the largest, between a model and its reloaded copy


def load_texts(params: TuningParameters) -> LabelledTexts:
    """The texts of `data_source`; arguments and errors as of `load_labelled`."""
    named = ("text_column", "label_column", "num_rows", "eval_rows", "positive_label", "seed")
    return load_labelled(params.data_source, **params.model_dump(include={*named}))


def calibrate(task: Task, folder: Path) -> list[dict[str, Any]]:
    """Times a few steps of this model for the planner and writes them; a second run reads the file. Rows for `tables.show`."""
    file = folder / calibration.FILE
    if task.params.resume and file.is_file():
        tracking.say(f"measured before: {file.name}")
        (found,) = calibration.load([file])
    else:
        found = time_steps([dataclasses.replace(task.step, model=copy.deepcopy(task.model))], task.runtime)
        run_folder.write_json(file, found.model_dump(mode="json"))
    place = "into the working directory of the other notebooks: their forecasts then rest on it."
    tracking.say(f"Put {file.resolve()} {place}")
    return [
        {
            "device": found.device,
            "model": each.model,
            "precision": each.precision,
            "GFLOP/s": each.flops_per_second / 1e9,
            "fixed time of a step": tables.seconds(each.fixed),
        }
        for each in found.measured
    ]


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
        "training_seconds": round(trainer.training_seconds(), 2),  # by `training.clock`
        "total_seconds": measured["seconds"],  # by the wall clock, with evaluation and saving
        "examples_per_second": measured["examples_per_second"],
        "loss_last": measured["loss_last"],
    }


def save_and_reload(trainer: ClassifierTrainer, task: Task, folder: Path):
    """Saves model and tokeniser, loads them as anybody would, and compares logits of eight test texts in fp32 on the CPU.

    Returns (model, tokeniser, largest difference). Raises RuntimeError where the reloaded model differs.
    """
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    ours = copy.deepcopy(task.model)  # the trained one is wrapped by what its precision needs
    ours.load_state_dict({name: tensor.cpu() for name, tensor in trainer.model.state_dict().items()})
    ours.save_pretrained(folder)  # not the trainer's way, which leaves a pickle of its arguments
    task.tokenizer.save_pretrained(folder)
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
