"""Bytes of the tensors that are alive while a piece of code runs, and the operations that it takes."""

from __future__ import annotations

import weakref

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

FLOPS = flop_registry | {  # a CPU's fused attention, which torch has no formula for, like a GPU's
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention
    ],
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ],
}


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that are alive while a piece of code runs, fake or real; each storage counts once.

    Args:
        tensors: what is there already.

    Attributes:
        now, peak: bytes.
        flops: of the operations that torch has a formula for.
    """

    def __init__(self, tensors):
        super().__init__()
        self.now = self.peak = self.flops = 0
        self._sizes: dict[int, int] = {}
        for tensor in tensors:
            self._count(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is torch.ops.aten._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0  # a number that code looks at and that a fake tensor does not have
        result = func(*args, **kwargs)
        if formula := FLOPS.get(func._overloadpacket):
            self.flops += formula(*args, **kwargs, out_val=result)
        results = result if isinstance(result, (tuple, list)) else (result,)
        if tensors := [each for each in results if isinstance(each, torch.Tensor)]:
            self.made(func, args, kwargs, tensors)
        return result

    def made(self, func, args, kwargs, results: list[torch.Tensor]) -> None:
        """Called after each operation that makes tensors."""
        for each in results:
            self._count(each)

    def add(self, size: int) -> None:
        """So many bytes more, or less."""
        self.now += size
        self.peak = max(self.peak, self.now)

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            return
        self._sizes[key] = size
        self.add(size)
        weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
