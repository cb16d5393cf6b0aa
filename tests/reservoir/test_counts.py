"""Kneser-Ney counts with a cache: against the formulas, spelt out in dictionaries; mixed in, saved, and learned on."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
import torch

from helpers.reservoir.counts import MOST_LEARNED, Counts, WithCounts
from helpers.reservoir.data import train_tokenizer

from .test_model import END, V, made, texts

ORDER = 3


def stream(seed: int, count: int, length: int = 20) -> np.ndarray:
    """Texts of a few tokens, each followed by the end."""
    random = np.random.default_rng(seed)
    rows = [[*random.zipf(1.6, random.integers(3, length)).clip(max=V - 1), END] for _ in range(count)]
    return np.concatenate(rows)


def by_the_formulas(train: np.ndarray, text: list[int], order: int) -> np.ndarray:
    """P of every token after the text (Chen and Goodman 1999, section 3), from sentences in dictionaries."""
    grams = {n: Counter() for n in range(1, order + 1)}
    for sentence in _sentences(train):
        padded = [END] * (order - 1) + sentence
        for end in range(order, len(padded) + 1):
            grams[order][tuple(padded[end - order : end])] += 1
    for n in range(order - 1, 0, -1):
        for gram in grams[n + 1]:
            grams[n][gram[1:]] += 1
    found, before = np.full(V, 1 / V), [END] * order + text
    for n in range(1, order + 1):
        context = tuple(before[len(before) - n + 1 :]) if n > 1 else ()
        followers = {gram[-1]: count for gram, count in grams[n].items() if gram[:-1] == context}
        total = sum(followers.values())
        if not total:
            continue
        discount = _discounts(grams[n])
        freed = sum(discount[min(count, 3)] for count in followers.values())
        share = np.zeros(V)
        for token, count in followers.items():
            share[token] = (count - discount[min(count, 3)]) / total
        found = share + freed / total * found
    return found


def _sentences(train: np.ndarray) -> list[list[int]]:
    found, sentence = [], []
    for token in train.tolist():
        sentence.append(token)
        if token == END:
            found.append(sentence)
            sentence = []
    return found


def _discounts(grams: Counter) -> list[float]:
    of = defaultdict(int)
    for count in grams.values():
        of[count] += 1
    y = of[1] / (of[1] + 2 * of[2]) if of[1] and of[2] else 0.5
    if of[1] and of[2] and of[3] and of[4]:
        three = [1 - 2 * y * of[2] / of[1], 2 - 3 * y * of[3] / of[2], 3 - 4 * y * of[4] / of[3]]
        if min(three) > 0:
            return [0.0, *three]
    return [0.0, y, y, y]


def test_probabilities_are_those_of_the_formulas():
    train = stream(0, 60)
    counts = Counts.fit(train, V, END, ORDER)
    for text in ([], [1], [1, 1, 2], [39, 38, 37]):
        expected = by_the_formulas(train, text, ORDER)
        assert expected.sum() == pytest.approx(1)
        np.testing.assert_allclose(counts.distribution(np.array(text, dtype=np.int64), 0.0), expected, rtol=1e-9)


def test_a_stream_has_the_probabilities_of_its_texts_token_by_token():
    counts, tokens = Counts.fit(stream(0, 60), V, END, ORDER), stream(1, 5)
    expected = []
    for text in _sentences(tokens):
        expected += [counts.distribution(np.array(text[:place]), 0.1)[text[place]] for place in range(len(text))]
    np.testing.assert_allclose(counts.with_cache(tokens, 0.1), expected, rtol=1e-9)


def test_learning_a_text_is_counting_it_with_all_others():
    first, second = stream(0, 50), stream(1, 3)
    learned, whole = Counts.fit(first, V, END), Counts.fit(np.concatenate((first, second)), V, END)
    learned.learn(second)
    for ours, theirs in zip(learned.levels, whole.levels, strict=True):
        assert np.array_equal(ours.codes, theirs.codes) and np.array_equal(ours.counts, theirs.counts)


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ([], "tokens: 0 were given"),
        ([1] * (MOST_LEARNED + 1), "tokens: 100001 were given"),
        ([1, V], "1 of them outside the vocabulary"),
        ([-1], "1 of them outside the vocabulary"),
    ],
)
def test_what_cannot_be_learned_is_refused_and_changes_nothing(tokens, said):
    counts = Counts.fit(stream(0, 20), V, END)
    before = [phrases.counts.copy() for phrases in counts.levels]
    with pytest.raises(ValueError, match=said):
        counts.learn(np.array(tokens, dtype=np.int64))
    assert all(np.array_equal(a, phrases.counts) for a, phrases in zip(before, counts.levels, strict=True))


def test_a_large_vocabulary_takes_shorter_phrases():
    assert len(Counts.fit(np.array([1, 2, 3, 0]), 50_257, 0).levels) == 4


def with_counts():
    model = made()
    model.counts = Counts.fit(stream(0, 60), V, END, ORDER)
    model.config.counts_weight, model.config.cache_weight = 0.4, 0.1
    return model


def test_generation_takes_the_most_probable_token_of_the_mixture():
    model, ids = with_counts(), texts(1, 6)
    found = model.generate(ids, max_new_tokens=6, do_sample=False, min_new_tokens=6)[0]
    for place in range(6, 12):
        read = model(found[None, :place]).logits[0, -1].softmax(-1).detach().double().numpy()
        counted = model.counts.distribution(found[:place].numpy(), 0.1)
        mixed = 0.6 * read + 0.4 * counted
        mixed[END] = 0
        assert int(found[place]) == mixed.argmax()


def test_the_mixture_sums_to_one_and_begins_anew_after_an_end():
    ids = torch.tensor([[5, 6, END, 1, 2], [END, END, END, 1, 2]])
    scores = with_counts().mix_in_counts(ids, torch.zeros(2, V))
    torch.testing.assert_close(scores.exp().sum(-1), torch.ones(2))
    torch.testing.assert_close(scores[0], scores[1])


def test_a_model_without_counts_cannot_learn():
    with pytest.raises(ValueError, match="learn: this model has no counts"):
        made().learn(torch.tensor([1, 2, END]))
    assert WithCounts.counts is None


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
model.learn([1, 2, 3, 33, 34, 35, 0] * 1000)
after = model.generate(ids, max_new_tokens=3, do_sample=False, min_new_tokens=3).tolist()
model.save_pretrained("again")
print("FOUND " + json.dumps([before, after]))
"""


def test_an_export_is_loaded_without_this_package_generates_the_same_and_learns_on(tmp_path):
    model = with_counts()
    model.save_pretrained(tmp_path / "model")
    train_tokenizer(["one two"] * 9)[0].save_pretrained(tmp_path / "model" / "tokenizer")
    expected = model.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=8, do_sample=False, min_new_tokens=8).tolist()
    environment = {
        "HF_HOME": str(tmp_path / "hf"),
        "HF_HUB_OFFLINE": "1",
        "PATH": "/usr/bin:/bin",
        "USE_TORCH_XLA": "0",
    }
    command = [sys.executable, "-c", ELSEWHERE, str(tmp_path / "model")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr[-3000:]
    before, after = json.loads(done.stdout.split("FOUND ")[1])
    assert before == expected
    assert after[0][3:] == [33, 34, 35]
    kept = {path.name for path in (tmp_path / "again").iterdir()}
    assert {"model.py", "counts.py", "scan.py", "counts.safetensors", "model.safetensors"} <= kept
    assert not [*Path(tmp_path / "model").glob("*.bin")]


def test_a_saved_model_says_the_same_where_it_is_loaded(tmp_path):
    model = with_counts()
    model.save_pretrained(tmp_path)
    loaded = type(model).from_pretrained(tmp_path)
    assert torch.equal(loaded(texts()).logits, model(texts()).logits)
    assert np.array_equal(*(each.counts.with_cache(stream(1, 4), 0.1) for each in (loaded, model)))
