"""Memory, time and cost of a job on a machine, each as an interval that says what it rests on.

    outlook(job("lejepa_training"), machine("T4"), examples=50_000)

Time is "measured" where a calibration of this device ran this model, "scaled from a measurement" where one of the same kind
of device or of the same job in another size did, and else a "datasheet bound": no faster than the peak allows, and no slower
than the least share of a peak that public training runs report. Memory is "counted from shapes" until it was measured.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from helpers.hardware import Machine

from . import prices as price_table
from .calibration import Calibration, Measured, StepModel
from .jobs import HALF, Job
from .memory import Memory, memory
from .ranges import BOUND, MEASURED, SCALED, Range

GB = 10**9
SHARE = 0.9  # of a device's memory that a step may fill
# Shares of a datasheet peak that public runs report: 7.5 % (nanoGPT PR 376, a small model on an RTX 3080) to 73 % (nanochat
# PR 147, A100). The bound itself is the whole peak.
LEAST_SHARE = 0.05
BETWEEN_DEVICES = 1.25  # either way, beyond the ratios of peak and bandwidth
BETWEEN_SIZES = 2.0  # either way: another model on the same device at the same FLOP/s
TIME_SPREAD = 0.20  # either way; a measured time is met to that: benchmarks/planner.py


# ---- time


def step_seconds(
    job: Job,
    machine: Machine,
    precision: str,
    sequences: float,
    length: int,
    calibrations: Sequence[Calibration] = (),
    micro_batches: int = 1,
) -> Range | None:
    """Seconds of one optimizer step over `sequences` of all devices, in so many micro-batches; None where nothing is known."""
    own = [each for each in calibrations if each.is_for(machine) and each.count == machine.count]
    for calibration in own:
        if found := calibration.find(job, precision):
            return _spread(
                _predicted(found.time, job, sequences, length, micro_batches),
                _measured_spread(found, sequences, length),
                MEASURED,
            )
    here = _of_same_device(job, own, precision, sequences, length)
    if here:
        return here
    bound = _bound(job, machine, precision, sequences, length)
    if bound is None:
        return None
    for calibration in sorted(calibrations, key=lambda each: each.kind != machine.kind):
        if calibration.kind == machine.kind and (
            scaled := _scaled(job, machine, precision, sequences, length, calibration)
        ):
            return scaled
    return Range(low=bound, high=math.inf if job.serial else bound / LEAST_SHARE, basis=BOUND)


def recomputing(time: Range) -> Range:
    """With the forward pass taken twice, as checkpointing does: up to a third more."""
    return Range(low=time.low, high=time.high * 4 / 3, value=time.value and time.value * 4 / 3, basis=time.basis)


def _predicted(time: StepModel, job: Job, sequences: float, length: int, micro_batches: int) -> float:
    return (
        micro_batches * time.seconds(job, sequences / micro_batches, length) - (micro_batches - 1) * time.update_seconds
    )


def _measured_spread(found: Measured, sequences: float, length: int) -> float:
    """The spread widens where nothing near was measured."""
    largest = max(size.sequences * size.length for size in found.sizes)
    return 1 + TIME_SPREAD * (1 if sequences * length <= 8 * largest else 2)


def _spread(value: float, factor: float, basis: str) -> Range:
    return Range(low=value / factor, high=value * factor, value=value, basis=basis)


def _of_same_device(job, calibrations, precision, sequences, length) -> Range | None:
    """The same job in another size on this very device, at the FLOP/s that it reached."""
    for calibration in calibrations:
        others = [each for each in calibration.jobs if each.job == job.name and each.precision == precision]
        if others:
            best = max(others, key=lambda each: each.flops_per_second)
            value = sum(job.flops(sequences, length)) / best.flops_per_second
            return _spread(value, BETWEEN_SIZES, SCALED)
    return None


def _bound(job: Job, machine: Machine, precision: str, sequences: float, length: int) -> float | None:
    """The least that the datasheet allows: products at the peak, then the update at the full bandwidth."""
    accelerator = machine.accelerator
    peak = accelerator and accelerator.peak_for(precision)
    if not peak:
        return None
    # AdamW reads weight, gradient and two moments, and writes all but the gradient, on every device.
    update = 28.0 * job.updated / accelerator.bandwidth
    return sum(job.flops(sequences, length)) / (peak * machine.count) + update


def _scaled(job, machine, precision, sequences, length, calibration: Calibration) -> Range | None:
    """From another device of the same kind: between the ratio of the peaks and that of the bandwidths, and some more."""
    from helpers import hardware

    other = hardware.find(calibration.device)
    if other is None:
        return None
    found = calibration.find(job, precision) or next(
        (calibration.find(job, each) for each in HALF if precision in HALF and calibration.find(job, each)), None
    )
    if found is None or not other.peak_for(found.precision):
        return None
    there = found.time.seconds(job, sequences / machine.count, length)
    peaks = other.peak_for(found.precision) / machine.accelerator.peak_for(precision)
    bandwidths = other.bandwidth / machine.accelerator.bandwidth
    there *= calibration.count
    return Range(
        low=there * min(peaks, bandwidths) / BETWEEN_DEVICES,
        high=there * max(peaks, bandwidths) * BETWEEN_DEVICES,
        value=there * math.sqrt(peaks * bandwidths),
        basis=SCALED,
    )


# ---- one machine


@dataclass(frozen=True, kw_only=True)
class Outlook:
    """A job on a machine."""

    job: str
    model: str
    hardware: str
    note: str
    precision: str
    length: int
    examples: int
    epochs: int
    batch_size: int  # examples an optimizer step
    per_device_batch_size: int
    gradient_accumulation_steps: int
    devices: int
    learning_rate: float
    gradient_checkpointing: bool
    fits: bool | None  # None: the memory is not known
    shortfall: float  # bytes missing for one example a device
    largest_batch: int | None  # examples a device in one micro-batch
    memory: Memory
    capacity: int | None
    steps: int
    step_seconds: Range | None
    epoch_seconds: Range | None
    run_seconds: Range | None
    usd_per_hour: float | None
    price_source: str
    epoch_usd: Range | None
    run_usd: Range | None
    reasons: dict[str, str] = field(default_factory=dict)

    def as_dict(self) -> dict:
        """For JSON, which has no infinity: an interval that is open above ends in None."""
        return _finite(asdict(self))


def _finite(value):
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    return None if value == math.inf else value


def outlook(
    job: Job,
    machine: Machine,
    *,
    examples: int = 0,
    steps: int = 0,
    epochs: int = 0,
    batch_size: int = 0,
    length: int = 0,
    precision: str = "auto",
    checkpointing: bool | None = None,
    memory_bytes: int | None = None,
    calibrations: Sequence[Calibration] = (),
    prices: dict | None = None,
) -> Outlook:
    """What a run of a job needs on a machine.

    Args:
        examples: rows, pairs, records or blocks of the data; 0 takes the notebook's.
        steps: optimizer steps; 0 follows from examples and epochs.
        batch_size: examples an optimizer step; 0 takes the recipe's, times its TPU factor there.
        length: tokens of a sequence; 0 takes the notebook's.
        precision: "auto" is what the device trains in.
        checkpointing: None turns it on where one example does not fit without.
        memory_bytes: of a device, where the catalogue does not know (a CPU's).

    Raises ValueError for negative numbers and a precision that the device lacks.
    """
    for name, value in (
        ("examples", examples), ("steps", steps), ("epochs", epochs), ("batch_size", batch_size), ("length", length),
    ):  # fmt: skip
        if value < 0:
            raise ValueError(f"{name}={value}: is negative; give 1 or more, or 0 for the job's own")
    reasons: dict[str, str] = {}
    precision = _precision(machine, precision)
    examples, epochs, length = examples or job.examples, epochs or job.epochs, length or job.length
    if job.name == "graphmer_se" and length <= job.settings["leaves"] * job.settings["leaf_tokens"]:
        slots = job.settings["leaves"] * job.settings["leaf_tokens"]
        raise ValueError(f"length={length}: {slots} of it are leaf slots; give more than {slots}")
    on_tpu = machine.kind == "xla"
    batch, rate = _batch_and_rate(job, examples, batch_size, machine.count, on_tpu, reasons)
    measured = next(
        (found for each in calibrations if each.is_for(machine) and (found := each.find(job, precision))), None
    )
    capacity = memory_bytes or machine.memory
    budget = capacity * SHARE if capacity else None

    def needed(per_device: int, on: bool, accumulating: bool = False) -> Memory:
        return memory(
            job, machine.kind, precision, per_device * job.views, length,
            checkpointing=on, accumulating=accumulating, measured=measured,
        )  # fmt: skip

    one_fits = budget is None or needed(1, False).peak.value <= budget
    on = (not one_fits) if checkpointing is None else checkpointing
    reasons["gradient_checkpointing"] = (
        "asked for"
        if checkpointing is not None
        else "not needed to fit"
        if one_fits
        else "one example does not fit without"
    )
    largest = None if budget is None else _largest(lambda count: needed(count, on).peak.value <= budget)
    share = batch // machine.count
    micro = share if largest is None else _divisor(share, largest)
    accumulation = share // micro
    held = needed(micro, on, accumulation > 1)
    shortfall = max(0.0, needed(1, on).peak.value - budget) if budget else 0.0
    sequences_a_step = batch * job.views
    time = step_seconds(job, machine, precision, sequences_a_step, length, calibrations, accumulation)
    if time and on:
        time = recomputing(time)
        reasons["step_seconds"] = "checkpointing repeats the forward pass: a third more"
    per_epoch = max(1, round(examples * job.sequences_per_example / batch))
    total = steps or per_epoch * epochs
    # As many examples as the recipe's longest run sees, whatever the batch.
    longest = job.longest * job.recipe_batch(examples) // batch
    if not steps and longest and total > longest:
        total = longest
        reasons["steps"] = f"the recipe's longest run, {job.longest:,} steps of {job.recipe_batch(examples)}"
    price = price_table.of(machine, prices or price_table.TABLE)
    epoch, run = (time * per_epoch, time * total) if time else (None, None)
    hourly = price.usd_per_hour
    if shortfall:
        epoch = run = None
    return Outlook(
        job=job.name,
        model=job.model,
        hardware=machine.name,
        note=machine.note,
        precision=precision,
        length=length,
        examples=examples,
        epochs=epochs,
        batch_size=batch,
        per_device_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        devices=machine.count,
        learning_rate=rate,
        gradient_checkpointing=on,
        fits=None if budget is None else not shortfall,
        shortfall=shortfall,
        largest_batch=largest,
        memory=held,
        capacity=capacity,
        steps=total,
        step_seconds=time,
        epoch_seconds=epoch,
        run_seconds=run,
        usd_per_hour=hourly,
        price_source=", ".join(filter(None, (price.source, price.as_of, price.remark))),
        epoch_usd=epoch * (hourly / 3600) if epoch and hourly else None,
        run_usd=run * (hourly / 3600) if run and hourly else None,
        reasons=reasons,
    )


def _precision(machine: Machine, asked: str) -> str:
    if asked == "auto":
        return machine.precision
    if asked not in ("fp32", "fp16", "bf16"):
        raise ValueError(f"precision={asked!r}: must be 'auto', 'fp32', 'bf16' or 'fp16'")
    lacking = machine.accelerator is not None and machine.accelerator.peak_for(asked) is None
    if lacking or (machine.kind == "cpu" and asked == "fp16"):
        raise ValueError(
            f"precision={asked!r}: {machine.name} has none; use 'auto', which is {machine.precision} there"
        )
    return asked


def _batch_and_rate(job, examples, asked, devices, on_tpu, reasons) -> tuple[int, float]:
    rate = job.learning_rate
    if asked:
        reasons["batch_size"] = "asked for"
        if asked % devices:
            raise ValueError(
                f"batch_size={asked}: {devices} devices share it, so it must be a multiple of {devices}; "
                f"try {max(devices, asked // devices * devices)}"
            )
        batch = asked
    else:
        batch = job.recipe_batch(examples)
        reasons["batch_size"] = "the recipe's"
        if on_tpu and job.tpu_batch_factor != 1:
            batch, rate = batch * job.tpu_batch_factor, rate * job.tpu_learning_rate_factor
            reasons["batch_size"] = f"the recipe's x {job.tpu_batch_factor} on a TPU"
            reasons["learning_rate"] = f"the recipe's x {job.tpu_learning_rate_factor} on a TPU"
        if batch % devices:
            batch = math.ceil(batch / devices) * devices
            reasons["batch_size"] += f", up to a multiple of {devices} devices"
    reasons.setdefault("learning_rate", "the recipe's")
    return batch, rate


def _largest(fits) -> int:
    """The largest count that fits, by doubling and halving; 0 where one does not."""
    if not fits(1):
        return 0
    high = 2
    while high < 2**20 and fits(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def _divisor(share: int, largest: int) -> int:
    return max((each for each in range(1, share + 1) if share % each == 0 and each <= max(largest, 1)), default=1)
