"""A loop over time on each device: one While loop on XLA, one CUDA graph on a GPU, a plain loop elsewhere.

# T steps of time
"""

from __future__ import annotations

import torch

try:
    from helpers.machine import xla
except ImportError:  # a saved model is loaded without this suite
    xla = None

GRAPH_CAPABILITY = (7, 0)  # CUDA graphs are used from here on (Volta)
MOST_GRAPHS = 4  # training and evaluation have a shape each, and a graph keeps its memory
_graphs: dict = {}  # by step and shapes


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
    """`plain` by one launch: captured when a shape is first seen, then replayed on copies of what is given."""
    given = (*carry, *inputs)
    key = (step, given[0].device, *(tensor.shape for tensor in given))
    if key not in _graphs:
        while len(_graphs) >= MOST_GRAPHS:
            del _graphs[next(iter(_graphs))]
        _graphs[key] = _captured(step, len(carry), [tensor.contiguous().clone() for tensor in given])
    graph, kept, outs = _graphs[key]
    for ours, new in zip(kept, given, strict=True):
        ours.copy_(new)
    graph.replay()
    return outs.clone()  # the next replay overwrites what this one gave


def _captured(step, carried: int, kept: list[torch.Tensor]):
    def run() -> torch.Tensor:
        return plain(step, tuple(kept[:carried]), tuple(kept[carried:]))

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # what is made once, such as cuBLAS's workspace, must not be in the graph
        run()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outs = run()
    return graph, kept, outs


def shared(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor [B, ...], on XLA with its batch split over the chips."""
    return xla.shard_batch(tensor) if xla is not None and tensor.device.type == "xla" else tensor
