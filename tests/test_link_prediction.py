"""Scores of triples by a model, held against one query and one name at a time."""

import numpy as np
import pytest
import torch

from helpers.graphmer import ranking
from helpers.graphmer.architecture import GraphMERConfig
from helpers.graphmer.link_prediction import LinkPredictor
from helpers.graphmer.model import GraphMERForPreTraining
from helpers.graphmer.tokenizer import PAD

from .graph_batches import perturbed
from .test_graph_collation import RELATIONS, World


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module", params=[True, False], ids=["token match", "vectors alone"])
def model(request, world):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    properties = RELATIONS.properties()
    config = GraphMERConfig(
        vocab_size=len(world.tokenizer), embedding_size=8, token_match=request.param, **sizes, **properties
    )
    return perturbed(GraphMERForPreTraining(config)).eval()


def slow_score(model, chains, given: str, relation: int, name: str) -> float:
    """What the masked leaf at one document asks for against one name."""
    batch = chains.queries([given], [relation])
    text = chains.entity_texts([name])
    with torch.no_grad():
        total = float(model.queries(**batch)[0, 0] @ model.entities(text)[0]) / model.config.temperature
        if model.token_match is not None:
            asked, copied = model.asked(**batch)
            offered, bias, weights = model.offered(text)
            size = model.config.embedding_size
            total += float(asked[0, 0, size:] @ offered[0, size:] + bias[0])
            for token, weight in zip(text[0].tolist(), weights[0].tolist(), strict=True):
                if token != PAD:
                    total += weight * float(copied[0, 0][batch["root_ids"][0] == token].sum())
    return total


def test_a_triple_scores_what_both_of_its_ends_ask_for(world, model):
    chains = world.chains()
    predictor = LinkPredictor(model, chains, batch_size=3)
    heads = [triple.head for triple in world.splits.test if triple.relation == "calls"][:2]
    candidates = sorted({triple.tail for triple in world.splits.train if triple.relation == "calls"})[:7]
    calls, called_by = RELATIONS.id("calls"), RELATIONS.inverse(RELATIONS.id("calls"))
    expected = [
        [slow_score(model, chains, h, calls, t) + slow_score(model, chains, t, called_by, h) for t in candidates]
        for h in heads
    ]
    # Features are kept in half precision: the corpus has many.
    np.testing.assert_allclose(predictor.tails(heads, "calls", candidates), expected, rtol=3e-2, atol=5e-2)
    turned = predictor.heads(candidates, "calls", heads)
    np.testing.assert_allclose(turned, np.array(expected).T, rtol=3e-2, atol=5e-2)


def test_what_is_remembered_of_candidates_changes_no_score(world, model):
    chains = world.chains()
    names = [entity.id for entity in world.graph.entities.values() if entity.type == "function"][:9]
    fresh, used = LinkPredictor(model, chains), LinkPredictor(model, chains)
    used.tails(names[:2], "calls", names[3:6])
    used.tails(names[:2], "calls", names[2:])
    found, expected = (each.tails(names[:3], "calls", names[::-1]) for each in (used, fresh))
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-3)  # other batches round otherwise


def test_a_model_is_ranked_as_any_scorer(world, model):
    from .test_graph_collation import ONTOLOGY

    found = ranking.evaluate(LinkPredictor(model, world.chains()), world.splits, world.graph, ONTOLOGY, max_queries=20)
    assert 0 < found["both"]["mrr"] <= 1 and found["triples"] == 20
