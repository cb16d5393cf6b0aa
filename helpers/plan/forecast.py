"""What a step needs on a machine, as intervals that say what they rest on: memory, seconds, dollars; and which machine is faster.

forecast = here(workload, plan, runtime)                     # in a notebook, before training
tables.show(forecast.rows())
tables.show(forecast.beside(measured["train"]))              # and after it
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers.machine.hardware import Machine, find
from helpers.machine.runtime import Runtime
from helpers.show import tables

from .workloads import Workload

if TYPE_CHECKING:
    from .counting import Count

NOT_KNOWN = "no run like it was published; --measured takes one of this machine"
LEFT_OUT = "Time is training alone: download, compilation, evaluation and saving come on top."

# kind: least and most of the counted bytes that are taken, and at most so many that the driver takes beside them.
BESIDE = {
    "cpu": (0.95, 1.05, 0),  # benchmarks/planner.py
    # The caching allocator's fragments, and the CUDA context, which a run's own measurement leaves out. Four notebooks on an H200: 0.95 to 1.03.
    "cuda": (0.9, 1.3, 1_400 * 10**6),
    # Operation by operation, while XLA fuses: compiled programs of the notebooks took 0.45 to 1.0 (tpu_compiler_steps.json).
    "xla": (0.4, 1.05, 0),
}
CPU_SHARE = 0.8  # of a computer's memory that one run may take
LIBRARIES = 2**29  # bytes of a CPU's process beside tensors: modules loaded late, memory that was used before

# benchmarks/public_runs.py fits these to every second source of docs/results/public_runs.json, and tests them on the others.
# Log of a step's seconds over its bound: constant of the kind, of log balance, and of log size (on a GPU).
CONSTANT, BALANCE, SIZE, SIZE_UNFUSED = {"cuda": -0.358, "xla": -0.032}, 0.191, -0.211, -0.357
SIZES = (0.004, 0.5)  # seconds at the peak of published micro-batches
EITHER_WAY = 1.87  # the interval of a time: 3.5 from its lower to its upper end
# Of two machines of a kind on the same job, whose common errors cancel; of one and several of a card.
RATIO, SAME_CARD = 1.77, 1.26
SAME_MODEL, OTHER_MODEL = 1.2, 2.0  # either way, of a time that was measured on this very machine
# Seconds that a GPU's host takes to launch an operation that makes a tensor; on an H200 27e-6 to 60e-6 (docs/gpu.md).
LAUNCH = 10e-6, 100e-6
ADAMW_BYTES = 28.0  # a trained weight: weight, gradient and two moments are read, all but the gradient written


@dataclass(frozen=True, kw_only=True)
class Range:
    """An estimate, and what it rests on."""

    low: float
    high: float
    value: float
    basis: str

    def __mul__(self, factor: float) -> Range:
        return Range(low=self.low * factor, high=self.high * factor, value=self.value * factor, basis=self.basis)


def around(value: float, factor: float, basis: str) -> Range:
    """`value` and as many times less or more."""
    return Range(low=value / factor, high=value * factor, value=value, basis=basis)


def between(span: Range | None, form) -> str:
    """An interval in the units of `form`."""
    return f"{form(span.low)} to {form(span.high)}" if span else "not known"


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
        return "yes" if self.peak.high <= self.capacity else "tight" if self.peak.low <= self.capacity else "no"

    def results(self) -> dict[str, Any]:
        return {"fits": self.fits, "capacity": self.capacity, "peak": asdict(self.peak), **asdict(self.count)}


def memory(count: Count, kind: str, capacity: int | None, *, processes: int = 1, evaluation: int = 0) -> Memory:
    """Memory of the counted step, or of the evaluation where it takes more beside the optimizer's state.

    Args:
        capacity: bytes of a device (of a CPU: of the computer), or None.
        processes: how many reduce their gradients among each other, in buckets as large as all gradients.
        evaluation: bytes, from `counting.evaluation_peak`.
    """
    least, most, context = BESIDE[kind]
    counted = count.peak + (count.gradients if processes > 1 and kind != "xla" else 0)
    evaluation += count.optimizer if evaluation else 0
    basis = "counted" if counted >= evaluation else "counted: evaluation takes more than training"
    counted = max(counted, evaluation)
    span = Range(low=counted * least, high=counted * most + context, value=counted, basis=basis)
    return Memory(count=count, peak=span, capacity=capacity and int(capacity * (CPU_SHARE if kind == "cpu" else 1)))


# ---- time


def training_seconds(train: Mapping[str, Any]) -> float:
    """Of training alone, from the `train` part of a results.json."""
    return train["seconds"] - train["compile_seconds"] - train["evaluate_and_save_seconds"]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """A step that a results.json holds, of any notebook."""

    job: tuple[str, str]  # notebook and model
    device: str
    devices: int
    precision: str
    flops: float  # of an optimizer step on one device
    seconds: float  # of an optimizer step

    @classmethod
    def read(cls, path: str | Path) -> Measured:
        """Raises ValueError for a file that is no results.json of a run that trained."""
        try:
            found = json.loads(Path(path).read_text(encoding="utf-8"))
            train, plan, about, runtime = (found[name] for name in ("train", "plan", "forecast", "runtime"))
            return cls(
                job=(about["notebook"], about["model"]),
                device=runtime["device_name"],
                devices=runtime["device_count"],
                precision=plan["precision"],
                flops=plan["memory"]["flops"] * plan["gradient_accumulation_steps"],
                seconds=training_seconds(train) / train["steps"],
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"measured={str(path)!r}: no results.json of a run that trained ({error!r})") from error

    def is_of(self, machine: Machine, precision: str) -> bool:
        """Whether it was measured on such a machine; a CPU is taken for the one that was measured."""
        same = machine.kind == "cpu" if machine.accelerator is None else find(self.device) == machine.accelerator
        return same and (self.devices, self.precision) == (machine.count, precision)


def step_seconds(
    workload: Workload,
    count: Count,
    machine: Machine,
    precision: str,
    accumulation: int = 1,
    *,
    fused: bool = False,
    measured: Sequence[Measured] = (),
) -> Range | None:
    """Seconds of one optimizer step of `accumulation` micro-batches, each of `count` on every device; None: not known.

    fused: the step is compiled (`torch.compile`), or its kernels are fused by hand (flash attention, Apex, Liger).
    """
    flops, job = count.flops * accumulation, (workload.notebook, workload.name)
    mine = [each for each in measured if each.is_of(machine, precision) and (each.job == job or not workload.recurrent)]
    if mine:
        known = max(mine, key=lambda each: each.job == job)
        factor = SAME_MODEL if known.job == job else OTHER_MODEL
        return around(known.seconds * flops / known.flops, factor, f"measured ({known.job[0]})")
    peak = machine.accelerator and machine.accelerator.peak_for(precision)
    if not peak or workload.recurrent:
        return None
    bandwidth, ideal = machine.accelerator.bandwidth, count.flops / peak
    bound = flops / peak + ADAMW_BYTES * count.trained / bandwidth
    size = 0.0 if machine.kind == "xla" else SIZE if fused else SIZE_UNFUSED
    log = CONSTANT[machine.kind] + BALANCE * math.log(peak / bandwidth) + size * clipped(ideal)
    found = around(bound * math.exp(log), EITHER_WAY, "published runs")
    launches = count.launches * accumulation if machine.kind == "cuda" and not fused else 0
    # No step is faster than peak and bandwidth allow; one smaller than any published may take as long as the smallest.
    high = max(bound, found.high) * max(1, SIZES[0] / ideal)
    return replace(found, low=max(bound, found.low, LAUNCH[0] * launches), high=max(high, LAUNCH[1] * launches))


def clipped(ideal: float) -> float:
    """Log of a micro-batch's seconds at the peak, within SIZES."""
    return math.log(min(max(ideal, SIZES[0]), SIZES[1]))


# ---- a run


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One plan on one machine; training alone, without compilation, evaluation and saving."""

    notebook: str
    model: str
    machine: Machine
    precision: str
    plan: Any = None  # helpers.plan.settings.Plan; None where nothing fits
    step: Range | None = None  # seconds of an optimizer step; None: not known
    memory: Range | None = None  # bytes of a device; in a notebook on a CPU of the whole process
    usd_per_hour: float | None = None  # of the machine, where one is known
    problem: str = ""  # why there is no plan, or what the compiler warns of

    @property
    def seconds(self) -> Range | None:
        """Of the run."""
        return self.step and self.step * self.plan.max_steps

    @property
    def usd(self) -> Range | None:
        """Dollars of the run."""
        return self.seconds and self.usd_per_hour and self.seconds * (self.usd_per_hour / 3600)

    def results(self) -> dict[str, Any]:
        """The `forecast` part of results.json."""
        spans = {
            "step_seconds": self.step,
            "run_seconds": self.seconds,
            "peak_memory_bytes": self.memory,
            "usd": self.usd,
        }
        return {
            "notebook": self.notebook,
            "model": self.model,
            "hardware": self.machine.name,
            "plan": self.plan and self.plan.results(),
            "problem": self.problem,
            "left_out": LEFT_OUT,
            **{name: span and asdict(span) for name, span in spans.items()},
        }

    def rows(self) -> list[dict[str, str]]:
        """This run as a table of its own."""
        rows = [("time of training alone", self.seconds, tables.seconds), ("memory at most", self.memory, tables.size)]
        return [
            {"forecast": name, "interval": between(span, form), "rests on": span.basis if span else NOT_KNOWN}
            for name, span, form in rows
        ]

    def beside(self, measured: Mapping[str, Any]) -> list[dict[str, str | None]]:
        """What was measured, the `train` part of results.json, beside the forecast.

        Seconds and steps are of all sessions of a run. Memory is of this session alone: a session that only found the run
        finished has none.
        """
        steps, trained = measured["steps"], measured.get("resumed_from_step") != measured["steps"]
        taken, peak = training_seconds(measured), measured["peak_memory_bytes"] if trained else None
        time = (f"time of {steps:,} steps", self.step and self.step * steps, taken, tables.seconds)
        return [
            {
                "forecast and measured": name,
                "interval": between(span, form),
                "measured": form(found),
                "inside": None if span is None or found is None else span.low <= found <= span.high,
            }
            for name, span, found, form in (time, ("memory at most", self.memory, peak, tables.size))
        ]


def forecast(workload: Workload, plan: Any, machine: Machine, *, usd_per_hour: float | None = None, **how) -> Forecast:
    """What a plan (`helpers.plan.settings.Plan`) of a workload takes on a machine.

    usd_per_hour: of the machine. **how: `fused` and `measured` of `step_seconds`.
    """
    return Forecast(
        notebook=workload.notebook,
        model=workload.name,
        machine=machine,
        precision=plan.precision,
        plan=plan,
        step=step_seconds(
            workload, plan.memory.count, machine, plan.precision, plan.gradient_accumulation_steps, **how
        ),
        memory=plan.memory.peak,
        usd_per_hour=usd_per_hour,
    )


def here(workload: Workload, plan: Any, runtime: Runtime) -> Forecast:
    """The forecast of this run."""
    known, devices = runtime.accelerator, runtime.device_count
    name = getattr(known, "name", runtime.device_name)
    found = forecast(workload, plan, Machine(name=name, kind=runtime.family, accelerator=known, count=devices))
    return replace(found, memory=_of_process(found.memory, plan)) if runtime.kind == "cpu" else found


def _of_process(span: Range, plan: Any) -> Range:
    """What the process takes already, with the weights loaded, and what training adds; at least what it takes now."""
    import psutil

    now = psutil.Process().memory_info().rss
    ends = (span.low - LIBRARIES, span.high + LIBRARIES, span.value)
    low, high, value = (max(now, now - plan.memory.count.weights + end) for end in ends)
    return Range(low=low, high=high, value=value, basis=f"counted, and {tables.size(now)} that the process has now")


# ---- which machine


def ratio(one: Forecast, other: Forecast, of: str) -> Range:
    """How many times the "seconds" or "usd" of `one` the same run takes on `other`.

    Errors that both machines share (the software, the model, how its step was counted) cancel, most of all on several of the same
    card; machines of two kinds share none. A micro-batch that is smaller than any published does not cancel.
    """
    mine, theirs = getattr(one, of), getattr(other, of)
    error = RATIO if one.machine.kind == other.machine.kind else EITHER_WAY**2
    if one.machine.accelerator == other.machine.accelerator:
        error = SAME_CARD
    found = around(theirs.value / mine.value, error, "published pairs")
    wider = (mine.high / mine.value) / (theirs.high / theirs.value)
    return replace(found, low=found.low / max(1, wider), high=found.high * max(1, 1 / wider))


def least(forecasts: Sequence[Forecast], of: str) -> tuple[Forecast | None, list[Forecast]]:
    """The one with the least "seconds" or "usd", and those that are not told apart from it; (None, []) for fewer than two."""
    known = sorted((each for each in forecasts if getattr(each, of)), key=lambda each: getattr(each, of).value)
    if len(known) < 2:
        return None, []
    return known[0], [each for each in known[1:] if ratio(known[0], each, of).low <= 1]
