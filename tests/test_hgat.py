"""H-GAT, held triple by triple against a loop over the formula of the paper; gradients too."""

import pytest
import torch

from helpers.graphmer.modeling_graphmer.graph_attention import HGAT, SLOPE, relation_product

# B batch · G leaves · L leaf tokens · H head tokens · D width · R relations
R, D = 5, 6


def new_hgat(bias: bool = True, dropout: float = 0.0) -> HGAT:
    hgat = HGAT(R, D, bias=bias, dropout=dropout).double()
    draw = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in hgat.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=draw, dtype=torch.float64))
    return hgat


def triples(B: int, G: int, L: int, H: int, leaves: int, seed: int = 0):
    """Random tokens; the first `leaves` slots of the batch hold triples with heads of 1..H tokens."""
    draw = torch.Generator().manual_seed(seed)
    leaf = torch.randn(B, G, L, D, generator=draw, dtype=torch.float64, requires_grad=True)
    head = torch.randn(B, G, H, D, generator=draw, dtype=torch.float64, requires_grad=True)
    there = (torch.arange(B * G) < leaves).view(B, G)
    length = torch.randint(1, H + 1, (B, G), generator=draw) * there
    relation = torch.randint(1, R + 1, (B, G), generator=draw) * there
    return leaf, head, torch.arange(H) < length[..., None], relation


def slow_update(hgat: HGAT, leaf, head, mask, relation) -> torch.Tensor:
    """sum_j alpha_lj W_r h_j + b_r for one tail token after the other."""
    rows = []
    for b, g in ((b, g) for b in range(leaf.shape[0]) for g in range(leaf.shape[1])):
        heads = [head[b, g, j] for j in range(head.shape[2]) if mask[b, g, j]]
        for t in leaf[b, g]:
            if not heads or relation[b, g] == 0:
                rows.append(torch.zeros_like(t))
                continue
            r = int(relation[b, g]) - 1
            W, a = hgat.weight[r], torch.cat((hgat.attention[r, 0], hgat.attention[r, 1]))
            scores = [torch.dot(a, torch.cat((W @ t, W @ h))) for h in heads]
            scores = torch.stack([e if e > 0 else SLOPE * e for e in scores])
            shares = torch.exp(scores - scores.max()) / torch.exp(scores - scores.max()).sum()
            row = sum(share * (W @ h) for share, h in zip(shares, heads, strict=True))
            rows.append(row if hgat.bias is None else row + hgat.bias[r])
    return torch.stack(rows).view_as(leaf)


SHAPES = {
    "no triple": (2, 3, 4, 2, 0),
    "one triple": (2, 3, 4, 2, 1),
    "many triples": (4, 9, 7, 3, 33),
    "one leaf token": (2, 5, 1, 4, 10),
    "one head token": (2, 5, 7, 1, 9),
    "long heads": (1, 4, 2, 8, 4),
}


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_update_and_its_gradients_equal_the_loop_over_triples(shape, bias):
    hgat, (leaf, head, mask, relation) = new_hgat(bias), triples(*shape)
    found, expected = hgat(leaf, head, mask, relation), slow_update(hgat, leaf, head, mask, relation)
    assert torch.allclose(found, expected, atol=1e-6)
    wanted = [*hgat.parameters(), leaf, head]
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad((found * weights).sum(), wanted, allow_unused=True)
    if not shape[-1]:
        assert all(gradient is None or not gradient.any() for gradient in ours)
        return
    theirs = torch.autograd.grad((expected * weights).sum(), wanted, allow_unused=True)
    for mine, loop in zip(ours, theirs, strict=True):
        loop = torch.zeros_like(mine) if loop is None else loop
        assert torch.allclose(mine, loop, atol=1e-5, rtol=1e-5)
    assert ours[0].any()


def test_a_leaf_without_a_head_or_a_relation_gets_nothing():
    hgat, (leaf, head, mask, relation) = new_hgat(), triples(2, 3, 4, 2, 6)
    mask[0, 1], relation[1, 2] = False, 0
    update = hgat(leaf, head, mask, relation)
    empty = (update == 0).all(-1).all(-1)
    assert empty.nonzero().tolist() == [[0, 1], [1, 2]]


def test_what_stands_beyond_the_head_does_not_matter():
    hgat, (leaf, head, mask, relation) = new_hgat(), triples(2, 3, 4, 5, 6)
    changed = torch.where(mask[..., None], head, torch.full_like(head, 1e3))
    assert torch.equal(hgat(leaf, head, mask, relation), hgat(leaf, changed, mask, relation))


@pytest.mark.parametrize("relations", [[0] * 21, [0, 1, 2, 3, 4] * 4, [4] * 8 + [0] * 9, [2]])
def test_product_by_relation_equals_one_matrix_after_another(relations):
    draw = torch.Generator().manual_seed(0)
    vectors_PLD = torch.randn(len(relations), 3, D, generator=draw)
    weight_RDD = torch.randn(R, D, D, generator=draw)
    found = relation_product(vectors_PLD, torch.tensor(relations), weight_RDD)
    for p, r in enumerate(relations):
        for vector, product in zip(vectors_PLD[p], found[p], strict=True):
            assert torch.allclose(weight_RDD[r] @ vector, product, atol=1e-5)


def test_relations_drop_out_in_training_only():
    hgat, arguments = new_hgat(dropout=0.3), triples(2, 3, 4, 2, 6)
    torch.manual_seed(0)
    assert not torch.allclose(hgat(*arguments), hgat(*arguments))
    hgat.eval()
    assert torch.equal(hgat(*arguments), new_hgat()(*arguments))
