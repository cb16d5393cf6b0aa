"""What it costs to survive: the time of saving, and memory over a long run.

    OMP_NUM_THREADS=1 python benchmarks/survival.py saving           # the five notebooks at their default settings
    OMP_NUM_THREADS=1 python benchmarks/survival.py memory           # 2,000 steps of a small model, CPU
    OMP_NUM_THREADS=1 .venv-tpu/bin/python benchmarks/survival.py memory --xla    # and on 8 virtual XLA devices

Saving: the cells of a notebook up to its training cell run on its sample; then its trainer takes a few steps and writes a
checkpoint after each. The share is the time of one checkpoint against that of the steps between two at the notebook's own
`save_steps`; the first step and the first checkpoint are left out. The check that every number is finite, hashing, syncing
and renaming are part of a checkpoint; evaluation is not.

Memory: the resident set of the process at the end of every step, in means of 50; the slope of a line through those after
the first quarter, with its 95 % interval. Evaluations and checkpoints come every 250 steps.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

from report import machine, write  # noqa: E402

MOST = 0.05  # of the training time
STEPS = 4  # measured, each with a checkpoint after it
# What each is told where no hub is: everything else is its default. A language model from the hub becomes a small one.
NOTEBOOKS = {
    "tinystories_reservoir": {"data_source": "sample"},
    "legal_cot_sft": {"data_source": "sample", "base_model": "sample"},
    "lejepa_training": {"data_source": "sample", "base_model": "sample"},
    "graphmer_se": {},
    "hardware_tuning": {"data_source": "sample", "base_model": "sample", "compare_start": False},
}
LONG, MEAN_OF, EVERY = 2_000, 50, 250
SMALL = {
    "data_source": "sample",
    "num_texts": 300,
    "max_steps": LONG,
    "eval_steps": EVERY,
    "batch_size": 16,
    "vocab_size": 400,
    "units": 128,
}


def trainer_of(notebook: str, values: dict, twin: str = ""):
    """The trainer that a notebook's cells make, just before its training cell."""
    from helpers.batch.processes import cells, run_cells

    sources = cells(ROOT / "notebooks" / f"{notebook}{twin}.ipynb", values)
    with contextlib.redirect_stdout(io.StringIO()):
        for variables in run_cells(source.partition("output = trainer.train(")[0] for source in sources):
            if "trainer" in variables:
                return variables["trainer"]
    raise ValueError(f"{notebook}: no cell makes a `trainer`")


def saving(notebook: str, folder: Path) -> dict:
    """Seconds of a step and of a checkpoint at a notebook's own settings, and what share saving is."""
    from transformers import TrainerCallback

    trainer = trainer_of(notebook, {**NOTEBOOKS[notebook], "output_dir": str(folder)})
    every = trainer.args.save_steps
    steps: list[float] = []
    saves: list[float] = []

    class Watch(TrainerCallback):
        def on_step_begin(self, args, state, control, **kwargs):
            self.since = time.perf_counter()

        def on_step_end(self, args, state, control, **kwargs):
            trainer.runtime.wait()
            steps.append(time.perf_counter() - self.since)
            control.should_save, control.should_evaluate = True, False
            control.should_training_stop = len(steps) > STEPS

    save = trainer._save_checkpoint

    def timed(*args, **kwargs):
        since = time.perf_counter()
        save(*args, **kwargs)
        saves.append(time.perf_counter() - since)

    trainer._save_checkpoint = timed
    trainer.args.eval_on_start = False
    trainer.add_callback(Watch())
    trainer.train()
    newest = max(folder.rglob("checkpoint-*"), key=lambda path: path.stat().st_mtime)
    step, checkpoint = median(steps[1:]), median(saves[1:])
    return {
        "notebook": notebook,
        "save_steps": every,
        "step_seconds": round(step, 4),
        "save_seconds": round(checkpoint, 4),
        "bytes": sum(path.stat().st_size for path in newest.rglob("*") if path.is_file()),
        "share": round(checkpoint / (every * step + checkpoint), 5),
    }


def memory(xla: bool, folder: Path) -> dict:
    """Resident memory over a long run, and its slope."""
    import psutil
    from scipy.stats import linregress, t
    from transformers import TrainerCallback

    if xla:
        os.environ |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"}
    trainer = trainer_of("tinystories_reservoir", {**SMALL, "output_dir": str(folder)}, "_tpu" if xla else "")
    process, resident = psutil.Process(), []

    class Watch(TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            resident.append(process.memory_info().rss)

    trainer.add_callback(Watch())
    trainer.train()
    means = [sum(resident[at : at + MEAN_OF]) / MEAN_OF for at in range(0, len(resident), MEAN_OF)]
    late = means[len(means) // 4 :]
    line = linregress([MEAN_OF * at for at in range(len(late))], late)
    spread = t.ppf(0.975, len(late) - 2) * line.stderr
    return {
        "kind": trainer.runtime.kind,
        "steps": len(resident),
        "bytes_first_quarter": round(means[len(means) // 4 - 1]),
        "bytes_last": round(means[-1]),
        "bytes_per_step": round(line.slope, 1),
        "interval": [round(line.slope - spread, 1), round(line.slope + spread, 1)],
        "means": [round(each) for each in means],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("saving", "memory"))
    parser.add_argument("--xla", action="store_true", help="memory on 8 virtual XLA devices")
    parser.add_argument("--only", choices=NOTEBOOKS, action="append", help="of `saving`; default: all")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/survival_cpu.json")
    arguments = parser.parse_args()
    before = machine("cpu", ["torch", "torch_xla", "transformers", "accelerate"])
    known = json.loads(arguments.output.read_text(encoding="utf-8")) if arguments.output.exists() else {}
    found = {"saving": known.get("saving", {}), "memory": known.get("memory", {})}
    with tempfile.TemporaryDirectory() as folder:
        if arguments.what == "memory":
            found["memory"]["xla" if arguments.xla else "cpu"] = memory(arguments.xla, Path(folder, "run"))
        for notebook in (arguments.only or NOTEBOOKS) if arguments.what == "saving" else ():
            row = found["saving"][notebook] = saving(notebook, Path(folder, notebook))
            print(json.dumps(row), flush=True)
            write(arguments.output, before, most=MOST, **found)
    write(arguments.output, before, most=MOST, **found)
    return int(any(row["share"] > MOST for row in found["saving"].values()))


if __name__ == "__main__":
    sys.exit(main())
