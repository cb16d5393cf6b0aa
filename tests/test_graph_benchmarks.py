"""Benchmarks of open calls and of code search: a small package with tests of its own, whose calls are written down here."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks import graph_call_sites as call_sites
from benchmarks.code_search import Function, Package, of_encoder, read, tuned, words
from benchmarks.graph_calls import Lexical, Question, jedi_answers, questions
from benchmarks.graph_profiles import PUBLISHED, configured, held
from benchmarks.held_out_rows import Rankings
from benchmarks.regex_resolver import RegexResolver
from helpers.graphmer import searching
from helpers.graphmer.configuration import Configuration
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining
from helpers.graphmer.searching import bm25
from helpers.graphmer.text.documents import Documents
from helpers.graphmer.text.masking import IGNORED
from helpers.graphmer.text.tokenizer import train_tokenizer

from .graph_batches import config
from .traced_package import traced

pytestmark = pytest.mark.once

SHAPES = """
class Circle:
    def area(self):
        return 3

    def close(self, gap):
        return gap

    def alone(self):
        return 2


class Square:
    def area(self):
        return 1

    def close(self):
        return 0
"""
REPORT = """
from zoo.shapes import Circle


def total(shapes):
    return sum(shape.area() for shape in shapes)


def shut(circle):
    return circle.close(1)


def never(square):
    return square.close()


def lonely(shape):
    return shape.alone()


def proved():
    return Circle().area()
"""
TESTS = """
from zoo import report, shapes


def test_total():
    assert report.total([shapes.Circle(), shapes.Square()]) == 4


def test_shut():
    assert report.shut(shapes.Circle()) == 1
    assert report.lonely(shapes.Circle()) == 2
    assert shapes.Square().close() == 0


def test_proved():
    assert report.proved() == 3
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "zoo"
    (folder / "tests").mkdir(parents=True)
    for name, text in (("shapes", SHAPES), ("report", REPORT), ("tests/test_report", TESTS), ("__init__", "")):
        (folder / f"{name}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def calls(package, tmp_path_factory) -> list[list]:
    return traced(package, tmp_path_factory.mktemp("trace") / "zoo.json")


@pytest.fixture(scope="module")
def asked(package, calls):
    graph = load_graph(package)
    return graph, {question.name: question for question in questions("zoo", package, graph, calls)}


def test_a_trace_has_each_call_of_the_package_with_its_place_and_what_it_reached(calls):
    found = Counter((caller, tuple(where), callee) for _, caller, where, _, callee in calls)
    lines = REPORT.splitlines()
    for caller, text, callees in (
        ("total.<locals>.<genexpr>", "shape.area()", ("Circle.area", "Square.area")),
        ("shut", "circle.close(1)", ("Circle.close",)),
        ("lonely", "shape.alone()", ("Circle.alone",)),
        ("proved", "Circle().area()", ("Circle.area",)),
    ):
        [line] = [number for number, each in enumerate(lines, 1) if text in each]
        column = lines[line - 1].index(text)
        for callee in callees:
            assert found[caller, (line, line, column, column + len(text)), callee] == 1
    of_report = {(Path(file).stem, callee) for file, _, _, other, callee in calls if Path(other).stem == "shapes"}
    assert ("report", "Square.close") not in of_report  # `never` did not run
    assert ("test_report", "Square.close") in of_report


def test_asked_are_open_calls_outside_of_tests_that_ran_and_that_several_functions_could_answer(asked):
    _, by_name = asked
    assert by_name.keys() == {"area", "close"}  # `alone` has one candidate, `proved` is resolved, tests are not asked
    assert by_name["area"].true == {"zoo.shapes.Circle.area", "zoo.shapes.Square.area"}
    close = by_name["close"]
    assert (close.caller, close.receiver, close.arguments) == ("zoo.report.shut", "circle", 1)
    assert close.true == {"zoo.shapes.Circle.close"}
    assert sorted(close.candidates) == ["zoo.shapes.Circle.close", "zoo.shapes.Square.close"]


def test_lexical_features_say_what_the_sources_say(package, asked):
    graph, by_name = asked
    close = by_name["close"]
    found = Lexical(graph, Documents.read(graph, package)).features(close)
    circle = close.candidates.index("zoo.shapes.Circle.close")
    assert found["receiver's words"][circle] == 1 and found["receiver's words"][1 - circle] == 0
    assert found["owner is mentioned by the module"][circle] > found["owner is mentioned by the module"][1 - circle]
    assert found["too many arguments"][circle] == 0 and found["too many arguments"][1 - circle] == 1
    assert found["same module"].tolist() == [0, 0]


def test_jedi_answers_what_a_type_inference_can(package):
    graph = load_graph(package)
    line = next(number for number, each in enumerate(REPORT.splitlines(), 1) if "Circle().area()" in each)
    place = (str(package / "report.py"), line, REPORT.splitlines()[line - 1].index(".area") + 1)
    candidates = [f"zoo.shapes.{owner}.area" for owner in ("Circle", "Square")]
    question = Question(
        "zoo", "zoo.report.proved", "zoo.report", "area", "", 0, (), frozenset(), place, candidates, set()
    )
    assert jedi_answers(question, graph, package) == candidates[:1]


def test_regular_expressions_name_the_class_that_the_sources_write_down():
    shop = """
from .shelf import Shelf as Board


class Base:
    def close(self): ...


class Door(Base):
    def open(self): ...


class Window:
    def close(self): ...
    def open(self): ...


def make():
    return Window()


def act(entry: Door, board):
    pane = make()
    pane.open()
"""
    resolver = RegexResolver({"shop": shop, "shelf": "class Shelf:\n    def open(self): ...\n"})
    opens = ["shop.Door.open", "shop.Window.open", "shelf.Shelf.open"]
    closes = ["shop.Base.close", "shop.Window.close"]
    for receiver, name, candidates, right in (
        ("entry", "open", opens, "shop.Door.open"),  # by its annotation
        ("entry", "close", closes, "shop.Base.close"),  # of a base
        ("pane", "open", opens, "shop.Window.open"),  # by what is returned
        ("Board", "open", opens, "shelf.Shelf.open"),  # by an import
        ("self.window", "close", closes, "shop.Window.close"),  # by its name
    ):
        assert resolver.answers("shop", "shop.act", receiver, name, candidates) == [right], receiver
    assert resolver.answers("shop", "shop.Door.open", "self", "close", closes) == ["shop.Base.close"]
    assert resolver.answers("shop", "shop.act", "unheard", "open", opens) == []


def test_call_sites_are_those_that_the_resolver_proves_and_their_texts_say_where_they_are(package, asked):
    graph, by_name = asked
    found = {(site.receiver, entity): site for site, entity in call_sites.resolved_sites(graph, package)}
    site = found["Circle()", "zoo.shapes.Circle.area"]
    assert site.caller == "zoo.report.proved" and "return Circle().area()" in site.lines
    assert not any(receiver == "circle" for receiver, _ in found)  # which class is open
    close = by_name["close"].site()
    assert "circle.close(1)" in close.lines and close.short() == "circle"
    candidate = call_sites.Candidates(graph).long("zoo.shapes.Circle.close")
    assert "gap" in candidate and "alone" in candidate


def test_character_ngrams_find_the_owner_that_the_lines_name(asked):
    _, by_name = asked
    close = by_name["close"]
    [scores] = call_sites.character_ngrams([close.site()], [close.candidates])
    assert close.candidates[int(scores.argmax())] == "zoo.shapes.Circle.close"


def test_tuning_brings_calls_and_what_they_mean_together(package, asked, monkeypatch):
    graph, _ = asked
    names = ("Circle", "Square", "Window", "Reader", "Socket", "Thread")
    sites = [
        (call_sites.Site("a.f", name.lower(), "close", f"{name.lower()}.close()"), f"a.{name}.close") for name in names
    ]
    texts = [site.long() for site, _ in sites] + [entity for _, entity in sites]
    tokenizer = train_tokenizer(texts * 20, 600)
    torch.manual_seed(0)
    model = GraphMERForPreTraining(config(vocab_size=len(tokenizer)))
    monkeypatch.setitem(call_sites.TUNING, "batch", len(sites))
    monkeypatch.setitem(call_sites.TUNING, "steps", 40)
    monkeypatch.setitem(call_sites.TUNING, "warmup", 5)

    def right() -> int:
        found = call_sites.cosines(
            model.eval(),
            tokenizer,
            [site for site, _ in sites],
            [[entity for _, entity in sites]] * len(sites),
            call_sites.Candidates(graph),
        )
        return sum(int(each["lines and candidate"].argmax()) == place for place, each in enumerate(found))

    before = right()
    model = call_sites.tuned(model, tokenizer, graph, sites, 0)
    assert before < len(sites) and right() == len(sites)


def test_what_a_batch_holds_is_counted_without_padding():
    batch = {
        "root_segments": torch.tensor([[1, 1, 2, 0], [1, 0, 0, 0]]),
        "relation_ids": torch.tensor([[3, 0], [4, 5]]),
        "mnm_labels": torch.tensor([[[7, IGNORED], [IGNORED, IGNORED]], [[IGNORED, IGNORED], [1, 2]]]),
    }
    assert held(batch) == {"roots": 4, "root slots": 8, "leaves": 3, "leaf slots": 4, "questions": 2}


def test_the_published_recipe_is_that_of_the_document_in_the_size_of_a_profile():
    published, profile = configured(PUBLISHED), configured("t4")
    assert published.model == profile.model and published.stages() == profile.stages()
    assert published.encoding == Configuration().encoding != profile.encoding
    assert published.objectives.mnm.mask_prob == 0.2 and profile.objectives.mnm.mask_prob == 0.9


def _rankings() -> Rankings:
    """Three packages; `good` tells the right candidate everywhere, `lies` in the last package only the other way round."""
    packages = np.repeat(["a", "b", "c"], [4, 2, 2])
    right = [[True, False, False], [False, True, False]] * 4
    found = Rankings(packages, [f"module {place // 2}" for place in range(8)], right)
    found.add("good", [np.array(each, float) for each in right])
    sign = np.where(packages == "c", -1.0, 1.0)
    found.add("lies", [one * np.array(each, float) for one, each in zip(sign, right, strict=True)])
    return found


def test_equal_candidates_share_their_ranks_and_the_best_right_one_counts():
    found = Rankings(
        ["a", "a", "a"], ["m", "m", "m"], [[True, False, False], [True, True, False], [False, True, False]]
    )
    scores = np.array([1.0, 1.0, 0.0, 0.0, 2.0, 1.0, 0.0, 1.0, 5.0])
    assert found.ranks(scores).tolist() == [1.5, 1.0, 2.0]
    with pytest.raises(ValueError, match="right"):
        Rankings(["a"], ["m"], [[False, False]])


def test_weights_of_a_package_are_fitted_on_the_other_ones():
    found = _rankings()
    assert found.ranks(found.left_out(["good"])).tolist() == [1.0] * 8
    ranks = found.ranks(found.left_out(["lies"]))
    assert ranks[:4].tolist() == [2.5] * 4 or (ranks[6:] > 1).all()
    assert ranks[6:].tolist() == [3.0, 3.0]  # the others say that it helps


def test_the_logit_has_the_gradient_of_zero_that_a_slow_sum_has():
    draw = np.random.default_rng(0)
    right = [[True, False, False, True], [False, True], [True, False, False]]
    found = Rankings(["a", "a", "b"], ["m", "n", "o"], right)
    values = {name: [draw.normal(size=len(each)) for each in right] for name in ("one", "two")}
    for name, each in values.items():
        found.add(name, each)
    table_RF = np.stack([found._standard[name] for name in values], axis=1)
    weight_F = found.fitted(table_RF, np.ones(3, bool), np.zeros(2))
    gradient_F = weight_F.copy()
    for question, share in zip(range(3), (0.75, 0.75, 1.5), strict=True):  # each package counts alike
        rows = np.stack(
            [(each[question] - each[question].mean()) / each[question].std() for each in values.values()], 1
        )
        p = np.exp(rows @ weight_F) / np.exp(rows @ weight_F).sum()
        q = p * right[question] / p[np.array(right[question])].sum()
        gradient_F += share * rows.T @ (p - q)
    assert np.abs(gradient_F).max() < 1e-3


def test_a_row_is_a_mean_over_packages_with_a_paired_interval():
    found = _rankings()
    perfect, second = np.ones(8), np.array([2, 2, 2, 2, 1, 1, 1, 1.0])
    row = found.row([second], {"base": perfect}, found.resamples())
    assert row["mrr"] == pytest.approx((0.5 + 1 + 1) / 3)
    assert row["first"] == pytest.approx(2 / 3)
    assert row["above"]["base"]["mrr"] == pytest.approx(-0.5 / 3)
    assert row["above"]["base"]["interval"] == pytest.approx([-0.5 / 3] * 2)  # all questions of a package are alike
    same = found.row([second, perfect], {"base": second}, found.resamples())
    assert same["mrr_by_seed"] == pytest.approx([2.5 / 3, 1])
    low, high = same["above"]["base"]["interval"]
    assert low == pytest.approx(0) and high == pytest.approx(0.5 / 3)  # a seed may be drawn twice


def test_groups_are_drawn_whole_within_their_package():
    share_BN = _rankings().resamples()
    assert share_BN.sum(1) == pytest.approx(1)
    assert (share_BN[:, 0] == share_BN[:, 1]).all() and (share_BN[:, 2] == share_BN[:, 3]).all()
    assert np.unique(share_BN[:, 0] * 12).round(9).tolist() == [0, 1, 2]  # of two modules none, one or both
    assert share_BN[:, 4:6] == pytest.approx(1 / 6)  # package b has one module


def test_identifiers_are_split_into_stemmed_words():
    pytest.importorskip("nltk")
    assert words("parsedHTTPRequests of read_2_nodes") == ["pars", "http", "request", "of", "read", "2", "node"]


def test_bm25_is_what_a_slow_sum_says():
    texts = ["readFile the file", "writes a file a file", "closing"]
    found = bm25(["read the_file, file", "nothing"], texts, searching.words)
    for place, text in enumerate(texts):
        bag, total = Counter(searching.words(text)), 0.0
        for word in {"read", "the", "file"}:
            documents = sum(word in searching.words(each) for each in texts)
            rarity = math.log(1 + (3 - documents + 0.5) / (documents + 0.5))
            norm = 1.2 * (1 - 0.75 + 0.75 * bag.total() / (10 / 3))
            total += rarity * bag[word] * 2.2 / (bag[word] + norm)
        assert found[0, place] == pytest.approx(total)
    assert found[1].tolist() == [0, 0, 0]


def test_searched_code_has_no_docstring_and_no_test(tmp_path):
    folder = tmp_path / "zoo"
    (folder / "tests").mkdir(parents=True)
    source = 'def feed(animal):\n    """Gives an animal something to eat. It is quiet then."""\n    return animal\n'
    (folder / "__init__.py").touch()
    (folder / "keeper.py").write_text(source)
    (folder / "tests/test_keeper.py").write_text(source.replace("feed", "test_feed").replace("quiet", "loud"))
    where = type("Where", (), {"package": staticmethod(lambda name: tmp_path / name)})
    [function] = read("zoo", where).functions
    assert function.entity == "zoo.keeper.feed" and function.sentence == "Gives an animal something to eat."
    assert "animal something" not in function.code and "return animal" in function.code


def test_an_encoder_that_is_tuned_on_pairs_finds_them():
    torch.manual_seed(0)
    things = ("door", "window", "lamp", "chair", "table", "carpet", "mirror", "shelf")
    sentences = [f"Opens what is called {name}." for name in things]
    codes = [f"m.f{place}\ndef f{place}(self):\n    return {place}\n" for place in range(len(things))]
    functions = [Function(f"m.f{place}", *pair) for place, pair in enumerate(zip(sentences, codes, strict=True))]
    tokenizer = train_tokenizer([*sentences, *codes], 400)
    model = GraphMERForPreTraining(config(vocab_size=len(tokenizer), dropout=0.0)).eval()
    package = Package("m", functions, ["m"] * len(functions))

    def found() -> float:
        scores = of_encoder(model, tokenizer, package)
        assert scores.keys() == {"cosine of entity embeddings", "cosine of mean states"}
        assert all(np.abs(each).max() <= 1.0001 for each in scores.values())
        return float((scores["cosine of entity embeddings"].argmax(1) == np.arange(len(functions))).mean())

    before = found()
    model = tuned(model, tokenizer, functions, seed=0, steps=15)
    assert found() > before + 0.3 and not model.training
