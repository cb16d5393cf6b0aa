"""Shares of right answers, intervals against a slow bootstrap, and rows that cost nothing against what they must give."""

import random
from types import SimpleNamespace

import numpy as np
import pytest

from helpers.legal.data import Record, Records
from helpers.legal.evaluation import (
    BASE,
    FREQUENT,
    NEAREST,
    STOPS,
    TRAINED,
    WORDS,
    baselines,
    right,
    scores,
    table,
    verdict,
)

pytestmark = pytest.mark.once

CHOICES = ("No", "Perhaps", "Yes")


def drawn(seed: int, count: int = 60) -> list[str]:
    return random.Random(seed).choices(CHOICES, (5, 1, 3), k=count)


def record(number: int, text: str, answer: str, group: str = "") -> Record:
    said = ({"role": "user", "content": text}, {"role": "assistant", "content": answer})
    return Record(str(number), said, group=group)


def of(splits: dict) -> Records:
    return Records(name="x", sha256="", splits=splits)


def asked(gold: list[str], groups: list[str] | None = None) -> list[Record]:
    return [record(n, f"Q{n}", answer, (groups or [""] * len(gold))[n]) for n, answer in enumerate(gold)]


def test_an_answer_is_right_in_another_spelling():
    gold, said = drawn(0), drawn(1)
    equal = [a == b for a, b in zip(gold, said, strict=True)]
    assert right([f"{answer.upper()}. " for answer in said], asked(gold)) == equal
    found = scores({WORDS: equal, TRAINED: [1] * 60}, asked(gold))
    assert found["systems"][WORDS]["value"] == pytest.approx(np.mean(equal))
    assert found["trained less"][WORDS]["value"] == pytest.approx(1 - np.mean(equal))


def test_intervals_are_over_documents_and_differences_on_the_same_draws():
    gold, groups = drawn(0, 180), [f"document {n // 6}" for n in range(180)]
    said = drawn(1, 180)
    questions = asked(gold, groups)
    equal, every = right(said, questions), [1] * 180
    found = scores({BASE: equal, TRAINED: every}, questions)
    assert (found["questions"], found["groups"]) == (180, 30)
    hits = np.array([a == b for a, b in zip(gold, said, strict=True)]).reshape(30, 6)
    generator = random.Random(3)
    slow = [np.mean([hits[document] for document in generator.choices(range(30), k=30)]) for _ in range(4000)]
    less = found["trained less"][BASE]
    assert (1 - less["high"], 1 - less["low"]) == pytest.approx(np.quantile(slow, (0.025, 0.975)), abs=0.02)
    first = scores({BASE: equal[:90], TRAINED: every}, questions)  # which fewer questions were asked
    assert first["systems"][BASE]["questions"] == 90
    assert first["trained less"][BASE]["value"] == pytest.approx(1 - hits.flatten()[:90].mean())
    few = scores({BASE: equal[:9], TRAINED: every[:9]}, questions[:9])
    assert "too few for an interval: 2" in few["trained less"][BASE]["shown"]


class Trained:
    """What a verdict asks of a trainer."""

    state = SimpleNamespace(log_history=[{"eval_loss": 1.5}])
    plan = SimpleNamespace(learning_rate=1e-3, max_steps=9)


@pytest.mark.parametrize(
    ("trained", "said"), [("gold", "better"), ("wrong", "worse"), ("same", "no significant difference")]
)
def test_the_verdict_says_better_worse_or_not_told_apart(trained, said):
    gold, words = drawn(0), drawn(1)
    answers = {"gold": gold, "wrong": ["maybe"] * 60, "same": words}[trained]
    systems = {WORDS: words, NEAREST: ["maybe"] * 60, BASE: gold, TRAINED: answers}
    found = scores({name: right(said, asked(gold)) for name, said in systems.items()}, asked(gold))
    line, beside_base = verdict(found, {"form": {STOPS: 1.0}}, Trained)
    hardly, *_ = verdict(found, {"form": {STOPS: 0.5}}, Trained)
    assert hardly.startswith("The model has hardly learned its records: 50% of its answers") and "1.500" in hardly
    assert line.startswith(f"The trained model compared with {WORDS}: {said}, ") and line.endswith(
        "60 questions, of one training."
    )
    assert ("base model: no significant difference" in beside_base) == (trained == "gold")
    assert [row["answers"] for row in table(found)] == list(systems)


def test_answers_that_cost_nothing():
    words = {"Yes": "void unlawful struck", "No": "valid lawful upheld"}
    parts, generator = {}, random.Random(0)
    for name, count in (("train", 60), ("validation", 12), ("test", 30)):
        labels = ["Yes" if n % 3 else "No" for n in range(count)]
        texts = [f"clause {generator.random()} is {generator.choice(words[each].split())}" for each in labels]
        parts[name] = tuple(record(n, *pair) for n, pair in enumerate(zip(texts, labels, strict=True)))
    found = baselines(of(parts), parts["test"])
    gold = [each.answer for each in parts["test"]]
    assert {*found[FREQUENT]} == {"Yes"}
    assert found[WORDS] == gold
    again = parts["train"][:9]
    assert baselines(of(parts), again)[NEAREST] == [each.answer for each in again]
