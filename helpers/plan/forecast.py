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
LEFT_OUT = "The run is training with its trials, evaluations and compilation; download and saving come on top."

# kind: least and most of the counted bytes that are taken, and at most so many that the driver takes beside them.
BESIDE = {
    "cpu": (0.95, 1.05, 0),  # benchmarks/planner.py
    # The caching allocator's fragments, and the CUDA context, which a run's own measurement leaves out. Four notebooks on an H200: 0.95 to 1.03.
    "cuda": (0.9, 1.3, 1_400 * 10**6),
    # Operation by operation, while XLA fuses: compiled programs of the notebooks took 0.45 to 1.0 (tpu_compiler_steps.json).
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
# Of a forecast of a TPU: 15 of the 16 published runs are of JAX or Flax, none of torch_xla.
GUESS = "a guess: published TPU runs are of JAX and Flax"
PUBLISHED = "published runs"
COMPILATION = 60.0, 660.0  # seconds that XLA compiles a run's programs (docs/results/tpu_compiler_steps.json)
EVALUATED = 1 / 3  # of the time of a trained example: a forward pass
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
    """A step that a results.json holds, of any notebook and machine."""

    job: tuple[str, str]  # notebook and model
    device: str
    devices: int
    precision: str
    accumulation: int
    flops: float  # of a micro-batch on one device
    trained: int  # weights
    launches: int
    seconds: float  # of an optimizer step

    @classmethod
    def read(cls, path: str | Path) -> Measured:
        """Raises ValueError for a file that is no results.json of a run that trained."""
        try:
            results = json.loads(Path(path).read_text(encoding="utf-8"))
            train, plan, about, runtime = (results[name] for name in ("train", "plan", "forecast", "runtime"))
            return cls(
                job=(about["notebook"], about["model"]),
                device=runtime["device_name"],
                devices=runtime["device_count"],
                precision=plan["precision"],
                accumulation=plan["gradient_accumulation_steps"],
                flops=plan["memory"]["flops"],
                trained=plan["memory"]["trained"],
                launches=plan["memory"]["launches"],
                seconds=training_seconds(train) / train["steps"],
            )
        except (KeyError, TypeError, ValueError, ZeroDivisionError) as error:
            raise ValueError(f"measured={str(path)!r}: no results.json of a run that trained ({error!r})") from error

    def is_of(self, machine: Machine, precision: str) -> bool:
        """Whether it was measured on such a machine; a CPU is taken for the one that was measured."""
        same = machine.kind == "cpu" if machine.accelerator is None else find(self.device) == machine.accelerator
        return same and (self.devices, self.precision) == (machine.count, precision)

    def machine(self) -> Machine | None:
        """The machine that was measured; None for a device that has no datasheet here."""
        accelerator = find(self.device)
        return accelerator and Machine(
            name=accelerator.name, kind=accelerator.kind, accelerator=accelerator, count=self.devices
        )


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

    What was measured on this machine comes first, then what was measured of the same job on another one, times the ratio of
    both machines, then published runs.

    fused: the step is compiled (`torch.compile`), or its kernels are fused by hand (flash attention, Apex, Liger).
    """
    flops, job = count.flops * accumulation, (workload.notebook, workload.name)
    same_job = [one for one in measured if one.job == job]
    here = [one for one in measured if one.is_of(machine, precision) and (one.job == job or not workload.recurrent)]
    if here:
        known = max(here, key=lambda one: one.job == job)
        factor = SAME_MODEL if known.job == job else OTHER_MODEL
        seconds = known.seconds * flops / (known.flops * known.accumulation)
        return around(seconds, factor, f"measured ({known.job[0]})")
    work = _Work(count.flops, accumulation, count.trained, count.launches)
    expected = None if workload.recurrent else _published(work, machine, precision, fused)
    if expected is None:
        return None
    for known in same_job:
        source = known.machine()
        there = source and _published(
            _Work(known.flops, known.accumulation, known.trained, known.launches), source, known.precision, fused
        )
        if there:
            scale = expected.value / there.value
            same_card = source.accelerator == machine.accelerator
            error = SAME_CARD if same_card else RATIO if source.kind == machine.kind else EITHER_WAY**2
            return around(known.seconds * scale, error, f"measured on {source.name}, by the ratio of both machines")
    return expected


@dataclass(frozen=True)
class _Work:
    """An optimizer step in numbers, on one device."""

    flops: float  # of a micro-batch
    accumulation: int
    trained: int  # weights
    launches: int  # of a micro-batch


def _published(work: _Work, machine: Machine, precision: str, fused: bool) -> Range | None:
    """Seconds of a step by published runs; None for a machine without a datasheet."""
    peak = machine.accelerator and machine.accelerator.peak_for(precision)
    if not peak:
        return None
    bandwidth, ideal = machine.accelerator.bandwidth, work.flops / peak
    bound = work.accumulation * ideal + ADAMW_BYTES * work.trained / bandwidth
    size = 0.0 if machine.kind == "xla" else SIZE if fused else SIZE_UNFUSED
    log = CONSTANT[machine.kind] + BALANCE * math.log(peak / bandwidth) + size * clipped(ideal)
    centre = around(bound * math.exp(log), EITHER_WAY, GUESS if machine.kind == "xla" else PUBLISHED)
    launches = work.launches * work.accumulation if machine.kind == "cuda" and not fused else 0
    # No step is faster than peak and bandwidth allow; one smaller than any published may take as long as the smallest.
    high = max(bound, centre.high) * max(1, SIZES[0] / ideal)
    return replace(centre, low=max(bound, centre.low, LAUNCH[0] * launches), high=max(high, LAUNCH[1] * launches))


def clipped(ideal: float) -> float:
    """Log of a micro-batch's seconds at the peak, within SIZES."""
    return math.log(min(max(ideal, SIZES[0]), SIZES[1]))


# ---- a run


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One plan on one machine."""

    notebook: str
    model: str
    machine: Machine
    precision: str
    plan: Any = None  # helpers.plan.settings.Plan; None where nothing fits
    step: Range | None = None  # seconds of an optimizer step; None: not known
    memory: Range | None = None  # bytes of a device; in a notebook on a CPU of the whole process
    usd_per_hour: float | None = None  # of the machine, where one is known
    evaluated: int = 0  # examples, as in `Workload`
    trial_seconds: float = 0.0
    problem: str = ""  # why there is no plan

    @property
    def examples(self) -> int:
        """That the run trains on."""
        return self.plan.max_steps * self.plan.batch_size if self.plan else 0

    @property
    def seconds(self) -> Range | None:
        """Of the run, with its trials, evaluations and compilation."""
        if self.step is None:
            return None
        steps = self.plan.max_steps + EVALUATED * self.evaluated / self.plan.batch_size
        shortest, longest = COMPILATION if self.machine.kind == "xla" else (0.0, 0.0)
        span = self.step * steps
        return replace(
            span,
            low=span.low + shortest + self.trial_seconds,
            high=span.high + longest + self.trial_seconds,
            value=span.value + (shortest + longest) / 2 + self.trial_seconds,
        )

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
        time = {"forecast": "time of this run", "interval": between(self.seconds, tables.seconds)}
        rows = [time | {"rests on": self.seconds.basis if self.seconds else NOT_KNOWN}]
        if self.memory:
            memory = {"forecast": "memory at most", "interval": between(self.memory, tables.size)}
            rows.append(memory | {"rests on": self.memory.basis})
        return rows

    def beside(self, measured: Mapping[str, Any]) -> list[dict[str, str | None]]:
        """What was measured, the `train` part of results.json, beside the forecast of its steps and of its memory.

        Seconds and steps are of all sessions of a run. Memory is of this session alone: a session that only found the run
        finished has none.
        """
        steps, taken = measured["steps"], training_seconds(measured)
        time = {"forecast and measured": f"time of {steps:,} steps"}
        rows = [time | _compared(self.step and self.step * steps, taken, tables.seconds)]
        if self.memory:
            trained = measured.get("resumed_from_step") != steps
            peak = measured["peak_memory_bytes"] if trained else None
            rows.append({"forecast and measured": "memory at most"} | _compared(self.memory, peak, tables.size))
        return rows


def _compared(span: Range | None, measured: float | None, form) -> dict[str, Any]:
    inside = None if span is None or measured is None else span.low <= measured <= span.high
    return {"interval": between(span, form), "measured": form(measured), "inside": inside}


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
        evaluated=workload.evaluated,
        trial_seconds=workload.trial_seconds,
    )


def here(workload: Workload, plan: Any, runtime: Runtime) -> Forecast:
    """The forecast of this run."""
    known, devices = runtime.accelerator, runtime.device_count
    name = getattr(known, "name", runtime.device_name)
    machine = Machine(name=name, kind=runtime.family, accelerator=known, count=devices)
    expected = forecast(workload, plan, machine)
    # What a CPU's process takes beside its tensors is not counted, and nothing measures the tensors alone.
    return replace(expected, memory=None) if runtime.kind == "cpu" else expected


# ---- which machine


def ratio(one: Forecast, other: Forecast) -> Range:
    """How many times the seconds an example of `one` the same work takes on `other`.

    Errors that both machines share (the software, the model, how its step was counted) cancel, most of all on several of the same
    card; machines of two kinds share none. A micro-batch that is smaller than any published does not cancel.
    """
    mine, theirs = (each.step * (1 / each.plan.batch_size) for each in (one, other))
    error = RATIO if one.machine.kind == other.machine.kind else EITHER_WAY**2
    if one.machine.accelerator == other.machine.accelerator:
        error = SAME_CARD
    span = around(theirs.value / mine.value, error, "published pairs")
    wider = (mine.high / mine.value) / (theirs.high / theirs.value)
    return replace(span, low=span.low / max(1, wider), high=span.high * max(1, 1 / wider))


def fastest(forecasts: Sequence[Forecast]) -> tuple[Forecast | None, list[Forecast]]:
    """The one with the fewest seconds an example, and those that are not told apart from it; (None, []) for fewer than two."""
    known = [each for each in forecasts if each.plan and each.step]
    known.sort(key=lambda each: each.step.value / each.plan.batch_size)
    if len(known) < 2:
        return None, []
    return known[0], [other for other in known[1:] if ratio(known[0], other).low <= 1]
