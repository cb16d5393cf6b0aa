"""The planner against this machine's allocator, and its table of notebooks and machines.

    OMP_NUM_THREADS=1 python benchmarks/planner.py                       # memory of every notebook; minutes
    OMP_NUM_THREADS=1 python benchmarks/planner.py tinystories_reservoir # replaces this one's lines, the rest stays
    python benchmarks/planner.py --grid                                  # docs/results/grid.json alone; minutes
    python benchmarks/planner.py --own                                   # docs/results/own_steps.json alone; a minute

Memory: forward and backward pass of each notebook's default model at its default length are counted on fake tensors, then taken
with real ones, in fp32 and in bf16; what they took are the allocator's own totals (torch.profiler). The grid asks the planner's
command for the default run of each notebook. Own steps: what benchmarks/gpu.py measured on a card, and what the planner says of the
same steps now.
"""

from __future__ import annotations

import gc
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from gpu import PARTS, Part  # noqa: E402
from report import argument_parser, machine, parsed, write  # noqa: E402

from helpers.machine import runtime  # noqa: E402
from helpers.machine.hardware import Machine  # noqa: E402
from helpers.plan.__main__ import forecasts  # noqa: E402
from helpers.plan.forecast import Work, step_seconds  # noqa: E402
from helpers.plan.machines import FREE, runtime_of  # noqa: E402
from helpers.plan.machines import machine as named  # noqa: E402
from helpers.plan.workloads import ROOMS, Asked, room  # noqa: E402

MEMORY_TARGET = 0.05
EXAMPLES = 2  # of the micro-batch whose memory is measured
MACHINES = ("T4", "2xT4", "V100", "L4", "A100 40GB", "H100", "RTX 3050", "v2-8", "v3-8", "v5e-1", "v5e-8")


def memory_of(notebook: str, here: runtime.Runtime) -> dict:
    """Counted and allocated bytes of one forward and backward pass."""
    from helpers.plan.counting import copy_with, count

    _, step = room(notebook).planned(Asked(), here)
    step = replace(step, model=copy_with(step.model, lambda tensor: torch.zeros_like(tensor, device="cpu")))
    examples = max(EXAMPLES, step.least)
    found = count(step, examples, kind=here.kind, precision=here.precision)
    counted = found.step_peak - found.optimizer
    measured = allocated(step, here, examples)
    return {
        "notebook": notebook,
        "precision": here.precision,
        "examples": examples,
        "counted_bytes": counted,
        "measured_bytes": measured,
        "error": round(counted / measured - 1, 4),
    }


def allocated(workload, here: runtime.Runtime, examples: int) -> int:
    """Bytes of tensors at the fullest moment of a forward and backward pass, by the allocator's own totals."""
    from torch.profiler import ProfilerActivity, profile

    model, batch = workload.model.train(), workload.batch(examples, workload.length)
    there = sum(tensor.untyped_storage().nbytes() for tensor in (*model.parameters(), *model.buffers()))
    half = torch.autocast("cpu", dtype=torch.bfloat16, enabled=here.precision == "bf16")
    with profile(profile_memory=True, activities=[ProfilerActivity.CPU]) as profiled:
        with half:
            loss = workload.loss(model, batch)
        loss.backward()
    now = peak = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            peak = max(peak, now)
    return there + peak


def grid(notebook: str) -> list[dict]:
    """Each machine's forecast of the default run, in short."""
    return [short(run) for run in forecasts(notebook, MACHINES, Asked())]


def short(run) -> dict:
    """What the page shows of a forecast."""
    plan, results = run.plan, run.results()
    if plan is None:
        return {"hardware": run.machine.name, "problem": run.problem}
    spans = {}
    for name in ("run_seconds", "peak_memory_bytes", "usd"):
        span = results[name]
        spans[name] = [span["low"], span["high"]] if span else None
    return {
        "hardware": run.machine.name,
        "fits": plan.memory.fits,
        "checkpointing": plan.gradient_checkpointing,
        "precision": plan.precision,
        "batch": plan.batch_size,
        "micro_batch": plan.per_device_batch_size,
        "steps": plan.max_steps,
        "tokens": plan.batch_size * plan.sequence_length,
        "launches": plan.launches,
        "compiled": plan.compiled,
        "step_seconds": run.step and [run.step.low, run.step.high],
        "free": FREE.get(run.machine.name, ""),
        "guess": run.machine.kind == "xla",
        **spans,
    }


def own_steps() -> list[dict]:
    """Measured steps of the notebooks on a card, with the planner's interval."""
    rows = []
    for file in sorted((ROOT / "docs/results").glob("gpu_*.json")):
        results = json.loads(file.read_text(encoding="utf-8"))
        place = named(results["machine"]["device"])
        for name, part in results["parts"].items():
            if "step_seconds" in part and "two cards" not in name:
                rows.append({"hardware": place.name, "part": name} | own_step(PARTS[name], part, place))
    return rows


def own_step(part: Part, measured: dict, place: Machine) -> dict:
    from helpers.plan.counting import count

    precision, micro_batch = measured["precision"], measured["micro_batch"]
    has_model = part.notebook in ("legal_cot_sft", "lejepa_training")
    model = part.parameters["base_model"] if has_model else ""
    asked = Asked(model=model, method=part.parameters.get("method", ""))
    _, workload = room(part.notebook).planned(asked, replace(runtime_of(place), precision=precision))
    accumulation = measured["batch"] // micro_batch
    how = {"kind": place.kind, "precision": precision, "checkpointing": measured["checkpointing"]}
    step = count(workload, micro_batch, accumulating=accumulation > 1, **how)
    work = Work(flops=step.flops, trained=step.trained, launches=step.launches, accumulation=accumulation)
    span, seconds = step_seconds(workload, work, place, precision), measured["step_seconds"]
    inside = span and span.low <= seconds <= span.high
    return {
        "measured": seconds,
        "interval": span and [span.low, span.high],
        "inside": inside,
        "before": measured["forecast_step_seconds"],
    }


def main() -> int:
    parser = argument_parser(__doc__.splitlines()[0])
    parser.add_argument("--grid", action="store_true", help="write the grid alone")
    parser.add_argument("--own", action="store_true", help="write the own steps alone")
    parser.add_argument("notebooks", nargs="*", help=f"of {', '.join(ROOMS)}; all by default")
    given = parsed(parser, "planner_benchmark")
    about, names = machine(given.device, ("torch", "transformers")), given.notebooks or list(ROOMS)
    if given.own:
        write(given.output.with_name("own_steps.json"), about, steps=own_steps())
        return 0
    output = given.output.with_name("grid.json") if given.grid else given.output
    kept = json.loads(output.read_text(encoding="utf-8")) if output.exists() else {}
    for name in names:
        if given.grid:
            kept["notebooks"] = kept.get("notebooks", {}) | {name: grid(name)}
            write(output, about, notebooks=kept["notebooks"])
            continue
        lines = [memory_of(name, replace(runtime.detect(False, half), precision=half)) for half in ("fp32", "bf16")]
        print(json.dumps(lines), flush=True)
        kept["memory"] = [*(one for one in kept.get("memory", []) if one["notebook"] != name), *lines]
        worst = max(abs(line["error"]) for line in kept["memory"])
        write(output, about, target=MEMORY_TARGET, worst=worst, memory=kept["memory"])
        gc.collect()
    return 0 if given.grid else int(worst > MEMORY_TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
