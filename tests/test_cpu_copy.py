"""A copy on the CPU: its own memory, tied weights still tied, what is shared shared."""

import torch

from helpers.machine.engine import cpu_copy

from .models import tiny


def test_a_copy_on_the_cpu_has_memory_of_its_own():
    model = tiny("Llama", tie_word_embeddings=True)
    model.card = {"trainer": object()}
    model.model.norm.weight.requires_grad_(False)
    before = [tensor.clone() for tensor in (*model.parameters(), *model.buffers())]
    copied = cpu_copy(model)
    with torch.no_grad():
        for tensor in (*copied.parameters(), *copied.buffers()):
            tensor.add_(1)
    torch.testing.assert_close([*model.parameters(), *model.buffers()], before, rtol=0, atol=0)
    assert copied.lm_head.weight is copied.model.embed_tokens.weight
    assert not copied.model.norm.weight.requires_grad and copied.lm_head.weight.requires_grad
    assert cpu_copy(model, model.card).card is model.card is not copied.card
