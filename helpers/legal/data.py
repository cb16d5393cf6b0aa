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

from helpers.data.data_source import DataSource, Place, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable, number_rows

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
ROLES = {
    "system": ("developer",),
    "user": ("human",),
    "assistant": ("gpt", "bot", "model", "chatgpt", "function_call", "tool_call"),
    "tool": ("function", "observation", "ipython", "function_response", "tool_response", "tool_result"),
}
ROLE_OF = {name: role for role, names in ROLES.items() for name in (role, *names)}
FEWEST = 10  # records: one to test, one to validate, the others to train
FORMS = (
    "`messages` (or ShareGPT's `conversations`), or a question (`question`, `instruction`, `prompt` or `text`) and an answer "
    "(`answer`, `completion`, `response`, `output` or `label`)"
)
NO_MESSAGE = "a message must be an object with a `role`, and a text as its `content`"
NOTHING: tuple = (None, "", [], {})
PLACEHOLDERS = frozenset(("n/a", "na", "nan", "none", "null"))  # of an empty section; an answer "None" is an answer


@dataclass(frozen=True)
class Record:
    """One conversation whose assistant turns are learned."""

    id: str
    messages: tuple[dict[str, Any], ...]  # as a chat template takes them; the last is the assistant's
    tools: tuple[dict[str, Any], ...] | None = None
    group: str = ""  # document that the record belongs to
    first_learned: int = 0  # assistant messages before this one are a prompt
    text_alone: bool = False  # a text and a label without a question: the choices are told to the model

    @property
    def question(self) -> str:
        """What is asked, with what was said before it, without the system's text."""
        return "\n".join(message["content"] for message in self.messages[:-1] if message["role"] != "system")

    @property
    def system(self) -> str:
        return self.messages[0]["content"] if self.messages[0]["role"] == "system" else ""

    @property
    def answer(self) -> str:
        """What is graded of the last message: its text, and its tool calls."""
        last = self.messages[-1]
        return graded(last["content"], [call["function"] for call in last.get("tool_calls", ())])

    @property
    def learned_turns(self) -> list[int]:
        """Places of the assistant's messages that are learned: not those of a prompt, nor those of weight 0, as OpenAI marks them."""
        turns = enumerate(self.messages)
        learned = [turn for turn, message in turns if message["role"] == "assistant" and message.get("weight") != 0]
        return [turn for turn in learned if turn >= self.first_learned]

    @property
    def reasoning(self) -> str:
        return self.messages[-1].get(REASONING_KEY, "")


def graded(content: str, calls: Sequence[Mapping[str, Any]]) -> str:
    """An answer as one text: what is said, and each call in one spelling."""
    lines = [json.dumps({"name": call["name"], "arguments": call["arguments"]}, sort_keys=True) for call in calls]
    return "\n".join(filter(None, (content.strip(), *lines)))


@dataclass(frozen=True)
class Records(DataSource):
    """The records of a source by split, and what became of the others."""

    splits: dict[str, tuple[Record, ...]]  # train, validation, test
    choices: tuple[str, ...] = ()  # the labels of labelled records
    set_aside: tuple[dict[str, str], ...] = ()  # row and reason of each
    unused: dict[str, int] = field(default_factory=dict)  # columns that are not used, and how many rows fill them

    def keeping(self, splits: Mapping[str, Sequence[Record]], set_aside: Iterable[dict[str, str]]) -> Records:
        """The same with these records. Raises ValueError where a split has none."""
        set_aside = (*self.set_aside, *set_aside)
        for name, records in splits.items():
            if len(records) < (2 if name == "train" else 1):
                reasons = dict(Counter(entry["reason"] for entry in set_aside))
                raise ValueError(
                    f"data_source={self.name!r}: {len(records)} records are left for {name}; set aside: {reasons or 'none'}. Give "
                    f"at least {FEWEST} records that differ, or splits of your own (train, validation, test)"
                )
        return replace(self, splits={name: tuple(records) for name, records in splits.items()}, set_aside=set_aside)

    def rows(self) -> list[dict[str, Any]]:
        """What there is, what was set aside for which reason and what is not used, for a table."""
        lines = [(f"{name} records", len(records), "") for name, records in self.splits.items()]
        reasons = Counter(entry["reason"] for entry in self.set_aside)
        first = {entry["reason"]: f"first: {entry['row']}" for entry in reversed(self.set_aside)}
        lines += [(f"set aside: {reason}", count, first[reason]) for reason, count in reasons.most_common()]
        lines += [(f"column `{name}` is not used", count, "") for name, count in self.unused.items()]
        lines += [("labels", len(self.choices), ", ".join(self.choices))] if self.choices else []
        return [dict(zip(("records", "number", "detail"), line, strict=True)) for line in lines]


def load_records(data_source: str, *, seed: int) -> Records:
    """The records of `data_source`, each checked, split and counted.

    data_source: "sample"; a .jsonl, .json, .csv (`,` `;` or tab), .tsv or .parquet file; or a folder of such files or a hub id,
        whose splits train, validation and test are kept. Columns are one of `FORMS`.

    A row that cannot be read, has no question or no answer, or repeats another one is set aside with its reason. Where the
    source has no validation or test split, a tenth of its documents, or of its groups of near-duplicate questions, becomes one.

    Raises ValueError (most rows cannot be used, a file that cannot be parsed, too few records), FileNotFoundError and
    ConnectionError.
    """
    place = locate(data_source)
    set_aside = SetAside(place.source)
    sources = _read(place, set_aside)
    digest, unused, repeats = hashlib.sha256(), Counter[str](), []
    conversations: set[str] = set()
    splits: dict[str, list[Record]] = {"test": [], "validation": [], "train": []}  # training loses what it repeats
    for name, records in splits.items():
        for row in sources.get(name, ()):
            digest.update(json.dumps(row.values, default=str).encode())
            try:
                record = record_of(row, unused)
            except Unusable as reason:
                set_aside.add(row, str(reason))
                continue
            conversation = json.dumps([record.messages, record.tools], sort_keys=True, default=str)
            if conversation in conversations:
                repeats.append((set_aside.place(row), "repeats another row"))
            else:
                conversations.add(conversation)
                records.append(record)
    set_aside.check()
    count = sum(map(len, splits.values()))
    if count < FEWEST:
        raise ValueError(
            f"{place.source}: {count} different records can be used, and {FEWEST} are needed at least; a useful model takes hundreds"
        )
    absent = [name for name in splits if not splits[name]]
    if absent and splits["train"]:
        splits |= _held_out(splits["train"], absent, seed)
    choices = choices_of(splits["train"])
    splits = {
        name: [with_choice(record, choices) for record in splits[name]] for name in ("train", "validation", "test")
    }
    source = Records(
        name=place.name,
        sha256=digest.hexdigest(),
        draw=f"seed {seed}",
        splits={},
        choices=choices,
        unused=dict(unused),
    )
    return source.keeping(splits, [{"row": where, "reason": reason} for where, reason in (*set_aside.rows, *repeats)])


# ---- reading


def _read(place: Place, set_aside: SetAside) -> Mapping[str, Iterable[Row]]:
    """Rows by split; a file is one split, `train`."""
    if place.is_sample:
        from .sample import sample_records

        return {"train": number_rows("sample", sample_records(), set_aside)}
    return read_splits(place, SUFFIXES, set_aside)


# ---- from a row to a conversation


def record_of(row: Row, unused: Counter) -> Record:
    """The record of a row. Columns that are not used are counted in `unused`.

    Raises Unusable where the row has no columns of `FORMS`, a message that is none, or no question or answer.
    """
    columns = {str(name).strip().lower() for name in row.values}
    values = {str(name).strip().lower(): value for name, value in row.values.items() if value not in NOTHING}

    def take(*names: str) -> Any:
        """The first of these columns that has a value."""
        return next((values.pop(name) for name in names if name in values), None)

    def text(*names: str) -> str:
        name = next((name for name in names if name in values), "")
        return row._replace(values={name: take(name)}).text(name, str | int | float).strip()

    number, group = text("id") or str(row.number), text("document", "doc_id", "document_id", "group")
    tools, system = _tools(take("tools", "functions")), text("system", "system_prompt")
    text_alone = False
    if columns & {*CONVERSATIONS}:
        prompt, completion = [], _messages(take(*CONVERSATIONS) or [], "user")
    elif columns & {*QUESTIONS, *TEXTS, "instruction"} and columns & {*ANSWERS}:
        if any(isinstance(values.get(name), list) for name in (*QUESTIONS, *ANSWERS)):
            prompt = _messages(take(*QUESTIONS) or [], "user")  # TRL's conversational prompt and completion
            completion = _messages(take(*ANSWERS) or [], "assistant")
        else:
            if isinstance(values.get("label"), bool) and values.keys() & {*ANSWERS[:-1]}:
                raise Unusable(
                    "its `label` judges another column's answer, as in KTO. Keep the rows with good answers, without `label`"
                )
            text_alone = "label" in values and not values.keys() & {*ANSWERS[:-1], *QUESTIONS, "instruction"}
            question = "\n\n".join(filter(None, (text("instruction"), text(*TEXTS), text(*QUESTIONS))))
            answer, reasoning = {"role": "assistant", "content": text(*ANSWERS)}, text(*REASONING)
            if reasoning and reasoning.lower() not in PLACEHOLDERS:
                answer[REASONING_KEY] = reasoning
            prompt, completion = [{"role": "user", "content": question}], [answer]
    else:
        names = ", ".join(map(str, row.values)) or "none"
        raise Unusable(f"no columns of a record (its columns: {names[:500]}). Give {FORMS}")
    if "history" in values:
        raise Unusable("column `history` holds earlier turns. Give the whole conversation as `messages`")
    unused.update(values.keys())
    messages = _one_system([{"role": "system", "content": system}] * bool(system) + prompt + completion)
    learned = len(messages) - len(completion) if prompt else 0
    while messages and messages[-1]["role"] != "assistant":
        messages.pop()  # nobody answers
    roles = [message["role"] for message in messages if message["role"] != "system"]
    if not roles or learned >= len(messages):
        raise Unusable("no question and no answer")
    if roles[0] == "assistant":
        raise Unusable("no question: the conversation begins with the assistant")
    record = Record(number, tuple(messages), tools, group, learned, text_alone)
    missing = [name for name in ("question", "answer") if not getattr(record, name).strip()]
    if missing:
        raise Unusable(f"no {' and no '.join(missing)}")
    for message in messages:
        if message["role"] != "tool" and not message["content"].strip() and len(message) == 2:
            raise Unusable("a message is empty")
    if messages[-1].get("weight") == 0:
        raise Unusable("its last turn has the weight 0: nothing would be learned of what is scored")
    return record


def _one_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The texts of the system before the first question as one message, each of them once."""
    first = list(itertools.takewhile(lambda message: message["role"] == "system", messages))
    texts = dict.fromkeys(message["content"] for message in first if message["content"])
    system = [{"role": "system", "content": "\n\n".join(texts)}] if texts else []
    return system + messages[len(first) :]


def _messages(messages: Any, role: str) -> list[dict[str, Any]]:
    """Messages with `role`, `content` and every other key that has a value. A text is one message of `role`, or JSON of messages."""
    if isinstance(messages, str):
        messages = _list_of(messages) or [{"role": role, "content": messages}]
    converted = [_message(item) for item in (messages if isinstance(messages, list) else [messages])]
    calls = [call.get("id") for message in converted for call in message.get("tool_calls", ())]
    order = {name: number for number, name in enumerate(calls)}
    ordered = []
    for _, turn in itertools.groupby(converted, key=lambda message: message["role"]):
        # Most templates tell the results of one turn apart by their order, which is that of the calls.
        ordered += sorted(turn, key=lambda message: order.get(message.get("tool_call_id"), 0))
    return ordered


def _message(item: Any) -> dict[str, Any]:
    if not isinstance(item, Mapping):
        raise Unusable(NO_MESSAGE)
    message = {key: value for key, value in item.items() if value not in NOTHING}
    name = str(message.pop("role", message.pop("from", ""))).strip().lower()
    content = message.pop("content", message.pop("value", ""))
    role = ROLE_OF.get(name, name)
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
    texts = content, message.get(REASONING_KEY, "")
    if not role or not all(isinstance(text, str) for text in texts):
        raise Unusable(NO_MESSAGE)
    calls = message.pop("tool_calls", message.pop("function_call", None))
    if name in ROLES["assistant"][-2:]:  # whose text is a call
        calls, content = content, ""
    if calls:
        message["tool_calls"] = _calls(calls)
    return {"role": role, "content": content} | message


def _calls(calls: Any) -> list[dict[str, Any]]:
    """Tool calls with their arguments as objects, which templates write as JSON themselves."""
    calls = _parsed(calls, "a tool call")
    converted = []
    for call in calls if isinstance(calls, list) else [calls]:
        function = call.get("function", call) if isinstance(call, Mapping) else call
        if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
            raise Unusable("a tool call must be an object with a `name`")
        arguments = _parsed(function.get("arguments", function.get("parameters")) or {}, "the arguments of a tool call")
        link = {"id": call["id"]} if call.get("id") else {}
        converted.append(link | {"type": "function", "function": {"name": function["name"], "arguments": arguments}})
    return converted


def _parsed(value: Any, what: str) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
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
    tools = tools if isinstance(tools, list) else [tools]
    return tuple(tool if "function" in tool else {"type": "function", "function": tool} for tool in tools)


# ---- labels


def choices_of(records: Sequence[Record]) -> tuple[str, ...]:
    """The labels of labelled records: few short answers, each of them many times; () of other records."""
    counts = Counter(record.answer for record in records)
    few = 1 < len(counts) <= MOST_CHOICES and len(records) >= ROWS_A_CHOICE * len(counts)
    return tuple(sorted(counts)) if few and max(map(len, counts)) <= LONGEST_CHOICE else ()


def with_choice(record: Record, choices: Sequence[str]) -> Record:
    """A text with a label and no question is told the labels to choose from."""
    if not (choices and record.text_alone):
        return record
    system = " ".join(filter(None, (f"Answer with one of: {', '.join(choices)}.", record.system)))
    rest = [message for message in record.messages if message["role"] != "system"]
    return replace(record, messages=({"role": "system", "content": system}, *rest))


# ---- splits


def _held_out(records: list[Record], names: Sequence[str], seed: int) -> dict[str, list[Record]]:
    """The records without a tenth for each of `names`, and these tenths: whole groups, none of more than a third."""
    quota, groups = max(1, round(HELD_OUT_SHARE * len(records))), groups_of(records)
    random.Random(seed).shuffle(groups)
    groups.sort(key=lambda group: len(group) > quota)  # large ones only where a split has nothing yet
    parts: dict[str, list[int]] = {name: [] for name in (*names, "train")}
    for group in groups:
        room = [name for name in names if not parts[name] or len(parts[name]) + len(group) <= quota]
        parts[room[0] if room and len(group) <= len(records) / 3 else "train"] += group
    return {name: [records[row] for row in sorted(rows)] for name, rows in parts.items()}


def groups_of(records: Sequence[Record]) -> list[list[int]]:
    """Rows that must be in one split: those of one document, or of questions linked by a chain of near-duplicates."""
    from scipy.cluster.hierarchy import DisjointSet

    linked = DisjointSet(range(len(records)))
    first: dict[str, int] = {}
    for row, record in enumerate(records):
        if record.group:
            linked.merge(row, first.setdefault(record.group, row))
    for i, j in [] if first else near_duplicates([record.question for record in records]):
        linked.merge(i, j)
    return [sorted(group) for group in linked.subsets()]


def near_duplicates(texts: Sequence[str]) -> list[tuple[int, int]]:
    """Pairs i < j whose sets of 5-character shingles have a Jaccard index of at least NEAR_DUPLICATE.

    Case, punctuation and white space do not count, nor does a shingle that is in more than a COMMON share of the texts,
    as an instruction before every question is.
    """
    from sklearn.feature_extraction.text import CountVectorizer

    words = [" ".join(re.findall(r"\w+", text.casefold())).ljust(SHINGLE, "_") for text in texts]
    every_RS = CountVectorizer(analyzer="char", ngram_range=(SHINGLE, SHINGLE), binary=True).fit_transform(words)
    most, counts_S = max(3, COMMON * len(texts)), every_RS.sum(0).A1
    rare_RS = every_RS.multiply(counts_S <= most)
    member_RS = (rare_RS + every_RS.multiply(rare_RS.sum(1).A1[:, None] == 0)).tocsr()  # all, where none is rare
    sizes_R, shared = member_RS.sum(1).A1, (member_RS @ member_RS.T).tocoo()
    i, j = shared.row, shared.col
    alike = (shared.data >= NEAR_DUPLICATE * (sizes_R[i] + sizes_R[j] - shared.data)) & (i < j)
    return sorted(zip(i[alike].tolist(), j[alike].tolist(), strict=True))
