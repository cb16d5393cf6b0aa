"""Parameters of the LeJEPA notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from helpers.lejepa.data import rows_wanted
from helpers.parameters import DATA_SUFFIXES, SAMPLE, Parameters, in_range, not_negative, one_of, positive, source_path
from helpers.plan import ModelSize, Recipe

HELD_OUT = "held-out"
LEAST_BATCH = 2  # texts: LeJEPA compares at least two
EPOCHS, LONGEST_RECIPE = 3, 5_000  # passes over the texts; steps


@dataclass(frozen=True, kw_only=True)
class EmbeddingParameters(Parameters):
    """What `lejepa_training` and its TPU twin are told."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"benchmark", "similarity", "compare_contrastive", "further_seeds", "logging_steps", "query"}
    )

    base_model: str  # hub id, local path, or "sample"
    num_samples: int  # rows; 0 = all of a file, 20,000 of a hub set
    documents: bool  # train on crops of the documents even where the data are pairs
    crops: int  # views cut out of each text; 0 = 2 of a document, none of a pair
    benchmark: str  # folder in BEIR's layout to test on, or "held-out" for the validation rows
    similarity: str  # CSV of sentence1, sentence2, score to test on; "" for none
    output_dim: int  # floats of an embedding
    max_seq_length: int  # tokens the model reads
    train_length: int  # tokens a view is cut to in training; 0 = max_seq_length
    crop_min_share: float  # words of a crop, as a share of the text's
    crop_max_share: float
    head_within: (
        float  # of the closed-form head: how much directions in which views of a text differ are damped, 0 to 1
    )
    head_power: float  # how much the others are evened out: 0 keeps the backbone's geometry, 1 whitens it
    head_shrinkage: float  # share of the mean variance added to every direction before
    freeze_layers: int  # first layers of the backbone left as they are; -1 = all of it
    head_learning_rate: float  # 0 = the backbone's times the recipe's factor
    sigreg_weight: float  # lambda
    convention: str  # how lambda enters, see helpers/lejepa/loss.py
    num_slices: int  # random directions a step
    t_max: float  # last knot of the test's integral
    n_points: int  # knots, odd
    past_texts: int  # earlier texts that SIGReg counts too: a small batch cannot see a missing rank
    contrastive_weight: float  # of the contrastive term
    contrastive_scale: float  # its inverse temperature
    compare_contrastive: bool  # train the same backbone with MultipleNegativesRankingLoss for as many steps beside it
    further_seeds: int  # both again with so many more seeds, for the spread
    patience: int  # evaluations without improvement before the run stops; 0 = never
    logging_steps: int
    eval_steps: int
    save_steps: int
    query: str  # what the last cell searches for

    def __post_init__(self):
        super().__post_init__()
        path = source_path("base_model", self.base_model)
        if path is not None and not path.is_dir():
            raise ValueError(
                f"base_model={self.base_model!r} is a file: give the folder of a model, a hub id or {SAMPLE!r}"
            )
        not_negative("num_samples", self.num_samples, "0 means all of a file, 20,000 of a hub set")
        rows_wanted(self.num_samples)
        self._check_files()
        in_range("output_dim", self.output_dim, 2, 4096)
        in_range("max_seq_length", self.max_seq_length, 8, 8192)
        if self.train_length:
            in_range("train_length", self.train_length, 8, self.max_seq_length)
        in_range("crops", self.crops, 0, 16)
        in_range("crop_min_share", self.crop_min_share, 0.01, 1.0)
        in_range("crop_max_share", self.crop_max_share, self.crop_min_share, 1.0)
        shares = ("head_within", "head_power", *(("sigreg_weight",) if self.convention == "convex" else ()))
        for name in shares:
            in_range(name, getattr(self, name), 0.0, 1.0)
        one_of("convention", self.convention, ("convex", "additive"))
        for name in ("head_shrinkage", "head_learning_rate", "sigreg_weight", "contrastive_weight", "patience"):
            not_negative(name, getattr(self, name))
        for name in ("contrastive_scale", "t_max", "num_slices", "logging_steps", "eval_steps", "save_steps"):
            positive(name, getattr(self, name))
        in_range("n_points", self.n_points, 3, 1001)
        if self.n_points % 2 == 0:
            raise ValueError(f"n_points={self.n_points}: must be odd; 17 is usual")
        in_range("freeze_layers", self.freeze_layers, -1, 1000)
        in_range("past_texts", self.past_texts, 0, 1_000_000)
        in_range("further_seeds", self.further_seeds, 0, 100)
        if self.batch_size:
            in_range("batch_size", self.batch_size, LEAST_BATCH, 1_000_000)
        if not self.query.strip():
            raise ValueError("query='' is empty: give a question to search the texts with")

    def _check_files(self) -> None:
        if self.benchmark != HELD_OUT:
            folder = Path(self.benchmark).expanduser()
            if not (folder / "corpus.jsonl").is_file():
                raise FileNotFoundError(
                    f"benchmark={self.benchmark!r}: no corpus.jsonl in {folder.resolve()}; "
                    f"give a folder in BEIR's layout, or {HELD_OUT!r} for the validation rows"
                )
            object.__setattr__(self, "benchmark", str(folder))
        if self.similarity:
            path = Path(self.similarity).expanduser()
            if not path.is_file():
                raise FileNotFoundError(
                    f"similarity={self.similarity!r}: nothing at {path.resolve()}; "
                    f"give a CSV (one of {', '.join(DATA_SUFFIXES)}) of sentence1, sentence2, score, or '' for none"
                )
            object.__setattr__(self, "similarity", str(path))

    @property
    def view_length(self) -> int:
        """Tokens of a view in training."""
        return self.train_length or self.max_seq_length

    def views(self, documents: bool) -> int:
        """Columns that a training batch has, for data that are documents or pairs."""
        return (self.crops or 2) if documents else 2 + self.crops


def recipe(rows: int, views: int, view_length: int) -> Recipe:
    """The recipe for so many rows of so many views: three passes, at most 5,000 steps. A token of any view counts.

    The rates are gentle on purpose: at 2e-5 a pretrained backbone forgets more than it learns (docs/lejepa.md).
    """
    batch_size = 32 if rows < 10_000 else 64
    return Recipe(
        batch_size=max(LEAST_BATCH, min(batch_size, rows)),
        learning_rate=2e-6,  # the backbone's; the head's is a hundred times that
        max_steps=min(LONGEST_RECIPE, max(1, EPOCHS * rows // batch_size)),
        sequence_length=views * view_length,
        warmup_fraction=0.1,
        weight_decay=0.01,
    )


def model_size(model) -> ModelSize:
    """Memory of an encoder: what it trains, what it freezes, and what backward keeps a token.

    A layer keeps some 14 vectors of its width H and 4 of its inner width (norms, q, k, v, attention, both products).
    """
    config = model.transformers_model.config
    weights = list(model.parameters())
    return ModelSize(
        trainable=sum(weight.numel() for weight in weights if weight.requires_grad),
        frozen=sum(weight.numel() for weight in weights if not weight.requires_grad),
        activations=config.num_hidden_layers * (14 * config.hidden_size + 4 * config.intermediate_size),
    )
