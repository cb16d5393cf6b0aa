"""The script that the tuning notebook carries away, beside the notebook: the same rows, the same settings, its F1.

    python benchmarks/tuned_script.py outputs/hardware_tuning        # the output folder of a notebook that ended

The script runs in a copy of its folder, in an isolated interpreter that knows nothing of this suite, with PATH, HOME and the number of
threads alone. Prints one line of JSON and writes it, with the machine, to docs/results.
"""

from __future__ import annotations

import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report

CLEAN = ("PATH", "HOME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3, each="nothing (the script runs once)")
    parser.add_argument("folder", type=Path, help="what the notebook wrote: results.json, the model and stock/")
    arguments = report.parsed(parser, "tuned_script")
    results = json.loads((arguments.folder / "results.json").read_text(encoding="utf-8"))
    described = report.machine(arguments.device, ("torch", "transformers", "accelerate"))
    with tempfile.TemporaryDirectory() as folder:
        copied = Path(folder) / "stock"
        shutil.copytree(arguments.folder / "stock", copied)
        printed, seconds = run_alone(copied)
    result = {
        "comparison": "exported script",
        "script_f1": float(printed.rsplit("test F1 ", 1)[1]),
        "notebook_f1": round(results["eval"]["after"]["f1"], 3),
        "test_texts": results["data"]["test_examples"],
        "settings": results["settings"]["tuned"],
        "script_processor_seconds": round(seconds, 1),
    }
    print(json.dumps(result))
    report.write(arguments.output, described, repetitions=1, comparisons=[result])


def run_alone(folder: Path) -> tuple[str, float]:
    """What the script prints, and its processor seconds with all evaluations. Raises RuntimeError if it fails."""
    environment = {name: os.environ[name] for name in CLEAN if name in os.environ}
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-I", "train.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"the script failed: {done.stderr[-2000:]}")
    return done.stdout, after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime


if __name__ == "__main__":
    main()
