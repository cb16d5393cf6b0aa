"""A copy on the CPU: its own memory, tied weights still tied, what is shared shared."""

import torch
from torch import nn

from helpers.machine.engine import cpu_copy


class Model(nn.Module):
    def __init__(self, card):
        super().__init__()
        self.embedding, self.head = nn.Embedding(5, 3), nn.Linear(3, 5)
        self.head.weight = self.embedding.weight
        self.head.bias.requires_grad_(False)
        self.register_buffer("frozen", torch.arange(4.0))
        self.card = card


def test_a_copy_has_memory_of_its_own_and_is_as_the_model_was():
    model = Model(card={"trainer": object()})
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copied = cpu_copy(model)
    with torch.no_grad():
        copied.embedding.weight.add_(1)
        copied.frozen.mul_(2)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert torch.equal(copied.frozen, 2 * model.frozen)
    assert copied.head.weight is copied.embedding.weight
    assert not copied.head.bias.requires_grad and copied.embedding.weight.requires_grad
    assert copied.card is not model.card


def test_what_is_shared_is_not_copied():
    model = Model(card={"trainer": object()})
    assert cpu_copy(model, model.card).card is model.card
