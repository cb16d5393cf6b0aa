"""How good the answers are, beside what costs nothing: labels by likelihood and as written, gold reasoning, form, stops.

# Q questions · T training records · W words · C choices · G groups (documents, or single questions)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from .data import Record, Records, heading, section_of
from .generation import BATCH, CACHE, continued, generate, log_probabilities

RESAMPLES = 1_000
EXAMPLES = 3  # solved ones before a question of the base model
STRENGTHS = (0.3, 3, 30, 300)  # of the linear model (sklearn's C), chosen on the validation records
MOST_LABELLED, MOST_WRITTEN = 500, 40  # test records that are asked by likelihood, and written in full
LONGEST_ANSWER = 512  # tokens
FREQUENT, NEAREST, WORDS = "most frequent answer", "nearest training record", "words (TF-IDF, logistic regression)"


# ---- answers that cost nothing


def baselines(records: Records) -> dict[str, list[str]]:
    """What the most frequent label, the nearest record and a linear model on words answer to the labelled test questions."""
    train, asked = records.splits["train"], records.splits["test"][:MOST_LABELLED]
    frequent = Counter(each.answer for each in train).most_common(1)[0][0]
    return {
        FREQUENT: [frequent] * len(asked),
        NEAREST: [train[row].answer for row in nearest(train, asked)[:, 0]],
        WORDS: linear_model(train, records.splits["validation"], asked),
    }


def nearest(train: Sequence[Record], asked: Sequence[Record], count: int = 1):
    """Rows of the `count` training questions most like each one, by the cosine of their words' TF-IDF: [Q, count]."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    words = TfidfVectorizer(token_pattern=r"\w+", sublinear_tf=True)
    known_TW = words.fit_transform([each.question for each in train])
    alike_QT = words.transform([each.question for each in asked]) @ known_TW.T
    return np.argsort(-alike_QT.toarray(), axis=1, kind="stable")[:, :count]


def linear_model(train: Sequence[Record], validation: Sequence[Record], asked: Sequence[Record]) -> list[str]:
    """Logistic regression on the TF-IDF of words, word pairs and letters: the strength and the weights of the labels are those
    with the best macro F1 on the validation records.
    """
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.metrics import f1_score
    from sklearn.pipeline import make_union

    words = TfidfVectorizer(token_pattern=r"\w+", ngram_range=(1, 2), sublinear_tf=True)
    letters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), sublinear_tf=True, min_df=2)
    features = make_union(words, letters).fit([each.question for each in train])
    (known, labels), (held, gold), (new, _) = (
        (features.transform([each.question for each in part]), [each.answer for each in part])
        for part in (train, validation, asked)
    )
    models = [
        LogisticRegression(C=strength, class_weight=weights, max_iter=1000).fit(known, labels)
        for strength in STRENGTHS
        for weights in (None, "balanced")
    ]
    return max(models, key=lambda model: f1_score(gold, model.predict(held), average="macro")).predict(new).tolist()


# ---- asking the model


def by_likelihood(model, template, asked: Sequence[Record], choices: Sequence[str]) -> list[str]:
    """The label to which the model gives the highest probability, the end of its turn included.

    For a record with sections only the answer is asked: its heading stands before the label.
    """
    prompts = [template.prompt(each) + ("### Answer:\n" if each.sections else "") for each in asked]
    log_p_QC = log_probabilities(model, template, prompts, choices)
    return [choices[best] for best in log_p_QC.argmax(1)]


def with_examples(train: Sequence[Record], asked: Sequence[Record], count: int = EXAMPLES) -> list[Record]:
    """The questions with the `count` nearest training records, solved, as turns before them; the nearest stands last."""
    solved = []
    for record, rows in zip(asked, nearest(train, asked, count), strict=True):
        turns = [each for row in reversed(rows) for each in train[row].messages if each["role"] != "system"]
        first = [each for each in record.messages if each["role"] == "system"]
        solved.append(replace(record, messages=(*first, *turns, *record.messages[len(first) :])))
    return solved


def answer_length(template, records: Sequence[Record]) -> int:
    """Tokens that an answer to one of these records may have."""
    return most_tokens(len(template.encode(str(each.messages[-1].get("content", "")))) for each in records)


def most_tokens(lengths: Iterable[int]) -> int:
    """A half more than the longest, at most LONGEST_ANSWER."""
    return min(LONGEST_ANSWER, 8 + max(lengths) * 3 // 2)


def written(model, template, asked: Sequence[Record], **options) -> list[dict[str, Any]]:
    """What the model writes for each record: text, answer (its section, where the record has sections), stops, format."""
    found = []
    for record, each in zip(asked, generate(model, template, asked, **options), strict=True):
        answer = section_of(each.text) if record.sections else each.text.strip()
        places = [each.text.find(f"### {heading(name)}:") for name in record.sections]
        in_order = -1 not in places and places == sorted(places)
        found.append({"id": record.id, "text": each.text, "answer": answer, "stops": each.stopped, "format": in_order})
    return found


# ---- scores


def accuracy(gold_Q, said_Q) -> float:
    return float((gold_Q == said_Q).mean())


def macro_f1(gold_Q, said_Q) -> float:
    """The mean of F1 over the labels that occur among the questions."""
    labels = np.unique(gold_Q)
    hits = [((gold_Q == label) & (said_Q == label)).sum() for label in labels]
    both = [(gold_Q == label).sum() + (said_Q == label).sum() for label in labels]
    return float(np.mean(2 * np.array(hits) / both))


def interval(values) -> dict[str, float]:
    """The first of the values, and the interval that holds the middle 95 % of the others, which are its resamples."""
    low, high = np.quantile(values[1:], (0.025, 0.975))
    return {"value": float(values[0]), "low": float(low), "high": float(high)}


def scores(systems: Mapping[str, Sequence[str]], trained: Sequence[Sequence[str]], records: Records) -> dict[str, Any]:
    """Accuracy and macro F1 of each system's answers to the test questions, with intervals over documents or questions.

    trained: the answers of the trained model, one list a seed; its values are means over seeds. `trained less` has the
    difference to each other system, on the same draws of questions. "gold" are the records' own answers.
    """
    asked = records.splits["test"][:MOST_LABELLED]
    gold_Q, groups = np.array([_plain(each.answer) for each in asked]), {}
    for number, each in enumerate(asked):
        groups.setdefault(each.group or f"question {number}", []).append(number)
    rows_GQ, G, generator = [*groups.values()], len(groups), np.random.default_rng(0)
    draws = [np.concatenate([rows_GQ[group] for group in generator.integers(G, size=G)]) for _ in range(RESAMPLES)]

    def drawn(answers: Sequence[str], measure):
        said_Q = np.array([_plain(each) for each in answers])
        return np.array([measure(gold_Q[rows], said_Q[rows]) for rows in (slice(None), *draws)])

    runs = {name: [answers] for name, answers in systems.items()} | {"gold": [gold_Q]} | {"trained": trained}
    found: dict[str, Any] = {"questions": len(asked), "groups": G, "systems": {}, "trained less": {}}
    for measure in (accuracy, macro_f1):
        values = {
            name: np.mean([drawn(each, measure) for each in seeds], axis=0) for name, seeds in runs.items() if seeds
        }
        for name, each in values.items():
            found["systems"].setdefault(name, {})[measure.__name__] = interval(each)
            if trained and name != "trained":
                difference = interval(values["trained"] - each)
                found["trained less"].setdefault(name, {})[measure.__name__] = difference
    return found


def form(samples: Sequence[Mapping[str, Any]], asked: Sequence[Record]) -> dict[str, float]:
    """The shares of written answers that stop by themselves, have the record's sections, and match its answer word for word."""
    shares = {"stops": [each["stops"] for each in samples]}
    if any(record.sections for record in asked):
        shares["format"] = [each["format"] for each in samples]
    shares["exact match"] = [
        _plain(each["answer"]) == _plain(record.answer) for each, record in zip(samples, asked, strict=True)
    ]
    return {name: float(np.mean(values)) for name, values in shares.items()} | {"of": len(samples)}


def _plain(text: str) -> str:
    return " ".join(text.casefold().split()).rstrip(".")


# ---- one model, asked everything; and what is shown


def ask_the_most(model, prompt: int, answer: int, choices: tuple[int, int] = (0, 0)) -> None:
    """The largest questions of `examine` and of lm-evaluation-harness, on tokens without a meaning, for the planner.

    prompt, answer: tokens of the longest. choices: how many labels, and tokens of the longest.
    """

    def ids(batch: int, tokens: int) -> torch.Tensor:
        return torch.zeros(batch, tokens, dtype=torch.long)

    texts = ids(BATCH, prompt)
    padded = {"attention_mask": torch.ones_like(texts), "position_ids": texts}  # each text begins at a place of its own
    cache = model(texts, **padded, use_cache=True, logits_to_keep=1)[CACHE]
    for at, layer in enumerate(cache.layers):  # as if all tokens of the answer but one were written
        if hasattr(layer, "keys"):  # linear attention has a state of one size
            token = layer.keys[:, :, :1].expand(-1, -1, answer - 1, -1)
            cache.update(token, token, at)
    model(ids(BATCH, 1), use_cache=True, **{CACHE: cache})
    del cache, layer
    if choices[0]:
        continued(model, ids(1, (1 + EXAMPLES) * prompt), ids(*choices))
    model(ids(1, prompt + answer), use_cache=False).logits.log_softmax(-1)  # the harness keeps every logit


def examine(trainer, template, records: Records, rows, *, examples: bool = False) -> dict[str, Any]:
    """What a model makes of the test records: the loss of their own texts, what it writes, and of labelled records the labels.

    rows: of the test records (`training.encode`). examples: ask labelled questions after solved examples, too.
    """
    model, asked = trainer.model, records.splits["test"]
    first, labelled = asked[:MOST_WRITTEN], asked[:MOST_LABELLED]
    found: dict[str, Any] = {"completion": trainer.completion_loss(rows)}
    with trainer.compute_loss_context_manager():
        found["samples"] = written(model, template, first, max_new_tokens=answer_length(template, first))
        if records.choices:
            found["labels"] = by_likelihood(model, template, labelled, records.choices)
            if examples:
                solved = with_examples(records.splits["train"], labelled)
                found["labels after examples"] = by_likelihood(model, template, solved, records.choices)
    return found | {"form": form(found["samples"], first)}


def table(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row for each system of `scores`, in percent with 95 % intervals."""
    shown = "{value:.1%} ({low:.1%} to {high:.1%})"
    return [
        {"answers": name} | {measure.replace("_", " "): shown.format(**each) for measure, each in values.items()}
        for name, values in found["systems"].items()
    ]


def written_table(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Loss and perplexity of the test records' own texts, and the form of what is written, before and after training."""
    return [
        {
            "model": name,
            "loss": round(found["completion"]["loss"], 3),
            "perplexity": round(found["completion"]["perplexity"], 2),
        }
        | {measure: f"{share:.0%}" for measure, share in found["form"].items() if measure != "of"}
        for name, found in (("base model", before), ("trained", after))
    ]


def verdict(found: Mapping[str, Any]) -> list[str]:
    """A sentence for each comparison: better, worse, or not told apart, and how sure."""
    lines = []
    for name in (WORDS, "base model"):
        each = found["trained less"][name]["accuracy"]
        said = (
            "is better than" if each["low"] > 0 else "is worse than" if each["high"] < 0 else "is not told apart from"
        )
        lines.append(
            f"The trained model {said} {name}: {100 * each['value']:+.1f} points of accuracy (95 % interval "
            f"{100 * each['low']:+.1f} to {100 * each['high']:+.1f}, {found['questions']} questions in {found['groups']} groups)."
        )
    return lines


def common_system(records: Records) -> str:
    """The system text of most training records, "" where they have none."""
    return Counter(each.system for each in records.splits["train"]).most_common(1)[0][0]


def ask(trainer, template, records: Records, question: str) -> str:
    """The model's answer to a question, asked with the system text that it was trained with."""
    system = common_system(records)
    said = ([{"role": "system", "content": system}] if system else []) + [{"role": "user", "content": question}]
    record = Record("asked", messages=(*said, {"role": "assistant", "content": ""}), answer="")
    with trainer.compute_loss_context_manager():
        length = answer_length(template, records.splits["test"])
        return generate(trainer.model, template, [record], max_new_tokens=length)[0].text.strip()
