"""The language model's training step, as the planner counts it."""

from __future__ import annotations

import copy
import random
from typing import Any

from helpers.planning.workloads import Workload

NOTEBOOK = "legal_cot_sft"
BITS = 4.127  # a weight in NF4 with double quantisation (Dettmers et al. 2023, section 3)


def workload(model, name: str, length: int, method: str) -> Workload:
    """The step of a causal language model on packed blocks, whole or with adapters; it gets the tiled loss of the trainer."""
    from .loss import add_tiled_loss
    from .packing import FixedBlocks, mask_of

    add_tiled_loss(model.get_base_model() if hasattr(model, "get_base_model") else model)

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = random.Random(0).choices(range(5, 1_000), k=length)
        return FixedBlocks(length, pad_token_id=0)([{"input_ids": ids, "labels": ids}] * examples)

    def loss(model, inputs):
        present = model.config._attn_implementation
        masked = present.startswith("sdpa") or present == "eager"
        attention = {"attention_mask": mask_of(inputs["segment_ids"], present)} if masked else {}
        inputs = {name: tensor for name, tensor in inputs.items() if name != "segment_ids"}
        return model(**inputs, **attention, tiled_loss=True) / inputs["labels"].numel()

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
