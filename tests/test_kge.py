"""Embedding models: scores against their formulas one pair at a time, training on graphs whose answers are known."""

import random

import numpy as np
import pytest
import torch

from helpers.graphmer.kge import MODELS, Embeddings, train_embeddings
from helpers.graphmer.knowledge_graph import Triple

pytestmark = pytest.mark.once


def formula(model, head, relation, tail):
    """One score by the paper's own formula."""
    if model == "transe":
        return -np.linalg.norm(head + relation - tail)
    if model == "distmult":
        return (head * relation * tail).sum()
    head, tail = (vector[0::2] + 1j * vector[1::2] for vector in (head, tail))
    return -np.linalg.norm(head * np.exp(1j * relation) - tail)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("direction", ["tail", "head"])
def test_scores_are_the_formulas(model, direction):
    torch.manual_seed(0)
    embeddings = Embeddings(model, entities=7, relations=3, width=6)
    entities, relations = (table.detach().double().numpy() for table in (embeddings.entities, embeddings.relations))
    given, relation = torch.tensor([1, 4, 6]), torch.tensor([0, 2, 1])
    vectors = embeddings.given(embeddings.entities[given], relation, direction)
    found = embeddings.scores(vectors, embeddings.entities)
    for row, (one, kind) in enumerate(zip(given.tolist(), relation.tolist(), strict=True)):
        for other in range(7):
            head, tail = (one, other) if direction == "tail" else (other, one)
            expected = formula(model, entities[head], relations[kind], entities[tail])
            assert float(found[row, other].detach()) == pytest.approx(expected, abs=1e-5)
    pairs = embeddings.pair_scores(vectors, embeddings.entities[:3])
    assert torch.allclose(pairs, found[range(3), range(3)], atol=1e-5)


def ring(size=24):
    """`next` leads around a ring, `opposite` across it: a translation fails on it, a rotation need not."""
    names = [f"e{number}" for number in range(size)]
    triples = [Triple(name, "next", names[(number + 1) % size]) for number, name in enumerate(names)]
    return [
        *triples,
        *(Triple(name, "opposite", names[(number + size // 2) % size]) for number, name in enumerate(names)),
    ]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("negatives", [0, 12])
def test_training_learns_its_triples(model, negatives):
    draw = random.Random(0)
    names = [f"e{number}" for number in range(30)]
    train = sorted({Triple(draw.choice(names[:15]), draw.choice("rs"), draw.choice(names[15:])) for _ in range(40)})
    trained = train_embeddings(train, model=model, width=32, epochs=60, batch_size=16, negatives=negatives)
    assert trained.losses[-1] < 0.6 * trained.losses[0]
    hits = 0
    for head, relation, tail in train:
        true = {other.tail for other in train if (other.head, other.relation) == (head, relation)} - {tail}
        candidates = [name for name in names if name not in true]
        scores = trained.tails([head], relation, candidates)[0]
        hits += scores.argmax() == candidates.index(tail)
    assert hits / len(train) > 0.8


def test_a_rotation_closes_a_ring():
    trained = train_embeddings(ring(), model="rotate", width=16, epochs=300, batch_size=48, negatives=0)
    names = [f"e{number}" for number in range(24)]
    tails = trained.tails(names, "next", names).argmax(1)
    heads = trained.heads(names, "next", names).argmax(1)
    assert tails.tolist() == [(number + 1) % 24 for number in range(24)]
    assert heads.tolist() == [(number - 1) % 24 for number in range(24)]


@pytest.mark.parametrize("model", MODELS)
def test_what_training_has_not_seen_is_the_average_entity(model):
    trained = train_embeddings(ring(), model=model, width=8, epochs=2)
    scores = trained.tails(["e0"], "next", ["new", "e1", "newer", *[f"x{number}" for number in range(40)]])[0]
    assert len({float(score) for score in (scores[0], scores[2], *scores[3:])}) == 1
    mean = trained.embeddings.entities.mean(0).detach().double().numpy()
    head, tail = (trained.embeddings.entities[number].detach().double().numpy() for number in (0, 1))
    relation = trained.embeddings.relations[0].detach().double().numpy()  # "next" is the first of two
    assert sorted(f"e{number}" for number in range(24))[:2] == ["e0", "e1"]
    assert scores[0] == pytest.approx(formula(model, head, relation, mean), abs=1e-4)
    assert scores[1] == pytest.approx(formula(model, head, relation, tail), abs=1e-4)
    found = trained.tails(["new"], "next", ["e1"])[0, 0]
    assert found == pytest.approx(formula(model, mean, relation, tail), abs=1e-4)
    assert not trained.tails(["e0", "new"], "unseen", ["e1", "e2"]).any()


def test_the_seed_alone_decides_and_the_global_generator_is_left_alone():
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    one, again, other = (
        train_embeddings(ring(), model="distmult", width=8, epochs=2, negatives=5, seed=seed) for seed in (1, 1, 2)
    )
    assert torch.equal(torch.rand(1), expected)
    assert torch.equal(one.embeddings.entities, again.embeddings.entities)
    assert not torch.equal(one.embeddings.entities, other.embeddings.entities)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": "complex"}, "model='complex': must be one of transe, distmult, rotate"),
        ({"width": 7}, "width=7: must be even"),
        ({"epochs": 0}, "epochs=0: must be above 0"),
        ({"negatives": -1}, "negatives=-1"),
        ({"train": []}, "train: no triples"),
    ],
)
def test_impossible_options_are_refused(options, message):
    options = {"train": ring(), "model": "transe", "width": 8, "epochs": 1} | options
    with pytest.raises(ValueError, match=message):
        train_embeddings(options.pop("train"), **options)
