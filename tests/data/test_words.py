"""Words of every script, and BM25 over them against its formula."""

import numpy as np
import pytest

from helpers.data.bm25 import Bm25
from helpers.data.words import code_words, words

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Größe der Straße: 12 km", ["grösse", "der", "strasse", "12", "km"]),
        ("Чтение файла", ["чтение", "файла"]),
        ("हिन्दी भाषा", ["हिन्दी", "भाषा"]),  # with its vowel signs, which `\w` takes for no letters
        ("学习 in Python", ["学", "习", "学习", "in", "python"]),
        ("茶", ["茶"]),
        ("ｶﾀｶﾅ", ["カタ", "タカ", "カナ"]),
        ("ดีครับ", ["ดี", "ีค", "คร", "รั", "ับ"]),
        ("한국어", ["한국", "국어"]),
        ("cafe\u0301 co\u00adop don't", ["café", "coop", "don", "t"]),
        ("?! … \u200b", []),
        ("", []),
    ],
)
def test_words_are_of_any_script_and_pairs_where_there_are_no_spaces(text, expected):
    assert words(text) == expected


def test_a_stemmer_gets_words_and_no_pairs():
    assert words("Autos 学习", lambda word: word.rstrip("s")) == ["auto", "学", "习", "学习"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("parseHTTPHeaders(x_1)", ["parse", "http", "headers", "x", "1"]),
        ("connection_pool2 __init__", ["connection", "pool", "2", "init"]),
        ("читатьФайл", ["читать", "файл"]),
        ("größeÄndern", ["grösse", "ändern"]),
    ],
)
def test_identifiers_are_taken_apart(text, expected):
    assert code_words(text) == expected


def test_bm25_is_the_formula_of_okapi():
    documents = [text.split() for text in ("read a file and a file", "write one file", "open a socket", "close")]
    vocabulary = sorted({word for document in documents for word in document})
    counts_DV = np.array([[document.count(word) for word in vocabulary] for document in documents])
    having_V, length_D = (counts_DV > 0).sum(0), counts_DV.sum(1, keepdims=True)
    rarity_V = np.log(1 + (len(documents) - having_V + 0.5) / (having_V + 0.5))
    scores_DV = rarity_V * counts_DV / (counts_DV + 1.2 * (1 - 0.75 + 0.75 * length_D / length_D.mean()))
    index = Bm25(documents, k1=1.2)
    for question in ("read file", "a file file", "socket", "nothing here"):
        asked_V = np.isin(vocabulary, question.split())
        np.testing.assert_allclose(index.scores(question.split()), scores_DV[:, asked_V].sum(1), rtol=1e-4, atol=1e-6)
    np.testing.assert_array_equal(Bm25([[], []]).scores(["read"]), [0, 0])
