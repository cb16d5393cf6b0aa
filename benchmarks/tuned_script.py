"""The script that the tuning notebook carries away, and the notebook: the F1 of both, and the speed of both trainers.

    python benchmarks/tuned_script.py outputs/hardware_tuning        # the output folder of a notebook that ended

The script runs in a copy of its folder, in an isolated interpreter that knows nothing of this suite, with PATH, HOME and the number of
threads alone: once to its end, for its F1 on a tenth of the texts, and then in turn with the notebook's trainer for some steps on the same
texts, with the same settings, without evaluations. A speed is in processor time of training on one thread. Prints one line of JSON and
writes it, with the machine, to docs/results; fails where the script is slower than TARGET of the notebook's trainer.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
from helpers.machine import runtime
from helpers.tuning.data import load_texts
from helpers.tuning.ladder import interval
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.training import BATCH, EXAMPLES, ClassifierTrainer, Task, load_task

OUTPUT = report.ROOT / "docs/results/tuned_script_cpu.json"
REPETITIONS, STEPS = 6, 40  # turns of each side, optimizer steps of a turn
TARGET = 0.9  # the script is to reproduce the tuned speed to a tenth
CLEAN = ("PATH", "HOME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
NO_EVALUATION = {"eval_strategy": "no", "save_strategy": "no"}
TIMED = """
import sys, time
sys.path.insert(0, ".")
sys.argv = ["train.py", "texts.csv"]
import train  # before anything else imports torch

take = train.Trainer.train

def timed(self):
    began = time.process_time()
    take(self)
    print("TRAINED", time.process_time() - began)

train.Trainer.train = timed
train.main()
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="what the notebook wrote: results.json, the model and stock/")
    folder = parser.parse_args().folder
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    settings = results["settings"]["tuned"]
    params = TuningParameters(**results["parameters"])
    task = load_task(params, load_texts(params), runtime.detect(False, params.precision))
    described = report.machine("cpu", ("torch", "transformers", "accelerate"))
    with tempfile.TemporaryDirectory() as work:
        stock = Path(work) / "stock"
        shutil.copytree(folder / "stock", stock)
        printed = run_alone(stock)
        shortened = json.loads((stock / "settings.json").read_text(encoding="utf-8")) | {"max_steps": STEPS}
        (stock / "settings.json").write_text(json.dumps(shortened), encoding="utf-8")
        ratios = []
        for _ in range(REPETITIONS):
            script = float(run_alone(stock).rsplit("TRAINED ", 1)[1].split()[0])
            ratios.append(trainer_seconds(task, settings, Path(work)) / script)
    low, high = interval(ratios)
    result = {
        "comparison": "exported script",
        "script_f1": float(printed.rsplit("texts: ", 1)[1].split()[0]),
        "notebook_f1": round(results["eval"]["after"]["f1"], 3),
        "test_texts": results["data"]["test_examples"],
        "settings": settings,
        "target_speed": TARGET,
        "speed": round(statistics.median(ratios), 3),
        "speed_interval": [round(low, 3), round(high, 3)],
    }
    print(json.dumps(result))
    report.write(OUTPUT, described, repetitions=REPETITIONS, comparisons=[result])
    return int(result["speed"] < TARGET)


def run_alone(folder: Path) -> str:
    """What the script prints. Raises RuntimeError if it fails."""
    environment = {name: os.environ[name] for name in CLEAN if name in os.environ}
    command = [sys.executable, "-I", "-c", TIMED]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the script failed: {done.stderr[-2000:]}")
    return done.stdout


def trainer_seconds(task: Task, settings: dict, folder: Path) -> float:
    """Of the notebook's trainer, without what it saves."""
    examples = STEPS * settings[BATCH] // settings[EXAMPLES]
    trainer = ClassifierTrainer(task, settings, folder / "notebook", examples, **NO_EVALUATION)
    trainer.train(resume_from_checkpoint=False)
    return trainer.training_seconds()


if __name__ == "__main__":
    raise SystemExit(main())
