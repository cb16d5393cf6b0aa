"""The language model's training step, for the planner."""

from __future__ import annotations

import copy
import functools
import random
from typing import Any

from helpers.plan import DoesNotFit, Recipe
from helpers.planning.workloads import Asked, Workload
from helpers.runtime import Runtime

from .layout import MAX_LENGTH
from .model import NO_TPU, QWEN, apply_lora, frozen_dtype
from .parameters import LegalParameters, recipe

NOTEBOOK = "legal_cot_sft"
BITS = 4.127  # a weight in NF4 with double quantisation (Dettmers et al. 2023, section 3)
RECORDS, BLOCKS_A_RECORD = 1_852, 0.72  # rzeraat/law; packed into blocks of 1,000 tokens in the public run on it
METHODS = ("full", "lora", "qlora")
QWEN_HALF_B = {  # Qwen/Qwen2.5-0.5B-Instruct config.json
    "vocab_size": 151_936,
    "hidden_size": 896,
    "intermediate_size": 4_864,
    "num_hidden_layers": 24,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}


def workload(model, name: str, length: int, method: str) -> Workload:
    """The step of a causal language model on packed blocks, whole or with adapters, with the trainer's tiled loss."""
    from .loss import base_of, tiled_loss
    from .packing import FixedBlocks, mask_of

    base_of(model).batch_groups = 1  # the planner sets it where chips share a batch

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = random.Random(0).choices(range(5, 1_000), k=length)
        return FixedBlocks(length, pad_token_id=0)([{"input_ids": ids, "labels": ids}] * examples)

    def loss(model, inputs):
        present = model.config._attn_implementation
        masked = present.startswith("sdpa") or present == "eager"
        attention = {"attention_mask": mask_of(inputs["segment_ids"], present)} if masked else {}
        given = {name: inputs[name] for name in ("input_ids", "position_ids")}
        return tiled_loss(model, inputs["labels"], **given, **attention) / inputs["labels"].numel()

    parameters = model.num_parameters()  # before two of 4 bits are one number
    return Workload(
        notebook=NOTEBOOK,
        name=name,
        model=_counted_in_four_bits(model) if method == "qlora" else model,
        batch=batch,
        loss=loss,
        length=length,
        parameters=parameters,
        optimizer="paged_adamw_8bit" if method == "qlora" else "adamw",
    )


def _counted_in_four_bits(model):
    """The model with its own weights, but for frozen projections: as large as QLoRA keeps them, and without numbers.

    bitsandbytes makes the whole matrix for a product and forgets it.
    """
    import torch

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, outputs):
            ctx.inputs = x.shape[-1]
            return torch.nn.functional.linear(x, x.new_empty(outputs, x.shape[-1]))

        @staticmethod
        def backward(ctx, gradient):
            return gradient @ gradient.new_empty(gradient.shape[-1], ctx.inputs), None

    class FourBit(torch.nn.Module):
        def __init__(self, linear):
            super().__init__()
            packed = torch.empty(
                int(linear.in_features * linear.out_features * BITS / 8), dtype=torch.uint8, device="meta"
            )
            self.packed, self.outputs = torch.nn.Parameter(packed, requires_grad=False), linear.out_features

        def forward(self, x):
            return Product.apply(x, self.outputs)

    frozen = [getattr(layer, "base_layer", None) for layer in model.modules()]
    instead = {id(each): FourBit(each) for each in frozen if isinstance(each, torch.nn.Linear)}
    return copy.deepcopy(model, {id(weight): weight for weight in model.parameters()} | instead)


def planned(asked: Asked, machine: Runtime, *, weights: bool = False) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner: `planned(Asked(method="qlora"), machine)`.

    asked: `model` is a hub id or a path, `method` one of METHODS, `examples` are records, `length` is in tokens of a block.
    machine: its precision is that of the frozen weights, and its devices share the batch.
    weights: the step has random weights and can be run; without them its model is on the device "meta" and takes no memory.

    Raises ValueError for an unknown method, and DoesNotFit for 4 bits on a TPU.
    """
    default = LegalParameters.defaults()
    name, method, length = asked.model or default.base_model, asked.method or default.method, asked.length or MAX_LENGTH
    if method not in METHODS:
        raise ValueError(f"method={method!r}: unknown; there are {', '.join(METHODS)}")
    if method == "qlora" and machine.kind == "xla":
        raise DoesNotFit(NO_TPU, "no: 4 bits need a GPU")
    step = (_step if weights else _step_without_weights)(name, method, machine.precision, length)
    blocks = max(1, round((asked.examples or RECORDS) * BLOCKS_A_RECORD * 1_000 / length))
    return recipe(blocks, length, method, machine.device_count), step


def _step(name: str, method: str, precision: str, length: int, weights: bool = True) -> Workload:
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM, Qwen2Config

    default = LegalParameters.defaults()
    config = Qwen2Config(**QWEN_HALF_B) if name == QWEN else AutoConfig.from_pretrained(name, trust_remote_code=False)
    with torch.device("cpu" if weights else "meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=frozen_dtype(method, precision))
        if method != "full":
            model = apply_lora(model, default.lora_rank, default.lora_alpha)
    return workload(model, name, length, method)


@functools.lru_cache(maxsize=4)
def _step_without_weights(name: str, method: str, precision: str, length: int) -> Workload:
    return _step(name, method, precision, length, weights=False)
