"""Every term of GraphMER's loss, held against a loop over leaves, candidates and slots."""

import itertools
import math

import pytest
import torch

from helpers.graphmer.modeling_graphmer import objectives
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining

from .graph_batches import ALL_TERMS, PAD, V, config, inputs, leafy_batch, perturbed
from .xla_process import answers_on_xla

# B batch · G leaves · P = B G · L leaf tokens · U negatives · V vocabulary · E entity embedding

NEVER = dict.fromkeys(ALL_TERMS, 0.0)


def new_model(**changes) -> GraphMERForPreTraining:
    torch.manual_seed(0)
    return perturbed(GraphMERForPreTraining(config(**{**ALL_TERMS, **changes}))).double()


@pytest.fixture(scope="module")
def seen():
    """A model's batch, terms, and what the terms are made of, each from the public functions."""
    model, batch = new_model(), leafy_batch(B=4, G=6, seed=2)
    with torch.no_grad():
        output = model(**batch)
        return {
            "batch": batch,
            "model": model,
            "config": model.config,
            "output": output,
            "terms": output.terms,
            "leaf_probabilities": torch.softmax(model.leaf_logits(**batch), -1),
            "root_probabilities": torch.softmax(model.token_logits(output.root_states), -1),
            "queries": model.queries(**batch).flatten(0, 1),
            "tails": model.entities(batch["tail_text_ids"]).flatten(0, 1),
            "heads": model.entities(batch["head_text_ids"]).flatten(0, 1),
            "negatives": model.entities(batch["negative_text_ids"]).flatten(0, 1),
            "matrices": model.triple_scorer.weight,
            "triple_logits": model.triple_head(output.leaf_states[:, :, 0])[..., 0],
        }


def mean(values: list[float]) -> float:
    assert values, "the batch does not test this"
    return sum(values) / len(values)


def slots(seen):
    B, G, L = seen["batch"]["leaf_ids"].shape
    return [(b, g, s) for b in range(B) for g in range(G) for s in range(L)]


def flat(seen, name):
    return seen["batch"][name].flatten(0, 1).tolist()


def masked(seen) -> list[bool]:
    return [any(label != -100 for label in row) for row in flat(seen, "mnm_labels")]


def test_mlm_is_the_mean_over_masked_roots(seen):
    batch, losses = seen["batch"], []
    for b, row in enumerate(batch["mlm_labels"].tolist()):
        for m, label in enumerate(row):
            if label != -100:
                losses.append(-math.log(seen["root_probabilities"][b, batch["mlm_positions"][b, m], label]))
    assert float(seen["terms"]["mlm"]) == pytest.approx(mean(losses), rel=1e-5)


def test_mnm_is_the_mean_over_labelled_slots(seen):
    labels = seen["batch"]["mnm_labels"]
    losses = [
        -math.log(seen["leaf_probabilities"][b, g, s, labels[b, g, s]])
        for b, g, s in slots(seen)
        if labels[b, g, s] != -100
    ]
    assert float(seen["terms"]["mnm"]) == pytest.approx(mean(losses), rel=1e-5)


def test_triple_term_is_binary_cross_entropy_of_shown_leaves(seen):
    losses = []
    for label, logit in zip(flat(seen, "triple_labels"), seen["triple_logits"].flatten().tolist(), strict=True):
        if label >= 0:
            chance = 1 / (1 + math.exp(-logit))
            losses.append(-math.log(chance if label == 1 else 1 - chance))
    assert float(seen["terms"]["triple"]) == pytest.approx(mean(losses), rel=1e-5)


def candidates(seen, p: int) -> list[int]:
    """Leaves whose tails stand against the tail of leaf p, itself first."""
    entities, known = flat(seen, "tail_entities"), seen["batch"]["known_BGX"].flatten(0, 1)[p]
    others = [x for x, entity in enumerate(entities) if entity >= 0 and entity != entities[p] and not known[x]]
    return [p, *others]


def slow_match(seen, p: int, tokens: list[int]) -> float:
    """What the tokens of a name add: each as much as the leaf expects it in its field, and copies it there from its document."""
    model, batch, output = seen["model"], seen["batch"], seen["output"]
    match, (b, g) = model.token_match, divmod(p, batch["leaf_ids"].shape[1])
    leaf, total = output.leaf_states[b, g, 0], 0.0
    softplus = torch.nn.functional.softplus
    with torch.no_grad():
        ends = [place for place, token in enumerate(tokens) if token in model.config.separator_ids]
        fields = [min(2, sum(end >= place for end in ends)) for place in range(len(tokens))]
        weights = [float(softplus(match.token_weight[token])) if token != PAD else 0.0 for token in tokens]
        for field in (0, 1, 2):
            inside = [place for place, one in enumerate(fields) if one == field]
            length = math.sqrt(sum(weights[place] ** 2 for place in inside) + 1e-6) / math.exp(match.log_length[field])
            of_field, of_key = slice(16 * field, 16 * field + 16), slice(64 * field, 64 * field + 64)
            for place in inside:
                token = tokens[place]
                expected = match.expected(leaf)[of_field]
                found = float(expected @ model.encoder.embedding.weight[token] + match.token_bias[token])
                for s, root in enumerate(batch["root_ids"][b].tolist()):
                    segment = batch["root_segments"][b, s]
                    if root == token and segment == batch["leaf_segments"][b, g] and segment > 0:
                        key = match.copy_key(output.root_states[b, s])[of_key]
                        copied = match.copy_query(leaf)[of_key] @ key / 8 + match.copy_offset[field]
                        found += float(softplus(copied))
                total += weights[place] / length * found
        pairs = [place for place in range(1, len(tokens)) if fields[place] == 0 and tokens[place] != PAD]
        numbers = {place: (tokens[place - 1] * 40_503 + tokens[place]) % 2**14 for place in pairs}
        weights = {place: float(softplus(match.pair_weight[number])) for place, number in numbers.items()}
        length = math.sqrt(sum(weight**2 for weight in weights.values()) + 1e-6) / math.exp(match.log_length[3])
        roots = [*batch["root_ids"][b].tolist(), PAD]
        for place, number in numbers.items():
            segments = [*batch["root_segments"][b].tolist(), 0]
            for s, (root, after) in enumerate(itertools.pairwise(roots)):
                segment, after = segments[s], after if segments[s] == segments[s + 1] else PAD
                if (
                    (root * 40_503 + after) % 2**14 == number
                    and segment == batch["leaf_segments"][b, g]
                    and segment > 0
                ):
                    key = match.copy_key(output.root_states[b, s])[192:256]
                    copied = match.copy_query(leaf)[192:256] @ key / 8 + match.copy_offset[3]
                    total += weights[place] / length * float(softplus(copied))
        for field in (0, 1, 2):
            of_key = slice(64 * (4 + field), 64 * (5 + field))
            words = [place for place, one in enumerate(fields) if one == field and word(seen, tokens[place])]
            for s in path_ends(seen, b, int(batch["leaf_segments"][b, g])) if words else ():
                segment = batch["root_segments"][b].tolist()
                inside = [root for root, one in zip(roots, segment, strict=False) if one == segment[s]]
                if path(seen, inside[: s - segment.index(segment[s]) + 1]) == path(seen, tokens[: words[-1] + 1]):
                    key = match.copy_key(output.root_states[b, s])[of_key]
                    copied = match.copy_query(leaf)[of_key] @ key / 8 + match.copy_offset[4 + field]
                    total += math.exp(match.log_length[4 + field]) * float(softplus(copied))
    return total


def word(seen, token: int) -> bool:
    return token not in seen["model"].config.separator_ids and token not in seen["model"].config.break_ids


def path(seen, tokens: list[int]) -> list[int]:
    """The last 12 tokens at most that no break is among."""
    breaks = [place for place, token in enumerate(tokens) if token in seen["model"].config.break_ids]
    return tokens[max(breaks, default=-1) + 1 :][-12:]


def path_ends(seen, b: int, segment: int) -> list[int]:
    """Roots of a document that are the last of a word."""
    roots, segments = (seen["batch"][name][b].tolist() for name in ("root_ids", "root_segments"))
    inside = [s for s, one in enumerate(segments) if one == segment and segment > 0]
    return [s for s in inside if word(seen, roots[s]) and not (s + 1 in inside and word(seen, roots[s + 1]))]


def slow_choice(seen, p: int, vector: torch.Tensor, *, by_token: bool = False) -> float:
    """-log of the share of the true tail among the batch's and its own negatives."""
    against = [(seen["tails"][x], flat(seen, "tail_text_ids")[x]) for x in candidates(seen, p)]
    for negative, tokens in zip(seen["negatives"][p], flat(seen, "negative_text_ids")[p], strict=True):
        if any(token != PAD for token in tokens):
            against.append((negative, tokens))
    scores = [float(vector @ other) / seen["config"].temperature for other, _ in against]
    if by_token:
        scores = [score + slow_match(seen, p, tokens) for score, (_, tokens) in zip(scores, against, strict=True)]
    return math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores) - scores[0]


def test_contrastive_term_is_infonce_over_admissible_candidates(seen):
    asked = [p for p, yes in enumerate(masked(seen)) if yes and flat(seen, "tail_entities")[p] >= 0]
    losses = [slow_choice(seen, p, seen["queries"][p], by_token=True) for p in asked]
    assert float(seen["terms"]["contrastive"]) == pytest.approx(mean(losses), rel=1e-5)


def expected_tail(seen, vector: torch.Tensor, relation: int) -> torch.Tensor:
    moved = seen["matrices"][relation - 1] @ vector
    return moved / moved.norm()


def true_leaves(seen) -> list[int]:
    columns = (flat(seen, name) for name in ("relation_ids", "tail_entities", "triple_labels"))
    return [p for p, (r, entity, label) in enumerate(zip(*columns, strict=True)) if r and entity >= 0 and label != 0]


def test_scoring_term_is_infonce_of_the_relations_matrix(seen):
    relations = flat(seen, "relation_ids")
    losses = [slow_choice(seen, p, expected_tail(seen, seen["heads"][p], relations[p])) for p in true_leaves(seen)]
    assert float(seen["terms"]["scoring"]) == pytest.approx(mean(losses), rel=1e-5)


def cycle(seen, relation: int, *vectors) -> float:
    ends = (*vectors[1:], vectors[0])
    scores = [float(expected_tail(seen, a, relation) @ b) for a, b in zip(vectors, ends, strict=True)]
    return max(0.0, sum(scores) / len(scores) - seen["config"].ontology_margin)


def pairs(seen, relations: list[int]) -> list[int]:
    head, tail, r = (flat(seen, name) for name in ("head_entities", "tail_entities", "relation_ids"))
    return [p for p in true_leaves(seen) if r[p] in relations and head[p] != tail[p]]


def test_antisymmetry_is_the_hinge_on_both_directions(seen):
    r = flat(seen, "relation_ids")
    losses = [cycle(seen, r[p], seen["heads"][p], seen["tails"][p]) for p in pairs(seen, [1, 3])]
    assert sum(loss > 0 for loss in losses) > 2
    assert float(seen["terms"]["antisymmetry"]) == pytest.approx(mean(losses), rel=1e-5)


def test_acyclicity_is_the_hinge_on_cycles_of_two_and_three(seen):
    r, head, tail = (flat(seen, name) for name in ("relation_ids", "head_entities", "tail_entities"))
    two = [cycle(seen, r[p], seen["heads"][p], seen["tails"][p]) for p in pairs(seen, [1, 2])]
    three = []
    for p in pairs(seen, [1, 2]):
        third = (p + 1) % len(tail)
        if tail[third] >= 0 and tail[third] not in (head[p], tail[p]):
            three.append(cycle(seen, r[p], seen["heads"][p], seen["tails"][p], seen["tails"][third]))
    assert float(seen["terms"]["acyclicity"]) == pytest.approx(mean(two) + mean(three), rel=1e-5)


def test_loss_is_the_weighted_sum_of_the_terms(seen):
    weights = seen["config"].weights()
    assert set(seen["terms"]) == set(weights)
    total = sum(weights[name] * float(term) for name, term in seen["terms"].items())
    assert float(seen["output"].loss) == pytest.approx(total, rel=1e-6)


# ---- what does not count


@pytest.mark.parametrize("weight", ALL_TERMS)
def test_a_weight_of_zero_skips_its_term_and_any_other_adds_to_the_gradient(weight):
    batch, name = leafy_batch(B=4, G=6, seed=2), weight.removesuffix("_weight")
    assert name not in new_model(**{weight: 0.0})(**batch).terms
    model = new_model(**{**NEVER, weight: 2.0})
    output = model(**batch)
    assert set(output.terms) == {name}
    assert float(output.loss.detach()) == pytest.approx(2 * float(output.terms[name].detach()))
    output.loss.backward()
    assert model.encoder.embedding.weight.grad.any()


def test_without_weights_on_entities_their_texts_are_not_encoded():
    model, texts = new_model(**{**NEVER, "mlm_weight": 1.0, "mnm_weight": 1.0}), []
    model.entities = texts.append
    model(**leafy_batch())
    assert not texts


def test_a_term_whose_field_is_missing_raises_an_error_that_names_both():
    batch = leafy_batch()
    del batch["triple_labels"]
    with pytest.raises(ValueError, match="triple_labels: missing, and triple_weight"):
        new_model()(**batch)


def test_without_labels_there_are_states_and_no_loss():
    output = new_model()(**inputs(leafy_batch()))
    assert output.loss is None and output.terms is None and output.root_states is not None


def test_a_batch_with_nothing_to_learn_has_a_loss_of_zero_and_finite_gradients():
    model, batch = new_model(), leafy_batch(B=2, leaves=0)
    batch["mlm_labels"][:] = -100
    output = model(**batch)
    assert float(output.loss.detach()) == 0
    output.loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


def test_other_copies_of_the_true_tail_and_known_tails_are_no_negatives():
    draw = torch.Generator().manual_seed(0)
    queries, tails = torch.nn.functional.normalize(torch.randn(2, 1, 4, 8, generator=draw), dim=-1)
    nothing, everything = torch.zeros(1, 4, 4, dtype=torch.bool), torch.ones(1, 4, dtype=torch.bool)

    def loss(entities, known=nothing):
        return float(
            objectives.contrastive_loss(queries, tails, None, None, torch.tensor([entities]), known, everything, 0.1)
        )

    assert loss([7, 7, 7, 7]) == 0
    assert loss([1, 2, 3, 4], ~nothing) == 0
    assert loss([1, 2, 3, 4]) > loss([1, 2, 1, 4]) > 0


def test_queries_and_entities_are_unit_vectors_and_do_not_see_the_tail():
    model, batch = new_model(), leafy_batch()
    queries, entities = model.queries(**batch), model.entities(batch["tail_text_ids"])
    there = batch["leaf_segments"] > 0
    assert torch.allclose(queries[there].norm(dim=-1), torch.ones(int(there.sum()), dtype=queries.dtype), atol=1e-5)
    assert torch.allclose(entities[there].norm(dim=-1), torch.ones(int(there.sum()), dtype=queries.dtype), atol=1e-5)
    assert not entities[~there].any()
    assert model.leaf_logits(**batch).shape == (*batch["leaf_ids"].shape, V)
    changed = {**batch, "mnm_labels": batch["mnm_labels"].flip(0), "tail_text_ids": batch["tail_text_ids"].flip(0)}
    assert torch.equal(model.queries(**changed), queries)


def test_padding_of_an_entitys_text_does_not_change_its_vector():
    model, ids = new_model(), torch.tensor([[5, 9, 11], [5, 9, 12]])
    longer = torch.cat((ids, torch.zeros(2, 4, dtype=torch.long)), dim=1)
    assert torch.allclose(model.entities(ids), model.entities(longer), atol=1e-6)
    assert not torch.allclose(*model.entities(ids), atol=1e-3)


def test_both_directions_of_a_triple_have_different_scores():
    model = new_model()
    a, b = torch.nn.functional.normalize(
        torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0)), dim=-1
    ).double()
    relation = torch.arange(5).clamp(min=1)
    assert (model.triple_scorer(a, relation, b) - model.triple_scorer(b, relation, a)).abs().min() > 1e-3


ON_XLA = """
import json
import torch
from helpers.machine import xla
device = xla.start()
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from tests.graph_batches import ALL_TERMS, config, leafy_batch, perturbed

torch.manual_seed(0)
model, batch = perturbed(GraphMERForPreTraining(config(**ALL_TERMS))).eval(), leafy_batch(B=8, G=6, seed=2)

def terms_and_gradients(batch):
    model.zero_grad()
    output = model(**batch)
    output.loss.backward()
    xla.sync()
    terms = {name: float(term.detach().cpu()) for name, term in output.terms.items()}
    return terms, {name: weight.grad.cpu() for name, weight in model.named_parameters() if weight.grad is not None}

expected, gradients = terms_and_gradients(batch)
model.to(device)
batch = {name: field.to(device) for name, field in batch.items()}
for field in batch.values():
    xla.shard_batch(field)
found, others = terms_and_gradients(batch)
assert others.keys() == gradients.keys()
off = {name: float((others[name] - each).norm() / each.norm().clamp(min=1e-4)) for name, each in gradients.items()}
print("ANSWERS " + json.dumps({"expected": expected, "found": found, "off": off}))
"""


def test_terms_and_gradients_on_eight_xla_devices_equal_the_cpus():
    answers = answers_on_xla(ON_XLA)
    assert answers["found"] == pytest.approx(answers["expected"], rel=1e-4)
    assert max(answers["off"].values()) < 1e-3, max(answers["off"].items(), key=lambda each: each[1])
