"""A model in evaluation mode for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TypeVar

from torch import nn

Model = TypeVar("Model", bound=nn.Module)


@contextlib.contextmanager
def evaluating(model: Model) -> Iterator[Model]:
    """The model in evaluation mode; afterwards each of its modules is in the mode that it had."""
    modes = {module: module.training for module in model.modules()}
    try:
        yield model.eval()
    finally:
        for module, mode in modes.items():
            module.training = mode
