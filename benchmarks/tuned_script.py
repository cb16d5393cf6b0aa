"""Speed of the script that the tuning notebook carries away, as a ratio against the notebook's own trainer in the same run.

    python benchmarks/tuned_script.py outputs/hardware_tuning        # the output folder of a notebook that ended

Both train as many steps with the settings that the notebook kept, on its training texts, without evaluating or saving: the script
in a fresh process with stock transformers alone, the trainer here, in turn. The notebook's own figure, measured while it ran,
stands beside them. Prints one line of JSON and writes it, with the machine, to docs/results.
"""

from __future__ import annotations

import csv
import json
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
from helpers import runtime
from helpers.tuning import export
from helpers.tuning.data import load_labelled
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.settings import Settings
from helpers.tuning.task import Task, load_task
from helpers.tuning.training import new_trainer

TARGET = 0.9  # the script is to reproduce the tuned speed to a tenth
AS_MEASURED = {"eval_strategy": "no", "save_strategy": "no"}


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=3)
    parser.add_argument("folder", type=Path, help="what the notebook wrote: results.json and the model")
    parser.add_argument("--steps", type=int, default=100, help="optimizer steps of each turn")
    arguments = report.parsed(parser, "tuned_script_benchmark")
    found = json.loads((arguments.folder / "results.json").read_text(encoding="utf-8"))
    params = TuningParameters(**found["parameters"] | {"patience": 0})  # which would need evaluations
    settings = Settings(**found["settings"]["chosen"])
    texts = load_labelled(
        params.data_source,
        **params.model_dump(include={"text_column", "label_column", "num_rows", "eval_rows", "positive_label", "seed"}),
    )
    task = load_task(params, texts, runtime.detect(arguments.device == "xla", params.precision))
    described = report.machine(arguments.device, ("torch", "transformers", "accelerate"))
    speeds = {"script": [], "notebook": []}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        write_script(task, settings, folder, arguments)
        for turn in range(arguments.repetitions):
            speeds["script"].append(script_speed(folder))
            speeds["notebook"].append(trainer_speed(task, settings, folder / f"ours-{turn}", arguments.steps))
    script, notebook = (statistics.median(each) for each in speeds.values())
    ratios = [theirs / ours for theirs, ours in zip(*speeds.values(), strict=True)]
    result = {
        "comparison": "exported script",
        "peer": "the notebook's trainer with the same settings and texts",
        "settings": found["settings"]["chosen"],
        "target_ratio": TARGET,
        "ratio": round(script / notebook, 3),
        "ratio_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "script_examples_per_second": speeds["script"],
        "notebook_examples_per_second": speeds["notebook"],
        "measured_by_the_notebook": found["train"]["examples_per_second"],
    }
    print(json.dumps(result))
    report.write(arguments.output, described, repetitions=arguments.repetitions, comparisons=[result])


def write_script(task: Task, settings: Settings, folder: Path, arguments) -> None:
    """The exported files with as many steps as are asked for, and the training texts as a CSV."""
    export.write(task, settings, folder / "stock", model=str((arguments.folder / "model").resolve()))
    file = folder / "stock/training_args.json"
    fields = json.loads(file.read_text(encoding="utf-8")) | AS_MEASURED | {"max_steps": arguments.steps}
    file.write_text(json.dumps(fields), encoding="utf-8")
    with (folder / "texts.csv").open("w", encoding="utf-8", newline="") as opened:
        writer = csv.writer(opened)
        writer.writerow(("text", "label"))
        writer.writerows((text, task.texts.labels[label]) for text, label in task.texts.train)


def script_speed(folder: Path) -> float:
    """Examples a second that the script says, in a process that knows nothing of this suite."""
    command = [sys.executable, "-I", "stock/train.py", "texts.csv"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"the script failed: {done.stderr[-2000:]}")
    return float(re.search(r"'train_samples_per_second': '?([\d.e+]+)", done.stdout)[1])


def trainer_speed(task: Task, settings: Settings, folder: Path, steps: int) -> float:
    trainer = new_trainer(task, settings, folder, seed=task.params.seed, steps=steps, **AS_MEASURED)
    trainer.train(resume_from_checkpoint=False)
    return trainer.results()["train"]["examples_per_second"]


if __name__ == "__main__":
    main()
