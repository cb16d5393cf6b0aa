"""Parameters of the TinyStories notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from typing import Any

from pydantic import field_validator, model_validator

from helpers.parameters import MACHINE, SAMPLE, UPLOAD, Parameters, Source, Text, in_range, parameter, source_path
from helpers.plan.settings import Recipe
from helpers.reservoir.stories import MIN_STORIES

TRANSFORMER_RATE = 1.5e-3  # of a Llama: what the dev stories of benchmarks/reservoir_study.py preferred among three
EPOCHS = 5  # passes; the validation loss of 2,000 stories hardly moves after
LONGEST_RECIPE = 4000  # steps
SMALL_TEXT = 4_000_000  # tokens; below it steps are small, so that a few passes are enough steps
HUB_STORIES = 150_000  # about the tokens of the longest recipe; more would be tokenised and never read
TEXT, RESERVOIRS, READOUT = "Text and tokens", "Reservoirs (frozen)", "Readout (trained)"
COMPARISON, STORIES = "Comparison and evaluation", "Stories that are told"


class ReservoirParameters(Parameters):
    """What `tinystories_reservoir` and its TPU twin are told."""

    data_source: Source = parameter(
        "roneneldan/TinyStories",
        "Hub data set; path to your own `.txt` (stories separated by `<|endoftext|>` or blank lines), `.jsonl` or `.parquet`; "
        "or 'sample', which needs no network.",
    )
    output_dir: str = parameter(
        "outputs/tinystories_reservoir",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/tinystories_reservoir_tpu",
    )
    num_stories: int = parameter(
        0, "Stories to use; 0 takes 150,000 of a hub set, all of a local file, 4,000 of the sample.", low=0
    )
    prompt: Text = parameter("Once upon a time", "First words of the stories that are told.", identity=False)

    tokenizer: str = parameter(
        "gpt2", "'gpt2' (without the hub: trained on the data), 'train', a hub id or a path.", group=TEXT
    )
    trim_vocabulary: bool = parameter(
        True, "Leave out of a ready-made tokenizer what the stories never use.", group=TEXT
    )
    vocab_size: int = parameter(4096, "Entries of a tokenizer that is trained.", group=TEXT, low=257, high=1_000_000)
    sequence_length: int = parameter(128, "Tokens of a block.", group=TEXT, low=8, high=4096)

    units: int = parameter(3072, "Units of the frozen network.", group=RESERVOIRS, low=1, high=1_000_000)
    unit_blocks: int = parameter(
        24, "Blocks of the frozen network; a step gets so many times cheaper.", group=RESERVOIRS, low=1, high=1_000_000
    )
    leak: float = parameter(
        0.5,
        "Share of a unit that each token renews; 1 keeps nothing but through W.",
        group=RESERVOIRS,
        above=0.0,
        high=1.0,
    )
    input_codes: int = parameter(
        256,
        "Size of a token's co-occurrence embedding.",
        group=RESERVOIRS,
        low=1,
        high=4096,
    )
    recall_tokens: int = parameter(128, "Last tokens that may be proposed again.", group=RESERVOIRS, low=4, high=4096)
    token_dropout: float = parameter(
        0.15, "Share of the tokens that the reservoirs do not see in training.", group=RESERVOIRS, low=0.0, high=0.9
    )

    embedding_size: int = parameter(256, "Trained numbers of a token.", group=READOUT, low=1)
    readout_blocks: int = parameter(3, "Blocks of the readout; 0 makes it linear.", group=READOUT, low=0, high=4096)
    readout_size: int = parameter(688, "Hidden units of a block.", group=READOUT, low=1)
    tie_embeddings: bool = parameter(True, "The weights of the head are those of the embedding.", group=READOUT)
    dropout: float = parameter(0.1, "Of the features and of each block's update.", group=READOUT, low=0.0, high=0.9)

    compare_transformer: bool = parameter(
        True, "Train a transformer of as many weights beside it.", group=COMPARISON, identity=False
    )
    further_seeds: int = parameter(
        0, "So many more seeds of both models, for the spread.", group=COMPARISON, low=0, high=4096, identity=False
    )
    patience: int = parameter(
        5, "Evaluations without improvement before the run stops; 0 never stops.", group=COMPARISON, low=0, high=4096
    )
    eval_steps: int = parameter(
        100, "Optimizer steps between two evaluations.", group=COMPARISON, low=1, identity=False
    )
    save_steps: int = parameter(100, "Optimizer steps between two checkpoints.", group=MACHINE, low=1, identity=False)
    logging_steps: int = parameter(10, "Optimizer steps between two logs.", group=MACHINE, low=1, identity=False)

    max_new_tokens: int = parameter(120, "Tokens of a story.", group=STORIES, low=1, identity=False)
    temperature: float = parameter(
        0.8, "Below 1 likelier words, above 1 wilder ones.", group=STORIES, low=0.01, high=100.0, identity=False
    )
    top_k: int = parameter(
        50, "Only the so many likeliest tokens; 0 takes all.", group=STORIES, low=0, high=1_000_000, identity=False
    )
    top_p: float = parameter(
        0.95, "Only the likeliest tokens of so much probability.", group=STORIES, low=0.01, high=1.0, identity=False
    )

    @field_validator("tokenizer")
    @classmethod
    def _is_a_tokenizer(cls, value: str) -> str:
        if value == SAMPLE:
            raise ValueError("tokenizer='sample' is unknown: 'train' makes one from the stories")
        if value not in ("gpt2", "train"):
            source_path("tokenizer", value)
        return value

    @model_validator(mode="after")
    def _fits_together(self) -> Any:
        if self.units % self.unit_blocks:
            raise ValueError(f"unit_blocks={self.unit_blocks}: must divide units={self.units}")
        if self.num_stories:
            in_range("num_stories", self.num_stories, MIN_STORIES, 10**9)
        return self

    @property
    def stories_wanted(self) -> int:
        """`num_stories`, or the recipe's count where that is 0 (0 again: all there are)."""
        from_hub = self.data_source not in (SAMPLE, UPLOAD) and source_path("data_source", self.data_source) is None
        return self.num_stories or (HUB_STORIES if from_hub else 0)

    @property
    def architecture(self) -> dict[str, Any]:
        """What of them the model's configuration takes over."""
        readout = {"embedding_size", "readout_blocks", "readout_size", "dropout", "units", "unit_blocks", "leak"}
        taken = self.model_dump(include=readout | {"input_codes", "recall_tokens", "token_dropout"})
        return taken | {"reservoir_seed": self.seed, "tie_word_embeddings": self.tie_embeddings}


def recipe(sequence_length: int, train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: five passes, at most 4,000 steps.

    A step has the multiple of 8 blocks that is next below 2,048 tokens (8,192 from four million tokens on), and 8 where
    they are too long for that.
    """
    tokens_a_step = 2048 if train_tokens < SMALL_TEXT else 8192
    batch_size = max(8, tokens_a_step // sequence_length // 8 * 8)
    passes = EPOCHS * train_tokens // (batch_size * sequence_length)
    return Recipe(
        batch_size=batch_size,
        learning_rate=3e-3,
        max_steps=min(LONGEST_RECIPE, max(1, passes)),
        sequence_length=sequence_length,
        weight_decay=0.1,
    )
