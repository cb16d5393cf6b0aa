"""What one training step needs: the step itself runs on fake tensors, and every operation is counted.

    count(workload, 8, kind="cuda", precision="bf16").peak      # bytes, in some seconds and without the memory

torch's FakeTensorMode runs the real model on shapes and dtypes without numbers, so that nothing is modelled here: the
tensors that autograd keeps are counted as it keeps them. What differs on the device is put in its place: CUDA's kernels for attention and
dropout, its autocast rules, XLA's attention without a fused kernel. FLOPs are torch's own formulas (`flop_registry`).
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from dataclasses import dataclass

# Fake tensors, and the modes that see each operation on them, have no public names; torch's own counter of FLOPs uses the same.
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from helpers.machine.attention import checkpoint_activations
from helpers.machine.engine import copy_with

from .workloads import Workload

HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}
IN_FP32 = {
    functional: ("layer_norm", "group_norm", "cross_entropy", "nll_loss", "cosine_similarity"),
    torch.Tensor: ("softmax", "log_softmax", "pow"),
    torch: ("softmax", "log_softmax", "pow"),
}


ATEN = torch.ops.aten
FLOPS = flop_registry | {  # a CPU's fused attention, which torch has no formula for: two products, and in backward five
    ATEN._scaled_dot_product_flash_attention_for_cpu: (
        lambda query, key, *args, **kwargs: 4 * query.numel() * key.shape[-2]
    ),
    ATEN._scaled_dot_product_flash_attention_for_cpu_backward: (
        lambda gradient, query, key, *args, **kwargs: 10 * query.numel() * key.shape[-2]
    ),
}
# fp32 numbers of state a trained weight; Adafactor's rows and columns are too few to count.
# bitsandbytes keeps two bytes, and two fp32 scales a block of 256.
MOMENTS = {"adamw": 2, "paged_adamw_8bit": 2 * (1 / 4 + 1 / 256), "adafactor": 0}


@dataclass(frozen=True, kw_only=True)
class Count:
    """One training step of one device, in numbers and bytes."""

    parameters: int
    trained: int
    flops: float  # forward and backward, recomputation included
    weights: int  # bytes, buffers included
    gradients: int  # bytes, of all trained weights
    optimizer: int  # bytes of its state
    activations: int  # bytes at the end of the forward pass, beside those of weights and gradients
    step_peak: int  # bytes of all tensors at the fullest moment of forward and backward
    update_peak: int  # the same of the optimizer's update
    launches: int  # operations that are no view, forward and backward

    @property
    def peak(self) -> int:
        """Bytes of all tensors at the fullest moment of the step."""
        return max(self.step_peak, self.update_peak)


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

    Args:
        workload: model, batch and loss.
        kind: "cpu", "cuda" or "xla": whose kernels and autocast rules.
        precision: "fp32", "fp16" or "bf16" of the products.
        shares_keys: a GPU has a fused kernel for heads that share keys: from compute capability sm_80 on.
        length: tokens of a sequence; 0 = the workload's.
        checkpointing: activations are computed again in backward.
        accumulating: the gradients of an earlier micro-batch are there already.
    """
    fake, model = _without_numbers(workload.model)
    model.train()
    if checkpointing:
        checkpoint_activations(transformer_of(model), "cpu")
    batch = workload.batch(examples, length or workload.length)
    batch = tree_map_only(torch.Tensor, fake.from_tensor, batch)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    live = LiveBytes([*model.parameters(), *model.buffers()])
    weights, gradients = live.now, sum(weight.nbytes for weight in trained)
    with fake, _kernels_of(kind, precision, shares_keys), torch.random.fork_rng(devices=[]), live:
        if accumulating:
            for weight in trained:
                weight.grad = torch.zeros_like(weight)
        before, launched = live.now, live.launched
        with _autocast(precision):
            loss = workload.loss(model, batch)
        activations = live.now - before
        loss.backward()
    sizes = [weight.numel() for weight in trained]
    optimizer = round(4 * MOMENTS[workload.optimizer] * sum(sizes))
    return Count(
        parameters=workload.parameters or sum(weight.numel() for weight in model.parameters()),
        trained=sum(sizes),
        flops=float(live.flops),
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        activations=activations,
        step_peak=live.peak + optimizer,
        # AdamW on a CPU makes the denominator of the largest weight, twice; in one kernel nothing.
        update_peak=weights + gradients + optimizer + 8 * max(sizes, default=0) * (kind == "cpu"),
        launches=live.launched - launched,
    )


@functools.lru_cache(maxsize=64)
def evaluation_peak(workload: Workload, *, kind: str, precision: str, shares_keys: bool = True) -> int:
    """Bytes at the fullest moment of a workload's evaluation, weights included.

    They are 0 where the workload has no evaluation.
    """
    if workload.evaluation is None:
        return 0
    fake, model = _without_numbers(workload.model)
    live = LiveBytes([*model.parameters(), *model.buffers()])
    with fake, _kernels_of(kind, precision, shares_keys), torch.no_grad(), _autocast(precision), live:
        workload.evaluation(model.eval())
    return live.peak


def _autocast(precision: str) -> torch.autocast:
    return torch.autocast("cpu", dtype=HALF.get(precision), enabled=precision in HALF)


def _without_numbers(model: nn.Module) -> tuple[FakeTensorMode, nn.Module]:
    """A copy of the model on fake tensors, and their mode."""
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def make(tensor: torch.Tensor) -> torch.Tensor:
        with fake:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    return fake, copy_with(model, make)


def transformer_of(model: nn.Module) -> nn.Module | None:
    """The transformers model, whose activations are recomputed: the outermost one in a model or a loss."""
    from transformers import PreTrainedModel

    for module in model.modules():
        if isinstance(module, PreTrainedModel):
            return module
    return None


@contextlib.contextmanager
def _kernels_of(kind: str, precision: str, shares_keys: bool = True):
    """Does with CPU tensors what the device does.

    CUDA: attention is fused with dropout, too, dropout masks have one byte, and under autocast its own list is fp32
    (torch/aten/src/ATen/autocast_mode.h, AT_FORALL_FP32; those that take part in training). XLA: no fused attention.
    """
    allow = torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp
    with contextlib.ExitStack() as stack:

        def patch(owner, name: str, function) -> None:
            stack.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, function)

        allow(kind == "xla")  # a GPU's written out products are in fp32
        stack.callback(allow, False)
        if kind == "cuda":
            patch(functional, "dropout", _dropout)
            if precision in HALF:
                for owner, functions in IN_FP32.items():
                    for name in functions:
                        patch(owner, name, _in_fp32(getattr(owner, name)))
        if kind != "cpu":
            patch(functional, "scaled_dot_product_attention", functools.partial(_attention, kind, shares_keys))
        yield


def _attention(kind, shares_keys, query, key, value, *args, attend=functional.scaled_dot_product_attention, **kwargs):
    """The kernel that PyTorch chooses on a GPU, or none: the products written out, as torch_xla computes them.

    Heads that share keys (`enable_gqa`) have a fused kernel from sm_80 on and in half precision alone; elsewhere the products are
    written out (huggingface/transformers#48633). A CPU's fused kernel keeps the matrix for its dropout, a GPU's does not.
    """
    half = query.dtype in HALF.values() or torch.is_autocast_enabled("cpu")
    if kind == "cuda" and (not kwargs.get("enable_gqa") or (half and shares_keys)):
        return attend(query, key, value, *args, **(kwargs | {"dropout_p": 0.0}))
    with sdpa_kernel(SDPBackend.MATH):
        return attend(query, key, value, *args, **kwargs)


def _dropout(input: torch.Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> torch.Tensor:
    if training and p > 0:
        return torch.native_dropout(input, p, training)[0]
    return input


def _in_fp32(function):
    def widened(input, *args, **kwargs):
        # `torch.pow` takes a number and a tensor, too.
        if isinstance(input, torch.Tensor) and input.dtype in HALF.values():
            input = input.float()
        return function(input, *args, **kwargs)

    return widened


# ---- bytes that are alive


class LiveBytes(TorchDispatchMode):
    """Bytes of all tensors that are alive while a piece of code runs, fake or real; each storage counts once.

    Args:
        tensors: what is there already.

    Attributes:
        now, peak: bytes.
        launched: how many operations that are no view, in-place ones included.
        flops: of the operations that torch has a formula for.
    """

    def __init__(self, tensors):
        super().__init__()
        self.now = self.peak = self.flops = self.launched = 0
        self._sizes: dict[int, int] = {}
        for tensor in tensors:
            self._count(tensor)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.launched += not (func.is_view or func.namespace == "prim")  # which asks a fake tensor for its device
        if func is ATEN._local_scalar_dense.default and isinstance(args[0], FakeTensor):
            return 0  # a number that code looks at and that a fake tensor does not have
        result = func(*args, **kwargs)
        formula = FLOPS.get(func._overloadpacket)
        if formula:
            self.flops += formula(*args, **kwargs, out_val=result)
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self._count(leaf)
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
