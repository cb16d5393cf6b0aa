"""Texts to embeddings by a model in the middle of its training, perhaps on XLA: it is left as it was found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from helpers.machine.engine import cpu_copy

# N texts · K embedding

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def encode(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: str | None = None,
    precision: str = "fp32",
    **options,
) -> np.ndarray:
    """Embeddings [N, K] in fp32 as the model gives them, by `encode_query`, `encode_document` or `encode` (task None).

    A model on an XLA device is copied to the CPU first, where a new shape compiles nothing; `on_cpu(model)` saves further copies.

    precision: "bf16" autocasts the model on CUDA and on a CPU, "fp16" on CUDA.
    options: of that method.
    """
    model = on_cpu(model)
    call = {"query": model.encode_query, "document": model.encode_document, None: model.encode}[task]
    training = {module: module.training for module in model.modules()}
    halves = {"cuda": ("bf16", "fp16"), "cpu": ("bf16",)}.get(model.device.type, ())
    autocast = torch.autocast(model.device.type, DTYPES[precision], enabled=precision in halves)
    try:
        with autocast:
            embeddings = call(list(texts), show_progress_bar=False, **options)
    finally:
        for module, mode in training.items():
            module.training = mode
    return np.asarray(embeddings, np.float32)


def on_cpu(model: SentenceTransformer) -> SentenceTransformer:
    """The model itself, or a copy on the CPU of one on an XLA device. The copy shares nothing but the model card."""
    # The card holds the trainer, and that its data.
    return cpu_copy(model, model.model_card_data) if model.device.type == "xla" else model
