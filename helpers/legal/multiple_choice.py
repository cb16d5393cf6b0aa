"""Accuracy on labelled legal questions: which of a task's labels the model finds likeliest, and baselines."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .correctness import rate
from .evaluation import row_nats
from .files import as_text, read_rows
from .generation import generate
from .layout import IGNORED, SECTIONS, Layout

if TYPE_CHECKING:
    from transformers import PreTrainedModel

SUFFIXES = (".tsv", ".jsonl")
_SPLIT_NAMES = ("train", "test", "validation", "dev")  # LegalBench keeps tasks/<task>/test.tsv
ANSWER = f"### {SECTIONS['answer']}:\n"


@dataclass(frozen=True)
class Question:
    """One text to label."""

    task: str
    text: str
    answer: str  # one of labels
    labels: tuple[str, ...]  # all of the task's, in alphabetical order
    line: int  # of the file


@dataclass(frozen=True)
class Questions:
    questions: tuple[Question, ...]
    set_aside: tuple[str, ...]  # tasks with a single label, which leave nothing to choose


def load_questions(path: str | Path) -> Questions:
    """Labelled questions in the style of LegalBench (Guha et al. 2023, arXiv 2308.11462).

    path: .tsv with a header, or .jsonl; columns `answer` and `text`. A JSONL row may hold an object `inputs` instead of
        `text`: all its fields are written as "name: value". The column `task` parts tasks; without it the file is one,
        named after it or (train.tsv, test.tsv) its folder. The labels of a task are all answers that occur in it (case
        does not count).

    Raises FileNotFoundError, and ValueError with file and line: another suffix, no row, an empty or missing field, a row
    that cannot be parsed, no task with more than one label.
    """
    path = Path(path).expanduser()
    own_name = path.parent.name if path.stem in _SPLIT_NAMES else path.stem
    tasks: dict[str, list[Question]] = {}
    for line, values in read_rows("path", path, SUFFIXES):
        where = f"path={str(path)!r}: line {line}"
        task = _field(where, {"task": own_name} | values, "task")
        inputs = values.get("inputs")
        if isinstance(inputs, dict) and inputs:
            text = "\n".join(f"{name}: {_field(where, inputs, name)}" for name in inputs)
        else:
            text = _field(where, values, "text")
        tasks.setdefault(task, []).append(Question(task, text, _field(where, values, "answer"), (), line))
    labels: dict[str, dict[str, str]] = {}  # of each task, as they are written first, by their case-folded form
    for task, questions in tasks.items():
        labels[task] = {each.answer.casefold(): each.answer for each in reversed(questions)}
    asked = [
        replace(each, answer=labels[task][each.answer.casefold()], labels=tuple(sorted(labels[task].values())))
        for task, questions in tasks.items()
        for each in questions
        if len(labels[task]) > 1
    ]
    if not asked:
        raise ValueError(
            f"path={str(path)!r}: no task has answers of more than one kind, so there is nothing to choose"
        )
    return Questions(tuple(asked), tuple(task for task in tasks if len(labels[task]) == 1))


def _field(where: str, values: Mapping[str, Any], column: str) -> str:
    text = as_text(where, column, values.get(column)).strip()
    if not text:
        raise ValueError(f"{where}: `{column}` is missing or empty; fields found: {', '.join(map(str, values))}")
    return text


# ---- asking


@dataclass(frozen=True)
class Scored:
    """A question and what the model makes of each of its labels."""

    question: Question
    nats: tuple[float, ...]  # negative log-likelihood of each label
    cut: bool  # the text did not fit whole

    @property
    def plain(self) -> str:
        """The likeliest label."""
        return min(zip(self.nats, self.question.labels, strict=True))[1]

    @property
    def normalised(self) -> str:
        """The label likeliest by byte of UTF-8, so that a long one is not at a loss (Gao et al. 2021, "acc_norm")."""
        return min(
            (nats / len(label.encode()), label) for nats, label in zip(self.nats, self.question.labels, strict=True)
        )[1]


def prompt_text(question: Question) -> str:
    """What is asked: the task's name, then the text, then the labels to choose from."""
    return f"Task: {question.task.replace('_', ' ')}\n\n{question.text}\n\nAnswer with one of: {'; '.join(question.labels)}"


def score_labels(
    model: PreTrainedModel,
    layout: Layout,
    questions: Sequence[Question],
    *,
    max_length: int,
    batch_size: int = 8,
    reasoning_tokens: int = 0,
) -> list[Scored]:
    """Log-likelihood of every label of every question, one forward pass an option, in batches.

    The prompt is the layout's own; the label stands at the beginning of the section `### Answer:`. With
    `reasoning_tokens` the model first writes up to that many (greedily), and the answer follows its reasoning; without,
    it answers directly.

    max_length: tokens of prompt and label; a text that does not fit loses its end. Raises ValueError where even without
        its text a question does not fit.
    """
    contexts = [_prompt_ids(layout, question, max_length) for question in questions]
    tails = [ANSWER] * len(questions)
    if reasoning_tokens:
        written = generate(
            model,
            layout.tokenizer,
            [ids for ids, _ in contexts],
            max_new_tokens=reasoning_tokens,
            stop_token_ids=layout.stop_token_ids,
            batch_size=batch_size,
        )
        tails = [f"{_before_answer(text.text)}{ANSWER}" for text in written]
    rows = [
        row
        for question, (ids, _), tail in zip(questions, contexts, tails, strict=True)
        for row in _rows(layout, question, ids, tail)
    ]
    nats = iter(row_nats(model, rows, batch_size=batch_size))
    return [
        Scored(question, tuple(next(nats)[0] for _ in question.labels), cut)
        for question, (_, cut) in zip(questions, contexts, strict=True)
    ]


def _before_answer(text: str) -> str:
    """What was written before the answer, with room after it."""
    reasoning, *_ = re.split(r"^[ \t]*#{1,6}[ \t]*Answer\b", text, maxsplit=1, flags=re.MULTILINE | re.IGNORECASE)
    reasoning = reasoning.strip()
    return f"{reasoning}\n\n" if reasoning else ""


def _rows(layout: Layout, question: Question, context: list[int], tail: str) -> list[dict[str, list[int]]]:
    """A row an option. What is scored begins where the options part, so that each is scored on the same condition."""
    encode = layout.tokenizer
    options = [encode(tail + label, add_special_tokens=False)["input_ids"] for label in question.labels]
    before = len(encode(tail, add_special_tokens=False)["input_ids"])
    shared = itertools.takewhile(lambda tokens: len({*tokens}) == 1, zip(*options, strict=False))
    start = len(context) + min(before, len([*shared]))
    return [{"input_ids": context + ids, "labels": [IGNORED] * start + (context + ids)[start:]} for ids in options]


def _prompt_ids(layout: Layout, question: Question, max_length: int) -> tuple[list[int], bool]:
    """Prompt ids that leave room for the answer, and whether the text had to be cut."""
    tails = layout.tokenizer([ANSWER + label for label in question.labels], add_special_tokens=False)["input_ids"]
    room = max_length - max(map(len, tails))
    kept = question
    while len(ids := layout.prompt_ids([prompt_text(kept)])[0]) > room:
        if not kept.text:
            raise ValueError(
                f"max_length={max_length}: the question of line {question.line} (task {question.task!r}) needs "
                f"{len(ids) - room} tokens more for its labels alone; raise max_length"
            )
        kept = replace(kept, text=kept.text[: room - len(ids)])  # a character for each token, and most tokens hold more
    return ids, kept != question


# ---- what came out


def accuracy(scored: Sequence[Scored]) -> dict[str, Any]:
    """Accuracy by plain and by length-normalised likelihood, and what an answer without reading would reach.

    accuracy, accuracy_normalised: `rate` over all questions.
    balanced: mean over tasks of recall averaged over the labels that occur.
    baselines: uniform_chance; best_constant, each task's most frequent label, which a useful model should pass.
    tasks: questions, labels, right answers by task.
    """
    tasks: dict[str, list[Scored]] = {}
    for one in scored:
        tasks.setdefault(one.question.task, []).append(one)
    answers = {task: Counter(one.question.answer for one in ones) for task, ones in tasks.items()}
    right = Counter((one.question.task, one.plain) for one in scored if one.plain == one.question.answer)
    normalised = Counter(one.question.task for one in scored if one.normalised == one.question.answer)
    return {
        "accuracy": rate(right.total(), len(scored)),
        "accuracy_normalised": rate(normalised.total(), len(scored)),
        "balanced": fmean(
            fmean(right[task, label] / count for label, count in counts.items()) for task, counts in answers.items()
        ),
        "baselines": {
            "uniform_chance": fmean(1 / len(one.question.labels) for one in scored),
            "best_constant": sum(max(counts.values()) for counts in answers.values()) / len(scored),
        },
        "cut": sum(one.cut for one in scored),
        "tasks": {
            task: {
                "questions": len(ones),
                "labels": len(ones[0].question.labels),
                "right": sum(right[task, label] for label in answers[task]),
                "right_normalised": normalised[task],
            }
            for task, ones in tasks.items()
        },
    }
