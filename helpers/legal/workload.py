"""A training step as the planner counts it: of this run, or of what its command line asks for."""

from __future__ import annotations

import contextlib
import copy
import functools
import json
import os
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

import helpers
from helpers.batch import processes
from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.plan import settings as planner
from helpers.plan.settings import DoesNotFit, Plan, Recipe
from helpers.plan.workloads import Asked, Workload
from helpers.run import disk

from . import sample
from .data import Records
from .evaluation import ask_the_most, most_tokens
from .export import refuse_merged
from .model import NO_TPU, QWEN, apply_lora, frozen_dtype
from .packing import BLOCK, FixedBlocks, count_blocks, summed_loss
from .parameters import NOTEBOOK, LegalParameters, recipe
from .training import IGNORED, LegalTrainer

BLOCKS_A_RECORD = 0.12  # of 1,000 tokens, of the sample, a fifth of which is held out
BITS = 4.127  # a weight in NF4 with double quantisation (Dettmers et al. 2023, section 3)
CELLS_FILE, MEASURED_FILE = (
    "cells.json",
    "measured.json",
)  # what processes that a notebook starts run, and what they measured
QWEN_HALF_B = {  # Qwen/Qwen2.5-0.5B-Instruct config.json
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def planned(asked: Asked, machine: Runtime) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner; its model is on the device "meta" and takes no memory.

    asked: `model` is a hub id or a path, `method` as of LegalParameters, `examples` are records, `length` is in tokens of a block.
    machine: its precision is that of the frozen weights, and its devices share the batch.

    Raises ValueError for an unknown method, and DoesNotFit for 4 bits on a TPU.
    """
    default = LegalParameters.defaults()
    name, length = asked.model or default.base_model, asked.length or BLOCK
    method = LegalParameters(method=asked.method or default.method).method  # type: ignore[arg-type]  # which it checks
    if method == "qlora" and machine.kind == "xla":
        raise DoesNotFit(NO_TPU)
    step = _step(name, method, machine.precision, length)
    blocks = max(1, round((asked.examples or sample.RECORDS) * BLOCKS_A_RECORD * 1_000 / length))
    width = step.model.config.get_text_config().hidden_size
    return recipe(blocks, length, method, width, machine.device_count), step


@functools.lru_cache(maxsize=4)
def _step(name: str, method: str, precision: str, length: int) -> Workload:
    default = LegalParameters.defaults()
    config = Qwen2Config(**QWEN_HALF_B) if name == QWEN else AutoConfig.from_pretrained(name, trust_remote_code=False)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=frozen_dtype(method, precision))
        if method != "full":
            model = apply_lora(model, default.lora_rank)
    return workload(model, name, length, method)


def plan_of(
    model, rows, records: Records, length: int, params: LegalParameters, machine: Runtime
) -> tuple[Plan, Workload, int]:
    """What will run and why, the step that it was counted on, and the tokens of a block, which short records share."""
    block = length
    if not params.max_length:
        block = max(length, BLOCK)  # into short blocks little fits beside another
    answers = [len(labels) - labels.count(IGNORED) for labels in rows["test"]["labels"]]
    train_lengths = [len(ids) for ids in rows["train"]["input_ids"]]
    test_lengths = [len(ids) for ids in rows["test"]["input_ids"]]
    choices = len(records.choices), 1 + max(map(len, records.choices), default=0)  # a token has a letter at least
    if machine.kind == "xla":
        choices = 0, 0  # the host gives the likelihood of labels
    longest = {"prompt": max(train_lengths + test_lengths), "answer": most_tokens(answers), "choices": choices}
    step = workload(model, params.base_model, block, params.method, **longest)
    blocks = count_blocks(train_lengths, block)
    planned = planner.plan(
        recipe(blocks, block, params.method, model.config.get_text_config().hidden_size, machine.device_count),
        step,
        machine,
        gradient_checkpointing=params.gradient_checkpointing or None,
        **params.model_dump(include={"batch_size", "learning_rate", "max_steps"}),
    )
    return planned, step, block


def train(trainer: LegalTrainer, params: LegalParameters) -> None:
    """Trains, here or in as many processes as the machine counts GPUs.

    For several processes the code of the cells that begin with `# In every process:` is written to `cells.json` in the folder of
    the run, as it ran last. Each process runs it and takes its share of every batch. `trainer` then has the weights of the best
    evaluation as if it had trained itself.
    """
    refuse_merged(trainer.model)
    count, folder = trainer.runtime.device_count, Path(trainer.args.output_dir)
    if trainer.runtime.kind == "xla" or count == ranks.count():
        trainer.train(resume_from_checkpoint=params.resume)
        if count > 1 and ranks.is_main():
            disk.write_json(folder / MEASURED_FILE, trainer.results())
        return
    trainer.model.to("cpu")  # the first process needs the memory
    torch.cuda.empty_cache()
    from IPython import get_ipython

    code = processes.marked_cells(get_ipython().history_manager.input_hist_raw)
    cells = {"shown": helpers.shown, "payload": helpers.payload_sha256, "code": code}
    disk.write_json(folder / CELLS_FILE, cells)
    processes.call(f"{__name__}:run_cells", {"file": str(folder / CELLS_FILE)}, count)
    trainer.model.to(trainer.args.device)
    trainer.train(resume_from_checkpoint=True)


def measured(trainer: LegalTrainer) -> dict[str, Any]:
    """What a training has measured so far (`trainer.results`), also of a training in processes of their own."""
    file = Path(trainer.args.output_dir) / MEASURED_FILE
    if trainer.runtime.device_count > ranks.count() and trainer.runtime.kind != "xla" and file.exists():
        return json.loads(file.read_text(encoding="utf-8"))
    return trainer.results()


def run_cells(file: str) -> None:
    """What each process does that `train` starts. What the cells above the last one print was shown before."""
    cells = json.loads(Path(file).read_text(encoding="utf-8"))
    helpers.shown, helpers.payload_sha256 = cells["shown"], cells["payload"]
    *above, last = cells["code"]
    with Path(os.devnull).open("w") as nowhere, contextlib.redirect_stdout(nowhere):
        list(processes.run_cells(above))
    list(processes.run_cells([last]))


def workload(model, name: str, length: int, method: str, **longest: Any) -> Workload:
    """The step of a causal language model on packed blocks, whole or with adapters, with the tiled loss.

    longest: the arguments of `ask_the_most`, what the run asks of its model; by default texts of a block's length.
    """

    def batch(examples: int, length: int) -> dict[str, torch.Tensor]:
        ids = random.Random(0).choices(range(5, 1_000), k=length)
        return FixedBlocks(length, pad_token_id=0)([{"input_ids": ids, "labels": ids}] * examples)

    counted, optimizer = model, "adamw"
    if method == "qlora":
        counted, optimizer = _counted_in_four_bits(model), "paged_adamw_8bit"
    return Workload(
        notebook=NOTEBOOK,
        name=name,
        model=counted,
        batch=batch,
        loss=lambda model, blocks: summed_loss(model, blocks) / blocks["labels"].numel(),
        evaluation=functools.partial(ask_the_most, **{"prompt": length, "answer": most_tokens([length])} | longest),
        length=length,
        parameters=model.num_parameters(),  # transformers counts both of two that one number holds
        optimizer=optimizer,
    )


def _counted_in_four_bits(model):
    """The model with its own weights, but for frozen projections: as large as QLoRA keeps them, and without numbers."""
    copies = {id(weight): weight for weight in model.parameters()}
    for layer in model.modules():
        frozen = getattr(layer, "base_layer", None)
        if isinstance(frozen, torch.nn.Linear):
            copies[id(frozen)] = _FourBit(frozen)
    return copy.deepcopy(model, copies)


class _FourBit(torch.nn.Module):
    def __init__(self, linear: torch.nn.Linear):
        super().__init__()
        size = int(linear.in_features * linear.out_features * BITS / 8)
        packed = torch.empty(size, dtype=torch.uint8, device="meta")
        self.packed, self.outputs = torch.nn.Parameter(packed, requires_grad=False), linear.out_features

    def forward(self, x):
        return _Product.apply(x, self.outputs)


class _Product(torch.autograd.Function):
    """bitsandbytes makes the whole matrix for a product and forgets it."""

    @staticmethod
    def forward(ctx, x, outputs):
        ctx.inputs = x.shape[-1]
        return torch.nn.functional.linear(x, x.new_empty(outputs, x.shape[-1]))

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ gradient.new_empty(gradient.shape[-1], ctx.inputs), None
