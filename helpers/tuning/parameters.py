"""Parameters of the hardware tuning notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from helpers.data.data_source import ModelSource
from helpers.parameters import MACHINE, Parameters, Source, Text, in_range, parameter
from helpers.plan.settings import Recipe

EPOCHS = 3
LEARNING_RATE = 2e-5
DATA, TUNING, RUNS = "Data", "What is tuned", "Whole runs"


class TuningParameters(Parameters):
    """What `hardware_tuning` and its TPU twin are told. `batch_size` is the tuned one; 0 finds it by trying."""

    data_source: Source = parameter(
        "dair-ai/emotion",
        "Hub data set; or a path to your own `.csv`, `.jsonl` or `.parquet` with text and label, or to a folder with train, "
        "validation and test; or 'sample', documentation strings of Python by package.",
    )
    base_model: ModelSource = parameter(
        "google-bert/bert-base-uncased",
        "Encoder to fine-tune: hub id, local path, or 'sample' for a tiny random one.",
        suggestions=("google-bert/bert-base-uncased", "sentence-transformers/all-MiniLM-L6-v2", "sample"),
    )
    output_dir: str = parameter(
        "outputs/hardware_tuning",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/hardware_tuning_tpu",
    )
    max_length: int = parameter(192, "Tokens; longer texts are cut.", low=8, high=8192)
    batch_size: int = parameter(0, "The only batch size to try; 0 doubles the start's while that helps.", low=0)
    text_column: str = parameter("", "Column of the texts; empty finds text, sentence, content, ...", group=DATA)
    label_column: str = parameter("", "Column of the labels; empty finds label, category, class, ...", group=DATA)
    num_rows: int = parameter(0, "Rows to train on; 0 takes all.", group=DATA, low=0)
    eval_rows: int = parameter(0, "Rows of validation and of test at most; 0 takes all.", group=DATA, low=0)
    positive_label: str = parameter(
        "", "This label against all others; empty leaves the labels as they are.", group=DATA
    )
    class_weights: bool = parameter(True, "A rare label counts for as much as a frequent one.", group=DATA)
    start_batch_size: int = parameter(
        8, "Examples of a step before tuning; 8 is the Trainer's.", group=TUNING, low=1, high=4096
    )
    largest_batch_size: int = parameter(
        64, "No larger one is tried: it would leave too few steps to learn from.", group=TUNING, high=65536
    )
    window_examples: int = parameter(256, "Examples that every setting is timed on.", group=TUNING, high=1_000_000)
    repetitions: int = parameter(
        3, "Timings of every setting, in turn with what it is compared to.", group=TUNING, low=2, high=100
    )
    tuning_minutes: float = parameter(
        60.0,
        "Minutes that trials (at most half) and comparing runs may take; the tuned run is not counted. 0: no limit.",
        group=TUNING,
        low=0,
        identity=False,
    )
    try_compile: bool = parameter(True, "Try torch.compile, too; it takes minutes.", group=TUNING)
    compare_start: bool = parameter(
        True, "Train with the settings before tuning, too, and compare quality.", group=RUNS, identity=False
    )
    further_seeds: int = parameter(
        2,
        "Repeat both runs with so many more seeds, as far as tuning_minutes allow; without them quality is not checked.",
        group=RUNS,
        low=0,
        high=100,
        identity=False,
    )
    patience: int = parameter(
        2, "Evaluations without improvement before a run stops; 0 never stops.", group=RUNS, low=0
    )
    evaluations: int = parameter(6, "Evaluations of a run, evenly spaced.", group=RUNS, low=1)
    logging_steps: int = parameter(50, "Optimizer steps between two logs.", group=MACHINE, low=1, identity=False)
    text: Text = parameter(
        "i feel like nobody listens to me", "What the last cell classifies.", group=RUNS, identity=False
    )

    @model_validator(mode="after")
    def _sizes_fit(self) -> Any:
        in_range("largest_batch_size", self.largest_batch_size, self.start_batch_size, 65536)
        in_range("window_examples", self.window_examples, 2 * self.start_batch_size, 1_000_000)
        return self


def recipe(rows: int, batch_size: int, max_length: int, max_steps: int = 0) -> Recipe:
    """Three passes over so many rows at the batch before tuning, or as many steps as are asked for."""
    return Recipe(
        batch_size=batch_size,
        learning_rate=LEARNING_RATE,
        max_steps=max_steps or max(1, EPOCHS * rows // batch_size),
        sequence_length=max_length,
        warmup_fraction=0.06,
        tpu_batch_factor=1,  # batch and learning rate are what is tuned here
        tpu_learning_rate_factor=1.0,
    )
