"""A training step as a room hands it to the planner, which knows no model; what a person asks of a room; and which rooms there are."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import TYPE_CHECKING, Any

from helpers.parameters import did_you_mean

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True, kw_only=True, eq=False)
class Workload:
    """One training step, as the notebook takes it."""

    notebook: str
    name: str  # what the model calls itself: a hub id, "80m", ...
    model: torch.nn.Module  # holds every weight, of the loss too; weights may be fake
    batch: Callable[[int, int], Any]  # (examples, tokens of a sequence) -> what `loss` takes, on the CPU
    loss: Callable[[torch.nn.Module, Any], torch.Tensor]  # (a copy of the model, a batch) -> scalar
    # As `loss`: the largest program that XLA is sent of a micro-batch, where a run cuts it into several; None: it is sent whole.
    program: Callable[[torch.nn.Module, Any], torch.Tensor] | None = None
    # What the run does with its model beside training and without gradients; None: nothing that takes more memory than a step.
    evaluation: Callable[[torch.nn.Module], Any] | None = None
    length: int  # tokens of a sequence
    least: int = 1  # examples of the smallest micro-batch
    parameters: int = 0  # of the model, where its tensors hold several in one number; 0: as many as they have numbers
    optimizer: str = "adamw"  # "paged_adamw_8bit", or "adafactor", which keeps no moments
    overflows_fp16: bool = False  # activations beyond its largest number, whatever the loss is scaled by
    recurrent: bool = False  # token after token, so that no datasheet bounds its time from above


@dataclass(frozen=True, kw_only=True)
class Asked:
    """What a person can ask of a room on the command line; "" and 0 are the notebook's defaults."""

    model: str = ""
    method: str = ""
    examples: int = 0
    length: int = 0
    batch_size: int = 0
    steps: int = 0


# The module of each notebook's room that has planned(asked, machine) -> (Recipe, Workload). It downloads nothing.
ROOMS = {
    "graphmer_se": "graphmer.workload",
    "hardware_tuning": "tuning.training",
    "legal_cot_sft": "legal.workload",
    "lejepa_training": "lejepa.workload",
    "tinystories_reservoir": "reservoir.workload",
}


def room(notebook: str) -> ModuleType:
    """The module of a notebook's room that plans it. Raises ValueError for an unknown notebook, naming those there are."""
    if notebook not in ROOMS:
        raise ValueError(f"notebook={notebook!r}: unknown; {did_you_mean(notebook, ROOMS)}there are {', '.join(ROOMS)}")
    return importlib.import_module(f"helpers.{ROOMS[notebook]}")
