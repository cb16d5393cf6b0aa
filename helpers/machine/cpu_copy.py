"""A copy of a model on the CPU, for generating text of growing length beside XLA, or for an export."""

from __future__ import annotations

import copy
import itertools
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def cpu_copy(model: Model, *shared: object) -> Model:
    """A copy with its own memory on the CPU, made without a second copy on the device.

    shared: objects that the copy shares with the model, because copying them would copy more than the model.
    """
    memo: dict[int, object] = {id(one): one for one in shared}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        own = tensor.detach().to("cpu", copy=True)  # .cpu() returns a CPU tensor itself
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(own, requires_grad=tensor.requires_grad) if is_parameter else own
    return copy.deepcopy(model, memo)
