"""Texts to embeddings by a model in the middle of its training, perhaps on XLA: it is left as it was found."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from helpers.cpu_copy import cpu_copy

# N texts · K embedding

TASKS = ("query", "document", None)
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


def encode(
    model: SentenceTransformer,
    texts: Sequence[str],
    *,
    task: str | None = None,
    batch_size: int = 32,
    max_seq_length: int | None = None,
    precision: str = "fp32",
) -> np.ndarray:
    """Embeddings [N, K] in fp32 as the model gives them, by `encode_query`, `encode_document` or `encode`.

    No gradient. A model on an XLA device is copied to the CPU first: `encode` pads to the longest of each batch, and
    every new shape would compile anew. Who encodes more than once should pass `on_cpu(model)`.

    Args:
        task: "query", "document" or None; chooses the model's prompt.
        max_seq_length: tokens after which texts are cut; None: the model's own.
        precision: "bf16" autocasts the model on CUDA and on a CPU, "fp16" on CUDA.

    Raises:
        ValueError: an unknown task or precision, or max_seq_length below 1.
    """
    if task not in TASKS:
        raise ValueError(f"task={task!r}: choose one of {TASKS}")
    if precision not in DTYPES:
        raise ValueError(f"precision={precision!r}: choose one of {', '.join(DTYPES)}")
    if max_seq_length is not None and max_seq_length < 1:
        raise ValueError(f"max_seq_length={max_seq_length}: must be at least 1, or None for the model's own")
    model = on_cpu(model)
    call = {"query": model.encode_query, "document": model.encode_document, None: model.encode}[task]
    training = {module: module.training for module in model.modules()}
    own_length = model.max_seq_length
    halves = {"cuda": ("bf16", "fp16"), "cpu": ("bf16",)}.get(model.device.type, ())
    autocast = torch.autocast(model.device.type, DTYPES[precision], enabled=precision in halves)
    try:
        if max_seq_length is not None:
            model.max_seq_length = max_seq_length
        with autocast:
            embeddings = call(list(texts), batch_size=batch_size, show_progress_bar=False)
    finally:
        if max_seq_length is not None:
            model.max_seq_length = own_length
        for module, mode in training.items():
            module.training = mode
    return np.asarray(embeddings, np.float32)


def on_cpu(model: SentenceTransformer) -> SentenceTransformer:
    """The model itself, or a copy on the CPU of one on an XLA device. The copy shares nothing but the model card."""
    # The card holds the trainer, and that its data.
    return cpu_copy(model, model.model_card_data) if model.device.type == "xla" else model
