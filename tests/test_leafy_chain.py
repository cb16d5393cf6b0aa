"""Graph distances in closed form against scipy's shortest paths."""

import numpy as np
import pytest
import torch
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import shortest_path

from helpers.graphmer.modeling_graphmer.graph_attention import distances

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
def test_distances_of_a_leaf_at_every_root_are_shortest_paths(roots, leaf_tokens):
    found = distances(roots, torch.arange(roots)[None], leaf_tokens)
    assert found.shape == (1, roots * (1 + leaf_tokens), roots * (1 + leaf_tokens))
    np.testing.assert_array_equal(found[0].numpy(), searched(roots, list(range(roots)), leaf_tokens))


@pytest.mark.parametrize("seed", range(8))
def test_distances_are_shortest_paths(seed):
    draw = np.random.default_rng(seed)
    batch, roots, leaves, leaf_tokens = (int(draw.integers(1, high)) for high in (4, 40, 12, 9))
    starts = draw.integers(0, roots, (batch, leaves))
    found = distances(roots, torch.from_numpy(starts), leaf_tokens)
    assert found.dtype == torch.int32
    for row in range(batch):
        np.testing.assert_array_equal(found[row].numpy(), searched(roots, starts[row].tolist(), leaf_tokens))


ON_XLA = """
import json
import torch
from helpers.machine import xla
xla.start()
import torch_xla
from helpers.graphmer.modeling_graphmer.graph_attention import distances

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
