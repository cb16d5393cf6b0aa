"""Shares of right answers, their differences, the verdict, and rows that cost nothing against what they must give."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.legal.data import Record, Records
from helpers.legal.evaluation import (
    BASE,
    FREQUENT,
    NEAREST,
    PROBE,
    STOPS,
    TRAINED,
    WORDS,
    baselines,
    right,
    scores,
    table,
    verdict,
)
from helpers.legal.training import ChatTemplate
from tests.legal.test_model import loaded

pytestmark = pytest.mark.once


def drawn(seed: int, count: int = 60) -> list[str]:
    return random.Random(seed).choices(("No", "Perhaps", "Yes"), (5, 1, 3), k=count)


def record(number: int, text: str, answer: str, group: str = "") -> Record:
    turns = ({"role": "user", "content": text}, {"role": "assistant", "content": answer})
    return Record(str(number), turns, group=group)


GOLD, OTHER = drawn(0), drawn(1)
QUESTIONS = [record(n, f"Q{n}", answer, f"document {n // 2}") for n, answer in enumerate(GOLD)]
EQUAL = [answer == gold for answer, gold in zip(OTHER, GOLD, strict=True)]


def test_an_answer_is_right_in_another_spelling():
    assert right([f"{answer.upper()}. " for answer in OTHER], QUESTIONS) == EQUAL


def test_shares_and_differences_are_over_documents_and_the_same_questions():
    results = scores({WORDS: EQUAL, BASE: EQUAL[:9], TRAINED: [1] * 60}, QUESTIONS)
    assert (results["questions"], results["groups"]) == (60, 30)
    shares, less = results["systems"], results["trained less"]
    assert shares[WORDS]["value"] == pytest.approx(np.mean(EQUAL)) and shares[WORDS]["items"] == 30
    assert (shares[BASE]["questions"], shares[BASE]["items"]) == (9, 5)
    assert less[WORDS]["value"] == pytest.approx(1 - np.mean(EQUAL)) and less[WORDS]["items"] == 30
    assert less[BASE]["value"] == pytest.approx(1 - np.mean(EQUAL[:9]))
    assert "too few for an interval: 5" in less[BASE]["shown"]


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [(GOLD, "better"), (["maybe"] * 60, "worse"), (OTHER, "no significant difference")],
)
def test_the_verdict_says_better_worse_or_not_told_apart(answers, outcome):
    trainer = SimpleNamespace(plan=SimpleNamespace(learning_rate=1e-3, max_steps=9))
    systems = {WORDS: OTHER, NEAREST: ["maybe"] * 60, BASE: GOLD, TRAINED: answers}
    results = scores({name: right(texts, QUESTIONS) for name, texts in systems.items()}, QUESTIONS)
    line, last = verdict(results, {"form": {STOPS: 1.0}}, trainer)
    hardly, *_ = verdict(results, {"form": {STOPS: 0.5}}, trainer)
    assert hardly.startswith("The model has hardly learned its records: 50% of its answers")
    assert line.startswith(f"The trained model compared with {WORDS}: {outcome}, ")
    assert ("base model: no significant difference" in last) == (answers == GOLD)
    assert [row["answers"] for row in table(results)] == list(systems)


def test_answers_that_cost_nothing():
    words = {"Yes": "void unlawful struck", "No": "valid lawful upheld"}
    generator = random.Random(0)
    records = []
    for number in range(90):
        label = "Yes" if number % 3 else "No"
        text = f"clause {generator.random()} is {generator.choice(words[label].split())}"
        records.append(record(number, text, label))
    train, test = records[:60], records[60:]
    model, tokenizer = loaded()
    answers = baselines(
        model, ChatTemplate(tokenizer), Records(name="x", sha256="", splits={"train": train}), [*test, *train[:9]]
    )
    assert {*answers[FREQUENT]} == {"Yes"}
    assert answers[WORDS][:30] == [each.answer for each in test]
    assert np.mean(right(answers[PROBE], test)) > 0.8
    assert answers[NEAREST][30:] == [each.answer for each in train[:9]]
