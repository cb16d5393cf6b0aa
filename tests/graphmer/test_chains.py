"""Batches of leafy chains, read back and held against the graph, the documents and slow loops."""

import random
from collections import Counter, defaultdict
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from helpers.graphmer.chains import Leaf, LeafyChains, Relations, curriculum, mask_roots, phase_steps
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.graph.build import load_graph
from helpers.graphmer.text import MASK, SEP
from helpers.graphmer.training import load_corpus

pytestmark = pytest.mark.once

ROOTS, LEAVES, NOTHING = 96, 12, -100
RELATIONS = Relations()
SHORT = {  # the published configuration, with every kind of leaf and of wrong tail, on short sequences
    "training_data.max_seq_len": ROOTS + 7 * LEAVES,
    "training_data.short_to_long_curriculum.enabled": False,
    "encoding.leaf_tokens": 7,
    "encoding.max_leaves_per_sequence": LEAVES,
    "encoding.entity_tokens": 32,
    "encoding.vocab_size": 2000,
    "run.seed": 0,
}


class World:
    """A small library with everything made of it once."""

    def __init__(self, folder):
        self.configuration = override(read_configuration("published"), SHORT)
        self.corpus = load_corpus(load_graph(folder), self.configuration)
        self.splits, self.encoded = self.corpus.splits, self.corpus.train.encoded
        self.known = self.splits[0] + self.splits[1] + self.splits[2]

    def chains(self, **changes):
        dotted = {name.replace("__", "."): value for name, value in changes.items()}
        configuration = override(self.configuration, dotted)
        return LeafyChains(self.splits.train, self.encoded, configuration)

    def text(self, ids) -> str:
        return self.corpus.tokenizer.decode([one for one in ids if one > SEP])


@pytest.fixture(scope="module")
def world(library):
    return World(library)


@pytest.fixture(scope="module")
def chains(world):
    return world.chains()


def whole_epoch(chains):
    return chains.collate([chains[index] for index in range(len(chains))])


@pytest.fixture(scope="module")
def epoch(chains):
    """Every sequence of epoch 0 in one batch."""
    return whole_epoch(chains)


def directed(world, triples):
    """(head, relation id, tail) in numbers, both directions."""
    number, found = world.encoded.number, set()
    for head, relation, tail in triples:
        one = RELATIONS.id(relation)
        found |= {(number[head], one, number[tail]), (number[tail], RELATIONS.inverse(one), number[head])}
    return found


def leaves_of(batch):
    """Every leaf there is: its row and number, and what the batch says of it."""
    names = (
        "relation_ids",
        "head_entities",
        "tail_entities",
        "head_start",
        "head_length",
        "triple_labels",
        "leaf_segments",
    )
    for row, number in batch["leaf_segments"].nonzero().tolist():
        yield SimpleNamespace(row=row, number=number, **{name: batch[name][row, number].item() for name in names})


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# ---- sequences


def test_an_example_depends_on_seed_index_and_epoch_alone(world, chains):
    again, many = world.chains(), len(chains)
    for index in (5, 0, 2 * many + 7):
        assert equal(again[index], chains[index])
    assert not equal(chains[5], chains[5 + many])
    assert not equal(chains[5], world.chains(run__seed=1)[5])


# ---- leaves


def test_leaves_are_true_triples_of_training_or_wrong_ones_of_no_part(world, epoch):
    trained, counts = directed(world, world.splits.train), Counter()
    looks = {row.tobytes() for row in world.encoded.leaf_ids_EL}
    for leaf in leaves_of(epoch):
        head, tail, label = leaf.head_entities, leaf.tail_entities, leaf.triple_labels
        shown = epoch["leaf_ids"][leaf.row, leaf.number].numpy().tobytes()
        counts[label] += 1
        if label == 0:
            assert (head, tail) == (-1, -1) and shown in looks
        else:
            assert (head, leaf.relation_ids, tail) in trained
        if label == 1:
            assert shown == world.encoded.leaf_ids_EL[tail].tobytes()
    assert counts[0] > 500 and counts[1] > 500 and counts[NOTHING] > 100


def test_wrong_tails_are_of_an_admitted_type_and_hard_ones_are_near(world):
    entities, encoded, draw = world.encoded.entities, world.encoded, random.Random(0)
    true_looks, near = defaultdict(set), {"hard": Counter(), "type_consistent": Counter()}
    for head, relation, tail in directed(world, world.known):
        true_looks[head, relation].add(encoded.leaf_ids_EL[tail].tobytes())
    for head, relation, tail in sorted(directed(world, world.splits.train))[::3]:
        for kind, counted in near.items():
            wrong = encoded.wrong_tail(draw, Leaf(1, 0, 1, head, relation, tail, True), kind == "hard")
            if wrong is not None:
                assert entities[wrong].type in RELATIONS.tail_types[relation]
                assert encoded.leaf_ids_EL[wrong].tobytes() not in true_looks[head, relation]
                counted[entities[wrong].module == entities[tail].module] += 1
    assert (
        near["hard"][True] / near["hard"].total() > 2 * near["type_consistent"][True] / near["type_consistent"].total()
    )


def test_no_pair_of_entities_is_in_two_leaves_of_a_document(epoch):
    seen = set()
    for leaf in leaves_of(epoch):
        key = (leaf.row, leaf.leaf_segments, frozenset((leaf.head_entities, leaf.tail_entities)))
        assert leaf.head_entities < 0 or key not in seen
        seen.add(key)


def test_known_tails_of_the_batch_are_what_a_loop_finds(world, chains):
    batch = chains.collate([chains[index] for index in range(10)])
    known = directed(world, world.known)
    fields = ("head_entities", "tail_entities", "relation_ids")
    heads, tails, relations = (batch[name].flatten().tolist() for name in fields)
    expected = torch.zeros(len(tails), len(tails), dtype=torch.bool)
    for x, y in ((x, y) for x in range(len(tails)) for y in range(len(tails)) if x != y):
        expected[x, y] = tails[x] >= 0 and tails[y] >= 0 and (heads[x], relations[x], tails[y]) in known
    assert expected.any()
    assert torch.equal(batch["known_BGX"].view_as(expected), expected)


# ---- masks


def test_identifiers_are_masked_whole_and_80_10_10():
    identifiers = np.zeros(50, bool)
    identifiers[10:30] = True
    draw, fates = np.random.default_rng(0), Counter()
    for _ in range(200):
        ids, segments = draw.integers(3, 50, 96), np.repeat([1, 2, 0], 32)
        options = {"mask_prob": 0.3, "identifiers_V": identifiers, "generator": draw}
        found = mask_roots(ids, segments, **options)
        hidden, places, labels = found["root_ids"], found["mlm_positions"], found["mlm_labels"]
        chosen = set(places[labels != NOTHING].tolist())
        assert len(chosen) <= len(places) == 29 and max(chosen) < 64
        for one in chosen:
            fates["masked" if hidden[one] == MASK else "kept" if hidden[one] == ids[one] else "replaced"] += 1
            for other in (one - 1, one + 1):
                together = 0 <= other < 64 and segments[one] == segments[other]
                if together and identifiers[ids[one]] and identifiers[ids[other]]:
                    assert other in chosen
    assert fates["masked"] / fates.total() == pytest.approx(0.8, abs=0.04)
    assert fates["kept"] / fates.total() == pytest.approx(0.1, abs=0.03)


# ---- lengths


def test_a_run_goes_through_its_lengths_at_the_steps_of_the_schedule(chains):
    run = curriculum(chains, ((0, 40), (3, ROOTS)), steps=5, examples_per_step=4)
    loader = DataLoader(run, batch_size=2, collate_fn=chains.collate)
    assert [batch["root_ids"].shape[1] for batch in loader] == [40] * 6 + [ROOTS] * 4
    assert equal(run[12], chains[0]) and equal(run[3], chains.with_roots(40)[3])
    assert phase_steps((0, 15_000), 100) == (100, 0)
    assert phase_steps((0, 0.5, 0.9), 7) == (4, 2, 1)
    assert phase_steps((0, 1), 10) == (1, 9)


def test_an_identifier_ends_with_its_document():
    segments = np.repeat([1, 2], 4)
    options = {"mask_prob": 0.5, "identifiers_V": np.ones(8, bool), "generator": np.random.default_rng(0)}
    masked = mask_roots(np.arange(8), segments, **options)
    positions = masked["mlm_positions"][masked["mlm_labels"] != NOTHING]
    assert sorted(positions) in ([0, 1, 2, 3], [4, 5, 6, 7])
