"""What a person takes away: the kept settings, the rows that the notebook read, and a script for stock transformers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from helpers.data import hub
from helpers.parameters import SAMPLE, source_path
from helpers.run import disk
from helpers.show import tracking

from . import stock_script
from .data import SPLITS
from .parameters import EPOCHS
from .training import EXAMPLES, NOT_ARGUMENTS, Settings, Task


def write_stock(task: Task, settings: Settings, folder: Path, *, model: str) -> list[Path]:
    """`train.py`, `settings.json` and the rows of each split, which train where transformers is installed and nothing of this suite.

    model: the saved one, as a path from `folder`, in the place of a sample, which is on no hub.

    Returns the files; none for a TPU, where the stock trainer would keep the weights themselves in bf16.
    """
    if task.runtime.kind == "xla":
        tracking.say("not written for a TPU: there the stock trainer with bf16 stores the weights in bf16")
        return []
    base = task.params.base_model
    if base != SAMPLE:
        model = base
        local = source_path("base_model", base)
        if local:
            model = str(local.resolve())
    values = {
        "model": model,
        "revision": hub.REVISIONS.get(base, "main"),
        "attn_implementation": settings["attn_implementation"],
        "max_length": task.params.max_length,
        "pad_to_multiple_of": settings.get("pad_to_multiple_of"),
        "training_arguments": training_arguments(task, settings),
    }
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(stock_script.__file__, folder / "train.py")
    disk.write_json(folder / "settings.json", values)
    files = [folder / "train.py", folder / "settings.json"]
    for split in SPLITS:
        lines = []
        for text, label in getattr(task.texts, split):
            row = {"text": text, "label": task.texts.labels[label]}
            lines.append(json.dumps(row, ensure_ascii=False) + "\n")
        file = folder / f"{split}.jsonl"
        file.write_text("".join(lines), encoding="utf-8")
        files.append(file)
    return files


def training_arguments(task: Task, settings: Settings) -> dict[str, Any]:
    """Fields of `TrainingArguments`: the lines that were kept, and three passes over the training rows."""
    plan = task.plan(settings)
    arguments = {name: value for name, value in settings.items() if name not in NOT_ARGUMENTS}
    length = {"num_train_epochs": EPOCHS * settings.get(EXAMPLES, 1)}
    if task.params.max_steps:
        length = {"max_steps": plan.max_steps}
    return arguments | {
        "seed": task.params.seed,
        "learning_rate": plan.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": plan.warmup_steps / plan.max_steps,  # below 1: a share of all steps
        "weight_decay": plan.weight_decay,
        "max_grad_norm": plan.max_grad_norm,
        **length,
        "use_cpu": task.runtime.kind == "cpu",
        "dataloader_pin_memory": task.runtime.kind == "cuda",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "load_best_model_at_end": True,
        "report_to": "none",
    }
