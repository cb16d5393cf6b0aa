"""The reservoir language model's training step, for the planner."""

from __future__ import annotations

import functools
from typing import Any

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .parameters import HUB_STORIES, ReservoirParameters, recipe

NOTEBOOK = "tinystories_reservoir"
TOKENS_A_STORY = 220  # of TinyStories in GPT-2's tokens
VOCABULARY = 16_384  # entries of GPT-2's that 150,000 stories use, about


def workload(model, name: str, length: int) -> Workload:
    """The step of a language model on blocks of `length` tokens."""
    import torch

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = torch.randint(0, model.config.vocab_size, (examples, length))
        return {"input_ids": ids, "labels": ids.clone()}

    def loss(model, inputs):
        return model(**inputs).loss

    return Workload(notebook=NOTEBOOK, name=name, model=model, batch=batch, loss=loss, length=length, recurrent=True)


def planned(asked: Asked, machine: Runtime, *, weights: bool = False) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner.

    asked: `model` is the number of units, `examples` are stories.
    machine, weights: have no effect here: the weights are few, and always made.
    """
    default = ReservoirParameters.defaults()
    length, units = asked.length or default.sequence_length, int(asked.model or default.units)
    tokens = (asked.examples or HUB_STORIES) * TOKENS_A_STORY
    return recipe(length, tokens), _step(units, length)


@functools.lru_cache(maxsize=4)
def _step(units: int, length: int) -> Workload:
    import torch

    from .model import ReservoirConfig, ReservoirForCausalLM

    taken = ReservoirParameters.defaults().architecture | {"units": units}
    config = ReservoirConfig(vocab_size=VOCABULARY, **taken)
    model = ReservoirForCausalLM.initialise(config, torch.randn(VOCABULARY, config.input_codes))
    return workload(model, f"{units} units", length)
