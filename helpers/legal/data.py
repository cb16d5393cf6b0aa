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

import numpy as np

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
QUESTIONS = ("instruction", "context", "input", "text", "question", "prompt")
ANSWERS = ("answer", "completion", "response", "output", "label")
REASONING = ("reasoning", "reasoning_content", "rationale", "cot")  # also keys of a message
GROUPS = ("document", "doc_id", "group")
ROLES = {"human": "user", "gpt": "assistant", "developer": "system"}  # of ShareGPT and OpenAI
CALLS = {"tool_calls", "function_call", "tool", "function", "observation"}  # keys and roles of a message
FORMS = (
    "`messages` (or ShareGPT's `conversations`), or a question (`question`, `instruction`, `prompt` or `text`) and an answer "
    "(`answer`, `completion`, `response`, `output` or `label`)"
)
THINK = "<think>\n{}\n</think>\n\n{}"
Message = dict[str, str]


@dataclass(frozen=True)
class Record:
    """One conversation whose assistant turns are learned."""

    id: str
    messages: tuple[
        Message, ...
    ]  # `role` and `content`, where reasoning stands in <think>; the last is the assistant's
    group: str = ""  # document that the record belongs to
    first_learned: int = 0  # messages before this one are a prompt

    @property
    def question(self) -> str:
        """What is asked, with what was said before it, without the system's text."""
        return "\n".join(message["content"] for message in self.messages[:-1] if message["role"] != "system")

    @property
    def answer(self) -> str:
        return parts_of(self.messages[-1]["content"])[1]

    @property
    def reasoning(self) -> str:
        return parts_of(self.messages[-1]["content"])[0]


def parts_of(turn: str) -> tuple[str, str]:
    """The reasoning of a turn, and what follows it."""
    reasoning, _, answer = turn.rpartition("</think>")
    return reasoning.replace("<think>", "").strip(), answer.strip()


@dataclass(frozen=True)
class Records(DataSource):
    """The records of a source by split, and what became of the others."""

    splits: dict[str, list[Record]]  # train, validation, test
    choices: tuple[str, ...] = ()  # the labels of labelled records
    set_aside: list[tuple[str, str]] = field(default_factory=list)  # row and reason of each

    def rows(self) -> list[dict[str, Any]]:
        """What there is, and how many rows were set aside for which reason, for a table."""
        lines = {name: len(records) for name, records in self.splits.items()}
        lines |= Counter(f"set aside: {reason}" for _, reason in self.set_aside)
        return [{"records": name, "number": number} for name, number in lines.items()]


def load_records(data_source: str, *, seed: int) -> Records:
    """The records of `data_source`, each checked, split and counted.

    data_source: "sample"; a .jsonl, .json, .csv (`,` `;` or tab), .tsv or .parquet file; or a folder of such files or a hub id,
        whose splits train, validation and test are kept. Columns are one of `FORMS`; others are not used.

    A row that cannot be read, has no question or no answer, or repeats another one is set aside with its reason. Where the
    source has no validation or test split, a tenth of its documents, or of its groups of near-duplicate questions, becomes one.

    Raises ValueError (most rows cannot be used, a file or a hub set that cannot be read, too few records) and FileNotFoundError.
    """
    place = locate(data_source)
    set_aside = SetAside(place.source)
    sources = {"train": [*number_rows(sample_records())]}
    if not place.is_sample:
        sources = read_splits(place, SUFFIXES)
    conversations: dict[str, Record] = {}

    def convert(row: Row) -> Record:
        record = record_of(row)
        conversation = json.dumps(record.messages)
        if conversation in conversations:
            raise Unusable("repeats another row")
        conversations[conversation] = record
        return record

    splits: dict[str, list[Record]] = {}
    for name in ("test", "validation", "train"):  # training loses what it repeats
        splits[name] = [*set_aside.convert(sources.get(name, ()), convert)]
    set_aside.check()
    if len(conversations) < FEWEST:
        raise ValueError(
            f"{place.source}: {len(conversations)} different records; at least {FEWEST} are needed, and hundreds are useful"
        )
    absent = [name for name in splits if not splits[name]]
    if absent and splits["train"]:
        splits |= _held_out(splits["train"], absent, seed)
    counts = Counter(record.answer for record in splits["train"])
    labelled = 1 < len(counts) <= min(MOST_CHOICES, len(splits["train"]) / ROWS_A_CHOICE)
    return Records(
        name=place.name,
        sha256=hashlib.sha256("".join(conversations).encode()).hexdigest(),
        draw=f"seed {seed}",
        splits={name: splits[name] for name in ("train", "validation", "test")},
        choices=tuple(sorted(counts)) if labelled else (),
        set_aside=set_aside.rows,
    )


# ---- from a row to a conversation


def record_of(row: Row) -> Record:
    """The record of a row. Raises Unusable where the row has no columns of `FORMS`, or no question or answer."""
    values = {name: value for name, value in row.values.items() if value not in (None, "", [])}
    row = row._replace(values=values)
    questions = [name for name in QUESTIONS if name in values]
    answers = [name for name in ANSWERS if name in values]
    completion = values.get("messages") or values.get("conversations")
    prompt: Any = []
    if not completion:
        if not questions or not answers:
            raise Unusable(f"no question and answer (its columns: {', '.join(values)[:500] or 'none'}). Give {FORMS}")
        prompt, completion = values[questions[-1]], values[answers[0]]
        if not isinstance(completion, list):  # as TRL's conversational columns are
            texts = [row.text(name).strip() for name in questions]
            prompt = [{"role": "user", "content": "\n\n".join(texts)}]
            answer = row.text(answers[0]).strip()
            reasoning = {name: values[name] for name in REASONING if name in values}
            completion = [reasoning | {"role": "assistant", "content": answer}]
    if not isinstance(prompt, list) or not isinstance(completion, list):
        raise Unusable("a conversation must be a list of messages")
    if "system" in values:
        prompt = [{"role": "system", "content": row.text("system")}, *prompt]
    messages = [_message(message) for message in (*prompt, *completion)]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()  # nobody answers
    group = next((str(values[name]) for name in GROUPS if name in values), "")
    record = Record(str(values.get("id", row.where)), tuple(messages), group, len(prompt))
    if len(messages) <= len(prompt) or not record.question:
        raise Unusable("no question, or no answer to it")
    return record


def _message(message: Any) -> Message:
    if not isinstance(message, dict):
        raise Unusable("a message must be an object with a `role` and a `content`")
    filled = {key: value for key, value in message.items() if value}
    role, content = str(filled.get("role", filled.get("from"))).lower(), filled.get("content", filled.get("value", ""))
    if CALLS & {role, *filled}:
        raise Unusable("tool calls are not read: give conversations in texts")
    if not isinstance(content, str) or not content.strip():
        raise Unusable("the `content` of a message must be a text, and not empty")
    reasoning = next((str(filled[name]) for name in REASONING if name in filled), "").strip()
    if reasoning:
        content = THINK.format(reasoning, content)
    return {"role": ROLES.get(role, role), "content": content}


# ---- splits


def _held_out(records: list[Record], splits: Sequence[str], seed: int) -> dict[str, list[Record]]:
    """The records without a tenth for each of `splits`, and these tenths: whole groups, none of more than a third."""
    quota = max(1, round(HELD_OUT_SHARE * len(records)))
    groups = groups_of(records)
    random.Random(seed).shuffle(groups)
    groups.sort(key=lambda group: len(group) > quota)  # large ones only where a split has nothing yet
    parts: dict[str, list[int]] = {name: [] for name in (*splits, "train")}
    for group in groups:
        for name, part in parts.items():
            fits = len(part) + len(group) <= quota or (not part and len(group) <= len(records) / 3)
            if fits or name == "train":
                part += group
                break
    return {name: [records[row] for row in sorted(part)] for name, part in parts.items()}


def groups_of(records: Sequence[Record]) -> list[list[int]]:
    """Rows that must be in one split: those of one document, or of questions linked by a chain of near-duplicates."""
    from scipy.sparse.csgraph import connected_components

    names: Sequence = [record.group or row for row, record in enumerate(records)]
    if not any(record.group for record in records):
        _, names = connected_components(near_duplicates([record.question for record in records]))
    groups: dict[Any, list[int]] = {}
    for row, name in enumerate(names):
        groups.setdefault(name, []).append(row)
    return [*groups.values()]


def near_duplicates(texts: Sequence[str]):
    """Which texts have sets of 5-character shingles with a Jaccard index of at least NEAR_DUPLICATE: a sparse matrix [R, R].

    Case, punctuation and white space do not count, nor does a shingle that is in more than a COMMON share of the texts,
    as an instruction before every question is.
    """
    from scipy.sparse import csr_matrix
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
    alike = shared.data >= NEAR_DUPLICATE * union
    return csr_matrix((np.ones(alike.sum()), (i[alike], j[alike])), shape=shared.shape)
