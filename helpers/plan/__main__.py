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

from helpers.machine.hardware import Machine
from helpers.parameters import LARGEST
from helpers.show import tables

from .forecast import LEFT_OUT, NOT_KNOWN, Forecast, Measured, forecast, interval, is_faster, seconds_an_example
from .machines import FREE, NAMES, machine, runtime_of, split_names
from .settings import plan
from .workloads import ROOMS, Asked, Workload, room

DEFAULT_HARDWARE = "T4,2xT4,P100,L4,A100 40GB,RTX 3050,v5e-1,v5e-8"
HELP = {
    "model": "hub id, or local folder with a config.json; by default the notebook's model",
    "method": "legal_cot_sft: full, lora or qlora",
    "examples": "rows of the data; 0: those of the notebook's data",
    "length": "tokens of a sequence; 0: the notebook's",
    "batch_size": "examples in an optimizer step; 0: the recipe's",
    "steps": "optimizer steps of the first machine's batch, which the others share out; 0: the recipe's",
}


def forecasts(notebook: str, hardware: Sequence[str], asked: Asked, **how) -> list[Forecast]:
    """The plan of a notebook's run on each named machine, with time and cost.

    All machines train on as many examples as the first one that is planned, whatever their batch is. A machine that is unknown
    or too small has no plan and says why.

    Args:
        asked: what differs from the notebook's defaults.
        **how: `fused` and `measured`, as of `forecast.step_seconds`.

    Raises ValueError for an unknown notebook and a number out of range.
    """
    for name, value in vars(asked).items():
        if isinstance(value, int) and not 0 <= value <= LARGEST:
            raise ValueError(f"{name}={value} is out of range: give 0 (the notebook's) to {LARGEST:,}")
    planner = room(notebook).planned
    runs: list[Forecast] = []
    examples = 0
    for name in hardware:
        try:
            device = machine(name)
            runtime = runtime_of(device)
            recipe, workload = planner(asked, runtime)
            _check_length(workload, asked.length)
            settings = plan(recipe, workload, runtime, batch_size=asked.batch_size, max_steps=asked.steps)
            if examples:
                steps = max(1, round(examples / settings.batch_size))
                settings = plan(recipe, workload, runtime, batch_size=asked.batch_size, max_steps=steps)
            run = forecast(workload, settings, device, **how)
        except ValueError as error:
            unknown = Machine(name=name.strip(), kind="unknown")
            run = Forecast(machine=unknown, problem=str(error))
        examples = max(examples, run.examples)
        runs.append(run)
    return runs


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
        return {"hardware": run.machine.name, "fits": "no plan: see below"}
    fits = plan.memory.fits
    if plan.gradient_checkpointing:
        fits += " with checkpointing"
    return {
        "hardware": run.machine.name,
        "precision": plan.precision,
        "fits": fits,
        "batch": f"{plan.per_device_batch_size} x {plan.device_count} x {plan.gradient_accumulation_steps} = {plan.batch_size}",
        "memory": interval(run.memory, tables.size),
        "steps": f"{plan.max_steps:,}",
        "run": interval(run.seconds, tables.seconds),
        "cost": price(run),
        "time based on": run.step.basis if run.step else NOT_KNOWN,
    }


def price(run: Forecast) -> str:
    """What the run costs, such as `$0 (Colab) or $0.02 to $0.08`."""
    prices = []
    if run.machine.name in FREE:
        prices.append(f"$0 ({FREE[run.machine.name]})")
    if run.usd:
        prices.append(interval(run.usd, "${:.2g}".format))
    return " or ".join(prices) or "no price"


def report(runs: Sequence[Forecast]) -> str:
    """Machines side by side as text, one of them planned: a table, notes on a machine or its step, and which machine is fastest."""
    planned = [run for run in runs if run.plan]
    first = planned[0]
    assert first.workload
    count = first.plan.memory.count
    head = (
        f"{first.workload.notebook}, {first.workload.name}: {count.parameters:,} weights, {count.trained:,} trained, "
        f"{first.examples:,} examples on each machine"
    )
    lines = [head, "", tables.text([row(run) for run in runs]), LEFT_OUT]
    for run in runs:
        for note in (run.problem, getattr(run.machine.accelerator, "note", "")):
            if note:
                lines.append(f"{run.machine.name}: {note}")
    timed = [run for run in planned if run.step]
    timed.sort(key=seconds_an_example)
    if len(timed) > 1:
        fastest, *others = timed
        lines.append(f"fastest on the same examples: {fastest.machine.name}")
        similar = [run.machine.name for run in others if not is_faster(fastest, run)]
        if similar:
            lines.append(f"perhaps just as fast: {', '.join(similar)}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; returns 2, with the reason on stderr, for what cannot be planned."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m helpers.plan", description=__doc__, formatter_class=form)
    parser.add_argument("notebook", help=", ".join(ROOMS))
    hardware = f"names between commas: {', '.join(NAMES)}, N x a GPU, as nvidia-smi says it, or with a datasheet"
    parser.add_argument("--hardware", default=DEFAULT_HARDWARE, help=hardware)
    for name, text in HELP.items():
        default = getattr(Asked, name)
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=text)
    parser.add_argument("--fused", action="store_true", help="the step is compiled, or its kernels are fused by hand")
    parser.add_argument(
        "--measured",
        action="append",
        default=[],
        help="results.json of a run on any machine: its time comes first there, and by the ratio of both machines elsewhere",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    options = parser.parse_args(arguments)
    asked = Asked(**{name: getattr(options, name) for name in HELP})
    try:
        measured = [Measured.read(path) for path in options.measured]
        runs = forecasts(options.notebook, split_names(options.hardware), asked, fused=options.fused, measured=measured)
        if not any(run.plan for run in runs):
            raise ValueError("\n".join(run.problem for run in runs))
    except (ValueError, OSError, RuntimeError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    if options.json:
        results = [run.results() for run in runs]
        print(json.dumps(results, indent=1))
    else:
        print(report(runs))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
