"""Graph distances in closed form against scipy's shortest paths, and the two layouts of one batch."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path

from helpers.graphmer.leafy_chain import distances, full_layout

from .xla_process import answers_on_xla


def searched(roots: int, starts: list[int], leaf_tokens: int) -> np.ndarray:
    """Shortest paths in the graph as the paper draws it, edge by edge."""
    edges = [(i, i + 1) for i in range(roots - 1)]
    for leaf, start in enumerate(starts):
        first = roots + leaf * leaf_tokens
        edges += [(start, first + slot) for slot in range(leaf_tokens)]
        edges += [(first + slot, first + slot + 1) for slot in range(leaf_tokens - 1)]
    tokens = roots + len(starts) * leaf_tokens
    one, other = np.array(edges).reshape(-1, 2).T
    graph = coo_matrix((np.ones(len(edges)), (one, other)), shape=(tokens, tokens))
    return shortest_path(graph, directed=False, unweighted=True)


@pytest.mark.parametrize(("roots", "leaf_tokens"), [(4, 2), (16, 3), (128, 7)])
def test_full_layout_distances_are_shortest_paths(roots, leaf_tokens):
    found = distances(roots, torch.arange(roots)[None], leaf_tokens)
    assert found.shape == (1, roots * (1 + leaf_tokens), roots * (1 + leaf_tokens))
    np.testing.assert_array_equal(found[0].numpy(), searched(roots, list(range(roots)), leaf_tokens))


@pytest.mark.parametrize("seed", range(8))
def test_compact_distances_are_shortest_paths(seed):
    draw = np.random.default_rng(seed)
    batch, roots, leaves, leaf_tokens = (int(draw.integers(1, high)) for high in (4, 40, 12, 9))
    starts = draw.integers(0, roots, (batch, leaves))
    found = distances(roots, torch.from_numpy(starts), leaf_tokens)
    assert found.dtype == torch.int32
    for row in range(batch):
        np.testing.assert_array_equal(found[row].numpy(), searched(roots, starts[row].tolist(), leaf_tokens))


def compact_batch():
    """Two sequences of 6 roots with leaves at different roots; one leaf slot is empty."""
    head_start = torch.tensor([[4, 0, 2], [3, 5, 0]])
    segments = torch.tensor([[2, 1, 1], [1, 1, 0]])
    known = torch.zeros(2, 3, 6, dtype=torch.bool)
    known[0, 1, 4] = known[1, 0, 2] = True
    return {
        "root_ids": torch.arange(12).view(2, 6),
        "root_segments": torch.ones(2, 6, dtype=torch.int64),
        "mlm_labels": torch.full((2, 2), -100),
        "leaf_ids": torch.arange(12).view(2, 3, 2) + 20,
        "leaf_segments": segments,
        "head_start": head_start,
        "head_length": segments.clamp(max=1),
        "mnm_labels": torch.arange(12).view(2, 3, 2) + 50,
        "triple_labels": torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, -100.0]]),
        "tail_entities": torch.tensor([[7, 8, 9], [10, 11, -1]]),
        "known_BGX": known,
    }


def test_full_layout_keeps_every_leaf_at_its_root():
    batch = compact_batch()
    full = full_layout(batch)
    assert full["head_start"].tolist() == [list(range(6))] * 2
    assert full["root_ids"] is batch["root_ids"]
    for name in ("leaf_ids", "leaf_segments", "head_length", "mnm_labels", "triple_labels", "tail_entities"):
        empty = {"mnm_labels": -100, "triple_labels": -100, "tail_entities": -1}.get(name, 0)
        for row in range(2):
            hung = {
                int(root): leaf
                for leaf, root in enumerate(batch["head_start"][row])
                if batch["leaf_segments"][row, leaf]
            }
            for root in range(6):
                expected = batch[name][row, hung[root]] if root in hung else torch.full_like(batch[name][row, 0], empty)
                assert torch.equal(full[name][row, root], expected), (name, row, root)
    # (row 0, leaf 1 at root 0) knows (row 1, leaf 1 at root 5); (row 1, leaf 0 at root 3) knows (row 0, leaf 2 at root 2)
    assert full["known_BGX"].nonzero().tolist() == [[0, 0, 11], [1, 3, 2]]


def test_both_layouts_are_as_far_apart():
    batch = compact_batch()
    compact, full = distances(6, batch["head_start"], 2), distances(6, full_layout(batch)["head_start"], 2)
    for row in range(2):
        leaves = [leaf for leaf in range(3) if batch["leaf_segments"][row, leaf]]
        here = [*range(6), *(6 + 2 * leaf + slot for leaf in leaves for slot in range(2))]
        there = [
            *range(6),
            *(6 + 2 * int(batch["head_start"][row, leaf]) + slot for leaf in leaves for slot in range(2)),
        ]
        assert torch.equal(compact[row][here][:, here], full[row][there][:, there])


def test_two_leaves_at_one_root_have_no_full_layout():
    batch = compact_batch()
    batch["head_start"][0] = torch.tensor([2, 0, 2])
    with pytest.raises(ValueError, match="two leaves at one root"):
        full_layout(batch)


ON_XLA = """
import json
import torch
from helpers import xla
xla.start()
import torch_xla
from helpers.graphmer.leafy_chain import distances

starts = [torch.randint(0, 20, (4, 6), generator=torch.Generator().manual_seed(seed)) for seed in range(3)]
on_host = [distances(20, one, 7) for one in starts]
answers = {"compiles": [], "syncs": [], "equal": []}
moved = [one.to(torch_xla.device()) for one in starts]
xla.sync()
for one, expected in zip(moved, on_host):
    before = xla.counters()
    found = distances(20, one, 7)
    xla.sync()
    after = xla.counters()
    answers["compiles"].append(after["compiles"] - before["compiles"])
    answers["syncs"].append(sum(after[name] - before[name] for name in ("host_transfers", "item_calls")))
    answers["equal"].append(torch.equal(found.cpu(), expected))
print("ANSWERS " + json.dumps(answers))
"""


def test_distances_compile_once_on_xla_and_ask_the_host_nothing():
    answers = answers_on_xla(ON_XLA, devices=1)
    assert answers["equal"] == [True] * 3
    assert answers["compiles"][1:] == [0, 0]
    assert answers["syncs"] == [0, 0, 0]
