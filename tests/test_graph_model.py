"""The GraphMER encoder, held against a slow loop over the formulas on distances from scipy, itself reloaded, and XLA."""

import math

import pytest
import torch
from scipy.sparse.csgraph import shortest_path
from transformers import AutoModel

from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig
from helpers.graphmer.modeling_graphmer.encoder import GraphMERModel
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.machine import attention

from .graph_batches import ALL_TERMS, PAD, H, L, V, check_batch, config, inputs, leafy_batch, perturbed, weight_count
from .xla_process import answers_on_xla

# B batch · S roots · G leaves · L leaf tokens · N tokens · D width · A attention heads

VARIANTS = {
    "default": {},
    "as in the paper": {"positional_encoding": "none", "leaf_positions": False, "hgat_relation_bias": False},
    "no decay, layernorm, gelu": {"decay": "none", "norm": "layernorm", "activation": "gelu"},
    "no fusion": {"hgat": False},
    "no tokens": {"token_match": False},
    "no relation bias in attention": {"relation_attention_bias": False, "decay_base": 0.9},
}


def encoder(seed: int = 0, **changes) -> GraphMERModel:
    torch.manual_seed(seed)
    return perturbed(GraphMERModel(config(**changes))).double()


# ---- a slow encoder


def graph_distances(batch: dict, b: int) -> torch.Tensor:
    """Edges between neighbouring roots, a root and each slot of its leaves, and neighbouring slots of a leaf."""
    S, G = batch["root_ids"].shape[1], batch["leaf_ids"].shape[1]
    edges = torch.zeros(S + G * L, S + G * L)
    for i in range(S - 1):
        edges[i, i + 1] = 1
    for g in range(G):
        for s in range(L):
            edges[int(batch["head_start"][b, g]), S + g * L + s] = 1
            if s:
                edges[S + g * L + s - 1, S + g * L + s] = 1
    return torch.from_numpy(shortest_path(edges.numpy(), directed=False))


def slow_norm(module, x):
    if isinstance(module, torch.nn.LayerNorm):
        x = x - x.mean()
        return x / torch.sqrt((x**2).mean() + 1e-6) * module.weight + module.bias
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
    return torch.stack(rows) if hgat.bias is None else torch.stack(rows) + hgat.bias[r]


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
        if c.hgat and length:
            leaf = slow_fusion(model.hgat, leaf, roots[start : start + length], int(row["relation_ids"][g]) - 1)
        for s in range(L):
            x.append(leaf[s] + model.leaf_embedding.weight[s] if c.leaf_positions else leaf[s])
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
        value = query @ key / math.sqrt(size)
        if c.decay != "none":
            exponent = slow_gelu(torch.sqrt(distance[i, j] + 1) - model.decay.offset[a])
            value = value * c.decay_base**exponent
        if c.positional_encoding == "alibi":
            dear = places[j] > places[i] if a % 2 == 0 else places[j] < places[i]
            value = value - 2 ** (-8 * (a + 1) / A) * abs(places[i] - places[j]) * (2 if dear else 1)
        for relation in (head_of(i, j), head_of(j, i)):
            if c.relation_attention_bias and relation is not None:
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
            up = layer.feed_forward.up.weight @ slow_norm(layer.feed_forward_norm, x[i])
            value, gate = up.chunk(2) if c.activation == "swiglu" else (up, None)
            hidden = slow_gelu(value) if gate is None else value * gate * torch.sigmoid(gate)
            x[i] = x[i] + layer.feed_forward.down.weight @ hidden
    return [
        slow_norm(model.norm, vector) if segment else 0 * vector for vector, segment in zip(x, segments, strict=True)
    ]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_states_and_gradients_equal_a_slow_loop_over_the_formulas(changes):
    model, batch = encoder(**changes), inputs(leafy_batch(B=2, S=8, G=3, seed=1))  # heads of one and of several tokens
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
        assert torch.allclose(mine, loop, atol=1e-5, rtol=1e-5), name


@pytest.mark.parametrize("leaves", [0, 1])
def test_rows_with_no_and_with_one_triple_equal_the_slow_loop(leaves):
    model, batch = encoder(), inputs(leafy_batch(B=1, S=9, G=2, leaves=leaves))
    output = model(**batch)
    found = torch.cat((output.root_states, output.leaf_states.flatten(1, 2)), dim=1)[0]
    assert torch.allclose(found, torch.stack(slow_row(model, batch, 0)), atol=1e-5)


# ---- padding, packing, order


@pytest.mark.parametrize("decay", ["multiplicative", "none"])
def test_rows_of_padding_give_zeros_and_finite_gradients(decay):
    model, batch = encoder(decay=decay), inputs(leafy_batch())
    assert not batch["root_segments"][0].any()
    output = model(**batch)
    assert not output.root_states[0].any() and not output.leaf_states[0].any()
    assert (output.root_states[batch["root_segments"] == 0] == 0).all()
    (output.root_states.sum() + output.leaf_states.square().sum()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("position", ["alibi", "none"])
def test_packed_documents_get_the_states_that_they_get_alone(position):
    model, packed = encoder(positional_encoding=position), inputs(leafy_batch(B=2))
    whole = model(**packed)
    S = packed["root_ids"].shape[1]
    for b, segment in ((b, segment) for b in range(2) for segment in (1, 2)):
        roots = (packed["root_segments"][b] == segment).nonzero().flatten()
        leaves = (packed["leaf_segments"][b] == segment).nonzero().flatten()
        alone = {name: torch.zeros_like(packed[name][b : b + 1]) for name in packed}
        for name in ("root_ids", "root_positions"):
            alone[name][0, : len(roots)] = packed[name][b, roots]
        alone["root_segments"][0, : len(roots)] = 1
        for name in ("leaf_ids", "relation_ids", "head_length"):
            alone[name][0, : len(leaves)] = packed[name][b, leaves]
        alone["leaf_segments"][0, : len(leaves)] = 1
        alone["head_start"][0, : len(leaves)] = packed["head_start"][b, leaves] - roots[0]
        check_batch(alone, config())
        output = model(**alone)
        assert 0 < len(roots) < S
        assert torch.allclose(output.root_states[0, : len(roots)], whole.root_states[b, roots], atol=1e-6)
        assert torch.allclose(output.leaf_states[0, : len(leaves)], whole.leaf_states[b, leaves], atol=1e-6)


@pytest.mark.parametrize(("position", "mirrored"), [("none", True), ("alibi", False)])
def test_only_without_positions_are_reversed_roots_a_mirror_image(position, mirrored):
    model, batch = encoder(positional_encoding=position), inputs(leafy_batch(B=1, S=9, G=1, leaves=0))
    batch["root_segments"][:], batch["root_positions"][0] = 1, torch.arange(9)
    batch["root_ids"] = torch.arange(5, 14)[None]
    backwards = {**batch, "root_ids": batch["root_ids"].flip(1)}
    there, back = (model(**these).root_states for these in (batch, backwards))
    assert torch.allclose(there, back.flip(1), atol=1e-6) is mirrored


def test_slots_of_a_masked_leaf_differ_only_with_leaf_positions():
    for positions, alike in ((True, False), (False, True)):
        model, batch = encoder(leaf_positions=positions), inputs(leafy_batch(B=2))
        masked = (batch["leaf_ids"] == 1).all(-1).nonzero()[0].tolist()
        states = model(**batch).leaf_states[masked[0], masked[1]]
        assert torch.allclose(states[0], states[-1], atol=1e-9) is alike


# ---- every switch


SWITCHES = [
    {"positional_encoding": "none"},
    {"leaf_positions": False},
    {"norm": "layernorm"},
    {"activation": "gelu"},
    {"hgat": False},
    {"hgat_relation_bias": False},
    {"relation_attention_bias": False},
    {"decay": "none"},
    {"decay_base": 0.8},
    {"num_attention_heads": 4},
    {"num_hidden_layers": 1},
    {"intermediate_size": 32},
    {"max_head_tokens": 1},
    {"pad_token_id": 2},
]


@pytest.mark.parametrize("change", SWITCHES, ids=lambda change: "-".join(map(str, *change.items())))
def test_every_switch_changes_the_states(change):
    model, changed, batch = encoder(), encoder(seed=1, **change), inputs(leafy_batch(B=2))
    shared = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in changed.state_dict() and tensor.shape == changed.state_dict()[name].shape
    }
    assert len(shared) > 8
    changed.load_state_dict(shared, strict=False)
    before, after = model(**batch).leaf_states, changed(**batch).leaf_states
    assert (before - after).abs().max() > 1e-3


@pytest.mark.parametrize("share", [{"dropout": 0.2}, {"relation_dropout": 0.2}])
def test_dropout_changes_training_and_not_evaluation(share):
    model, batch = encoder(**share), inputs(leafy_batch(B=2))
    assert torch.equal(model(**batch).leaf_states, encoder()(**batch).leaf_states)
    assert not torch.allclose(model.train()(**batch).leaf_states, encoder()(**batch).leaf_states, atol=1e-3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 0),
        ("num_attention_heads", 3),
        ("positional_encoding", "learned"),
        ("norm", "batchnorm"),
        ("activation", "relu"),
        ("decay", "linear"),
        ("decay_base", 1.0),
        ("dropout", 1.0),
        ("relation_dropout", -0.1),
        ("temperature", 0.0),
        ("ontology_margin", 2.0),
        ("antisymmetric_relations", [5]),
        ("acyclic_relations", [0]),
        ("mlm_weight", -1.0),
        ("contrastive_weight", math.nan),
        ("pad_token_id", V),
    ],
)
def test_impossible_configurations_raise_an_error_that_names_the_key(name, value):
    with pytest.raises(ValueError, match=name):
        config(**{name: value})


# ---- size


def test_default_model_has_80_million_weights_and_the_documents_size_113_million_in_its_layers():
    assert abs(weight_count(GraphMERConfig()) - 80e6) < 0.6e6
    document, smaller = (GraphMERConfig(intermediate_size=3072, num_hidden_layers=layers) for layers in (12, 6))
    assert round(2 * (weight_count(document) - weight_count(smaller)) / 1e6) == 113


# ---- saving, checkpointing, precision


def pretraining_model(seed: int = 0, **changes) -> GraphMERForPreTraining:
    torch.manual_seed(seed)
    return GraphMERForPreTraining(config(**{**ALL_TERMS, **changes}))


def test_saved_and_reloaded_it_gives_the_same_loss(tmp_path):
    model, batch = perturbed(pretraining_model()), leafy_batch()
    model.save_pretrained(tmp_path)
    assert (tmp_path / "model.safetensors").is_file()
    loaded = GraphMERForPreTraining.from_pretrained(tmp_path)
    assert loaded.config.to_dict() == {**model.config.to_dict(), "_name_or_path": loaded.config._name_or_path}
    assert all(torch.equal(tensor, loaded.state_dict()[name]) for name, tensor in model.state_dict().items())
    assert loaded(**batch).loss == model(**batch).loss
    bare = AutoModel.from_pretrained(tmp_path)
    assert torch.equal(bare(**inputs(batch)).root_states, model(**batch).root_states)


def test_a_field_that_nothing_reads_is_named():
    with pytest.raises(TypeError, match="mlm_label: unknown; the fields are root_ids"):
        pretraining_model()(**leafy_batch(), mlm_label=None)


def test_untrained_losses_of_masked_tokens_are_near_a_uniform_guess():
    model = pretraining_model(vocab_size=500, hidden_size=64).eval()
    terms = model(**leafy_batch(B=6)).terms
    assert float(terms["mlm"]) == pytest.approx(math.log(500), abs=0.35)
    assert float(terms["mnm"]) == pytest.approx(math.log(500), abs=0.35)


def loss_and_gradients(model, batch, seed: int = 0):
    model.zero_grad()
    torch.manual_seed(seed)
    output = model(**batch)
    output.loss.backward()
    return output.loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def set_reentrant(model):
    from torch.utils.checkpoint import checkpoint

    model.enable_input_require_grads()
    model._set_gradient_checkpointing(True, lambda *arguments: checkpoint(*arguments, use_reentrant=True))


CHECKPOINTING = {
    "helpers": lambda model: attention.checkpoint_activations(model, "cpu"),
    "gradient_checkpointing_enable": lambda model: model.gradient_checkpointing_enable(),
    "reentrant": set_reentrant,
}


@pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable`")
@pytest.mark.parametrize("how", CHECKPOINTING)
def test_checkpointing_recomputes_the_layers_and_changes_nothing(how):
    batch, calls = leafy_batch(), []
    plain = loss_and_gradients(pretraining_model(dropout=0.1).train(), batch)
    model = pretraining_model(dropout=0.1).train()
    CHECKPOINTING[how](model)
    model.encoder.layers[0].attention.register_forward_hook(lambda *_: calls.append(1))
    loss, gradients = loss_and_gradients(model, batch)
    encodings = 4  # the batch, its tails, their negatives, its heads
    assert len(calls) == 2 * encodings
    assert loss == plain[0]
    assert gradients.keys() == plain[1].keys()
    assert all(torch.allclose(gradients[name], plain[1][name], atol=1e-6) for name in gradients)


@pytest.mark.parametrize("decay", ["multiplicative", "none"])
def test_bf16_autocast_stays_within_two_percent(decay):
    model, batch = pretraining_model(decay=decay, hidden_size=64, embedding_size=32).eval(), leafy_batch()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(**batch)
    exact = model(**batch)
    assert rough.loss != exact.loss
    assert float(rough.loss.detach()) == pytest.approx(float(exact.loss.detach()), rel=2e-2)
    difference = (rough.leaf_states - exact.leaf_states).float().norm() / exact.leaf_states.norm()
    assert difference < 2e-2


# ---- what a batch must be


def test_a_good_batch_passes_and_inputs_alone_do():
    batch = leafy_batch()
    check_batch(batch, config())
    check_batch(inputs(batch), config())


def _set(name, value, where=(1, 3)):
    def change(batch):
        batch[name][where] = value

    return change


MALFORMED = {
    "a leaf outside the roots": (_set("head_start", 12), "head_start=12 at"),
    "a leaf before the roots": (_set("head_start", -1), "head_start=-1 at"),
    "a leaf in another segment": (_set("leaf_segments", 3), "head_start at .1, 3.: the leaf of segment 3"),
    "a head past its segment": (_set("head_length", H, (2, 1)), "head_length=3 at .2, 1.*past its segment"),
    "a head that is too long": (_set("head_length", H + 1), "head_length=4 at"),
    "a leaf without a head": (_set("head_length", 0), "head_length=0 where"),
    "a leaf without a relation": (_set("relation_ids", 0), "relation_ids=0 where"),
    "an unknown relation": (_set("relation_ids", 5), "relation_ids=5"),
    "an unknown token": (_set("root_ids", V), f"root_ids={V}"),
    "an unknown label": (_set("mlm_labels", -1, (1, 0)), "mlm_labels=-1.* or -100"),
    "a masked root outside": (_set("mlm_positions", 12, (1, 0)), "mlm_positions=12"),
    "half a truth": (_set("triple_labels", 2), "triple_labels=2"),
    "too many leaf tokens": (
        lambda batch: batch.update(leaf_ids=torch.cat((batch["leaf_ids"], batch["leaf_ids"]), dim=2)),
        r"leaf_ids: has shape \(3, 4, 6\), but L of \[B, G, L\] is 3",
    ),
    "labels of other leaves": (
        lambda batch: batch.update(mnm_labels=batch["mnm_labels"][:, :-1]),
        "mnm_labels: has shape",
    ),
    "flat leaves": (lambda batch: batch.update(leaf_ids=batch["leaf_ids"].flatten(1)), "leaf_ids: has shape"),
    "a missing field": (lambda batch: batch.pop("head_length"), "head_length missing"),
    "an unknown field": (lambda batch: batch.update(labels=batch["mlm_labels"]), "unknown field labels"),
    "known tails of another batch": (
        lambda batch: batch.update(known_BGX=batch["known_BGX"][..., 1:]),
        "known_BGX: has shape.*all leaves",
    ),
}


@pytest.mark.parametrize(("change", "message"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_batches_raise_an_error_that_names_the_field(change, message):
    batch = leafy_batch()
    batch["head_start"][2, 1], batch["head_length"][2, 1] = 10, 1
    batch["leaf_segments"][2, 1], batch["relation_ids"][2, 1] = 2, 1
    check_batch({name: tensor.clone() for name, tensor in batch.items()}, config())
    change(batch)
    with pytest.raises(ValueError, match=message):
        check_batch(batch, config())


# ---- XLA

ON_XLA = """
import json
import torch
from helpers.machine import xla
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from tests.graph_batches import ALL_TERMS, config, leafy_batch
from tests.test_graph_model import CASES

device, answers = xla.start(), {}
for name, changes in CASES.items():
    torch.manual_seed(0)
    on_cpu = GraphMERForPreTraining(config(**ALL_TERMS, **changes)).eval()
    on_xla = GraphMERForPreTraining(on_cpu.config).eval()
    on_xla.load_state_dict(on_cpu.state_dict())
    on_xla.to(device)
    xla.replicate(on_xla)
    if name == "checkpointed":
        on_xla.enable_input_require_grads()
        on_xla._set_gradient_checkpointing(True, xla.checkpoint_function())
        on_cpu.train(), on_xla.train()
        on_cpu._another = on_xla._another = lambda entities: (torch.arange(len(entities), device=entities.device) + 1) % len(entities)
    differences, compiles, moved = [], [], []
    for seed in range(4):
        batch = leafy_batch(B=8, seed=seed)
        on_device = {name: xla.shard_batch(tensor.to(device)) for name, tensor in batch.items()}
        xla.sync()
        before = xla.counters()
        on_xla.zero_grad()
        loss = on_xla(**on_device).loss
        loss.backward()
        xla.sync()
        after = xla.counters()
        compiles.append(after["compiles"] - before["compiles"])
        moved.append(sum(after[count] - before[count] for count in ("host_transfers", "item_calls")))
        on_cpu.zero_grad()
        expected = on_cpu(**batch).loss
        expected.backward()
        differences.append(abs(float(loss.detach().cpu()) / float(expected.detach()) - 1))
        for mine, theirs in zip(on_xla.parameters(), on_cpu.parameters()):
            if theirs.grad is not None:
                differences.append(float((mine.grad.cpu() - theirs.grad).abs().max() / theirs.grad.abs().max().clamp(min=1e-3)))
    answers[name] = {"difference": max(differences), "compiles": compiles, "moved": moved}
print("ANSWERS", json.dumps(answers))
"""
CASES = {"multiplicative": {}, "none": {"decay": "none", "positional_encoding": "none"}, "checkpointed": {}}


@pytest.fixture(scope="module")
def on_xla():
    return answers_on_xla(ON_XLA)


@pytest.mark.parametrize("case", CASES)
def test_xla_gives_the_same_loss_and_gradients(on_xla, case):
    assert on_xla[case]["difference"] < 1e-4


@pytest.mark.parametrize("case", CASES)
def test_on_xla_batches_of_one_shape_compile_once_and_no_value_leaves_the_device(on_xla, case):
    assert on_xla[case]["compiles"][0] > 0
    assert on_xla[case]["compiles"][1:] == [0, 0, 0] and on_xla[case]["moved"] == [0, 0, 0, 0]
