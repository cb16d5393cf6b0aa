"""What this run will take on this machine, before training; and beside it what it took, after.

    forecast = make(job, plan, runtime)      # of the model that was built: a package's `experiment.forecast`
    print(forecast)
    print(forecast.beside(measured["train"]))

Time rests on `calibration.json` in the working directory where that is of this device, else on the datasheet; where there is
neither it is unknown and the table says how to find out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from helpers.hardware import Machine
from helpers.meter import peak_memory
from helpers.plan import GIB, Plan
from helpers.runtime import Runtime

from . import calibration as calibrations_of
from . import prices as price_table
from .calibration import Calibration
from .catalogue import named
from .choosing import seconds
from .estimate import TIME_SPREAD, recomputing, step_seconds
from .jobs import Job
from .memory import COUNTED_SPREAD, MEMORY_SPREAD, memory
from .ranges import COUNTED, MEASURED, Range

ALIKE = 0.01  # share by which weights may differ from what a job counts; LoRA may train a token beside
# Bytes either way that a CPU's process differs by beside tensors: modules loaded late, gaps used again.
LIBRARIES = 2**28
HOW = "python -m helpers.planning.calibration, or hardware_tuning, writes calibration.json; put it into the working directory"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """Of one run. None is unknown, and `reasons` says why."""

    job: str
    model: str
    device: str
    devices: int
    precision: str
    steps: int
    tokens: int | None  # positions of a step; None where the meter counts others
    phases: tuple[tuple[int, Range | None], ...]  # steps and seconds of one, for each length
    memory: Range | None  # bytes a device at the fullest moment of training; of the whole process on a CPU
    capacity: int | None  # bytes a device
    usd_per_hour: float | None  # of all devices
    reasons: dict[str, str] = field(default_factory=dict)  # of "time", "memory" and "cost"

    @property
    def step_seconds(self) -> Range | None:
        """Mean over the run."""
        run = self.run_seconds()
        return run and run * (1 / self.steps)

    def run_seconds(self, steps: int | None = None) -> Range | None:
        """Of the first so many steps, or all; compilation, evaluation and saving apart."""
        left, total = self.steps if steps is None else steps, None
        for count, each in self.phases:
            taken, left = min(count, left), left - min(count, left)
            if taken:
                if each is None:
                    return None
                total = each * taken if total is None else total + each * taken
        return total

    def run_usd(self, steps: int | None = None) -> Range | None:
        run = self.run_seconds(steps)
        return run and self.usd_per_hour and run * (self.usd_per_hour / 3600)

    def results(self) -> dict[str, Any]:
        """The `forecast` part of results.json; an interval that is open above ends in None."""
        return {
            "job": self.job,
            "model": self.model,
            "device": self.device,
            "devices": self.devices,
            "precision": self.precision,
            "steps": self.steps,
            "tokens_per_step": self.tokens,
            "step_seconds": _plain(self.step_seconds),
            "run_seconds": _plain(self.run_seconds()),
            "peak_memory_bytes": _plain(self.memory),
            "memory_bytes": self.capacity,
            "run_usd": _plain(self.run_usd()),
            "reasons": self.reasons,
        }

    def __str__(self) -> str:
        of = f", of {_gib(self.capacity)}" if self.capacity else ""
        why = self.reasons.get
        rows = [
            ("seconds a step", self.step_seconds, seconds, why("time", "")),
            (f"time of {self.steps:,} steps, without evaluation and saving", self.run_seconds(), seconds, "as above"),
            (f"{_memory_name(self.device)}{of}", self.memory, _gib, why("memory", "")),
        ]
        if self.usd_per_hour:
            known = why("cost", "") if self.run_seconds() else "as the time"
            rows.append(("cost of the run, without evaluation and saving", self.run_usd(), _usd, known))
        return _table(
            ("forecast", "planned", "interval", "rests on"),
            [(name, _value(span, form), _interval(span, form), _rests(span, why)) for name, span, form, why in rows],
        )

    def beside(self, measured: Mapping[str, Any]) -> str:
        """What was measured, the `train` part of results.json, beside what was planned.

        Seconds and steps are of all sessions of a run; memory is of this session, so that one which only found the run
        finished has none.
        """
        steps, resumed = measured["steps"], measured.get("resumed_from_step")
        training = measured["seconds"] - measured["compile_seconds"] - measured["evaluate_and_save_seconds"]
        trained_here = resumed is None or resumed < steps
        peak = measured["peak_memory_bytes"] if trained_here else None
        time = f"time of {steps:,}{f' of {self.steps:,}' if steps != self.steps else ''} steps"
        run = self.run_seconds(steps) if steps else None
        rows = [
            ("seconds a step", run and run * (1 / steps), training / steps if steps else None, seconds),
            (f"{time}, without evaluation and saving", run, training if steps else None, seconds),
            (_memory_name(self.device), self.memory, peak, _gib),
        ]
        if self.usd_per_hour:
            cost = self.usd_per_hour * training / 3600
            rows.append(("cost, without evaluation and saving", self.run_usd(steps), cost if steps else None, _usd))
        if self.tokens and steps and measured.get("tokens_per_second"):
            planned = Range(low=self.tokens, high=self.tokens, value=self.tokens, basis="")
            rows.append(("tokens a step", planned, measured["tokens_per_second"] * training / steps, "{:,.0f}".format))
        text = _table(
            ("forecast and measured", "planned", "interval", "measured", "ratio", "inside"),
            [
                (
                    name,
                    _value(span, form),
                    _interval(span, form) if name != "tokens a step" else "",
                    "unknown" if found is None else form(found),
                    _ratio(span, found),
                    "" if span is None or found is None or name == "tokens a step" else _inside(span, found),
                )
                for name, span, found, form in rows
            ],
        )
        return text if resumed is None else f"{text}\n{_resumed(resumed, steps)}"


def _resumed(step: int, steps: int) -> str:
    if step >= steps:
        return f"time is that of the sessions before, which took all {steps:,} steps; their memory was not kept"
    return f"time is of all sessions, memory of this one, from step {step:,} on"


def _inside(span: Range, found: float) -> str:
    return "yes" if span.low <= found <= span.high else "no"


def _ratio(span: Range | None, found: float | None) -> str:
    if span is None or found is None:
        return ""
    return f"{found / span.value:.2f}" if span.value else f"{found / span.low:.2f} of least"


# ---- making one


def make(
    job: Job | None,
    plan: Plan,
    runtime: Runtime,
    *,
    architecture: str = "",
    parameters: int | None = None,
    phases: Sequence[tuple[int, int]] = (),
    counted_bytes: int | None = None,
    step: Range | None = None,
    peak: Range | None = None,
    tokens: int | None = None,
    calibration: str | Path = calibrations_of.FILE,
    prices: Mapping | None = None,
) -> Forecast:
    """The forecast of a run with these settings.

    Args:
        job: a training step of the model that was built; None where nothing describes it.
        architecture: what the model calls itself, to say so.
        parameters: weights that it really has; with others than the job counts nothing is known about it.
        phases: (steps, tokens of a sequence), where lengths change; else all of the plan's.
        counted_bytes: peak of a device, where a package counts it more exactly than the job.
        step, peak: of this very run where they were measured.
        tokens: positions of a step as the meter counts them; 0 where it counts others. None: the plan's.
        calibration: file, used where there is one that is of this device.

    Raises ValueError for a file that is no calibration.
    """
    machine, reasons = machine_of(runtime), {}
    found, said = _calibrations(runtime, Path(calibration))
    unknown = _undescribed(job, architecture, parameters)
    job = None if unknown or job is None else named(job)
    phases = tuple(phases) or ((plan.max_steps, plan.sequence_length // (job.views if job else 1)),)
    if step is not None:
        times = tuple((count, step) for count, _ in phases)
        reasons["time"] = "timed on this machine with these settings"
    elif job is None:
        times, reasons["time"] = tuple((count, None) for count, _ in phases), unknown
    else:
        times = tuple((count, _step(job, machine, plan, length, found)) for count, length in phases)
        reasons["time"] = said if times[0][1] else _no_time(runtime, plan, said)
    held, why = _memory(job, plan, runtime, phases, found, counted_bytes, peak)
    price = price_table.of(machine, prices or price_table.TABLE) if machine.accelerator else None
    if price and price.usd_per_hour:
        reasons["cost"] = ", ".join(filter(None, (price.source, price.as_of, price.remark)))
    return Forecast(
        job=job.name if job else "",
        model=job.model if job else architecture,
        device="CPU" if runtime.kind == "cpu" else runtime.device_name,
        devices=runtime.device_count,
        precision=plan.precision,
        steps=plan.max_steps,
        tokens=plan.batch_size * plan.sequence_length if tokens is None else tokens or None,
        phases=times,
        memory=held,
        capacity=runtime.memory,
        usd_per_hour=price and price.usd_per_hour,
        reasons={name: text for name, text in (reasons | {"memory": unknown if held is None else why}).items() if text},
    )


def machine_of(runtime: Runtime) -> Machine:
    """The machine of a run; one that the catalogue does not know has no accelerator."""
    accelerator = runtime.accelerator if runtime.kind != "cpu" else None
    name = accelerator.name if accelerator else "CPU" if runtime.kind == "cpu" else runtime.device_name
    return Machine(name=name, kind=runtime.kind, accelerator=accelerator, count=runtime.device_count)


def _undescribed(job: Job | None, architecture: str, parameters: int | None) -> str:
    after = "the measured values come after training"
    if job is None:
        return f"unknown: no builder in helpers/planning/architectures.py describes {architecture!r}; {after}"
    if parameters is not None and abs(job.parameters - parameters) > ALIKE * parameters:
        return (
            f"unknown: {architecture or job.name} has {parameters:,} weights and the builder counts {job.parameters:,}; "
            f"{after}"
        )
    return ""


def _calibrations(runtime: Runtime, path: Path) -> tuple[list[Calibration], str]:
    """Of this very device, and what to say about the file."""
    if not path.is_file():
        return [], ""
    (found,) = calibrations_of.load([path])
    if found.kind == "cpu" == runtime.kind:
        import torch

        here = (calibrations_of.cpu_name(), torch.get_num_threads())
        same = (found.device, found.threads) == here
        theirs, ours = (f"{name} with {count} threads" for name, count in ((found.device, found.threads), here))
    else:
        same = (found.kind, found.device) == (runtime.kind, runtime.device_name)
        theirs, ours = found.device, runtime.device_name
    if same:
        return [found], f"{path.name} of {found.date}"
    return [], f"{path.name} is of {theirs}, and this is {ours}"


def _step(job: Job, machine: Machine, plan: Plan, length: int, calibrations: Sequence[Calibration]) -> Range | None:
    sequences, micro_batches = plan.batch_size * job.views, plan.gradient_accumulation_steps
    time = step_seconds(job, machine, plan.precision, sequences, length, calibrations, micro_batches)
    return recomputing(time) if time and plan.gradient_checkpointing else time


def _no_time(runtime: Runtime, plan: Plan, said: str) -> str:
    if runtime.kind == "cpu":
        why = "no datasheet says how fast a CPU trains"
    elif runtime.accelerator is None:
        why = f"{runtime.device_name} is not in the catalogue of helpers/hardware.py"
    else:
        why = f"{runtime.accelerator.name}'s datasheet has no {plan.precision}"
    return "unknown: " + "; ".join(filter(None, (why, said, HOW)))


def _memory(job, plan, runtime, phases, calibrations, counted_bytes, peak) -> tuple[Range | None, str]:
    if peak is not None:
        if runtime.kind == "cpu":
            so_far = _process_bytes(runtime)[1]
            peak = replace(peak, low=max(peak.low, so_far), high=max(peak.high, so_far), value=max(peak.value, so_far))
        return peak, "with these settings on this machine"
    if job is None:
        return None, ""
    measured = next((each.find(job, plan.precision) for each in calibrations), None)
    held = memory(
        job,
        runtime.kind,
        plan.precision,
        plan.per_device_batch_size * job.views,
        max(length for _, length in phases),
        checkpointing=plan.gradient_checkpointing,
        accumulating=plan.gradient_accumulation_steps > 1,
        measured=measured,
    )
    span = held.peak
    if counted_bytes is not None:
        low, high = COUNTED_SPREAD[runtime.kind]
        span = Range(low=counted_bytes * low, high=counted_bytes * high, value=counted_bytes, basis=COUNTED)
    if runtime.kind != "cpu":
        return span, ""
    now, so_far = _process_bytes(runtime)
    beside = now - held.weights  # which are loaded
    return (
        Range(
            low=max(so_far, beside + span.low - LIBRARIES),
            high=max(so_far, beside + span.high) + LIBRARIES,
            value=max(so_far, beside + span.value),
            basis=span.basis,
        ),
        f"{_gib(now)} that the process has now, and what training adds",
    )


def _process_bytes(runtime: Runtime) -> tuple[int, int]:
    """Resident bytes of this process now, and at most so far."""
    import psutil

    now = psutil.Process().memory_info().rss
    return now, max(now, peak_memory(runtime))


def timed(seconds_a_step: float, spread: float = 1.0) -> Range:
    """Seconds of a step that were measured; spread: largest over median of the repetitions."""
    factor = max(1 + TIME_SPREAD, spread)
    return Range(low=seconds_a_step / factor, high=seconds_a_step * factor, value=seconds_a_step, basis=MEASURED)


def held(peak_bytes: int) -> Range:
    """Memory that was measured."""
    low, high = peak_bytes * (1 - MEMORY_SPREAD), peak_bytes * (1 + MEMORY_SPREAD)
    return Range(low=low, high=high, value=peak_bytes, basis=MEASURED)


# ---- as text and JSON


def _plain(span: Range | None) -> dict[str, Any] | None:
    if span is None:
        return None
    return {name: None if value == math.inf else value for name, value in vars(span).items()}


def _memory_name(device: str) -> str:
    return "peak memory of the process" if device == "CPU" else "peak memory a device"


def _gib(value: float) -> str:
    return f"{value / GIB:.2f} GiB"


def _usd(value: float) -> str:
    return f"${value:.2g}"


def _rests(span: Range | None, why: str) -> str:
    if span is None or why == "as above":
        return why
    return f"{span.basis}; {why}" if why else span.basis


def _value(span: Range | None, form) -> str:
    return "unknown" if span is None else "" if span.value is None else form(span.value)


def _interval(span: Range | None, form) -> str:
    if span is None:
        return ""
    return f"at least {form(span.low)}" if span.high == math.inf else f"{form(span.low)} to {form(span.high)}"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    lines = [head, *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head) - 1)]
    return "\n".join(
        "  ".join([*(cell.ljust(width) for cell, width in zip(line, widths, strict=False)), line[-1]]).rstrip()
        for line in lines
    )
