"""Small but real runs of the classifier in a process of their own, for the tests that need XLA or compare runs.

python -m tests.tuning_run OUTPUT_DIR '{"kind": "xla", ...}' [OUTPUT_DIR '{...}' ...]  prints one line of JSON a run.
All runs of a process are of one kind.
"""

from pathlib import Path

from tests import driver

DEFAULTS = driver.DEFAULTS | {
    "precision": "auto",
    "settings": {},  # beside those of the start
    "steps": 6,
}
WORDS = {
    "red": "crimson scarlet ruby rose blood",
    "blue": "azure navy indigo sea sky",
    "green": "moss leaf fern lime olive",
}
LENGTH = 16


def rows(count: int, seed: int = 0):
    """Texts of 1 to 12 words of one colour, and the colour's position, as a split."""
    import random

    import pandas

    draw = random.Random(seed)
    families = [words.split() for words in WORDS.values()]
    texts = [" ".join(draw.choices(families[i % 3], k=draw.randint(1, 12))) + f" {i}" for i in range(count)]
    return pandas.DataFrame({"text": texts, "label": [i % 3 for i in range(count)]})


def write_csv(path: Path, count: int) -> Path:
    """The rows above, and two that are set aside: a repeated one and an empty one."""
    lines = [f"{row.text},{[*WORDS][row.label]}" for row in rows(count).itertuples()]
    path.write_text("\n".join(["text,label", *lines, lines[0], ",red"]) + "\n")
    return path


def task_of(runtime, *, count: int = 64, **parameters):
    """The rows above and the sample model as a task with these parameters."""
    from dataclasses import replace

    from helpers.tuning.data import LabelledTexts
    from helpers.tuning.parameters import TuningParameters
    from helpers.tuning.training import load_task

    given = {"max_length": LENGTH, "learning_rate": 1e-3, "base_model": "sample", "try_compile": False, **parameters}
    params = TuningParameters.defaults().model_copy(update=given)
    splits = {"train": rows(200), "validation": rows(19, seed=1), "test": rows(19, seed=2)}
    texts = LabelledTexts(**splits, labels=[*WORDS], removed=0, name="colours", sha256="")
    task = load_task(params, texts, runtime)  # the words of 200 rows
    return replace(task, texts=replace(texts, train=rows(count)))


def trainer_of(runtime, output_dir, settings: dict, *, steps: int = 6, count: int = 64):
    """A trainer of a run with these settings beside those of the start, on the rows above."""
    from helpers.tuning.training import BATCH, ClassifierTrainer

    task = task_of(runtime, count=count)
    settings = task.start | settings
    return ClassifierTrainer(task, settings, Path(output_dir), steps * settings[BATCH] * runtime.device_count)


def main(output_dir: str, options: dict) -> dict:
    runtime = driver.detect(options)
    trainer = trainer_of(runtime, output_dir, options["settings"], steps=options["steps"])
    watch = driver.watch(trainer, options)
    trainer.train(resume_from_checkpoint=True)
    logits = trainer.logits("test")
    return {
        **trainer.results(),
        "late": watch.late,
        "losses": driver.logged(trainer, "eval_loss"),
        "logits": logits.tolist(),
    }


if __name__ == "__main__":
    driver.serve(main, DEFAULTS)
