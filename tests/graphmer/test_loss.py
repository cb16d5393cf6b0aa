"""Every term of GraphMER's loss, held against a loop over leaves, candidates and slots."""

import math

import pytest
import torch

from helpers.graphmer import ontology_loss
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.encoder import GraphMERForPreTraining

from .batches import ALL_TERMS, PAD, config, leafy_batch, perturbed

# B batch · G leaves · P = B G · L leaf tokens · U negatives · V vocabulary · E entity embedding

MARGIN = -0.5  # so that some cycles of random scores are above it


def new_model(**changes) -> GraphMERForPreTraining:
    torch.manual_seed(0)
    return perturbed(GraphMERForPreTraining(config(**{**ALL_TERMS, **changes}))).double()


@pytest.fixture(scope="module")
def seen():
    """A model's batch, terms, and what the terms are made of, each from the public functions."""
    model, batch = new_model(), leafy_batch(B=4, G=6, seed=2)
    with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
        patch.setattr(ontology_loss, "MARGIN", MARGIN)
        output = model(**batch)
        return {
            "batch": batch,
            "model": model,
            "config": model.config,
            "output": output,
            "terms": output.terms,
            "leaf_probabilities": torch.softmax(model.token_logits(output.leaf_states), -1),
            "root_probabilities": torch.softmax(model.token_logits(output.root_states), -1),
            "queries": model.queries(output).flatten(0, 1),
            "tails": model.entities(batch["tail_text_ids"]).flatten(0, 1),
            "heads": model.entities(batch["head_text_ids"]).flatten(0, 1),
            "negatives": model.entities(batch["negative_text_ids"]).flatten(0, 1),
            "matrices": model.ontology.weight,
            "triple_logits": model.triple_head(output.leaf_states[:, :, 0])[..., 0],
        }


def assert_term(seen, name: str, *parts: list[float]) -> None:
    """A term is the sum of the means of its parts; a batch that does not test a part fails here."""
    assert float(seen["terms"][name]) == pytest.approx(sum(sum(part) / len(part) for part in parts), rel=1e-5)


def flat(seen, name):
    return seen["batch"][name].flatten(0, 1).tolist()


def test_mlm_is_the_mean_over_masked_roots(seen):
    labels, places, found = seen["batch"]["mlm_labels"], seen["batch"]["mlm_positions"], seen["root_probabilities"]
    asked = (labels != -100).nonzero().tolist()
    losses = [-math.log(found[b, places[b, m], labels[b, m]]) for b, m in asked]
    assert_term(seen, "mlm", losses)


def test_mnm_is_the_mean_over_labelled_slots(seen):
    labels, found = seen["batch"]["mnm_labels"], seen["leaf_probabilities"]
    asked = (labels != -100).nonzero().tolist()
    losses = [-math.log(found[b, g, s, labels[b, g, s]]) for b, g, s in asked]
    assert_term(seen, "mnm", losses)


def test_triple_term_is_binary_cross_entropy_of_shown_leaves(seen):
    losses = []
    for label, logit in zip(flat(seen, "triple_labels"), seen["triple_logits"].flatten().tolist(), strict=True):
        if label >= 0:
            chance = 1 / (1 + math.exp(-logit))
            losses.append(-math.log(chance if label == 1 else 1 - chance))
    assert_term(seen, "triple", losses)


def candidates(seen, p: int) -> list[int]:
    """Leaves whose tails stand against the tail of leaf p, itself first."""
    entities, known = flat(seen, "tail_entities"), seen["batch"]["known_BGX"].flatten(0, 1)[p]
    others = [x for x, entity in enumerate(entities) if entity >= 0 and entity != entities[p] and not known[x]]
    return [p, *others]


def slow_choice(seen, p: int, vector: torch.Tensor) -> float:
    """-log of the share of the true tail among the batch's and its own negatives."""
    against = [(seen["tails"][x], flat(seen, "tail_text_ids")[x]) for x in candidates(seen, p)]
    for negative, tokens in zip(seen["negatives"][p], flat(seen, "negative_text_ids")[p], strict=True):
        if any(token != PAD for token in tokens):
            against.append((negative, tokens))
    scores = [float(vector @ other) / seen["config"].contrastive_temperature for other, _ in against]
    return math.log(sum(math.exp(score - max(scores)) for score in scores)) + max(scores) - scores[0]


def test_contrastive_term_is_infonce_over_admissible_candidates(seen):
    masked = [{*labels} != {-100} for labels in flat(seen, "mnm_labels")]
    asked = [p for p, entity in enumerate(flat(seen, "tail_entities")) if masked[p] and entity >= 0]
    losses = [slow_choice(seen, p, seen["queries"][p]) for p in asked]
    assert_term(seen, "contrastive", losses)


def expected_tail(seen, vector: torch.Tensor, relation: int) -> torch.Tensor:
    moved = seen["matrices"][relation - 1] @ vector
    return moved / moved.norm()


def true_leaves(seen) -> list[int]:
    columns = (flat(seen, name) for name in ("relation_ids", "tail_entities", "triple_labels"))
    return [p for p, (r, entity, label) in enumerate(zip(*columns, strict=True)) if r and entity >= 0 and label != 0]


def test_scoring_term_is_infonce_of_the_relations_matrix(seen):
    relations = flat(seen, "relation_ids")
    losses = [slow_choice(seen, p, expected_tail(seen, seen["heads"][p], relations[p])) for p in true_leaves(seen)]
    assert_term(seen, "scoring", losses)


def cycle(seen, relation: int, *vectors) -> float:
    ends = (*vectors[1:], vectors[0])
    scores = [float(expected_tail(seen, a, relation) @ b) for a, b in zip(vectors, ends, strict=True)]
    return max(0.0, sum(scores) / len(scores) - MARGIN)


def pairs(seen, relations: list[int]) -> list[int]:
    head, tail, r = (flat(seen, name) for name in ("head_entities", "tail_entities", "relation_ids"))
    return [p for p in true_leaves(seen) if r[p] in relations and head[p] != tail[p]]


def test_antisymmetry_is_the_hinge_on_both_directions(seen):
    r = flat(seen, "relation_ids")
    losses = [cycle(seen, r[p], seen["heads"][p], seen["tails"][p]) for p in pairs(seen, [1, 3])]
    assert sum(loss > 0 for loss in losses) > 2
    assert_term(seen, "antisymmetry", losses)


def test_acyclicity_is_the_hinge_on_cycles_of_two_and_three(seen):
    r, head, tail = (flat(seen, name) for name in ("relation_ids", "head_entities", "tail_entities"))
    two = [cycle(seen, r[p], seen["heads"][p], seen["tails"][p]) for p in pairs(seen, [1, 2])]
    three = []
    for p in pairs(seen, [1, 2]):
        third = (p + 1) % len(tail)
        if tail[third] >= 0 and tail[third] not in (head[p], tail[p]):
            three.append(cycle(seen, r[p], seen["heads"][p], seen["tails"][p], seen["tails"][third]))
    assert_term(seen, "acyclicity", two, three)


# ---- what does not count


@pytest.mark.parametrize("profile", ["rtx3050", "published"])
def test_every_weight_of_a_profile_has_a_gradient_and_a_moment_of_its_optimizer(profile):
    """A part that is not trained is not there: neither in the default profile nor in the published one."""
    small = {"model.hidden_size": 24, "model.num_layers": 2, "model.num_heads": 2, "model.intermediate_size": 16}
    configuration = override(read_configuration(profile), small | {"model.embedding_size": 8})
    made = configuration.graphmer_config(40, 4, antisymmetric_relations=[1, 3], acyclic_relations=[1, 2])
    made.leaf_tokens = 3
    torch.manual_seed(0)
    model, batch = GraphMERForPreTraining(made).train(), leafy_batch(B=6, G=8, seed=1)
    loss = sum(model(**batch).terms.values())
    loss.backward()
    without = [name for name, weight in model.named_parameters() if weight.grad is None]
    assert not without
    assert set(made.weights()) == {"mlm", "mnm", "contrastive"} | (
        {"triple", "scoring", "antisymmetry", "acyclicity"} if profile == "published" else set()
    )


def test_a_batch_with_nothing_to_learn_has_a_loss_of_zero_and_finite_gradients():
    model, batch = new_model(), leafy_batch(leaves=0)  # its first row is padding alone
    batch["mlm_labels"][:] = -100
    output = model(**batch)
    assert float(output.loss.detach()) == 0
    output.loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
