"""What a device asks of a training run. A trainer calls these methods, some as a callback, and never asks which device it has.

torch and transformers serve a CPU and a CUDA GPU, so their engines do little. A further kind of device is one more subclass.
"""

import contextlib
import copy
import re
from collections.abc import Callable, Iterator
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
    repeats = False  # whether kernels on a GPU must give the same bits again, which is slower

    def prepare(self, trained: nn.Module, transformer: nn.Module) -> None:
        """Prepares a model once, before training: `trained` holds all weights, `transformer` the attention."""

    @contextlib.contextmanager
    def computing(self, tf32: bool | None) -> Iterator[None]:
        """Surrounds training and evaluation: global settings of torch are set for this trainer and put back afterwards."""
        yield

    def autocast(self, precision: str) -> contextlib.AbstractContextManager:
        return contextlib.nullcontext()

    def loader(self, loader):
        """The loader of batches, which may be changed in place."""
        return loader

    def begin(self, optimizer, running_loss: torch.Tensor) -> None:
        """Is called before the first step, when weights and optimizer are loaded."""

    def weights(self, model: nn.Module) -> dict[str, torch.Tensor] | None:
        """The weights to save; None: those of the model as they are."""
        return None

    def wait(self) -> None:
        """Blocks until the device has finished its work."""

    def results(self) -> dict:
        """Further parts of results.json."""
        return {}

    def reset_peak(self) -> None: ...

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

    @contextlib.contextmanager
    def computing(self, tf32: bool | None) -> Iterator[None]:
        """Computes with kernels that give the same bits again where `repeats` asks for it; where torch has none, it warns.

        cuDNN's attention, the first choice on Hopper, is off: it is built anew for each length of a batch, and a step took three
        times as long (H200, torch 2.11).
        """
        cuda = torch.backends.cuda
        # By this function, since torch.compile asks for the older setting, which raises after the newer one was used.
        before = cuda.matmul.fp32_precision
        torch.use_deterministic_algorithms(self.repeats, warn_only=True)
        torch.utils.deterministic.fill_uninitialized_memory = False
        cuda.enable_cudnn_sdp(False)
        if tf32 is not None:
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
        try:
            yield
        finally:
            torch.use_deterministic_algorithms(False)
            cuda.enable_cudnn_sdp(True)
            if tf32 is not None:
                torch.set_float32_matmul_precision("high" if before == "tf32" else "highest")

    def wait(self) -> None:
        torch.cuda.synchronize()

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats()

    def peak_memory(self) -> int:
        return torch.cuda.max_memory_allocated()


SCHEDULED = {"lr", "weight_decay"}  # what changes in an optimizer group for one step on XLA


class XlaEngine(Engine):
    """All chips of a TPU, or XLA on a CPU: this process shards every batch over them. Counts what a training compiles."""

    def __init__(self, devices: int):
        self.fed = devices
        self._before = self._after = xla.counters()
        self._scheduled: list[dict] = []  # of each optimizer group, while a step uses values close to them

    def prepare(self, trained, transformer):
        xla.replicate(trained)
        attention.use_one_dtype(transformer)

    @contextlib.contextmanager
    def computing(self, tf32):
        """Keeps the sharding when accelerate's `skip_first_batches` rebuilds the device loader, which would drop it."""
        import transformers.trainer

        original = transformers.trainer.skip_first_batches

        def skip(dataloader, num_batches=0):
            skipped = original(dataloader, num_batches)
            if hasattr(dataloader, "_parallel_loader_kwargs"):
                skipped._parallel_loader_kwargs.update(dataloader._parallel_loader_kwargs)
            return skipped

        transformers.trainer.skip_first_batches = skip
        try:
            yield
        finally:
            transformers.trainer.skip_first_batches = original

    def autocast(self, precision):
        return torch.autocast("xla", dtype=torch.bfloat16, enabled=precision == "bf16")

    def loader(self, loader):
        return xla.shard_loader(loader)

    def begin(self, optimizer, running_loss):
        xla.settle(optimizer, running_loss)

    def on_pre_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        groups = optimizer.param_groups
        self._scheduled = []
        for group in groups:
            values = {name: group[name] for name in group.keys() & SCHEDULED}
            self._scheduled.append(values)
        for group, rate in zip(groups, xla.rates_above_zero(groups), strict=True):
            group["lr"] = rate
        for group, decay in zip(groups, xla.distinct_decays(groups), strict=True):
            if decay:
                group["weight_decay"] = decay

    def on_optimizer_step(self, args, state, control, optimizer=None, **kwargs):
        for group, values in zip(optimizer.param_groups, self._scheduled, strict=True):
            group.update(values)

    def on_substep_end(self, *args, **kwargs):
        xla.sync()  # one graph a micro-batch, not one that grows with accumulation

    def on_step_end(self, *args, **kwargs):
        xla.sync()

    def weights(self, model):
        xla.sync()
        copies: dict[int, torch.Tensor] = {}  # one CPU copy of each tensor, so that tied weights stay tied
        weights = {}
        for name, tensor in model.state_dict(keep_vars=True).items():
            if id(tensor) not in copies:
                copies[id(tensor)] = tensor.detach().cpu()
            weights[name] = copies[id(tensor)]
        return weights

    def wait(self):
        xla.wait()

    def on_train_begin(self, *args, **kwargs):
        self._before = xla.counters()

    def on_train_end(self, *args, **kwargs):
        self._after = xla.counters()

    def results(self):
        return {"xla": {name: self._after[name] - self._before[name] for name in ("compiles", "compile_seconds")}}

    def peak_memory(self):
        info = xla.memory_info() or {}
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
        memo[id(weight)] = nn.Parameter(make(weight), requires_grad=weight.requires_grad)
    return copy.deepcopy(model, memo)
