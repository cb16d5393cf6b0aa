"""What a person takes away: the kept settings, the start of the model, the texts, and a script for stock transformers."""

import shutil
from pathlib import Path

import pandas

from helpers.run import disk
from helpers.show import tracking

from . import stock_script
from .training import EXAMPLES, WARM_UP, WEIGHT_DECAY, Settings, Task


def write_stock(task: Task, settings: Settings, folder: Path) -> list[Path]:
    """`train.py`, `settings.json`, `texts.csv` and `model`, which need transformers and nothing of this suite.

    Returns the files; none for a TPU, where the stock trainer would keep the weights themselves in bf16.
    """
    if task.runtime.kind == "xla":
        tracking.say("not written for a TPU: there the stock trainer with bf16 stores the weights in bf16")
        return []
    texts = task.texts
    rows = pandas.concat([texts.train, texts.validation, texts.test])
    arguments = settings | {
        "seed": task.params.seed,
        "num_train_epochs": task.examples * settings[EXAMPLES] / len(rows),
        "warmup_steps": WARM_UP,  # below 1: a share of all steps
        "weight_decay": WEIGHT_DECAY,
        "use_cpu": task.runtime.kind == "cpu",  # else bf16 is refused there
        "save_strategy": "no",
        "report_to": "none",
        "max_length": task.params.max_length,  # of the tokeniser
    }
    del arguments[EXAMPLES]
    task.model.save_pretrained(folder / "model")
    task.tokenizer.save_pretrained(folder / "model")
    shutil.copyfile(stock_script.__file__, folder / "train.py")
    disk.write_json(folder / "settings.json", arguments)
    names = rows.label.map(dict(enumerate(texts.labels)))
    rows.assign(label=names).to_csv(folder / "texts.csv", index=False)
    return [*folder.iterdir()]
