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

from .data import Record, Records, parts_of
from .generation import generate

STRENGTHS = (0.3, 3, 30, 300)  # of the linear model (sklearn's C), chosen on the validation records
SCORED = 100  # test records at most
UNTRAINED = 20  # of them are asked before training: that model seldom stops, so that an answer takes the longest time
LONGEST_ANSWER = 512  # tokens
LEAST_STOPS = 0.9  # share of answers that end by themselves: of a model that has learned where an answer ends
FREQUENT, NEAREST, WORDS = "most frequent answer", "nearest training record", "words (TF-IDF, logistic regression)"
BASE, TRAINED = "base model", "trained"
MEASURES = STOPS, RIGHT, STEPS = "stops", "answer is right", "every step is right"


def scored(records: Records) -> Sequence[Record]:
    """The test records that are scored."""
    return records.splits["test"][:SCORED]


# ---- answers that cost nothing


def baselines(records: Records, questions: Sequence[Record] = ()) -> dict[str, list[str]]:
    """What the nearest record and, for labels, the most frequent one and a linear model on words answer."""
    train = records.splits["train"]
    questions = questions or scored(records)
    answers = {NEAREST: [train[row].answer for row in nearest(train, questions)[:, 0]]}
    if records.choices:
        answers[FREQUENT] = [mode(_answers(train))] * len(questions)
        answers[WORDS] = linear_model(train, records.splits["validation"], questions)
    return answers


def nearest(train: Sequence[Record], questions: Sequence[Record]):
    """Rows of the training questions, those most like each question first, by the cosine of their words' TF-IDF: [Q, T]."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    train_TW = words.fit_transform(_questions(train))
    alike_QT = words.transform(_questions(questions)) @ train_TW.T
    return np.argsort(-alike_QT.toarray(), axis=1, kind="stable")


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


def answer_length(template, records: Iterable[Record]) -> int:
    """Tokens that an answer to one of these records may have: half more than the longest, at most LONGEST_ANSWER."""
    longest = max(len(template.encode(record.messages[-1]["content"])) for record in records)
    return min(LONGEST_ANSWER, 8 + longest * 3 // 2)


def written(model, template, questions: Sequence[Record], **options) -> list[dict[str, Any]]:
    """What the model writes for each record: its text and answer, and by MEASURES whether it stops, and is the record's word for word.

    Steps are measured of records that have some.
    """
    samples = []
    outputs = generate(model, template, questions, **options)
    for record, output in zip(questions, outputs, strict=True):
        reasoning, answer = parts_of(output.text)
        sample = {"id": record.id, "text": output.text, "answer": answer, STOPS: output.stopped}
        sample[RIGHT] = same(answer, record.answer)
        if record.reasoning:
            sample[STEPS] = same(reasoning, record.reasoning)
        samples.append(sample)
    return samples


def same(text: str, other: str) -> bool:
    """Whether two texts are equal but for case, white space and a full stop at the end."""
    plain, other_plain = (" ".join(each.casefold().split()).rstrip(".") for each in (text, other))
    return plain == other_plain


def form(samples: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The shares of written turns of which each of MEASURES is true."""
    shares = {}
    for measure in MEASURES:
        values = [sample[measure] for sample in samples if measure in sample]
        if values:
            shares[measure] = float(np.mean(values))
    return shares


# ---- scores


def scores(systems: Mapping[str, Sequence[Sequence[str]]], questions: Sequence[Record]) -> dict[str, Any]:
    """The share of right answers of each system, and the difference of the trained one to it, with intervals over documents.

    systems: by name the answers to `questions` or to the first of them, one list a seed; values are means over seeds.
        Differences are paired.
    """
    groups = [record.group or f"question {number}" for number, record in enumerate(questions)]
    right = {}
    for name, seeds in systems.items():
        by_seed = []
        for answers in seeds:
            pairs = zip(answers, _answers(questions), strict=False)
            by_seed.append([same(answer, expected) for answer, expected in pairs])
        right[name] = np.mean(by_seed, axis=0)
    results: dict[str, Any] = {"questions": len(questions), "groups": len({*groups}), "systems": {}, "trained less": {}}
    for name, right_Q in right.items():
        count = len(right_Q)
        share = wilson(float(right_Q.mean()), len({*groups[:count]}))
        results["systems"][name] = _values(share) | {"questions": count}
        if name != TRAINED and TRAINED in right:
            difference = bootstrap(np.mean, right[TRAINED][:count] - right_Q, groups=groups[:count])
            shown = {"outcome": difference.outcome, "shown": str(difference)}
            results["trained less"][name] = _values(difference) | shown
    return results


def _values(interval: Interval) -> dict[str, float | None]:
    """Value and bounds, which are None over too few questions."""
    if math.isinf(interval.low):
        return {"value": interval.value, "low": None, "high": None}
    return {"value": interval.value, "low": interval.low, "high": interval.high}


# ---- one model, asked everything; and what is shown


def examine(trainer, template, records: Records, rows, *, count: int = SCORED) -> dict[str, Any]:
    """What a model makes of the test records: the loss of their own texts, and what it writes for the first `count` of them.

    rows: of the test records (`training.encode`).
    """
    questions = scored(records)[:count]
    completion = trainer.completion_loss(rows)
    length = answer_length(template, questions)
    say(f"the model answers {len(questions)} test questions, with at most {length} tokens each")
    with trainer.compute_loss_context_manager():
        samples = written(trainer.model, template, questions, max_new_tokens=length)
    answers = [sample["answer"] for sample in samples]
    return {"completion": completion, "answers": answers, "samples": samples, "form": form(samples)}


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
        completion = results["completion"]
        row = {"model": name, "loss": round(completion["loss"], 3), "perplexity": round(completion["perplexity"], 2)}
        rows.append(row | {measure: f"{share:.0%}" for measure, share in results["form"].items()})
    return rows


def verdict(results: Mapping[str, Any]) -> list[str]:
    """A sentence for the base model and for the best method that costs nothing: better, worse, or no significant difference."""
    systems, lines = results["systems"], []
    free = [name for name in systems if name not in (BASE, TRAINED)]
    best = max(free, key=lambda name: systems[name]["value"])
    for name in (best, BASE):
        less, count = results["trained less"][name], systems[name]["questions"]
        lines.append(
            f"The trained model compared with {name}: {less['outcome']}, {less['shown']}, {count} questions, of one training."
        )
    return lines


def hardly_learned(results: Mapping[str, Any], after: Mapping[str, Any], trainer) -> list[str]:
    """A line for a model that has not learned its records, which says what to raise; none for one that has.

    results: `scores`. after: `examine` of the trained model.
    """
    stops, right = after["form"][STOPS], results["systems"][TRAINED]["value"]
    frequent = results["systems"].get(FREQUENT, {"value": -1})["value"]
    if stops >= LEAST_STOPS and right > frequent:
        return []
    signs = f"{stops:.0%} of its answers end by themselves, {right:.0%} are right"
    if frequent >= 0:
        signs += f", and the most frequent answer has {frequent:.0%}"
    losses = [f"{entry['eval_loss']:.3f}" for entry in trainer.state.log_history if "eval_loss" in entry]
    return [
        f"The model has hardly learned its records: {signs}. Its loss on the dev records was {', '.join(losses)}. "
        f"Raise learning_rate (it was {trainer.plan.learning_rate:g}) or max_steps (it was {trainer.plan.max_steps}), or add records."
    ]


def ask(trainer, template, records: Records, question: str) -> str:
    """The model's whole turn, reasoning included, with the system text that most records have."""
    messages = [{"role": "user", "content": question}, {"role": "assistant", "content": ""}]
    system = system_text(records)
    if system:
        messages.insert(0, {"role": "system", "content": system})
    length = answer_length(template, records.splits["test"])
    with trainer.compute_loss_context_manager():
        (output,) = generate(trainer.model, template, [Record("", tuple(messages))], max_new_tokens=length)
    return output.text.strip()


def system_text(records: Records) -> str:
    """The system text that most training records have, or ""."""
    firsts = [record.messages[0] for record in records.splits["train"]]
    return mode(first["content"] if first["role"] == "system" else "" for first in firsts)
