"""Accuracy on labelled legal questions: which of a task's labels the model finds likeliest, and baselines.

# Q questions · O labels of a question
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any

from .evaluation import rate, row_nats
from .files import read_rows
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
    questions: tuple[Question, ...]  # in the order of the file
    set_aside: Mapping[str, str]  # task: why none of its questions is asked
    source: str


def load_questions(
    path: str | Path,
    *,
    text_columns: Sequence[str] = ("text",),
    tasks: Collection[str] | None = None,
    labels: Mapping[str, Sequence[str]] | None = None,
) -> Questions:
    """Labelled questions in the style of LegalBench (Guha et al. 2023, arXiv 2308.11462).

    path: .tsv with a header, or .jsonl; a column `answer`, and the text in `text_columns`. A JSONL row may hold an
        object `inputs` instead: all its fields are the text. Several fields are written as "name: value". The column
        `task` parts tasks; without it the file is one, named after it or (train.tsv, test.tsv) its folder.
    tasks: only these.
    labels: the label set of a task; of the others it is every answer that occurs in it (case does not count). A task
        whose answers are open, all different, therefore becomes a choice among them; one with a single label leaves
        nothing to choose and is set aside.

    Raises FileNotFoundError, and ValueError with file and line: another suffix, no row, no such column, an empty field,
    a row that cannot be parsed, an unknown task, no task with more than one label, an answer that is not of its labels.
    """
    path = Path(path).expanduser()
    rows = read_rows("path", path, SUFFIXES)
    if not rows:
        raise ValueError(f"path={str(path)!r}: line 1: no row; the file is empty or has only a header")
    own_name = path.parent.name if path.stem in _SPLIT_NAMES else path.stem
    found: dict[str, list[Question]] = {}
    for line, values in rows:
        where = f"path={str(path)!r}: line {line}"
        task = _field(where, values, "task") if "task" in values else own_name
        text, answer = _text(where, values, text_columns), _field(where, values, "answer")
        if tasks is None or task in tasks:
            found.setdefault(task, []).append(Question(task, text, answer, (), line))
    if missing := sorted(({*(tasks or ())} | {*(labels or {})}) - found.keys()):
        raise ValueError(f"path={str(path)!r}: line {rows[-1][0]}: read to the end and found no task {missing[0]!r}")
    asked, set_aside = [], {}
    for task, questions in found.items():
        names = _label_set(path, questions, (labels or {}).get(task))
        if len(names) == 1:
            set_aside[task] = f"all {len(questions)} rows have the answer {questions[0].answer!r}"
            continue
        choices = tuple(sorted(names.values()))
        asked += [replace(each, answer=names[each.answer.casefold()], labels=choices) for each in questions]
    if not asked:
        task, reason = next(iter(set_aside.items()))
        raise ValueError(
            f"path={str(path)!r}: line {found[task][0].line}: every task has a single label, such as {task!r}: {reason}, so "
            f"there is nothing to choose. Give labels={{{task!r}: [...]}}"
        )
    return Questions(
        tuple(sorted(asked, key=lambda question: question.line)),
        set_aside,
        f"{path.name}, {len(asked):,} questions of {len(found) - len(set_aside):,} tasks",
    )


def _field(where: str, values: Mapping[str, Any], column: str) -> str:
    if column not in values:
        raise ValueError(f"{where}: no column `{column}`; columns found: {', '.join(map(str, values))}")
    value = values[column]
    if not isinstance(value, str | int | float | None):
        raise ValueError(f"{where}: `{column}` holds a {type(value).__name__}, not text")
    text = "" if value is None else str(value).strip()
    if not text:
        raise ValueError(f"{where}: `{column}` is empty; fill it or remove the row")
    return text


def _text(where: str, values: Mapping[str, Any], columns: Sequence[str]) -> str:
    inputs = values.get("inputs")
    if isinstance(inputs, dict) and inputs:
        values, columns = inputs, tuple(inputs)
    if len(columns) == 1:
        return _field(where, values, columns[0])
    return "\n".join(f"{column}: {_field(where, values, column)}" for column in columns)


def _label_set(path: Path, questions: Sequence[Question], given: Sequence[str] | None) -> dict[str, str]:
    """The task's labels as they are to be written, by their case-folded form."""
    names: dict[str, str] = {}
    for label in given or [question.answer for question in questions]:
        names.setdefault(str(label).strip().casefold(), str(label).strip())
    for question in questions:
        if question.answer.casefold() not in names:
            raise ValueError(
                f"path={str(path)!r}: line {question.line}: the answer {question.answer!r} is not one of labels of "
                f"task {question.task!r} ({', '.join(names.values())})"
            )
    return names


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
        return self._least(self.nats)

    @property
    def normalised(self) -> str:
        """The label likeliest by byte of UTF-8, so that a long one is not at a loss (Gao et al. 2021, "acc_norm")."""
        sizes = [len(label.encode()) for label in self.question.labels]
        return self._least([nats / size for nats, size in zip(self.nats, sizes, strict=True)])

    def _least(self, scores: Sequence[float]) -> str:
        return self.question.labels[min(range(len(scores)), key=scores.__getitem__)]


def prompt_text(question: Question, instructions: Mapping[str, str] | None = None) -> str:
    """What is asked: the task's instruction, or its name, then the text, then the labels to choose from."""
    instruction = (instructions or {}).get(question.task) or f"Task: {question.task.replace('_', ' ')}"
    return f"{instruction}\n\n{question.text}\n\nAnswer with one of: {'; '.join(question.labels)}"


def score_labels(
    model: PreTrainedModel,
    layout: Layout,
    questions: Sequence[Question],
    *,
    max_length: int,
    batch_size: int = 8,
    instructions: Mapping[str, str] | None = None,
    reasoning_tokens: int = 0,
) -> list[Scored]:
    """Log-likelihood of every label of every question, one forward pass an option, in batches.

    The prompt is the layout's own; the label stands at the beginning of the section `### Answer:`. With
    `reasoning_tokens` the model first writes up to that many (greedily), and the answer follows its reasoning; without,
    it answers directly. The text of a question that does not fit into `max_length` loses its end.

    instructions: what to do, by task. Raises ValueError where even without its text a question does not fit.
    """
    fitted = [_fitted(layout, question, max_length - reasoning_tokens, instructions) for question in questions]
    contexts = [ids for ids, _ in fitted]
    tails = [ANSWER] * len(questions)
    if reasoning_tokens:
        written = generate(
            model,
            layout.tokenizer,
            contexts,
            max_new_tokens=reasoning_tokens,
            stop_token_ids=layout.stop_token_ids,
            batch_size=batch_size,
        )
        tails = [f"{_before_answer(text.text)}{ANSWER}" for text in written]
    rows = [
        row
        for question, context, tail in zip(questions, contexts, tails, strict=True)
        for row in _rows(layout, question, context, tail)
    ]
    nats = iter(row_nats(model, rows, batch_size=batch_size))
    return [
        Scored(question, tuple(next(nats)[0] for _ in question.labels), cut)
        for question, (_, cut) in zip(questions, fitted, strict=True)
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


def _fitted(
    layout: Layout, question: Question, max_length: int, instructions: Mapping[str, str] | None
) -> tuple[list[int], bool]:
    """Prompt ids that leave room for the answer, and whether the text had to be cut."""
    tokenizer = layout.tokenizer
    tails = tokenizer([ANSWER + label for label in question.labels], add_special_tokens=False)["input_ids"]
    room = max_length - max(map(len, tails))
    text = tokenizer(question.text, add_special_tokens=False, verbose=False)["input_ids"]
    kept, ids = len(text), layout.prompt_ids([prompt_text(question, instructions)])[0]
    while len(ids) > room and kept > 0:
        kept = max(0, kept - (len(ids) - room))
        shorter = replace(question, text=tokenizer.decode(text[:kept]))
        ids = layout.prompt_ids([prompt_text(shorter, instructions)])[0]
    if len(ids) > room:
        raise ValueError(
            f"max_length={max_length}: the question of line {question.line} (task {question.task!r}) needs "
            f"{len(ids) - room} tokens more for its labels alone; raise max_length"
        )
    return ids, kept < len(text)


# ---- what came out


def accuracy(scored: Sequence[Scored]) -> dict[str, Any]:
    """Accuracy by plain and by length-normalised likelihood, and what an answer without reading would reach.

    accuracy, accuracy_normalised: `rate` over all questions.
    macro, balanced (and _normalised): mean over tasks of accuracy, and of recall averaged over the labels that occur.
    baselines: uniform_chance; majority_of_others, the label most frequent in the rest of the task (ties share), which
        in a balanced task is always the wrong one; best_constant, each task's most frequent label, which nobody can
        know beforehand and a useful model should pass.
    tasks: questions, labels, right answers by task.
    """
    by_task: dict[str, list[Scored]] = {}
    for one in scored:
        by_task.setdefault(one.question.task, []).append(one)
    results: dict[str, Any] = {}
    for name, choice in (("", "plain"), ("_normalised", "normalised")):
        hits = {t: [getattr(s, choice) == s.question.answer for s in ones] for t, ones in by_task.items()}
        results[f"accuracy{name}"] = rate(sum(map(sum, hits.values())), len(scored))
        results[f"macro{name}"] = fmean(map(fmean, hits.values()))
        results[f"balanced{name}"] = fmean(_balanced(ones, hits[t]) for t, ones in by_task.items())
    counts = {task: Counter(one.question.answer for one in ones) for task, ones in by_task.items()}
    results["baselines"] = {
        "uniform_chance": fmean(1 / len(one.question.labels) for one in scored),
        "majority_of_others": fmean(_majority_of_others(one.question, counts) for one in scored),
        "best_constant": sum(max(count.values()) for count in counts.values()) / len(scored),
    }
    results["cut"] = sum(one.cut for one in scored)
    results["tasks"] = {
        task: {
            "questions": len(ones),
            "labels": len(ones[0].question.labels),
            "right": sum(one.plain == one.question.answer for one in ones),
            "right_normalised": sum(one.normalised == one.question.answer for one in ones),
        }
        for task, ones in by_task.items()
    }
    return results


def _balanced(ones: Sequence[Scored], hits: Sequence[bool]) -> float:
    by_label: dict[str, list[bool]] = {}
    for one, hit in zip(ones, hits, strict=True):
        by_label.setdefault(one.question.answer, []).append(hit)
    return fmean(fmean(found) for found in by_label.values())


def _majority_of_others(question: Question, counts: Mapping[str, Counter[str]]) -> float:
    others = {label: counts[question.task][label] - (label == question.answer) for label in question.labels}
    most = max(others.values())
    likeliest = [label for label, count in others.items() if count == most]
    return (question.answer in likeliest) / len(likeliest)
