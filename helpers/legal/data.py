"""Records of any common shape, from a file, a folder or the hub: conversations, what is set aside and why, and the splits.

# R records · S shingles
"""

from __future__ import annotations

import ast
import hashlib
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
SECTIONS = {  # of a chain-of-thought record, in the order in which they are written: columns, heading
    "topic": ("topic",),
    "difficulty": ("difficulty",),
    "reasoning": ("reasoning", "reasoning_content", "thinking", "rationale"),
    "answer": (),
    "case_citation": ("case_citation", "citation"),
}
IN_ONE_LINE = ("topic", "difficulty")  # with their heading
ROLES = {"human": "user", "gpt": "assistant", "bot": "assistant", "model": "assistant", "chatgpt": "assistant"}
TEXT = str | int | float
FORMS = (
    "`messages` (or ShareGPT's `conversations`), or a question (`question`, `instruction`, `prompt` or `text`) and an answer "
    "(`answer`, `completion`, `response`, `output` or `label`)"
)
NOTHING = (None, "", [], {})
PLACEHOLDERS = frozenset(("n/a", "na", "nan", "none", "null"))  # of an empty section; an answer "None" is an answer


@dataclass(frozen=True)
class Record:
    """One conversation whose assistant turns are learned."""

    id: str
    messages: tuple[dict[str, Any], ...]  # as a chat template takes them; the last is the assistant's
    answer: str  # what is graded: the last message, or its section `### Answer:`
    sections: tuple[str, ...] = ()  # keys of SECTIONS in the last message; none: it is the answer alone
    tools: tuple[dict[str, Any], ...] | None = None
    group: str = ""  # document that the record belongs to
    first_learned: int = 0  # assistant messages before this one are a prompt
    text_alone: bool = False  # a text and a label without a question: the choices are told to the model

    @property
    def question(self) -> str:
        """What is asked, with what was said before it, without the system's text."""
        return "\n".join(str(each.get("content", "")) for each in self.messages[:-1] if each["role"] != "system")

    @property
    def system(self) -> str:
        return self.messages[0]["content"] if self.messages[0]["role"] == "system" else ""


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
        if empty := [name for name, records in splits.items() if not records]:
            reasons = dict(Counter(each["reason"] for each in set_aside))
            raise ValueError(
                f"data_source={self.name!r}: no record is left for {', '.join(empty)}; set aside: {reasons or 'none'}. Give more "
                "records, or splits of your own (train, validation, test)"
            )
        return replace(self, splits={name: tuple(each) for name, each in splits.items()}, set_aside=set_aside)

    def rows(self) -> list[dict[str, Any]]:
        """What there is, what was set aside for which reason and what is not used, for a table."""
        lines = [(f"{name} records", len(records), "") for name, records in self.splits.items()]
        reasons = Counter(each["reason"] for each in self.set_aside)
        first = {each["reason"]: f"first: {each['row']}" for each in reversed(self.set_aside)}
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
    digest, unused, repeats = hashlib.sha256(), Counter(), []
    seen: set[str] = set()  # conversations
    answered: set[tuple[str, ...]] = set()  # questions with their answers, of the splits before
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
            if conversation in seen or _question_with_answer(record) in answered:
                repeats.append({"row": set_aside.place(row), "reason": "repeats another row"})
            else:
                seen.add(conversation)
                records.append(record)
        answered.update(map(_question_with_answer, records))
    set_aside.check()
    absent = [name for name in splits if not splits[name]]
    if absent and splits["train"]:
        splits |= _held_out(splits["train"], absent, seed)
    choices = choices_of(splits["train"])
    records = Records(
        name=place.name,
        sha256=digest.hexdigest(),
        draw=f"seed {seed}",
        splits={},
        choices=choices,
        unused=dict(unused),
    )
    with_choices = {}
    for name in ("train", "validation", "test"):
        with_choices[name] = [told_choices(record, choices) for record in splits[name]]
    unusable = [{"row": where, "reason": reason} for where, reason in set_aside.rows]
    return records.keeping(with_choices, [*unusable, *repeats])


# ---- reading


def _read(place: Place, set_aside: SetAside) -> dict[str, Iterable[Row]]:
    """Rows by split; a file is one split, `train`."""
    if place.is_sample:
        from .sample import sample_records

        return {"train": number_rows("sample", sample_records(), set_aside)}
    return read_splits(place, SUFFIXES, set_aside)


def _question_with_answer(record: Record) -> tuple[str, ...]:
    """Without letter case and white space."""
    return (*record.question.casefold().split(), "", *record.answer.casefold().split())


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
        return row._replace(values={name: take(name)}).text(name, TEXT).strip()

    number, group = text("id") or str(row.number), text("document", "doc_id", "document_id", "group")
    tools, system = _tools(take("tools")), text("system", "system_prompt")
    learned, answer, sections, text_alone = 0, None, (), False
    if columns & {*CONVERSATIONS}:
        said = _messages(take(*CONVERSATIONS) or [], "user")
    elif columns & {*QUESTIONS, *TEXTS, "instruction"} and columns & {*ANSWERS}:
        if any(isinstance(values.get(name), list) for name in (*QUESTIONS, *ANSWERS)):
            prompt = _messages(take(*QUESTIONS) or [], "user")  # TRL's conversational prompt and completion
            said, learned = [*prompt, *_messages(take(*ANSWERS) or [], "assistant")], len(prompt)
        else:
            text_alone = "label" in values and not values.keys() & {*ANSWERS[:-1], *QUESTIONS, "instruction"}
            question = "\n\n".join(filter(None, (text("instruction"), text(*TEXTS), text(*QUESTIONS))))
            written = answer = text(*ANSWERS)
            texts = {name: text(*names) for name, names in SECTIONS.items()}
            texts = {name: each for name, each in texts.items() if each and each.lower() not in PLACEHOLDERS}
            if texts:
                texts |= {"answer": answer}
                sections = tuple(name for name in SECTIONS if name in texts)
                written = "".join(_section(name, texts[name]) for name in sections).strip()
                headings = ", ".join(f"### {heading(name)}" for name in sections)
                system = system or f"You are a legal assistant. Write each section under its own heading: {headings}."
            said = [{"role": "user", "content": question}, {"role": "assistant", "content": written}]
    else:
        names = ", ".join(map(str, row.values)) or "none"
        raise Unusable(f"no columns of a record (its columns: {names[:500]}). Give {FORMS}")
    unused.update(values.keys())
    if system and said and said[0]["role"] != "system":
        said, learned = [{"role": "system", "content": system}, *said], learned + 1
    while said and said[-1]["role"] != "assistant":
        said.pop()  # nobody answers
    if not said:
        raise Unusable("no question and no answer")
    roles = [message["role"] for message in said if message["role"] != "system"]
    if roles[0] == "assistant":
        raise Unusable("no question: the conversation begins with the assistant")
    if answer is None:
        calls = said[-1].get("tool_calls")
        answer = said[-1]["content"] or (json.dumps(calls) if calls else "")
    record = Record(number, tuple(said), answer, sections, tools, group, learned, text_alone)
    missing = [name for name in ("question", "answer") if not getattr(record, name).strip()]
    if missing:
        raise Unusable(f"no {' and no '.join(missing)}")
    return record


def _section(name: str, text: str) -> str:
    return f"### {heading(name)}: {text}\n" if name in IN_ONE_LINE else f"\n### {heading(name)}:\n{text}\n"


def heading(section: str) -> str:
    return section.replace("_", " ").title()


def section_of(text: str, section: str = "answer") -> str:
    """The text under a heading, up to the next heading; "" where there is none."""
    headings = "|".join(map(heading, SECTIONS))
    pattern = rf"^#+ *{heading(section)} *:(.*?)(?=^#+ *(?:{headings}) *:|\Z)"
    found = re.search(pattern, text, re.DOTALL | re.MULTILINE | re.IGNORECASE)
    return found[1].strip() if found else ""


def _messages(messages: Any, role: str) -> list[dict[str, Any]]:
    """Messages with `role`, `content` and every other key that has a value. A text is one message of `role`, or JSON of messages."""
    from trl import maybe_convert_to_chatml

    if isinstance(messages, str):
        messages = _list_of(messages) or [{"role": role, "content": messages}]
    converted = []
    for item in messages if isinstance(messages, list) else [messages]:
        message = {}
        if isinstance(item, Mapping):
            (message,) = maybe_convert_to_chatml({"messages": [dict(item)]})["messages"]
        name, content = message.get("role"), _content(message.get("content"))
        if not isinstance(name, str) or not isinstance(content, str):
            raise Unusable("a message must be an object with a `role`, and a text as its `content`")
        for call in message.get("tool_calls") or ():
            _check_arguments(call)
        name = name.strip().lower()
        kept = {key: value for key, value in message.items() if value not in NOTHING}
        converted.append(kept | {"role": ROLES.get(name, name), "content": content})
    return converted


def _content(content: Any) -> Any:
    """The text of a message; parts that are all texts are joined."""
    if isinstance(content, list) and all(isinstance(part, Mapping) and part.get("type") == "text" for part in content):
        return "".join(str(part.get("text", "")) for part in content)
    return content or ""


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


def _check_arguments(call: Any) -> None:
    function = call.get("function", call) if isinstance(call, Mapping) else call
    if not isinstance(function, Mapping):
        raise Unusable("a tool call must be an object")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            json.loads(arguments)
        except ValueError:
            raise Unusable("the arguments of a tool call are not JSON") from None


def _tools(tools: Any) -> tuple[dict[str, Any], ...] | None:
    try:
        return tuple(json.loads(tools) if isinstance(tools, str) else tools) if tools else None
    except (ValueError, TypeError):
        raise Unusable("column `tools` is not JSON") from None


# ---- labels


def choices_of(records: Sequence[Record]) -> tuple[str, ...]:
    """The labels of labelled records: few short answers, each of them many times; () of other records."""
    counts = Counter(record.answer for record in records)
    few = 1 < len(counts) <= MOST_CHOICES and len(records) >= ROWS_A_CHOICE * len(counts)
    return tuple(sorted(counts)) if few and max(map(len, counts)) <= LONGEST_CHOICE else ()


def told_choices(record: Record, choices: Sequence[str]) -> Record:
    """A text with a label and no question is told the labels to choose from."""
    if not (choices and record.text_alone):
        return record
    system = " ".join(filter(None, (f"Answer with one of: {', '.join(choices)}.", record.system)))
    rest = [each for each in record.messages if each["role"] != "system"]
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

    linked, first = DisjointSet(range(len(records))), {}
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
