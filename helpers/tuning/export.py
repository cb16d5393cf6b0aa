"""The tuned settings without this suite: fields of `TrainingArguments`, an accelerate configuration, and a script for both.

write(task, settings, folder)        # folder: train.py, training_args.json, model.json, accelerate.yaml
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import run_folder, tracking
from helpers.parameters import SAMPLE, source_path

from . import stock_script
from .classifier import REVISIONS
from .parameters import EPOCHS

if TYPE_CHECKING:
    from .settings import Settings
    from .task import Task


def write(task: Task, settings: Settings, folder: Path, *, model: str) -> list[Path]:
    """The files that train another run with these settings, where transformers is installed and nothing of this suite.

    Args:
        task: machine and model that the settings were tuned for.
        settings: the tuned ones.
        folder: is made.
        model: saved one, as a path from `folder`, that takes the place of a sample, which is on no hub.

    Returns the files; none for a TPU, where the stock trainer would keep the weights themselves in bf16.
    """
    if task.runtime.kind == "xla":
        tracking.say("not written for a TPU: with bf16 the stock trainer would keep the weights themselves in it")
        return []
    base = task.params.base_model
    local = source_path("base_model", base)
    folder.mkdir(parents=True, exist_ok=True)
    run_folder.write_json(folder / "training_args.json", training_arguments(task, settings))
    run_folder.write_json(
        folder / "model.json",
        {
            "model": model if base == SAMPLE else str(local.resolve()) if local else base,
            "revision": REVISIONS.get(base, "main"),
            "max_length": settings.length,
            "fixed_length": settings.padding == "fixed",
            "attention": settings.attention,
        },
    )
    (folder / "train.py").write_text(Path(stock_script.__file__).read_text(encoding="utf-8"), encoding="utf-8")
    _accelerate(task, settings).to_yaml_file(folder / "accelerate.yaml")
    return [folder / name for name in ("train.py", "training_args.json", "model.json", "accelerate.yaml")]


def training_arguments(task: Task, settings: Settings) -> dict[str, Any]:
    """Fields of `TrainingArguments`: three passes over whatever the data are; the rest as it was tuned."""
    plan = task.plan(settings)
    fields = {
        "num_train_epochs": EPOCHS,
        "per_device_train_batch_size": plan.per_device_batch_size,
        "per_device_eval_batch_size": plan.per_device_batch_size,
        "gradient_accumulation_steps": plan.gradient_accumulation_steps,
        "learning_rate": plan.learning_rate,
        "lr_scheduler_type": "linear",
        "warmup_steps": plan.warmup_steps / plan.max_steps,  # below 1: a share of all steps
        "weight_decay": plan.weight_decay,
        "max_grad_norm": plan.max_grad_norm,
        "optim": settings.optimizer,
        "fp16": settings.precision == "fp16",
        "bf16": settings.precision == "bf16",
        "gradient_checkpointing": settings.gradient_checkpointing,
        "torch_compile": settings.compiled,
        "train_sampling_strategy": "group_by_length" if settings.padding == "grouped" else "random",
        "dataloader_num_workers": settings.dataloader_workers,
        "dataloader_pin_memory": settings.pin_memory,
        "dataloader_drop_last": True,
        "use_cpu": task.runtime.kind == "cpu",
        "eval_strategy": "epoch",
        "save_strategy": "epoch",
        "save_total_limit": 1,
        "report_to": "none",
    }
    return fields | ({"tf32": True} if settings.tf32 else {})


def _accelerate(task: Task, settings: Settings):
    from accelerate.commands.config.config_args import ClusterConfig
    from accelerate.utils import ComputeEnvironment, DistributedType

    devices = task.runtime.device_count
    return ClusterConfig(
        compute_environment=ComputeEnvironment.LOCAL_MACHINE,
        distributed_type=DistributedType.MULTI_GPU if devices > 1 else DistributedType.NO,
        mixed_precision="no" if settings.precision == "fp32" else settings.precision,
        use_cpu=task.runtime.kind == "cpu",
        num_processes=devices,
        debug=False,
    )
