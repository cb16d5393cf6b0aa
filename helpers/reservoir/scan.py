"""A loop over time on each device: one While loop on XLA, one CUDA graph on a GPU, a plain loop elsewhere.

# T steps of time
"""

from __future__ import annotations

import functools

import torch

try:
    from helpers.machine import xla
except ImportError:  # a saved model is loaded without this suite
    xla = None

GRAPH_CAPABILITY = (7, 0)  # CUDA graphs are used from here on (Volta)


def scan(step, carry: tuple, inputs: tuple) -> torch.Tensor:
    """Runs `carry, out = step(carry, inputs at t)` for every t, and returns all outs [T, ...]. No gradient is kept.

    step: a function at module level that closes over no tensor, since XLA's loop hoists none.
    carry: tensors. inputs: tensors [T, ...].
    """
    device, times = inputs[0].device, len(inputs[0])
    if device.type == "xla" and xla is not None:
        return xla.scan(step, carry, inputs)[1]
    if device.type == "cuda" and times > 1 and torch.cuda.get_device_capability(device) >= GRAPH_CAPABILITY:
        return graphed(step, carry, inputs)
    return plain(step, carry, inputs)


def plain(step, carry: tuple, inputs: tuple) -> torch.Tensor:
    outs = []
    for each in zip(*(tensor.unbind() for tensor in inputs), strict=True):
        carry, out = step(carry, each)
        outs.append(out)
    return torch.stack(outs)


def graphed(step, carry: tuple, inputs: tuple) -> torch.Tensor:
    """`plain` in one launch: a CUDA graph, captured when shapes are first seen and replayed on copies of the tensors (all fp32)."""
    given = (*carry, *inputs)
    graph = _graph(step, len(carry), tuple(each.shape for each in given), given[0].device)
    return graph(*given).clone()  # the next replay overwrites what this one returned


@functools.lru_cache(maxsize=4)  # training and evaluation have a shape each, and a graph keeps its memory
def _graph(step, carried: int, shapes: tuple, device):
    samples = tuple(torch.zeros(shape, device=device) for shape in shapes)
    return torch.cuda.make_graphed_callables(lambda *given: plain(step, given[:carried], given[carried:]), samples)


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor [B, ...], on XLA with its batch split over the chips."""
    return xla.shard_batch(tensor) if xla is not None and tensor.device.type == "xla" else tensor
