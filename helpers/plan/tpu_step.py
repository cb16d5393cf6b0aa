"""A training step traced for a TPU: real size, no numbers, nothing executed.

    begin()
    traced = trace(workload, 8, precision="bf16")        # torch_xla, no TPU, no memory; seconds
    compile_step(traced, "v5e-8")                        # tpu_compiler.py

The step is the trainer's: forward and backward under autocast, clipping, AdamW. Every weight, moment and batch is a placeholder.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from unittest import mock

from helpers.machine import attention, xla

from .workloads import Workload


@dataclass(frozen=True, kw_only=True)
class Traced:
    """A step as an HLO module of one device that sees the whole batch."""

    name: str
    module: bytes
    batch: frozenset[int]  # arguments that are split over the chips, along their first axis
    state: frozenset[int]  # arguments that the step overwrites: weights, moments, gradients
    held: int  # bytes of weights, moments and gradients, which a chip holds between two steps
    examples: int  # of a step, over all chips
    fingerprint: bytes  # under which torch_xla keeps the compiled program: a step that has it is not compiled again


def begin() -> None:
    """Makes the device that steps are traced on; before the first backward pass of the process, even of a counted step.

    Autograd looks at the devices once, at its first backward pass, and knows no later one.

    Raises RuntimeError where torch_xla is not installed.
    """
    if not xla.installed():
        raise RuntimeError("tracing a TPU's step needs torch_xla: install requirements-tpu.txt")
    # The last two: each operation is named after the line that asked for it.
    os.environ |= {"PJRT_DEVICE": xla.REHEARSAL, "CPU_NUM_DEVICES": "1", "XLA_IR_DEBUG": "1", "XLA_HLO_DEBUG": "1"}
    xla.tracing()
    import torch

    torch.zeros(1, device="xla")


def trace(
    workload: Workload,
    examples: int,
    *,
    precision: str = "bf16",
    length: int = 0,
    checkpointing: bool = False,
    accumulating: bool = False,
    chips: int = 1,
) -> Traced:
    """The optimizer step after a micro-batch; where a run cuts that into programs, the last and largest of them.

    Args:
        workload: model, batch and loss; its weights are looked at for shapes alone.
        examples: of the micro-batch, over all chips.
        precision: "bf16" autocast, or "fp32".
        length: tokens of a sequence; 0 = the workload's.
        checkpointing: activations are computed again in backward.
        accumulating: gradients of earlier micro-batches are added to.
        chips: that will share the micro-batch; modules with `batch_groups` sum over each chip's part by itself.
    """
    import torch
    from torch.utils._pytree import tree_leaves, tree_map_only

    from .counting import _transformer, copy_with

    xla.seed(0)  # or dropout's random numbers go on from those of an earlier trace
    model = copy_with(workload.model, _placeholder)
    model.train()
    if transformer := _transformer(model):
        attention.use_one_dtype(transformer)
        if checkpointing:
            attention.checkpoint_activations(transformer, "xla")
    for module in model.modules():
        if hasattr(module, "batch_groups"):
            module.batch_groups = chips
    batch = tree_map_only(torch.Tensor, _placeholder, workload.batch(examples, length or workload.length))
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    for weight in trained:
        moments = {name: _placeholder(weight) for name in ("exp_avg", "exp_avg_sq")}
        optimizer.state[weight].update(step=torch.tensor(1.0), **moments)
        if accumulating:
            weight.grad = _placeholder(weight)
    moments = [each for state in optimizer.state.values() for name, each in state.items() if name != "step"]
    gradients = [weight.grad for weight in trained if accumulating]
    state = [*trained, *moments, *gradients]
    batches, states = ({_identity(each) for each in tensors} for tensors in (tree_leaves(batch), state))
    with mock.patch.object(xla, "sync", lambda: None):  # a step that cuts its graph would start it
        with torch.autocast("xla", dtype=torch.bfloat16, enabled=precision == "bf16"):
            loss = (workload.program if accumulating and workload.program else workload.loss)(model, batch)
        loss.backward()
    torch.nn.utils.clip_grad_norm_(trained, 1.0)
    optimizer.step()
    module, arguments, fingerprint = _program([loss.detach(), *(each.detach() for each in (*trained, *moments))])
    return Traced(
        name=f"{workload.notebook} {workload.name}",
        module=module,
        batch=frozenset(at for at, each in enumerate(arguments) if each in batches),
        state=frozenset(at for at, each in enumerate(arguments) if each in states),
        held=sum(each.numel() * each.element_size() for each in state),
        examples=examples,
        fingerprint=fingerprint,
    )


def _placeholder(tensor):
    """A device tensor of this shape and dtype without numbers: steps on it can be traced, and never be run."""
    _, builder = xla.tracing()
    return builder.create_placeholder_tensor(tensor.shape, tensor.dtype)


def _identity(tensor) -> int:
    """The number by which `_program` names a tensor that a trace began with."""
    bindings, _ = xla.tracing()
    return bindings._xla_get_tensor_id(tensor)


def _program(outputs) -> tuple[bytes, list[int], bytes]:
    """The HLO module that computes `outputs`, serialised, the `_identity` of each of its arguments, and its fingerprint.

    A number that the host computed has one that no tensor has.
    """
    bindings, _ = xla.tracing()
    module, arguments = (
        bindings._get_xla_tensors_hlo_proto(outputs),
        bindings._get_tensors_xla_device_data_node(outputs)[0],
    )
    return module, arguments, bindings._get_graph_hash(outputs)
