"""The GraphMER encoder, held against slow loops over the formulas, itself elsewhere, and XLA."""

import math
from itertools import pairwise

import networkx
import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.graphmer.encoder import GraphMERConfig, GraphMERForPreTraining, GraphMERModel
from tests.harness import answers_on_xla, isolated

from .batches import PAD, L, config, inputs, leafy_batch, perturbed, weight_count

# B batch · S roots · G leaves · L leaf tokens · N tokens · D width · A attention heads


def encoder(**changes) -> GraphMERModel:
    torch.manual_seed(0)
    return perturbed(GraphMERModel(config(**changes))).double()


# ---- a slow encoder


def graph_distances(batch: dict, b: int) -> dict[int, dict[int, int]]:
    """Edges between neighbouring roots, a root and each slot of its leaves, and neighbouring slots of a leaf."""
    S, G = batch["root_ids"].shape[1], batch["leaf_ids"].shape[1]
    edges = [*pairwise(range(S))]
    for g in range(G):
        slots = range(S + g * L, S + g * L + L)
        edges += [*pairwise(slots), *((int(batch["head_start"][b, g]), slot) for slot in slots)]
    return dict(networkx.all_pairs_shortest_path_length(networkx.Graph(edges)))


def slow_norm(module, x):
    return x / torch.sqrt((x**2).mean() + 1e-6) * module.weight


def slow_gelu(x):
    return x * 0.5 * (1 + torch.erf(x / math.sqrt(2)))


def slow_fusion(hgat, leaf, heads, r):
    rows = []
    for t in leaf:
        scores = torch.stack(
            [hgat.attention[r, 0] @ (hgat.weight[r] @ t) + hgat.attention[r, 1] @ (hgat.weight[r] @ h) for h in heads]
        )
        shares = torch.softmax(torch.where(scores > 0, scores, 0.01 * scores), 0)
        rows.append(t + sum(share * (hgat.weight[r] @ h) for share, h in zip(shares, heads, strict=True)))
    return torch.stack(rows) + hgat.bias[r]


def slow_row(model: GraphMERModel, batch: dict, b: int) -> list[torch.Tensor]:
    """State of each token of one row, 0 at padding."""
    c, row = model.config, {name: tensor[b] for name, tensor in batch.items()}
    S, G, D, A = len(row["root_ids"]), len(row["leaf_ids"]), c.hidden_size, c.num_attention_heads
    roots = model.embedding.weight[row["root_ids"]]
    x = list(roots)
    segments, places = row["root_segments"].tolist(), row["root_positions"].tolist()
    leaf_of = [None] * S
    for g in range(G):
        start, length = int(row["head_start"][g]), int(row["head_length"][g])
        leaf = model.embedding.weight[row["leaf_ids"][g]]
        if length:
            leaf = slow_fusion(model.hgat, leaf, roots[start : start + length], int(row["relation_ids"][g]) - 1)
        for s in range(L):
            x.append(leaf[s] + model.leaf_embedding.weight[s])
            segments.append(int(row["leaf_segments"][g]) if row["leaf_ids"][g, s] != PAD else 0)
            places.append(places[start])
            leaf_of.append(g)
    distance = graph_distances(batch, b)
    N, size = len(x), D // A

    def head_of(token: int, root: int) -> int | None:
        """The relation of a leaf token if that root belongs to its head."""
        g = leaf_of[token]
        if g is None or root >= S:
            return None
        start, length = int(row["head_start"][g]), int(row["head_length"][g])
        return int(row["relation_ids"][g]) - 1 if start <= root < start + length else None

    def logit(a, i, j, query, key):
        exponent = slow_gelu(math.sqrt(distance[i][j] + 1) - model.decay.offset[a])
        value = query @ key / math.sqrt(size) * c.decay_base**exponent
        dear = places[j] > places[i] if a % 2 == 0 else places[j] < places[i]
        value = value - 2 ** (-8 * (a + 1) / A) * abs(places[i] - places[j]) * (2 if dear else 1)
        for relation in (head_of(i, j), head_of(j, i)):
            if relation is not None:
                value = value + model.relation_bias.weight[relation, a]
        return value

    x = [slow_norm(model.embedding_norm, vector) for vector in x]
    for layer in model.layers:
        normal = [slow_norm(layer.attention_norm, vector) for vector in x]
        inward = [(layer.attention.inward.weight @ vector).view(3, A, size) for vector in normal]
        queries, keys, values = ([[part[kind, a] for part in inward] for a in range(A)] for kind in range(3))
        for i in range(N):
            seen = [j for j in range(N) if segments[j] == segments[i] > 0]
            if not seen:
                continue
            mixed = []
            for a in range(A):
                scores = torch.stack([logit(a, i, j, queries[a][i], keys[a][j]) for j in seen])
                mixed.append(torch.softmax(scores, 0) @ torch.stack([values[a][j] for j in seen]))
            x[i] = x[i] + layer.attention.outward.weight @ torch.cat(mixed)
        for i in range(N):
            value, gate = (layer.feed_forward.up.weight @ slow_norm(layer.feed_forward_norm, x[i])).chunk(2)
            x[i] = x[i] + layer.feed_forward.down.weight @ (value * gate * torch.sigmoid(gate))
    return [
        slow_norm(model.norm, vector) if segment else 0 * vector for vector, segment in zip(x, segments, strict=True)
    ]


@pytest.mark.parametrize("decay_base", [0.6, 0.9])
def test_states_and_gradients_equal_a_slow_loop_over_the_formulas(decay_base):
    model, batch = (
        encoder(decay_base=decay_base),
        inputs(leafy_batch(B=2, S=8, G=3, seed=1)),
    )  # heads of one and of several tokens
    output = model(**batch)
    found = torch.cat((output.root_states, output.leaf_states.flatten(1, 2)), dim=1)
    expected = torch.stack([torch.stack(slow_row(model, batch, b)) for b in range(2)])
    assert torch.allclose(found, expected, atol=1e-5)
    assert found.std() > 0.1
    weights = torch.randn(found.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    names, parameters = zip(*model.named_parameters(), strict=True)
    ours = torch.autograd.grad((found * weights).sum(), parameters)
    theirs = torch.autograd.grad((expected * weights).sum(), parameters)
    for name, mine, loop in zip(names, ours, theirs, strict=True):
        assert mine.any(), name
        assert torch.allclose(mine, loop, atol=1e-5 * float(loop.abs().max().clamp(min=1)), rtol=1e-5), name


# ---- size, checkpointing, saving


def test_the_default_model_has_the_documents_number_of_weights():
    assert abs(weight_count(GraphMERConfig()) - 80e6) < 0.6e6
    document, smaller = (GraphMERConfig(intermediate_size=3072, num_hidden_layers=layers) for layers in (12, 6))
    assert round(2 * (weight_count(document) - weight_count(smaller)) / 1e6) == 113


ELSEWHERE = """
import sys, torch
try:
    import helpers
    raise SystemExit(f"helpers can be imported from {helpers.__file__}: this is not elsewhere")
except ModuleNotFoundError:
    pass
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForPreTraining
batch = load_file(sys.argv[2])
encoder, told = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True, output_loading_info=True)
assert not any(told.values()), told
encoder.eval()
whole = AutoModelForPreTraining.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
with torch.no_grad():
    states = encoder(**batch)
    answers = {"roots": states.root_states, "leaves": states.leaf_states, "queries": whole.queries(whole(**batch))}
save_file({name: tensor.contiguous() for name, tensor in answers.items()}, sys.argv[3])
assert type(encoder).__module__.startswith("transformers_modules."), type(encoder).__module__
assert not [name for name in sys.modules if name.partition(".")[0] == "helpers"]
"""


@torch.no_grad()
def test_elsewhere_encoder_and_whole_model_give_the_same_states(tmp_path):
    torch.manual_seed(0)
    model, folder, batch = perturbed(GraphMERForPreTraining(config())), tmp_path / "export", inputs(leafy_batch())
    model.save_pretrained(folder)
    given, answers = tmp_path / "given.safetensors", tmp_path / "answers.safetensors"
    save_file(batch, given)
    isolated(ELSEWHERE, folder, given, answers, folder=tmp_path)
    found = load_file(answers)
    states = model(**batch)
    assert states.root_states.abs().sum() > 0
    assert torch.allclose(found["roots"], states.root_states, atol=1e-6)
    assert torch.allclose(found["leaves"], states.leaf_states, atol=1e-6)
    assert torch.allclose(found["queries"], model.queries(states), atol=1e-6)
    assert {path.name for path in folder.iterdir()} == {
        "config.json",
        "model.safetensors",
        "encoder.py",
        "ontology_loss.py",
    }


# ---- XLA

ON_XLA = """
import json
import torch
from helpers.machine import xla
from helpers.graphmer.encoder import GraphMERForPreTraining
from tests.graphmer.batches import ALL_TERMS, config, leafy_batch
from tests.harness import counters

device = xla.start()
torch.manual_seed(0)
on_cpu = GraphMERForPreTraining(config(**ALL_TERMS))
on_xla = GraphMERForPreTraining(on_cpu.config)
on_xla.load_state_dict(on_cpu.state_dict())
on_xla.to(device)
xla.replicate(on_xla)
on_xla.enable_input_require_grads()
on_xla._set_gradient_checkpointing(True, xla.checkpoint_function())
on_cpu.train(), on_xla.train()
on_cpu.ontology.other_leaves = on_xla.ontology.other_leaves = lambda entities: (torch.arange(len(entities), device=entities.device) + 1) % len(entities)
differences, compiles, moved = [], [], []
for seed in range(4):
    batch = leafy_batch(B=8, seed=seed)
    on_device = {name: xla.shard_batch(tensor.to(device)) for name, tensor in batch.items()}
    xla.sync()
    before = counters()
    on_xla.zero_grad()
    loss = on_xla(**on_device).loss
    loss.backward()
    xla.sync()
    after = counters()
    compiles.append(after["compiles"] - before["compiles"])
    moved.append(sum(after[count] - before[count] for count in ("host_transfers", "item_calls")))
    on_cpu.zero_grad()
    expected = on_cpu(**batch).loss
    expected.backward()
    differences.append(abs(float(loss.detach().cpu()) / float(expected.detach()) - 1))
    for mine, theirs in zip(on_xla.parameters(), on_cpu.parameters()):
        if theirs.grad is not None:
            differences.append(float((mine.grad.cpu() - theirs.grad).abs().max() / theirs.grad.abs().max().clamp(min=1e-3)))
print("ANSWERS", json.dumps({"difference": max(differences), "compiles": compiles, "moved": moved}))
"""


def test_xla_has_the_same_gradients_compiles_once_and_moves_no_value():
    answers = answers_on_xla(ON_XLA)
    assert answers["difference"] < 1e-4 and answers["compiles"][0] > 0
    assert answers["compiles"][1:] == [0, 0, 0] and answers["moved"] == [0, 0, 0, 0]
