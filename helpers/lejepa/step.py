"""The embedding model's training step, for the planner."""

from __future__ import annotations

from typing import Any

from helpers.planning.workloads import Workload

from .parameters import LEAST_BATCH

NOTEBOOK = "lejepa_training"


def workload(loss_module, name: str, length: int, views: int) -> Workload:
    """The step of a loss that holds its model (`LeJEPALoss`), over so many views of each text.

    The planner's micro-batch is a chunk of the batch, and its gradient accumulation is gradient caching.
    """
    import torch

    vocabulary = next(m for m in loss_module.modules() if isinstance(m, torch.nn.Embedding)).num_embeddings

    def batch(examples: int, length: int) -> list[dict[str, Any]]:
        mask = torch.ones(examples, length, dtype=torch.long)
        mask[0, -1] = 0  # as where texts are padded: attention gets a mask
        columns = (torch.randint(0, vocabulary, (examples, length)) for _ in range(views))
        return [{"input_ids": ids, "attention_mask": mask} for ids in columns]

    def loss(loss_module, columns):
        # Gradients are there already: this is one of several chunks.
        is_chunk = any(weight.grad is not None for weight in loss_module.parameters())
        loss_module.chunk = len(columns[0]["input_ids"]) if is_chunk else 0
        return loss_module([dict(column) for column in columns])

    return Workload(
        notebook=NOTEBOOK,
        name=name,
        model=loss_module,
        batch=batch,
        loss=loss,
        length=length,
        views=views,
        least=LEAST_BATCH,
        overflows_fp16=any(_is_gemma3(module) for module in loss_module.modules()),
    )


def _is_gemma3(module) -> bool:
    return str(getattr(getattr(module, "config", None), "model_type", "")).startswith("gemma3")
