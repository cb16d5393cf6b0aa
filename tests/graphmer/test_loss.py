"""Every term of GraphMER's loss, held against a loop over leaves, candidates and slots."""

import math

import pytest
import torch

from helpers.graphmer import ontology_loss
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
            "queries": model.queries(output).flatten(0, 1),
            "tails": model.entities(batch["tail_text_ids"]).flatten(0, 1),
            "heads": model.entities(batch["head_text_ids"]).flatten(0, 1),
            "negatives": model.entities(batch["negative_text_ids"]).flatten(0, 1),
            "matrices": model.ontology.weight,
        }


def assert_term(seen, name: str, *parts: list[float]) -> None:
    """A term is the sum of the means of its parts; a batch that does not test a part fails here."""
    assert float(seen["terms"][name]) == pytest.approx(sum(sum(part) / len(part) for part in parts), rel=1e-5)


def flat(seen, name):
    return seen["batch"][name].flatten(0, 1).tolist()


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


def test_a_batch_with_nothing_to_learn_has_no_loss():
    model, batch = new_model(), leafy_batch(leaves=0)  # its first row is padding alone
    batch["mlm_labels"][:] = -100
    output = model(**batch)
    assert float(output.loss.detach()) == 0
    output.loss.backward()
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
