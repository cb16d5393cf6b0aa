"""Documents to search, questions to train on, and questions to choose and to test by, from a folder, a file or the hub.

Two jobs. *Past questions*: questions with their answers, both of which are searched; where answers repeat, new questions about the
same answers test, else questions about answers that no training pair has. *A folder*: documents alone, whose headings are the questions.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import json
import random
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from helpers.data import hub, words
from helpers.data.data_source import DataSource, Place, locate
from helpers.data.files import list_files
from helpers.data.rows import Row, SetAside, Unusable, number_rows, read_rows
from helpers.lejepa import documents, sample
from helpers.lejepa.documents import Passage, Spans, cut
from helpers.lejepa.parameters import DEFAULT_DATA, LEAST_BATCH
from helpers.show import tracking

REVISIONS = {DEFAULT_DATA: "ae763399273d8b20506b80cf6f6f9a31a6a2b238"}  # the one of MTEB's task MedicalQARetrieval
ROWS = (".jsonl", ".csv", ".tsv", ".parquet")
PAIRS = (  # columns of a question, and of its answer
    (("anchor", "query", "question", "prompt"), ("positive", "answer", "response", "completion")),
    (("text",), ("category", "label", "intent", "topic")),
)
DOCUMENT = {"_id", "id", "title", "text"}
COLUMNS = (
    "name the columns `question` and `answer` (or anchor, query and positive) for past questions, or `text` (perhaps `title`) "
    "for documents"
)
PARTS = (
    r"\n\s*\n",
    r"\n",
    r"(?<=[。！？])|(?<=[.!?])\s",
)  # between paragraphs, lines and sentences of a single document
JUDGEMENT = ("query-id", "corpus-id", "score")
PASSAGE_WORDS = 180  # where no model counts: about 256 tokens of English
HELD_OUT, MOST_HELD_OUT = 0.1, 500  # share that chooses, and as much that tests
WISHED = 50  # held-out questions; at most a fifth of all chooses, and as many test
DEALT = 1000  # judged questions that are dealt among training, dev and test; fewer choose and test
OTHERS = 20  # past questions with the same answer that an example has at most
HEADING_WORDS = range(2, 41)  # of a heading that can be a question


class Question(NamedTuple):
    text: str
    answers: frozenset[str]  # names of documents


class Example(NamedTuple):
    """What a row of training is drawn from."""

    question: str  # or heading; "" takes a crop of the text
    texts: tuple[str, ...]  # the passage, and other past questions with the same answer
    key: str  # two examples with the same key are never in one batch


@dataclass(frozen=True)
class Collection(DataSource):
    """What a run searches, trains on, chooses by and is tested by."""

    kind: str  # of its questions: "past questions", "questions" with judgements, "headings" or "none"
    split: str  # how the questions are divided, in words
    passages: list[Passage]
    past: list[Question]  # those that train: they are searched beside their answers
    training: list[Example]
    dev: list[Question]
    test: list[Question]
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def documents(self) -> list[str]:
        return list(dict.fromkeys(passage.document for passage in self.passages))

    @property
    def answers_repeat(self) -> bool:
        """Whether past questions have the answers that new questions ask for, so that a classifier can learn them."""
        return bool(_owners(self.past) & _owners(self.dev + self.test))

    def searched(self, past: Sequence[Question]) -> list[Passage]:
        """All passages, and each of the past questions as one more passage of its answer."""
        bodies = _bodies(self.passages)
        questions = []
        for question in past:
            for name in sorted(question.answers):
                questions.append(Passage(name, "", question.text, answer=bodies[name]))
        return self.passages + questions


class _Content(NamedTuple):
    sections: list[Passage]
    questions: list[Question]
    kind: str
    notes: tuple[str, ...] = ()


def load(
    data_source: str, *, num_samples: int = 0, seed: int = 0, spans: Spans = words.spans, limit: int = PASSAGE_WORDS
) -> Collection:
    """The collection that `data_source` names.

    data_source: one of
        "sample": docstrings of the installed Python's standard library;
        a folder of documents (`documents.SUFFIXES`), beside which may lie .csv, .tsv, .jsonl or .parquet files of past questions;
        a folder in BEIR's layout: corpus.jsonl, perhaps queries.jsonl with qrels/*.tsv;
        a .jsonl, .csv, .tsv or .parquet with a question and an answer, a text and a label, or texts;
        a single document: its sections are the documents, or its paragraphs, lines or sentences;
        a hub set in MTEB's layout (subsets corpus, queries and default), or with the columns above.
    num_samples: training pairs that are drawn at most; 0 takes all. It never limits what is searchable.
    spans, limit: where the tokens of a text are, and how many of them a passage has at most: `model.token_spans`.

    Raises ValueError (a missing column, too few documents, a hub set that cannot be read) and FileNotFoundError, which name data_source.
    """
    place = locate(data_source)
    if place.is_sample:
        content = _content(itertools.starmap(_pair, sample.first_pairs()))
    elif place.path is None:
        content = _from_hub(place)
    elif place.path.is_file():
        content = _from_file(place.path, place.source)
    elif (place.path / "corpus.jsonl").is_file():
        content = _from_beir(place.path, place.source)
    else:
        content = _from_folder(place.path, place.source)
    passages: list[Passage] = []
    for section in content.sections:
        passages += cut(section, spans, limit)
    draw = random.Random(seed)
    parts, split = _divide(content, draw)
    if content.kind == "headings":
        held_out = _owners(parts["dev"] + parts["test"])
        training = _from_passages(passage for passage in passages if passage.document not in held_out)
    elif parts["past"]:
        training = _from_questions(parts["past"], _bodies(passages))
    else:
        training = _from_passages(passages)
    if len(training) < LEAST_BATCH:
        raise ValueError(
            f"{place.source}: {len(training)} different texts to train on; at least {LEAST_BATCH} are needed. "
            f"Add documents; in a folder they are {', '.join(documents.SUFFIXES)} files"
        )
    draw.shuffle(training)
    digested = json.dumps([passages, content.questions], ensure_ascii=False, default=sorted)
    return Collection(
        kind=content.kind,
        split=split,
        passages=passages,
        training=training[: num_samples or None],
        **parts,
        notes=content.notes,
        name=place.name,
        revision=REVISIONS.get(place.value),
        draw=f"{num_samples or 'all'} pairs, seed {seed}",
        sha256=hashlib.sha256(digested.encode()).hexdigest(),
    )


def _owners(questions: Iterable[Question]) -> set[str]:
    return set().union(*(question.answers for question in questions))


def _bodies(passages: Iterable[Passage]) -> dict[str, str]:
    """The first passage of every document."""
    bodies: dict[str, str] = {}
    for passage in passages:
        bodies.setdefault(passage.document, passage.text)
    return bodies


# ---- files and rows


def _from_folder(folder: Path, source: str) -> _Content:
    """Documents and rows, side by side. A file that cannot be read is named."""
    paths, passed_over = list_files(folder, documents.SUFFIXES + ROWS, source)
    tracking.say(f"{len(paths):,} files are read; passed over: {dict(passed_over)}")
    texts: list[Passage] = []
    unused: set[str] = set()
    for file in paths:
        name = file.relative_to(folder).as_posix()
        try:
            if file.suffix.lower() in ROWS:
                texts += _from_rows(read_rows(file, ROWS, name), SetAside(name), unused)
            else:
                texts += documents.read_document(file, name)
        except ValueError as error:
            tracking.say(f"not read: {name}: {error}")
    return _content(texts, unused)


def _from_file(path: Path, source: str) -> _Content:
    unused: set[str] = set()
    if path.suffix.lower() not in documents.SUFFIXES:
        return _content(_from_rows(read_rows(path, ROWS, source), SetAside(source), unused), unused)
    try:
        sections = documents.read_document(path, path.name)
    except ValueError as error:
        raise ValueError(f"{source} {error}") from error
    for pattern in PARTS:
        if len(sections) == 1:
            texts = map(str.strip, re.split(pattern, sections[0].body))
            sections = [sections[0]._replace(body=text) for text in texts if text]
    numbered = []
    for number, section in enumerate(sections, 1):
        numbered.append(section._replace(document=f"{path.name} {number}"))
    return _content(numbered, unused)


def _from_rows(rows: Iterable[Row], set_aside: SetAside, unused: set[str]) -> list[Passage]:
    """Documents, and past questions with their answers, by the columns of each row. Adds the columns that are not used to `unused`."""

    def read(row: Row) -> Passage:
        columns = _pair_columns(row)
        unused.update(row.values.keys() - (columns or DOCUMENT))
        if not columns:
            return _document(row)
        texts = [row.text(column).strip() for column in columns]
        for column, text in zip(columns, texts, strict=True):
            if not text:
                raise Unusable(f"column `{column}` is empty")
        return _pair(*texts)

    texts = list(set_aside.convert(rows, read))
    _report(set_aside)
    return texts


def _pair_columns(row: Row) -> list[str]:
    """The columns of a question and of its answer; [] where there are none."""
    for questions, answers in PAIRS:
        question = [name for name in questions if name in row.values]
        answer = [name for name in answers if name in row.values]
        if question and answer:
            return [question[0], answer[0]]
    return []


def _report(set_aside: SetAside) -> None:
    set_aside.check()
    if set_aside.rows:
        tracking.say(str(set_aside))


def _pair(question: str, answer: str) -> Passage:
    """Equal answers, by case and white space, are one document."""
    return Passage(_short_name("answer", answer), "", question, answer)


def _short_name(kind: str, text: str) -> str:
    """A name that stays when other rows come or go."""
    return f"{kind} {hashlib.sha256(_fold(text).encode()).hexdigest()[:8]}"


def _document(row: Row) -> Passage:
    """A title leaves its body: one that repeats its passage would be learned from the words that they share."""
    row.column(("text",), COLUMNS)
    title = row.text("title").strip()
    body = row.text("text").strip()
    if title and body.lower().startswith(title.lower()):
        body = body[len(title) :].lstrip(" .:\n")
    if not body:
        title, body = "", title
    if not body:
        raise Unusable("column `text` is empty")
    return Passage(_id(row) or _short_name("text", title + body), title, body)


def _id(row: Row) -> str:
    value = row.values.get("_id", row.values.get("id"))
    if value is None:
        return ""
    return str(value)


def _content(texts: Iterable[Passage], unused: Iterable[str] = ()) -> _Content:
    """texts: documents, and past questions with their answers."""
    notes: tuple[str, ...] = ()
    if unused:
        notes = (f"columns that are not used: {', '.join(sorted(unused))}",)
    sections, answers = [], {}
    spellings: dict[str, str] = {}
    owners: dict[str, set[str]] = defaultdict(set)
    for text in texts:
        if text.answer:
            answers[text.document] = Passage(text.document, "", text.answer)
            question = spellings.setdefault(_fold(text.body), text.body)
            owners[question].add(text.document)
        else:
            sections.append(text)
    if not answers:
        return _with_headings(sections, notes)
    return _Content([*sections, *answers.values()], _questions(owners), "past questions", notes)


def _questions(owners: dict[str, set[str]]) -> list[Question]:
    """Questions from their texts and the documents that answer them."""
    return [Question(text, frozenset(answers)) for text, answers in owners.items()]


def _with_headings(sections: list[Passage], notes: tuple[str, ...] = ()) -> _Content:
    """Each heading that only one document has is a question that this document answers."""
    owners: dict[str, set[str]] = defaultdict(set)
    for section in sections:
        if len(words.spans(section.heading)) in HEADING_WORDS:
            owners[section.heading].add(section.document)
    questions = [question for question in _questions(owners) if len(question.answers) == 1]
    kind = "none"
    if questions:
        kind = "headings"
    return _Content(sections, questions, kind, notes)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


# ---- BEIR's layout, in a folder or on the hub


def _from_beir(folder: Path, source: str) -> _Content:
    set_aside = SetAside(source)
    corpus = read_rows(folder / "corpus.jsonl", ROWS, source)
    judgements: list[Row] = []
    queries: Iterable[Row] = ()
    for path in sorted(folder.glob("qrels/*.tsv")):
        queries = read_rows(folder / "queries.jsonl", ROWS, source)
        judgements += read_rows(path, ROWS, f"{source}, {path.name}")
    return _judged(corpus, queries, judgements, set_aside)


def _from_hub(place: Place) -> _Content:
    import datasets

    revision = REVISIONS.get(place.value)
    set_aside = SetAside(place.source)
    with hub.reading(name="data_source", source=place.value):
        subsets = datasets.get_dataset_config_names(place.value, revision=revision)

        def rows(subset: str) -> list[Row]:
            rows: list[Row] = []
            for split in datasets.load_dataset(place.value, subset, revision=revision).values():
                rows += number_rows(split)
            return rows

        if {"corpus", "queries", "default"} <= {*subsets}:
            return _judged(rows("corpus"), rows("queries"), rows("default"), set_aside)
        unused: set[str] = set()
        return _content(_from_rows(rows(subsets[0]), set_aside, unused), unused)


def _judged(corpus, queries, judgements, set_aside: SetAside) -> _Content:
    """Documents, and the questions with a document whose score is above 0."""
    sections = list(set_aside.convert(corpus, _document))
    names = {section.document for section in sections}
    texts = dict(set_aside.convert(queries, lambda row: (_id(row), row.text("text").strip())))
    owners: dict[str, set[str]] = defaultdict(set)

    def take(row: Row) -> None:
        query, document, written = (str(row.values.get(column)) for column in JUDGEMENT)
        try:
            text, score = texts[query], float(written)
        except (KeyError, ValueError):
            raise Unusable(f"queries.jsonl has no query {query!r}, or the score {written!r} is no number") from None
        if document in names and score > 0:
            owners[text].add(document)

    for _ in set_aside.convert(judgements, take):
        pass
    _report(set_aside)
    if not owners:
        return _with_headings(sections)
    return _Content(sections, _questions(owners), "questions")


# ---- splits


def _divide(content: _Content, draw: random.Random) -> tuple[dict[str, list[Question]], str]:
    """Questions that train (past), choose (dev) and test, and how they were divided."""
    questions = draw.sample(content.questions, len(content.questions))
    if not questions:
        return {"past": [], "dev": [], "test": []}, "not at all"
    if content.kind == "questions" and len(questions) < DEALT:
        half = 0
        if len(questions) >= WISHED:
            half = len(questions) // 2
        parts = {"past": [], "dev": questions[:half], "test": questions[half:]}
        return parts, "by question: half for dev, half for the test, none for training"
    counts = Counter[str]()
    for question in questions:
        counts.update(question.answers)
    once = {name for name, count in counts.items() if count == 1}
    repeated = [question for question in questions if not question.answers & once]
    if content.kind != "headings" and 2 * len(repeated) > len(questions):
        parts = _divide_by_question(questions)
        return parts, "by question: each answer has other questions for training"
    parts = _divide_by_answer(questions, draw)
    if content.kind == "headings":
        return parts | {"past": []}, "by document: documents of dev and test questions are not used for training"
    return parts, "by answer: answers of dev and test questions are not used for training"


def _share(items: list) -> dict[str, list]:
    fewest = min(WISHED, len(items) // 5)
    quota = min(MOST_HELD_OUT, max(fewest, round(HELD_OUT * len(items))))
    return {"dev": items[:quota], "test": items[quota : 2 * quota], "past": items[2 * quota :]}


def _divide_by_question(questions: list[Question]) -> dict[str, list[Question]]:
    """A question of which an answer has no question left that trains, trains itself."""
    parts = _share(questions)
    learned = _owners(parts["past"])
    for name in ("dev", "test"):
        part, parts[name] = parts[name], []
        for question in part:
            if question.answers <= learned:
                parts[name].append(question)
            else:
                parts["past"].append(question)
    return parts


def _divide_by_answer(questions: list[Question], draw: random.Random) -> dict[str, list[Question]]:
    """A question whose answers are on two sides is left out."""
    answers = sorted(_owners(questions))
    draw.shuffle(answers)
    parts = {}
    for name, share in _share(answers).items():
        side = set(share)
        parts[name] = [question for question in questions if question.answers <= side]
    return parts


def _from_passages(passages: Iterable[Passage]) -> list[Example]:
    examples = {}
    for passage in passages:
        key = _fold(passage.heading or passage.body)
        examples[_fold(passage.text)] = Example(passage.heading, (passage.body,), key)
    return [*examples.values()]


def _from_questions(past: list[Question], bodies: dict[str, str]) -> list[Example]:
    """A question with its answer, and with other past questions about it."""
    questions: dict[str, list[str]] = defaultdict(list)
    for question in past:
        for name in sorted(question.answers):
            questions[name].append(question.text)
    examples = []
    for name, texts in questions.items():
        ring = texts + texts
        count = min(OTHERS, len(texts) - 1)
        for place, text in enumerate(texts, 1):
            others = ring[place : place + count]
            examples.append(Example(text, (bodies[name], *others), name))
    return examples
