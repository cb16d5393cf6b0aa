"""Accuracy of masked tokens and leaves against a loop over them."""

import numpy as np
import pytest
import torch

from helpers.graphmer.links.token_accuracy import TokenAccuracy

pytestmark = pytest.mark.once


def test_accuracy_of_masked_tokens_and_leaves_is_that_of_a_loop():
    torch.manual_seed(0)
    accuracy = TokenAccuracy((1, 3), leaves=True)
    counts = np.zeros(5, int)
    for _ in range(3):
        logits, labels = torch.randn(2, 5, 4, 6), torch.randint(0, 6, (2, 5, 4))
        logits.scatter_add_(-1, labels[..., None], torch.full(labels.shape, 2.5)[..., None])
        labels[torch.rand(labels.shape) < 0.4] = -100
        labels[0, 0] = -100
        accuracy.update(logits, labels)
        for leaf_logits, leaf in zip(logits.flatten(0, 1), labels.flatten(0, 1), strict=True):
            first = []
            for row, label in zip(leaf_logits, leaf.tolist(), strict=True):
                if label >= 0:
                    order = row.argsort(descending=True).tolist()
                    first.append(order[0] == label)
                    counts += [order[0] == label, label in order[:3], 1, 0, 0]
            counts += [0, 0, 0, bool(first) and all(first), bool(first)]
    found = accuracy.summary()
    assert [found["top1"]["count"], found["top3"]["count"], found["top1"]["of"]] == counts[:3].tolist()
    assert [found["leaf"]["count"], found["leaf"]["of"]] == counts[3:].tolist()
    assert 0 < counts[3] < counts[4]


def test_a_constant_or_broken_model_is_never_right():
    for value in (0.0, float("nan")):
        accuracy = TokenAccuracy((1, 2))
        accuracy.update(torch.full((1, 3, 5), value), torch.tensor([[0, 4, -100]]))
        assert [accuracy.summary()[key]["count"] for key in ("top1", "top2")] == [0, 0]
    assert TokenAccuracy(leaves=True).summary()["leaf"]["rate"] is None
    with pytest.raises(ValueError, match=r"logits \[1, 3, 5\], labels \[1, 2\]"):
        accuracy.update(torch.zeros(1, 3, 5), torch.zeros(1, 2, dtype=torch.long))
