"""What can be switched on, in the order in which it is tried, and where it cannot be: why not."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any

from .task import Task

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


def optimisations(task: Task, *, largest_batch: int, enough_length: int) -> tuple[Optimisation, ...]:
    """All of them for the task's machine, model and parameters.

    largest_batch: that fits. enough_length: tokens that hold (nearly) every text, what XLA pads to.
    """
    kind, params = task.runtime.kind, task.params
    on_xla, on_cuda = kind == "xla", kind == "cuda"
    half = "bf16" if kind == "cpu" else task.runtime.precision
    found = [
        *_batches(task.start.batch_size, largest_batch, params.batch_size),
        _unless("precision='fp32' is asked for", "mixed precision")
        if params.precision == "fp32"
        else Optimisation(f"{half} autocast", {"precision": half}),
        # PyTorch has a fused AdamW for CPUs, too.
        _unless(on_xla and "the fused kernel crashes on XLA", "fused AdamW", optimizer="adamw_torch_fused"),
        _unless(
            on_xla and "torch_xla's loader threads feed the device",
            "loader workers, pinned memory" if on_cuda else "loader workers",
            dataloader_workers=min(2, os.cpu_count() or 1),
            pin_memory=on_cuda,
        ),
        _unless(_no_tf32(task), "TF32", tf32=True),
        _unless(
            not getattr(task.model, "supports_gradient_checkpointing", False) and "the model does not support it",
            "gradient checkpointing",
            gradient_checkpointing=True,
        ),
    ]
    if not on_xla:
        found.append(Optimisation("dynamic padding", {"padding": "dynamic"}))
        found.append(Optimisation("length-grouped batches", {"padding": "grouped"}))
    elif enough_length < params.max_length:
        found.append(Optimisation(f"padding length {enough_length}", {"length": enough_length}))
    else:
        found.append(Optimisation("padding length", why_not=f"the texts fill {params.max_length} tokens"))
    no_sdpa = not getattr(task.model, "_supports_sdpa", False) and "the model does not support it"
    found.append(_unless(no_sdpa, "SDPA attention", attention="sdpa"))
    found.append(_unless(_no_compiler(kind, params.try_compile), "torch.compile", compiled=True))
    return (*found, Optimisation("scan over layers", why_not=NO_SCAN)) if on_xla else tuple(found)


def _unless(why_not: str | bool, name: str, **changes: Any) -> Optimisation:
    return Optimisation(name, why_not=why_not) if why_not else Optimisation(name, changes)


def _batches(start: int, largest: int, asked: int) -> list[Optimisation]:
    """The one that is asked for, or else the start's, doubled until the largest."""
    doubled = [start * 2**power for power in range(1, largest.bit_length()) if start * 2**power <= largest]
    sizes = [size for size in ([asked] if asked else doubled) if size != start]
    why = "batch_size is the start's" if asked else f"no larger one fits or is of use (at most {largest})"
    return [Optimisation(f"batch size {size}", {"batch_size": size}) for size in sizes] or [_unless(why, "batch size")]


def _no_tf32(task: Task) -> str:
    if task.runtime.kind != "cuda":
        return "TF32 is a mode of NVIDIA's tensor cores"
    if task.runtime.compute_capability < TENSOR_CORES:
        sm = "sm_{}{}".format(*task.runtime.compute_capability)
        return f"{task.runtime.device_name} ({sm}) has none; it came with sm_80"
    return ""


def _no_compiler(kind: str, wanted: bool) -> str:
    if kind == "xla":
        return "XLA compiles the whole step already"
    if not wanted:
        return "try_compile=False"
    missing = kind == "cpu" and not any(map(shutil.which, ("g++", "clang++", "cl")))
    return "there is no C++ compiler here" if missing else ""
