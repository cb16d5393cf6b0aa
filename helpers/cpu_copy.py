"""A model's twin on the CPU, for what a device does badly: text of growing length on XLA, or an export."""

from __future__ import annotations

import copy
import itertools
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


def cpu_copy(model: Model, *shared: object) -> Model:
    """A copy with every weight in memory of its own on the CPU; the device holds no second one meanwhile.

    shared: objects that model and copy have in common, where copying them would copy more than the model.
    """
    memo: dict[int, object] = {id(one): one for one in shared}
    for tensor in itertools.chain(model.parameters(), model.buffers()):
        own = tensor.detach().to("cpu", copy=True)  # .cpu() would share the memory of one that is there
        is_parameter = isinstance(tensor, nn.Parameter)
        memo[id(tensor)] = nn.Parameter(own, requires_grad=tensor.requires_grad) if is_parameter else own
    return copy.deepcopy(model, memo)
