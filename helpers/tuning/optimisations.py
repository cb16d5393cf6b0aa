"""What can be switched on, in the order in which it is tried, and where it cannot be: why not."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass, field
from typing import Any

from helpers.runtime import Runtime

from .settings import Settings

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


def optimisations(
    runtime: Runtime,
    start: Settings,
    *,
    largest_batch: int,
    batch_size: int = 0,
    precision: str = "auto",
    enough_length: int,
    supports_sdpa: bool,
    supports_checkpointing: bool,
    try_compile: bool,
) -> tuple[Optimisation, ...]:
    """All of them for a machine.

    Args:
        runtime: the machine.
        start: where tuning starts.
        largest_batch: that fits.
        batch_size: the only one to try; 0: doubled up to `largest_batch`.
        precision: "auto", or what the user insists on.
        enough_length: tokens that hold (nearly) every text; what XLA pads to.
        supports_sdpa, supports_checkpointing: of the model.
        try_compile: whether the user wants torch.compile tried.
    """
    on_xla, on_cuda = runtime.kind == "xla", runtime.kind == "cuda"
    found = [*_batches(start, largest_batch, batch_size), _precision(runtime, precision), _fused(runtime)]
    if on_xla:
        found.append(Optimisation("loader workers", why_not="torch_xla's loader threads feed the device"))
    else:
        workers = min(2, os.cpu_count() or 1)
        name = "loader workers, pinned memory" if on_cuda else "loader workers"
        found.append(Optimisation(name, {"dataloader_workers": workers, "pin_memory": on_cuda}))
    found.append(_tf32(runtime))
    found.append(
        Optimisation("gradient checkpointing", {"gradient_checkpointing": True})
        if supports_checkpointing
        else Optimisation("gradient checkpointing", why_not="the model does not support it")
    )
    found += _paddings(start, enough_length, on_xla)
    found.append(
        Optimisation("SDPA attention", {"attention": "sdpa"})
        if supports_sdpa
        else Optimisation("SDPA attention", why_not="the model does not support it")
    )
    found.append(_compile(runtime, try_compile))
    if on_xla:
        found.append(Optimisation("scan over layers", why_not=NO_SCAN))
    return tuple(found)


def _batches(start: Settings, largest: int, asked: int) -> list[Optimisation]:
    sizes = [asked] if asked else []
    if not asked:
        size = start.batch_size * 2
        while size <= largest:
            sizes.append(size)
            size *= 2
    sizes = [size for size in sizes if size != start.batch_size]
    if not sizes:
        why = "batch_size is the start's" if asked else f"no larger one fits or is of use (at most {largest})"
        return [Optimisation("batch size", why_not=why)]
    return [Optimisation(f"batch size {size}", {"batch_size": size}) for size in sizes]


def _precision(runtime: Runtime, asked: str) -> Optimisation:
    if asked == "fp32":
        return Optimisation("mixed precision", why_not="precision='fp32' is asked for")
    dtype = "bf16" if runtime.kind == "cpu" else runtime.precision
    return Optimisation(f"{dtype} autocast", {"precision": dtype})


def _fused(runtime: Runtime) -> Optimisation:
    if runtime.kind == "xla":
        return Optimisation("fused AdamW", why_not="the fused kernel crashes on XLA")
    return Optimisation("fused AdamW", {"optimizer": "adamw_torch_fused"})  # PyTorch has one for CPUs, too


def _tf32(runtime: Runtime) -> Optimisation:
    if runtime.kind != "cuda":
        return Optimisation("TF32", why_not="TF32 is a mode of NVIDIA's tensor cores")
    if runtime.compute_capability < TENSOR_CORES:
        sm = "sm_{}{}".format(*runtime.compute_capability)
        return Optimisation("TF32", why_not=f"{runtime.device_name} ({sm}) has none; it came with sm_80")
    return Optimisation("TF32", {"tf32": True})


def _paddings(start: Settings, enough: int, on_xla: bool) -> list[Optimisation]:
    if not on_xla:
        return [
            Optimisation("dynamic padding", {"padding": "dynamic"}),
            Optimisation("length-grouped batches", {"padding": "grouped"}),
        ]
    if enough >= start.length:
        return [Optimisation("padding length", why_not=f"the texts fill {start.length} tokens")]
    return [Optimisation(f"padding length {enough}", {"length": enough})]


def _compile(runtime: Runtime, wanted: bool) -> Optimisation:
    if runtime.kind == "xla":
        return Optimisation("torch.compile", why_not="XLA compiles the whole step already")
    if not wanted:
        return Optimisation("torch.compile", why_not="try_compile=False")
    if runtime.kind == "cpu" and not any(map(shutil.which, ("g++", "clang++", "cl"))):
        return Optimisation("torch.compile", why_not="there is no C++ compiler here")
    return Optimisation("torch.compile", {"compiled": True})
