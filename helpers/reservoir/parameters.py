"""Parameters of the TinyStories notebooks."""

from __future__ import annotations

from typing import Any

from pydantic import model_validator

from helpers.parameters import MACHINE, Parameters, Source, Text, in_range, parameter

MIN_TEXTS = 30
HUB_TEXTS = 150_000  # about the tokens of the longest recipe; more would be tokenised and never read
MODEL = "Model"


class ReservoirParameters(Parameters):
    """What `tinystories_reservoir` and its TPU twin are told."""

    data_source: Source = parameter(
        "roneneldan/TinyStories",
        "Hub data set; path to your own `.txt`, `.jsonl` or `.parquet`; or 'sample', which needs no network.",
    )
    output_dir: str = parameter(
        "outputs/tinystories_reservoir",
        "Folder for checkpoints, results and the trained model.",
        identity=False,
        tpu="outputs/tinystories_reservoir_tpu",
    )
    num_texts: int = parameter(
        0, "Texts to use; 0 takes 150,000 of a hub data set, and all texts of a file or of the sample.", low=0
    )
    prompt: Text = parameter("Once upon a time", "First words of the text that the model continues.", identity=False)

    vocab_size: int = parameter(
        0,
        "Size of the tokeniser's vocabulary; 0 chooses it from the size of the text.",
        group=MODEL,
        low=0,
        high=1_000_000,
    )
    sequence_length: int = parameter(128, "Tokens in one block of training text.", group=MODEL, low=8, high=4096)
    units: int = parameter(3072, "Units of the frozen network, a multiple of 24.", group=MODEL, low=24, high=1_000_000)
    leak: float = parameter(
        0.5,
        "Leak rate: the share of each unit's state that a new token replaces; with 1 only the recurrent weights remember.",
        group=MODEL,
        above=0.0,
        high=1.0,
    )
    dropout: float = parameter(
        0.1,
        "Share of the features, and of the updates within the readout, that are left out at random in training.",
        group=MODEL,
        low=0.0,
        high=0.9,
    )
    compare_transformer: bool = parameter(
        True, "Also train a Llama with as many weights, for comparison.", group=MACHINE, identity=False
    )
    eval_steps: int = parameter(
        100,
        "Optimizer steps between two evaluations, each with a checkpoint.",
        group=MACHINE,
        low=1,
        identity=False,
    )

    @model_validator(mode="after")
    def _fits_together(self) -> Any:
        if self.num_texts:
            in_range("num_texts", self.num_texts, MIN_TEXTS, 10**9)
        if self.units % 24:
            raise ValueError(
                f"units={self.units}: must be a multiple of 24, the blocks of the network; 3072 is the default"
            )
        return self
