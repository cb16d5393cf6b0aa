"""What a plan takes on a machine in time, memory and money: of this run, or of machines side by side.

forecast = here(workload, plan, runtime)                     # in a notebook, before training
tables.show(forecast.rows())
tables.show(forecast.beside(measured["train"]))              # and after it
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from helpers.machine.hardware import Machine
from helpers.machine.runtime import Runtime
from helpers.show import tables

from .range import Range
from .speed import step_seconds
from .workloads import Workload

# Bytes that a CPU's process takes beside tensors: modules loaded late, memory that was used before and is used again.
LIBRARIES = 2**29
NOT_KNOWN = "not known: no run like it was published"


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """One plan on one machine; training alone, without compilation, evaluation and saving."""

    notebook: str
    model: str
    machine: Machine
    precision: str
    plan: Any = None  # helpers.plan.Plan; None where nothing fits
    phases: tuple[tuple[int, Range | None], ...] = ()  # steps and seconds of one, for each length
    memory: Range | None = None  # bytes of a device; in a notebook on a CPU of the whole process
    price: Any = None  # prices.Price, where machines are compared
    problem: str = ""  # why there is no plan

    def seconds(self, steps: int | None = None) -> Range | None:
        """Of the first so many steps, or all; None: not known."""
        left, total = sum(count for count, _ in self.phases) if steps is None else steps, None
        for count, each in self.phases:
            taken, left = min(count, left), left - min(count, left)
            if taken and each is None:
                return None
            if taken:
                total = each * taken if total is None else total + each * taken
        return total

    @property
    def usd(self) -> Range | None:
        """Dollars of the run."""
        run, hourly = self.seconds(), self.price and self.price.usd_per_hour
        return run * (hourly / 3600) if run and hourly else None

    def results(self) -> dict[str, Any]:
        """The `forecast` part of results.json; an interval that is open above ends in None."""
        run, steps = self.seconds(), sum(count for count, _ in self.phases)
        return {
            "notebook": self.notebook,
            "model": self.model,
            "hardware": self.machine.name,
            "plan": self.plan and self.plan.results(),
            "problem": self.problem,
            "step_seconds": _plain(run and run * (1 / steps)),
            "run_seconds": _plain(run),
            "peak_memory_bytes": _plain(self.memory),
            "usd": _plain(self.usd),
            "price": self.price and str(self.price),
        }

    def rows(self) -> list[dict[str, str]]:
        """This run as a table of its own."""
        run = self.seconds()
        rows = [("time of training", run, tables.seconds), ("memory at most", self.memory, tables.size)]
        return [
            {"forecast": name, "interval": between(span, form), "rests on": span.basis if span else NOT_KNOWN}
            for name, span, form in rows
        ]

    def beside(self, measured: Mapping[str, Any]) -> list[dict[str, str | None]]:
        """What was measured, the `train` part of results.json, beside the forecast.

        Seconds and steps are of all sessions of a run; memory is of this session, so that one which only found the run
        finished has none.
        """
        steps, resumed = measured["steps"], measured.get("resumed_from_step")
        training = measured["seconds"] - measured["compile_seconds"] - measured["evaluate_and_save_seconds"]
        peak = measured["peak_memory_bytes"] if resumed is None or resumed < steps else None
        return [
            {
                "forecast and measured": name,
                "interval": between(span, form),
                "measured": form(found),
                "inside": None if span is None or found is None else span.low <= found <= span.high,
            }
            for name, span, found, form in (
                (f"time of {steps:,} steps", self.seconds(steps), training if steps else None, tables.seconds),
                ("memory at most", self.memory, peak, tables.size),
            )
        ]


def forecast(
    workload: Workload,
    plan: Any,
    machine: Machine,
    *,
    phases: Sequence[tuple[int, int]] = (),
    price: Any = None,
) -> Forecast:
    """What a plan takes on a machine.

    Args:
        workload: the step that was planned.
        plan: `helpers.plan.Plan`.
        phases: (steps, tokens of a sequence), where lengths change; else all of the workload's.
        price: `prices.Price` of an hour.
    """
    from .counting import count

    times = []
    for steps, length in phases or ((plan.max_steps, workload.length),):
        counted = count(
            workload,
            plan.per_device_batch_size,
            kind=machine.kind,
            precision=plan.precision,
            length=length,
            checkpointing=plan.gradient_checkpointing,
            accumulating=plan.gradient_accumulation_steps > 1,
        )
        accumulation = plan.gradient_accumulation_steps
        step = step_seconds(workload, counted, machine, plan.precision, accumulation)
        times.append((steps, step))
    return Forecast(
        notebook=workload.notebook,
        model=workload.name,
        machine=machine,
        precision=plan.precision,
        plan=plan,
        phases=tuple(times),
        memory=plan.memory.peak,
        price=price,
    )


def here(workload: Workload, plan: Any, runtime: Runtime, phases: Sequence[tuple[int, int]] = ()) -> Forecast:
    """The forecast of this run."""
    known = runtime.accelerator
    name = known.name if known else "CPU" if runtime.kind == "cpu" else runtime.device_name
    machine = Machine(name=name, kind=runtime.kind, accelerator=known, count=runtime.device_count)
    found = forecast(workload, plan, machine, phases=phases)
    if runtime.kind != "cpu":
        return found
    return replace(found, memory=_of_process(found.memory, plan.memory.count.weights, runtime.engine.peak_memory()))


def _of_process(span: Range, weights: int, so_far: int) -> Range:
    """What the process takes already, with the weights loaded, and what training adds; at least what it took so far."""
    import psutil

    now = psutil.Process().memory_info().rss
    beside = now - weights
    return Range(
        low=max(so_far, beside + span.low - LIBRARIES),
        high=max(so_far, beside + span.high) + LIBRARIES,
        value=max(so_far, beside + span.value),
        basis=f"{tables.size(now)} that the process has now, and {span.basis}",
    )


def between(span: Range | None, form) -> str:
    """An interval in the units of `form`."""
    if span is None:
        return "not known"
    return f"at least {form(span.low)}" if span.high == math.inf else f"{form(span.low)} to {form(span.high)}"


def dollars(value: float) -> str:
    return f"${value:.2g}"


def _plain(span: Range | None) -> dict[str, Any] | None:
    """For JSON, which has no infinity."""
    return span and {name: None if value == math.inf else value for name, value in vars(span).items()}
