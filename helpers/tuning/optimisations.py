"""What can be switched on, in the order in which it is tried, and where it cannot be: why not."""

from __future__ import annotations

import importlib.util
import os
import shutil
from dataclasses import dataclass, field
from typing import Any

from .task import Task
from .training import PROCESSOR, clock

# With torch_xla 2.9 on XLA's CPU backend: scan_layers over BERT's layers compiles in half the time and gives the same losses where
# dropout is 0. With dropout the backward pass stops: "Dynamic update slice update element type does not match argument".
NO_SCAN = "torch_xla's scan cannot keep dropout's masks for the backward pass, and on several devices it needs jax"
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
    kind, params = task.runtime.kind, task.params
    on_xla = kind == "xla"
    half = "bf16" if kind == "cpu" else task.runtime.precision
    checkpointing = getattr(task.model, "supports_gradient_checkpointing", False)
    changes = [
        _unless(_no_tf32(task), "TF32", tf32=True),
        _unless("precision='fp32' is asked for", "mixed precision")
        if params.precision == "fp32"
        else _unless(half == "fp32" and "the device multiplies nothing narrower", f"{half} autocast", precision=half),
        _unless(
            task.start.attention == "eager" and "the model has no other", "attention written out", attention="eager"
        ),
        _xla_padding(enough_length, params.max_length)
        if on_xla
        else Optimisation("length-grouped batches", {"padding": "grouped"}),
        _unless(
            _no_workers(task),
            "loader workers",
            dataloader_workers=min(2, os.cpu_count() or 1),
        ),
        _unless(_no_compiler(kind, params.try_compile), "torch.compile", compiled=True),
    ]
    if on_xla:
        changes.append(Optimisation("scan over layers", why_not=NO_SCAN))
    return Ladder(
        tuple(changes),
        _batch_sizes(task),
        (
            _unless(
                not checkpointing and "the model does not support it",
                "gradient checkpointing",
                gradient_checkpointing=True,
            ),
            _unless(_no_8_bit(kind), "8-bit AdamW", optimizer="adamw_bnb_8bit"),
        ),
    )


def _unless(why_not: str | bool, name: str, **changes: Any) -> Optimisation:
    return Optimisation(name, why_not=why_not) if why_not else Optimisation(name, changes)


def _batch_sizes(task: Task) -> tuple[int, ...]:
    """The one that is asked for, or else the start's, doubled up to the largest of use."""
    start, asked = task.start.batch_size, task.params.batch_size
    doubled = (start * 2**power for power in range(1, task.params.largest_batch_size.bit_length()))
    sizes = [asked] if asked else [size for size in doubled if size <= task.params.largest_batch_size]
    return tuple(size for size in sizes if size != start)


def _xla_padding(enough_length: int, max_length: int) -> Optimisation:
    if enough_length >= max_length:
        return Optimisation("padding length", why_not=f"the texts fill {max_length} tokens")
    return Optimisation(f"padding length {enough_length}", {"length": enough_length})


def _no_tf32(task: Task) -> str:
    if task.runtime.kind != "cuda":
        return "TF32 is a mode of NVIDIA's tensor cores"
    if task.runtime.compute_capability < TENSOR_CORES:
        sm = "sm_{}{}".format(*task.runtime.compute_capability)
        return f"{task.runtime.device_name} ({sm}) has none; it came with sm_80"
    return ""


def _no_workers(task: Task) -> str:
    if task.runtime.kind == "xla":
        return "torch_xla's loader threads feed the device"
    if clock(task.runtime) == PROCESSOR:
        return (
            "in processor time they cost what they do beside the training; several threads are timed by the wall clock"
        )
    return ""


def _no_compiler(kind: str, wanted: bool) -> str:
    if kind == "xla":
        return "XLA compiles the whole step already"
    if not wanted:
        return "try_compile=False"
    missing = kind == "cpu" and not any(map(shutil.which, ("g++", "clang++", "cl")))
    return "there is no C++ compiler here" if missing else ""


def _no_8_bit(kind: str) -> str:
    if kind != "cuda":
        return "its kernels are for NVIDIA GPUs"
    return "" if importlib.util.find_spec("bitsandbytes") else "bitsandbytes is not installed"
