"""What the loss needs of a device: parts of a batch that is too large, and batches that several devices share."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from helpers.machine import xla


def processes() -> int:
    """How many processes hold rows of the batch."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_world_size()
    return 1


def over_processes(sums: torch.Tensor) -> torch.Tensor:
    """The sum over all processes that hold rows of the batch. Its gradient is multiplied by their number, and DDP's mean divides by it.

    A tensor on XLA is the whole batch already.
    """
    if sums.device.type == "xla" or processes() == 1:
        return sums
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(sums)


def move(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The tensor with the device and dtype of another. A copy out of memory that is not pinned would wait for a GPU."""
    if other.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(other.device, other.dtype, non_blocking=other.is_cuda)


def recompute(function, *inputs) -> torch.Tensor:
    """`function(*inputs)`, whose inner tensors are not kept until the backward pass but computed again there; XLA decides by itself."""
    if inputs[0].device.type == "xla":
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


class Means:
    """Means of the terms of a loss between two logs. Adding does not wait for the device; reading does."""

    def __init__(self, names: tuple[str, ...]):
        self.names = names
        self.totals: torch.Tensor | None = None

    def start(self, device: torch.device) -> None:
        """On XLA, before the first step: sums that are data of its graph as of every later one, not constants."""
        if self.totals is None:
            self.totals = xla.replicate_tensor(torch.zeros(1 + len(self.names), device=device))
            xla.sync()

    def add(self, terms: dict[str, torch.Tensor]) -> None:
        values = [terms[name] for name in self.names]
        added = torch.stack([*values, torch.ones_like(values[0])]).detach()
        if self.totals is not None:
            added += self.totals
        self.totals = added

    def read(self) -> dict[str, float]:
        """The means since the last call; none if nothing was added."""
        if self.totals is None:
            return {}
        *totals, steps = self.totals.tolist()
        if not steps:
            return {}
        self.totals = torch.zeros_like(self.totals)
        return {name: total / steps for name, total in zip(self.names, totals, strict=True)}


def embed_in_parts(loss, columns: list[dict]) -> torch.Tensor:
    """The loss of a batch whose columns are embedded in parts of `loss.mini_batch_size` texts."""
    if columns[0]["input_ids"].device.type != "xla":
        return loss.forward_cached(columns)
    parts = [[embed_on_xla(loss.model, column, loss.mini_batch_size)] for column in columns]
    return loss.calculate_loss(parts)


def embed_on_xla(model, column: dict, chunk: int) -> torch.Tensor:
    """Embeddings [N, K] of a column, in equal parts of at most `chunk` texts that are embedded again in the backward pass.

    CachedLossMixin cannot keep the states of XLA's generators. Text n is in part n mod P, so that chips which share the batch share
    every part; each part is a graph, the same for all.
    """
    N = len(column["input_ids"])
    P = math.ceil(N / chunk)
    while N % P:
        P += 1
    names, embeddings = list(column), []
    for number in range(P):
        values = []
        for value in column.values():
            if torch.is_tensor(value):
                value = value.unflatten(0, (-1, P))[:, number]
                xla.shard_batch(value)
            values.append(value)
        xla.sync()

        def embedded(*values):
            return model(dict(zip(names, values, strict=False)))["sentence_embedding"]

        if torch.is_grad_enabled():
            # torch_xla's function gives no gradient to weights unless an input asks for one.
            anchor = torch.zeros((), device=values[0].device, requires_grad=True)
            part_NK = xla.checkpoint_function()(embedded, *values, anchor)
            part_NK.register_hook(lambda gradient: xla.sync())
        else:
            part_NK = embedded(*values)
        embeddings.append(part_NK)
    return torch.stack(embeddings, 1).flatten(0, 1)
