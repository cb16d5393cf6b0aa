"""The defaults of the notebook, or what is asked instead, for the planner's command line; no notebook carries this."""

from __future__ import annotations

import functools

from helpers.machine.runtime import Runtime
from helpers.plan.settings import DoesNotFit, Recipe
from helpers.plan.workloads import Asked, Workload

from .layout import MAX_LENGTH
from .model import NO_TPU, QWEN, apply_lora, frozen_dtype
from .parameters import NOTEBOOK, LegalParameters, recipe

__all__ = ["NOTEBOOK", "planned"]

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

    from .training import workload

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
