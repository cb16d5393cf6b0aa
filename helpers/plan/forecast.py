"""What a step needs on a machine, as intervals that say what they rest on: memory, seconds, dollars; and which machine is faster.

forecast = forecast_run(workload, plan, runtime)             # in a notebook, before training
tables.show(forecast.rows())
tables.show(forecast.compared(measured["train"]))            # and after it
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.machine.hardware import Accelerator, Machine, find
from helpers.machine.runtime import Runtime
from helpers.show import tables

from .machines import usd_per_hour
from .workloads import Workload

if TYPE_CHECKING:
    from .counting import Count

NOT_KNOWN = "no similar run was published"
LEFT_OUT = "The run is training with its trials, evaluations and compilation; download and saving come on top."

# kind: lowest and highest share of the counted bytes that is taken, and the bytes that the driver takes at most on top.
ALLOCATED = {
    "cpu": (0.95, 1.05, 0),  # benchmarks/planner.py
    # The caching allocator's fragments, and the CUDA context, which a run's own measurement leaves out. Four notebooks on an H200: 0.95 to 1.03.
    "cuda": (0.9, 1.3, 1_400 * 10**6),
    # Operation by operation, while XLA fuses: compiled programs of the notebooks took 0.43 to 1.0 (tpu_compiler_steps.json).
    "xla": (0.4, 1.05, 0),
}
CPU_SHARE = 0.8  # of a computer's memory that one run may take

# benchmarks/public_runs.py fits these to every second source of docs/results/public_runs.json, and tests them on the others.
# Log of a step's seconds over its bound: constant of the kind, of log balance, and of log size (on a GPU).
CONSTANT, BALANCE, SIZE, SIZE_UNFUSED = {"cuda": -0.358, "xla": -0.032}, 0.191, -0.211, -0.357
SIZES = (0.004, 0.5)  # seconds at the peak of published micro-batches
EITHER_WAY = 1.87  # the interval of a time: 3.5 from its lower to its upper end
# Of two machines of a kind on the same job, whose common errors cancel; of one and several of a card.
RATIO, SAME_CARD = 1.77, 1.26
SAME_MODEL, OTHER_MODEL = 1.2, 2.0  # either way, of a time that was measured on this very machine
# What a forecast of a kind rests on. Of the 16 published runs on TPUs 15 used JAX or Flax, and one used torch_xla, on 128 chips.
BASIS = {"cuda": "published runs", "xla": "a guess: published TPU runs use JAX or Flax"}
# Seconds that a run is compiled: by XLA (docs/results/tpu_compiler_steps.json), and the layers on a GPU, which is a guess.
COMPILATION = {"xla": (60.0, 660.0), "cuda": (20.0, 120.0)}
COMPILED_LAUNCHES = 0.5  # share of a step's launches that compiled layers have, at most (docs/gpu.md)
EVALUATED = 1 / 3  # of the time of a trained example: a forward pass
# Seconds that a GPU's host takes to launch an operation; on an H200 27e-6 to 60e-6 for each that makes a tensor (docs/gpu.md).
LAUNCH = 10e-6, 100e-6
UPDATE = 10  # operations of clipping and of the fused optimizer, whatever the number of weights
ADAMW_BYTES = 28.0  # a trained weight: weight, gradient and two moments are read, all but the gradient written


@dataclass(frozen=True, kw_only=True)
class Range:
    """An estimate, and what it rests on."""

    low: float
    high: float
    value: float
    basis: str

    @classmethod
    def from_factor(cls, value: float, factor: float, basis: str) -> Range:
        """From `value` over `factor` to `value` times `factor`."""
        return cls(low=value / factor, high=value * factor, value=value, basis=basis)

    def scaled(self, factor: float, low: float = 0.0, high: float = 0.0) -> Range:
        """All three numbers times `factor`, and on top what takes `low` to `high`."""
        value = self.value * factor + (low + high) / 2
        return replace(self, low=self.low * factor + low, high=self.high * factor + high, value=value)


def interval(span: Range | None, form: Callable[[float], object]) -> str:
    """In the units of `form`."""
    if not span:
        return "not known"
    return f"{form(span.low)} to {form(span.high)}"


# ---- memory


@dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes of one device in a training step."""

    count: Count
    peak: Range  # of a step or of the evaluation, whichever takes more
    capacity: int | None  # bytes of a device that a run may take; None where it is not known

    @property
    def fits(self) -> str:
        """Yes: the whole interval does. No: not even its lower end does. Tight: in between."""
        if self.capacity is None:
            return "unknown"
        if self.peak.high <= self.capacity:
            return "yes"
        if self.peak.low <= self.capacity:
            return "tight"
        return "no"

    def results(self) -> dict[str, Any]:
        return {"fits": self.fits, "capacity": self.capacity, "peak": asdict(self.peak), **asdict(self.count)}


def memory(count: Count, kind: str, capacity: int | None, *, processes: int = 1, evaluation: int = 0) -> Memory:
    """Memory of the counted step, or of the evaluation where it takes more beside the optimizer's state.

    Args:
        capacity: bytes of a device (of a CPU: of the computer), or None.
        processes: how many reduce their gradients among each other, in buckets as large as all gradients.
        evaluation: bytes, from `counting.evaluation_peak`.
    """
    lowest, highest, context = ALLOCATED[kind]
    counted, basis = count.peak, "counted"
    if processes > 1 and kind != "xla":
        counted += count.gradients
    if evaluation:
        evaluation += count.optimizer
    if evaluation > counted:
        counted, basis = evaluation, "counted: evaluation takes more than training"
    span = Range(low=counted * lowest, high=counted * highest + context, value=counted, basis=basis)
    if capacity and kind == "cpu":
        capacity = int(capacity * CPU_SHARE)
    return Memory(count=count, peak=span, capacity=capacity)


# ---- time


def training_seconds(train: Mapping[str, Any]) -> float:
    """Of training alone, from the `train` part of a results.json."""
    return train["seconds"] - train["compile_seconds"] - train["evaluate_and_save_seconds"]


@dataclass(frozen=True, kw_only=True)
class Work:
    """An optimizer step of one device in numbers."""

    flops: float  # of a micro-batch
    trained: int  # weights
    launches: int  # of a micro-batch
    accumulation: int = 1  # micro-batches

    @classmethod
    def of(cls, count: Mapping[str, Any], accumulation: int) -> Work:
        """From the fields of a `counting.Count`."""
        return cls(
            flops=count["flops"],
            trained=count["trained"],
            launches=count["launches"],
            accumulation=accumulation,
        )


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step that a results.json holds, of any notebook and machine."""

    job: tuple[str, str]  # notebook and model
    device: str
    devices: int
    precision: str
    work: Work
    seconds: float  # of an optimizer step

    @classmethod
    def read(cls, path: str | Path) -> Measured:
        """Raises ValueError for a file that is no results.json of a run that trained."""
        try:
            results = json.loads(Path(path).read_text(encoding="utf-8"))
            train, plan, runtime = results["train"], results["plan"], results["runtime"]
            return cls(
                job=(results["forecast"]["notebook"], results["forecast"]["model"]),
                device=runtime["device_name"],
                devices=runtime["device_count"],
                precision=plan["precision"],
                work=Work.of(plan["memory"], plan["gradient_accumulation_steps"]),
                seconds=training_seconds(train) / train["steps"],
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"measured={str(path)!r}: no results.json of a run that trained ({error!r})") from error

    def is_of(self, machine: Machine, precision: str) -> bool:
        """Whether it was measured on such a machine; a CPU is taken for the one that was measured."""
        if (self.devices, self.precision) != (machine.count, precision):
            return False
        if machine.accelerator is None and machine.kind != "cpu":
            return False
        return find(self.device) == machine.accelerator


def step_seconds(
    workload: Workload,
    work: Work,
    machine: Machine,
    precision: str,
    *,
    fused: bool = False,
    measured: Sequence[Measured] = (),
) -> Range | None:
    """Seconds of one optimizer step; None: not known.

    What was measured on this machine comes first, then what was measured of the same job on another one, times the ratio of
    both machines, then published runs.

    fused: the step is compiled (`torch.compile`), or its kernels are fused by hand (flash attention, Apex, Liger).
    """
    job = workload.notebook, workload.name
    of_job = [run for run in measured if run.job == job]
    candidates = of_job if workload.recurrent else [*of_job, *measured]
    for run in candidates:
        if run.is_of(machine, precision):
            factor = SAME_MODEL if run.job == job else OTHER_MODEL
            scale = work.flops * work.accumulation / (run.work.flops * run.work.accumulation)
            return Range.from_factor(run.seconds * scale, factor, f"measured ({run.job[0]})")
    if workload.recurrent:
        return None
    expected = published(work, machine.accelerator, precision, fused)
    for run in of_job:
        source = find(run.device)
        source_seconds = published(run.work, source, run.precision, fused)
        if expected and source and source_seconds:
            seconds = run.seconds * expected.value / source_seconds.value
            basis = f"measured on {source.name}, by the ratio of both machines"
            return Range.from_factor(seconds, _error_of_ratio(source, machine.accelerator), basis)
    return expected


def published(work: Work, accelerator: Accelerator | None, precision: str, fused: bool) -> Range | None:
    """Seconds of a step by published runs; None for a machine without a datasheet."""
    peak = accelerator and accelerator.peak_for(precision)
    if not accelerator or not peak:
        return None
    ideal = work.flops / peak
    bound = work.accumulation * ideal + ADAMW_BYTES * work.trained / accelerator.bandwidth
    log = CONSTANT[accelerator.kind] + BALANCE * math.log(peak / accelerator.bandwidth)
    launches = 0
    if accelerator.kind == "cuda" and fused:
        log += SIZE * clipped(ideal)
    elif accelerator.kind == "cuda":
        log += SIZE_UNFUSED * clipped(ideal)
        launches = work.launches * work.accumulation + UPDATE
    centre = Range.from_factor(bound * math.exp(log), EITHER_WAY, BASIS[accelerator.kind])
    # No step is faster than peak and bandwidth allow; one smaller than any published may take as long as the smallest.
    low = max(bound, centre.low, LAUNCH[0] * launches)
    high = max(bound, centre.high) * max(1, SIZES[0] / ideal)
    return replace(centre, low=low, high=max(high, LAUNCH[1] * launches))


def _error_of_ratio(one: Accelerator | None, other: Accelerator | None) -> float:
    """Either way, of the ratio of two machines' times.

    Errors that both share (the software, the model, how its step was counted) cancel, most of all on several of the same card;
    machines of two kinds share none.
    """
    if one == other:
        return SAME_CARD
    if one and other and one.kind == other.kind:
        return RATIO
    return EITHER_WAY**2


def clipped(ideal: float) -> float:
    """Log of a micro-batch's seconds at the peak, within SIZES."""
    return math.log(min(max(ideal, SIZES[0]), SIZES[1]))


# ---- a run


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One plan on one machine."""

    machine: Machine
    problem: str = ""  # why there is nothing of what follows
    workload: Workload | None = None
    plan: Any = None  # helpers.plan.settings.Plan
    step: Range | None = None  # seconds of an optimizer step; None: not known
    memory: Range | None = None  # bytes of a device; None in a notebook on a CPU

    @property
    def examples(self) -> int:
        """That the run trains on."""
        return self.plan.max_steps * self.plan.batch_size if self.plan else 0

    @property
    def seconds(self) -> Range | None:
        """Of the run, with its trials, evaluations and compilation."""
        if self.step is None:
            return None
        steps = self.plan.max_steps + EVALUATED * self.plan.evaluated / self.plan.batch_size
        shortest, longest = 0.0, 0.0
        if self.machine.kind == "xla":
            shortest, longest = COMPILATION["xla"]
        elif self.plan.compiled:
            shortest, longest = COMPILATION["cuda"]
        trials = self.plan.trial_seconds
        return self.step.scaled(steps, trials + shortest, trials + longest)

    @property
    def usd(self) -> Range | None:
        """Dollars of the run, where the machine has a price."""
        hourly = usd_per_hour(self.machine)
        if not self.seconds or not hourly:
            return None
        return self.seconds.scaled(hourly / 3600)

    def results(self) -> dict[str, Any]:
        """The `forecast` part of results.json."""
        if self.workload is None:
            return {"hardware": self.machine.name, "problem": self.problem}
        return {
            "notebook": self.workload.notebook,
            "model": self.workload.name,
            "hardware": self.machine.name,
            "plan": self.plan.results(),
            "left_out": LEFT_OUT,
            "step_seconds": self.step and asdict(self.step),
            "run_seconds": self.seconds and asdict(self.seconds),
            "peak_memory_bytes": self.memory and asdict(self.memory),
            "usd": self.usd and asdict(self.usd),
        }

    def rows(self) -> list[dict[str, str]]:
        """This run as a table of its own."""
        basis = self.seconds.basis if self.seconds else f"{NOT_KNOWN}; training prints the time that is left"
        time = interval(self.seconds, tables.seconds)
        rows = [{"forecast": "time of this run", "interval": time, "based on": basis}]
        if self.memory:
            size = interval(self.memory, tables.size)
            rows.append({"forecast": "memory at most", "interval": size, "based on": self.memory.basis})
        return rows

    def compared(self, measured: Mapping[str, Any]) -> list[dict[str, str | None]]:
        """What was measured, the `train` part of results.json, and the forecast of its steps and of its memory.

        Seconds and steps are of all sessions of a run. Memory is of this session alone: a session that only found the run
        finished has none.
        """
        steps = measured["steps"]
        span = self.step and self.step.scaled(steps)
        rows = [_compared(f"time of {steps:,} steps", span, training_seconds(measured), tables.seconds)]
        if self.memory:
            peak = None
            if measured.get("resumed_from_step") != steps:
                peak = measured["peak_memory_bytes"]
            rows.append(_compared("memory at most", self.memory, peak, tables.size))
        return rows


def _compared(name: str, span: Range | None, measured: float | None, form) -> dict[str, Any]:
    inside = None
    if span and measured is not None:
        inside = span.low <= measured <= span.high
    return {
        "forecast and measured": name,
        "interval": interval(span, form),
        "measured": form(measured),
        "inside": inside,
    }


def forecast(workload: Workload, plan: Any, machine: Machine, **how) -> Forecast:
    """What a plan (`helpers.plan.settings.Plan`) of a workload takes on a machine. **how: `fused` and `measured` of `step_seconds`."""
    work = Work.of(vars(plan.memory.count), plan.gradient_accumulation_steps)
    how["fused"] = how.get("fused") or plan.compiled
    step = step_seconds(workload, work, machine, plan.precision, **how)
    return Forecast(machine=machine, workload=workload, plan=plan, step=step, memory=plan.memory.peak)


def forecast_run(workload: Workload, plan: Any, runtime: Runtime) -> Forecast:
    """The forecast of this run."""
    accelerator = runtime.accelerator
    name = accelerator.name if accelerator else runtime.device_name
    machine = Machine(name=name, kind=runtime.kind, accelerator=accelerator, count=runtime.device_count)
    expected = forecast(workload, plan, machine)
    if runtime.kind == "cpu":
        # What a CPU's process takes beside its tensors is not counted, and nothing measures the tensors alone.
        expected = replace(expected, memory=None)
    return expected


# ---- which machine


def is_faster(one: Forecast, other: Forecast) -> bool:
    """Whether `one` is surely faster: by more than what the errors of both machines leave open.

    What makes a micro-batch uncertain that is smaller than any published does not cancel. The time of both steps is known.
    """
    assert one.step and other.step
    ratio = seconds_an_example(other) / seconds_an_example(one)
    wider = (one.step.high / one.step.value) / (other.step.high / other.step.value)
    return ratio > _error_of_ratio(one.machine.accelerator, other.machine.accelerator) * max(1, wider)


def seconds_an_example(run: Forecast) -> float:
    """Of a run whose step's time is known."""
    assert run.step
    return run.step.value / run.plan.batch_size
