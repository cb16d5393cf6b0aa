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
    """log(1 + 1.5 / 1.5) / (1 + k1 (1 - b + b 2 / 1.5)): a word of one of two documents, which have two words and one."""
    assert Bm25([["read", "file"], ["close"]], k1=1.2).scores(["read"]) == pytest.approx([np.log(2) / 2.5, 0])
    assert [*Bm25([[], []]).scores(["read"])] == [0, 0]
