"""Accuracy of masked tokens and leaves against a loop over them."""

import numpy as np
import pytest
import torch

from helpers.graphmer.evaluation import count_right

pytestmark = pytest.mark.once


def test_accuracy_of_masked_tokens_and_leaves_is_that_of_a_loop():
    torch.manual_seed(0)
    logits, labels = torch.randn(6, 5, 4, 6), torch.randint(0, 6, (6, 5, 4))
    logits.scatter_add_(-1, labels[..., None], torch.full(labels.shape, 2.5)[..., None])
    labels[torch.rand(labels.shape) < 0.4] = -100
    labels[0, 0] = -100
    counts = np.zeros(4, int)
    for leaf_logits, leaf in zip(logits.flatten(0, 1), labels.flatten(0, 1), strict=True):
        first = []
        for row, label in zip(leaf_logits, leaf.tolist(), strict=True):
            if label >= 0:
                first.append(row.argsort(descending=True).tolist()[0] == label)
                counts += [first[-1], 1, 0, 0]
        counts += [0, 0, bool(first) and all(first), bool(first)]
    assert count_right(logits, labels).tolist() == counts.tolist()
    assert count_right(logits.flatten(1, 2), labels.flatten(1)).tolist() == counts[:2].tolist()
    assert 0 < counts[2] < counts[3]


@pytest.mark.parametrize("value", [0.0, float("nan")])
def test_a_constant_or_broken_model_is_never_right(value):
    assert count_right(torch.full((1, 3, 5), value), torch.tensor([[0, 4, -100]])).tolist() == [0, 2]
