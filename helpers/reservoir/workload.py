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
ROWS, BLOCK = 8, 64  # of a memory that is trained through time
LONGEST_RECIPE = 1_400  # steps: a minute of one core
PASSES = 6  # over a small text
# A run is a thousand steps: 0.999 would average over most of it. Not 0.99, whose sqrt(1 - 0.99) equals 1 - 0.9 (beta1) in the
# first step: equal numbers are one input of a graph on XLA, which would compile the second step anew.
ADAM_BETA2 = 0.991


def recipe(memory: str, train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: six passes, at most 1,400 steps of 256 tokens, whatever the memory."""
    drawn = min(LONGEST_RECIPE * TOKENS_A_STEP, PASSES * train_tokens)
    about = {"learning_rate": 2e-3, "weight_decay": 0.1}
    if memory == "gru":
        # The memory goes on from batch to batch, so that a batch is neither cut into smaller ones nor larger on a TPU.
        about |= {"micro_batch_size": ROWS, "tpu_batch_factor": 1, "tpu_learning_rate_factor": 1.0}
        return Recipe(batch_size=ROWS, sequence_length=BLOCK, max_steps=max(1, round(drawn / (ROWS * BLOCK))), **about)
    return Recipe(batch_size=TOKENS_A_STEP, sequence_length=1, max_steps=max(1, round(drawn / TOKENS_A_STEP)), **about)


def workload(model, length: int) -> Workload:
    """The step of a language model: drawn tokens, or blocks of `length` tokens for a memory that is trained."""
    import torch

    config = model.config

    def batch(examples: int, length: int) -> dict[str, Any]:
        shape = (examples,) if config.memory == "reservoir" else (examples, length)
        ids = torch.randint(0, config.vocab_size, shape)
        inputs = {
            "input_ids": ids,
            "windows": torch.zeros(*shape, config.window, dtype=torch.long),
            "counted": torch.full((*shape, config.vocab_size), 1 / config.vocab_size),
            "totals": torch.zeros(*shape, config.context_lengths),
            "labels": ids.clone(),
        }
        if config.memory == "reservoir":
            inputs |= {"states": torch.zeros(*shape, config.units), "weights": torch.ones(shape)}
        return inputs

    def loss(model, inputs):
        return model(**inputs).loss

    of = {"model": model, "batch": batch, "loss": loss, "length": length}
    return Workload(notebook=NOTEBOOK, name=config.model_type, recurrent=True, **of)


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner.

    asked: `model` is the number of units, `method` the memory, `examples` are texts.
    machine: has no effect.
    """
    from .model import ReservoirConfig, ReservoirForCausalLM

    default = ReservoirParameters.defaults()
    memory, units = asked.method or default.memory, int(asked.model or default.units)
    config = ReservoirConfig(vocab_size=VOCABULARY, memory=memory, units=units, unit_blocks=units // UNITS_OF_A_BLOCK)
    settings = recipe(memory, (asked.examples or HUB_TEXTS) * TOKENS_A_TEXT)
    return settings, workload(ReservoirForCausalLM(config), settings.sequence_length)
