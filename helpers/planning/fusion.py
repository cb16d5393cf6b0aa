"""What XLA writes to a chip's memory of a step that torch computes operation by operation.

XLA makes one kernel of many operations, and computes again in backward what is cheap. The rules of `FusedBytes` were read off
compiled programs (benchmarks/tpu_compiler.py --programs); docs/tpu-tried.md compares them with the compiler's figures.
"""

from __future__ import annotations

import math
import weakref

import torch
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from .live_bytes import LiveBytes

aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default, aten.baddbmm.default)
BATCHED = PRODUCTS[2:]
SOFTMAXES = (aten._softmax.default, aten._log_softmax.default)
# Fused like what torch calls pointwise.
FUSED = {"_to_copy", "constant_pad_nd", "stack", "flip", "repeat", "tril", "triu", "slice_backward", "select_backward"}
FUSED |= {"_softmax_backward_data", "_log_softmax_backward_data", "nll_loss_backward"}
NORMS = (aten.native_layer_norm.default, aten.native_layer_norm_backward.default)  # of their results only the first
LANES, SUBLANES = 128, 8  # of a tile, to which the last two axes of an array are filled up, in the better order


class Written:
    """So many bytes in a chip's memory, for as long as there is a tensor that is computed from them."""

    def __init__(self, live: LiveBytes, size: int, shape=(), *, half=False, softmax=False, rounded=False, draws=0):
        self.live, self.size, self.shape, self.half, self.softmax = live, size, shape, half, softmax
        self.rounded, self.draws = rounded, draws
        live.add(size)

    def widen(self) -> None:
        self.half = False
        self.live.add(self.size)
        self.size *= 2

    def __del__(self):
        self.live.add(-self.size)


class FusedBytes(LiveBytes):
    """Bytes that XLA holds for the tensors that are alive.

    A result of cheap arithmetic is not written: it holds what it is computed from. Products are written. docs/tpu-tried.md has
    all rules.

    Args:
        tensors: what is there already.
        half: products are bf16.
    """

    def __init__(self, tensors, half: bool):
        super().__init__(tensors)
        self.half = half
        self._from: dict[int, tuple[Written, ...]] = {}  # storage: what its numbers are computed from

    def made(self, func, args, kwargs, results) -> None:
        if torch.Tag.nondeterministic_seeded in func.tags:
            self._write(results[0], 1, draws=results[0].element_size())
        elif func in SOFTMAXES:
            self._softmax(func, args, results[0])
        elif func is aten.gelu.default and kwargs.get("approximate") == "tanh":
            self._hold(results[0], (*self._origins(args), Written(self, _tiles(results[0].shape, 4))))
        elif func is aten.add.Tensor and self._joins(args, results[0]):
            self._write(results[0])
        elif torch.Tag.pointwise in func.tags or func.overloadpacket.__name__ in FUSED:
            if func is aten.mul.Tensor and results[0].element_size() == 2:
                self._dropped(self._origins(args))
            if func is aten._to_copy.default and results[0].dtype == torch.float32 and args[0].dim() > 2:
                self._not_rounded(args[0], 3)
            self._hold(results[0], self._origins((args, kwargs)))
        elif func in NORMS:
            self._hold(results[0], self._origins(args))
            for each in results[1:]:
                self._write_new(each)
        elif "like" in func.__name__ or "new_" in func.__name__ or not any(map(torch.is_tensor, tree_leaves(args))):
            for each in results:
                self._hold(each, ())  # a constant
        else:
            self._product_reads(func, args)
            for each in results:
                self._write_new(each, rounded=func in PRODUCTS)

    def _softmax(self, func, args, result) -> None:
        kept = torch.is_grad_enabled()  # not where a loss computes its gradient at once (legal/loss.py)
        if kept:
            self._not_rounded(args[0])
        if func is aten._log_softmax.default:  # read once more for the gradient
            sums = Written(self, 4 * result.numel() // result.shape[args[1]], softmax=kept)
            self._hold(result, (*self._origins(args[0]), sums))
        else:
            self._write(
                result, 2 if self.half else None, softmax=True, rounded=self.half and result.element_size() == 4
            )

    def _dropped(self, origins) -> None:
        if any(each.draws for each in origins):
            for each in origins:
                if each.rounded:
                    each.rounded = False
                    each.widen()

    def _not_rounded(self, tensor, axes: int = 2) -> None:
        for each in self._origins(tensor):
            if (
                each.half
                and len(each.shape) >= axes
                and math.prod(each.shape) // 2 < tensor.numel() <= math.prod(each.shape)
            ):
                each.widen()

    def _product_reads(self, func, args) -> None:
        for each in args[-2:] if func in PRODUCTS else ():
            origins = self._origins(each)
            there = len(origins) == 1 and math.prod(origins[0].shape) == each.numel()
            dropped = any(one.draws == 4 and math.prod(one.shape) == each.numel() for one in origins)
            if not there and (func in BATCHED or dropped or any(one.softmax for one in origins)):
                self._write(each, 2 if self.half else None)

    def _joins(self, args, result) -> bool:
        """Whether a sum's two sides come from different arrays of its own size."""
        if not torch.is_tensor(args[1]):
            return False
        enough = result.numel() * result.element_size() / 4
        one, other = ({each for each in self._origins(side) if each.size >= enough} for side in args[:2])
        return bool(one - other and other - one)

    def _origins(self, tensors) -> tuple[Written, ...]:
        storages = [each.untyped_storage()._cdata for each in tree_leaves(tensors) if torch.is_tensor(each)]
        return tuple(dict.fromkeys(one for each in storages for one in self._from.get(each, ())))

    def _write_new(self, tensor, rounded: bool = False) -> None:
        if not self._known(tensor):
            self._write(tensor, half=rounded and tensor.element_size() == 2)

    def _write(self, tensor, width: int | None = None, **marks) -> None:
        size = _tiles(tensor.shape, min(width or 8, tensor.element_size()))
        self._hold(tensor, (Written(self, size, tensor.shape, **marks),))

    def _known(self, tensor) -> bool:
        key = tensor.untyped_storage()._cdata
        return key in self._from or key in self._sizes

    def _hold(self, tensor, origins: tuple[Written, ...]) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._sizes:  # a weight or its gradient, changed in place
            return
        if key not in self._from:
            weakref.finalize(storage, self._from.pop, key, None).atexit = False
        self._from[key] = origins


def _tiles(shape, width: int) -> int:
    """Bytes of an array."""
    shape = [axis for axis in shape if axis != 1]
    if len(shape) < 2:
        return width * math.prod(shape)
    *outer, rows, columns = shape
    filled = min(_up(a, LANES) * _up(b, SUBLANES) for a, b in ((rows, columns), (columns, rows)))
    return width * math.prod(outer) * filled


def _up(number: int, step: int) -> int:
    return -(-number // step) * step


def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """`scaled_dot_product_attention` as torch_xla computes it: without a kernel of its own, in the dtype of its inputs."""
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query * (scale or query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return functional.dropout(torch.softmax(scores, -1), dropout_p) @ value
