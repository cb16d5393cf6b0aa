"""The search: its score against a slow loop, BM25 against its formula, nDCG against scikit-learn, and the saved folder alone."""

import json
import math
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import ndcg_score

from helpers.lejepa import evaluation, search
from helpers.lejepa.data import Collection, Passage, Question
from helpers.lejepa.model import GaussianEmbeddingGemma, encode, load_backbone, principal_head
from helpers.lejepa.standalone import hybrid

pytestmark = pytest.mark.once

TEXTS = [
    f"The {a} {b} of number {i} {c}." for i in range(3) for a in ("red", "old", "tall") for b in ("house", "river")
    for c in ("sleeps", "runs away")
]  # fmt: skip
PASSAGES = [Passage(f"file{n // 2}", "", text) for n, text in enumerate(TEXTS)]
QUESTIONS = [Question(f"which {a} {b} runs", frozenset({f"file{n}"})) for n, (a, b) in
             enumerate([("red", "house"), ("old", "river"), ("tall", "house"), ("red", "river")])]  # fmt: skip


def collection(kind="questions", passages=PASSAGES):
    options = {"training": [], "dev": [], "test": QUESTIONS}
    return Collection(kind=kind, passages=passages, name="x", sha256="0" * 64, **options)


@pytest.fixture(scope="module")
def model():
    backbone = load_backbone("sample", texts=TEXTS)
    return GaussianEmbeddingGemma(backbone, *principal_head(encode(backbone, TEXTS, "document"), 16))


# ---- scores


def test_bm25_is_the_formula_of_lucene():
    index = search.lexical_index(TEXTS)
    lists = [[word.strip(".").lower()[:6] for word in text.split()] for text in TEXTS]
    mean = sum(map(len, lists)) / len(lists)
    for question in QUESTIONS:
        expected = []
        for words in lists:
            score = 0.0
            for word in question.text.split():
                n = sum(word[:6] in each for each in lists)
                weight = math.log(1 + (len(lists) - n + 0.5) / (n + 0.5))
                count = words.count(word[:6])
                score += weight * count / (count + 1.5 * (0.25 + 0.75 * len(words) / mean))
            expected.append(score)
        assert search.lexical_scores(index, [question.text])[0] == pytest.approx(expected, rel=1e-4, abs=1e-6)


def test_a_question_without_a_known_word_has_no_lexical_score():
    assert not search.lexical_scores(search.lexical_index(TEXTS), ["", "zzz !"]).any()


def test_the_hybrid_score_is_that_of_a_slow_loop():
    draw = np.random.default_rng(0)
    questions, passages, lexical = draw.normal(size=(3, 8)), draw.normal(size=(30, 8)), draw.random((3, 30))
    found = hybrid(questions, passages, lexical, bm25_weight=0.4, feedback=3, feedback_weight=0.7)

    def z(values):
        mean = sum(values) / len(values)
        deviation = (sum((value - mean) ** 2 for value in values) / len(values)) ** 0.5
        return [(value - mean) / deviation for value in values]

    def cosine(x, y):
        return sum(x * y) / (sum(x * x) * sum(y * y)) ** 0.5

    for question, words, scores in zip(questions, lexical, found, strict=True):
        first = [c + 0.4 * w for c, w in zip(z([cosine(question, p) for p in passages]), z(words), strict=True)]
        best = sorted(range(30), key=lambda row: -first[row])[:3]
        nearest = sum(passages[row] / sum(passages[row] ** 2) ** 0.5 for row in best) / len(best)
        nearer = question / sum(question**2) ** 0.5 + 0.7 * nearest
        second = [c + 0.4 * w for c, w in zip(z([cosine(nearer, p) for p in passages]), z(words), strict=True)]
        assert scores == pytest.approx(second)


# ---- measures


def test_ndcg_is_scikit_learns_over_the_best_passage_of_each_document():
    judge, draw = evaluation.Judge(collection(), QUESTIONS), np.random.default_rng(1)
    scores_QN = draw.normal(size=(len(QUESTIONS), len(PASSAGES)))
    names = list(dict.fromkeys(passage.document for passage in PASSAGES))
    for found, scores, question in zip(judge.ndcg(scores_QN), scores_QN, QUESTIONS, strict=True):
        best = [max(s for s, p in zip(scores, PASSAGES, strict=True) if p.document == name) for name in names]
        truth = [name in question.answers for name in names]
        assert found == pytest.approx(ndcg_score([truth], [best], k=10))


def test_headings_are_looked_for_in_the_bodies():
    passages = [Passage(str(n), f"Heading {n}", f"body {n}") for n in range(9)]
    assert evaluation.Judge(collection("headings", passages), []).texts[0] == "body 0"
    assert evaluation.Judge(collection("questions", passages), []).texts[0] == "Heading 0. body 0"


def test_an_interval_is_scipys_paired_bootstrap():
    ours_Q, theirs_Q = np.random.default_rng(3).random((2, 150))
    verdict = evaluation.compare("ours", ours_Q, theirs_Q)
    expected = scipy.stats.bootstrap(
        (ours_Q, theirs_Q), lambda x, y, axis: (x - y).mean(axis), paired=True, method="percentile", n_resamples=9999
    ).confidence_interval
    assert (verdict.low, verdict.high) == pytest.approx((expected.low, expected.high), abs=0.01)
    assert (verdict.won, verdict.lost) == ((ours_Q > theirs_Q).sum(), (ours_Q < theirs_Q).sum())


@pytest.mark.parametrize(
    ("shift", "questions", "outcome"),
    [(0.1, 200, "better"), (-0.1, 200, "worse"), (0.0, 200, "not told apart"), (0.5, 19, "not told apart")],
)
def test_a_difference_is_told_where_its_interval_has_no_zero_and_questions_are_enough(shift, questions, outcome):
    theirs_Q, noise_Q = np.random.default_rng(0).normal(0.5, 0.2, (2, questions))
    verdict = evaluation.compare("it", theirs_Q + shift + (noise_Q - noise_Q.mean()), theirs_Q)
    assert verdict.outcome == verdict.row()["verdict"] == outcome


def rows(mean, Q=100):
    return {"hybrid": np.full(Q, mean) + np.linspace(0, 0.01, Q)}


def test_the_default_is_kept_unless_questions_show_that_another_is_better():
    stock, trained = evaluation.STOCK, evaluation.TRAINED
    assert evaluation.choose({}, "none") == (stock, "no questions to choose by: the default")
    few = {stock: rows(0.1, 19), "mean subtracted": rows(0.9, 19)}
    assert evaluation.choose(few, "questions")[0] == stock
    assert evaluation.choose({stock: rows(0.5), "mean subtracted": rows(0.4)}, "questions")[0] == stock
    name, why = evaluation.choose({stock: rows(0.5), "mean subtracted": rows(0.6), trained: rows(0.7)}, "questions")
    assert name == trained and why == "nDCG@10 0.705 against 0.505 on 100 questions that chose"


def test_the_model_that_was_trained_on_headings_is_not_chosen_by_headings():
    dev = {evaluation.STOCK: rows(0.5), "mild whitening": rows(0.6), evaluation.TRAINED: rows(0.9)}
    assert evaluation.choose(dev, "headings")[0] == "mild whitening"
    assert evaluation.choose(dev, "pairs")[0] == evaluation.TRAINED


# ---- the saved folder


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "search"
    return search.save(folder, model, PASSAGES, encode(model, TEXTS, "document"))


def test_the_saved_search_ranks_as_the_one_that_was_measured(model, saved):
    judge = evaluation.Judge(collection(), QUESTIONS)
    scores_QN = hybrid(encode(model, judge.asked, "query"), encode(model, TEXTS, "document"), judge.lexical_QN)
    for question, scores_N in zip(QUESTIONS, scores_QN, strict=True):
        found = search.load(saved).search(question.text, k=5)
        expected = list(dict.fromkeys(PASSAGES[row].document for row in np.argsort(-scores_N, kind="stable")))[:5]
        assert [document for _, document, _ in found] == expected
        assert found[0][0] == pytest.approx(scores_N.max(), abs=1e-4)
        assert all(text in TEXTS for _, _, text in found)


def test_the_saved_folder_searches_without_this_package(saved, tmp_path):
    shutil.copytree(saved, tmp_path / "elsewhere")
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    process = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "elsewhere" / "search.py"), "which", "red", "river"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "river" in process.stdout and len(process.stdout.splitlines()) == 10
    assert "helpers" not in (saved / "search.py").read_text()


def test_the_saved_folder_holds_every_passage_and_nothing_that_is_pickled(saved):
    record = json.loads((saved / "passages.json").read_text())
    assert record == [[passage.document, passage.text] for passage in PASSAGES]
    assert not [path for path in saved.rglob("*") if path.suffix in (".bin", ".pt", ".pkl", ".pickle")]
