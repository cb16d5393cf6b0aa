"""How good the whole last turn is, beside what costs nothing: its answer or tool calls, its reasoning, and whether it stops.

# Q questions · T training records · C choices
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import mode
from typing import Any

import numpy as np

from helpers.show.intervals import Interval, bootstrap, wilson

from .data import Message, Record, Records, graded, without_system
from .generation import generate, log_probabilities

EXAMPLES = 3  # solved ones before a question of the base model
STRENGTHS = (0.3, 3, 30, 300)  # of the linear model (sklearn's C), chosen on the validation records
SCORED = 100  # test records at most
LONGEST_ANSWER = 512  # tokens
LEAST_STOPS = 0.9  # share of answers that end by themselves: of a model that has learned where an answer ends
FREQUENT, NEAREST, WORDS = "most frequent answer", "nearest training record", "words (TF-IDF, logistic regression)"
COPY, BASE, SOLVED, TRAINED = "copy of the question", "base model", "base model, solved examples", "trained"


def label_alone(records: Records) -> bool:
    """Whether the last turn is a label and nothing else, so that every label can be asked for its likelihood."""
    lasts = [record.messages[-1] for record in records.splits["train"]]
    return bool(records.choices) and all(last.keys() == {"role", "content"} for last in lasts)


def scored(records: Records) -> Sequence[Record]:
    """The test records that are scored."""
    return records.splits["test"][:SCORED]


# ---- answers that cost nothing


def baselines(records: Records, questions: Sequence[Record] = ()) -> dict[str, list[str]]:
    """What the nearest record, the question itself and, for labels, the most frequent one and a linear model on words answer."""
    train = records.splits["train"]
    questions = questions or scored(records)
    rows = nearest(train, questions)[:, 0]
    answers = {NEAREST: _answers(train[row] for row in rows)}
    answers[COPY] = [record.messages[-2]["content"] for record in questions]
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


def by_likelihood(model, template, questions: Sequence[Record], choices: Sequence[str]) -> list[str]:
    """The label to which the model gives the highest probability, the end of its turn included."""
    prompts = [template.prompt(record) for record in questions]
    log_p_QC = log_probabilities(model, template, prompts, choices)
    return [choices[best] for best in log_p_QC.argmax(1)]


def with_examples(train: Sequence[Record], questions: Sequence[Record], count: int = EXAMPLES) -> list[Record]:
    """The questions with the `count` nearest training records, solved, as turns before them; the nearest stands last."""
    solved = []
    for record, rows in zip(questions, nearest(train, questions, count), strict=True):
        turns: list[Message] = []
        for row in reversed(rows):
            turns += train[row].messages
        turns += record.messages
        solved.append(record.with_turns(without_system(turns)))
    return solved


def last_turn(template, record: Record) -> str:
    """What the model is to write, without special tokens."""
    text = template.text(record.messages, record.tools)[len(template.prompt(record)) :]
    return template.tokenizer.decode(template.encode(text), skip_special_tokens=True)


def answer_length(template, records: Sequence[Record]) -> int:
    """Tokens that an answer to one of these records may have: a half more than the longest, at most LONGEST_ANSWER."""
    longest = max(len(template.encode(last_turn(template, record))) for record in records)
    return min(LONGEST_ANSWER, 8 + longest * 3 // 2)


def written(model, template, questions: Sequence[Record], **options) -> list[dict[str, Any]]:
    """What the model writes for each record: its text and answer, whether it stops, and whether its reasoning is the record's."""
    samples = []
    outputs = generate(model, template, questions, **options)
    for record, output in zip(questions, outputs, strict=True):
        reasoning, answer = parts_of(output.text)
        expected_reasoning, expected_answer = parts_of(last_turn(template, record))
        if _plain(answer) == _plain(expected_answer):
            answer = record.answer  # however the template spells it
        same = _plain(reasoning) == _plain(expected_reasoning)
        samples.append(
            {"id": record.id, "text": output.text, "answer": answer, "stops": output.stopped, "reasoning": same}
        )
    return samples


def parts_of(turn: str) -> tuple[str, str]:
    """The reasoning of a turn, and what it says and calls as `graded` spells it."""
    reasoning, _, rest = turn.rpartition("</think>")
    calls: list[dict[str, Any]] = []
    start, decoder = rest.find("{"), json.JSONDecoder()
    content = rest
    while start >= 0:
        try:
            call, end = decoder.raw_decode(rest, start)
        except ValueError:
            call, end = {}, start + 1
        arguments = call.get("arguments", call.get("parameters"))
        if isinstance(call.get("name"), str) and arguments is not None:
            if not calls:
                content = re.sub(r"<[^<>]*>\s*$", "", rest[:start])
            calls.append({"name": call["name"], "arguments": arguments})
        start = rest.find("{", end)
    return reasoning.replace("<think>", "").strip(), graded(content, calls)


# ---- scores


def scores(systems: Mapping[str, Sequence[Sequence[str]]], questions: Sequence[Record]) -> dict[str, Any]:
    """The share of right answers of each system, and the difference of the trained one to it, with intervals over documents.

    systems: by name the answers to `questions`, one list a seed; values are means over seeds. Differences are paired and bootstrapped,
        shares have Wilson's interval for as many items as there are documents.
    """
    groups = [record.group or f"question {number}" for number, record in enumerate(questions)]
    right = {}
    for name, seeds in systems.items():
        right[name] = np.mean([_right(answers, questions) for answers in seeds], axis=0)
    results: dict[str, Any] = {"questions": len(questions), "groups": len({*groups}), "systems": {}, "trained less": {}}
    for name, right_Q in right.items():
        results["systems"][name] = _values(wilson(float(right_Q.mean()), results["groups"]))
        if name != TRAINED and TRAINED in right:
            difference = bootstrap(np.mean, right[TRAINED] - right_Q, groups=groups)
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
    answers, stops, steps = [], [], []
    for sample, record in zip(samples, questions, strict=True):
        answers.append(sample["answer"])
        stops.append(sample["stops"])
        if record.reasoning:
            steps.append(sample["reasoning"])
    shares = {"stops": stops, "answer is right": _right(answers, questions)}
    if steps:
        shares["every step is right"] = steps
    return {name: float(np.mean(values)) for name, values in shares.items()}


def _right(answers: Sequence[str], questions: Sequence[Record]) -> list[bool]:
    pairs = zip(answers, _answers(questions), strict=True)
    return [_plain(answer) == _plain(expected) for answer, expected in pairs]


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


# ---- one model, asked everything; and what is shown


def examine(trainer, template, records: Records, rows, *, examples: bool = False) -> dict[str, Any]:
    """What a model makes of the test records: the loss of their own texts, what it writes, and its answers.

    rows: of the test records (`training.encode`). examples: ask for labels after solved examples, too.
    """
    model, questions = trainer.model, scored(records)
    results = {"completion": trainer.completion_loss(rows)}
    with trainer.compute_loss_context_manager():
        samples = written(model, template, questions, max_new_tokens=answer_length(template, questions))
        results["answers"] = [sample["answer"] for sample in samples]
        if label_alone(records):
            results["answers"] = by_likelihood(model, template, questions, records.choices)
            if examples:
                solved = with_examples(records.splits["train"], questions)
                results["after examples"] = by_likelihood(model, template, solved, records.choices)
    return results | {"samples": samples, "form": form(samples, questions)}


def table(results: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each system of `scores`, in percent with 95 % intervals."""
    rows = []
    for name, values in results["systems"].items():
        share = f"{values['value']:.1%} ({values['low']:.1%} to {values['high']:.1%})"
        rows.append({"answers": name, "right": share})
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
    free = [name for name in (NEAREST, COPY, FREQUENT, WORDS) if name in results["systems"]]
    best = max(free, key=lambda name: results["systems"][name]["value"])
    questions = f"{results['questions']} questions in {results['groups']} groups, of one training"
    lines = []
    for name in (best, BASE):
        difference = results["trained less"][name]
        lines.append(
            f"The trained model compared with {name}: {difference['outcome']}, {difference['shown']}, {questions}."
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


def common(records: Records) -> Record:
    """A training record with the system text and the tools of most."""
    kinds = [(record.system, str(record.tools)) for record in records.splits["train"]]
    return records.splits["train"][kinds.index(mode(kinds))]


def ask(trainer, template, records: Records, question: str) -> str:
    """The model's whole turn, reasoning and tool calls included, with the system text and the tools that it was trained with."""
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": ""})
    record = common(records).with_turns(turns)
    with trainer.compute_loss_context_manager():
        length = answer_length(template, records.splits["test"])
        return generate(trainer.model, template, [record], max_new_tokens=length)[0].text.strip()
