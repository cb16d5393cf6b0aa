"""What a device asks of a training run. A trainer calls these methods, some as a callback, and never asks which device it has.

torch and transformers serve a CPU and a CUDA GPU, so their engines do little. A further kind of device is one more subclass.
"""

import contextlib
import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
import torch
from torch import nn
from transformers import TrainerCallback

from . import attention, xla

Model = TypeVar("Model", bound=nn.Module)


class Engine(TrainerCallback):
    """A CPU. `fed`: devices that this process gives batches to."""

    fed = 1

    def prepare(self, trained: nn.Module, transformer: nn.Module) -> None:
        """Prepares a model once, before training: `trained` holds all weights, `transformer` the attention."""

    def autocast(self, precision: str) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def begin(self, optimizer, running_loss: torch.Tensor) -> None:
        """Is called before the first step, when weights and optimizer are loaded."""

    def weights(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        """The weights to save; None: those of the model as they are."""

    def wait(self) -> None:
        """Blocks until the device has finished its work."""

    def results(self) -> dict:
        """Further parts of results.json."""
        return {}

    def peak_memory(self) -> int | None:
        """Peak memory in bytes: of this process on a CPU, of the device elsewhere; None if unknown."""
        status = Path("/proc/self/status")
        if not status.exists():
            return psutil.Process().memory_info().rss  # what it takes now
        peak = re.search(r"VmHWM:\s+(\d+)", status.read_text())
        return 1024 * int(peak[1]) if peak else None


class CudaEngine(Engine):
    """One CUDA GPU. repeats_heads: whether its fused attention takes no grouped heads."""

    def __init__(self, repeats_heads: bool = False):
        self.repeats_heads = repeats_heads

    def prepare(self, trained, transformer):
        if self.repeats_heads:
            attention.repeat_heads(transformer)

    def on_train_begin(self, args, *others, **kwargs):
        """cuDNN's attention, the first choice on Hopper, is off: it is built anew for each length of a batch, and a step took three
        times as long (H200, torch 2.11).
        """
        torch.cuda.reset_peak_memory_stats()
        torch.backends.cuda.enable_cudnn_sdp(False)
        # By this function, since torch.compile asks for the older setting, which raises after the newer one was used.
        torch.set_float32_matmul_precision("high" if args.tf32 else "highest")

    def on_train_end(self, *args, **kwargs):
        torch.set_float32_matmul_precision("highest")

    def wait(self) -> None:
        torch.cuda.synchronize()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated()


class XlaEngine(Engine):
    """All chips of a TPU, or XLA on a CPU: this process shards every batch over them. Counts what a training compiles."""

    def __init__(self, devices: int):
        self.fed = devices
        self._before = xla.compilations()
        self._groups: list[dict] = []  # of the optimizer, while a step uses rates and decays close to theirs

    def prepare(self, trained, transformer):
        xla.replicate(trained)
        attention.use_one_dtype(transformer)

    def autocast(self, precision):
        return torch.autocast("xla", dtype=torch.bfloat16, enabled=precision == "bf16")

    def begin(self, optimizer, running_loss):
        xla.settle(optimizer, running_loss)

    def on_pre_optimizer_step(self, *args, optimizer=None, **kwargs):
        self._groups = [dict(group) for group in optimizer.param_groups]
        xla.avoid_constants(optimizer.param_groups)

    def on_optimizer_step(self, *args, optimizer=None, **kwargs):
        for group, values in zip(optimizer.param_groups, self._groups, strict=True):
            group.update(values)

    def on_step_end(self, *args, **kwargs):
        xla.sync()

    on_substep_end = on_step_end  # one graph a micro-batch, not one that grows with accumulation

    def weights(self, model):
        xla.sync()
        return {name: tensor.cpu() for name, tensor in model.state_dict().items()}

    def wait(self):
        xla.wait()

    def results(self):
        (count, seconds), (earlier, seconds_before) = xla.compilations(), self._before
        return {"xla": {"compiles": count - earlier, "compile_seconds": seconds - seconds_before}}

    def peak_memory(self):
        info = xla.memory_info()
        return info.get("peak_bytes_used") or info.get("bytes_used")


def cpu_copy(model: Model, *shared: object) -> Model:
    """A copy with its own memory on the CPU, made without a second copy on the device: for an export, or to generate text.

    shared: objects that the copy shares with the model, because copying them would copy more than the model.
    """
    return copy_with(model, lambda tensor: tensor.detach().to("cpu", copy=True), *shared)


def copy_with(model: Model, make: Callable[[torch.Tensor], torch.Tensor], *shared: object) -> Model:
    """The model with what `make` makes of each weight and buffer, and with the very objects `shared`."""
    memo: dict[int, object] = {id(one): one for one in shared}
    for buffer in model.buffers():
        memo[id(buffer)] = make(buffer)
    for weight in model.parameters():
        value = make(weight)
        memo[id(weight)] = nn.Parameter(value, requires_grad=weight.requires_grad)
    return copy.deepcopy(model, memo)
