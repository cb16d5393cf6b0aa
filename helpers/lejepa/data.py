"""Documents to search, questions to train on, and questions to choose and to test by, from a folder, a file or the hub.

Two jobs. *Past questions*: questions with their answers, both of which are searched; where answers repeat, new questions about the
same answers test, else questions about answers that no training pair has. *A folder*: documents alone, whose headings are the questions.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
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
from helpers.data.listing import Listing, list_files
from helpers.data.rows import Row, SetAside, Unusable, number_rows, read_rows, read_separated
from helpers.lejepa import documents, sample
from helpers.lejepa.documents import Passage, Spans, cut
from helpers.lejepa.parameters import DEFAULT_DATA, LEAST_BATCH
from helpers.run import checkpoint
from helpers.run.disk import write_json
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
JUDGEMENT = ("query-id", "corpus-id", "score")
PASSAGE_WORDS = 180  # where no model counts: about 256 tokens of English
HELD_OUT, MOST_HELD_OUT = 0.1, 500  # share that chooses, and as much that tests
WISHED = 50  # held-out questions; at most a fifth of all chooses, and as many test
DEALT = 1000  # judged questions that are dealt among training, dev and test; fewer choose and test
OTHERS = 20  # past questions with the same answer that an example has at most
HEADING_WORDS = range(2, 41)  # of a heading that can be a question
SPLIT_FILE = "questions.json"


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
    listing: Listing | None = None  # of a folder: what was read, and what was not
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
        a single document: its sections are the documents, or its paragraphs, or its lines;
        a hub set in MTEB's layout (subsets corpus, queries and default), or with the columns above.
    num_samples: training pairs that are drawn at most; 0 takes all. It never limits what is searchable.
    spans, limit: where the tokens of a text are, and how many of them a passage has at most: `model.token_spans`.

    Raises ValueError (a missing column, too few documents), FileNotFoundError and ConnectionError, which name data_source.
    """
    place = locate(data_source)
    listing = None
    if place.is_sample:
        content = _past_questions(sample.first_pairs())
    elif place.path is None:
        content = _from_hub(place)
    elif place.path.is_file():
        content = _from_file(place)
    elif (place.path / "corpus.jsonl").is_file():
        content = _from_beir(place)
    else:
        listing, content = _from_folder(place)
    passages = [part for section in content.sections for part in cut(section, spans, limit)]
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
        listing=listing,
        notes=content.notes,
        name=place.name,
        revision=REVISIONS.get(place.value),
        draw=f"{num_samples or 'all'} pairs, seed {seed}",
        sha256=hashlib.sha256(digested.encode()).hexdigest(),
    )


def _owners(questions: Iterable[Question]) -> set[str]:
    return {name for question in questions for name in question.answers}


def _bodies(passages: Iterable[Passage]) -> dict[str, str]:
    """The first passage of every document."""
    bodies: dict[str, str] = {}
    for passage in passages:
        bodies.setdefault(passage.document, passage.text)
    return bodies


# ---- files and rows


def _from_folder(place: Place) -> tuple[Listing, _Content]:
    """Documents and rows, side by side. A file that cannot be read is set aside, named in the listing."""
    listing = list_files(place.path, documents.SUFFIXES + ROWS, source=place.source)
    sections, questions, notes = [], [], ()
    for file in list(listing.files):
        set_aside = SetAside(listing.name(file))
        try:
            if file.suffix.lower() not in ROWS:
                sections += documents.read_document(file, set_aside.source)
                continue
            content = _from_rows(read_rows(file, ROWS, set_aside), set_aside)
        except ValueError as error:
            listing.skip(file, str(error))
            continue
        sections += content.sections
        notes += content.notes
        if content.kind == "past questions":
            questions += content.questions
    if questions:
        return listing, _Content(sections, questions, "past questions", notes)
    return listing, _with_headings(sections, notes)


def _from_file(place: Place) -> _Content:
    path = place.path
    if path.suffix.lower() not in documents.SUFFIXES:
        set_aside = SetAside(place.source)
        return _from_rows(read_rows(path, ROWS, set_aside), set_aside)
    try:
        sections = documents.read_document(path, path.name)
    except ValueError as error:
        raise ValueError(f"{place.source} {error}") from error
    if len(sections) == 1:
        [section] = sections
        paragraphs = re.split(r"\n\s*\n", section.body)
        parts = paragraphs if paragraphs[1:] else section.body.split("\n")
        sections = [section._replace(body=part.strip()) for part in parts if part.strip()]
    return _with_headings(
        [section._replace(document=f"{path.name} {number}") for number, section in enumerate(sections, 1)]
    )


def _from_rows(rows: Iterable[Row], set_aside: SetAside) -> _Content:
    """Past questions or documents, by the columns of the rows."""
    pairs, sections = [], []
    unused: set[str] = set()

    def take(row: Row) -> None:
        row = row._replace(values={str(name).lower(): value for name, value in row.values.items()})
        columns = _pair_columns(row)
        unused.update(row.values.keys() - (columns or DOCUMENT))
        if not columns:
            sections.extend(_document(row))
            return
        pair = [row.text(column).strip() for column in columns]
        if not all(pair):
            raise Unusable(f"column `{columns[pair.index('')]}` is empty")
        pairs.append(pair)

    for _ in set_aside.convert(rows, take):
        pass
    _report(set_aside)
    notes = (f"columns that are not used: {', '.join(sorted(unused))}",) if unused else ()
    return _past_questions(pairs, notes) if pairs else _with_headings(sections, notes)


def _pair_columns(row: Row) -> list[str]:
    """The columns of a question and of its answer; [] where there are none."""
    for kinds in PAIRS:
        columns = [next(filter(row.values.__contains__, names), "") for names in kinds]
        if all(columns):
            return columns
    return []


def _report(set_aside: SetAside) -> None:
    set_aside.check()
    if set_aside.rows:
        tracking.say(str(set_aside))


def _short_name(kind: str, text: str) -> str:
    """A name that stays when other rows come or go."""
    return f"{kind} {hashlib.sha256(_fold(text).encode()).hexdigest()[:8]}"


def _document(row: Row) -> list[Passage]:
    """A title leaves its body: one that repeats its passage would be learned from the words that they share."""
    row.column(("text",), COLUMNS)
    title, body = row.text("title").strip(), row.text("text").strip()
    if title and body.lower().startswith(title.lower()):
        body = body[len(title) :].lstrip(" .:\n")
    name = _id(row) or _short_name("text", title + body)
    return [Passage(name, title if body else "", body or title)] if title + body else []


def _id(row: Row) -> str:
    value = row.values.get("_id", row.values.get("id"))
    return "" if value is None else str(value)


def _past_questions(pairs: Iterable[Iterable[str]], notes: tuple[str, ...] = ()) -> _Content:
    """Questions and their answers; equal answers, by case and white space, are one document, and so are equal questions."""
    answers: dict[str, Passage] = {}
    questions: dict[str, tuple[str, set[str]]] = {}
    for question, answer in pairs:
        passage = answers.setdefault(_fold(answer), Passage(_short_name("answer", answer), "", answer))
        questions.setdefault(_fold(question), (question, set()))[1].add(passage.document)
    asked = [Question(text, frozenset(names)) for text, names in questions.values()]
    return _Content([*answers.values()], asked, "past questions", notes)


def _with_headings(sections: list[Passage], notes: tuple[str, ...] = ()) -> _Content:
    """Each heading that only one document has is a question that this document answers."""
    owners: dict[str, set[str]] = defaultdict(set)
    for section in sections:
        if len(words.spans(section.heading)) in HEADING_WORDS:
            owners[section.heading].add(section.document)
    asked = [Question(heading, frozenset(names)) for heading, names in owners.items() if len(names) == 1]
    return _Content(sections, asked, "headings" if asked else "none", notes)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


# ---- BEIR's layout, in a folder or on the hub


def _from_beir(place: Place) -> _Content:
    set_aside = SetAside(place.source)
    corpus = read_rows(place.path / "corpus.jsonl", ROWS, set_aside)
    judgements, queries = [], ()
    files = list_files(place.path / "qrels", None, source=place.source).files
    for path in [file for file in files if file.suffix == ".tsv"]:
        queries = read_rows(place.path / "queries.jsonl", ROWS, set_aside)
        judgements += read_separated(path, set_aside, source=f"{place.source}, {path.name}", columns=JUDGEMENT)
    return _judged(corpus, queries, judgements, set_aside)


def _from_hub(place: Place) -> _Content:
    import datasets

    revision = REVISIONS.get(place.value)
    set_aside = SetAside(place.source)
    with hub.reading(name="data_source", source=place.value):
        subsets = datasets.get_dataset_config_names(place.value, revision=revision)

        def rows(subset: str) -> list[Row]:
            splits = datasets.load_dataset(place.value, subset, revision=revision)
            return [row for split in splits.values() for row in number_rows(place.source, split, set_aside)]

        if {"corpus", "queries", "default"} <= {*subsets}:
            return _judged(rows("corpus"), rows("queries"), rows("default"), set_aside)
        return _from_rows(rows(subsets[0]), set_aside)


def _judged(corpus, queries, judgements, set_aside: SetAside) -> _Content:
    """Documents, and the questions with a document whose score is above 0."""
    sections = [section for several in set_aside.convert(corpus, _document) for section in several]
    names = {section.document for section in sections}
    asked = dict(set_aside.convert(queries, lambda row: (_id(row), row.text("text").strip())))
    answers: dict[str, set[str]] = defaultdict(set)

    def take(row: Row) -> None:
        query, document, score = (str(row.values.get(column)) for column in JUDGEMENT)
        try:
            text, score = asked[query], float(score)
        except (KeyError, ValueError):
            raise Unusable(f"queries.jsonl has no query {query!r}, or the score {score!r} is no number") from None
        if document in names and score > 0:
            answers[text].add(document)

    for _ in set_aside.convert(judgements, take):
        pass
    _report(set_aside)
    if not answers:
        return _with_headings(sections)
    return _Content(sections, [Question(text, frozenset(owners)) for text, owners in answers.items()], "questions")


# ---- splits


def _divide(content: _Content, draw: random.Random) -> tuple[dict[str, list[Question]], str]:
    """Questions that train (past), choose (dev) and test, and how they were divided."""
    questions = draw.sample(content.questions, len(content.questions))
    if not questions:
        return {"past": [], "dev": [], "test": []}, "not at all"
    if content.kind == "questions" and len(questions) < DEALT:
        half = len(questions) // 2 if len(questions) >= WISHED else 0
        parts = {"past": [], "dev": questions[:half], "test": questions[half:]}
        return parts, "by question: half choose, half test, none trains"
    counts = Counter(name for question in questions for name in question.answers)
    repeated = [question for question in questions if all(counts[name] > 1 for name in question.answers)]
    if content.kind != "headings" and 2 * len(repeated) > len(questions):
        parts = _divide_by_question(questions, counts)
        return parts, "by question: each answer has other questions that train"
    parts = _divide_by_answer(questions, draw)
    if content.kind == "headings":
        return parts | {"past": []}, "by document: nothing about the documents that choose or test is trained on"
    return parts, "by answer: nothing about the answers that choose or test is trained on"


def _quota(count: int) -> int:
    return min(MOST_HELD_OUT, max(round(HELD_OUT * count), min(WISHED, count // 5)))


def _divide_by_question(questions: list[Question], left: Counter[str]) -> dict[str, list[Question]]:
    """A question chooses or tests only while each of its answers keeps another question."""
    held_out, past = [], []
    quota = _quota(len(questions))
    for question in questions:
        if len(held_out) < 2 * quota and all(left[name] > 1 for name in question.answers):
            held_out.append(question)
            left.subtract(question.answers)
        else:
            past.append(question)
    half = len(held_out) // 2
    return {"past": past, "dev": held_out[:half], "test": held_out[half:]}


def _divide_by_answer(questions: list[Question], draw: random.Random) -> dict[str, list[Question]]:
    """A question whose answers are on two sides is left out."""
    names = sorted(_owners(questions))
    draw.shuffle(names)
    quota = _quota(len(names))
    sides = {"past": {*names[2 * quota :]}, "dev": {*names[:quota]}, "test": {*names[quota : 2 * quota]}}
    return {part: [question for question in questions if question.answers <= side] for part, side in sides.items()}


def _from_passages(passages: Iterable[Passage]) -> list[Example]:
    examples = {}
    for passage in passages:
        key = _fold(passage.heading or passage.body)
        examples[_fold(passage.text)] = Example(passage.heading, (passage.body,), key)
    return [*examples.values()]


def _from_questions(past: list[Question], bodies: dict[str, str]) -> list[Example]:
    """A question with its answer, and with other past questions about it."""
    asked: dict[str, list[str]] = defaultdict(list)
    for question in past:
        for name in question.answers:
            asked[name].append(question.text)
    examples = []
    for name, texts in asked.items():
        ring = texts + texts
        others = min(OTHERS, len(texts) - 1)
        for place, text in enumerate(texts, 1):
            examples.append(Example(text, (bodies[name], *ring[place : place + others]), name))
    return examples


# ---- a run that goes on


def keep_split(collection: Collection, folder: Path) -> Collection:
    """The collection with the questions that train, choose and test in the run of `folder`, so that new documents need no new run.

    Documents may come, change and go: they are searched as they are now, and the model stays the one of the questions that the run
    began with. A question whose document is gone is left out. Before its first step the run takes the questions of `collection`.
    """
    file = folder / SPLIT_FILE
    parts = ("past", "dev", "test")
    began = any(checkpoint.step_of(path) for path in checkpoint.listed(folder))
    if not (began and file.is_file()):
        fields = {name: getattr(collection, name) for name in ("source", "sha256", "training", *parts)}
        write_json(file, fields)
        return collection
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept["source"] == collection.source:
        return collection
    tracking.say(
        "the documents have changed since this run began: they are searched as they are now, and only new or changed passages are "
        "embedded. The model stays as it was trained; to train on the new texts as well, set output_dir to a new folder"
    )
    names = {*collection.documents}
    questions = {}
    for part in parts:
        before = [Question(text, frozenset(answers)) for text, answers in kept[part]]
        questions[part] = [question for question in before if question.answers <= names]
    if collection.past:
        texts = {text for part in parts for text, _ in kept[part]}
        now = collection.past + collection.dev + collection.test
        questions["past"] += [question for question in now if question.text not in texts]
    training = [Example(question, tuple(texts), key) for question, texts, key in kept["training"]]
    return dataclasses.replace(collection, training=training, sha256=kept["sha256"], **questions)
