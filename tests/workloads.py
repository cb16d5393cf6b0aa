"""Small workloads for tests of the planner, and a plan made by hand for tests that are not about planning."""

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.machine.runtime import Runtime
from helpers.plan.counting import Count
from helpers.plan.forecast import memory
from helpers.plan.settings import Plan
from helpers.plan.workloads import Workload


class Launches(TorchDispatchMode):
    """Counts operations that are no view: what a card is asked to launch."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += not (func.is_view or func.namespace == "profiler")
        return func(*args, **(kwargs or {}))


class Stack(nn.Module):
    """Equal layers between an embedding and a head; `frozen` ones at the beginning are not trained."""

    def __init__(self, layers: int, width: int = 64, frozen: int = 0):
        super().__init__()
        self.embedding = nn.Embedding(100, width)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(layers))
        self.head = nn.Linear(width, 100)
        for layer in self.layers[:frozen]:
            layer.requires_grad_(False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        states = self.embedding(ids)
        for layer in self.layers:
            states = states + layer(states)
        return self.head(states)


def stack(layers: int = 3, length: int = 16, **options) -> Workload:
    """The step of a `Stack` that predicts its own input."""

    def loss(model, ids):
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())

    model = Stack(layers, **options)
    return Workload(
        notebook="test",
        name="stack",
        model=model,
        batch=lambda examples, length: torch.randint(0, 100, (examples, length)),
        loss=loss,
        length=length,
    )


def bert(layers: int = 2, *, attention: str = "sdpa", dropout: float = 0.1, **sizes) -> Workload:
    """The step of a BERT that classifies."""
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500} | sizes
    config = BertConfig(
        num_hidden_layers=layers,
        attention_probs_dropout_prob=dropout,
        hidden_dropout_prob=dropout,
        attn_implementation=attention,
        **sizes,
    )

    def batch(examples: int, length: int):
        ids = torch.randint(5, 400, (examples, length))
        return {
            "input_ids": ids,
            "attention_mask": (torch.arange(length) < length - 1)
            .long()
            .expand(examples, -1),  # without padding no mask is made
            "labels": torch.zeros(examples, dtype=torch.long),
        }

    model = BertForSequenceClassification(config)
    return Workload(
        notebook="test",
        name="bert",
        model=model,
        batch=batch,
        loss=lambda model, inputs: model(**inputs).loss,
        length=32,
    )


def cpu_by_hand(precision: str = "fp32", name: str = "CPU", devices: int = 1) -> Runtime:
    """A CPU, also under the name of a device that is not here: `detect` would settle for the whole process whether XLA is used."""
    return Runtime(
        kind="cpu",
        reason="",
        device_name=name,
        device_count=devices,
        memory=None,
        compute_capability=None,
        precision=precision,
        precision_reason="",
    )


def plan_by_hand(machine, *, batch_size: int, accumulation: int = 1, steps: int, length: int, **changes) -> Plan:
    """Settings as they are asked for, with nothing counted."""
    nothing = Count(**dict.fromkeys(Count.__dataclass_fields__, 0))
    settings = {
        "precision": machine.precision,
        "per_device_batch_size": batch_size // machine.device_count,
        "gradient_accumulation_steps": accumulation,
        "device_count": machine.device_count,
        "learning_rate": 1e-3,
        "max_steps": steps,
        "sequence_length": length,
        "warmup_steps": round(0.05 * steps),
        "weight_decay": 0.01,
        "max_grad_norm": 1.0,
        "optimizer": "adamw_torch",
        "gradient_checkpointing": False,
        "dataloader_workers": 0,
        "pin_memory": False,
        "memory": memory(nothing, machine.kind, None),
    }
    return Plan(**settings | changes)
