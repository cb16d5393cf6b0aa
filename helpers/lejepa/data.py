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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from helpers.data import hub, words
from helpers.data.data_source import DataSource, Place, locate
from helpers.data.listing import Listing, list_files
from helpers.data.rows import Row, SetAside, Unusable, number_rows, read_rows, read_separated
from helpers.lejepa import documents, sample
from helpers.lejepa.documents import Passage, Spans, cut
from helpers.lejepa.parameters import DEFAULT_DATA, LEAST_BATCH
from helpers.run import checkpoint
from helpers.run.run_folder import write_json
from helpers.show import tracking

REVISIONS = {DEFAULT_DATA: "ae763399273d8b20506b80cf6f6f9a31a6a2b238"}  # the one of MTEB's task MedicalQARetrieval
ROWS = (".jsonl", ".csv", ".tsv", ".parquet")
QUESTION = ("anchor", "query", "question", "prompt")
ANSWER = ("positive", "answer", "response", "completion")
DOCUMENT = {"_id", "id", "title", "text"}
LABEL = ("category", "label", "intent", "topic")  # beside a `text`, the answer of a ticket
COLUMNS = (
    f"name the columns `question` and `answer` (or {', '.join(QUESTION[:2])} and {', '.join(ANSWER[:1])}) for past questions, or "
    "`text` (perhaps `title`) for documents"
)
PASSAGE_WORDS = 180  # where no model counts: about 256 tokens of English
HELD_OUT, MOST_HELD_OUT = 0.1, 500  # share that chooses, and as much that tests
WISHED = 50  # held-out questions; at most a quarter of all is held out for that
DEALT = 1000  # questions of a single split that are dealt among training, dev and test; fewer choose and test
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
    limit: int = PASSAGE_WORDS  # tokens of a passage
    listing: Listing | None = None  # of a folder: what was read, and what was not
    notes: tuple[str, ...] = ()

    @functools.cached_property
    def documents(self) -> list[str]:
        return list(dict.fromkeys(passage.document for passage in self.passages))

    @property
    def answers_repeat(self) -> bool:
        """Whether past questions have the answers that new questions ask for, so that a classifier can learn them."""
        known = {name for question in self.past for name in question.answers}
        return any(question.answers & known for question in self.dev + self.test)

    def searched(self, past: Sequence[Question]) -> list[Passage]:
        """All passages, and each of the past questions as one more passage of its answer."""
        bodies: dict[str, str] = {}
        for passage in self.passages:
            bodies.setdefault(passage.document, passage.text)
        questions = []
        for question in past:
            for name in sorted(question.answers):
                questions.append(Passage(name, "", question.text, answer=bodies[name]))
        return self.passages + questions


class _Content(NamedTuple):
    documents: dict[str, list[Passage]]
    questions: dict[str, list[Question]] = {}  # split -> questions; "all" are not split yet  # noqa: RUF012
    kind: str = "none"
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
    passages = [
        part for several in content.documents.values() for section in several for part in cut(section, spans, limit)
    ]
    parts = _split(content, passages, place, random.Random(seed))
    training = parts.pop("training")
    return Collection(
        kind=content.kind,
        passages=passages,
        training=training[: num_samples or None],
        **parts,
        limit=limit,
        listing=listing,
        notes=content.notes,
        name=place.name,
        revision=REVISIONS.get(place.value),
        draw=f"{num_samples or 'all'} pairs, seed {seed}",
        sha256=_digest(content, passages),
    )


def _digest(content: _Content, passages: list[Passage]) -> str:
    asked = [(question.text, *sorted(question.answers)) for part in content.questions.values() for question in part]
    texts = json.dumps([passages, asked], ensure_ascii=False)
    return hashlib.sha256(texts.encode()).hexdigest()


# ---- files and rows


def _from_folder(place: Place) -> tuple[Listing, _Content]:
    """Documents and rows, side by side. A file that cannot be read is set aside, named in the listing."""
    listing = list_files(place.path, documents.SUFFIXES + ROWS, source=place.source)
    contents = []
    for file in list(listing.files):
        try:
            if file.suffix.lower() in ROWS:
                set_aside = SetAside(listing.name(file))
                contents.append(_from_rows(read_rows(file, ROWS, set_aside), set_aside))
            else:
                name = listing.name(file)
                contents.append(_Content({name: documents.read_document(file, name)}))
        except ValueError as error:
            listing.skip(file, str(error))
    return listing, _together(contents)


def _together(contents: list[_Content]) -> _Content:
    texts, questions, notes = {}, [], ()
    for content in contents:
        texts |= content.documents
        notes += content.notes
        if content.kind == "past questions":
            questions += content.questions["all"]
    if questions:
        return _Content(texts, {"all": questions}, "past questions", notes)
    return _with_headings(texts, notes)


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
        text = sections[0].body
        paragraphs = re.split(r"\n\s*\n", text)
        parts = paragraphs if paragraphs[1:] else text.split("\n")
        sections = [sections[0]._replace(body=part.strip()) for part in parts if part.strip()]
    texts = {}
    for number, section in enumerate(sections, 1):
        name = f"{path.name} {number}"
        texts[name] = [section._replace(document=name)]
    return _with_headings(texts)


def _from_rows(rows: Iterable[Row], set_aside: SetAside) -> _Content:
    """Past questions or documents, by the columns of the rows."""
    pairs, texts = [], {}
    unused: set[str] = set()

    def take(row: Row) -> None:
        row = row._replace(values={str(name).lower(): value for name, value in row.values.items()})
        columns = _pair(row.values)
        unused.update(row.values.keys() - (columns or DOCUMENT))
        if not columns:
            texts.update(_document(row))
            return
        pair = [row.text(column).strip() for column in columns]
        if not all(pair):
            raise Unusable(f"column `{columns[pair.index('')]}` is empty")
        pairs.append(pair)

    for _ in set_aside.convert(rows, take):
        pass
    _say_what_is_set_aside(set_aside)
    notes = (f"columns that are not used: {', '.join(sorted(unused))}",) if unused else ()
    return _past_questions(pairs, notes) if pairs else _with_headings(texts, notes)


def _pair(columns: Iterable[str]) -> tuple[str, str] | None:
    """The columns of a question and its answer, None where there are none."""
    for questions, answers in ((QUESTION, ANSWER), (("text",), LABEL)):
        question = [name for name in questions if name in columns]
        answer = [name for name in answers if name in columns]
        if question and answer:
            return question[0], answer[0]
    return None


def _say_what_is_set_aside(set_aside: SetAside) -> None:
    set_aside.check()
    if set_aside.rows:
        tracking.say(str(set_aside))


def _short_name(kind: str, text: str) -> str:
    """A name that stays when other rows come or go."""
    return f"{kind} {hashlib.sha256(_folded(text).encode()).hexdigest()[:8]}"


def _document(row: Row) -> dict[str, list[Passage]]:
    """A title leaves its body: one that repeats its passage would be learned from the words that they share."""
    row.column(("text",), COLUMNS)
    title, body = row.text("title").strip(), row.text("text").strip()
    if title and body.lower().startswith(title.lower()):
        body = body[len(title) :].lstrip(" .:\n")
    name = row.values.get("_id", row.values.get("id"))
    name = _short_name("text", title + body) if name in (None, "") else str(name)
    passage = Passage(name, title if body else "", body or title)
    return {name: [passage]} if passage.body else {}


def _past_questions(pairs: Iterable[Iterable[str]], notes: tuple[str, ...] = ()) -> _Content:
    """Questions and their answers; equal answers, by case and white space, are one document, and so are equal questions."""
    answers: dict[str, Passage] = {}
    questions: dict[str, tuple[str, set[str]]] = {}
    for question, answer in pairs:
        passage = answers.setdefault(_folded(answer), Passage(_short_name("answer", answer), "", answer))
        questions.setdefault(_folded(question), (question, set()))[1].add(passage.document)
    asked = [Question(text, frozenset(names)) for text, names in questions.values()]
    texts = {passage.document: [passage] for passage in answers.values()}
    return _Content(texts, {"all": asked}, "past questions", notes)


def _with_headings(texts: dict[str, list[Passage]], notes: tuple[str, ...] = ()) -> _Content:
    """Each heading that only one document has is a question that this document answers."""
    owners: dict[str, set[str]] = {}
    for name, sections in texts.items():
        for section in sections:
            if len(words.spans(section.heading)) in HEADING_WORDS:
                owners.setdefault(section.heading, set()).add(name)
    asked = [Question(heading, frozenset(names)) for heading, names in owners.items() if len(names) == 1]
    return _Content(texts, {"all": asked} if asked else {}, "headings" if asked else "none", notes)


# ---- BEIR's layout, in a folder or on the hub


def _from_beir(place: Place) -> _Content:
    set_aside = SetAside(place.source)
    columns = ("query-id", "corpus-id", "score")
    splits = {}
    for split in ("dev", "test", "train"):
        path = place.path / "qrels" / f"{split}.tsv"
        if path.is_file():
            splits[split] = read_separated(path, set_aside, source=f"{place.source}, {path.name}", columns=columns)
    corpus = read_rows(place.path / "corpus.jsonl", ROWS, set_aside)
    queries = read_rows(place.path / "queries.jsonl", ROWS, set_aside) if splits else ()
    return _judged(corpus, queries, splits, set_aside)


def _from_hub(place: Place) -> _Content:
    import datasets

    revision = REVISIONS.get(place.value)
    set_aside = SetAside(place.source)
    with hub.reading(name="data_source", source=place.value):
        subsets = datasets.get_dataset_config_names(place.value, revision=revision)

        def rows(subset: str) -> dict[str, Iterable[Row]]:
            loaded = datasets.load_dataset(place.value, subset, revision=revision)
            return {
                name.replace("validation", "dev"): number_rows(place.source, split, set_aside)
                for name, split in loaded.items()
            }

        if {"corpus", "queries", "default"} <= {*subsets}:
            [corpus], [queries] = (rows(subset).values() for subset in ("corpus", "queries"))
            return _judged(corpus, queries, rows("default"), set_aside)
        return _from_rows(next(iter(rows(subsets[0]).values())), set_aside)


def _judged(corpus, queries, splits: dict[str, Iterable[Row]], set_aside: SetAside) -> _Content:
    """Documents, and of each split the questions with a document whose score is above 0."""
    texts: dict[str, list[Passage]] = {}
    for document in set_aside.convert(corpus, _document):
        texts |= document
    asked = dict(set_aside.convert(queries, lambda row: (_id(row), row.text("text").strip())))

    def judgement(row: Row) -> tuple[str, str, float]:
        query, document, score = (str(row.values.get(name)) for name in ("query-id", "corpus-id", "score"))
        if query not in asked:
            raise Unusable(f"the query {query!r} is not in queries; remove the line or add the query")
        try:
            return query, document, float(score)
        except ValueError:
            raise Unusable(f"the score {score!r} is no number") from None

    questions: dict[str, list[Question]] = {}
    for split, rows in splits.items():
        answers: dict[str, set[str]] = {}
        for query, document, score in set_aside.convert(rows, judgement):
            if document in texts and score > 0:
                answers.setdefault(query, set()).add(document)
        if answers:
            questions[split] = [Question(asked[query], frozenset(names)) for query, names in answers.items()]
    _say_what_is_set_aside(set_aside)
    if questions:
        return _Content(texts, {"all": questions["test"]} if [*questions] == ["test"] else questions, "questions")
    return _with_headings(texts)


def _id(row: Row) -> str:
    value = row.values.get("_id", row.values.get("id"))
    if value in (None, ""):
        raise Unusable('needs an "_id", and a string "text"')
    return str(value)


# ---- splits


def _split(content: _Content, passages: list[Passage], place: Place, draw: random.Random) -> dict[str, Any]:
    questions, split = content.questions, "as the data set has them"
    if "all" in questions:
        questions, split = _divide(questions["all"], content.kind, draw)
    past = questions.get("train", [])
    if content.kind == "headings" or not past:
        held_out = {
            name for part in ("dev", "test") for question in questions.get(part, ()) for name in question.answers
        }
        training = _from_headings(passages, held_out if content.kind == "headings" else set())
        past = []
    else:
        training = _from_questions(past, passages)
    unique = list({_folded(f"{example.question}\n{example.texts[0]}"): example for example in training}.values())
    draw.shuffle(unique)
    if len(unique) < LEAST_BATCH:
        raise ValueError(
            f"{place.source}: {len(unique)} different texts to train on; at least {LEAST_BATCH} are needed. "
            f"Add documents; in a folder they are {', '.join(documents.SUFFIXES)} files"
        )
    return {
        "split": split,
        "past": past,
        "training": unique,
        "dev": questions.get("dev", []),
        "test": questions.get("test", []),
    }


def _divide(questions: list[Question], kind: str, draw: random.Random) -> tuple[dict[str, list[Question]], str]:
    """Training, dev and test, and how they were divided."""
    counts: dict[str, int] = {}
    for question in questions:
        for name in question.answers:
            counts[name] = counts.get(name, 0) + 1
    if kind == "questions" and len(questions) < DEALT:
        shuffled = draw.sample(questions, len(questions))
        half = len(shuffled) // 2 if len(shuffled) >= WISHED else 0
        return {"dev": shuffled[:half], "test": shuffled[half:]}, "by question: half choose, half test, none trains"
    repeated = [question for question in questions if all(counts[name] > 1 for name in question.answers)]
    if kind != "headings" and 2 * len(repeated) > len(questions):
        return _divide_by_question(questions, counts, draw), "by question: each answer has other questions that train"
    what = "document" if kind == "headings" else "answer"
    return _divide_by_answer(questions, draw), f"by {what}: nothing about the {what}s that choose or test is trained on"


def _quota(count: int) -> int:
    return min(MOST_HELD_OUT, max(round(HELD_OUT * count), min(WISHED, count // 5)))


def _divide_by_question(
    questions: list[Question], counts: dict[str, int], draw: random.Random
) -> dict[str, list[Question]]:
    """A question chooses or tests only while each of its answers keeps another question."""
    left, quota = dict(counts), _quota(len(questions))
    held_out, training = [], []
    for question in draw.sample(questions, len(questions)):
        free = len(held_out) < 2 * quota and all(left[name] > 1 for name in question.answers)
        if not free:
            training.append(question)
            continue
        held_out.append(question)
        for name in question.answers:
            left[name] -= 1
    half = len(held_out) // 2
    return {"dev": held_out[:half], "test": held_out[half:], "train": training}


def _divide_by_answer(questions: list[Question], draw: random.Random) -> dict[str, list[Question]]:
    """A question whose answers are on two sides is left out."""
    names = sorted({name for question in questions for name in question.answers})
    draw.shuffle(names)
    quota = _quota(len(names))
    sides = {"dev": {*names[:quota]}, "test": {*names[quota : 2 * quota]}, "train": {*names[2 * quota :]}}
    return {part: [question for question in questions if question.answers <= side] for part, side in sides.items()}


def _from_headings(passages: list[Passage], held_out: set[str]) -> list[Example]:
    examples = []
    for passage in passages:
        if passage.document not in held_out:
            examples.append(Example(passage.heading, (passage.body,), _folded(passage.heading or passage.body)))
    return examples


def _from_questions(past: list[Question], passages: list[Passage]) -> list[Example]:
    bodies: dict[str, str] = {}
    for passage in passages:
        bodies.setdefault(passage.document, passage.body)
    asked: dict[str, list[str]] = {}
    for question in past:
        for name in question.answers:
            asked.setdefault(name, []).append(question.text)
    examples = []
    for name, texts in asked.items():
        for place, text in enumerate(texts):
            others = texts[place + 1 : place + 1 + OTHERS]
            others += texts[: min(place, OTHERS - len(others))]
            examples.append(Example(text, (bodies[name], *others), name))
    return examples


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())


# ---- a run that goes on


def keep_split(collection: Collection, folder: Path) -> Collection:
    """The collection with the questions that train, choose and test in the run of `folder`, so that new documents need no new run.

    Documents may come, change and go: they are searched as they are now, and the model stays the one of the questions that the run
    began with. A question whose document is gone is left out. Before its first step the run takes the questions of `collection`.
    """
    file = folder / SPLIT_FILE
    began = any(checkpoint.step_of(path) for path in checkpoint.listed(folder))
    names = ("training", "dev", "test", "past")
    if not (began and file.is_file()):
        lists = {name: getattr(collection, name) for name in names}
        kept = {"source": collection.source, "sha256": collection.sha256} | lists
        write_json(
            file,
            kept | {"dev": _plain(collection.dev), "test": _plain(collection.test), "past": _plain(collection.past)},
        )
        return collection
    kept = json.loads(file.read_text(encoding="utf-8"))
    if kept["source"] == collection.source:
        return collection
    documents_now = {*collection.documents}
    parts = {}
    for name in names[1:]:
        questions = [Question(text, frozenset(answers)) for text, answers in kept[name]]
        parts[name] = [question for question in questions if question.answers <= documents_now]
    tracking.say(
        "the documents have changed since this run began: they are searched as they are now, and only new or changed passages are "
        "embedded. The model stays as it was trained; to train on the new texts as well, set output_dir to a new folder"
    )
    known = {question.text for part in parts.values() for question in part}
    if collection.past:
        parts["past"] += [
            question for question in collection.past + collection.dev + collection.test if question.text not in known
        ]
    training = [Example(question, tuple(texts), key) for question, texts, key in kept["training"]]
    return dataclasses.replace(collection, training=training, sha256=kept["sha256"], **parts)


def _plain(questions: list[Question]) -> list[tuple[str, list[str]]]:
    return [(question.text, sorted(question.answers)) for question in questions]
