"""The settings of a run, each with its reason, from a recipe, a model and a machine."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import pydantic.dataclasses
from pydantic import PositiveFloat, PositiveInt

from helpers.machine.runtime import Runtime
from helpers.show import tables

RECIPES, BY_USER = "from the recipe", "set by you"
# Share of a device's memory for state and activations. The rest is for the backward pass, kernels, the allocator and, on a CPU,
# everything else on the computer: there the system ends a process, where a GPU raises an error and the trainer halves the micro-batch.
SHARE = {"cpu": 0.4, "cuda": 0.7, "xla": 0.5}
OPTIMIZER = {
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
    micro_batch_size: int = 0  # examples in a forward pass of one device; 0: the most that fit
    smallest: PositiveInt = 1  # examples of the smallest micro-batch
    gradient_checkpointing: bool = False
    fp16: bool = True  # False: activations are beyond its largest number, whatever the loss is scaled by


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
    dataloader_workers: int = 0  # batches are made from what is in memory; on a TPU forked workers hang
    memory: dict[str, int]  # bytes of a device: weights, gradients, optimizer, activations
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def micro_batch_size(self) -> int:
        """Examples in a forward pass, over all devices."""
        return self.per_device_batch_size * self.device_count

    @property
    def batch_size(self) -> int:
        """Examples in an optimizer step: the effective batch."""
        return self.micro_batch_size * self.gradient_accumulation_steps

    def results(self) -> dict[str, Any]:
        """The `plan` part of results.json."""
        return {"batch_size": self.batch_size, **asdict(self)}

    def rows(self) -> list[dict[str, str]]:
        """What was decided, its value and the reason, and the memory of a device, for `tables.show`."""
        rows = []
        for name, reason in self.reasons.items():
            rows.append({"setting": name, "value": tables.cell(getattr(self, name)), "why": reason})
        for name, size in self.memory.items():
            row = {"setting": f"memory: {name}", "value": f"{tables.size(size)}", "why": "of a device, at least"}
            rows.append(row)
        return rows


class DoesNotFit(ValueError):
    """Not even the smallest micro-batch fits into the memory of a device."""


def usable_memory(runtime: Runtime) -> float:
    """Bytes of a device that state and activations may take; infinite where the memory is unknown.

    Half as much where several processes train, since none of them can go back to a smaller micro-batch alone.
    """
    share = SHARE[runtime.kind]
    if runtime.device_count > 1 and runtime.kind != "xla":
        share /= 2
    return share * (runtime.memory or math.inf)


def plan(
    recipe: Recipe,
    model,
    loss,
    batch,
    runtime: Runtime,
    *,
    batch_size: int = 0,
    learning_rate: float = 0.0,
    max_steps: int = 0,
    gradient_checkpointing: bool = False,
) -> Plan:
    """Settings for one run.

    Args:
        model: a module that holds every weight, of the loss too.
        loss: a function of a copy of the model and a batch that gives a scalar, as in training. It is called on tensors without numbers.
        batch: a function of the number of examples that gives what `loss` takes.
        batch_size: examples in an optimizer step over all devices; 0: the recipe's (times its TPU factor on XLA).
        learning_rate: 0: the recipe's (times its TPU factor on XLA).
        max_steps: 0: as many steps as it takes to see the recipe's number of examples.
        gradient_checkpointing: True, whatever the recipe has.

    Raises:
        ValueError: a negative value, or a batch size that the devices cannot share.
        DoesNotFit: the model is too large for a device.
    """
    from . import memory

    devices, kind = runtime.device_count, runtime.kind
    if runtime.precision == "fp16" and not recipe.fp16:
        why = f"fp16 overflows in this model, and {runtime.device_name} has no bf16"
        runtime = replace(runtime, precision="fp32", precision_reason=why)
    rate, why_rate = _choose(learning_rate, recipe.learning_rate, recipe.tpu_learning_rate_factor, kind)
    size, why_size = _choose(batch_size, recipe.batch_size, recipe.tpu_batch_factor, kind)
    steps, why_steps = max_steps, BY_USER
    if not steps:
        steps = max(1, round(recipe.max_steps * recipe.batch_size / size))
        why_steps = "as many examples as in the recipe"
    checkpointing = gradient_checkpointing or recipe.gradient_checkpointing
    recipe = replace(recipe, batch_size=size, learning_rate=rate, max_steps=steps)  # which refuses negative ones
    share = size // devices
    if size % devices:
        raise ValueError(f"batch_size={size}: {devices} devices share it, so it must be a multiple of {devices}")
    bytes_of = memory.state(model)
    smallest, how = recipe.smallest, (runtime.precision, checkpointing)
    one = memory.activations(model, loss, batch(smallest), *how)
    two = memory.activations(model, loss, batch(2 * smallest), *how)
    example = (two - one) // smallest  # the rest are copies of the weights in half precision
    fixed = sum(bytes_of.values()) + one - smallest * example
    micro, why_micro = _micro_batch(recipe, runtime, share, fixed, example)
    bytes_of["activations"] = one + (micro - smallest) * example
    optimizer, why_optimizer = OPTIMIZER[kind]
    reasons = {
        "batch_size": why_size,
        "precision": runtime.precision_reason,
        "learning_rate": why_rate,
        "max_steps": why_steps,
        "per_device_batch_size": why_micro,
        "gradient_accumulation_steps": f"keeps {size} examples a step",
        "gradient_checkpointing": BY_USER if gradient_checkpointing else RECIPES,
        "optimizer": why_optimizer,
    }
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
        memory=bytes_of,
        reasons=reasons,
    )


def _choose(by_user, recipe, factor, kind: str):
    """A value with its reason: the user's, or the recipe's (times its factor on a TPU)."""
    if by_user:
        return by_user, BY_USER
    if factor == 1 or kind != "xla":
        return recipe, RECIPES
    return recipe * factor, f"recipe {recipe:g} x {factor:g} on a TPU"


def _micro_batch(recipe: Recipe, runtime: Runtime, share: int, fixed: int, example: int) -> tuple[int, str]:
    """Examples in a forward pass of a device, and why: the recipe's, or the largest divisor of `share` that fits.

    fixed: bytes that are needed whatever the micro-batch is; example: bytes of a further example.
    """
    if recipe.micro_batch_size:
        return min(recipe.micro_batch_size, share), RECIPES
    sizes = [size for size in range(min(recipe.smallest, share), share + 1) if share % size == 0]
    fits = [size for size in sizes if fixed + size * example <= usable_memory(runtime)]
    if fits:
        return fits[-1], "the largest that fits; halved where memory runs out"
    examples = sizes[0]
    if fixed + examples * example > (runtime.memory or math.inf):
        raise DoesNotFit(
            f"{runtime.device_name} has {tables.size(runtime.memory)}: weights, gradients and optimizer need {tables.size(fixed)}, and "
            f"{examples} example(s) {tables.size(examples * example)}. Use a smaller model, shorter sequences or gradient_checkpointing=True"
        )
    return examples, "the smallest; memory is short"
