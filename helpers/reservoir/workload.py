"""The recipe of the reservoir language model, and its training step for the planner."""

from __future__ import annotations

from typing import Any

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .parameters import HUB_TEXTS, ReservoirParameters

NOTEBOOK = "tinystories_reservoir"
TOKENS_A_TEXT = 220  # of TinyStories
VOCABULARY = 16_384  # entries for 150,000 stories
EPOCHS = 5  # passes; after them the dev loss of 2,000 stories hardly falls
LONGEST_RECIPE = 4000  # steps
SMALL_TEXT = 4_000_000  # tokens; a step on less text is small, so that five passes are enough steps


def recipe(sequence_length: int, train_tokens: int) -> Recipe:
    """The recipe for a text of this many tokens: five passes, at most 4,000 steps.

    A step has as many blocks as hold at most 2,048 tokens (8,192 for a text of four million tokens or more), rounded down
    to a multiple of 8, and at least 8.
    """
    tokens_a_step, learning_rate = (2048, 6e-3) if train_tokens < SMALL_TEXT else (8192, 3e-3)
    batch_size = max(8, tokens_a_step // sequence_length // 8 * 8)
    passes = EPOCHS * train_tokens // (batch_size * sequence_length)
    return Recipe(
        batch_size=batch_size,
        learning_rate=learning_rate,
        max_steps=min(LONGEST_RECIPE, max(1, passes)),
        sequence_length=sequence_length,
        weight_decay=0.1,
    )


def workload(model, length: int) -> Workload:
    """The step of a language model on blocks of `length` tokens."""
    import torch

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = torch.randint(0, model.config.vocab_size, (examples, length))
        return {"input_ids": ids, "labels": ids.clone()}

    def loss(model, inputs):
        return model(**inputs).loss

    of = {"model": model, "batch": batch, "loss": loss, "length": length}
    return Workload(notebook=NOTEBOOK, name=model.config.model_type, recurrent=True, **of)


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner.

    asked: `model` is the number of units, `examples` are texts.
    machine: has no effect.
    """
    from .model import ReservoirConfig, ReservoirForCausalLM

    default = ReservoirParameters.defaults()
    length = asked.length or default.sequence_length
    config = ReservoirConfig(vocab_size=VOCABULARY, units=int(asked.model or default.units))
    step = workload(ReservoirForCausalLM(config), length)
    return recipe(length, (asked.examples or HUB_TEXTS) * TOKENS_A_TEXT), step
