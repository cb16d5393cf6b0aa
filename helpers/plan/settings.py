"""The settings of a run, each with its reason, from a recipe, a workload and a machine."""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pydantic.dataclasses
from pydantic import PositiveFloat, PositiveInt

from helpers.machine.runtime import Runtime
from helpers.show import tables

from .forecast import COMPILATION, COMPILED_LAUNCHES, LAUNCH, UPDATE, Memory, Work, memory, published
from .workloads import Workload

RECIPES, ASKED = "from the recipe", "set by you"
FITS = ("yes", "unknown")  # answers that let the micro-batch grow
# `TrainingArguments.optim` and the reason, by the kind of device, or by the optimizer that a workload asks for.
OPTIMIZER = {
    "paged_adamw_8bit": ("paged_adamw_8bit", "moments in 8 bits, which move to the host where a GPU is full"),
    "paged_adamw_8bit on cpu": ("adamw_8bit", "moments in 8 bits"),
    "cpu": ("adamw_torch", "the fused kernel is for GPUs"),
    "cuda": ("adamw_torch_fused", "one kernel for the whole update"),
    "xla": ("adamw_torch", "the fused kernel crashes on XLA"),
}


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Recipe:
    """The settings of the method, for any machine."""

    batch_size: PositiveInt  # examples in an optimizer step
    learning_rate: PositiveFloat
    max_steps: PositiveInt
    sequence_length: PositiveInt
    warmup_fraction: float = 0.05  # of max_steps, linear
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    tpu_batch_factor: PositiveInt = 2  # a chip's matrix unit needs larger batches
    tpu_learning_rate_factor: PositiveFloat = 1.2  # goes with tpu_batch_factor
    micro_batch_size: int = 0  # examples in a forward pass of one device; 0 = the largest that fits
    clips_micro_batch: bool = False  # a device with fewer examples takes those; else they are refused
    gradient_checkpointing: bool | None = (
        None  # None: where a step is faster with the larger micro-batch that it makes room for
    )
    evaluated: int = 0  # examples that the run's evaluations read, all together
    trial_seconds: float = 0.0  # of what the notebook tries before it trains
    compiled: bool | None = (
        False  # layers, whose inputs have few shapes; None: where that saves more time than it takes
    )


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of one run, with the `reasons` of those that were decided, by field name."""

    precision: str
    per_device_batch_size: int
    gradient_accumulation_steps: int
    device_count: int
    learning_rate: float
    max_steps: int
    sequence_length: int
    warmup_steps: int
    weight_decay: float
    max_grad_norm: float
    optimizer: str
    gradient_checkpointing: bool
    dataloader_workers: int
    pin_memory: bool
    memory: Memory  # of one device at this micro-batch
    reasons: dict[str, str] = field(default_factory=dict)
    evaluated: int = 0  # as in Recipe
    trial_seconds: float = 0.0
    compiled: bool = False

    @property
    def micro_batch_size(self) -> int:
        """Examples in a forward pass, over all devices."""
        return self.per_device_batch_size * self.device_count

    @property
    def batch_size(self) -> int:
        """Examples in an optimizer step: the effective batch."""
        return self.micro_batch_size * self.gradient_accumulation_steps

    @property
    def launches(self) -> int:
        """Operations of an optimizer step on a GPU, without compilation."""
        return self.memory.count.launches * self.gradient_accumulation_steps + UPDATE

    def results(self) -> dict[str, Any]:
        """The `plan` part of results.json."""
        return {"batch_size": self.batch_size, **asdict(self), "memory": self.memory.results()}

    def on(self, runtime: Runtime) -> Runtime:
        """The machine with the plan's precision."""
        return replace(runtime, precision=self.precision, precision_reason=self.reasons["precision"])

    def rows(self) -> list[dict[str, str]]:
        """What was decided, its value and the reason, for `tables.show`."""
        span = self.memory.peak
        worded = {
            "per_device_batch_size": f"{self.per_device_batch_size} x {self.device_count} device(s)",
            "memory": f"{tables.size(span.low)} to {tables.size(span.high)} a device, fits: {self.memory.fits}",
        }
        rows = []
        for name, reason in self.reasons.items():
            value = worded.get(name) or tables.cell(getattr(self, name))
            rows.append({"setting": name, "value": value, "why": reason})
        return rows


class DoesNotFit(ValueError):
    """Not even the smallest micro-batch fits into the memory of a device."""


def plan(
    recipe: Recipe,
    workload: Workload,
    runtime: Runtime,
    *,
    batch_size: int = 0,
    learning_rate: float = 0.0,
    max_steps: int = 0,
    gradient_checkpointing: bool | None = None,
) -> Plan:
    """Settings for one run.

    Args:
        workload: the training step, whose memory is counted.
        batch_size: examples in an optimizer step over all devices; 0 takes the recipe's (times its TPU factor on XLA).
        learning_rate: 0 takes the recipe's (times its TPU factor on XLA).
        max_steps: 0 takes as many steps as it takes to see the recipe's number of examples.
        gradient_checkpointing: None takes the recipe's.

    Raises:
        ValueError: a negative value, or a batch size that the devices cannot share.
        DoesNotFit: the model is too large for a device.
    """
    devices = runtime.device_count
    if runtime.precision == "fp16" and workload.overflows_fp16:
        why = f"activations of {workload.name} overflow in fp16, and {runtime.device_name} has no better precision"
        runtime = replace(runtime, precision="fp32", precision_reason=why)
    rate, why_rate = _choose(learning_rate, recipe.learning_rate, recipe.tpu_learning_rate_factor, runtime)
    batch, why_batch = _choose(batch_size, recipe.batch_size, recipe.tpu_batch_factor, runtime)
    steps, why_steps = max_steps, ASKED
    if not steps:
        steps = max(1, round(recipe.max_steps * recipe.batch_size / batch))
        why_steps = "as many examples as in the recipe"
    if gradient_checkpointing is None:
        gradient_checkpointing = recipe.gradient_checkpointing
    recipe = replace(  # which refuses negative ones
        recipe,
        batch_size=batch,
        learning_rate=rate,
        max_steps=steps,
        gradient_checkpointing=gradient_checkpointing,
    )
    share = batch // devices
    if batch % devices:
        multiple = max(devices, share * devices)
        raise ValueError(
            f"batch_size={batch}: {devices} devices share it, so it must be a multiple of {devices}; try {multiple}"
        )
    micro, why_micro = _recipe_micro_batch(recipe, share)
    micro, checkpointing, needed = _micro_batch(workload, runtime, share, recipe, micro)
    size = tables.size(runtime.memory) or "unknown memory"
    largest = "the largest that fits" if runtime.memory else f"the whole batch at once: {size}"
    why_checkpointing = "fits without it"
    if gradient_checkpointing is not None:
        why_checkpointing = ASKED
    elif checkpointing:
        why_checkpointing = "a larger micro-batch fits with it"
    kind, name = runtime.kind, workload.optimizer
    optimizer, why_optimizer = OPTIMIZER.get(f"{name} on {kind}") or OPTIMIZER.get(name) or OPTIMIZER[kind]
    compiled, why_compiled = choose_compilation(recipe, runtime, needed.count.launches * share // micro)
    reasons = {
        "batch_size": why_batch,
        "precision": runtime.precision_reason,
        "learning_rate": why_rate,
        "max_steps": why_steps,
        "per_device_batch_size": why_micro or largest,
        "gradient_accumulation_steps": f"keeps {batch} examples a step",
        "gradient_checkpointing": why_checkpointing,
        "memory": f"{needed.peak.basis}; {runtime.device_name} has {size}",
        "optimizer": why_optimizer,
    }
    if kind == "cuda":
        reasons["launches"] = "operations of a step, which the host starts one by one"
        reasons["compiled"] = why_compiled
    return Plan(
        precision=runtime.precision,
        per_device_batch_size=micro,
        gradient_accumulation_steps=share // micro,
        device_count=devices,
        learning_rate=rate,
        max_steps=steps,
        sequence_length=recipe.sequence_length,
        warmup_steps=round(steps * recipe.warmup_fraction),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        optimizer=optimizer,
        gradient_checkpointing=checkpointing,
        dataloader_workers=0,  # batches are made from what is in memory; on a TPU forked workers hang
        pin_memory=runtime.kind == "cuda",
        memory=needed,
        evaluated=recipe.evaluated,
        trial_seconds=recipe.trial_seconds,
        compiled=compiled,
        reasons=reasons,
    )


def choose_compilation(recipe: Recipe, runtime: Runtime, launches: int) -> tuple[bool, str]:
    """Whether the layers are compiled, and why. launches: operations of a step without it.

    COMPILE_LAYERS in the environment decides where the recipe leaves it open: "yes", "no" or "auto". Raises ValueError for another value.
    """
    setting = os.environ.get("COMPILE_LAYERS", "auto")
    if setting not in ("auto", "yes", "no"):
        raise ValueError(f"COMPILE_LAYERS={setting!r} in the environment: give 'auto', 'yes' or 'no'")
    if runtime.kind == "xla":
        return False, "XLA compiles whole steps"
    if recipe.compiled:
        return True, ASKED
    if recipe.compiled is not None:
        return False, "not for this model"
    if setting != "auto":
        return setting == "yes", f"{ASKED} (COMPILE_LAYERS)"
    if not runtime.has_tf32:
        return False, f"{runtime.device_name} is not a GPU with sm_80 or newer"
    saved = recipe.max_steps * launches * (1 - COMPILED_LAUNCHES) * math.sqrt(math.prod(LAUNCH))
    _, longest = COMPILATION["cuda"]
    times = f"{recipe.max_steps} steps save about {tables.seconds(saved)} (an estimate), and compiling takes up to {tables.seconds(longest)}"
    return saved > longest, times


def _recipe_micro_batch(recipe: Recipe, share: int) -> tuple[int, str]:
    """The recipe's micro-batch for a device with so many examples, or 0, and the reason. Raises ValueError if it does not divide them."""
    size = recipe.micro_batch_size
    if not size:
        return 0, ""
    if size > share and recipe.clips_micro_batch:
        return share, f"the recipe has {size}, and a device {share}"
    if share % size:
        raise ValueError(
            f"micro_batch_size={size}: a device has {share} examples, which is no multiple of it; give a divisor of {share}"
        )
    return size, RECIPES


def _choose(value, recipe, factor, runtime):
    """A value with its reason: the user's, or the recipe's (times its factor on a TPU)."""
    if value:
        return value, ASKED
    if factor == 1 or runtime.kind != "xla":
        return recipe, RECIPES
    return recipe * factor, f"recipe {recipe:g} x {factor:g} on a TPU"


def memory_of(
    workload: Workload, runtime: Runtime, examples: int, share: int, checkpointing: bool, *, evaluated: bool = False
) -> Memory:
    """Memory of one device that computes its `share` of a batch in micro-batches of `examples`.

    evaluated: the workload's evaluation counts, too, which no micro-batch makes smaller.
    """
    from .counting import count, evaluation_peak

    kind = runtime.kind
    how = {"kind": kind, "precision": runtime.precision, "shares_keys": not runtime.is_before_ampere}
    counted = count(workload, examples, checkpointing=checkpointing, accumulating=examples < share, **how)
    evaluation = evaluation_peak(workload, **how) if evaluated else 0
    return memory(counted, kind, runtime.memory, processes=runtime.device_count, evaluation=evaluation)


def _micro_batch(
    workload: Workload, runtime: Runtime, share: int, recipe: Recipe, size: int
) -> tuple[int, bool, Memory]:
    """Examples in a forward pass of one device, whether activations are recomputed, and the memory for this.

    size: is taken whether it fits or not; 0: the most that fit. Where they are fewer than `share`, activations are computed again if
    the step takes less time with the larger micro-batch that then fits: a small one takes as long as its operations take to start.
    """
    from .counting import transformer_of

    sizes = [size]
    if not size:
        smallest = min(share, workload.least)
        sizes = [number for number in range(smallest, share + 1) if share % number == 0]
    choices = [bool(recipe.gradient_checkpointing)]
    recomputes = getattr(transformer_of(workload.model), "supports_gradient_checkpointing", False)
    if recipe.gradient_checkpointing is None and recomputes:
        choices.append(True)
    fitting = []  # (seconds of a step, examples, checkpointing)
    for checkpointing in choices:
        for examples in reversed(sizes):
            needed = memory_of(workload, runtime, examples, share, checkpointing)
            if needed.fits in FITS:
                work = Work.of(vars(needed.count), share // examples)
                step = published(work, runtime.accelerator, runtime.precision, False)
                # In the middle of its interval; 0 on a machine of which no step was published.
                seconds = math.sqrt(step.low * step.high) if step else 0.0
                fitting.append((seconds, examples, checkpointing))
                break
        if examples == share and fitting:
            break  # nothing is accumulated
    if fitting:
        _, examples, checkpointing = min(fitting, key=lambda way: way[0])
    elif needed.fits == "no" and not size:
        remedy = "use a smaller model or a shorter sequence"
        if not checkpointing:
            remedy += ", or gradient_checkpointing=True"
        raise DoesNotFit(
            f"{examples} example(s) in sequences of {workload.length} tokens need at least {tables.size(needed.peak.low)} and "
            f"{runtime.device_name} has {tables.size(runtime.memory)}: {remedy}"
        )
    return examples, checkpointing, memory_of(workload, runtime, examples, share, checkpointing, evaluated=True)
