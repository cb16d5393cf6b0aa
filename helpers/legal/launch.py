"""The plan of a run, and the processes that it trains in."""

import contextlib
import json
import os
from pathlib import Path
from typing import Any

import torch

import helpers
from helpers.batch import processes
from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.plan import settings
from helpers.plan.settings import Plan
from helpers.run import disk

from .packing import BLOCK, FixedBlocks, count_blocks, summed_loss
from .parameters import LegalParameters, recipe

# What processes that a notebook starts run, and what they measured.
CELLS_FILE, MEASURED_FILE = "cells.json", "measured.json"


def make_plan(model, rows, length: int, params: LegalParameters, machine: Runtime) -> tuple[Plan, int]:
    """Settings of a run, and the tokens of a block, which short records share. length: tokens of the longest record.

    Raises as `plan` does.
    """
    block = length
    if not params.max_length:
        block = max(length, BLOCK)  # into short blocks little fits beside another
    blocks = count_blocks(rows["train"]["tokens"], block)
    width = model.config.get_text_config().hidden_size
    plan = settings.plan(
        recipe(blocks, block, params.method, width, machine.device_count),
        model,
        step_loss,
        lambda examples: blank_blocks(block, examples),
        machine,
        **params.model_dump(include={"batch_size", "learning_rate", "max_steps", "gradient_checkpointing"}),
    )
    return plan, block


def blank_blocks(length: int, examples: int) -> dict[str, torch.Tensor]:
    """Blocks of one record each, whose tokens mean nothing."""
    ids = [1] * length
    return FixedBlocks(length, pad_token_id=0)([{"input_ids": ids, "labels": ids}] * examples)


def step_loss(model, blocks: dict[str, torch.Tensor]) -> torch.Tensor:
    """`summed_loss` for the plan: bitsandbytes makes a frozen matrix whole for each product, where one of 16 bits stands here."""
    for layer in [*model.modules()]:
        quantised: Any = getattr(layer, "base_layer", None)
        if hasattr(quantised, "compute_dtype"):
            sizes = quantised.in_features, quantised.out_features, quantised.bias is not None
            layer.base_layer = torch.nn.Linear(*sizes, dtype=quantised.compute_dtype).requires_grad_(False)
    return summed_loss(model, blocks)


def train(trainer, params: LegalParameters) -> dict[str, Any]:
    """Trains, here or in as many processes as the machine counts GPUs, and returns what was measured (`trainer.results`).

    For several processes the code of the cells that begin with `# In every process:` is written to `cells.json` in the folder of
    the run, as it ran last. Each process runs it and takes its share of every batch. `trainer` then has the weights of the best
    evaluation as if it had trained itself.
    """
    count, folder = trainer.runtime.device_count, Path(trainer.args.output_dir)
    if trainer.runtime.kind == "xla" or count == ranks.count():
        trainer.train(resume_from_checkpoint=params.resume)
        if ranks.is_main():
            disk.write_json(folder / MEASURED_FILE, trainer.results())
        return trainer.results()
    trainer.model.to("cpu")  # the first process needs the memory
    torch.cuda.empty_cache()
    from IPython import get_ipython

    code = processes.marked_cells(get_ipython().history_manager.input_hist_raw)
    cells = {"shown": helpers.shown, "payload": helpers.payload_sha256, "code": code}
    disk.write_json(folder / CELLS_FILE, cells)
    processes.call(f"{__name__}:run_cells", {"file": str(folder / CELLS_FILE)}, count)
    trainer.model.to(trainer.args.device)
    trainer.train(resume_from_checkpoint=True)
    return json.loads((folder / MEASURED_FILE).read_text(encoding="utf-8"))


def run_cells(file: str) -> None:
    """What each process does that `train` starts. What the cells above the last one print was shown before."""
    cells = json.loads(Path(file).read_text(encoding="utf-8"))
    helpers.shown, helpers.payload_sha256 = cells["shown"], cells["payload"]
    *above, last = cells["code"]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        list(processes.run_cells(above))
    list(processes.run_cells([last]))
