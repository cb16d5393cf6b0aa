"""What one training step needs: the step itself on fake tensors, every operation counted.

    count(workload, 8, kind="cuda", precision="bf16").peak      # bytes, in about a second and without the memory

torch's FakeTensorMode runs the real model on shapes and dtypes without numbers, so that nothing is modelled here: what
autograd keeps is what autograd keeps. What differs on the device is put in its place: CUDA's kernels for attention and
dropout, its autocast rules, XLA's attention without a fused kernel. FLOPs are torch's own formulas (`flop_registry`).
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from unittest import mock

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import flop_registry

from helpers.machine.attention import checkpoint_activations

from .workloads import Workload

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
IN_FP32 = (
    *((functional, name) for name in ("layer_norm", "group_norm", "cross_entropy", "nll_loss", "cosine_similarity")),
    *((torch.Tensor, name) for name in ("softmax", "log_softmax", "pow")),
    *((torch, name) for name in ("softmax", "log_softmax", "pow")),
)
FLOPS = flop_registry | {  # a CPU's fused attention, which torch has no formula for, like a GPU's
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu: flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention
    ],
    torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward: flop_registry[
        torch.ops.aten._scaled_dot_product_flash_attention_backward
    ],
}
FEW_LAYERS = 4  # a stack of no more is counted as it is
# fp32 numbers of state a trained weight; Adafactor's rows and columns are too few to count.
# bitsandbytes keeps two bytes, and two fp32 scales a block of 256.
MOMENTS = {"adamw": 2, "paged_adamw_8bit": 2 * (1 / 4 + 1 / 256), "adafactor": 0}


@dataclass(frozen=True, kw_only=True)
class Count:
    """One training step of one device. Numbers and bytes; every field grows linearly with the layers of a uniform stack."""

    parameters: int
    trained: int
    flops: float  # forward and backward, recomputation included
    weights: int  # bytes, buffers included
    gradients: int  # bytes, of all trained weights
    optimizer: int  # bytes of its state
    activations: int  # bytes that are there at the end of the forward pass beside these
    begin_peak: int  # bytes at the fullest moment until backward has left the last layer, all of the above included
    end_peak: int  # the same from the first layer's backward on
    update_peak: int  # the same of the optimizer's update
    accumulated: int  # bytes of gradients of earlier micro-batches, in all of these

    @property
    def peak(self) -> int:
        """Bytes of all tensors at the fullest moment of the step.

        Between its ends backward frees a layer's activations and makes its gradients, so that one of the ends is the fullest.
        """
        return max(self.begin_peak, self.end_peak, self.update_peak)


@functools.lru_cache(maxsize=256)
def count(
    workload: Workload,
    examples: int,
    *,
    kind: str,
    precision: str,
    shares_keys: bool = True,
    length: int = 0,
    checkpointing: bool = False,
    accumulating: bool = False,
) -> Count:
    """The step of a micro-batch of so many examples on one device.

    A deep stack of equal layers is counted with two and with three of them, and extrapolated.

    Args:
        workload: model, batch and loss.
        kind: "cpu", "cuda" or "xla": whose kernels and autocast rules.
        precision: "fp32", "fp16" or "bf16" of the products.
        shares_keys: a GPU has a fused kernel for heads that share keys: from compute capability sm_80 on.
        length: tokens of a sequence; 0 = the workload's.
        checkpointing: activations are computed again in backward.
        accumulating: the gradients of an earlier micro-batch are there already.
    """

    how = (kind, precision, shares_keys), length or workload.length, checkpointing, accumulating
    layers = len(_equal_layers(workload.model))
    if layers <= FEW_LAYERS:
        found = _step(workload, examples, None, *how)
    else:
        two, three = (_step(workload, examples, kept, *how) for kept in (2, 3))
        slope = {name: getattr(three, name) - getattr(two, name) for name in vars(two)}
        found = Count(**{name: getattr(two, name) + (layers - 2) * each for name, each in slope.items()})
    return replace(found, parameters=workload.parameters) if workload.parameters else found


def _step(workload, examples, layers, device, length, checkpointing, accumulating) -> Count:
    kind, precision, _ = device
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    left_out = [] if layers is None else _equal_layers(workload.model)[layers:]
    model = copy_with(workload.model, functools.partial(_without_numbers, fake), left_out)
    model.train()
    if checkpointing:
        checkpoint_activations(transformer_of(model), "cpu")
    equal = _equal_layers(model)[-layers:] if layers else ()
    batch = tree_map_only(torch.Tensor, fake.from_tensor, workload.batch(examples, length))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    with fake, _kernels_of(*device), torch.random.fork_rng(devices=[]):
        for weight in trained if accumulating else ():
            weight.grad = torch.zeros_like(weight)
        weights = _bytes([*model.parameters(), *model.buffers()])
        there = [*model.parameters(), *model.buffers(), *(weight.grad for weight in trained if accumulating)]
        with LiveBytes(there) as live:
            ends = _Ends(live, equal)
            with torch.autocast("cpu", dtype=HALF.get(precision), enabled=precision in HALF):
                loss = workload.loss(model, batch)
            after_forward = live.now
            loss.backward()
    sizes, gradients = [weight.numel() for weight in trained], _bytes(trained)
    updated = sum(sizes)
    optimizer = round(4 * MOMENTS[workload.optimizer] * updated)
    return Count(
        parameters=_numbers(model),
        trained=updated,
        flops=float(live.flops),
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=after_forward - weights - gradients * accumulating,
        begin_peak=(ends.begin or live.peak) + optimizer,
        end_peak=live.peak + optimizer,
        # AdamW on a CPU makes the denominator of the largest weight, twice; in one kernel nothing.
        update_peak=weights + gradients + optimizer + 8 * max(sizes, default=0) * (kind == "cpu"),
        accumulated=gradients * accumulating,
    )


@functools.lru_cache(maxsize=64)
def evaluation_peak(workload: Workload, *, kind: str, precision: str, shares_keys: bool = True) -> int:
    """Bytes at the fullest moment of a workload's evaluation, weights included; 0 where it has none, or on XLA, whose host does it."""
    if workload.evaluation is None or kind == "xla":
        return 0
    fake = FakeTensorMode(allow_non_fake_inputs=True)
    model = copy_with(workload.model, functools.partial(_without_numbers, fake)).eval()
    autocast = torch.autocast("cpu", dtype=HALF.get(precision), enabled=precision in HALF)
    live = LiveBytes([*model.parameters(), *model.buffers()])
    with fake, _kernels_of(kind, precision, shares_keys), torch.no_grad(), autocast, live:
        workload.evaluation(model)
    return live.peak


def copy_with(model: nn.Module, make: Callable[[torch.Tensor], torch.Tensor], without: Sequence[nn.Module] = ()):
    """The model with what `make` makes of each weight and buffer, and without some layers at the end of a stack."""
    memo: dict[int, object] = {id(layer): _LeftOut() for layer in without}
    for tensor in (*model.parameters(), *model.buffers()):
        made, is_weight = make(tensor), isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(made, requires_grad=tensor.requires_grad) if is_weight else made
    copied = copy.deepcopy(model, memo)
    for stack in [module for module in copied.modules() if isinstance(module, nn.ModuleList)]:
        del stack[sum(not isinstance(layer, _LeftOut) for layer in stack) :]
    return copied


def _without_numbers(fake: FakeTensorMode, tensor: torch.Tensor) -> torch.Tensor:
    with fake:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)


class _LeftOut(nn.Identity):
    """In the place of a layer that is not copied."""


class _Ends:
    """Splits the peak of a step in that of the beginning of backward and that of its end, at the gradients of `layers`."""

    def __init__(self, live: LiveBytes, layers):
        self.live, self.begin = live, 0
        if layers:
            layers[-1].register_forward_pre_hook(lambda layer, args: self._at_gradient(args[0], self._last_done))
            layers[0].register_forward_hook(lambda layer, args, out: self._at_gradient(out, self._first_next))

    def _at_gradient(self, value, call) -> None:
        tensor = value[0] if isinstance(value, tuple) else value
        if tensor.requires_grad:
            tensor.register_hook(lambda gradient: call())

    def _last_done(self) -> None:
        self.begin = self.begin or self.live.peak

    def _first_next(self) -> None:
        self._last_done()  # of two layers the same tensor tells both
        self.live.peak = self.live.now


def _equal_layers(model: nn.Module) -> list[nn.Module]:
    """The layers at the end of the longest stack that train as many weights as its last one."""
    stacks = (each for each in model.modules() if isinstance(each, nn.ModuleList) and len({*map(type, each)}) == 1)
    stack = max(stacks, key=len, default=[])
    sizes = [(_numbers(layer), _numbers(layer, trained=True)) for layer in stack]
    equal = list(itertools.takewhile(lambda size: size == sizes[-1], reversed(sizes)))
    return list(stack)[len(sizes) - len(equal) :]


def _numbers(module: nn.Module, trained: bool = False) -> int:
    return sum(weight.numel() for weight in module.parameters() if weight.requires_grad or not trained)


def _bytes(tensors) -> int:
    """Of different storages."""
    return sum({tensor.untyped_storage()._cdata: tensor.untyped_storage().nbytes() for tensor in tensors}.values())


def can_checkpoint(model: nn.Module) -> bool:
    """Whether activations of this model can be recomputed."""
    transformer = transformer_of(model)
    return transformer is not None and transformer.supports_gradient_checkpointing


def transformer_of(model: nn.Module) -> nn.Module | None:
    """The transformers model, whose activations are recomputed: the outermost one in a model or a loss."""
    from transformers import PreTrainedModel

    return next((module for module in model.modules() if isinstance(module, PreTrainedModel)), None)


@contextlib.contextmanager
def _kernels_of(kind: str, precision: str, shares_keys: bool = True):
    """Does with CPU tensors what the device does.

    CUDA: attention is fused with dropout, too, dropout masks have one byte, and under autocast its own list is fp32
    (torch/aten/src/ATen/autocast_mode.h, AT_FORALL_FP32; those that take part in training). XLA: no fused attention.
    """
    with contextlib.ExitStack() as stack:
        if kind == "xla":
            stack.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", _attention_written_out))
        if kind == "cuda":
            attend = functools.partial(_gpu_attention, shares_keys)
            stack.enter_context(mock.patch.object(functional, "scaled_dot_product_attention", attend))
            stack.enter_context(mock.patch.object(functional, "dropout", _dropout))
            for owner, name in IN_FP32 if precision in HALF else ():
                stack.enter_context(mock.patch.object(owner, name, _in_fp32(getattr(owner, name))))
        yield


def _gpu_attention(shares_keys, query, key, value, *args, attend=functional.scaled_dot_product_attention, **kwargs):
    """The kernel that PyTorch chooses on a GPU.

    Heads that share keys (`enable_gqa`) have a fused kernel from sm_80 on and in half precision alone; elsewhere the products are
    written out (huggingface/transformers#48633). A CPU's fused kernel keeps the matrix for its dropout, a GPU's does not.
    """
    half = query.dtype in HALF.values() or torch.is_autocast_enabled("cpu")
    if kwargs.get("enable_gqa") and not (half and shares_keys):
        with sdpa_kernel(SDPBackend.MATH):
            return attend(query, key, value, *args, **kwargs)
    return attend(query, key, value, *args, **(kwargs | {"dropout_p": 0.0}))


def _attention_written_out(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False
):
    """`scaled_dot_product_attention` as torch_xla computes it: without a kernel of its own, in the dtype of its inputs."""
    if enable_gqa:
        key, value = (each.repeat_interleave(query.shape[-3] // each.shape[-3], -3) for each in (key, value))
    scores = query * (scale or query.shape[-1] ** -0.5) @ key.transpose(-1, -2)
    if is_causal:
        attn_mask = torch.ones(scores.shape[-2:], dtype=torch.bool, device=query.device).tril()
    if attn_mask is not None:
        scores = scores.masked_fill(~attn_mask, -math.inf) if attn_mask.dtype == torch.bool else scores + attn_mask
    return functional.dropout(torch.softmax(scores, -1), dropout_p) @ value


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    return torch.native_dropout(input, p, training)[0] if training and p > 0 else input


def _in_fp32(function):
    def widened(input, *args, **kwargs):
        return function(input.float() if input.dtype in HALF.values() else input, *args, **kwargs)

    return widened


# ---- bytes that are alive


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
        for each in results:
            if isinstance(each, torch.Tensor):
                self._count(each)
        return result

    def _count(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._sizes:
            return
        self._sizes[key] = size
        self.now += size
        self.peak = max(self.peak, self.now)
        weakref.finalize(storage, self._freed, key).atexit = False

    def _freed(self, key: int) -> None:
        self.now -= self._sizes.pop(key)
