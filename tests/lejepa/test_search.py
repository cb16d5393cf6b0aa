"""The search: its score against a slow loop, BM25 against its formula, nDCG against scikit-learn, and the saved folder alone."""

import shutil

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import ndcg_score

from helpers.lejepa import evaluation, search
from helpers.lejepa.data import Collection, Question
from helpers.lejepa.documents import Passage
from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head
from helpers.lejepa.search import Mix
from helpers.lejepa.standalone import combine, unit
from helpers.train.sentence_encoder import encode, load_sentence_encoder
from tests.harness import printed

pytestmark = pytest.mark.once

TEXTS = [
    f"The {a} {b} of number {i} {c}." for i in range(3) for a in ("red", "old", "tall") for b in ("house", "river")
    for c in ("sleeps", "runs away")
]  # fmt: skip
PASSAGES = [Passage(f"file{n // 2}", "", text) for n, text in enumerate(TEXTS)]
QUESTIONS = [Question(f"which {a} {b} runs", frozenset({f"file{n}"})) for n, (a, b) in
             enumerate([("red", "house"), ("old", "river"), ("tall", "house"), ("red", "river")])]  # fmt: skip


def collection(kind="questions", passages=PASSAGES):
    parts = {"training": [], "past": [], "dev": [], "test": QUESTIONS}
    return Collection(kind=kind, passages=passages, **parts, split="by question", name="x", sha256="")


@pytest.fixture(scope="module")
def model():
    backbone = load_sentence_encoder("sample", texts=TEXTS)
    return GaussianEmbeddingGemma(backbone, principal_head(encode(backbone, TEXTS, "document"), 16))


# ---- scores


def test_the_hybrid_score_is_that_of_a_slow_loop():
    meaning_QN, words_QN = np.random.default_rng(0).normal(size=(2, 3, 30))
    mixed_QN = combine(meaning_QN, words_QN, meaning=1, words=0.4)
    for mixed_N, meaning_N, words_N in zip(mixed_QN, meaning_QN, words_QN, strict=True):
        assert mixed_N == pytest.approx(scipy.stats.zscore(meaning_N) + 0.4 * scipy.stats.zscore(words_N))


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


STOCK, TRAINED = evaluation.STOCK, evaluation.TRAINED
DEFAULT = "meaning + 0.5 BM25"


def table(**means):
    """nDCG@10 of 100 questions by mix; those that are not named have 0.2, and questions differ by less than their means do."""
    values = dict.fromkeys([*evaluation.MIXES, evaluation.BY_RANK], 0.2)
    values |= {name.replace("_", " "): mean for name, mean in means.items()}
    return {name: mean + np.random.default_rng(0).normal(0, 0.01, 100) for name, mean in values.items()}


def test_questions_choose_the_weights_of_every_model_and_then_the_model():
    dev = {STOCK: table(BM25_alone=0.5), TRAINED: table(meaning_alone=0.6)}
    choice = evaluation.choose(dev, DEFAULT, "questions")
    assert (choice.model, choice.mixes[TRAINED], choice.mixes[STOCK]) == (TRAINED, evaluation.MEANING, evaluation.WORDS)
    assert choice.reason == "nDCG@10 on 100 dev questions: stock model 0.501, LeJEPA 0.601"


def test_the_verdict_compares_with_the_strongest_simple_method():
    tables = {STOCK: table(BM25_alone=0.5), TRAINED: table(meaning_alone=0.6)}
    choice = evaluation.choose(tables, DEFAULT, "questions")
    trained, kept = evaluation.verdicts(tables, {evaluation.CLASSIFIER: np.full(100, 0.4)}, choice)
    assert trained["nDCG@10"] == "+0.100 (+0.100 to +0.100)"
    assert kept["what"].endswith("strongest simple method: BM25 alone") and kept["nDCG@10"].startswith("+0.100")
    _, kept = evaluation.verdicts(tables, {evaluation.CLASSIFIER: np.full(100, 0.9)}, choice)
    assert kept["what"].endswith(evaluation.CLASSIFIER) and kept["verdict"] == "worse"


def test_the_trained_model_is_chosen_unless_it_is_worse():
    for mean, model in ((0.5, TRAINED), (0.4995, TRAINED), (0.45, STOCK)):
        noise = np.random.default_rng(2).normal(0, 0.1, 100)
        trained = {mix: values + noise - noise.mean() for mix, values in table(meaning_alone=mean).items()}
        dev = {STOCK: table(meaning_alone=0.5), TRAINED: trained}
        assert evaluation.choose(dev, DEFAULT, "questions").model == model


def test_the_default_stays_where_nothing_is_ahead_by_a_standard_error():
    assert evaluation.choose({}, DEFAULT, "none").mixes[TRAINED] == DEFAULT
    few = {STOCK: {mix: values[:19] for mix, values in table(BM25_alone=0.9).items()}}
    assert evaluation.choose(few, DEFAULT, "questions").mixes[STOCK] == DEFAULT
    noise = np.random.default_rng(1).normal(0, 0.3, 100)
    near = {mix: values + (mix != DEFAULT) * (noise - noise.mean() + 0.01) for mix, values in table().items()}
    assert evaluation.choose({STOCK: near}, DEFAULT, "questions").mixes[STOCK] == DEFAULT


@pytest.mark.parametrize(("pieces", "mix"), [(1, "meaning + 0.5 BM25"), (3, "meaning + 2 BM25")])
def test_without_questions_words_weigh_more_where_they_have_many_pieces(pieces, mix):
    spans = lambda text: text.split() * pieces  # noqa: E731
    assert evaluation.default_mix(["die Anleitung des Herstellers"] * 5, spans) == mix


# ---- the saved folder


MIX = Mix(meaning=1, words=0.3)


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    """In a folder whose name has characters of another script, which faiss cannot open on Windows."""
    folder = tmp_path_factory.mktemp("saved") / "Suche für 学习"
    embeddings_NK = encode(model, TEXTS, "document")
    search.save(folder, model, PASSAGES, embeddings_NK, MIX)
    return folder


def test_the_saved_search_ranks_as_the_one_that_was_measured(model, saved):
    judge = evaluation.Judge(collection(), QUESTIONS)
    passages_NK, questions_QK = encode(model, TEXTS, "document"), unit(encode(model, judge.asked, "query"))
    scores_QN = combine(questions_QK @ unit(passages_NK).T, judge.words_QN, **MIX._asdict())
    for question, scores_N in zip(QUESTIONS, scores_QN, strict=True):
        results = search.load(saved)(question.text, k=5)
        expected = list(dict.fromkeys(PASSAGES[row].document for row in np.argsort(-scores_N, kind="stable")))[:5]
        assert [document for _, document, _ in results] == expected
        assert results[0][0] == pytest.approx(scores_N.max(), abs=1e-3)
        assert all(text in TEXTS for _, _, text in results)


def test_the_saved_folder_searches_without_this_package(saved, tmp_path):
    copy = shutil.copytree(saved, tmp_path / "elsewhere")
    questions = "which red river\n???\ntall house\n"
    lines = printed("-I", copy / "search.py", input=questions, cwd=tmp_path).splitlines()
    assert len(lines) == 10 + 1 + 10 and "river" in lines[0] and "house" in lines[11]
    assert lines[10] == "the question has no word to search for"
    assert "helpers" not in (saved / "search.py").read_text()


def test_a_past_question_shows_its_answer(model, tmp_path):
    passages = [*PASSAGES, Passage("file3", "", "where does the poet live", answer=PASSAGES[6].body)]
    texts = [passage.text for passage in passages]
    search.save(tmp_path, model, passages, encode(model, texts, "document"), Mix(words=1))
    saved = search.load(tmp_path)
    assert saved("where does the poet live")[0][1:] == ("file3", f"where does the poet live\n{PASSAGES[6].body}")
