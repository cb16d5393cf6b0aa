"""The planner's step times and memory against measured ones, at sizes that no calibration saw.

Each job is calibrated at a few sizes on this machine, and predicted and measured at two others; all sizes take turns. On a CPU
with one thread the clock is the process's own and the models are small; with --device cuda they are the notebooks' own.

    OMP_NUM_THREADS=1 python benchmarks/planner.py       # jobs named after it replace theirs in the files, the rest stays
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
from pathlib import Path

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

import torch  # noqa: E402

from helpers import runtime  # noqa: E402
from helpers.planning import calibration, workloads  # noqa: E402
from helpers.planning.catalogue import BUILDERS, job  # noqa: E402
from helpers.planning.memory import memory  # noqa: E402

TIME_TARGET, MEMORY_TARGET = 0.20, 0.15
UNSEEN = {"cpu": ((16, 96), (12, 160)), "cuda": ((16, 256), (48, 128))}  # (sequences, length)


def compare(name: str, machine, model: str, repeats: int) -> tuple[calibration.Measured, list[dict]]:
    """Calibrates one job, and what it was off at the unseen sizes."""
    each = job(name, model)
    seen = calibration.SMALL_SIZES if machine.kind == "cpu" else calibration.FULL_SIZES
    sizes = calibration.sizes_of(each, (*seen, *UNSEEN[machine.kind]))
    workload = workloads.build(each, machine.precision)
    stepper = workloads.Stepper(workload, machine.kind, machine.precision, machine.device)
    timed = calibration.in_turns(stepper, sizes, repeats)
    found = calibration.summary(each, machine, timed[: len(seen)])
    lines = []
    for size in timed[len(seen) :]:
        sequences, length = size.sequences, size.length
        predicted = found.time.seconds(each, sequences, length)
        counted, planned = (
            memory(each, machine.kind, machine.precision, sequences, length, measured=measured).peak.value
            for measured in (None, found)
        )
        lines.append(
            {
                "job": name,
                "model": each.model,
                "sequences": sequences,
                "length": length,
                "predicted_seconds": round(predicted, 5),
                "measured_seconds": round(size.seconds, 5),
                "measured_seconds_range": [round(value, 5) for value in size.seconds_range],
                "time_error": round(predicted / size.seconds - 1, 4),
                "predicted_bytes": round(planned),
                "counted_bytes": round(counted),
                "measured_bytes": size.peak_bytes,
                "memory_error": round(planned / size.peak_bytes - 1, 4),
                "counted_memory_error": round(counted / size.peak_bytes - 1, 4),
            }
        )
        print(json.dumps(lines[-1]), flush=True)
    return found, lines


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--model", default="", help="small on a CPU, the notebook's own elsewhere")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--out", type=Path, default=ROOT / "docs/results")
    parser.add_argument("jobs", nargs="*", default=[*BUILDERS])
    given = parser.parse_args()
    if given.device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    machine = runtime.detect(False, given.precision)
    if machine.kind != given.device:
        parser.error(f"--device {given.device}: this machine has {machine.device_name} ({machine.kind})")
    before, measured, lines = os.getloadavg()[0], [], []
    for name in given.jobs:
        found, more = compare(
            name, machine, given.model or ("small" if given.device == "cpu" else ""), given.repetitions
        )
        measured.append(found)
        lines += more
    given.out.mkdir(parents=True, exist_ok=True)
    path, taken_path = (given.out / f"planner_{what}_{given.device}.json" for what in ("benchmark", "calibration"))
    if path.is_file() and taken_path.is_file():
        others = json.loads(path.read_text(encoding="utf-8"))["comparisons"]
        lines = [each for each in others if each["job"] not in given.jobs] + lines
        measured = [each for each in calibration.load([taken_path])[0].jobs if each.job not in given.jobs] + measured
    taken = calibration.about(machine, measured)
    calibration.save(taken, taken_path)
    worst = {kind: max(abs(line[f"{kind}_error"]) for line in lines) for kind in ("time", "memory", "counted_memory")}
    results = {
        "machine": {
            "device": taken.device,
            "cpus": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "clock": calibration.clock_for(machine.kind).__name__,
            "load_average_before": round(before, 2),
            "load_average_after": round(os.getloadavg()[0], 2),
            "python": platform.python_version(),
            "torch": torch.__version__,
        },
        "date": taken.date,
        "repetitions": given.repetitions,
        "targets": {"time": TIME_TARGET, "memory": MEMORY_TARGET},
        "worst": worst,
        "comparisons": lines,
    }
    path.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    met = worst["time"] <= TIME_TARGET and worst["memory"] <= MEMORY_TARGET
    print(json.dumps({"worst": worst, "met": met}))
    return 0 if met else 1


if __name__ == "__main__":
    raise SystemExit(main())
