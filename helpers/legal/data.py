"""Records of any common shape, from a file, a folder or the hub: conversations, what is set aside and why, and the splits.

# R records · S shingles
"""

from __future__ import annotations

import ast
import hashlib
import itertools
import json
import random
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from helpers.data.data_source import DataSource, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable, number_rows

from .sample import sample_records

HELD_OUT_SHARE = 0.1  # to validate, and as many to test, where the source has no splits
# Jaccard index of 5-character shingles; on real questions 0.5 to 0.6 is a reworded or extended question.
NEAR_DUPLICATE = 0.5
SHINGLE, COMMON = 5, 0.05  # a shingle in more than this share of the records belongs to an instruction that they share
MOST_CHOICES, LONGEST_CHOICE, ROWS_A_CHOICE = 30, 100, 5  # labelled records have few short answers, each many times

# Columns, in any case. What is named nowhere here is counted as not used.
CONVERSATIONS = ("messages", "conversations", "conversation")
QUESTIONS = ("question", "prompt", "query")
TEXTS = ("context", "input", "text", "sentence")  # before a question, after an instruction, or alone
ANSWERS = ("answer", "completion", "response", "output", "label")
REASONING = (
    "reasoning",
    "reasoning_content",
    "thinking",
    "rationale",
    "chain_of_thought",
    "cot",
)  # also keys of a message
REASONING_KEY = "reasoning_content"  # of a message
CALLS = ("function_call", "tool_call")  # roles of a message whose text is a call
ROLES = {  # other names of them
    "developer": "system",
    "human": "user",
    **dict.fromkeys(("gpt", "bot", "model", "chatgpt", *CALLS), "assistant"),
    **dict.fromkeys(
        ("function", "observation", "ipython", "function_response", "tool_response", "tool_result"), "tool"
    ),
}
FEWEST = 10  # records: one to test, one to validate, the others to train
FORMS = (
    "`messages` (or ShareGPT's `conversations`), or a question (`question`, `instruction`, `prompt` or `text`) and an answer "
    "(`answer`, `completion`, `response`, `output` or `label`)"
)
NO_MESSAGE = "a message must be an object with a `role`, and a text as its `content`"
Message = dict[str, Any]
NOTHING: tuple = (None, "", [], {})
PLACEHOLDERS = ("", "n/a", "na", "nan", "none", "null")  # of an empty section; an answer "None" is an answer


@dataclass(frozen=True)
class Record:
    """One conversation whose assistant turns are learned."""

    id: str
    messages: tuple[Message, ...]  # as a chat template takes them; the last is the assistant's
    tools: tuple[dict[str, Any], ...] | None = None
    group: str = ""  # document that the record belongs to
    first_learned: int = 0  # assistant messages before this one are a prompt
    text_alone: bool = False  # a text and a label without a question: the choices are told to the model

    @property
    def question(self) -> str:
        """What is asked, with what was said before it, without the system's text."""
        return "\n".join(message["content"] for message in without_system(self.messages[:-1]))

    @property
    def system(self) -> str:
        first = self.messages[0]
        if first["role"] != "system":
            return ""
        return first["content"]

    @property
    def answer(self) -> str:
        """What is graded of the last message: its text, and its tool calls."""
        last = self.messages[-1]
        calls = [call["function"] for call in last.get("tool_calls", ())]
        return graded(last["content"], calls)

    @property
    def learned_turns(self) -> list[int]:
        """Places of the assistant's messages that are learned: not those of a prompt, nor those of weight 0, as OpenAI marks them."""
        turns = []
        for turn, message in enumerate(self.messages):
            if turn >= self.first_learned and message["role"] == "assistant" and message.get("weight") != 0:
                turns.append(turn)
        return turns

    @property
    def reasoning(self) -> str:
        return self.messages[-1].get(REASONING_KEY, "")

    def with_turns(self, turns: Iterable[Message]) -> Record:
        """The same with other turns after its system text."""
        messages = list(turns)
        if self.system:
            messages.insert(0, self.messages[0])
        return replace(self, messages=tuple(messages))


def without_system(messages: Iterable[Message]) -> list[Message]:
    return [message for message in messages if message["role"] != "system"]


def graded(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """An answer as one text: what is said, and each call in one spelling."""
    lines = [content.strip()]
    lines += [json.dumps(call, sort_keys=True) for call in calls]
    return "\n".join(filter(None, lines))


@dataclass(frozen=True)
class Records(DataSource):
    """The records of a source by split, and what became of the others."""

    splits: dict[str, tuple[Record, ...]]  # train, validation, test
    choices: tuple[str, ...] = ()  # the labels of labelled records
    set_aside: tuple[dict[str, str], ...] = ()  # row and reason of each
    unused: dict[str, int] = field(default_factory=dict)  # columns that are not used, and how many rows fill them

    def keeping(self, splits: Mapping[str, Sequence[Record]], set_aside: Iterable[dict[str, str]]) -> Records:
        """The same with these records. Raises ValueError where a split has none."""
        tuples = {name: tuple(records) for name, records in splits.items()}
        result = replace(self, splits=tuples, set_aside=(*self.set_aside, *set_aside))
        for name, records in tuples.items():
            if len(records) < (2 if name == "train" else 1):
                raise ValueError(
                    f"data_source={self.name!r}: {len(records)} records are left for {name}; set aside: "
                    f"{dict(result.reasons()) or 'none'}. Raise max_length if records are too long, give at least {FEWEST} that "
                    "differ, or splits of your own (train, validation, test)"
                )
        return result

    def reasons(self) -> Counter[str]:
        """How many records are set aside for which reason."""
        return Counter(entry["reason"] for entry in self.set_aside)

    def rows(self) -> list[dict[str, Any]]:
        """What there is, what was set aside for which reason and what is not used, for a table."""
        lines = []
        for name, records in self.splits.items():
            lines.append((f"{name} records", len(records), ""))
        first = {entry["reason"]: entry["row"] for entry in reversed(self.set_aside)}
        for reason, count in self.reasons().most_common():
            lines.append((f"set aside: {reason}", count, f"first: {first[reason]}"))
        for name, count in self.unused.items():
            lines.append((f"column `{name}` is not used", count, ""))
        if self.choices:
            lines.append(("labels", len(self.choices), ", ".join(self.choices)))
        return [dict(zip(("records", "number", "detail"), line, strict=True)) for line in lines]


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
    digest, unused, repeats = hashlib.sha256(), Counter[str](), []
    conversations: set[str] = set()
    splits: dict[str, list[Record]] = {"test": [], "validation": [], "train": []}  # training loses what it repeats
    for name, records in splits.items():
        for row, record in set_aside.convert(sources.get(name, ()), lambda row: (row, record_of(row, unused))):
            digest.update(json.dumps(row.values, default=str).encode())
            conversation = json.dumps([record.messages, record.tools], sort_keys=True, default=str)
            if conversation in conversations:
                repeats.append((row.where, "repeats another row"))
            else:
                conversations.add(conversation)
                records.append(record)
    set_aside.check()
    count = sum(map(len, splits.values()))
    if count < FEWEST:
        raise ValueError(
            f"{place.source}: {count} different records can be used, at least {FEWEST} are needed; a useful model needs hundreds"
        )
    absent = [name for name in splits if not splits[name]]
    if absent and splits["train"]:
        splits |= _held_out(splits["train"], absent, seed)
    choices = choices_of(splits["train"])
    ordered = {}
    for name in ("train", "validation", "test"):
        ordered[name] = [with_choice(record, choices) for record in splits[name]]
    source = Records(
        name=place.name,
        sha256=digest.hexdigest(),
        draw=f"seed {seed}",
        splits={},
        choices=choices,
        unused=dict(unused),
    )
    reasons = (*set_aside.rows, *repeats)
    return source.keeping(ordered, [{"row": place, "reason": reason} for place, reason in reasons])


# ---- from a row to a conversation


def record_of(row: Row, unused: Counter) -> Record:
    """The record of a row. Columns that are not used are counted in `unused`.

    Raises Unusable where the row has no columns of `FORMS`, a message that is none, or no question or answer.
    """
    columns = _Columns(row)
    number = columns.text("id") or row.where
    group = columns.text("document", "doc_id", "document_id", "group")
    tools = _tools(columns.take("tools", "functions"))
    system = columns.text("system", "system_prompt")
    prompt, completion, text_alone = _prompt_and_completion(columns)
    if "history" in columns.values:
        raise Unusable("column `history` holds earlier turns. Give the whole conversation as `messages`")
    unused.update(columns.values.keys())
    messages = _one_system([{"role": "system", "content": system}, *prompt, *completion])
    first_learned = 0
    if prompt:
        first_learned = len(messages) - len(completion)
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()  # nobody answers
    turns = without_system(messages)
    if not turns or first_learned >= len(messages):
        raise Unusable("no question and no answer")
    if turns[0]["role"] == "assistant":
        raise Unusable("no question: the conversation begins with the assistant")
    record = Record(number, tuple(messages), tools, group, first_learned, text_alone)
    missing = [name for name in ("question", "answer") if not getattr(record, name).strip()]
    if missing:
        raise Unusable(f"no {' and no '.join(missing)}")
    for message in messages:
        if message["role"] != "tool" and not message["content"].strip() and len(message) == 2:
            raise Unusable("a message is empty")
    if messages[-1].get("weight") == 0:
        raise Unusable("its last turn, which is scored, has the weight 0. Remove the weight, or the row")
    return record


class _Columns:
    """The columns of a row by their names in lower case. `values` are those that hold something; what is taken leaves them."""

    def __init__(self, row: Row):
        self.names: set[str] = set()
        self.values: dict[str, Any] = {}
        self.row = row
        for column, value in row.values.items():
            name = str(column).strip().lower()
            self.names.add(name)
            if value not in NOTHING:
                self.values[name] = value

    def take(self, *names: str) -> Any:
        """The first of these columns that has a value."""
        for name in names:
            if name in self.values:
                return self.values.pop(name)
        return None

    def text(self, *names: str) -> str:
        """As `take`, "" where there is none. Raises Unusable for what is no text and no number."""
        for name in names:
            if name in self.values:
                row = self.row._replace(values={name: self.values.pop(name)})
                return row.text(name, str | int | float).strip()
        return ""


def _prompt_and_completion(columns: _Columns) -> tuple[list[Message], list[Message], bool]:
    """The messages that are only read and those whose turns are learned, and whether they are a text and a label alone."""
    values = columns.values
    if columns.names & {*CONVERSATIONS}:
        return [], _messages(columns.take(*CONVERSATIONS) or [], "user"), False
    if not (columns.names & {*QUESTIONS, *TEXTS, "instruction"} and columns.names & {*ANSWERS}):
        names = ", ".join(map(str, columns.row.values)) or "none"
        raise Unusable(f"no columns of a record (its columns: {names[:500]}). Give {FORMS}")
    if any(isinstance(values.get(name), list) for name in (*QUESTIONS, *ANSWERS)):  # TRL's conversational columns
        prompt = _messages(columns.take(*QUESTIONS) or [], "user")
        return prompt, _messages(columns.take(*ANSWERS) or [], "assistant"), False
    if isinstance(values.get("label"), bool) and len(values.keys() & {*ANSWERS}) > 1:
        raise Unusable(
            "its `label` judges another column's answer, as in KTO. Keep the rows with good answers, without `label`"
        )
    text_alone = values.keys() & {*QUESTIONS, *ANSWERS, "instruction"} == {"label"}
    parts = columns.text("instruction"), columns.text(*TEXTS), columns.text(*QUESTIONS)
    question = {"role": "user", "content": "\n\n".join(filter(None, parts))}
    answer = {"role": "assistant", "content": columns.text(*ANSWERS)}
    reasoning = columns.text(*REASONING)
    if reasoning.lower() not in PLACEHOLDERS:
        answer[REASONING_KEY] = reasoning
    return [question], [answer], text_alone


def _one_system(messages: list[Message]) -> list[Message]:
    """The texts of the system before the first question as one message, each of them once."""
    texts: list[str] = []
    while messages and messages[0]["role"] == "system":
        text = messages.pop(0)["content"]
        if text and text not in texts:
            texts.append(text)
    if texts:
        messages.insert(0, {"role": "system", "content": "\n\n".join(texts)})
    return messages


def _listed(value: Any) -> list:
    """A list as it is, anything else as a list of one."""
    if isinstance(value, list):
        return value
    return [value]


def _messages(messages: Any, role: str) -> list[Message]:
    """Messages with `role`, `content` and every other key that has a value. A text is one message of `role`, or JSON of messages."""
    if isinstance(messages, str):
        messages = _list_of(messages) or [{"role": role, "content": messages}]
    converted = [_message(item) for item in _listed(messages)]
    calls: list[str | None] = []
    for message in converted:
        calls += [call.get("id") for call in message.get("tool_calls", ())]
    order = {call: number for number, call in enumerate(calls)}
    ordered = []
    for _, turn in itertools.groupby(converted, key=lambda message: message["role"]):
        # Most templates tell the results of one turn apart by their order, which is that of the calls.
        ordered += sorted(turn, key=lambda message: order.get(message.get("tool_call_id"), 0))
    return ordered


def _message(item: Any) -> Message:
    if not isinstance(item, Mapping):
        raise Unusable(NO_MESSAGE)
    message = {key: value for key, value in item.items() if value not in NOTHING}
    name = str(message.pop("role", message.pop("from", ""))).strip().lower()
    content = message.pop("content", message.pop("value", ""))
    role = ROLES.get(name, name)
    if isinstance(content, list) and all(
        isinstance(part, Mapping) and str(part.get("type")).endswith("text") for part in content
    ):
        content = "".join(str(part.get("text", "")) for part in content)
    elif role == "tool" and not isinstance(content, str):
        content = json.dumps(content, ensure_ascii=False)
    for key in REASONING:
        if key in message:
            message[REASONING_KEY] = message.pop(key)
    if role == "assistant" and isinstance(content, str) and "</think>" in content and REASONING_KEY not in message:
        reasoning, _, content = content.rpartition("</think>")
        message[REASONING_KEY], content = reasoning.replace("<think>", "").strip(), content.strip()
    if not (role and isinstance(content, str) and isinstance(message.get(REASONING_KEY, ""), str)):
        raise Unusable(NO_MESSAGE)
    calls = message.pop("tool_calls", message.pop("function_call", None))
    if name in CALLS:
        calls, content = content, ""
    if calls:
        message["tool_calls"] = _calls(calls)
    return {"role": role, "content": content} | message


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects, which templates write as JSON themselves."""
    converted = []
    for call in _listed(_parsed(calls, "a tool call")):
        function = call
        if isinstance(call, Mapping):
            function = call.get("function", call)
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Unusable("a tool call must be an object with a `name`")
        arguments = _parsed(function.get("arguments", function.get("parameters")) or {}, "the arguments of a tool call")
        function = {"name": function["name"], "arguments": arguments}
        entry = {"id": call.get("id"), "type": "function", "function": function}
        converted.append({key: value for key, value in entry.items() if value})
    return converted


def _parsed(value: Any, what: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value)
    except ValueError:
        raise Unusable(f"{what} is not JSON") from None


def _list_of(text: str) -> list | None:
    """The list that a column of a .csv holds as JSON or, as pandas writes it, in Python's notation; None of any other text."""
    if not text.lstrip().startswith("[{"):
        return None
    for parse in (json.loads, ast.literal_eval):
        try:
            return parse(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            pass
    return None


def _tools(tools: Any) -> tuple[dict[str, Any], ...] | None:
    tools = _parsed(tools, "column `tools`")
    if not tools:
        return None
    converted = []
    for tool in _listed(tools):
        if "function" not in tool:
            tool = {"type": "function", "function": tool}
        converted.append(tool)
    return tuple(converted)


# ---- labels


def choices_of(records: Sequence[Record]) -> tuple[str, ...]:
    """The labels of labelled records: few short answers, each of them many times; () of other records."""
    counts = Counter(record.answer for record in records)
    if not 1 < len(counts) <= MOST_CHOICES or len(records) < ROWS_A_CHOICE * len(counts):
        return ()
    if max(map(len, counts)) > LONGEST_CHOICE:
        return ()
    return tuple(sorted(counts))


def with_choice(record: Record, choices: Sequence[str]) -> Record:
    """A text with a label and no question is told the labels to choose from."""
    if not (choices and record.text_alone):
        return record
    texts = f"Answer with one of: {', '.join(choices)}.", record.system
    system = {"role": "system", "content": " ".join(filter(None, texts))}
    return replace(record, messages=(system, *without_system(record.messages)))


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
