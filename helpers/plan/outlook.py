"""A notebook's default run on other machines: whether it fits, its time and cost, and which machine to take.

python -m helpers.plan lejepa_training --hardware T4,v5e-8 --examples 50000
python -m helpers.plan legal_cot_sft --model Qwen/Qwen2.5-7B-Instruct --method lora --hardware "A100 40GB"
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import fields, replace

from helpers.machine.hardware import Machine
from helpers.plan import prices
from helpers.plan.forecast import NOT_KNOWN, Forecast, between, dollars, forecast
from helpers.plan.machines import NAMES, machine, runtime_of
from helpers.plan.range import Range
from helpers.plan.settings import DoesNotFit, Plan, plan
from helpers.plan.tpu_compiler import DoesNotFitChip, available, compile_step
from helpers.plan.tpu_step import begin, trace
from helpers.plan.workloads import ROOMS, Asked, Workload, room
from helpers.show import tables

DEFAULT_HARDWARE = "T4,2xT4,L4,A100 40GB,RTX 3050,v5e-1,v5e-8"


def forecasts(
    notebook: str,
    hardware: Sequence[str],
    asked: Asked,
    *,
    precision: str = "auto",
    by_compiler: bool = False,
    hourly: dict[str, prices.Price] | None = None,
    **settings,
) -> list[Forecast]:
    """The plan of a notebook's default run on each named machine, with time and cost.

    Args:
        notebook: "legal_cot_sft", ...
        hardware: names that `planning.machines.machine` knows.
        asked: what differs from the notebook's defaults.
        by_compiler: memory and time on a TPU come from the TPU compiler, which takes minutes.
        hourly: prices in place of the table's (`prices.table`).
        **settings: `max_steps` and `gradient_checkpointing` of `plan`.

    Raises:
        ValueError: an unknown name. (If nothing fits, the forecast has no plan and says why.)
        RuntimeError: the TPU compiler is not installed, and `by_compiler` is set.
    """
    if by_compiler:
        if problem := available():
            raise RuntimeError(problem)
        begin()
    found = []
    for each in map(machine, hardware):
        runtime, price = runtime_of(each, precision), prices.of(each, hourly)
        name = asked.model
        try:
            recipe, workload = room(notebook).planned(asked, runtime)
            name = workload.name
            planned = plan(recipe, workload, runtime, batch_size=asked.batch_size, **settings)
            expected = forecast(workload, planned, each, price=price)
            if by_compiler and each.kind == "xla":
                expected = compiled(expected, workload, each)
            found.append(expected)
        except DoesNotFit as error:
            names = {"notebook": notebook, "model": name, "precision": runtime.precision}
            found.append(Forecast(**names, machine=each, price=price, problem=error.short))
    return found


def compiled(expected: Forecast, workload: Workload, chips: Machine) -> Forecast:
    """The forecast with the TPU compiler's memory, and a bound of the time from its FLOPs and bytes.

    A micro-batch that the compiler refuses is halved, with twice the accumulation.
    """
    planned: Plan = expected.plan
    share, refusal = planned.batch_size // planned.device_count, None
    sizes = [size for size in range(planned.per_device_batch_size, workload.least - 1, -1) if share % size == 0]
    while sizes:
        size = sizes.pop(0)
        traced = trace(
            workload,
            size * chips.count,
            precision=planned.precision,
            checkpointing=planned.gradient_checkpointing,
            accumulating=size < share,
            chips=chips.count,
        )
        try:
            program = compile_step(traced, chips.name)
        except DoesNotFitChip as error:
            refusal = error
            sizes = [each for each in sizes if each <= size // 2]
            continue
        held = Range(low=program.peak, high=program.peak, value=program.peak, basis="TPU compiler")
        accumulation, chip = share // size, chips.accelerator
        seconds = max(program.flops / chip.peak_for(planned.precision), program.accessed / chip.bandwidth)
        step = Range(
            low=accumulation * seconds, high=math.inf, basis="TPU compiler's FLOPs and bytes, datasheet's peaks"
        )
        planned = replace(
            planned,
            per_device_batch_size=size,
            gradient_accumulation_steps=accumulation,
            memory=replace(planned.memory, peak=held),
        )
        return replace(expected, plan=planned, memory=held, phases=((planned.max_steps, step),))
    return replace(expected, plan=None, problem=str(refusal))


def row(forecast: Forecast) -> dict[str, str]:
    """One machine as a row of a table."""
    shown = {"hardware": forecast.machine.name, "precision": forecast.precision, "fits": forecast.problem}
    if forecast.plan is None:
        return shown
    plan, run = forecast.plan, forecast.seconds()
    return shown | {
        "fits": plan.memory.fits + (" with checkpointing" if plan.gradient_checkpointing else ""),
        "batch": f"{plan.per_device_batch_size} x {plan.device_count} x {plan.gradient_accumulation_steps} = {plan.batch_size}",
        "memory": between(forecast.memory, tables.size),
        "step": between(run and run * (1 / plan.max_steps), tables.seconds),
        "run": between(run, tables.seconds),
        "cost": forecast.price.free or (between(forecast.usd, dollars) if forecast.usd else "no price"),
        "time rests on": run.basis if run else NOT_KNOWN,
    }


def report(forecasts: Sequence[Forecast]) -> str:
    """Machines side by side as text: the table, the prices, and which to take if the intervals decide it."""
    first = next((each for each in forecasts if each.plan), forecasts[0])
    head = f"{first.notebook}, {first.model}"
    if first.plan:
        count = first.plan.memory.count
        head += f": {count.parameters:,} weights, {count.trained:,} trained, {first.plan.max_steps:,} steps of {first.plan.batch_size}"
    notes = [each.machine.accelerator.note if each.machine.accelerator else "" for each in forecasts]
    hours = [
        ": ".join(filter(None, (each.machine.name, str(each.price), note)))
        for each, note in zip(forecasts, notes, strict=True)
    ]
    return "\n".join([head, "", tables.text([row(each) for each in forecasts]), "", *hours, "", *verdict(forecasts)])


def verdict(forecasts: Sequence[Forecast]) -> list[str]:
    """Which is fastest and which is cheapest, or that the intervals overlap."""
    found = []
    for word, of in (("fastest", Forecast.seconds), ("cheapest", Forecast.usd.fget)):
        known = sorted(((of(each), each.machine.name) for each in forecasts if of(each)), key=lambda pair: pair[0].high)
        if len(known) > 1:
            (best, name), *others = known
            decided = all(best.high < span.low for span, _ in others)
            found.append(f"{word}: {name if decided else 'not decided, the intervals overlap; measure'}")
    return found


OPTIONS = {  # name: default and help
    "hardware": (DEFAULT_HARDWARE, f"with commas, of {', '.join(NAMES)}, or N x a GPU"),
    "model": ("", "hub id or local folder with a config.json; the notebook's by default"),
    "method": ("", "legal_cot_sft: full, lora or qlora"),
    "examples": (0, "rows of the data; 0 = the notebook's"),
    "steps": (0, "optimizer steps; 0 = the recipe's"),
    "batch-size": (0, "examples an optimizer step; 0 = the recipe's"),
    "length": (0, "tokens of a sequence; 0 = the notebook's"),
    "precision": ("auto", "auto, fp32, fp16 or bf16"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 2, with the reason on stderr, for what cannot be planned."""
    parser = argparse.ArgumentParser(prog="python -m helpers.plan", description=__doc__.splitlines()[0])
    parser.add_argument("notebook", help=", ".join(ROOMS))
    for name, (default, what) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)
    parser.add_argument("--checkpointing", action="store_true", help="gradient checkpointing even where it fits")
    parser.add_argument("--prices", help="JSON file with your own prices")
    parser.add_argument(
        "--compile", action="store_true", help="TPUs: ask Google's TPU compiler; minutes, no TPU needed"
    )
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    try:
        found = forecasts(
            given.notebook,
            [name.strip() for name in given.hardware.split(",")],
            Asked(**{each.name: getattr(given, each.name) for each in fields(Asked)}),
            max_steps=given.steps,
            gradient_checkpointing=given.checkpointing or None,
            precision=given.precision,
            by_compiler=given.compile,
            hourly=prices.table(given.prices),
        )
    except (ValueError, OSError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(json.dumps([each.results() for each in found], indent=1) if given.json else report(found))
    return 0
