"""From a recipe, a model and this machine to the settings of the run, each with its reason.

python -m helpers.plan lejepa_training --hardware T4,v5e-8 --examples 50000      # time, memory and cost: planning/
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field

from .runtime import Runtime

MEMORY_MARGIN = 0.8  # share of a device's memory that a plan may fill; allocators fragment, graphs need workspace
GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What the method asks for, whatever the machine."""

    batch_size: int  # examples an optimizer step
    learning_rate: float
    max_steps: int
    sequence_length: int
    warmup_fraction: float = 0.05  # of max_steps, linear
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    tpu_batch_factor: int = 2  # a chip's matrix unit is fed by larger batches
    tpu_learning_rate_factor: float = 1.2  # goes with tpu_batch_factor

    def __post_init__(self):
        for name in ("batch_size", "max_steps", "sequence_length", "tpu_batch_factor"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        for name in ("learning_rate", "tpu_learning_rate_factor"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)}: must be positive")


@dataclass(frozen=True, kw_only=True)
class ModelSize:
    """What the memory of a training step is made of."""

    trainable: int  # parameters with gradient and optimizer state
    frozen: int  # weights without
    activations: int  # floats kept for backward a token, logits apart
    vocab_size: int = 0  # logits a token; 0 = no language-model head

    def bytes_fixed(self) -> int:
        """Weights, gradients and two AdamW moments in fp32, plus frozen weights: bytes."""
        return 16 * self.trainable + 4 * self.frozen

    def bytes_per_token(self) -> int:
        """Bytes a token of a micro-batch: activations, and logits with their fp32 copy and gradient."""
        return 4 * self.activations + 12 * self.vocab_size


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The settings of one run. `reasons` says why, by field name."""

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
    memory_estimate: int  # bytes a device at this micro-batch; an estimate from shapes, not a measurement
    reasons: dict[str, str] = field(default_factory=dict)

    @property
    def micro_batch_size(self) -> int:
        """Examples of one forward pass over all devices."""
        return self.per_device_batch_size * self.device_count

    @property
    def batch_size(self) -> int:
        """Examples an optimizer step: the effective batch."""
        return self.micro_batch_size * self.gradient_accumulation_steps

    def results(self) -> dict:
        """The `plan` part of results.json."""
        return {"batch_size": self.batch_size, **asdict(self)}

    def __str__(self) -> str:
        rows = [
            ("batch_size", f"{self.batch_size}"),
            ("per_device_batch_size", f"{self.per_device_batch_size} x {self.device_count} device(s)"),
            ("gradient_accumulation_steps", f"{self.gradient_accumulation_steps}"),
            ("learning_rate", f"{self.learning_rate:.3g}"),
            ("max_steps", f"{self.max_steps}"),
            ("warmup_steps", f"{self.warmup_steps}"),
            ("weight_decay", f"{self.weight_decay:g}"),
            ("max_grad_norm", f"{self.max_grad_norm:g}"),
            ("sequence_length", f"{self.sequence_length}"),
            ("precision", self.precision),
            ("optimizer", self.optimizer),
            ("gradient_checkpointing", "on" if self.gradient_checkpointing else "off"),
            ("dataloader_workers", f"{self.dataloader_workers}{', pinned memory' if self.pin_memory else ''}"),
            ("memory_estimate", f"{self.memory_estimate / GIB:.2f} GiB a device"),
        ]
        return "\n".join(f"{name:<28}{value:<22}{self.reasons.get(name, '')}" for name, value in rows)


def plan(
    recipe: Recipe,
    model: ModelSize,
    runtime: Runtime,
    *,
    batch_size: int = 0,
    learning_rate: float = 0.0,
    max_steps: int = 0,
    gradient_checkpointing: bool = False,
    compute_bound_loader: bool = False,
) -> Plan:
    """Settings for one run.

    Args:
        recipe: what the method asks for.
        model: what a step holds in memory.
        runtime: the machine.
        batch_size: examples an optimizer step over all devices; 0 takes the recipe's (times its TPU factor on XLA).
        learning_rate: 0 takes the recipe's (times its TPU factor on XLA).
        max_steps: 0 takes as many steps as see the recipe's number of examples.
        gradient_checkpointing: recompute activations in backward.
        compute_bound_loader: reading an example costs CPU work, so loader processes pay off.

    Raises:
        ValueError: a batch size that the devices cannot share, or a model that does not fit at one example a device.
    """
    for name, value in (("batch_size", batch_size), ("learning_rate", learning_rate), ("max_steps", max_steps)):
        if value < 0:
            raise ValueError(f"{name}={value}: must be positive, or 0 for the plan's own")
    on_xla = runtime.kind == "xla"
    reasons: dict[str, str] = {"precision": runtime.precision_reason}

    effective, reasons["batch_size"] = _chosen(batch_size, recipe.batch_size, recipe.tpu_batch_factor, on_xla)
    rate, reasons["learning_rate"] = _chosen(
        learning_rate, recipe.learning_rate, recipe.tpu_learning_rate_factor, on_xla
    )
    steps = max_steps or max(1, round(recipe.max_steps * recipe.batch_size / effective))
    reasons["max_steps"] = (
        "asked for"
        if max_steps
        else "the recipe's"
        if effective == recipe.batch_size
        else f"as many examples as the recipe's {recipe.max_steps} steps of {recipe.batch_size}"
    )

    devices = runtime.device_count
    if effective % devices:
        raise ValueError(
            f"batch_size={effective}: {devices} devices share it, so it must be a multiple of {devices}; "
            f"try {max(devices, effective // devices * devices)}"
        )
    per_token = model.bytes_per_token()
    if gradient_checkpointing:
        per_token -= int(4 * model.activations * 0.8)  # what is kept between checkpointed blocks is about a fifth
    micro, estimate = effective // devices, 0
    budget = runtime.memory * MEMORY_MARGIN if runtime.memory else None
    for micro in _divisors(effective // devices):
        estimate = model.bytes_fixed() + micro * recipe.sequence_length * per_token
        if budget is None or estimate <= budget:
            break
    else:
        raise ValueError(
            f"one example of {recipe.sequence_length} tokens needs about {estimate / GIB:.1f} GiB and "
            f"{runtime.device_name} has {runtime.memory / GIB:.1f}: use a smaller model, a shorter sequence, or "
            "gradient_checkpointing=True"
        )
    accumulation = effective // devices // micro
    reasons["per_device_batch_size"] = (
        "memory unknown: the whole batch at once" if budget is None else "the largest that fits by estimate"
    )
    reasons["gradient_accumulation_steps"] = f"keeps {effective} examples a step"
    reasons["gradient_checkpointing"] = "asked for" if gradient_checkpointing else "not needed to fit"

    reasons["memory_estimate"] = "weights, gradients, optimizer state and activations; from shapes, not measured"
    for name in ("sequence_length", "warmup_steps", "weight_decay", "max_grad_norm"):
        reasons[name] = "the recipe's"

    optimizer, reasons["optimizer"] = choose_optimizer(runtime)
    workers, reasons["dataloader_workers"] = choose_workers(runtime, compute_bound_loader)
    return Plan(
        precision=runtime.precision,
        per_device_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        device_count=devices,
        learning_rate=rate,
        max_steps=steps,
        sequence_length=recipe.sequence_length,
        warmup_steps=round(steps * recipe.warmup_fraction),
        weight_decay=recipe.weight_decay,
        max_grad_norm=recipe.max_grad_norm,
        optimizer=optimizer,
        gradient_checkpointing=gradient_checkpointing,
        dataloader_workers=workers,
        pin_memory=runtime.kind == "cuda",
        memory_estimate=estimate,
        reasons=reasons,
    )


def _chosen(asked, recipe, tpu_factor, on_xla: bool):
    """A value and the reason for it: the user's, or the recipe's times its factor on a TPU."""
    if asked:
        return asked, "asked for"
    if on_xla:
        return recipe * tpu_factor, f"recipe {recipe:g} x {tpu_factor:g} on a TPU"
    return recipe, "the recipe's"


def choose_optimizer(runtime: Runtime) -> tuple[str, str]:
    """`TrainingArguments.optim` for a runtime and the reason; the fused kernel is tried, not assumed."""
    if runtime.kind == "xla":
        return "adamw_torch", "the fused kernel crashes on XLA"
    if runtime.kind == "cpu":
        return "adamw_torch", "fused AdamW is for GPUs"
    import torch

    try:
        parameter = torch.nn.Parameter(torch.zeros(1, device="cuda"))
        torch.optim.AdamW([parameter], fused=True)
    except RuntimeError as error:
        return "adamw_torch", f"fused AdamW is not supported here: {error}"
    return "adamw_torch_fused", "one kernel for the whole update"


def choose_workers(runtime: Runtime, compute_bound_loader: bool) -> tuple[int, str]:
    """Loader processes for a runtime and the reason."""
    if runtime.kind == "xla":
        return 0, "torch_xla's loader threads feed the device; forked workers hang"
    if runtime.kind == "cpu":
        return 0, "the training itself needs the cores"
    if not compute_bound_loader:
        return 0, "an example is one slice of a memory-mapped file"
    return min(4, os.cpu_count() or 1), "examples cost CPU work"


def _divisors(number: int) -> list[int]:
    """Divisors, largest first: the micro-batches that leave the effective batch whole."""
    return [divisor for divisor in range(number, 0, -1) if number % divisor == 0]


if __name__ == "__main__":
    from helpers.planning.choosing import main

    raise SystemExit(main())
