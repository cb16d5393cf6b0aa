"""The recipe of the reservoir language model, and its training step for the planner."""

from __future__ import annotations

from dataclasses import replace
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
PASSES = 3  # over a small text: with twice as many the dev loss of the sample rises
# A run is a thousand steps: 0.999 would average over most of it. Not 0.99, whose sqrt(1 - 0.99) equals 1 - 0.9 (beta1) in the
# first step: equal numbers are one input of a graph on XLA, which would compile the second step anew.
ADAM_BETA2 = 0.991


def recipe(memory: str, train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: three passes, at most 1,400 steps of 256 tokens, whatever the memory."""
    examples, length = TOKENS_A_STEP, 1
    if memory == "gru":
        examples, length = ROWS, BLOCK
    drawn = min(LONGEST_RECIPE * TOKENS_A_STEP, PASSES * train_tokens)
    of_tokens = Recipe(
        batch_size=examples,
        learning_rate=2e-3,
        max_steps=max(1, drawn // (examples * length)),
        sequence_length=length,
        weight_decay=0.1,
    )
    if memory != "gru":
        return of_tokens
    # The memory goes on from batch to batch, so that a batch is neither cut into smaller ones nor larger on a TPU.
    return replace(
        of_tokens,
        micro_batch_size=ROWS,
        clips_micro_batch=True,
        tpu_batch_factor=1,
        tpu_learning_rate_factor=1.0,
    )


def workload(model, length: int) -> Workload:
    """The step of a language model: drawn tokens, or blocks of `length` tokens for a memory that is trained."""
    import torch

    config = model.config

    def batch(examples: int, length: int) -> dict[str, Any]:
        shape: tuple[int, ...] = (examples, length)
        widths = {"counted": config.vocab_size, "totals": config.context_lengths}
        if config.memory == "reservoir":
            shape = (examples,)
            widths["states"] = config.units
        ids = torch.randint(0, config.vocab_size, shape)
        inputs = {name: torch.ones(*shape, width) for name, width in widths.items()}
        windows = ids[..., None].repeat_interleave(config.window, -1)
        return inputs | {"input_ids": ids, "labels": ids.clone(), "windows": windows}

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
