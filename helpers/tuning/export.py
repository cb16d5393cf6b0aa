"""The tuned settings without this suite: fields of `TrainingArguments`, an accelerate configuration, and a script for both."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from helpers.parameters import SAMPLE, source_path
from helpers.run import run_folder
from helpers.show import tracking

from . import stock_script
from .classifier import REVISIONS
from .parameters import EPOCHS
from .task import Settings, Task
from .training import arguments

CARRIED = [
    "seed",
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "learning_rate",
    "lr_scheduler_type",
    "weight_decay",
    "max_grad_norm",
    "optim",
    "fp16",
    "bf16",
    "tf32",
    "train_sampling_strategy",
    "dataloader_num_workers",
    "dataloader_pin_memory",
    "dataloader_drop_last",
    "use_cpu",
]


def write(task: Task, settings: Settings, folder: Path, *, model: str) -> list[Path]:
    """The files that train another run with these settings, where transformers is installed and nothing of this suite.

    model: saved one, as a path from `folder`, that takes the place of a sample, which is on no hub.

    Returns the files; none for a TPU, where the stock trainer would keep the weights themselves in bf16.
    """
    from accelerate.commands.config.config_args import ClusterConfig

    if task.runtime.kind == "xla":
        tracking.say("not written for a TPU: with bf16 the stock trainer would keep the weights themselves in it")
        return []
    base, devices = task.params.base_model, task.runtime.device_count
    local = source_path("base_model", base)
    chosen = {
        "model": model if base == SAMPLE else str(local.resolve()) if local else base,
        "revision": REVISIONS.get(base, "main"),
        "dtype": "float32",  # of the weights, whatever the checkpoint has
        "attn_implementation": settings.attention,
        "tokens": {
            "truncation": True,
            "max_length": settings.length,
            "padding": "max_length" if settings.padding == "fixed" else False,
        },
    }
    launched = ClusterConfig(
        compute_environment="LOCAL_MACHINE",
        distributed_type="MULTI_GPU" if devices > 1 else "NO",
        mixed_precision="no" if settings.precision == "fp32" else settings.precision,
        use_cpu=task.runtime.kind == "cpu",
        num_processes=devices,
        debug=False,
    )
    files = [folder / name for name in ("train.py", "training_args.json", "model.json", "accelerate.yaml")]
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(stock_script.__file__, files[0])
    run_folder.write_json(files[1], training_arguments(task, settings))
    run_folder.write_json(files[2], chosen)
    launched.to_yaml_file(files[3])
    return files


def training_arguments(task: Task, settings: Settings) -> dict[str, Any]:
    """Fields of `TrainingArguments`: three passes over whatever the data are; the rest as the tuned run had it."""
    plan = task.plan(settings)
    tuned = arguments(task, settings, Path(task.params.output_dir), plan, seed=task.params.seed)
    return {name: getattr(tuned, name) for name in CARRIED} | {
        "num_train_epochs": EPOCHS,
        "warmup_steps": plan.warmup_steps / plan.max_steps,  # below 1: a share of all steps
        "gradient_checkpointing": settings.gradient_checkpointing,
        "torch_compile": settings.compiled,
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "report_to": "none",
    }
