"""Bytes of all tensors that are alive while a piece of code runs, and their peak: a CPU's allocator does not tell."""

from __future__ import annotations

import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class LiveBytes(TorchDispatchMode):
    """Counts each storage once, from the operation that makes it until it is freed.

    Args:
        model, optimizer: whose weights, buffers, gradients and state are there already.

    Attributes:
        now, peak: bytes.
    """

    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer | None = None):
        super().__init__()
        self.now = self.peak = 0
        self._seen: set[int] = set()
        state = [] if optimizer is None else tree_leaves(list(optimizer.state.values()))
        gradients = [parameter.grad for parameter in model.parameters()]
        for tensor in (*model.parameters(), *model.buffers(), *gradients, *state):
            self._count(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            self._count(leaf)
        return result

    def _count(self, tensor) -> None:
        if not isinstance(tensor, torch.Tensor):
            return
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen:
            return
        self._seen.add(key)
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key, size)

    def _freed(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size
