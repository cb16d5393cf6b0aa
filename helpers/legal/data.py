"""Records from a file, a folder or the hub as conversations, which TRL takes as `prompt` and `completion`; and the splits.

# R records · S shingles
"""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.data.data_source import DataSource, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable, number_rows

from .sample import sample_records

HELD_OUT_SHARE = 0.1  # to validate, and as many to test, where the source has no splits
# Jaccard index of 5-character shingles; on real questions 0.5 to 0.6 is a reworded or extended question.
NEAR_DUPLICATE = 0.5
SHINGLE, COMMON = 5, 0.05  # a shingle in more than this share of the records belongs to an instruction that they share
MOST_CHOICES, ROWS_A_CHOICE = 30, 5  # labelled records have few answers, each many times
FEWEST = 10  # records: one to test, one to validate, the others to train

# Columns, in any case; a question is what all of its columns hold, in this order
CONVERSATIONS = ("messages", "conversations")
QUESTIONS = ("instruction", "context", "input", "text", "question", "prompt")
ANSWERS = ("answer", "completion", "response", "output", "label")
REASONING = ("reasoning", "reasoning_content", "rationale", "cot")  # also keys of a message
GROUPS = ("document", "doc_id", "group")
COLUMNS = {"id", "system", *CONVERSATIONS, *QUESTIONS, *ANSWERS, *REASONING, *GROUPS}
ROLES = {"human": "user", "gpt": "assistant", "developer": "system"}  # of ShareGPT and OpenAI
CALLS = {"tool_calls", "function_call", "tool", "function", "observation"}  # keys and roles of a message
FORMS = (
    "`messages` (or ShareGPT's `conversations`), or a question (`question`, `instruction`, `prompt` or `text`) and an answer "
    "(`answer`, `completion`, `response`, `output` or `label`)"
)
Message = dict[str, str]


@dataclass(frozen=True)
class Record:
    """One conversation whose assistant turns are learned."""

    id: str
    messages: tuple[Message, ...]  # `role`, `content` and perhaps `reasoning_content`; the last is the assistant's
    group: str = ""  # document that the record belongs to
    first_learned: int = 0  # messages before this one are a prompt

    @property
    def question(self) -> str:
        """What is asked, with what was said before it, without the system's text."""
        return "\n".join(message["content"] for message in self.messages[:-1] if message["role"] != "system")

    @property
    def system(self) -> str:
        first = self.messages[0]
        return first["content"] if first["role"] == "system" else ""

    @property
    def answer(self) -> str:
        return self.messages[-1]["content"]

    @property
    def reasoning(self) -> str:
        return self.messages[-1].get("reasoning_content", "")

    @property
    def learned_turns(self) -> list[int]:
        """Places of the assistant's messages that are learned."""
        turns = range(self.first_learned, len(self.messages))
        return [turn for turn in turns if self.messages[turn]["role"] == "assistant"]


@dataclass(frozen=True)
class Records(DataSource):
    """The records of a source by split, and what became of the others."""

    splits: dict[str, list[Record]]  # train, validation, test
    choices: tuple[str, ...] = ()  # the labels of labelled records
    set_aside: list[tuple[str, str]] = field(default_factory=list)  # row and reason of each
    unused: tuple[str, ...] = ()  # columns

    def rows(self) -> list[dict[str, Any]]:
        """What there is, what was set aside for which reason and what is not used, for a table."""
        lines = [{"records": name, "number": len(records), "detail": ""} for name, records in self.splits.items()]
        first = {reason: row for row, reason in reversed(self.set_aside)}
        for reason, count in Counter(reason for _, reason in self.set_aside).most_common():
            lines.append({"records": "set aside", "number": count, "detail": f"{reason} (first: {first[reason]})"})
        for name, values in (("columns that are not used", self.unused), ("labels", self.choices)):
            if values:
                lines.append({"records": name, "number": len(values), "detail": ", ".join(values)})
        return lines


def load_records(data_source: str, *, seed: int) -> Records:
    """The records of `data_source`, each checked, split and counted.

    data_source: "sample"; a .jsonl, .json, .csv (`,` `;` or tab), .tsv or .parquet file; or a folder of such files or a hub id,
        whose splits train, validation and test are kept. Columns are one of `FORMS`.

    A row that cannot be read, has no question or no answer, or repeats another one is set aside with its reason. Where the
    source has no validation or test split, a tenth of its documents, or of its groups of near-duplicate questions, becomes one.

    Raises ValueError (most rows cannot be used, a file or a hub set that cannot be read, too few records) and FileNotFoundError.
    """
    place = locate(data_source)
    set_aside = SetAside(place.source)
    sources = {"train": [*number_rows(sample_records())]}
    if not place.is_sample:
        sources = read_splits(place, SUFFIXES)
    digest, columns, repeats = hashlib.sha256(), set[str](), []
    seen: set[str] = set()
    splits: dict[str, list[Record]] = {"test": [], "validation": [], "train": []}  # training loses what it repeats
    for name, records in splits.items():
        for row, record in set_aside.convert(sources.get(name, ()), lambda row: (row, record_of(row))):
            digest.update(json.dumps(row.values, default=str).encode())
            columns.update(row.values)
            conversation = json.dumps(record.messages)
            if conversation in seen:
                repeats.append((row.where, "repeats another row"))
                continue
            seen.add(conversation)
            records.append(record)
    set_aside.check()
    if len(seen) < FEWEST:
        raise ValueError(
            f"{place.source}: {len(seen)} different records can be used, at least {FEWEST} are needed; a useful model needs hundreds"
        )
    absent = [name for name in splits if not splits[name]]
    if absent and splits["train"]:
        splits |= _held_out(splits["train"], absent, seed)
    return Records(
        name=place.name,
        sha256=digest.hexdigest(),
        draw=f"seed {seed}",
        splits={name: splits[name] for name in ("train", "validation", "test")},
        choices=choices_of(splits["train"]),
        set_aside=[*set_aside.rows, *repeats],
        unused=tuple(sorted(columns - COLUMNS)),
    )


# ---- from a row to a conversation


def record_of(row: Row) -> Record:
    """The record of a row. Raises Unusable where the row has no columns of `FORMS`, or no question or answer."""
    values = {name: value for name, value in row.values.items() if value not in (None, "", [])}
    row = row._replace(values=values)

    def first(names: Sequence[str], default: Any = "") -> Any:
        return next((values[name] for name in names if name in values), default)

    prompt: list[Message] = []
    if "system" in values:
        prompt.append({"role": "system", "content": row.text("system")})
    answer = first(ANSWERS)
    questions = [name for name in QUESTIONS if name in values]
    if first(CONVERSATIONS):
        completion, first_learned = _messages(first(CONVERSATIONS)), 0
    elif not questions or answer == "":
        raise Unusable(f"no question and answer (its columns: {', '.join(values)[:500] or 'none'}). Give {FORMS}")
    else:
        if isinstance(answer, list):  # TRL's conversational columns
            prompt += _messages(values[questions[-1]])
            completion = _messages(answer)
        else:
            texts = [row.text(name, str | int | float).strip() for name in questions]
            prompt.append({"role": "user", "content": "\n\n".join(texts)})
            completion = [_message({"role": "assistant", "content": str(answer).strip(), **_reasoning(values)})]
        first_learned = len(prompt)
    messages = [*prompt, *completion]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()  # nobody answers
    record = Record(str(values.get("id", row.where)), tuple(messages), str(first(GROUPS)), first_learned)
    if len(messages) <= first_learned or not record.question.strip():
        raise Unusable("no question, or no answer to it")
    if not all(message["content"].strip() for message in messages):
        raise Unusable("a message is empty")
    return record


def _reasoning(values: dict[str, Any]) -> dict[str, str]:
    """The reasoning of a row or of a message, as a key of a message; {} where there is none."""
    texts = [str(values[name]).strip() for name in REASONING if values.get(name)]
    return {"reasoning_content": texts[0]} if texts else {}


def _messages(messages: Any) -> list[Message]:
    if not isinstance(messages, list):
        raise Unusable("a conversation must be a list of messages")
    return [_message(message) for message in messages]


def _message(message: Any) -> Message:
    if not isinstance(message, dict):
        raise Unusable("a message must be an object with a `role` and a `content`")
    filled = {key: value for key, value in message.items() if value}
    role, content = str(filled.get("role", filled.get("from"))).lower(), filled.get("content", filled.get("value", ""))
    if CALLS & {role, *filled}:
        raise Unusable("tool calls are not read: give conversations in texts")
    if not isinstance(content, str):
        raise Unusable("the `content` of a message must be a text")
    reasoning = _reasoning(filled)
    if "</think>" in content and not reasoning:
        thought, _, content = content.replace("<think>", "").rpartition("</think>")
        reasoning, content = {"reasoning_content": thought.strip()}, content.strip()
    return {"role": ROLES.get(role, role), "content": content, **reasoning}


def choices_of(records: Sequence[Record]) -> tuple[str, ...]:
    """The labels of labelled records: few answers, each of them many times; () of other records."""
    counts = Counter(record.answer for record in records)
    if 1 < len(counts) <= min(MOST_CHOICES, len(records) / ROWS_A_CHOICE):
        return tuple(sorted(counts))
    return ()


# ---- splits


def _held_out(records: list[Record], splits: Sequence[str], seed: int) -> dict[str, list[Record]]:
    """The records without a tenth for each of `splits`, and these tenths: whole groups, none of more than a third."""
    quota = max(1, round(HELD_OUT_SHARE * len(records)))
    groups = groups_of(records)
    random.Random(seed).shuffle(groups)
    groups.sort(key=lambda group: len(group) > quota)  # large ones only where a split has nothing yet
    rows: dict[str, list[int]] = {name: [] for name in (*splits, "train")}
    for group in groups:
        target = "train"
        if len(group) <= len(records) / 3:
            for name in splits:
                if not rows[name] or len(rows[name]) + len(group) <= quota:
                    target = name
                    break
        rows[target] += group
    parts = {}
    for name, numbers in rows.items():
        parts[name] = [records[number] for number in sorted(numbers)]
    return parts


def groups_of(records: Sequence[Record]) -> list[list[int]]:
    """Rows that must be in one split: those of one document, or of questions linked by a chain of near-duplicates."""
    from scipy.cluster.hierarchy import DisjointSet

    linked = DisjointSet(range(len(records)))
    first: dict[str, int] = {}
    for row, record in enumerate(records):
        if record.group:
            linked.merge(row, first.setdefault(record.group, row))
    if not first:
        for i, j in near_duplicates([record.question for record in records]):
            linked.merge(i, j)
    return [sorted(group) for group in linked.subsets()]


def near_duplicates(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs i < j whose sets of 5-character shingles have a Jaccard index of at least NEAR_DUPLICATE.

    Case, punctuation and white space do not count, nor does a shingle that is in more than a COMMON share of the texts,
    as an instruction before every question is.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    spellings = []
    for text in texts:
        words = re.findall(r"\w+", text.casefold())
        spellings.append(" ".join(words).ljust(SHINGLE, "_"))
    every_RS = CountVectorizer(analyzer="char", ngram_range=(SHINGLE, SHINGLE), binary=True).fit_transform(spellings)
    counts_S = every_RS.sum(0).A1
    rare_RS = every_RS.multiply(counts_S <= max(3, COMMON * len(texts)))
    none_R = rare_RS.sum(1).A1 == 0
    member_RS = (rare_RS + every_RS.multiply(none_R[:, None])).tocsr()  # all, where none is rare
    sizes_R = member_RS.sum(1).A1
    shared = (member_RS @ member_RS.T).tocoo()
    i, j = shared.row, shared.col
    union = sizes_R[i] + sizes_R[j] - shared.data
    alike = (shared.data >= NEAR_DUPLICATE * union) & (i < j)
    return sorted(zip(i[alike].tolist(), j[alike].tolist(), strict=True))
