"""How good the whole last turn is, beside what costs nothing: its answer, its reasoning, and whether it stops.

# Q questions · T training records
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from statistics import mode
from typing import Any

import numpy as np

from helpers.show.intervals import Interval, bootstrap, wilson
from helpers.show.tracking import say

from .data import Record, Records
from .generation import generate

STRENGTHS = (0.3, 3, 30, 300)  # of the linear model (sklearn's C), chosen on the validation records
SCORED = 100  # test records at most
UNTRAINED = (
    20  # of them that the model before training answers: it seldom stops, so that each answer takes the longest time
)
LONGEST_ANSWER = 512  # tokens
LEAST_STOPS = 0.9  # share of answers that end by themselves: of a model that has learned where an answer ends
FREQUENT, NEAREST, WORDS = "most frequent answer", "nearest training record", "words (TF-IDF, logistic regression)"
BASE, TRAINED = "base model", "trained"


def scored(records: Records) -> Sequence[Record]:
    """The test records that are scored."""
    return records.splits["test"][:SCORED]


# ---- answers that cost nothing


def baselines(records: Records, questions: Sequence[Record] = ()) -> dict[str, list[str]]:
    """What the nearest record and, for labels, the most frequent one and a linear model on words answer."""
    train = records.splits["train"]
    questions = questions or scored(records)
    rows = nearest(train, questions)[:, 0]
    answers = {NEAREST: _answers(train[row] for row in rows)}
    if records.choices:
        answers[FREQUENT] = [mode(_answers(train))] * len(questions)
        answers[WORDS] = linear_model(train, records.splits["validation"], questions)
    return answers


def nearest(train: Sequence[Record], questions: Sequence[Record], count: int = 1):
    """Rows of the `count` training questions most like each one, by the cosine of their words' TF-IDF: [Q, count]."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    train_TW = words.fit_transform(_questions(train))
    alike_QT = words.transform(_questions(questions)) @ train_TW.T
    return np.argsort(-alike_QT.toarray(), axis=1, kind="stable")[:, :count]


def linear_model(train: Sequence[Record], validation: Sequence[Record], questions: Sequence[Record]) -> list[str]:
    """Logistic regression on the TF-IDF of words, word pairs and letters, of the strength that is best on the validation records."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline, make_union

    words = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2)
    models = []
    for strength in STRENGTHS:
        model = make_pipeline(make_union(words, letters), LogisticRegression(C=strength, max_iter=1000))
        models.append(model.fit(_questions(train), _answers(train)))
    best = max(models, key=lambda model: model.score(_questions(validation), _answers(validation)))
    return best.predict(_questions(questions)).tolist()


def _questions(records: Iterable[Record]) -> list[str]:
    return [record.question for record in records]


def _answers(records: Iterable[Record]) -> list[str]:
    return [record.answer for record in records]


# ---- asking the model


def last_turn(template, record: Record) -> str:
    """What the model is to write, without special tokens."""
    text = template.text(record.messages)[len(template.prompt(record)) :]
    return template.tokenizer.decode(template.encode(text), skip_special_tokens=True)


def answer_length(template, records: Iterable[Record]) -> int:
    """Tokens that an answer to one of these records may have: half more than the longest, at most LONGEST_ANSWER."""
    longest = max(len(template.encode(last_turn(template, record))) for record in records)
    return min(LONGEST_ANSWER, 8 + longest * 3 // 2)


def written(model, template, questions: Sequence[Record], **options) -> list[dict[str, Any]]:
    """What the model writes for each record: its text and answer, whether it stops, and whether its reasoning is the record's."""
    samples = []
    outputs = generate(model, template, questions, **options)
    for record, output in zip(questions, outputs, strict=True):
        reasoning, answer = parts_of(output.text)
        expected_reasoning, _ = parts_of(last_turn(template, record))
        same = _plain(reasoning) == _plain(expected_reasoning)
        samples.append(
            {"id": record.id, "text": output.text, "answer": answer, "stops": output.stopped, "reasoning": same}
        )
    return samples


def parts_of(turn: str) -> tuple[str, str]:
    """The reasoning of a turn, and what follows it."""
    reasoning, _, answer = turn.rpartition("</think>")
    return reasoning.replace("<think>", "").strip(), answer.strip()


# ---- scores


def scores(systems: Mapping[str, Sequence[Sequence[str]]], questions: Sequence[Record]) -> dict[str, Any]:
    """The share of right answers of each system, and the difference of the trained one to it, with intervals over documents.

    systems: by name the answers to `questions` or to the first of them, one list a seed; values are means over seeds.
        Differences are paired.
    """
    groups = [record.group or f"question {number}" for number, record in enumerate(questions)]
    right = {}
    for name, seeds in systems.items():
        right[name] = np.mean([_right(answers, questions) for answers in seeds], axis=0)
    results: dict[str, Any] = {"questions": len(questions), "groups": len({*groups}), "systems": {}, "trained less": {}}
    for name, right_Q in right.items():
        count = len(right_Q)
        results["systems"][name] = _values(wilson(float(right_Q.mean()), len({*groups[:count]}))) | {"questions": count}
        if name != TRAINED and TRAINED in right:
            difference = bootstrap(np.mean, right[TRAINED][:count] - right_Q, groups=groups[:count])
            values = _values(difference)
            results["trained less"][name] = values | {"outcome": difference.outcome, "shown": str(difference)}
    return results


def _values(interval: Interval) -> dict[str, float | None]:
    """Value and bounds, which are None over too few questions."""
    if not math.isfinite(interval.low):
        return {"value": interval.value, "low": None, "high": None}
    return {"value": interval.value, "low": interval.low, "high": interval.high}


def form(samples: Sequence[Mapping[str, Any]], questions: Sequence[Record]) -> dict[str, float]:
    """The shares of written turns that stop by themselves, and whose answer and reasoning are the record's, word for word.

    The share of reasoning is over the records that have some.
    """
    shares = {
        "stops": [sample["stops"] for sample in samples],
        "answer is right": _right([sample["answer"] for sample in samples], questions),
    }
    pairs = zip(samples, questions, strict=False)
    steps = [sample["reasoning"] for sample, record in pairs if record.reasoning]
    if steps:
        shares["every step is right"] = steps
    return {name: float(np.mean(values)) for name, values in shares.items()}


def _right(answers: Sequence[str], questions: Sequence[Record]) -> list[bool]:
    pairs = zip(answers, _answers(questions), strict=False)
    return [_plain(answer) == _plain(expected) for answer, expected in pairs]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


# ---- one model, asked everything; and what is shown


def examine(trainer, template, records: Records, rows, *, count: int = SCORED) -> dict[str, Any]:
    """What a model makes of the test records: the loss of their own texts, and what it writes for the first `count` of them.

    rows: of the test records (`training.encode`).
    """
    model, questions = trainer.model, scored(records)[:count]
    results = {"completion": trainer.completion_loss(rows)}
    length = answer_length(template, questions)
    say(f"the model answers {len(questions)} test questions, with at most {length} tokens each")
    with trainer.compute_loss_context_manager():
        samples = written(model, template, questions, max_new_tokens=length)
    answers = [sample["answer"] for sample in samples]
    return results | {"answers": answers, "samples": samples, "form": form(samples, questions)}


def table(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each system of `scores`, in percent with 95 % intervals."""
    rows = []
    for name, values in results["systems"].items():
        share = f"{values['value']:.1%} ({values['low']:.1%} to {values['high']:.1%})"
        rows.append({"answers": name, "right": share, "questions": values["questions"]})
    return rows


def written_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Loss and perplexity of the test records' own texts, and the form of what is written, before and after training."""
    rows = []
    for name, results in ((BASE, before), (TRAINED, after)):
        loss, perplexity = results["completion"]["loss"], results["completion"]["perplexity"]
        row = {"model": name, "loss": round(loss, 3), "perplexity": round(perplexity, 2)}
        for measure, share in results["form"].items():
            row[measure] = f"{share:.0%}"
        rows.append(row)
    return rows


def verdict(results: Mapping[str, Any]) -> list[str]:
    """A sentence for the base model and for the best method that costs nothing: better, worse, or no significant difference."""
    free = [name for name in (NEAREST, FREQUENT, WORDS) if name in results["systems"]]
    best = max(free, key=lambda name: results["systems"][name]["value"])
    lines = []
    for name in (best, BASE):
        difference, count = results["trained less"][name], results["systems"][name]["questions"]
        lines.append(
            f"The trained model compared with {name}: {difference['outcome']}, {difference['shown']}, {count} questions, of one training."
        )
    return lines


def hardly_learned(results: Mapping[str, Any], after: Mapping[str, Any], trainer) -> list[str]:
    """A line for a model that has not learned its records, which says what to raise; none for one that has.

    results: `scores`. after: `examine` of the trained model.
    """
    stops, right = after["form"]["stops"], results["systems"][TRAINED]["value"]
    signs = []
    if stops < LEAST_STOPS:
        signs.append(f"only {stops:.0%} of its answers end by themselves")
    if FREQUENT in results["systems"]:
        frequent = results["systems"][FREQUENT]["value"]
        if right <= frequent:
            signs.append(f"{right:.0%} of its answers are right, and the most frequent answer has {frequent:.0%}")
    if not signs:
        return []
    losses = [f"{entry['eval_loss']:.3f}" for entry in trainer.state.log_history if "eval_loss" in entry]
    plan = trainer.plan
    return [
        f"The model has hardly learned its records: {' and '.join(signs)}. Its loss on the dev records was {', '.join(losses)}. "
        f"Raise learning_rate (it was {plan.learning_rate:g}) or max_steps (it was {plan.max_steps}), or add records."
    ]


def ask(trainer, template, records: Records, question: str) -> str:
    """The model's whole turn, reasoning included, with the system text that most records have."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": ""}]
    if system_text(records):
        messages.insert(0, {"role": "system", "content": system_text(records)})
    with trainer.compute_loss_context_manager():
        length = answer_length(template, records.splits["test"])
        return generate(trainer.model, template, [Record("", tuple(messages))], max_new_tokens=length)[0].text.strip()


def system_text(records: Records) -> str:
    """The system text that most training records have, or ""."""
    return mode(record.system for record in records.splits["train"])
