"""Embeddings of a whole batch in the memory of a part of it: gradient caching.

A chunk is embedded and its activations are dropped; backward, which has the gradient of the loss with respect to all embeddings
by then, embeds chunk after chunk again, with the same dropout, and sends its share on to the weights. Loss and gradient are those of
the batch at once. Gao et al., Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup (arXiv 2101.06983).
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from helpers.machine import xla

# N texts · K embedding · P chunks


def embed(model: nn.Module, column: dict, chunk: int) -> torch.Tensor:
    """Embeddings [N, K] of a column of features, by an embedding model or what wraps it.

    chunk: texts that are embedded together; 0: all, and none twice. Chunks are equal: where N is no multiple, they are as
        large as a divisor of N allows. Text n is in chunk n mod P, so that chips which share the batch share every chunk.
    """
    if not chunk:
        return model(column)["sentence_embedding"]
    N = len(column["input_ids"])
    P = next(P for P in range(1, N + 1) if N % P == 0 and P * chunk >= N)
    parts = [{name: _part(value, number, P) for name, value in column.items()} for number in range(P)]
    backbone = next(module for module in model.modules() if isinstance(module, nn.Sequential))[0]
    # One that is not trained keeps no activations, so that there is nothing to compute again.
    again = torch.is_grad_enabled() and any(weight.requires_grad for weight in backbone.parameters())
    return torch.stack([_embed_part(model, part, again) for part in parts], 1).flatten(0, 1)


def _part(value, number: int, P: int):
    return value.unflatten(0, (-1, P))[:, number] if torch.is_tensor(value) else value


def _embed_part(model: nn.Module, part: dict, again: bool) -> torch.Tensor:
    def embedded(*values):
        return model(dict(zip(part, values, strict=False)))["sentence_embedding"]

    torch.clear_autocast_cache()  # a half-precision copy of the weights that all chunks shared would sum their gradients in half
    if part["input_ids"].device.type != "xla":
        return checkpoint(embedded, *part.values(), use_reentrant=False) if again else embedded(*part.values())
    for value in part.values():
        if torch.is_tensor(value):
            xla.shard_batch(value)
    xla.sync()  # a graph a chunk, the same for all, not one that grows with their number
    if not again:
        return embedded(*part.values())
    # torch_xla's function gives no gradient to weights unless an input asks for one.
    anchor = torch.zeros((), device=part["input_ids"].device, requires_grad=True)
    embedded_NK = xla.checkpoint_function()(embedded, *part.values(), anchor)
    embedded_NK.register_hook(lambda gradient: xla.sync())
    return embedded_NK
