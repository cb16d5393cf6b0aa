"""What one device needs to train: its state exactly, activations as autograd saves them, found on tensors without numbers."""

from __future__ import annotations

import torch
from torch import nn

# Fake tensors, which have a shape and no numbers, have no public name.
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_map_only

from helpers.machine.attention import checkpoint_activations
from helpers.machine.engine import copy_with


def state(model: nn.Module) -> dict[str, int]:
    """Bytes of weights, gradients and AdamW's two moments."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    return {
        "weights": sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers())),
        "gradients": sum(weight.nbytes for weight in trained),
        "optimizer": 8 * sum(weight.numel() for weight in trained),
    }


def activations(model: nn.Module, loss, batch, precision: str, checkpointing: bool) -> int:
    """Bytes that the forward pass of a batch saves for the backward pass, beside the weights; nothing is computed.

    checkpointing: layers save their inputs alone and are computed again one at a time, so that the tensors of one layer are added.

    The sum is not the peak: what the backward pass makes is not in it, nor what is special to the kernels of a GPU or to XLA.
    """
    everything = _saved(model, loss, batch, precision, False)
    if not checkpointing:
        return everything
    outside = _saved(model, loss, batch, precision, True)
    layers = max(len(module) for module in model.modules() if isinstance(module, nn.ModuleList))
    return outside + (everything - outside) // layers


def _saved(model: nn.Module, loss, batch, precision: str, checkpointing: bool) -> int:
    fake = FakeTensorMode(allow_non_fake_inputs=True)

    def without_numbers(tensor: torch.Tensor) -> torch.Tensor:
        with fake:
            return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)

    model = copy_with(model, without_numbers).train()
    for module in model.modules():
        if checkpointing and hasattr(module, "supports_gradient_checkpointing"):
            checkpoint_activations(module, "cpu")
            break
    batch = tree_map_only(torch.Tensor, fake.from_tensor, batch)
    storages = {}

    def save(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor)
    autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision != "fp32")  # fp16 has as many bytes
    with fake, hooks, autocast, torch.random.fork_rng(devices=[]):
        loss(model, batch)
    for tensor in (*model.parameters(), *model.buffers()):
        storages.pop(tensor.untyped_storage()._cdata, None)
    return sum(storage.nbytes() for storage in storages.values())
