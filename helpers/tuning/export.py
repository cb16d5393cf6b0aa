"""What a person takes away: the lines that were kept, and a script that trains with them in stock transformers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from helpers.data import hub, rows, text
from helpers.parameters import SAMPLE, source_path
from helpers.run import run_folder
from helpers.show import tracking

from . import stock_script
from .parameters import EPOCHS
from .training import NOT_ARGUMENTS, Settings, Task


def write_stock(task: Task, settings: Settings, folder: Path, *, model: str) -> list[Path]:
    """The files that train another run with these settings, where transformers is installed and nothing of this suite.

    model: saved one, as a path from `folder`, that takes the place of a sample, which is on no hub.

    Returns the files; none for a TPU, where the stock trainer would keep the weights themselves in bf16.
    """
    if task.runtime.family == "xla":
        tracking.say("not written for a TPU: with bf16 the stock trainer would keep the weights themselves in it")
        return []
    base = task.params.base_model
    local = source_path("base_model", base)
    chosen = {
        "model": model if base == SAMPLE else str(local.resolve()) if local else base,
        "revision": hub.REVISIONS.get(base, "main"),
        "dtype": "float32",  # of the weights, whatever the checkpoint has
        "attn_implementation": settings["attn_implementation"],
        "max_length": task.params.max_length,
    }
    files = [folder / name for name in ("train.py", "training_args.json", "model.json")]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(stock_script.__file__, files[0])
    for module in (rows, text):
        copy = folder / "reader" / Path(module.__file__).name
        copy.parent.mkdir(exist_ok=True)
        shutil.copyfile(module.__file__, copy)
        files.append(copy)
    run_folder.write_json(files[1], training_arguments(task, settings))
    run_folder.write_json(files[2], chosen)
    return files


def training_arguments(task: Task, settings: Settings) -> dict[str, Any]:
    """Fields of `TrainingArguments`: the lines that were kept, and three passes over whatever the data are."""
    plan = task.plan(settings)
    return {name: value for name, value in settings.items() if name not in NOT_ARGUMENTS} | {
        "seed": task.params.seed,
        "learning_rate": plan.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": plan.warmup_steps / plan.max_steps,  # below 1: a share of all steps
        "weight_decay": plan.weight_decay,
        "max_grad_norm": plan.max_grad_norm,
        "num_train_epochs": EPOCHS,
        "use_cpu": task.runtime.kind == "cpu",
        "dataloader_pin_memory": task.runtime.kind == "cuda",
        "dataloader_drop_last": True,  # as the run here had it: every step is a whole batch
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "report_to": "none",
    }
