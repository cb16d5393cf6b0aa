"""Speed of the script that the tuning notebook carries away, as a ratio against the notebook's own trainer in the same run.

    python benchmarks/tuned_script.py outputs/hardware_tuning        # the output folder of a notebook that ended

In each turn both train as many steps with the settings that the notebook kept, on its training texts, without evaluating or
saving: the script in a fresh process that knows nothing of this suite (its folder alone in an empty one, an isolated
interpreter, of the environment PATH, HOME and the number of threads), the trainer here, with what notebooks have. A step's
processor time (several threads or a GPU: wall time) runs from one call of `Trainer.training_step` to the next.
Prints one line of JSON and writes it, with the machine, to docs/results.
"""

from __future__ import annotations

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
from transformers import Trainer

from helpers.machine import runtime
from helpers.tuning import export
from helpers.tuning.data import load_texts
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.training import BATCH, PROCESSOR, ClassifierTrainer, Settings, Task, clock

TARGET = 0.9  # the script is to reproduce the tuned speed to a tenth
WARM_UP = 10  # steps before the clock starts
RUN = {"eval_strategy": "no", "save_strategy": "no"}
CLEAN = ("PATH", "HOME", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")
WATCH = """
import time
from transformers import Trainer

times, read, take = [], time.{clock}, Trainer.training_step

def watched(self, *args, **kwargs):
    times.append(read())
    return take(self, *args, **kwargs)

Trainer.training_step = watched
"""
FIRST = """
import json, sys
sys.argv, sys.path[:0] = ["train.py", "texts.csv"], ["."]
import train  # before anything else imports torch
"""
LAST = """
train.main()
print("TIMES " + json.dumps(times))
"""


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3)
    parser.add_argument("folder", type=Path, help="what the notebook wrote: results.json and the model")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps that are timed in each turn")
    arguments = report.parsed(parser, "tuned_script")
    found = json.loads((arguments.folder / "results.json").read_text(encoding="utf-8"))
    params, settings = TuningParameters(**found["parameters"]), found["settings"]["tuned"]
    task = Task.load(params, load_texts(params), runtime.detect(False, params.precision))
    described = report.machine(arguments.device, ("torch", "transformers", "accelerate"))
    timed = clock(task.runtime)
    watch = WATCH.format(clock="process_time" if timed == PROCESSOR else "perf_counter")
    speeds = {"script": [], "notebook": []}
    for _turn in range(arguments.repetitions):
        with tempfile.TemporaryDirectory() as folder:
            write_script(task, settings, Path(folder), arguments)
            speeds["script"].append(speed(script_times(Path(folder), watch), settings))
            speeds["notebook"].append(speed(trainer_times(task, settings, arguments.steps, watch), settings))
    script, notebook = (statistics.median(each) for each in speeds.values())
    ratios = [theirs / ours for theirs, ours in zip(*speeds.values(), strict=True)]
    result = {
        "comparison": "exported script",
        "settings": settings,
        "clock": timed,
        "steps": arguments.steps,
        "target_ratio": TARGET,
        "ratio": round(script / notebook, 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        **{f"{name}_examples_per_second": [round(each, 2) for each in values] for name, values in speeds.items()},
    }
    print(json.dumps(result))
    report.write(arguments.output, described, repetitions=arguments.repetitions, comparisons=[result])


def write_script(task: Task, settings: Settings, folder: Path, arguments) -> None:
    """The exported files with as many steps as are asked for, and the training texts as a CSV."""
    export.write_stock(task, settings, folder, model=str((arguments.folder / "model").resolve()))
    file = folder / "training_args.json"
    steps = {"max_steps": arguments.steps + WARM_UP + 1}  # a step ends where the next begins
    fields = json.loads(file.read_text(encoding="utf-8")) | RUN | steps
    file.write_text(json.dumps(fields), encoding="utf-8")
    with (folder / "texts.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(("text", "label"))
        writer.writerows((text, task.texts.labels[label]) for text, label in task.texts.train)


def script_times(folder: Path, watch: str) -> list[float]:
    """When each step of the script began, in a process that knows nothing of this suite."""
    environment = {name: os.environ[name] for name in CLEAN if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-I", "-c", FIRST + watch + LAST], cwd=folder, env=environment, capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(f"the script failed: {done.stderr[-2000:]}")
    return json.loads(done.stdout.rsplit("TIMES ", 1)[1])


def trainer_times(task: Task, settings: Settings, steps: int, watch: str) -> list[float]:
    """When each step of the notebook's trainer began."""
    names, take = {}, Trainer.training_step
    exec(watch, names)
    try:
        with tempfile.TemporaryDirectory() as folder:
            steps += WARM_UP + 1
            trainer = ClassifierTrainer(task, settings, Path(folder), seed=task.params.seed, steps=steps, **RUN)
            trainer.train(resume_from_checkpoint=False)
    finally:
        Trainer.training_step = take
    return names["times"]


def speed(times: list[float], settings: Settings) -> float:
    """Examples a second after the warm-up."""
    steps = times[WARM_UP:]
    return settings[BATCH] * (len(steps) - 1) / (steps[-1] - steps[0])


if __name__ == "__main__":
    main()
