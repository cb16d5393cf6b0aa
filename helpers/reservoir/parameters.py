"""Parameters of the TinyStories notebooks."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from helpers.parameters import MACHINE, NO_NETWORK, Parameters, Source, in_range, parameter

MIN_TEXTS = 20
HUB_TEXTS = 10_000  # of a hub data set; counting reads them all, and takes most of a minute for ten times as many
UNITS_OF_A_BLOCK = 128
MODEL = "Model"


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
        if self.num_texts:
            in_range("num_texts", self.num_texts, MIN_TEXTS, 10**9)
        if self.units % UNITS_OF_A_BLOCK:
            raise ValueError(
                f"units={self.units}: must be a multiple of {UNITS_OF_A_BLOCK}, the units of a block; 1024 is the default"
            )
        return self
