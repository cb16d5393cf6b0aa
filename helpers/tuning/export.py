"""What a person takes away: the kept settings, the rows that the notebook read, and a script for stock transformers."""

from __future__ import annotations

import shutil
from pathlib import Path

import pandas

from helpers.data import hub
from helpers.parameters import SAMPLE, source_path
from helpers.run import disk
from helpers.show import tracking

from . import stock_script
from .training import NOT_ARGUMENTS, Settings, Task


def write_stock(task: Task, settings: Settings, folder: Path, saved_model: Path) -> list[Path]:
    """`train.py`, `settings.json`, `train.csv` and `test.csv`, which train where transformers is installed and nothing of this suite.

    saved_model: takes the place of a sample, which is on no hub.

    Returns the files; none for a TPU, where the stock trainer would keep the weights themselves in bf16.
    """
    if task.runtime.kind == "xla":
        tracking.say("not written for a TPU: there the stock trainer with bf16 stores the weights in bf16")
        return []
    base = task.params.base_model
    model = {"pretrained_model_name_or_path": base, "revision": hub.REVISIONS.get(base, "main")}
    local = saved_model if base == SAMPLE else source_path("base_model", base)
    if local:
        model["pretrained_model_name_or_path"] = str(local.resolve())
    plan, rows = task.plan(settings), task.texts.train + task.texts.validation  # nothing is left to choose
    arguments = {name: value for name, value in settings.items() if name not in NOT_ARGUMENTS}
    arguments |= {
        "seed": task.params.seed,
        "num_train_epochs": plan.max_steps * plan.batch_size / len(rows),
        "lr_scheduler_type": "linear",
        "warmup_steps": plan.warmup_steps / plan.max_steps,  # below 1: a share of all steps
        "weight_decay": plan.weight_decay,
        "use_cpu": task.runtime.kind == "cpu",
        "save_strategy": "no",
        "report_to": "none",
    }
    values = {
        "model": model,
        "max_length": task.params.max_length,
        "pad_to_multiple_of": settings.get("pad_to_multiple_of"),
        "training_arguments": arguments,
    }
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(stock_script.__file__, folder / "train.py")
    disk.write_json(folder / "settings.json", values)
    for name, split in (("train.csv", rows), ("test.csv", task.texts.test)):
        table = pandas.DataFrame(split, columns=["text", "label"])
        table.label = table.label.map(dict(enumerate(task.texts.labels)))
        table.to_csv(folder / name, index=False)
    return sorted(folder.iterdir())
