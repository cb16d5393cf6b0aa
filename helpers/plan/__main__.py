"""A notebook's default run on other machines: whether it fits, how long, how much, and which machine is fastest.

python -m helpers.plan lejepa_training --hardware T4,v5e-8 --examples 50000
python -m helpers.plan legal_cot_sft --model Qwen/Qwen2.5-7B-Instruct --method lora --hardware "A6000:48GB,768GB/s,155TFLOPS"
python -m helpers.plan hardware_tuning --measured outputs/hardware_tuning/results.json
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields

from helpers.machine.hardware import Machine
from helpers.parameters import LARGEST
from helpers.show import tables

from .forecast import LEFT_OUT, NOT_KNOWN, Forecast, Measured, between, fastest, forecast
from .machines import FREE, NAMES, machine, runtime_of, split_names, usd_per_hour
from .settings import plan
from .workloads import ROOMS, Asked, Workload, room

DEFAULT_HARDWARE = "T4,2xT4,P100,L4,A100 40GB,RTX 3050,v5e-1,v5e-8"
OPTIONS = {  # name: default and help
    "hardware": (
        DEFAULT_HARDWARE,
        f"names between commas: {', '.join(NAMES)}, N x a GPU, as nvidia-smi says it, or with a datasheet",
    ),
    "model": ("", "hub id, or local folder with a config.json; by default the notebook's model"),
    "method": ("", "legal_cot_sft: full, lora or qlora"),
    "examples": (0, "rows of the data; 0: those of the notebook's data"),
    "steps": (0, "optimizer steps of the first machine's batch, which the others share out; 0: the recipe's"),
    "batch-size": (0, "examples in an optimizer step; 0: the recipe's"),
    "length": (0, "tokens of a sequence; 0: the notebook's"),
}


def forecasts(notebook: str, hardware: Sequence[str], asked: Asked, *, max_steps: int = 0, **how) -> list[Forecast]:
    """The plan of a notebook's run on each named machine, with time and cost.

    All machines train on as many examples as the first one that is planned, whatever their batch is. A machine that is unknown
    or too small has no plan and says why.

    Args:
        asked: what differs from the notebook's defaults.
        max_steps: of the first machine; 0: the recipe's.
        **how: `fused` and `measured`, as of `forecast.step_seconds`.

    Raises ValueError for an unknown notebook and a number out of range.
    """
    _check_numbers(asked, max_steps)
    planner = room(notebook).planned
    runs: list[Forecast] = []
    for name in hardware:
        examples = next((run.examples for run in runs if run.plan), 0)
        try:
            here = machine(name)
            runtime = runtime_of(here)
            recipe, workload = planner(asked, runtime)
            _check_length(workload, asked.length)
            settings = plan(recipe, workload, runtime, batch_size=asked.batch_size, max_steps=max_steps)
            if examples:
                steps = max(1, round(examples / settings.batch_size))
                settings = plan(recipe, workload, runtime, batch_size=asked.batch_size, max_steps=steps)
            runs.append(forecast(workload, settings, here, usd_per_hour=usd_per_hour(here), **how))
        except ValueError as error:
            nowhere = Machine(name=name.strip(), kind="unknown", accelerator=None, count=1)
            names = {"notebook": notebook, "model": asked.model or "its model", "precision": ""}
            runs.append(Forecast(**names, machine=nowhere, problem=str(error)))
    return runs


def _check_numbers(asked: Asked, max_steps: int) -> None:
    """Raises ValueError for a number that no run has."""
    numbers = {"examples": asked.examples, "length": asked.length, "batch-size": asked.batch_size, "steps": max_steps}
    for name, value in numbers.items():
        if not 0 <= value <= LARGEST:
            raise ValueError(f"{name}={value} is out of range: give 0 (the notebook's) to {LARGEST:,}")


def _check_length(workload: Workload, length: int) -> None:
    """Raises ValueError for a sequence that is longer than the model reads."""
    from .counting import transformer_of  # which imports torch

    model = transformer_of(workload.model)
    longest = getattr(model and model.config, "max_position_embeddings", None)
    if longest and length > longest:
        raise ValueError(f"length={length}: {workload.name} reads {longest} tokens at most")


def row(run: Forecast) -> dict[str, str]:
    """One machine as a row of a table."""
    plan = run.plan
    if plan is None:
        return {"hardware": run.machine.name, "precision": run.precision, "fits": "no plan: see below"}
    checkpointing = " with checkpointing" if plan.gradient_checkpointing else ""
    return {
        "hardware": run.machine.name,
        "precision": run.precision,
        "fits": plan.memory.fits + checkpointing,
        "batch": f"{plan.per_device_batch_size} x {plan.device_count} x {plan.gradient_accumulation_steps} = {plan.batch_size}",
        "memory": between(run.memory, tables.size),
        "steps": f"{plan.max_steps:,}",
        "run": between(run.seconds, tables.seconds),
        "cost": money(run),
        "time rests on": run.step.basis if run.step else NOT_KNOWN,
    }


def money(run: Forecast) -> str:
    """What the run costs, such as `$0 (Colab) or $0.02 to $0.08`."""
    free = FREE.get(run.machine.name)
    paid = run.usd and between(run.usd, "${:.2g}".format)
    return " or ".join(filter(None, (free and f"$0 ({free})", paid))) or "no price"


def report(runs: Sequence[Forecast]) -> str:
    """Machines side by side as text: a table, notes on a machine or its step, and which machine is fastest."""
    first = next((run for run in runs if run.plan), runs[0])
    head = f"{first.notebook}, {first.model}"
    if first.plan:
        count = first.plan.memory.count
        head += (
            f": {count.parameters:,} weights, {count.trained:,} trained, {first.examples:,} examples on each machine"
        )
    lines = [head, "", tables.text([row(run) for run in runs]), LEFT_OUT]
    for run in runs:
        for note in (run.problem, getattr(run.machine.accelerator, "note", "")):
            if note:
                lines.append(f"{run.machine.name}: {note}")
    return "\n".join([*lines, *verdict(runs)])


def verdict(runs: Sequence[Forecast]) -> list[str]:
    """Which machine is fastest, and which of the others are not told apart from it."""
    first, near = fastest(runs)
    if first is None:
        return []
    others = ", ".join(run.machine.name for run in near)
    guess = " (TPU times are guesses)" if any(run.machine.kind == "xla" for run in (first, *near)) else ""
    return [
        f"fastest on the same examples: {first.machine.name}"
        + (f"; not told apart: {others}" if others else "")
        + guess
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 2, with the reason on stderr, for what cannot be planned."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m helpers.plan", description=__doc__, formatter_class=form)
    parser.add_argument("notebook", help=", ".join(ROOMS))
    for name, (default, what) in OPTIONS.items():
        parser.add_argument(f"--{name}", type=type(default), default=default, help=what)
    parser.add_argument("--fused", action="store_true", help="the step is compiled, or its kernels are fused by hand")
    parser.add_argument(
        "--measured",
        action="append",
        default=[],
        help="results.json of a run on any machine: its time comes first there, and by the ratio of both machines elsewhere",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    given = parser.parse_args(arguments)
    try:
        runs = forecasts(
            given.notebook,
            split_names(given.hardware),
            Asked(**{field.name: getattr(given, field.name) for field in fields(Asked)}),
            max_steps=given.steps,
            fused=given.fused,
            measured=[Measured.read(path) for path in given.measured],
        )
    except (ValueError, OSError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if not any(run.plan for run in runs):
        sys.stderr.write("\n".join(run.problem for run in runs) + "\n")
        return 2
    print(json.dumps([run.results() for run in runs], indent=1) if given.json else report(runs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
