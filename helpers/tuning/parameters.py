"""Parameters of the hardware tuning notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from helpers.parameters import SAMPLE, Parameters, in_range, not_negative, positive, source_path
from helpers.plan import ModelSize, Recipe

EPOCHS = 3
LEARNING_RATE = 2e-5


@dataclass(frozen=True, kw_only=True)
class TuningParameters(Parameters):
    """What `hardware_tuning` and its TPU twin are told. `batch_size` is the tuned one; 0 finds it by trying."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"calibrate", "compare_start", "further_seeds", "logging_steps", "text"}
    )

    base_model: str  # hub id, local path, or "sample"
    num_rows: int  # rows to train on; 0 = all
    eval_rows: int  # rows of validation and of test at most; 0 = all
    positive_label: str  # this label against all others; "" leaves the labels as they are
    class_weights: bool  # a rare label counts for as much as a frequent one
    max_length: int  # tokens; longer texts are cut
    start_batch_size: int  # examples a step before tuning
    largest_batch_size: int  # the search goes no further: larger batches leave too few steps to learn from
    window_examples: int  # examples that every setting is timed on
    repetitions: int  # timings of every setting, in turn with what it is compared to
    try_compile: bool  # torch.compile among the optimisations; it takes minutes
    calibrate: bool  # measure a few steps of every notebook's job for the planner, into calibration.json
    compare_start: bool  # train before tuning, too, and compare quality
    further_seeds: int  # both again with so many more seeds, for the spread
    patience: int  # evaluations without improvement before a run stops; 0 = never
    evaluations: int  # of a run, evenly spaced
    logging_steps: int
    text: str  # what the last cell classifies

    def __post_init__(self):
        super().__post_init__()
        path = source_path("base_model", self.base_model)
        if path is not None and not path.is_dir():
            raise ValueError(
                f"base_model={self.base_model!r} is a file: give the folder of a model, a hub id or {SAMPLE!r}"
            )
        for name in ("num_rows", "eval_rows", "patience"):
            not_negative(name, getattr(self, name))
        for name in ("evaluations", "logging_steps"):
            positive(name, getattr(self, name))
        in_range("max_length", self.max_length, 8, 8192)
        in_range("start_batch_size", self.start_batch_size, 1, 4096)
        in_range("largest_batch_size", self.largest_batch_size, self.start_batch_size, 65536)
        in_range("window_examples", self.window_examples, 2 * self.start_batch_size, 1_000_000)
        in_range("repetitions", self.repetitions, 2, 100)  # one timing has no spread
        in_range("further_seeds", self.further_seeds, 0, 100)
        if not self.text.strip():
            raise ValueError("text='' is empty: give a text to classify")


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


def model_size(model) -> ModelSize:
    """Memory of an encoder: a layer keeps some 14 vectors of its width and 4 of its inner width a token."""
    config, weights = model.config, list(model.parameters())
    inner = getattr(config, "intermediate_size", None) or 4 * config.hidden_size
    return ModelSize(
        trainable=sum(weight.numel() for weight in weights if weight.requires_grad),
        frozen=sum(weight.numel() for weight in weights if not weight.requires_grad),
        activations=config.num_hidden_layers * (14 * config.hidden_size + 4 * inner),
    )
