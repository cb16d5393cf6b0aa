"""Records from a file, a folder or the hub as conversations, which TRL takes as `prompt` and `completion`; and the splits.

# R questions · S shingles
"""

import hashlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from helpers.data.data_source import DataSource, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable, number_rows

from .sample import sample_records

HELD_OUT_SHARE = 0.1  # to validate, and as many to test, where the source has no splits
# Jaccard index of 5-character shingles; on real questions 0.5 to 0.6 is a reworded or extended question.
NEAR_DUPLICATE = 0.5
SHINGLE, COMMON = (
    5,
    0.05,
)  # a shingle in more than this share of the questions belongs to an instruction that they share
FEWEST = 10  # records: one to test, one to validate, the others to train

# Columns, in any case; a question is what all of its columns hold, in this order
QUESTIONS = ("instruction", "context", "input", "text", "question", "prompt")
ANSWERS = ("answer", "completion", "response", "output", "label")
REASONING = ("reasoning", "reasoning_content", "rationale", "cot")  # also keys of a message
ROLES = {"human": "user", "gpt": "assistant", "developer": "system"}  # of ShareGPT and OpenAI
CALLS = {"tool_calls", "function_call", "tool", "function", "observation"}  # keys and roles of a message
FORMS = f"`messages` or `conversations`, or a question ({', '.join(QUESTIONS)}) and an answer ({', '.join(ANSWERS)})"
THINK = "<think>\n{}\n</think>\n\n{}"
Message = dict[str, str]


@dataclass(frozen=True)
class Record:
    """One conversation whose assistant turns are learned."""

    id: str
    # `role` and `content`, where reasoning stands in <think>; the last is the assistant's
    messages: tuple[Message, ...]
    group: str = ""  # document that the record belongs to

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
    set_aside: list[tuple[str, str]] = field(default_factory=list)  # row and reason of each

    def rows(self) -> list[dict[str, Any]]:
        """How many records there are, and how many rows were set aside for which reason, for a table."""
        rows = [{"records": name, "number": len(records)} for name, records in self.splits.items()]
        for reason, number in Counter(reason for _, reason in self.set_aside).items():
            rows.append({"records": f"set aside: {reason}", "number": number})
        return rows


def load_records(data_source: str, *, seed: int) -> Records:
    """The records of `data_source`, each checked, split and counted.

    data_source: "sample"; a .jsonl, .json, .csv (`,` `;` or tab), .tsv or .parquet file; or a folder of such files or a hub id,
        whose splits train, validation and test are kept. Columns are one of `FORMS`; others are not used.

    A row that cannot be read, or has no question or no answer, is set aside with its reason, and so is one that repeats another.
    Where the source has no validation or test split, a tenth of its documents, or of its groups of near-duplicate questions,
    becomes one.

    Raises ValueError (most rows cannot be used, a file or a hub set that cannot be read, too few records) and FileNotFoundError.
    """
    place = locate(data_source)
    sources: Mapping[str, Iterable[Row]] = {"train": number_rows(sample_records())}
    if not place.is_sample:
        sources = read_splits(place, SUFFIXES)
    set_aside, repeats = SetAside(place.source), []
    conversations: dict[str, None] = {}
    splits: dict[str, list[Record]] = {"train": [], "validation": [], "test": []}
    for name in reversed(splits):  # training loses what it repeats
        for record in set_aside.convert(sources.get(name, ()), read_record):
            conversation = json.dumps(record.messages)
            if conversation in conversations:
                repeats.append((record.id, "repeats another row"))
            else:
                conversations[conversation] = None
                splits[name].append(record)
    set_aside.check()
    count = len(splits["train"])
    if count < FEWEST:
        raise ValueError(f"{place.source}: {count} different records to train with; at least {FEWEST} are needed")
    if [] in splits.values():
        hold_out(splits, seed)
    return Records(
        name=place.name,
        sha256=hashlib.sha256("".join(conversations).encode()).hexdigest(),
        draw=f"seed {seed}",
        splits=splits,
        set_aside=set_aside.rows + repeats,
    )


# ---- from a row to a conversation


def read_record(row: Row) -> Record:
    """The record of a row. Raises Unusable where the row has no columns of `FORMS`, or no question or answer."""
    values = {name: value for name, value in row.values.items() if value not in (None, "", [])}
    turns: Any = values.get("messages", values.get("conversations"))
    if not isinstance(turns, list):
        questions = [row.text(name) for name in QUESTIONS if name in values]
        answers = [row.text(name) for name in ANSWERS if name in values]
        if not questions or not answers:
            raise Unusable(f"no question and answer (its columns: {', '.join(values)[:500] or 'none'}). Give {FORMS}")
        reasoning = {name: values[name] for name in REASONING if name in values}
        answer = reasoning | {"role": "assistant", "content": answers[0]}
        turns = [{"role": "user", "content": "\n\n".join(questions)}, answer]
    if "system" in values:
        turns = [{"role": "system", "content": row.text("system")}, *turns]
    messages = [read_message(turn) for turn in turns]
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()  # nobody answers
    record = Record(row.where, tuple(messages), str(values.get("document", "")))
    if not record.question:
        raise Unusable("no question, or no answer to it")
    return record


def read_message(turn: Any) -> Message:
    """A message of a row, whose reasoning is written before its text. Raises Unusable for tool calls and what is no text."""
    if not isinstance(turn, dict):
        raise Unusable("a message must be an object with a `role` and a `content`")
    filled = {key: value for key, value in turn.items() if value}
    role = str(filled.get("role", filled.get("from"))).lower()
    content = filled.get("content", filled.get("value"))
    if CALLS & {role, *filled}:
        raise Unusable("tool calls are not read: give conversations in texts")
    if not isinstance(content, str) or not content.strip():
        raise Unusable("the `content` of a message must be a text, and not empty")
    content = content.strip()
    for name in REASONING:
        if name in filled:
            content = THINK.format(str(filled[name]).strip(), content)
    return {"role": ROLES.get(role, role), "content": content}


# ---- splits


def hold_out(splits: dict[str, list[Record]], seed: int) -> None:
    """Moves a tenth of the training records, whole groups, into each split that is empty."""
    records = splits["train"]
    quota = max(1, round(HELD_OUT_SHARE * len(records)))
    groups = groups_of(records)
    random.Random(seed).shuffle(groups)
    groups.sort(key=lambda group: len(group) > quota)  # large ones stay in training unless there are no others
    for name in ("test", "validation"):
        rows: list[int] = []
        while groups and not splits[name] and len(rows) < quota:
            rows += groups.pop(0)
        splits[name] += [records[row] for row in sorted(rows)]
    splits["train"] = [records[row] for row in sorted(itertools.chain(*groups))]


def groups_of(records: Sequence[Record]) -> list[list[int]]:
    """Rows that must be in one split: those of one document, or of questions linked by a chain of near-duplicates.

    Case, punctuation and white space of questions do not count.
    """
    from scipy.sparse.csgraph import connected_components

    rows: dict[str, list[int]] = {}
    for row, record in enumerate(records):
        words = re.findall(r"\w+", record.question.casefold())
        rows.setdefault(record.group or " ".join(words), []).append(row)
    if any(record.group for record in records):
        return [*rows.values()]
    groups: dict[int, list[int]] = {}
    for number, same in zip(connected_components(near_duplicates([*rows]))[1], rows.values(), strict=True):
        groups.setdefault(number, []).extend(same)
    return [*groups.values()]


def near_duplicates(texts: Sequence[str]):
    """Which of different texts have sets of shingles with a Jaccard index of at least NEAR_DUPLICATE: a sparse matrix [R, R].

    A shingle in more than a COMMON share of the texts does not count, as an instruction before every question. The whole text
    is one more shingle.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    def shingles(text: str) -> set[str]:
        return {text, *(text[start : start + SHINGLE] for start in range(len(text) - SHINGLE + 1))}

    most = max(3, int(COMMON * len(texts)))
    member_RS = CountVectorizer(analyzer=shingles, max_df=most).fit_transform(texts)
    size_R = member_RS.sum(1).A1
    shared = (member_RS @ member_RS.T).tocoo()
    union = size_R[shared.row] + size_R[shared.col] - shared.data
    shared.data = shared.data >= NEAR_DUPLICATE * union
    shared.eliminate_zeros()
    return shared
