"""Documents to search, questions to train on, and questions to choose and to test by, from a folder, a file or the hub.

Two jobs. *Past questions*: questions with their answers, both of which are searched; where answers repeat, new questions about the
same answers test, else questions about answers that no training pair has. *A folder*: documents alone, whose headings are the questions.
"""

import hashlib
import itertools
import json
import random
from collections import defaultdict
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
PAIRS = (
    ("question", "answer"),
    ("anchor", "positive"),
    ("query", "response"),
    ("text", "category"),
    ("text", "label"),
)  # columns of past questions
COLUMNS = "name the columns `question` and `answer` for past questions, or `text` (perhaps `title`) for documents"
SUBSETS = ("corpus", "queries", "default")  # of a hub set in MTEB's layout
PASSAGE_WORDS = 180  # where no model counts: about 256 tokens of English
HELD_OUT, MOST_HELD_OUT = 0.1, 500  # share that chooses, and as much that tests
WISHED = 50  # held-out questions; at most a fifth of all chooses, and as many test
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

    kind: str  # of its questions: "past questions" or "headings"
    split: str  # how the questions are divided, in words
    passages: list[Passage]
    past: list[Question]  # those that train: they are searched beside their answers
    training: list[Example]
    dev: list[Question]
    test: list[Question]

    @property
    def documents(self) -> list[str]:
        return list(dict.fromkeys(passage.document for passage in self.passages))

    def searched(self, past: Sequence[Question]) -> list[Passage]:
        """All passages, and each of the past questions as one more passage of its answer."""
        bodies = _bodies(self.passages)
        questions = []
        for question in past:
            for name in sorted(question.answers):
                questions.append(Passage(name, "", question.text, answer=bodies[name]))
        return self.passages + questions


def load(
    data_source: str, *, num_samples: int = 0, seed: int = 0, spans: Spans = words.spans, limit: int = PASSAGE_WORDS
) -> Collection:
    """The collection that `data_source` names.

    data_source: one of
        "sample": docstrings of the installed Python's standard library;
        a folder of documents (`documents.SUFFIXES`), beside which may lie .csv, .tsv, .jsonl or .parquet files of past questions;
        a .jsonl, .csv, .tsv or .parquet with a question and an answer, a text and a label, or texts;
        a single document: its sections are the documents;
        a hub set in MTEB's layout (subsets corpus, queries and default).
    num_samples: training pairs that are drawn at most; 0 takes all. It never limits what is searchable.
    spans, limit: where the tokens of a text are, and how many of them a passage has at most: `model.token_spans`.

    Raises ValueError (a missing column, too few documents, a hub set that cannot be read) and FileNotFoundError, which name data_source.
    """
    place = locate(data_source)
    sections, questions, kind = _content(_read(place))
    passages = [passage for section in sections for passage in cut(section, spans, limit)]
    draw = random.Random(seed)
    shuffled = draw.sample(questions, len(questions))
    parts, split = _divide(shuffled, kind, draw)
    training = from_questions(parts["past"], passages)
    if not training:
        held_out = _owners(parts["dev"] + parts["test"])
        training = from_passages(passage for passage in passages if passage.document not in held_out)
    draw.shuffle(training)
    training = training[: num_samples or None]
    if len(training) < LEAST_BATCH:
        raise ValueError(
            f"{place.source}: only {len(training)} of at least {LEAST_BATCH} texts to train on. Add documents, or set num_samples=0"
        )
    digested = json.dumps([passages, questions], default=sorted)
    return Collection(
        kind=kind,
        split=split,
        passages=passages,
        training=training,
        **parts,
        name=place.name,
        revision=REVISIONS.get(place.value),
        draw=f"{num_samples or 'all'} pairs, seed {seed}",
        sha256=hashlib.sha256(digested.encode()).hexdigest(),
    )


def _owners(questions: Iterable[Question]) -> set[str]:
    return set().union(*(question.answers for question in questions))


def _bodies(passages: list[Passage]) -> dict[str, str]:
    """The first passage of every document."""
    return {passage.document: passage.text for passage in reversed(passages)}


# ---- reading: documents, and past questions, which are passages with an answer


def _read(place: Place) -> list[Passage]:
    if place.is_sample:
        return list(itertools.starmap(_pair, sample.first_pairs()))
    if place.path is None:
        return _from_hub(place)
    if place.path.is_dir():
        return _from_folder(place.path, place.source)
    texts = _from_file(place.path, place.source)
    if place.path.suffix.lower() not in ROWS:
        texts = [text._replace(document=f"{place.name} {number}") for number, text in enumerate(texts, 1)]
    return texts


def _from_folder(folder: Path, source: str) -> list[Passage]:
    """Documents and rows, side by side. A file that cannot be read is named."""
    paths, passed_over = list_files(folder, documents.SUFFIXES + ROWS, source)
    tracking.say(f"{len(paths):,} files are read; passed over: {dict(passed_over)}")
    texts: list[Passage] = []
    for path in paths:
        try:
            texts += _from_file(path, path.relative_to(folder).as_posix())
        except ValueError as error:
            tracking.say(f"not read: {error}")
    return texts


def _from_file(path: Path, source: str) -> list[Passage]:
    if path.suffix.lower() in documents.SUFFIXES:
        return documents.read_document(path, source)
    return _convert(read_rows(path, ROWS, source), _from_row, source)


def _from_hub(place: Place) -> list[Passage]:
    """Documents, and each question with each document whose score is above 0."""
    import datasets

    with hub.reading(name="data_source", source=place.value):
        revision = REVISIONS.get(place.value)
        subsets = [datasets.load_dataset(place.value, name, split="all", revision=revision) for name in SUBSETS]
    corpus, queries, judgements = map(number_rows, subsets)
    texts = _convert(corpus, _document, place.source)
    bodies = _bodies(texts)
    questions = {str(row.values["_id"]): row.values["text"].strip() for row in queries}
    for row in judgements:
        document = str(row.values["corpus-id"])
        if document in bodies and row.values["score"] > 0:
            texts.append(Passage(document, "", questions[str(row.values["query-id"])], bodies[document]))
    return texts


def _convert(rows: Iterable[Row], convert, source: str) -> list[Passage]:
    set_aside = SetAside(source)
    texts = list(set_aside.convert(rows, convert))
    set_aside.check()
    return texts


def _from_row(row: Row) -> Passage:
    """A past question with its answer, or a document, by the columns of the row."""
    for question, answer in PAIRS:
        if question in row.values and answer in row.values:
            return _pair(_text(row, question), _text(row, answer))
    return _document(row)


def _text(row: Row, column: str) -> str:
    text = row.text(column).strip()
    if not text:
        raise Unusable(f"column `{column}` is empty")
    return text


def _pair(question: str, answer: str) -> Passage:
    """Equal answers, by case and white space, are one document."""
    return Passage(_short_name(answer), "", question, answer)


def _short_name(text: str) -> str:
    return f"text {hashlib.sha256(_fold(text).encode()).hexdigest()[:8]}"


def _document(row: Row) -> Passage:
    """A title leaves its body: one that repeats its passage would be learned from the words that they share."""
    row.column(("text",), COLUMNS)
    title, body = row.text("title").strip(), _text(row, "text")
    if title and body.lower().startswith(title.lower()):
        body = body[len(title) :].lstrip(" .:\n") or body
    name = row.values.get("_id") or row.values.get("id") or _short_name(title + body)
    return Passage(str(name), title, body)


def _fold(text: str) -> str:
    return " ".join(text.casefold().split())


# ---- questions


def _content(texts: list[Passage]) -> tuple[list[Passage], list[Question], str]:
    """Documents, questions and their kind. Without past questions each heading that only one document has is a question."""
    past: list[Passage] = []
    sections: list[Passage] = []
    for text in texts:
        (past if text.answer else sections).append(text)
    asked = [(text.body, text.document) for text in past]
    kind = "past questions"
    if past:
        answers = {text.document: Passage(text.document, "", text.answer) for text in past}
        for section in sections:
            answers.pop(section.document, None)
        sections += answers.values()
    else:
        kind = "headings"
        for section in sections:
            if len(words.spans(section.heading)) in HEADING_WORDS:
                asked.append((section.heading, section.document))
    owners: dict[str, tuple] = {}  # by the folded text of a question
    for question, document in asked:
        _, names = owners.setdefault(_fold(question), (question, set()))
        names.add(document)
    questions = [Question(text, frozenset(names)) for text, names in owners.values() if past or len(names) == 1]
    return sections, questions, kind


def _divide(questions: list[Question], kind: str, draw: random.Random) -> tuple[dict[str, list[Question]], str]:
    """Questions that train (past), choose (dev) and test, and how they were divided."""
    answers = sorted(_owners(questions))
    if kind == "past questions" and 2 * len(answers) < len(questions):
        return _share(questions), "by question: most answers have other questions for training"
    draw.shuffle(answers)
    parts = {}
    for name, share in _share(answers).items():  # a question whose answers are on two sides is left out
        side = set(share)
        parts[name] = [question for question in questions if question.answers <= side]
    if kind == "headings":
        parts["past"] = []
    return parts, "by answer: documents of dev and test questions are not used for training"


def _share(items: list) -> dict[str, list]:
    fewest = min(WISHED, len(items) // 5)
    quota = min(MOST_HELD_OUT, max(fewest, round(HELD_OUT * len(items))))
    return {"dev": items[:quota], "test": items[quota : 2 * quota], "past": items[2 * quota :]}


# ---- training


def from_passages(passages: Iterable[Passage]) -> list[Example]:
    examples = {}
    for passage in passages:
        key = _fold(passage.heading or passage.body)
        examples[_fold(passage.text)] = Example(passage.heading, (passage.body,), key)
    return [*examples.values()]


def from_questions(past: list[Question], passages: list[Passage]) -> list[Example]:
    """A question with its answer, and with other past questions about it."""
    questions: dict[str, list[str]] = defaultdict(list)
    for question in past:
        for name in sorted(question.answers):
            questions[name].append(question.text)
    bodies = _bodies(passages)
    examples = []
    for name, texts in questions.items():
        for place, text in enumerate(texts):
            others = texts[place + 1 :] + texts[:place]
            examples.append(Example(text, (bodies[name], *others[:OTHERS]), name))
    return examples
