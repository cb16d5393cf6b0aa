"""The classifier's training step, for the planner."""

from __future__ import annotations

import functools
from typing import Any

from helpers.machine.runtime import Runtime
from helpers.plan.settings import Recipe
from helpers.plan.workloads import Asked, Workload

from .parameters import TuningParameters, recipe

NOTEBOOK = "hardware_tuning"
ROWS, LABELS = 16_000, 6  # of dair-ai/emotion, the notebook's default


def workload(model, name: str, length: int) -> Workload:
    """The step of a transformers model for sequence classification, padded to `length` tokens."""
    import torch

    def batch(examples: int, length: int) -> dict[str, Any]:
        ids = torch.randint(5, model.config.vocab_size, (examples, length))
        mask = torch.ones_like(ids)
        mask[0, -1] = 0  # as where texts are padded: attention gets a mask
        return {"input_ids": ids, "attention_mask": mask, "labels": torch.zeros(examples, dtype=torch.long)}

    def loss(model, batch):
        inputs = {name: tensor for name, tensor in batch.items() if name != "labels"}
        return torch.nn.functional.cross_entropy(model(**inputs).logits.float(), batch["labels"])

    return Workload(notebook=NOTEBOOK, name=name, model=model, batch=batch, loss=loss, length=length)


def planned(asked: Asked, machine: Runtime, *, weights: bool = False) -> tuple[Recipe, Workload]:
    """Recipe and training step of a run, for the planner: `planned(Asked(length=128), machine)`.

    asked: `model` is a hub id or a path, `examples` are rows, `length` is in tokens.
    weights: the step has random weights and can be run; without them its model is on the device "meta" and takes no memory.
    """
    default = TuningParameters.defaults()
    name, length = asked.model or default.base_model, asked.length or default.max_length
    # What XLA makes of attention is what it makes of products and a softmax that are written out.
    attention = "eager" if machine.kind == "xla" else "sdpa"
    step = (_step.__wrapped__ if weights else _step)(name, length, attention, weights)  # real weights are not kept
    return recipe(asked.examples or ROWS, default.start_batch_size, length), step


@functools.lru_cache(maxsize=4)
def _step(name: str, length: int, attention: str, weights: bool) -> Workload:
    import torch
    from transformers import AutoConfig, AutoModelForSequenceClassification, BertConfig

    if name == TuningParameters.defaults().base_model:
        config = BertConfig()  # whose values are those of bert-base-uncased
    else:
        config = AutoConfig.from_pretrained(name, trust_remote_code=False)
    config.num_labels = LABELS
    with torch.device("cpu" if weights else "meta"):
        model = AutoModelForSequenceClassification.from_config(config, attn_implementation=attention)
    return workload(model, name, length)
