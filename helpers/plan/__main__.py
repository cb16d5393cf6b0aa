"""A notebook's default run on other machines: whether it fits, how long, how much, and which machine to take.

python -m helpers.plan lejepa_training --hardware T4,v5e-8 --examples 50000
python -m helpers.plan legal_cot_sft --model Qwen/Qwen2.5-7B-Instruct --method lora --hardware "A100 40GB"
python -m helpers.plan hardware_tuning --measured outputs/hardware_tuning/results.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields, replace

from helpers.show import tables

from . import tpu
from .forecast import LEFT_OUT, NOT_KNOWN, Forecast, Measured, around, between, forecast, least
from .machines import FREE, NAMES, machine, runtime_of, usd_per_hour
from .settings import DoesNotFit, plan
from .workloads import ROOMS, Asked, Workload, room

DEFAULT_HARDWARE = "T4,2xT4,P100,L4,A100 40GB,RTX 3050,v5e-1,v5e-8"
OPTIONS = {  # name: default and help
    "hardware": (DEFAULT_HARDWARE, f"names between commas: {', '.join(NAMES)}, or N x a GPU"),
    "model": ("", "hub id, or local folder with a config.json; by default the notebook's model"),
    "method": ("", "legal_cot_sft: full, lora or qlora"),
    "examples": (0, "rows of the data; 0: those of the notebook's data"),
    "steps": (0, "optimizer steps; 0: the recipe's"),
    "batch-size": (0, "examples in an optimizer step; 0: the recipe's"),
    "length": (0, "tokens of a sequence; 0: the notebook's"),
}


def forecasts(
    notebook: str,
    hardware: Sequence[str],
    asked: Asked,
    *,
    by_compiler: bool = False,
    max_steps: int = 0,
    **how,
) -> list[Forecast]:
    """The plan of a notebook's default run on each named machine, with time and cost.

    Args:
        asked: what differs from the notebook's defaults.
        by_compiler: memory on a TPU comes from the TPU compiler, which takes minutes.
        max_steps: as of `plan`.
        **how: `fused` and `measured`, as of `forecast.step_seconds`.

    Raises:
        ValueError: an unknown name. (If nothing fits, the forecast has no plan and says why.)
        RuntimeError: the TPU compiler is not installed, and `by_compiler` is set.
    """
    if by_compiler:
        tpu.begin()
    found = []
    for each in map(machine, hardware):
        runtime = runtime_of(each)
        try:
            recipe, workload = room(notebook).planned(asked, runtime)
            planned = plan(recipe, workload, runtime, batch_size=asked.batch_size, max_steps=max_steps)
            expected = forecast(workload, planned, each, usd_per_hour=usd_per_hour(each), **how)
            found.append(compiled(expected, workload) if by_compiler and each.kind == "xla" else expected)
        except DoesNotFit as error:
            names = {"notebook": notebook, "model": asked.model or "its model", "precision": runtime.precision}
            found.append(Forecast(**names, machine=each, problem=str(error)))
    return found


def compiled(expected: Forecast, workload: Workload) -> Forecast:
    """The forecast with the TPU compiler's memory, and a step's least time from its products and the bytes that it moves.

    Raises DoesNotFit, and ValueError for a slice that the compiler does not know.
    """
    planned, chips = expected.plan, expected.machine
    accumulation, precision = planned.gradient_accumulation_steps, planned.precision
    traced = tpu.trace(
        workload,
        planned.micro_batch_size,
        precision=precision,
        checkpointing=planned.gradient_checkpointing,
        accumulating=accumulation > 1,
        chips=chips.count,
    )
    program = tpu.compile_step(traced, chips.name)
    held = around(program.peak, 1.0, "TPU compiler")
    chip, step = chips.accelerator, expected.step
    bound = accumulation * max(program.flops / chip.peak_for(precision), tpu.moved(program.program) / chip.bandwidth)
    return replace(
        expected,
        plan=replace(planned, memory=replace(planned.memory, peak=held)),
        memory=held,
        step=step and replace(step, low=max(step.low, bound), high=max(step.high, bound)),
        problem=tpu.said_of(traced.products, precision),
    )


def row(found: Forecast) -> dict[str, str]:
    """One machine as a row of a table."""
    plan, run = found.plan, found.seconds
    shown = {"hardware": found.machine.name, "precision": found.precision, "fits": "no"}
    if plan is None:
        return shown
    return shown | {
        "fits": plan.memory.fits + (" with checkpointing" if plan.gradient_checkpointing else ""),
        "batch": f"{plan.per_device_batch_size} x {plan.device_count} x {plan.gradient_accumulation_steps} = {plan.batch_size}",
        "memory": between(found.memory, tables.size),
        "run": between(run, tables.seconds),
        "cost": money(found),
        "time rests on": run.basis if run else NOT_KNOWN,
    }


def money(found: Forecast) -> str:
    """What the run costs, such as `$0 (Colab) or $0.02 to $0.08`."""
    free = FREE.get(found.machine.name)
    paid = found.usd and between(found.usd, "${:.2g}".format)
    return " or ".join(filter(None, (free and f"$0 ({free})", paid))) or "no price"


def report(found: Sequence[Forecast]) -> str:
    """Machines side by side as text: a table, notes on a machine or its step, and which machine to take."""
    first = next((each for each in found if each.plan), found[0])
    head = f"{first.notebook}, {first.model}"
    if first.plan:
        count = first.plan.memory.count
        head += f": {count.parameters:,} weights, {count.trained:,} trained, {first.plan.max_steps:,} steps of {first.plan.batch_size}"
    notes = [
        f"{each.machine.name}: {said}"
        for each in found
        for said in filter(None, (each.problem, getattr(each.machine.accelerator, "note", "")))
    ]
    return "\n".join([head, "", tables.text([row(each) for each in found]), LEFT_OUT, *notes, *verdict(found)])


def verdict(found: Sequence[Forecast]) -> list[str]:
    """Which machine is fastest and which is cheapest, and which of the others are not told apart from it."""
    said = []
    for word, of in (("fastest", "seconds"), ("cheapest of those with a price", "usd")):
        first, near = least([each for each in found if each.plan], of)
        if first:
            others = f"; not told apart: {', '.join(each.machine.name for each in near)}" if near else ""
            said.append(f"{word}: {first.machine.name}{others}")
    return said


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 2, with the reason on stderr, for what cannot be planned."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m helpers.plan", description=__doc__, formatter_class=form)
    parser.add_argument("notebook", help=", ".join(ROOMS))
    for name, (default, what) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)
    parser.add_argument("--fused", action="store_true", help="the step is compiled, or its kernels are fused by hand")
    parser.add_argument("--measured", action="append", default=[], help="results.json of a run on the same machine")
    parser.add_argument(
        "--compile", action="store_true", help="ask the TPU compiler about TPUs: it takes minutes and needs no TPU"
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = parser.parse_args(arguments)
    try:
        found = forecasts(
            given.notebook,
            given.hardware.split(","),
            Asked(**{each.name: getattr(given, each.name) for each in fields(Asked)}),
            max_steps=given.steps,
            by_compiler=given.compile,
            fused=given.fused,
            measured=[Measured.read(path) for path in given.measured],
        )
    except (ValueError, OSError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    print(json.dumps([each.results() for each in found], indent=1) if given.json else report(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
