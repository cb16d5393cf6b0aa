"""helpers.plan.memory: bytes on tensors without numbers, beside real tensors and hand arithmetic."""

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification

from helpers.plan.memory import activations, state
from tests.workloads import Stack, stack_batch, stack_loss

pytestmark = pytest.mark.once


def test_state_is_weights_gradients_and_two_moments():
    model = Stack(3, width=64, frozen=1)
    layer = 64 * 64 + 64
    trained = 100 * 64 + 2 * layer + 64 * 100 + 100
    assert state(model) == {"weights": 4 * (trained + layer), "gradients": 4 * trained, "optimizer": 8 * trained}


def test_activations_are_those_that_autograd_saves_of_real_tensors():
    model, batch, saved = Stack(3), stack_batch(5), {}

    def save(tensor):
        saved[tensor.data_ptr()] = tensor.untyped_storage()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        loss = stack_loss(model, batch)
    for weight in model.parameters():
        saved.pop(weight.data_ptr(), None)
    assert activations(model, stack_loss, batch, "fp32", False) == sum(part.nbytes() for part in saved.values())
    loss.backward()


def bert(layers: int):
    sizes = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 500}
    return BertForSequenceClassification(BertConfig(num_hidden_layers=layers, **sizes))


def bert_loss(model, inputs):
    return model(**inputs).loss


def bert_batch(examples: int):
    ids = torch.ones(examples, 32, dtype=torch.long)
    return {"input_ids": ids, "attention_mask": ids, "labels": torch.zeros(examples, dtype=torch.long)}


def test_layers_that_are_computed_again_save_little():
    def of(layers: int, checkpointing: bool) -> int:
        return activations(bert(layers), bert_loss, bert_batch(4), "fp32", checkpointing)

    layer, inputs = of(9, False) - of(8, False), 4 * 32 * 64 * 4
    assert of(9, True) - of(8, True) == pytest.approx(inputs, rel=0.1)
    assert layer < of(8, True) - 8 * inputs < of(8, False) - 6 * layer
