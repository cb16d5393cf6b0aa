"""Scores of triples by a model, held against one query and one name at a time."""

import numpy as np
import pytest
import torch

from helpers.graphmer.links import predictor as link_prediction
from helpers.graphmer.links import ranking
from helpers.graphmer.links.baselines import Frequency
from helpers.graphmer.links.fusion import ScoreFusion
from helpers.graphmer.links.predictor import PARTS, LinkPredictor
from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.tokenizer import break_tokens, separator_tokens

from .graph_batches import perturbed
from .test_graph_chains import ONTOLOGY, RELATIONS, World

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module", params=[True, False], ids=["copy head", "vectors alone"])
def model(request, world):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    properties = RELATIONS.properties()
    config = GraphMERConfig(
        vocab_size=len(world.tokenizer),
        embedding_size=8,
        token_match=request.param,
        separator_ids=separator_tokens(world.tokenizer),
        break_ids=break_tokens(world.tokenizer),
        **sizes,
        **properties,
    )
    return perturbed(GraphMERForPreTraining(config)).eval()


def slow_score(model, chains, given: str, relation: int, name: str) -> float:
    """What the masked leaf at one document asks for against one name: the mean over windows, but the most of copies of a token."""
    text_1C = torch.from_numpy(chains.encoded.text_ids_EC[[chains.encoded.number[name]]].astype(np.int64))
    total, windows = 0.0, chains.window_count(given)
    copies: dict[int, list[float]] = {}
    for window in range(windows):
        batch = chains.queries([given], [[relation]], windows=[window])
        with torch.no_grad():
            dense = float(model.queries(**batch)[0, 0] @ model.entities(text_1C)[0]) / model.config.temperature
            if model.token_match is not None:
                query, ids, copied = model.query_features(**batch)
                entity, bias, tokens, weights = model.entity_features(text_1C)
                size = model.config.embedding_size
                dense += float(query[0, 0, size:] @ entity[0, size:] + bias[0])
                for place, (token, weight) in enumerate(zip(tokens[0].tolist(), weights[0].tolist(), strict=True)):
                    if weight:
                        copies.setdefault(place, []).append(weight * float(copied[0, 0][ids[0] == token].sum()))
        total += dense / windows
    return total + sum(map(max, copies.values()))


CLOSE = {"rtol": 1e-5, "atol": 1e-5}


@pytest.fixture
def alone(monkeypatch):
    """Leaves that a document has beside the one that is asked change its answer a little; here there are none."""
    monkeypatch.setattr(Relations, "of_head", lambda self, entity_type: [])


def calls(world) -> tuple[list[str], list[str]]:
    heads = [triple.head for triple in world.splits.test if triple.relation == "calls"][:2]
    return heads, sorted({triple.tail for triple in world.splits.train if triple.relation == "calls"})[:7]


def added(predictor, end, direction, given, candidates):
    """All parts of the score at one end, added up."""
    scorers = [one for name, one in predictor.ends().items() if name.startswith(end) and not name.endswith("total")]
    assert len(scorers) == (1 if predictor.model.token_match is None else len(PARTS))
    return sum(one(given, "calls", candidates, direction) for one in scorers)


def test_the_given_end_scores_what_its_leaf_asks_for(world, model, alone):
    chains = world.chains()
    predictor, (heads, tails) = LinkPredictor(model, chains, batch_size=3), calls(world)
    relation = RELATIONS.id("calls")
    expected = [[slow_score(model, chains, head, relation, tail) for tail in tails] for head in heads]
    np.testing.assert_allclose(added(predictor, "given end", "tail", heads, tails), expected, **CLOSE)
    inverse = RELATIONS.inverse(relation)
    expected = [[slow_score(model, chains, tail, inverse, head) for head in heads] for tail in tails]
    np.testing.assert_allclose(added(predictor, "given end", "head", tails, heads), expected, **CLOSE)


def test_a_long_document_is_read_in_windows(world, model, alone):
    chains = world.windows()
    predictor, (_, tails) = LinkPredictor(model, chains, batch_size=4), calls(world)
    heads = [entity.id for entity in world.graph.entities.values() if chains.window_count(entity.id) > 1][:2]
    heads.append(next(entity.id for entity in world.graph.entities.values() if chains.window_count(entity.id) == 1))
    relation = RELATIONS.id("calls")
    expected = [[slow_score(model, chains, head, relation, tail) for tail in tails] for head in heads]
    np.testing.assert_allclose(added(predictor, "given end", "tail", heads, tails), expected, **CLOSE)


def test_the_other_end_scores_what_the_candidates_leaves_ask_for(world, model, alone):
    chains = world.chains()
    predictor, (heads, tails) = LinkPredictor(model, chains), calls(world)
    inverse = RELATIONS.inverse(RELATIONS.id("calls"))
    expected = np.array([[slow_score(model, chains, tail, inverse, head) for tail in tails] for head in heads])
    np.testing.assert_allclose(added(predictor, "other end", "tail", heads, tails), expected, **CLOSE)
    relation = RELATIONS.id("calls")
    expected = np.array([[slow_score(model, chains, head, relation, tail) for tail in tails] for head in heads])
    np.testing.assert_allclose(added(predictor, "other end", "head", tails, heads), expected.T, **CLOSE)


def test_the_total_of_a_candidate_is_over_all_that_it_could_ask_for(world, model, alone):
    chains = world.chains()
    predictor, (heads, tails) = LinkPredictor(model, chains), calls(world)
    inverse = RELATIONS.inverse(RELATIONS.id("calls"))
    types = {*RELATIONS.tail_types(inverse), "unknown"}
    admitted = [entity.id for entity in world.graph.entities.values() if entity.type in types]
    scores = [slow_score(model, chains, tails[0], inverse, name) for name in admitted]
    found = predictor.ends()["other end: total"](heads, "calls", tails[:1], "tail")
    np.testing.assert_allclose(found, np.full((len(heads), 1), -np.logaddexp.reduce(scores)), **CLOSE)


def test_the_total_of_many_names_is_that_of_some_of_them_times_how_many_they_stand_for(world, model, monkeypatch):
    whole, (_, tails) = LinkPredictor(model, world.chains()), calls(world)
    answers = len(whole._answers(RELATIONS.id("calls"))[0])
    monkeypatch.setattr(link_prediction, "MOST_ANSWERS", answers // 2)
    some = LinkPredictor(model, world.chains())
    names, scale = some._answers(RELATIONS.id("calls"))
    assert len(names) == answers // 2 and scale == pytest.approx(np.log(answers / len(names)))
    relation = RELATIONS.id("calls")
    assert np.abs(some.totals(tails, relation) - whole.totals(tails, relation)).max() < 1


def test_a_document_is_read_once_for_all_its_relations(world, model, monkeypatch):
    predictor, read = LinkPredictor(model, world.chains()), []
    queries = world.chains().queries
    monkeypatch.setattr(
        predictor.chains, "queries", lambda names, *given, **more: read.extend(names) or queries(names, *given, **more)
    )
    heads, tails = calls(world)
    for relation in ("calls", "instantiates", "raises"):
        predictor.ends()["given end: meaning"](heads, relation, tails, "tail")
    assert sorted(read) == sorted(set(heads))


def test_what_is_remembered_of_candidates_changes_no_score(world, model):
    chains = world.chains()
    names = [entity.id for entity in world.graph.entities.values() if entity.type == "function"][:9]
    fresh, used = (LinkPredictor(model, chains) for _ in range(2))
    for candidates in (names[3:6], names[2:]):
        used.ends()["other end: meaning"](names[:2], "calls", candidates, "tail")
    for end in used.ends():
        found, expected = (each.ends()[end](names[:3], "calls", names[::-1], "tail") for each in (used, fresh))
        np.testing.assert_array_equal(found, expected)


def test_a_model_is_ranked_as_any_scorer(world, model):
    scorers = LinkPredictor(model, world.chains()).ends() | {"counts": Frequency.of(world.splits.train)}
    scorer = ScoreFusion.fitted(scorers, world.splits, world.graph, ONTOLOGY)
    found = ranking.evaluate(scorer, world.splits, world.graph, ONTOLOGY, max_queries=20)
    assert 0 < found["both"]["mrr"] <= 1 and found["triples"] == 20
    parts = ("meaning",) if model.token_match is None else PARTS
    assert set(scorer.weights["calls", "tail"]) == {
        *(f"{end} end: {part}" for end in ("given", "other") for part in parts),
        "other end: total",
        "counts",
    }
