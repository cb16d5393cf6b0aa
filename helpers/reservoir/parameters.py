"""Parameters of the TinyStories notebooks, and the recipe behind their zeros."""

from typing import Any

from pydantic import model_validator

from helpers.parameters import MACHINE, NO_NETWORK, Parameters, Source, parameter
from helpers.plan.settings import Recipe

HUB_TEXTS = 10_000  # of a hub data set; counting reads them all, and takes most of a minute for ten times as many
UNITS_OF_A_BLOCK = 128
MODEL = "Model"
TOKENS_A_STEP = 256  # drawn one by one
LONGEST_RECIPE = 1_400  # steps: a minute of one core
PASSES = 3  # over a small text: with twice as many the dev loss of the sample rises
# A run is a thousand steps: 0.999 would average over most of it. Not 0.99, whose sqrt(1 - 0.99) equals 1 - 0.9 (beta1) in the
# first step: equal numbers are one input of a graph on XLA, which would compile the second step anew.
ADAM_BETA2 = 0.991


class ReservoirParameters(Parameters):
    """What `tinystories_reservoir` and its TPU twin are told."""

    data_source: Source = parameter(
        "roneneldan/TinyStories",
        "Hub data set; your own text (`.txt`, `.md`), table (`.jsonl`, `.csv`, `.parquet`) or folder; or 'sample'. "
        f"{NO_NETWORK}",
    )
    output_dir: str = parameter(
        "outputs/tinystories_reservoir",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/tinystories_reservoir_tpu",
    )
    num_texts: int = parameter(
        0,
        f"Texts to use; 0 takes {HUB_TEXTS:,} of a hub data set, and all texts of a file or of the sample.",
        low=0,
    )
    prompt: str = parameter(
        "", "First words of the text that the model continues; empty takes those of a dev text.", identity=False
    )

    vocab_size: int = parameter(
        0,
        "Size of the tokeniser's vocabulary; 0 chooses it from the size of the text.",
        group=MODEL,
        low=0,
        high=1_000_000,
    )
    units: int = parameter(
        1024,
        f"Units of the reservoir, a multiple of {UNITS_OF_A_BLOCK}.",
        group=MODEL,
        low=UNITS_OF_A_BLOCK,
        high=1_000_000,
    )
    eval_steps: int = parameter(
        500,
        "Optimizer steps between two evaluations, each with a checkpoint.",
        group=MACHINE,
        low=1,
        identity=False,
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Any:
        if self.units % UNITS_OF_A_BLOCK:
            raise ValueError(
                f"units={self.units}: must be a multiple of {UNITS_OF_A_BLOCK}, the units of a block; 1024 is the default"
            )
        return self


def recipe(train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: three passes, at most 1,400 steps of 256 tokens."""
    drawn = min(LONGEST_RECIPE * TOKENS_A_STEP, PASSES * train_tokens)
    return Recipe(
        batch_size=TOKENS_A_STEP,
        learning_rate=2e-3,
        max_steps=max(1, drawn // TOKENS_A_STEP),
        sequence_length=1,
        weight_decay=0.1,
    )
