"""Documents to search, pairs to train on, and questions to choose and to test by, from a folder, a file or the hub.

Every text becomes passages, all of which are searchable. Passages of one document are one group: in search results, in intervals,
and in splits, so that a document whose headings or questions train neither chooses nor tests.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from helpers.data import data_files, hub
from helpers.data.data_files import Row
from helpers.data.data_source import DataSource, located
from helpers.lejepa import sample
from helpers.lejepa.parameters import DEFAULT_DATA, LEAST_BATCH
from helpers.parameters import SAMPLE, source_path

REVISIONS = {DEFAULT_DATA: "ae763399273d8b20506b80cf6f6f9a31a6a2b238"}  # the one of MTEB's task MedicalQARetrieval
SUFFIXES = (".jsonl", ".csv", ".parquet", ".txt", ".md")
PASSAGE_WORDS = 180  # about 256 tokens: MiniLM reads no more
HELD_OUT, MOST_HELD_OUT = 0.1, 500  # share of the documents whose headings or questions choose, and as many that test
DEALT = 1000  # questions of a single split that are dealt among training, dev and test; fewer are the test
SAMPLE_PAIRS = 1500  # docstrings of the sample: a third of the standard library is enough to show a run
HEADING_WORDS = range(2, 41)  # of a heading that can be a question


class Passage(NamedTuple):
    document: str  # name of its file, or its id
    heading: str  # title and section; "" where there is none
    body: str

    @property
    def text(self) -> str:
        """What is embedded and searched: heading and body."""
        return f"{self.heading.rstrip('.')}. {self.body}" if self.heading else self.body


class Question(NamedTuple):
    text: str
    answers: frozenset[str]  # names of documents


@dataclass(frozen=True)
class Collection(DataSource):
    """What a run searches, trains on, chooses by and is tested by."""

    kind: str  # of its questions: "questions" with judgements, "pairs" of the user's file, "headings" or "none"
    passages: list[Passage]
    training: list[tuple[str, str]]  # (question or heading, passage); a passage without heading has ""
    dev: list[Question]
    test: list[Question]


class _Found(NamedTuple):
    documents: dict[str, list[Passage]]
    questions: dict[str, list[Question]] = {}  # split -> questions; "pairs": rows of anchor and positive  # noqa: RUF012


def load(data_source: str, *, num_samples: int = 0, seed: int = 0) -> Collection:
    """The collection that `data_source` names.

    data_source: one of
        "sample": docstrings of the installed Python's standard library;
        a folder of .md and .txt files, each a document; a Markdown heading begins a section;
        a folder in BEIR's layout: corpus.jsonl, perhaps queries.jsonl with qrels/*.tsv;
        a .jsonl, .csv or .parquet with `anchor` (or `query`) and `positive`; or `text`, perhaps `title`;
        a single .md or .txt: the paragraphs between its blank lines are documents, or its lines where no line is blank;
        a hub set in MTEB's layout (subsets corpus, queries and default), or with the columns above.
    num_samples: training pairs that are drawn at most; 0 takes all. It never limits what is searchable.

    Raises ValueError (a missing column, too few documents), FileNotFoundError and ConnectionError, which name data_source.
    """
    data_source = located(data_source)
    path = source_path("data_source", data_source)
    if data_source == SAMPLE:
        found = _from_pairs(itertools.islice(sample.pairs(), SAMPLE_PAIRS))
    elif path is None:
        found = _from_hub(data_source)
    elif path.is_dir():
        found = _from_beir(path) if (path / "corpus.jsonl").is_file() else _from_folder(path)
    else:
        found = _from_file(path)
    return _split(found, data_source, num_samples, seed)


# ---- text files


def _from_folder(folder: Path) -> _Found:
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in (".txt", ".md") and file.is_file())
    names = [str(file.relative_to(folder)) for file in files]
    return _Found({name: passages for name in names if (passages := _sections(name, folder / name))})


def _from_file(path: Path) -> _Found:
    if path.suffix.lower() not in (".txt", ".md"):
        return _from_rows(f"data_source={str(path)!r}", data_files.rows("data_source", path, SUFFIXES))
    text = _read(path)
    parts = re.split(r"\n\s*\n", text)
    parts = parts if parts[1:] else text.split("\n")
    passages = [Passage(f"{path.name} {number}", "", part.strip()) for number, part in enumerate(parts, 1)]
    return _Found({passage.document: list(_cut(passage)) for passage in passages if passage.body})


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"data_source={str(path)!r}: not UTF-8 ({error}); save the file as UTF-8") from error


def _sections(name: str, path: Path) -> list[Passage]:
    """Passages of a document by its Markdown headings; a short first line before a blank one is a title, too."""
    text = _read(path)
    title = re.match(r"(?!#)[^\n]{3,120}(?<![.:,;])\n[ \t]*\n", text)
    outline: dict[int, str] = {}
    sections: list[tuple[str, list[str]]] = [("", [])]
    fenced = False
    for line in (f"# {text}" if title else text).split("\n"):
        fenced ^= line.lstrip().startswith("```")
        heading = None if fenced else re.match(r"(#{1,6})[ \t]+(.*?)[ \t#]*$", line)
        if heading:
            level = len(heading[1])
            outline = {depth: words for depth, words in outline.items() if depth < level} | {level: heading[2]}
            sections.append((": ".join(outline.values()), []))
        else:
            sections[-1][1].append(line)
    written = (Passage(name, heading, "\n".join(lines).strip()) for heading, lines in sections)
    return [part for passage in written if passage.body for part in _cut(passage)]


def _cut(passage: Passage) -> Iterator[Passage]:
    """The fewest parts of at most `PASSAGE_WORDS` words and of nearly equal length, cut at the end of a sentence where one is near."""
    ends = [match.end() for match in re.finditer(r"\S+", passage.body)]
    begin = done = 0
    while (left := len(ends) - done) > PASSAGE_WORDS:
        count = math.ceil(left / math.ceil(left / PASSAGE_WORDS))
        near = range(done + count, done + count - count // 4, -1)
        cut = next((i for i in near if passage.body[ends[i - 1] - 1] in ".!?"), done + count)
        yield passage._replace(body=passage.body[begin : ends[cut - 1]].strip())
        begin, done = ends[cut - 1], cut
    yield passage._replace(body=passage.body[begin:].strip())


# ---- rows


def _from_rows(source: str, rows: Iterable[Row]) -> _Found:
    pairs, documents = [], {}
    for row in rows:
        anchor = "anchor" if "anchor" in row.values else "query"
        if anchor in row.values and "positive" in row.values:
            texts = [data_files.text(row, name).strip() for name in (anchor, "positive")]
            if not all(texts):
                raise ValueError(f"{row.where} has an empty text; fill it in or remove the row")
            pairs.append(texts)
        elif "text" in row.values and not pairs:
            documents |= _document(row, f"row {row.number}")
        else:
            raise ValueError(
                f"{source}: columns found: {', '.join(row.values) or 'none'}. Name the columns `anchor` and `positive` "
                "for pairs, or `text` (perhaps `title`) for documents"
            )
    return _from_pairs(pairs) if pairs else _Found(documents)


def _document(row: Row, name: str) -> dict[str, list[Passage]]:
    """A title leaves its body: one that repeats its passage would be learned from the words that they share."""
    title, body = data_files.text(row, "title").strip(), data_files.text(row, "text").strip()
    if title and body.lower().startswith(title.lower()):
        body = body[len(title) :].lstrip(" .:\n")
    passage = Passage(name, title if body else "", body or title)
    return {name: list(_cut(passage))} if passage.body else {}


def _from_pairs(pairs: Iterable[Iterable[str]]) -> _Found:
    """Rows of a question and its answer; equal answers, by case and white space, are one document."""
    documents: dict[str, Passage] = {}
    questions: dict[str, tuple[str, set[str]]] = {}
    for anchor, positive in pairs:
        passage = documents.setdefault(_folded(positive), Passage(f"answer {len(documents) + 1}", "", positive))
        questions.setdefault(_folded(anchor), (anchor, set()))[1].add(passage.document)
    found = [Question(anchor, frozenset(answers)) for anchor, answers in questions.values()]
    return _Found({passage.document: list(_cut(passage)) for passage in documents.values()}, {"pairs": found})


# ---- BEIR's layout, in a folder or on the hub


def _from_beir(folder: Path) -> _Found:
    said = f"data_source={str(folder)!r}"
    splits = {
        path.stem: data_files.separated(said, path, "\t", ("query-id", "corpus-id", "score"))
        for path in sorted((folder / "qrels").glob("*.tsv"))
        if path.stem in ("train", "dev", "test")
    }
    corpus, queries = (
        data_files.rows("data_source", folder / f"{each}.jsonl", SUFFIXES) for each in ("corpus", "queries")
    )
    return _judged(corpus, queries if splits else (), splits)


def _from_hub(data_source: str) -> _Found:
    import datasets

    revision, said = REVISIONS.get(data_source), f"data_source={data_source!r}"
    with hub.reading(name="data_source", source=data_source):
        subsets = datasets.get_dataset_config_names(data_source, revision=revision)

        def rows(subset: str) -> dict[str, Iterable[Row]]:
            loaded = datasets.load_dataset(data_source, subset, revision=revision)
            return {
                name.replace("validation", "dev"): data_files.numbered(said, split) for name, split in loaded.items()
            }

        if {"corpus", "queries", "default"} <= {*subsets}:
            [corpus], [queries] = (rows(subset).values() for subset in ("corpus", "queries"))
            return _judged(corpus, queries, rows("default"))
        return _from_rows(said, next(iter(rows(subsets[0]).values())))


def _judged(corpus: Iterable[Row], queries: Iterable[Row], splits: dict[str, Iterable[Row]]) -> _Found:
    """Documents, and of each split the questions with a document whose score is above 0."""
    documents: dict[str, list[Passage]] = {}
    questions: dict[str, list[Question]] = {}
    for row in corpus:
        documents |= _document(row, _id(row))
    texts = {_id(row): data_files.text(row, "text").strip() for row in queries}
    for split, rows in splits.items():
        answers: dict[str, set[str]] = {}
        for row in rows:
            query, document, score = (str(row.values[name]) for name in ("query-id", "corpus-id", "score"))
            if query not in texts:
                raise ValueError(
                    f"{row.where}: the query {query!r} is not in queries; remove the line or add the query"
                )
            if document in documents and float(score) > 0:
                answers.setdefault(query, set()).add(document)
        questions[split] = [Question(texts[query], frozenset(found)) for query, found in answers.items()]
    return _Found(documents, {split: found for split, found in questions.items() if found})


def _id(row: Row) -> str:
    value = row.values.get("_id", row.values.get("id"))
    if value in (None, ""):
        raise ValueError(f'{row.where}: needs an "_id", and a string "text"')
    return str(value)


# ---- splits


def _split(found: _Found, data_source: str, num_samples: int, seed: int) -> Collection:
    documents, questions, draw = found.documents, found.questions, random.Random(seed)
    kind = "pairs" if "pairs" in questions else "questions" if questions else "none"
    if not questions and (headings := _headings(documents)):
        kind, questions = "headings", {"pairs": headings}
    if len(questions) == 1 and ("pairs" in questions or len(*questions.values()) >= DEALT):
        questions = _deal(*questions.values(), draw)
    held = {name for split in ("dev", "test") for each in questions.get(split, ()) for name in each.answers}
    training = [
        (each.text, documents[name][0].body)
        for each in questions.get("train", ())
        for name in sorted(each.answers - held)
    ]
    if not training or kind == "headings":
        # The words of people's questions are in no heading: then all headings may train.
        free = documents if kind == "questions" else documents.keys() - held
        training = [(passage.heading, passage.body) for name in sorted(free) for passage in documents[name]]
    unique = list({_folded(f"{asked}\n{body}"): (asked, body) for asked, body in training}.values())
    draw.shuffle(unique)
    if len(unique) < LEAST_BATCH:
        raise ValueError(
            f"data_source={data_source!r}: {len(unique)} different texts to train on; at least {LEAST_BATCH} are needed. "
            "Add documents; in a folder they are .md and .txt files"
        )
    passages = [passage for several in documents.values() for passage in several]
    return Collection(
        kind=kind,
        passages=passages,
        training=unique[: num_samples or None],
        dev=questions.get("dev", []),
        test=questions.get("test", []),
        name=Path(data_source).name if Path(data_source).expanduser().exists() else data_source,
        revision=REVISIONS.get(data_source),
        draw=f"{num_samples or 'all'} pairs, seed {seed}",
        sha256=hashlib.sha256("\0".join(map("\0".join, passages)).encode()).hexdigest(),
    )


def _headings(documents: dict[str, list[Passage]]) -> list[Question]:
    """Each heading that only one document has, as a question that this document answers."""
    owners: dict[str, set[str]] = {}
    for name, passages in documents.items():
        for passage in passages:
            if len(passage.heading.split()) in HEADING_WORDS:
                owners.setdefault(passage.heading, set()).add(name)
    return [Question(heading, frozenset(names)) for heading, names in owners.items() if len(names) == 1]


def _deal(questions: list[Question], draw: random.Random) -> dict[str, list[Question]]:
    """By documents: a tenth for dev and as many for the test. A question whose answers are on two sides is left out."""
    names = sorted({name for question in questions for name in question.answers})
    draw.shuffle(names)
    quota = min(round(HELD_OUT * len(names)), MOST_HELD_OUT)
    sides = {"dev": {*names[:quota]}, "test": {*names[quota : 2 * quota]}, "train": {*names[2 * quota :]}}
    return {split: [each for each in questions if each.answers <= side] for split, side in sides.items()}


def _folded(text: str) -> str:
    return " ".join(text.casefold().split())
