"""What can be switched on, in the order in which it is tried, and where it cannot be: why not."""

from __future__ import annotations

import importlib.util
import os
from dataclasses import dataclass, field
from typing import Any

from .task import PROCESSOR, Task, clock

TENSOR_CORES = (8, 0)  # compute capability from which on TF32 exists (NVIDIA Ampere whitepaper, 2020)


@dataclass(frozen=True)
class Optimisation:
    """One change of the settings."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)  # fields of Settings
    why_not: str = ""  # it cannot be tried here


@dataclass(frozen=True)
class Ladder:
    """What is tried, in three stages; each on top of what was kept before it."""

    changes: tuple[Optimisation, ...]
    batch_sizes: tuple[int, ...] = ()  # while the larger one is faster
    memory_savers: tuple[Optimisation, ...] = ()  # each with the batch that did not fit without it


def ladder(task: Task, *, enough_length: int) -> Ladder:
    """For the task's machine, model and parameters; `enough_length` tokens hold (nearly) every text: what XLA pads to."""
    kind, params, device = task.runtime.kind, task.params, task.runtime.device_name
    half = "bf16" if kind == "cpu" else task.runtime.precision
    no_tf32 = no_half = no_compiler = no_workers = ""
    if kind != "cuda":
        no_tf32 = "TF32 is a mode of NVIDIA's tensor cores"
    elif task.runtime.compute_capability < TENSOR_CORES:
        no_tf32 = "{} (sm_{}{}) has none; it came with sm_80".format(device, *task.runtime.compute_capability)
    if params.precision == "fp32":
        no_half, half = "precision='fp32' is asked for", "mixed precision"
    elif half == "fp32":
        no_half = "the device multiplies nothing narrower"
    if kind == "xla":
        no_compiler, no_workers = "XLA compiles the whole step already", "torch_xla's loader threads feed the device"
    elif clock(task.runtime) == PROCESSOR:
        no_workers = (
            "in processor time they cost what they do beside the training; several threads are timed by the wall clock"
        )
    no_compiler = no_compiler or ("" if params.try_compile else "try_compile=False")
    no_eager = "the model has no other" if task.start.attention == "eager" else ""
    padding = Optimisation("length-grouped batches", {"padding": "grouped"})
    if kind == "xla" and enough_length < params.max_length:
        padding = Optimisation(f"padding length {enough_length}", {"length": enough_length})
    elif kind == "xla":
        padding = Optimisation("padding length", why_not=f"the texts fill {params.max_length} tokens")
    supported = getattr(task.model, "supports_gradient_checkpointing", False)
    no_checkpointing = "" if supported else "the model does not support it"
    installed = "" if importlib.util.find_spec("bitsandbytes") else "bitsandbytes is not installed"
    no_8_bit = installed if kind == "cuda" else "its kernels are for NVIDIA GPUs"
    return Ladder(
        (
            Optimisation("TF32", {"tf32": True}, no_tf32),
            Optimisation(half if no_half else f"{half} autocast", {"precision": half}, no_half),
            Optimisation("attention written out", {"attention": "eager"}, no_eager),
            padding,
            Optimisation("loader workers", {"dataloader_workers": min(2, os.cpu_count() or 1)}, no_workers),
            Optimisation("torch.compile", {"compiled": True}, no_compiler),
        ),
        _batch_sizes(task),
        (
            Optimisation("gradient checkpointing", {"gradient_checkpointing": True}, no_checkpointing),
            Optimisation("8-bit AdamW", {"optimizer": "adamw_bnb_8bit"}, no_8_bit),
        ),
    )


def _batch_sizes(task: Task) -> tuple[int, ...]:
    """The one that is asked for, or else the start's, doubled up to the largest of use."""
    start, asked = task.start.batch_size, task.params.batch_size
    doubled = (start * 2**power for power in range(1, task.params.largest_batch_size.bit_length()))
    sizes = [asked] if asked else [size for size in doubled if size <= task.params.largest_batch_size]
    return tuple(size for size in sizes if size != start)
