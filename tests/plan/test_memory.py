"""helpers.plan.memory: bytes on tensors without numbers, beside real tensors and hand arithmetic."""

import pytest
import torch
from torch import nn

from helpers.plan.memory import activations, state
from tests.models import tiny

pytestmark = pytest.mark.once


def stack() -> nn.Module:
    """Equal layers between an embedding and a head."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)]
    return nn.Sequential(nn.Embedding(100, 64), *layers, nn.Linear(64, 100))


def stack_loss(model, ids):
    """Of predicting the input itself."""
    return nn.functional.cross_entropy(model(ids).flatten(0, 1), ids.flatten())


def stack_batch(examples: int):
    return torch.randint(0, 100, (examples, 16))


def test_state_is_weights_gradients_and_two_moments():
    model = nn.Linear(3, 5)
    model.bias.requires_grad_(False)
    assert state(model) == {"weights": 80, "gradients": 60, "optimizer": 120}


def test_activations_are_those_that_autograd_saves_of_real_tensors():
    model, batch, saved = stack(), stack_batch(5), {}

    def save(tensor):
        saved[tensor.data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = stack_loss(model, batch)
    for weight in model.parameters():
        saved.pop(weight.data_ptr(), None)
    assert activations(model, stack_loss, batch, "fp32", False) == sum(part.nbytes() for part in saved.values())
    loss.backward()


def test_layers_that_are_computed_again_save_little():
    ids = torch.ones(4, 32, dtype=torch.long)

    def of(layers: int, checkpointing: bool) -> int:
        model = tiny("Llama", num_hidden_layers=layers)
        return activations(model, lambda model, ids: model(ids, labels=ids).loss, ids, "fp32", checkpointing)

    layer, inputs = of(9, False) - of(8, False), ids.numel() * 32 * 4
    assert of(9, True) - of(8, True) == pytest.approx(inputs, rel=0.1)
    assert layer < of(8, True) - 8 * inputs < of(8, False) - 6 * layer
