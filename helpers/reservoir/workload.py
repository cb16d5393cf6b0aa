"""The recipe of the reservoir language model, and its training step for the planner."""

from __future__ import annotations

from typing import Any

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .parameters import HUB_TEXTS, UNITS_OF_A_BLOCK, ReservoirParameters

NOTEBOOK = "tinystories_reservoir"
TOKENS_A_TEXT = 220  # of TinyStories
VOCABULARY = 4_608  # entries for 10,000 stories
TOKENS_A_STEP = 256  # drawn one by one
LONGEST_RECIPE = 1_400  # steps: a minute of one core
PASSES = 3  # over a small text: with twice as many the dev loss of the sample rises
# A run is a thousand steps: 0.999 would average over most of it. Not 0.99, whose sqrt(1 - 0.99) equals 1 - 0.9 (beta1) in the
# first step: equal numbers are one input of a graph on XLA, which would compile the second step anew.
ADAM_BETA2 = 0.991


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


def workload(model, length: int) -> Workload:
    """The step of a language model, which learns from drawn tokens."""
    import torch

    config = model.config

    def batch(examples: int, length: int) -> dict[str, Any]:
        widths = {"counted": config.vocab_size, "totals": config.context_lengths, "states": config.units}
        ids = torch.randint(0, config.vocab_size, (examples,))
        inputs = {name: torch.ones(examples, width) for name, width in widths.items()}
        windows = ids[..., None].repeat_interleave(config.window, -1)
        return inputs | {"input_ids": ids, "labels": ids.clone(), "windows": windows}

    def loss(model, inputs):
        return model(**inputs).loss

    of = {"model": model, "batch": batch, "loss": loss, "length": length}
    return Workload(notebook=NOTEBOOK, name=config.model_type, recurrent=True, **of)


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner.

    asked: `model` is the number of units, `examples` are texts.
    machine: has no effect.
    """
    from .model import ReservoirConfig, ReservoirForCausalLM

    default = ReservoirParameters.defaults()
    units = int(asked.model or default.units)
    config = ReservoirConfig(vocab_size=VOCABULARY, units=units, unit_blocks=units // UNITS_OF_A_BLOCK)
    settings = recipe((asked.examples or HUB_TEXTS) * TOKENS_A_TEXT)
    return settings, workload(ReservoirForCausalLM(config), settings.sequence_length)
