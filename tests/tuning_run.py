"""Small but real runs of the classifier in a process of their own, for the tests that need XLA or compare runs.

python tests/tuning_run.py OUTPUT_DIR '{"kind": "xla", ...}' [OUTPUT_DIR '{...}' ...]  prints one line of JSON a run.
All runs of a process are of one kind.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

DEFAULTS = {
    "kind": "cpu",  # or "xla"
    "devices": 8,  # virtual ones of XLA
    "settings": {},  # fields of Settings
    "steps": 6,
    "stop_after": 0,  # end the process's run after so many steps, with a checkpoint; 0: at the end
    "resume": True,
    "climb": [],  # instead of a run: names of optimisations to try, "all" for all
    "rows": 64,
}
WORDS = {
    "red": "crimson scarlet ruby rose blood",
    "blue": "azure navy indigo sea sky",
    "green": "moss leaf fern lime olive",
}
LENGTH, BATCH = 16, 8


def rows(count: int, seed: int = 0) -> list[tuple[str, int]]:
    """Texts of 1 to 12 words of one colour, and the colour's position."""
    import random

    draw = random.Random(seed)
    families = [words.split() for words in WORDS.values()]
    return [(" ".join(draw.choices(families[i % 3], k=draw.randint(1, 12))) + f" {i}", i % 3) for i in range(count)]


def tiny():
    """(model, tokeniser) of the sample, 1 layer's worth of time."""
    from helpers.tuning.classifier import load_classifier

    return load_classifier("sample", tuple(WORDS), texts=[text for text, _ in rows(200)], seed=0)


def machine(kind: str, devices: int = 8):
    if kind == "xla":
        os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES=str(devices))
    from helpers.machine import runtime

    return runtime.detect(kind == "xla")


def task_of(runtime, *, count: int = 64, weights=None, **parameters):
    """The rows above and the sample model as a task with these parameters."""
    from helpers.tuning.data import LabelledTexts
    from helpers.tuning.parameters import TuningParameters
    from helpers.tuning.task import Task

    splits = {"train": rows(count), "validation": rows(19, seed=1), "test": rows(19, seed=2)}
    texts = LabelledTexts(**splits, labels=tuple(WORDS), removed={}, name="colours", sha256="")
    given = {"max_length": LENGTH, "start_batch_size": BATCH, "learning_rate": 1e-3, "patience": 0, **parameters}
    return Task(texts, *tiny(), weights, TuningParameters.defaults().model_copy(update=given), runtime)


def trainer_of(runtime, output_dir, settings: dict, *, steps: int = 6, count: int = 64, weights=None):
    """A trainer of a run with these settings, on the rows above."""
    from helpers.tuning.training import ClassifierTrainer

    task = task_of(runtime, count=count, weights=weights, evaluations=2, logging_steps=2)
    settings = dataclasses.replace(task.start, **settings)
    return ClassifierTrainer(task, settings, Path(output_dir), seed=0, steps=steps)


def bench_of(runtime, **parameters):
    """A bench on the rows above, and its start."""
    from helpers.tuning.measurement import Bench

    bench = Bench(task_of(runtime, window_examples=2 * BATCH, **parameters))
    return bench, bench.task.start


def digest(model) -> str:
    import hashlib

    state = {name: tensor.detach().cpu().float().numpy().tobytes() for name, tensor in model.state_dict().items()}
    return hashlib.sha256(b"".join(state[name] for name in sorted(state))).hexdigest()


def main(output_dir: str, options: dict) -> dict:
    runtime = machine(options["kind"], options["devices"])
    import torch
    import transformers

    torch.set_num_threads(1)
    if options["climb"]:
        return climbed(runtime, options["climb"])
    trainer = trainer_of(runtime, output_dir, options["settings"], steps=options["steps"], count=options["rows"])

    class Stop(transformers.TrainerCallback):
        def on_step_end(self, args, state, control, **kwargs):
            if state.global_step == options["stop_after"]:
                control.should_save = control.should_training_stop = True

    trainer.add_callback(Stop())
    trainer.train(resume_from_checkpoint=options["resume"])
    from helpers.tuning.task import encode

    logits = trainer.logits(encode(rows(19, seed=1), trainer.processing_class, LENGTH))
    return {
        **trainer.results(),
        "weights": digest(trainer.model),
        "f1": [entry["eval_f1"] for entry in trainer.state.log_history if "eval_f1" in entry],
        "logits": logits.tolist(),
    }


def climbed(runtime, names: list[str]) -> dict:
    from helpers.tuning.climb import Climber
    from helpers.tuning.optimisations import ladder

    bench, start = bench_of(runtime, try_compile=False)
    steps = ladder(bench.task, enough_length=8)
    chosen = tuple(each for each in steps.changes if names == ["all"] or each.name in names)
    climber = Climber(bench, start, repetitions=2)
    rungs = list(climber.climb(dataclasses.replace(steps, changes=chosen, batch_sizes=(2 * BATCH,))))
    return {"rungs": [dataclasses.asdict(rung) for rung in rungs]}


if __name__ == "__main__":
    for folder, given in zip(sys.argv[1::2], map(json.loads, sys.argv[2::2]), strict=True):
        unknown = set(given) - set(DEFAULTS)
        assert not unknown, unknown
        print("RESULT " + json.dumps(main(folder, {**DEFAULTS, **given})))
