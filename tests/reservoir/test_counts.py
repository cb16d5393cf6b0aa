"""Kneser-Ney counts with a cache: against the formulas, spelt out in dictionaries; mixed in, saved, and learned on."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from helpers.reservoir.counts import MOST_LEARNED, Counts, Smoothed
from helpers.reservoir.data import tokens_of, train_tokenizer
from tests.harness import isolated

from .slow_model import END, V, by_the_formulas, sentences_of, stream
from .test_model import made


def by_counts(counts: Counts, text: list[int]) -> np.ndarray:
    window = np.array([[-1] * 5 + text])
    return counts.smoothed().distributions(counts.contexts_of(window))[0][0]


def test_probabilities_are_those_of_the_formulas():
    train = stream(0, 60)
    counts = Counts.fit(train, V, END)
    for text in ([], [1], [1, 1, 2], [39, 38, 37]):
        expected = by_the_formulas(train, text, 5)
        assert expected.sum() == pytest.approx(1)
        assert_allclose(by_counts(counts, text), expected, rtol=1e-5)


def test_a_stream_has_the_probabilities_of_its_texts_token_by_token():
    counts, tokens = Counts.fit(stream(0, 60), V, END), stream(1, 5)
    expected = []
    for text in sentences_of(tokens):
        expected += [by_counts(counts, text[:place])[text[place]] for place in range(len(text))]
    assert_allclose(counts.smoothed().of(tokens, counts.contexts(tokens)), expected, rtol=1e-5)


def test_a_fold_has_the_counts_of_the_texts_outside_it():
    tokens = stream(0, 60)
    smoothed, fold = Smoothed.without_folds(tokens, V, END)
    sentences = sentences_of(tokens)
    for number in (0, 7, 58):
        others = [text for place, text in enumerate(sentences) if place % 4 != number % 4]
        counts = Counts.fit(np.concatenate(others), V, END)
        window = np.array([[-1] * 5 + sentences[number][:2]])
        place = sum(map(len, sentences[:number]))
        shares, _ = smoothed.distributions(counts.contexts_of(window), fold[[place]])
        assert_allclose(shares[0], by_counts(counts, sentences[number][:2]), rtol=1e-6)


def test_learning_a_text_is_counting_it_with_all_others():
    first, second = stream(0, 50), stream(1, 3)
    learned, whole = Counts.fit(first, V, END), Counts.fit(np.concatenate((first, second)), V, END)
    learned.learn(second)
    for ours, theirs in zip(learned.levels(), whole.levels(), strict=True):
        assert np.array_equal(ours[0], theirs[0]) and np.array_equal(ours[1], theirs[1])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "learn: 0 tokens"),
        ([[1] * (MOST_LEARNED + 1)], "learn: 100002 tokens"),
        ([[1, V]], "1 of them outside the vocabulary"),
        ([[-1]], "1 of them outside the vocabulary"),
        ("once", r"learn: 'o' is no list of token ids; give tokenizer\(texts\)\['input_ids'\]"),
        ([1, 2, 3], "learn: 1 is no list of token ids"),
        ([[0.5, 1.0]], r"learn: \[0.5, 1.0\] is no list of token ids"),
    ],
)
def test_what_cannot_be_learned_is_refused_and_changes_nothing(texts, message):
    model = made()
    before = model.counts.counts.copy()
    with pytest.raises(ValueError, match=message):
        model.learn(texts)
    assert np.array_equal(before, model.counts.counts)


def test_a_model_learns_the_texts_of_a_tokenizer_with_their_ends():
    tokenizer, _ = train_tokenizer(["one two three four"] * 9)
    texts = ["one two", "three one four two", "two"]
    model = made(vocab_size=len(tokenizer))
    model.counts = Counts.fit(np.array([5, END]), len(tokenizer), tokenizer.eos_token_id)
    model.learn(tokenizer(texts)["input_ids"])
    stream = np.append([5, END], tokens_of(texts, tokenizer))
    expected = Counts.fit(stream, len(tokenizer), tokenizer.eos_token_id)
    assert np.array_equal(model.counts.codes, expected.codes) and np.array_equal(model.counts.counts, expected.counts)


def test_a_large_vocabulary_takes_shorter_phrases():
    assert len(Counts.fit(np.array([1, 2, 3, 0]), 50_257, 0).levels()) == 3


ELSEWHERE = """
import builtins, json, sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
def refuse(question):
    raise SystemExit(f"asked: {question}")
builtins.input = refuse
assert AutoTokenizer.from_pretrained(sys.argv[1] + "/tokenizer")("one")["input_ids"]
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
assert "helpers" not in sys.modules and not any(name.startswith("helpers") for name in sys.modules)
ids = torch.tensor([[1, 2, 3]])
before = model.generate(ids, max_new_tokens=8, do_sample=False, min_new_tokens=8).tolist()
model.learn([[1, 2, 3, 33, 34, 35]] * 1000)
after = model.generate(ids, max_new_tokens=3, do_sample=False, min_new_tokens=3).tolist()
model.save_pretrained("again")
print("FOUND " + json.dumps([before, after]))
"""


def test_an_export_without_this_package_generates_the_same_and_learns(tmp_path):
    model = made()
    for tensor in (model.out.weight, model.boost.bias, model.scale.bias, model.head.bias):
        torch.nn.init.zeros_(tensor)  # so that the counts decide
    model.save_pretrained(tmp_path / "model")
    train_tokenizer(["one two"] * 9)[0].save_pretrained(tmp_path / "model/tokenizer")
    expected = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False, min_new_tokens=8).tolist()
    output = isolated(ELSEWHERE, tmp_path / "model", folder=tmp_path)
    before, after = json.loads(output.split("FOUND ")[1])
    assert before == expected
    assert after[0][3:] == [33, 34, 35]
    kept = {path.name for path in (tmp_path / "empty/again").iterdir()}
    assert {"model.py", "counts.py", "generation.py", "counts.safetensors", "model.safetensors"} <= kept
    assert not [*Path(tmp_path / "model").glob("*.bin")]
