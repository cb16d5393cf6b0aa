"""The language model's training step, as the planner counts it."""

from __future__ import annotations

from typing import Any

from helpers.planning.workloads import Workload

NOTEBOOK = "legal_cot_sft"


def workload(model, name: str, length: int, parameters: int = 0) -> Workload:
    """The step of a causal language model on packed blocks, whole or with adapters; it gets the tiled loss of the trainer."""
    import torch

    from .loss import add_tiled_loss
    from .packing import attention_arguments, uses_segment_starts

    add_tiled_loss(model.get_base_model() if hasattr(model, "get_base_model") else model)

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = torch.randint(5, 1_000, (examples, length))
        positions = torch.arange(length).expand(examples, length).contiguous()
        return {
            "input_ids": ids,
            "labels": ids.clone(),
            "position_ids": positions,
            "segment_ids": torch.ones_like(ids),
        }

    def loss(model, inputs):
        present = model.config._attn_implementation
        attention = {} if uses_segment_starts(present) else attention_arguments(inputs, present)
        inputs = {name: tensor for name, tensor in inputs.items() if name != "segment_ids"}
        return model(**inputs, **attention, tiled_loss=True) / inputs["labels"].numel()

    return Workload(
        notebook=NOTEBOOK, name=name, model=model, batch=batch, loss=loss, length=length, parameters=parameters
    )
