"""Baselines against counts by hand, scikit-learn on the names themselves, and a slow conditional logit."""

import numpy as np
import pytest
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.metrics.pairwise import cosine_similarity

from helpers.graphmer.graph.knowledge_graph import Entity, Triple, build_graph
from helpers.graphmer.graph.ontology import read_ontology
from helpers.graphmer.graph.splits import Splits
from helpers.graphmer.links.baselines import (
    Frequency,
    Mentions,
    Names,
    NameSimilarity,
    SameModule,
    SourceWords,
    lexical_scorers,
    owner_and_name,
)
from helpers.graphmer.links.fusion import ScoreFusion
from helpers.graphmer.links.ranking import evaluate

pytestmark = pytest.mark.once

ONTOLOGY = read_ontology()
WORDS = ("parse", "write", "load", "merge", "close", "index", "token", "render")


def named_graph(modules=24):
    """Modules with two functions each, one of which calls another module's; and the calls' source."""
    entities, triples, sources = [], [], {}
    for number in range(modules):
        module = f"pkg{number % 3}.{WORDS[number % 8]}{number}"
        entities.append(Entity(module, "module", module.rpartition(".")[2], module=module))
        for name in (f"{WORDS[(number * 3) % 8]}_{number}", f"{WORDS[(number * 5 + 1) % 8]}_all"):
            entities.append(Entity(f"{module}.{name}", "function", name, module=module, line=1, end_line=2))
            triples.append(Triple(module, "contains", f"{module}.{name}"))
    functions = [entity for entity in entities if entity.type == "function"]
    for number, caller in enumerate(functions):
        callee = functions[(number * 7 + 4) % len(functions)]
        owner = callee.module.rpartition(".")[2]
        sources[caller.id] = f"{caller.id}\ndef {caller.name}(x):\n    return {owner}.{callee.name}(x)\n"
        triples.append(Triple(caller.id, "calls", callee.id))
    graph = build_graph(entities, triples, {})
    parts = [tuple(triple for place, triple in enumerate(graph.triples) if place % 3 == part) for part in range(3)]
    return graph, Splits(*parts, {}), lambda name: sources.get(name, name)


def test_frequency_is_the_count_of_the_relation_and_place():
    train = [Triple("a", "calls", "b"), Triple("c", "calls", "b"), Triple("a", "calls", "d"), Triple("a", "tests", "d")]
    frequency = Frequency.of(train)
    assert np.expm1(frequency(["x", "y"], "calls", ["a", "b", "d"], "tail")) == pytest.approx(np.array([[0, 2, 1]] * 2))
    assert np.expm1(frequency(["x"], "calls", ["a", "b", "c"], "head")) == pytest.approx(np.array([[2, 0, 1]]))
    assert not frequency(["x"], "unseen", ["a"], "tail").any()


def test_owners_and_names_of_qualified_names():
    assert owner_and_name("a.B.c") == ("a.B", "c")
    assert owner_and_name("a.B.c(x)") == ("a.B.c", "x")
    assert owner_and_name("repository/module") == ("", "repository/module")


def test_name_similarity_is_the_cosine_of_n_grams():
    graph, _, _ = named_graph()
    heads, candidates = list(graph.entities)[5:9], list(graph.entities)[::3]
    vectoriser = TfidfVectorizer(
        analyzer="char_wb", ngram_range=(2, 4), max_df=0.1, sublinear_tf=True, lowercase=False, dtype=np.float32
    ).fit(graph.entities)
    expected = cosine_similarity(vectoriser.transform(heads), vectoriser.transform(candidates))
    assert NameSimilarity(Names(graph))(heads, "calls", candidates, "tail") == pytest.approx(expected, abs=1e-6)
    names = [graph.entities[name].name for name in candidates]
    expected = cosine_similarity(vectoriser.transform(heads), vectoriser.transform(names))
    found = NameSimilarity(Names(graph), candidate="name")(heads, "calls", candidates, "head")
    assert found == pytest.approx(expected, abs=1e-6)


def test_scorers_notice_other_candidates():
    """They keep what they computed of names and sources."""
    graph, _, text = named_graph()
    one, other = list(graph.entities)[:6], list(graph.entities)[9:15]
    for scorer in (NameSimilarity(Names(graph)), Mentions(SourceWords(graph, text))):
        for direction in ("tail", "head"):
            first, second, again = (scorer(one, "calls", names, direction) for names in (one, other, one))
            assert (first == again).all()
            both = scorer(one, "calls", one + other, direction)
            assert np.hstack((first, second)) == pytest.approx(both, abs=1e-6)


def test_mentions_are_words_of_the_heads_source_in_both_directions():
    graph, _, text = named_graph()
    words = SourceWords(graph, text)
    functions = [name for name, entity in graph.entities.items() if entity.type == "function"]
    for what in ("name", "owner", "pair"):
        mentions = Mentions(words, what)
        scores = mentions(functions, "calls", functions, "tail")
        assert mentions(functions, "calls", functions, "head") == pytest.approx(scores.T)
        for row, head in enumerate(functions):
            tokens = text(head).replace("(", ".").replace(")", ".").replace("\n", ".").replace(" ", ".").split(".")
            tokens = [token.strip(":") for token in tokens if token.strip(":")]
            for column, tail in enumerate(functions):
                owner, name = tail.split(".")[1:]
                wanted = {"name": [name], "owner": [owner], "pair": [owner, name]}[what]
                size = len(wanted)
                there = any(tokens[place : place + size] == wanted for place in range(len(tokens)))
                assert (scores[row, column] > 0) == there, (what, head, tail)


def test_rare_words_weigh_more():
    entities = [Entity(f"m.{name}", "function", name, module="m", line=1, end_line=2) for name in "abcdef"]
    graph = build_graph(entities, [], {})
    mentions = Mentions(SourceWords(graph, lambda name: "b c" if name == "m.a" else "c"))
    rare, common = mentions(["m.a"], "calls", ["m.b", "m.c"], "tail")[0]
    assert rare > common > 0


def test_a_mention_weighs_the_same_in_a_long_source_and_however_often_it_is_there():
    entities = [Entity(f"m.{name}", "function", name, module="m", line=1, end_line=2) for name in "abcdef"]
    sources = {"m.a": "c", "m.b": "c c c " + " ".join(f"word{number}" for number in range(100))}
    mentions = Mentions(SourceWords(build_graph(entities, [], {}), lambda name: sources.get(name, "x")))
    short, long = mentions(["m.a", "m.b"], "calls", ["m.c"], "tail")[:, 0]
    assert short == long > 0


def test_entities_of_one_module_are_told_from_others():
    graph, _, _ = named_graph()
    names = list(graph.entities)
    scores = SameModule(graph)(names, "calls", names, "tail")
    for row, one in enumerate(names):
        for column, other in enumerate(names):
            assert scores[row, column] == (graph.entities[one].module == graph.entities[other].module)


class Fixed:
    """Scores that are drawn for each triple, the same for one seed."""

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, given, relation, candidates, direction):
        if direction == "tail":
            return np.array([[self._of(head, relation, tail) for tail in candidates] for head in given])
        return np.array([[self._of(head, relation, tail) for head in candidates] for tail in given])

    def _of(self, *triple):
        return np.random.default_rng([self.seed, *"".join(triple).encode()]).random()


class Told(Fixed):
    """As random, but 1 more for what is true."""

    def __init__(self, seed, true):
        super().__init__(seed)
        self.true = set(true)

    def _of(self, *triple):
        return super()._of(*triple) + (triple in self.true)


def test_weights_are_those_of_the_likeliest_conditional_logit():
    graph, splits, _ = named_graph(modules=9)
    scorers = {"told": Told(1, graph.triples), "noise": Fixed(2)}
    fusion = ScoreFusion.fitted(scorers, splits, graph, ONTOLOGY, triples=100)
    triples = [triple for triple in splits.validation if triple.relation == "calls"]
    functions = sorted(name for name, entity in graph.entities.items() if entity.type == "function")

    def loss(weights):
        total = 0.0
        for head, relation, tail in triples:
            true = {other.tail for other in graph.triples if (other.head, other.relation) == (head, relation)} - {tail}
            logits = {
                name: sum(
                    w * scorer._of(head, relation, name) for w, scorer in zip(weights, scorers.values(), strict=True)
                )
                for name in functions
                if name not in true
            }
            total += np.log(sum(map(np.exp, logits.values()))) - logits[tail]
        return total / len(triples) + 1e-4 * np.square(weights).sum()

    found = np.array(list(fusion.weights["calls", "tail"].values()))
    assert found[0] > 3
    for step in ([0.3, 0], [-0.3, 0], [0, 0.3], [0, -0.3]):
        assert loss(found) < loss(found + step)


def test_a_relation_that_validation_lacks_has_the_mean_of_the_others_weights():
    graph, splits, _ = named_graph(modules=9)
    fusion = ScoreFusion.fitted({"noise": Fixed(2), "told": Told(1, graph.triples)}, splits, graph, ONTOLOGY)
    heads = candidates = [name for name, entity in graph.entities.items() if entity.type == "function"][:4]
    weights = [
        np.mean([fusion.weights[name, "tail"][key] for name in ("calls", "contains")]) for key in ("noise", "told")
    ]
    scores = [scorer(heads, "tests", candidates, "tail") for scorer in (Fixed(2), Told(1, graph.triples))]
    expected = weights[0] * scores[0] + weights[1] * scores[1]
    assert fusion(heads, "tests", candidates, "tail") == pytest.approx(expected, rel=1e-5)


def test_names_give_away_what_contains_what_and_sources_who_calls_whom():
    graph, splits, text = named_graph()
    names, sources = (
        evaluate(ScoreFusion.fitted(lexical_scorers(graph, read), splits, graph, ONTOLOGY), splits, graph, ONTOLOGY)
        for read in (None, text)
    )
    frequency = evaluate(Frequency.of(splits.train), splits, graph, ONTOLOGY)
    assert names["relations"]["contains"]["both"]["mrr"] > 0.9
    assert names["beyond_names"]["both"]["mrr"] < 0.3
    assert sources["beyond_names"]["both"]["mrr"] > 0.9
    assert frequency["both"]["mrr"] < 0.2


def test_impossible_fields_and_empty_fusions_are_refused():
    graph, splits, text = named_graph(modules=9)
    with pytest.raises(ValueError, match="candidate='type': must be one of id, owner, name"):
        NameSimilarity(Names(graph), candidate="type")
    with pytest.raises(ValueError, match="what='all': must be one of name, owner, pair"):
        Mentions(SourceWords(graph, text), "all")
    with pytest.raises(ValueError, match=r"scorers=\[\]"):
        ScoreFusion.fitted({}, splits, graph, ONTOLOGY)
