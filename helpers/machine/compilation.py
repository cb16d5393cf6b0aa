"""torch.compile of a transformer's layers in place, while it trains: fewer and larger kernels, and the names of all weights stay."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import nn

# Otherwise inductor times kernels and takes the fastest, which the next process may see in another way.
BACKEND = {"backend": "inductor", "options": {"deterministic": True}}
COMPILERS = ("torch._dynamo", "torch._inductor", "triton")


@contextlib.contextmanager
def compiled_layers(transformer: nn.Module) -> Iterator[None]:
    """Compiles each layer, for each shape that it meets, and gives its code back afterwards: a text is written with any number of tokens."""
    stacks = [module for module in transformer.modules() if isinstance(module, nn.ModuleList)]
    layers = max(stacks, key=len, default=())
    torch.compiler.reset()  # after eight variants of a function PyTorch would stop compiling
    try:
        for layer in layers:
            layer.compile(dynamic=False, **BACKEND)
        yield
    finally:
        for layer in layers:
            layer._compiled_call_impl = None  # torch has no function for it


def is_compiler_failure(error: BaseException) -> bool:
    """Whether a compiler failed, and not the model: none for this machine, or an installed torch without an option of BACKEND."""
    modules = [kind.__module__ for kind in type(error).__mro__]
    return "optimization option" in str(error) or any(module.startswith(COMPILERS) for module in modules)
