"""Parameters of the TinyStories notebooks, and the recipe behind their zeros."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from helpers.parameters import SAMPLE, Parameters, in_range, positive, source_path
from helpers.plan import ModelSize, Recipe
from helpers.reservoir.stories import MIN_STORIES

EPOCHS = 6  # passes; the validation loss of 2,000 stories hardly moves after
LONGEST_RECIPE = 4000  # steps
LARGEST_RESERVOIR = 8192  # units; time to find the spectral radius grows with their cube: 3 s for 2,048 on one core
HUB_STORIES = 150_000  # about the tokens of the longest recipe; more would be tokenised and never read


@dataclass(frozen=True, kw_only=True)
class ReservoirParameters(Parameters):
    """What `tinystories_reservoir` and its TPU twin are told."""

    not_identity: ClassVar[frozenset[str]] = frozenset(
        {"prompt", "max_new_tokens", "temperature", "top_k", "top_p", "logging_steps"}
    )

    tokenizer: str  # "gpt2" (else trained on the data), "train", a hub id or a path
    vocab_size: int  # entries of a trained tokeniser
    num_stories: int  # 0 = the recipe's: 150,000 of a hub set, all of a local file, 4,000 of the sample
    sequence_length: int  # tokens a block
    reservoir_size: int  # frozen units
    readout_size: int  # trained hidden units
    spectral_radius: float
    leak: float
    input_scaling: float
    density: float
    dropout: float
    logging_steps: int
    eval_steps: int
    save_steps: int
    prompt: str
    max_new_tokens: int
    temperature: float
    top_k: int
    top_p: float

    def __post_init__(self):
        super().__post_init__()
        if self.tokenizer == SAMPLE:
            raise ValueError("tokenizer='sample' is unknown: 'train' makes one from the stories")
        if self.tokenizer not in ("gpt2", "train"):
            source_path("tokenizer", self.tokenizer)
        in_range("vocab_size", self.vocab_size, 257, 1_000_000)
        if self.num_stories:
            in_range("num_stories", self.num_stories, MIN_STORIES, 10**9)
        in_range("sequence_length", self.sequence_length, 8, 4096)
        in_range("reservoir_size", self.reservoir_size, 1, LARGEST_RESERVOIR)
        for name in ("readout_size", "logging_steps", "eval_steps", "save_steps", "max_new_tokens"):
            positive(name, getattr(self, name))
        in_range("spectral_radius", self.spectral_radius, 0.0, 10.0)
        in_range("leak", self.leak, 0.001, 1.0)
        positive("input_scaling", self.input_scaling)
        in_range("density", self.density, 0.001, 1.0)
        in_range("dropout", self.dropout, 0.0, 0.9)
        in_range("temperature", self.temperature, 0.01, 100.0)
        in_range("top_k", self.top_k, 0, 1_000_000)
        in_range("top_p", self.top_p, 0.01, 1.0)
        if not self.prompt:
            raise ValueError("prompt='' is empty: give the first words of a story")

    @property
    def stories_wanted(self) -> int:
        """`num_stories`, or the recipe's count where that is 0 (0 again: all there are)."""
        from_hub = self.data_source != SAMPLE and source_path("data_source", self.data_source) is None
        return self.num_stories or (HUB_STORIES if from_hub else 0)


def recipe(sequence_length: int, train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: six passes, at most 4,000 steps.

    A step has the multiple of 8 blocks that is next below 8,192 tokens, and 8 where they are too long for that.
    """
    batch_size = max(8, 8192 // sequence_length // 8 * 8)
    passes = EPOCHS * train_tokens // (batch_size * sequence_length)
    return Recipe(
        batch_size=batch_size,
        learning_rate=3e-3,
        max_steps=min(LONGEST_RECIPE, max(1, passes)),
        sequence_length=sequence_length,
    )


def model_size(vocab_size: int, reservoir_size: int, readout_size: int) -> ModelSize:
    """Memory of `ReservoirForCausalLM`: what it trains, what it freezes, and what backward keeps a token."""
    N, R, V = reservoir_size, readout_size, vocab_size
    return ModelSize(
        trainable=2 * N + N * R + R + R * V + V,
        frozen=N * N + V * N + N,
        activations=4 * N + 4 * R,  # drive, states, their transpose, the norm's output; hidden, GELU, dropout mask
        vocab_size=V,
    )
