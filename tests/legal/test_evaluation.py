"""Scores against scikit-learn's, intervals against a slow bootstrap, and rows that cost nothing against what they must give."""

from __future__ import annotations

import random

import numpy as np
import pytest
from sklearn.metrics import accuracy_score, f1_score

from helpers.legal.data import Record, Records
from helpers.legal.evaluation import (
    FREQUENT,
    NEAREST,
    WORDS,
    baselines,
    form,
    scores,
    table,
    verdict,
    with_examples,
)

pytestmark = pytest.mark.once

CHOICES = ("No", "Perhaps", "Yes")


def drawn(seed: int, count: int = 60) -> list[str]:
    return random.Random(seed).choices(CHOICES, (5, 1, 3), k=count)


def record(number: int, text: str, answer: str, group: str = "") -> Record:
    said = ({"role": "user", "content": text}, {"role": "assistant", "content": answer})
    return Record(str(number), said, answer, group=group)


def records(gold: list[str], groups: list[str] | None = None) -> Records:
    asked = tuple(record(n, f"Q{n}", answer, (groups or [""] * len(gold))[n]) for n, answer in enumerate(gold))
    return Records(name="x", sha256="", splits=dict.fromkeys(("train", "validation", "test"), asked), choices=CHOICES)


def test_accuracy_and_macro_f1_are_those_of_scikit_learn_and_no_choice_is_wrong():
    gold, said = drawn(0), drawn(1)
    said[3], said[4] = "maybe", "yes. "  # none of the choices; another spelling of one
    plain = [each.strip(" .").capitalize() for each in said]
    found = scores({WORDS: said}, [], records(gold))["systems"][WORDS]
    assert found["accuracy"]["value"] == pytest.approx(accuracy_score(gold, plain))
    assert found["macro_f1"]["value"] == pytest.approx(f1_score(gold, plain, average="macro", labels=CHOICES))


def test_intervals_are_over_documents_and_differences_on_the_same_draws():
    gold, groups = drawn(0), [f"document {n // 6}" for n in range(60)]
    systems = {"base model": drawn(1)}
    found = scores(systems, [drawn(2), gold], records(gold, groups))
    right = [np.mean([a == b for a, b in zip(gold, said, strict=True)]) for said in (drawn(1), drawn(2))]
    value = found["systems"]["trained"]["accuracy"]
    assert value["value"] == pytest.approx((right[1] + 1) / 2)  # the mean over two seeds
    assert found["systems"]["gold"]["accuracy"] == {"value": 1.0, "low": 1.0, "high": 1.0}
    assert (found["questions"], found["groups"]) == (60, 10)
    hits = [a == b for a, b in zip(gold, drawn(1), strict=True)]
    generator, slow = random.Random(3), []
    for _ in range(4000):
        rows = [6 * document + n for document in generator.choices(range(10), k=10) for n in range(6)]
        slow.append(np.mean([hits[row] for row in rows]))
    low, high = np.quantile(slow, (0.025, 0.975))
    base = found["systems"]["base model"]["accuracy"]
    assert (base["low"], base["high"]) == pytest.approx((low, high), abs=0.03)
    less = found["trained less"]["base model"]["accuracy"]
    assert less["value"] == pytest.approx(value["value"] - right[0])
    assert less["high"] - less["low"] < (value["high"] - value["low"]) + (base["high"] - base["low"])


@pytest.mark.parametrize(
    ("trained", "said"), [("gold", "is better than"), ("wrong", "is worse than"), ("same", "is not told apart from")]
)
def test_the_verdict_says_better_worse_or_not_told_apart(trained, said):
    gold, words = drawn(0), drawn(1)
    answers = {"gold": gold, "wrong": ["maybe"] * 60, "same": words}[trained]
    found = scores({WORDS: words, "base model": gold}, [answers], records(gold))
    line, beside_base = verdict(found)
    assert line.startswith(f"The trained model {said} words") and "60 questions in 60 groups" in line
    assert ("is not told apart from base model" in beside_base) == (trained == "gold")
    assert [row["answers"] for row in table(found)] == [WORDS, "base model", "gold", "trained"]


def test_answers_that_cost_nothing_are_the_majority_the_nearest_and_what_words_tell():
    words = {"Yes": "void unlawful struck", "No": "valid lawful upheld"}
    parts, generator = {}, random.Random(0)
    for name, count in (("train", 60), ("validation", 12), ("test", 30)):
        labels = ["Yes" if n % 3 else "No" for n in range(count)]
        texts = [f"clause {generator.random()} is {generator.choice(words[each].split())}" for each in labels]
        parts[name] = tuple(record(n, *pair) for n, pair in enumerate(zip(texts, labels, strict=True)))
    found = baselines(Records(name="x", sha256="", splits=parts, choices=("No", "Yes")))
    gold = [each.answer for each in parts["test"]]
    assert {*found[FREQUENT]} == {"Yes"}
    assert found[WORDS] == gold
    again = Records(name="x", sha256="", splits=parts | {"test": parts["train"][:9]}, choices=("No", "Yes"))
    assert baselines(again)[NEAREST] == [each.answer for each in parts["train"][:9]]


def test_solved_examples_stand_before_the_question_with_the_nearest_last():
    train = [record(n, text, "Yes") for n, text in enumerate(("a cat", "a red dog", "a red fox sleeps", "nothing"))]
    system = {"role": "system", "content": "Be brief."}
    asked = record(9, "the red fox", "No")
    (found,) = with_examples(train, [Record("9", (system, *asked.messages), "No")], 2)
    said = [each["content"] for each in found.messages]
    assert said == ["Be brief.", "a red dog", "Yes", "a red fox sleeps", "Yes", "the red fox", "No"]


def test_the_form_of_what_is_written_counts_stops_sections_and_the_records_own_answer():
    asked = [Record("1", (), "It falls.", sections=("reasoning", "answer")), Record("2", (), "Yes")]
    samples = [
        {"stops": True, "format": True, "answer": "it falls"},
        {"stops": False, "format": False, "answer": "No"},
    ]
    assert form(samples, asked) == {"stops": 0.5, "format": 0.5, "exact match": 0.5, "of": 2}
