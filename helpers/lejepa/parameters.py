"""Parameters of the LeJEPA notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator, model_validator

from helpers.data.data_source import ModelSource
from helpers.lejepa.data import MIN_ROWS, MSMARCO
from helpers.parameters import (
    MACHINE,
    SAMPLE,
    Parameters,
    Source,
    Text,
    expanded,
    in_range,
    parameter,
)
from helpers.plan.settings import Recipe

NOTEBOOK = "lejepa_training"
EMBEDDING_GEMMA = "google/embeddinggemma-300m"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MPNET = "sentence-transformers/all-mpnet-base-v2"
HELD_OUT = "held-out"
AUTO = "auto"
LEAST_BATCH = 2  # texts: LeJEPA compares at least two
EPOCHS, LONGEST_RECIPE = 3, 5_000  # passes over the texts; steps
SHORTER = (512, 256, 128)  # dimensions that an embedding may be cut to
VIEWS, EVALUATION, HEAD, LOSS = "Texts and views", "Evaluation and comparison", "Backbone and head", "Loss"


class EmbeddingParameters(Parameters):
    """What `lejepa_training` and its TPU twin are told."""

    data_source: Source = parameter(
        MSMARCO,
        "Hub data set, path of your own texts, or 'sample', documentation strings of Python, which need no network.",
    )
    base_model: ModelSource = parameter(
        AUTO,
        "Backbone: 'auto', hub id, local path, or 'sample' for a tiny random one.",
        suggestions=(AUTO, EMBEDDING_GEMMA, MINILM, MPNET, SAMPLE),
    )
    output_dir: str = parameter(
        "outputs/lejepa_training",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/lejepa_training_tpu",
    )
    query: Text = parameter(
        "how do I read a file line by line", "What the last cell searches the texts for.", identity=False
    )

    num_samples: int = parameter(
        20000,
        "Rows; 0 takes all of a file, 20,000 of a hub set.",
        group=VIEWS,
        low=0,
        suggestions=(2000, 5000, 20000, 50000, 500000),
    )
    documents: bool = parameter(False, "Train on crops of the documents even where the data are pairs.", group=VIEWS)
    crops: int = parameter(
        0, "Views cut out of each text; 0 cuts 2 out of a document, none out of a pair.", group=VIEWS, low=0, high=16
    )
    crop_min_share: float = parameter(
        0.05, "Words of a crop at least, as a share of the text's.", group=VIEWS, low=0.01, high=1.0
    )
    crop_max_share: float = parameter(0.3, "Words of a crop at most, as a share of the text's.", group=VIEWS, high=1.0)
    max_seq_length: int = parameter(256, "Tokens that the model reads.", group=VIEWS, low=8, high=8192)
    train_length: int = parameter(
        128, "Tokens that a view is cut to in training; 0 takes max_seq_length.", group=VIEWS, low=0
    )

    freeze_layers: int = parameter(
        3, "First layers of the backbone that stay as they are; -1 keeps all of it.", group=HEAD, low=-1, high=1000
    )
    output_dim: int = parameter(512, "Numbers of an embedding.", group=HEAD, low=2, high=4096)
    head_within: float = parameter(
        0.5,
        "How much the head damps directions in which views of one text differ.",
        group=HEAD,
        low=0.0,
        high=1.0,
    )
    head_power: float = parameter(
        0.0,  # chosen by the validation queries of docs/lejepa.md, from MiniLM
        "Whitening power of the head: 0 keeps the backbone's geometry, 1 whitens it.",
        group=HEAD,
        low=0.0,
        high=1.0,
    )
    head_shrinkage: float = parameter(
        0.1, "Share of the mean variance that is added to every direction before.", group=HEAD, low=0.0
    )
    head_learning_rate: float = parameter(
        0.0, "Of the head; 0 takes the backbone's times the recipe's factor.", group=HEAD, low=0.0
    )

    sigreg_weight: float = parameter(
        0.02, "Weight w of SIGReg, the paper's lambda: (1 - w) invariance + w SIGReg.", group=LOSS, low=0.0, high=1.0
    )
    num_slices: int = parameter(256, "Random directions of a step.", group=LOSS, low=1)
    t_max: float = parameter(3.0, "Last knot of the test's integral.", group=LOSS, above=0.0)
    n_points: int = parameter(17, "Knots of the integral, an odd number.", group=LOSS, low=3, high=1001)
    contrastive_weight: float = parameter(1.0, "Weight of the contrastive term.", group=LOSS, low=0.0)
    contrastive_scale: float = parameter(20.0, "Its inverse temperature.", group=LOSS, above=0.0)
    matryoshka: bool = parameter(
        True, "The contrastive term also of the first 512, 256 and 128 numbers, for `truncate_dim`.", group=LOSS
    )

    benchmark: str = parameter(
        HELD_OUT,
        "Folder in BEIR's layout to test on, or 'held-out' for the test rows of the data.",
        group=EVALUATION,
        identity=False,
    )
    compare_contrastive: bool = parameter(
        True,
        "Train the backbone with MultipleNegativesRankingLoss for as many steps beside it.",
        group=EVALUATION,
        identity=False,
    )
    patience: int = parameter(
        5, "Evaluations without improvement before the run stops; 0 never stops.", group=EVALUATION, low=0
    )
    eval_steps: int = parameter(
        100, "Optimizer steps between two evaluations.", group=EVALUATION, low=1, identity=False
    )
    save_steps: int = parameter(100, "Optimizer steps between two checkpoints.", group=MACHINE, low=1, identity=False)
    logging_steps: int = parameter(10, "Optimizer steps between two logs.", group=MACHINE, low=1, identity=False)

    @field_validator("benchmark")
    @classmethod
    def _is_a_benchmark(cls, value: str) -> str:
        if value == HELD_OUT:
            return value
        folder = expanded("benchmark", value)
        if not (folder / "corpus.jsonl").is_file():
            raise FileNotFoundError(
                f"benchmark={value!r}: no corpus.jsonl in {folder.resolve()}; "
                f"give a folder in BEIR's layout, or {HELD_OUT!r} for the test rows of the data"
            )
        return str(folder)

    @field_validator("n_points")
    @classmethod
    def _is_odd(cls, value: int) -> int:
        if value % 2 == 0:
            raise ValueError(f"n_points={value}: must be odd; 17 is usual")
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Any:
        if 0 < self.num_samples < MIN_ROWS:
            raise ValueError(f"num_samples={self.num_samples} is too few: give 0 (all) or at least {MIN_ROWS}")
        if self.train_length:
            in_range("train_length", self.train_length, 8, self.max_seq_length)
        in_range("crop_max_share", self.crop_max_share, self.crop_min_share, 1.0)
        if self.batch_size:
            in_range("batch_size", self.batch_size, LEAST_BATCH, 1_000_000)
        return self

    @property
    def view_length(self) -> int:
        """Tokens of a view in training."""
        return self.train_length or self.max_seq_length

    @property
    def shorter_dimensions(self) -> tuple[int, ...]:
        """Where an embedding may be cut off, below `output_dim`."""
        return tuple(size for size in SHORTER if size < self.output_dim)

    def columns(self, kind: str) -> int:
        """Columns that a training batch has, for "documents", "pairs" or "triplets"."""
        return {"documents": self.crops or 2, "pairs": 2 + self.crops, "triplets": 3 + self.crops}[kind]


def recipe(rows: int, columns: int, view_length: int) -> Recipe:
    """The recipe for so many rows of so many columns: three passes or 5,000 steps, what is less, but one pass at least."""
    batch_size = 32 if rows < 10_000 else 64
    return Recipe(
        batch_size=max(LEAST_BATCH, min(batch_size, rows)),
        learning_rate=2e-6,  # the backbone's; the head's is a hundred times that
        max_steps=max(1, rows // batch_size, min(LONGEST_RECIPE, EPOCHS * rows // batch_size)),
        sequence_length=columns * view_length,
        warmup_fraction=0.1,
        weight_decay=0.01,
    )
