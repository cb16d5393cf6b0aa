"""The planner against this machine: memory of the notebooks' own models, and its page of forecasts.

    OMP_NUM_THREADS=1 python benchmarks/planner.py                       # every notebook; minutes
    OMP_NUM_THREADS=1 python benchmarks/planner.py tinystories_reservoir # replaces this one's lines, the rest stays
    python benchmarks/planner.py --forecasts                             # docs/results/forecasts.json alone; seconds

Memory: an optimizer step of each notebook's default model at its default length is counted on fake tensors, then taken with
real ones, in fp32 and in bf16; what it took are the allocator's own totals (torch.profiler).
"""

from __future__ import annotations

import gc
import json
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import public_runs  # noqa: E402
from report import argument_parser, machine, parsed, write  # noqa: E402

from helpers.machine import runtime  # noqa: E402
from helpers.plan import outlook  # noqa: E402
from helpers.plan.forecast import Forecast  # noqa: E402
from helpers.plan.speed import PUBLISHED  # noqa: E402
from helpers.plan.workloads import ROOMS, Asked, room  # noqa: E402

MEMORY_TARGET = 0.05
EXAMPLES = 2  # of the micro-batch whose memory is measured


def memory_of(notebook: str, here: runtime.Runtime) -> dict:
    """Counted and allocated bytes of one step."""
    from helpers.plan.counting import count

    _, step = room(notebook).planned(Asked(), here, weights=True)
    examples = max(EXAMPLES, step.least)
    found = count(step, examples, kind=here.kind, precision=here.precision)
    counted = max(found.begin_peak, found.end_peak) - found.optimizer
    measured = allocated(step, here, examples)
    return {
        "notebook": notebook,
        "model": step.name,
        "precision": here.precision,
        "examples": examples,
        "length": step.length,
        "counted_bytes": counted,
        "measured_bytes": measured,
        "error": round(counted / measured - 1, 4),
    }


def allocated(workload, here: runtime.Runtime, examples: int) -> int:
    """Bytes of tensors at the fullest moment of a forward and backward pass, by the allocator's own totals."""
    import torch
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


def forecasts() -> dict:
    """What `python -m helpers.plan` says of each notebook's default run on each machine that it names by default."""
    hardware, runs = outlook.DEFAULT_HARDWARE.split(","), public_runs.load()
    return {
        name: [each.results() | {"nearest": nearest(each, runs)} for each in outlook.forecasts(name, hardware, Asked())]
        for name in ROOMS
    }


def nearest(found: Forecast, runs: list[public_runs.Run]) -> dict | None:
    """The published run that is most like a step of the forecast; None where its time rests on none."""
    run, device = found.seconds(), found.machine.accelerator
    if not run or run.basis != PUBLISHED:
        return None
    peak = device.peak_for(found.plan.precision)
    ideal, gpu = found.plan.memory.count.flops / peak, device.kind == "cuda"
    like = public_runs.nearest(runs, device.kind, ideal, peak / device.bandwidth, fused=not gpu)
    return {"run": str(like), "url": like.source["url"], "share": round(like.bound / like.seconds, 3)}


def main() -> int:
    parser = argument_parser(__doc__.splitlines()[0], repetitions=3, each="timed steps of each size")
    parser.add_argument("--forecasts", action="store_true", help="write the forecasts alone")
    parser.add_argument("notebooks", nargs="*", help=f"of {', '.join(ROOMS)}; all by default")
    given = parsed(parser, "planner_benchmark")
    about = machine(given.device, ("torch", "transformers"))
    write(given.output.with_name("forecasts.json"), about, forecasts=forecasts())
    if given.forecasts:
        return 0
    kept = json.loads(given.output.read_text(encoding="utf-8")) if given.output.exists() else {}
    found = {what: kept.get(what, []) for what in ("memory",)}
    for name in given.notebooks or ROOMS:
        lines = {"memory": []}
        for precision in ("fp32", "bf16"):
            here = runtime.detect(False, precision)
            lines["memory"].append(memory_of(name, here))
            print(json.dumps(lines["memory"][-1]), flush=True)
            gc.collect()
        found = {what: [*(one for one in found[what] if one["notebook"] != name), *lines[what]] for what in found}
        worst = {what: max(abs(line["error"]) for line in found[what]) for what in found}
        write(
            given.output,
            about,
            repetitions=given.repetitions,
            targets={"memory": MEMORY_TARGET},
            worst=worst,
            **found,
        )
    print(json.dumps(worst))
    return int(worst["memory"] > MEMORY_TARGET)


if __name__ == "__main__":
    raise SystemExit(main())
