"""Batches of leafy chains, read back and held against the graph, the documents and slow loops."""

import random
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Subset

from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.knowledge_graph import EXTERNAL, UNRESOLVED, Entity, build_graph
from helpers.graphmer.graph.ontology import read_ontology
from helpers.graphmer.graph.splits import split_by_module
from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig
from helpers.graphmer.text.chains import LeafyChains
from helpers.graphmer.text.documents import Documents, entity_text
from helpers.graphmer.text.negatives import Relations, words
from helpers.graphmer.text.tokenizer import MASK, PAD, encode, train_tokenizer
from helpers.graphmer.text.windows import EncodedDocuments
from helpers.graphmer.training import CurriculumChains, LeafyChainCollator, phase_steps

from .graph_batches import check_batch
from .test_graph_documents import library

pytestmark = pytest.mark.once

ROOTS, LEAVES = 96, 12
ONTOLOGY = read_ontology()
RELATIONS = Relations(ONTOLOGY)


class World:
    """A small library with everything made of it once."""

    def __init__(self, folder):
        self.graph = load_graph(library(folder))
        documents = Documents.read(self.graph, folder)
        self.tokenizer = train_tokenizer(documents.sources(), 2000)
        self.encoded = EncodedDocuments(documents, self.tokenizer, roots=ROOTS)
        self.in_windows = EncodedDocuments(documents, self.tokenizer, roots=ROOTS, windows=3)
        self.splits = split_by_module(self.graph, seed=0, unit="module")
        self.held_out = (*self.splits.validation, *self.splits.test)

    def chains(self, **options):
        given = {"roots": ROOTS, "leaves": LEAVES, "known": self.held_out, "seed": 0} | options
        triples = given.pop("triples", self.splits.train)
        return LeafyChains(triples, self.encoded, RELATIONS, **given)

    def windows(self, **options):
        """`chains` whose long documents have three windows."""
        given = {"roots": ROOTS, "leaves": LEAVES, "known": self.held_out, "seed": 0} | options
        return LeafyChains(self.splits.train, self.in_windows, RELATIONS, **given)

    def text(self, ids) -> str:
        return self.tokenizer.decode([one for one in ids if one > 2])


@pytest.fixture(scope="module")
def world(tmp_path_factory):
    return World(tmp_path_factory.mktemp("library"))


@pytest.fixture(scope="module")
def chains(world):
    return world.chains()


@pytest.fixture(scope="module")
def epoch(chains):
    """Every sequence of epoch 0 in one batch."""
    return LeafyChainCollator(chains)([chains[index] for index in range(len(chains))])


def directed(world, triples):
    """(head, relation id, tail) in numbers, both directions."""
    number, found = world.encoded.number, set()
    for head, relation, tail in triples:
        one = RELATIONS.id(relation)
        found |= {(number[head], one, number[tail]), (number[tail], RELATIONS.inverse(one), number[head])}
    return found


def leaves_of(batch):
    """(row, leaf) of every leaf there is."""
    return batch["leaf_segments"].nonzero().tolist()


def document_of(chains, epoch_number, row, segment):
    return window_of(chains, epoch_number, row, segment)[0]


def window_of(chains, epoch_number, row, segment):
    return chains._sequences[chains._order(epoch_number)[row]][segment - 1]


def equal(one, other):
    return one.keys() == other.keys() and all(np.array_equal(one[name], other[name]) for name in one)


# ---- sequences


def test_a_batch_is_one_that_the_model_takes(world, chains, epoch):
    config = GraphMERConfig(vocab_size=len(world.tokenizer), **RELATIONS.properties())
    check_batch(epoch, config)
    check_batch(chains.queries(["json.dumps", "json"], [["calls", "inverse raises"]] * 2), config)


def test_an_example_depends_on_seed_epoch_and_index_alone(world, chains):
    again = world.chains()
    for index in (5, 0, 7):
        assert equal(again.example(2, index), chains.example(2, index))
    assert not equal(chains.example(2, 5), chains.example(3, 5))
    assert not equal(chains.example(2, 5), chains.example(2, 6))
    assert not equal(chains.example(2, 5), world.chains(seed=1).example(2, 5))
    assert equal(again[5], chains.example(0, 5))
    assert equal(again[2 * len(again) + 5], chains.example(2, 5))


def test_workers_give_the_same_batches_in_the_same_order(chains):
    def batches(workers):
        loader = DataLoader(
            Subset(chains, range(60, 0, -1)), batch_size=8, collate_fn=LeafyChainCollator(chains), num_workers=workers
        )
        return list(loader)

    for one, other in zip(batches(0), batches(2), strict=True):
        assert all(torch.equal(one[name], other[name]) for name in one)


def test_every_document_is_in_each_epoch_once_and_whole_segments_are_its_tokens(world, chains, epoch):
    seen = Counter()
    for row in range(len(chains)):
        segments = epoch["root_segments"][row].numpy()
        used = np.count_nonzero(segments)
        assert (np.diff(segments[:used]) >= 0).all()
        ids = epoch["root_ids"][row].numpy().copy()
        places = epoch["mlm_positions"][row][epoch["mlm_labels"][row] != -100]
        ids[places] = epoch["mlm_labels"][row][epoch["mlm_labels"][row] != -100]
        for segment in range(1, segments.max() + 1):
            number = document_of(chains, 0, row, segment)
            here = segments == segment
            np.testing.assert_array_equal(ids[here], world.encoded.document(number))
            np.testing.assert_array_equal(epoch["root_positions"][row][here], np.arange(here.sum()))
            seen[number] += 1
        assert not ids[used:].any()
        assert not epoch["root_positions"][row][used:].any()
    ends = {world.encoded.number[end] for triple in world.splits.train for end in (triple.head, triple.tail)}
    assert seen == Counter(dict.fromkeys(ends, 1))


def test_windows_show_the_source_on_under_its_name(world):
    made = world.windows(mask_prob=0.0)
    seen = Counter()
    for row in range(len(made)):
        example = made[row]
        for segment in range(1, example["root_segments"].max() + 1):
            number, window = window_of(made, 0, row, segment)
            whole, name = world.in_windows.document(number), world.in_windows.name_length(number)
            begin = name + window * (ROOTS - name)
            shown = np.concatenate((whole[:name], whole[begin : begin + ROOTS - name]))
            np.testing.assert_array_equal(example["root_ids"][example["root_segments"] == segment], shown)
            seen[number, window] += 1
    assert set(seen.values()) == {1}
    assert {window for _, window in seen} == {0, 1, 2}


def test_a_triple_is_asked_for_in_the_windows_that_mention_its_tail(world):
    made, entities, where = world.windows(), world.in_windows.entities, Counter()
    for (number, window), there in made._there.items():
        if made.encoded.count(number, ROOTS) == 1:
            continue
        source = world.text(made.encoded.window(number, window, ROOTS)[0][made.encoded.name_length(number) :])
        for relation, tail in there:
            if relation <= RELATIONS.forward:
                mentioned = entities[tail].name in source
                assert mentioned or window == 0
                where[mentioned, window] += 1
    assert min(where[True, 0], where[True, 1], where[True, 2], where[False, 0]) > 20
    asked = {(number, *leaf) for (number, _), leaves in made._there.items() for leaf in leaves}
    assert asked == {triple for triple in directed(world, world.splits.train) if not recursive(triple)}


def recursive(triple) -> bool:
    """Whether it is the second of two equal questions: what calls itself is called by itself."""
    head, relation, tail = triple
    return head == tail and relation > RELATIONS.forward


def test_leaves_of_a_window_hang_at_names_that_it_shows(world):
    made, inner = world.windows(mask_prob=0.0), Counter()
    batch = LeafyChainCollator(made)([made[index] for index in range(len(made))])
    for row, leaf in leaves_of(batch):
        number, window = window_of(made, 0, row, batch["leaf_segments"][row, leaf].item())
        head = batch["head_entities"][row, leaf].item()
        if head not in (-1, number):
            start, length = batch["head_start"][row, leaf], batch["head_length"][row, leaf]
            name = world.text(batch["root_ids"][row, start : start + length].tolist())
            assert world.in_windows.entities[head].name.startswith(name)
            inner[window] += 1
    assert min(inner[0], inner[1], inner[2]) > 5


def test_packing_fills_sequences_and_can_be_turned_off(world, chains):
    alone = world.chains(pack=False)
    assert len(alone) > 2 * len(chains)
    assert all(alone[index]["root_segments"].max() == 1 for index in range(0, len(alone), 50))
    half_empty = 0
    for row in chains._sequences:
        roots = sum(world.encoded.length(number) for number, _ in row)
        leaves = sum(chains._need(window) for window in row)
        assert roots <= ROOTS
        assert leaves <= LEAVES
        half_empty += roots <= ROOTS / 2 and leaves <= LEAVES / 2
    assert half_empty <= 1  # two of them would be one
    roots, leaves = chains.fill()
    assert 0 < roots <= 1
    assert 0 < leaves <= 1


# ---- leaves


def test_leaves_are_true_triples_of_training_or_wrong_ones_of_no_part(world, epoch):
    trained = directed(world, world.splits.train)
    known = trained | directed(world, world.held_out)
    looks = {bytes(row): number for number, row in enumerate(world.encoded.leaf_ids_EL)}
    true_looks = defaultdict(set)
    for head, relation, tail in known:
        true_looks[head, relation].add(bytes(world.encoded.leaf_ids_EL[tail]))
    counts = Counter()
    for row, leaf in leaves_of(epoch):
        label, relation = epoch["triple_labels"][row, leaf].item(), epoch["relation_ids"][row, leaf].item()
        head, tail = (epoch[f"{end}_entities"][row, leaf].item() for end in ("head", "tail"))
        counts[label] += 1
        shown = bytes(epoch["leaf_ids"][row, leaf].numpy().astype(world.encoded.leaf_ids_EL.dtype))
        if label == 0:
            assert (head, tail) == (-1, -1)
            assert shown in looks
        else:
            assert (head, relation, tail) in trained
            if label == 1:
                assert shown == bytes(world.encoded.leaf_ids_EL[tail])
    assert counts[0] > 500
    assert counts[1] > 500
    assert counts[-100] > 100


def test_a_wrong_tail_is_of_an_admitted_type_and_reads_like_no_true_one(world, chains):
    entities, encoded = world.encoded.entities, world.encoded
    true_looks = defaultdict(set)
    for head, relation, tail in directed(world, (*world.splits.train, *world.held_out)):
        true_looks[head, relation].add(bytes(encoded.leaf_ids_EL[tail]))
    made, draws = Counter(), chains.sampler
    draw = random.Random(0)
    for head, relation, tail in sorted(directed(world, world.splits.train))[::3]:
        for kind in (draws.type_consistent, draws.hard):
            wrong = kind(draw, head, relation, tail)
            if wrong is not None:
                made[kind.__name__] += 1
                assert entities[wrong].type in RELATIONS.tail_types(relation)
                assert entities[wrong].status != UNRESOLVED
                assert bytes(encoded.leaf_ids_EL[wrong]) not in true_looks[head, relation]
    assert min(made.values()) > 500


def test_hard_ones_are_of_the_same_module_or_share_a_word(world, chains):
    entities, draw, near, far = world.encoded.entities, random.Random(0), Counter(), Counter()
    for head, relation, tail in sorted(directed(world, world.splits.train))[::3]:
        for kind, counted in ((chains.sampler.hard, near), (chains.sampler.type_consistent, far)):
            wrong = kind(draw, head, relation, tail)
            if wrong is not None:
                same = entities[wrong].module == entities[tail].module
                same |= bool(set(words(entities[wrong].name)) & set(words(entities[tail].name)))
                counted[same] += 1
    assert near[True] > 0.85 * near.total()
    assert far[True] < 0.6 * far.total()


def test_what_another_part_knows_is_no_wrong_tail():
    entities = [Entity(f"m.f{n}", "function", f"f{n}", module="m") for n in range(3)]
    entities += [Entity("m", "module", "m", module="m"), Entity("out.g", "function", "g", EXTERNAL, "out")]
    graph = build_graph(entities, [], {})
    tokenizer = train_tokenizer(["m.f0 m.f1 m.f2 out.g"], 300)
    encoded = EncodedDocuments(Documents(graph, {}), tokenizer, roots=8)
    given = {"roots": 8, "leaves": 8, "seed": 0, "leaf_mask_prob": 0.0, "negatives": 4}

    def wrong(known):
        chains = LeafyChains([("m.f0", "calls", "m.f1")], encoded, RELATIONS, known=known, **given)
        batch = LeafyChainCollator(chains)([chains.example(epoch, 0) for epoch in range(60)])
        chosen = (batch["triple_labels"] == 0) & (batch["relation_ids"] == RELATIONS.id("calls"))
        return {tokenizer.decode([one for one in ids if one > 2]) for ids in batch["leaf_ids"][chosen].tolist()}

    assert wrong(()) == {"m.f0", "m.f2", "out.g"}
    assert wrong([("m.f0", "calls", "m.f2")]) == {"m.f0", "out.g"}
    assert wrong([("m.f0", "calls", name) for name in ("m.f0", "m.f2", "out.g")]) == set()


def test_masked_leaves_show_nothing_and_labels_are_their_tokens(world, epoch):
    masked = (epoch["mnm_labels"] != -100).any(-1)
    assert masked.any()
    for row, leaf in leaves_of(epoch):
        labels = epoch["mnm_labels"][row, leaf]
        if masked[row, leaf]:
            assert (epoch["leaf_ids"][row, leaf] == MASK).all()
            assert epoch["triple_labels"][row, leaf] == -100
            expected = world.encoded.leaf_ids_EL[epoch["tail_entities"][row, leaf]].astype(np.int64)
            assert torch.equal(labels, torch.from_numpy(np.where(expected == PAD, -100, expected)))
        else:
            assert (epoch["leaf_ids"][row, leaf] != MASK).all()
            assert epoch["triple_labels"][row, leaf] in (0, 1)
            assert not epoch["negative_text_ids"][row, leaf].any()
    empty = epoch["leaf_segments"] == 0
    for name, value in {
        "leaf_ids": 0,
        "relation_ids": 0,
        "head_start": 0,
        "head_length": 0,
        "tail_text_ids": 0,
    }.items():
        assert (epoch[name][empty] == value).all(), name
    for name, value in {"mnm_labels": -100, "triple_labels": -100, "tail_entities": -1}.items():
        assert (epoch[name][empty] == value).all(), name


def test_no_pair_of_entities_is_in_two_leaves_of_a_document(world, chains, epoch):
    seen, pairs = set(), Counter()
    for row, leaf in leaves_of(epoch):
        head, tail = (epoch[f"{end}_entities"][row, leaf].item() for end in ("head", "tail"))
        if head >= 0:
            key = (row, epoch["leaf_segments"][row, leaf].item(), frozenset((head, tail)))
            assert key not in seen
            seen.add(key)
            pairs[key[2]] += 1
    assert pairs.most_common(1)[0][1] > 1  # in other documents it may be


@pytest.mark.parametrize("share", [0.0, 0.2, 0.5])
def test_the_share_of_masked_leaves_and_roots_is_the_request(world, share):
    made = world.chains(leaf_mask_prob=share, mask_prob=share, negatives=1)
    collate, counts = LeafyChainCollator(made), Counter()
    for number in range(2):
        batch = collate([made.example(number, index) for index in range(len(made))])
        counts["true"] += (batch["tail_entities"] >= 0).sum().item()
        counts["masked"] += (batch["mnm_labels"] != -100).any(-1).sum().item()
        counts["roots"] += (batch["root_segments"] > 0).sum().item()
        counts["labels"] += (batch["mlm_labels"] != -100).sum().item()
    assert counts["masked"] / counts["true"] == pytest.approx(share, abs=0.01)
    assert counts["labels"] / counts["roots"] == pytest.approx(share, abs=0.005)


def test_leaves_hang_at_the_name_of_their_head(world, chains, epoch):
    places = Counter()
    for row, leaf in leaves_of(epoch):
        segment = epoch["leaf_segments"][row, leaf].item()
        number = document_of(chains, 0, row, segment)
        begin = epoch["root_segments"][row].tolist().index(segment)
        start = epoch["head_start"][row, leaf].item() - begin
        anchors = world.encoded.anchors(number).tolist()
        named, _, length = next(anchor for anchor in anchors if anchor[1] == start)
        assert epoch["head_length"][row, leaf] == length
        if epoch["head_entities"][row, leaf] >= 0:
            assert epoch["head_entities"][row, leaf] == named
        inverse = epoch["relation_ids"][row, leaf] > RELATIONS.forward
        if inverse:
            assert named == number  # heads are asked for at the document itself
        places[named == number, bool(inverse)] += 1
    assert min(places[True, False], places[True, True], places[False, False]) > 20


def test_order_of_leaves_does_not_tell_which_are_true(epoch):
    first = epoch["triple_labels"][:, :3]
    last = epoch["triple_labels"].flip(1)[:, -3:]
    assert (first == 0).float().mean() > 0.2
    assert torch.equal(first, last.flip(1))


@pytest.mark.parametrize(("positives", "negatives"), [(1, 0), (1, 2), (3, 1)])
def test_an_anchor_has_at_most_so_many_true_and_wrong_leaves(world, positives, negatives):
    made = world.chains(positives=positives, negatives=negatives)
    batch = LeafyChainCollator(made)([made[index] for index in range(len(made))])
    counts = Counter()
    for row, leaf in leaves_of(batch):
        true = batch["tail_entities"][row, leaf].item() >= 0
        counts[row, batch["head_start"][row, leaf].item(), true] += 1
    for true, most in ((True, positives), (False, negatives)):
        assert max((n for key, n in counts.items() if key[2] is true), default=0) == most
    assert (batch["leaf_segments"] > 0).sum(1).max() <= LEAVES
    for row in range(len(made)):  # packing left room at every document's own name
        assert set(batch["leaf_segments"][row].tolist()) - {0} == set(range(1, batch["root_segments"][row].max() + 1))


def test_keys_change_what_they_say(world, chains, epoch):
    def of(**options):
        made = world.chains(**options)
        return made, LeafyChainCollator(made)([made[index] for index in range(len(made))])

    _, batch = of(span_mask_identifiers=False)
    assert not torch.equal(batch["mlm_positions"], epoch["mlm_positions"])
    _, batch = of(type_consistent_negatives=0, hard_negatives=0)
    assert "negative_text_ids" not in batch
    for kinds in ((3, 0), (1, 4)):
        _, batch = of(type_consistent_negatives=kinds[0], hard_negatives=kinds[1])
        masked = (batch["mnm_labels"] != -100).any(-1)
        assert batch["negative_text_ids"].shape[2] == sum(kinds)
        there = (batch["negative_text_ids"][masked] != PAD).any(-1).float().mean().item()
        assert there > 0.9


def test_texts_are_of_the_entities_that_they_stand_for(world, epoch):
    for row, leaf in leaves_of(epoch)[::7]:
        for end in ("head", "tail"):
            number = epoch[f"{end}_entities"][row, leaf].item()
            ids = [one for one in epoch[f"{end}_text_ids"][row, leaf].tolist() if one != PAD]
            if number >= 0:
                entity = world.encoded.entities[number]
                assert ids == encode(world.tokenizer, [entity_text(entity)])[0][-32:]
            else:
                assert ids == []


def test_known_tails_of_the_batch_are_what_a_loop_finds(world, chains):
    batch = LeafyChainCollator(chains)([chains[index] for index in range(10)])
    known = directed(world, (*world.splits.train, *world.held_out))
    heads, tails, relations = (
        batch[name].flatten().tolist() for name in ("head_entities", "tail_entities", "relation_ids")
    )
    expected = torch.zeros(len(tails), len(tails), dtype=torch.bool)
    for x in range(len(tails)):
        for y in range(len(tails)):
            if tails[x] >= 0 and tails[y] >= 0 and x != y:
                expected[x, y] = (heads[x], relations[x], tails[y]) in known
    assert expected.any()
    assert torch.equal(batch["known_BGX"].view_as(expected), expected)


# ---- lengths, queries


def test_queries_ask_at_the_documents_own_name(world, chains):
    names = ["json.encoder.JSONEncoder.default", "json"]
    batch = chains.queries(names, [["calls", "inverse raises"], ["part_of"]])
    assert batch["relation_ids"].tolist() == [
        [RELATIONS.id("calls"), RELATIONS.id("inverse raises")],
        [RELATIONS.id("part_of"), 0],
    ]
    assert batch["leaf_segments"].tolist() == [[1, 1], [1, 0]]
    assert torch.equal(batch["leaf_ids"] == MASK, (batch["leaf_segments"] > 0)[..., None].expand(-1, -1, 7))
    for row, name in enumerate(names):
        start, length = batch["head_start"][row, 0], batch["head_length"][row, 0]
        assert name.endswith(world.text(batch["root_ids"][row, start : start + length].tolist()))
        ids = batch["root_ids"][row][batch["root_segments"][row] > 0]
        np.testing.assert_array_equal(ids, world.encoded.document(world.encoded.number[name]))
    assert chains.queries(names, [[1, 2, 3]] * 2)["relation_ids"].tolist() == [[1, 2, 3]] * 2
    with pytest.raises(ValueError, match=r"'json\.nothing' is no entity"):
        chains.queries(["json.nothing"], [["calls"]])
    with pytest.raises(ValueError, match="relation='cals'"):
        chains.queries(["json"], [["cals"]])
    with pytest.raises(ValueError, match=r"windows: 1 of 'json': must be in \[0, 1\)"):
        chains.queries(names, [["calls"]] * 2, windows=[0, 1])


def test_a_shorter_length_has_the_same_documents_cut(world, chains):
    short = chains.with_roots(40)
    assert short[0]["root_ids"].shape == (40,)
    assert chains[0]["root_ids"].shape == (ROOTS,)
    assert sorted(n for row in short._sequences for n in row) == sorted(n for row in chains._sequences for n in row)
    config = GraphMERConfig(vocab_size=len(world.tokenizer), **RELATIONS.properties())
    for roots in (40, 5):
        other = chains.with_roots(roots)
        check_batch(LeafyChainCollator(other)([other[index] for index in range(100)]), config)
    with pytest.raises(ValueError, match="roots=97: the documents are encoded for 2 to 96"):
        chains.with_roots(97)


def test_steps_of_each_stage_of_a_schedule():
    assert phase_steps((0, 15_000), 20_000) == (15_000, 5_000)
    assert phase_steps((0, 15_000), 100) == (100, 0)
    assert phase_steps((0, 0.3), 50_000) == (15_000, 35_000)
    assert phase_steps((0, 0.5, 0.9), 7) == (4, 2, 1)
    assert phase_steps((0,), 7) == (7,)


def test_a_run_goes_through_its_lengths_at_the_steps_of_the_schedule(chains):
    run = CurriculumChains(chains, (0, 3), (40, ROOTS), steps=5, examples_per_step=4)
    assert len(run) == 20
    loader = DataLoader(run, batch_size=2, collate_fn=LeafyChainCollator(chains))
    assert [batch["root_ids"].shape[1] for batch in loader] == [40] * 6 + [ROOTS] * 4
    assert equal(run[12], chains[0])
    assert equal(run[3], chains.with_roots(40)[3])
    with pytest.raises(IndexError):
        run[20]


# ---- relations, refusals


def test_every_relation_has_an_inverse_of_its_own():
    assert len(RELATIONS) == 2 * RELATIONS.forward == len(RELATIONS.names) - 1
    assert RELATIONS.names[RELATIONS.inverse(RELATIONS.id("contains"))] == "part_of"
    assert RELATIONS.names[RELATIONS.inverse(RELATIONS.id("raises"))] == "inverse raises"
    for number in range(1, len(RELATIONS) + 1):
        assert RELATIONS.inverse(number) != number
        assert RELATIONS.inverse(RELATIONS.inverse(number)) == number
    calls = ONTOLOGY.relations["calls"]
    assert RELATIONS.tail_types(RELATIONS.id("calls")) == calls.range
    assert RELATIONS.tail_types(RELATIONS.id("called_by")) == calls.domain
    properties = RELATIONS.properties()
    names = {RELATIONS.names[number] for number in properties["acyclic_relations"]}
    assert {"contains", "part_of"} <= names
    assert "calls" not in names


def test_a_triple_of_a_named_inverse_is_its_mirror_image(world):
    train = world.splits.train
    mirrored = [(t.tail, "part_of", t.head) if t.relation == "contains" else t for t in train]
    assert equal(world.chains(triples=mirrored)[3], world.chains()[3])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"roots": 1}, "roots=1: the documents are encoded for 2 to 96"),
        ({"triples": []}, "triples: there are none"),
        ({"triples": [("json", "calls", "?.x")]}, "is no entity"),
        ({"triples": [("json", "cals", "json")]}, "relation='cals'"),
    ],
)
def test_what_cannot_be_is_refused(world, options, message):
    with pytest.raises(ValueError, match=message):
        world.chains(**options)


def test_unresolved_triples_are_refused(world):
    unresolved = next(one for one in world.graph.triples if world.graph.entities[one.tail].status == UNRESOLVED)
    with pytest.raises(ValueError, match="is unresolved"):
        world.chains(triples=[unresolved])


def test_words_of_identifiers():
    assert words("readHTTPLine_2") == ["read", "http", "line", "2"]
    assert words("__init__") == ["init"]
    assert words("_") == []
