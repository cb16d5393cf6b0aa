"""Retrieval benchmarks: folders in BEIR layout, or held-out pairs where there is nothing else.

    corpus.jsonl    {"_id": "1", "title": "...", "text": "..."}    title may be missing
    queries.jsonl   {"_id": "7", "text": "..."}
    qrels/test.tsv  query-id <tab> corpus-id <tab> score, one header line

Thakur et al., BEIR (NeurIPS 2021 Datasets and Benchmarks).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Benchmark:
    """Queries, documents, and which documents answer which query. In the order of the files.

    Raises:
        ValueError: a query without a relevant document, or an id that stands for nothing.
    """

    name: str
    queries: dict[str, str]  # id -> text
    corpus: dict[str, str]  # id -> text, title included
    relevant: dict[str, frozenset[str]]  # query id -> ids of documents

    def __post_init__(self) -> None:
        if not self.queries or len(self.corpus) < 2:
            raise ValueError(
                f"benchmark {self.name!r} has {len(self.queries)} queries and {len(self.corpus)} documents: "
                "a ranking needs a query and two documents at least"
            )
        if lacking := [query for query in self.queries if not self.relevant.get(query)]:
            raise ValueError(f"benchmark {self.name!r}: no relevant document for query {lacking[0]!r}; leave it out")
        if unknown := [query for query in self.relevant if query not in self.queries]:
            raise ValueError(f"benchmark {self.name!r}: relevant names the query {unknown[0]!r}, which is not there")
        if unknown := [name for names in self.relevant.values() for name in names if name not in self.corpus]:
            raise ValueError(f"benchmark {self.name!r}: relevant names the document {unknown[0]!r}, which is not there")


def read_beir(folder: str | Path, split: str = "test") -> Benchmark:
    """Reads `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`.

    A document is "title. text", or its text alone where that begins with the title already. A score of 0 or below is
    not relevant, and every score above it the same. Queries without a relevant document are left out.

    Raises:
        FileNotFoundError: one of the files is missing.
        ValueError: a line that does not fit, an id there twice or unknown, or no relevant document at all; the file and
            line are named.
    """
    folder = Path(folder)
    corpus = {name: _document(values) for name, values in _entries(folder / "corpus.jsonl")}
    queries = {name: values["text"] for name, values in _entries(folder / "queries.jsonl")}
    path = folder / "qrels" / f"{split}.tsv"
    if not path.is_file() and path.parent.is_dir():
        splits = sorted(file.stem for file in path.parent.glob("*.tsv"))
        raise FileNotFoundError(f"split={split!r}: no file {str(path)!r}; splits there: {', '.join(splits) or 'none'}")
    relevant: dict[str, set[str]] = {}
    judged: dict[tuple[str, str], int] = {}
    for where, query, document, score in _judgements(path):
        for name, known, file in ((query, queries, "queries.jsonl"), (document, corpus, "corpus.jsonl")):
            if name not in known:
                raise ValueError(f"{where}: the id {name!r} is not in {file}; remove the line or add the entry")
        if judged.setdefault((query, document), score) != score:
            raise ValueError(f"{where}: query {query!r} and document {document!r} had another score before; keep one")
        if score > 0:
            relevant.setdefault(query, set()).add(document)
    if not relevant:
        raise ValueError(
            f"{str(path)!r}: no line with a score above 0; without a relevant document nothing is measured"
        )
    return Benchmark(
        name=folder.resolve().name,
        queries={name: text for name, text in queries.items() if name in relevant},
        corpus=corpus,
        relevant={name: frozenset(relevant[name]) for name in queries if name in relevant},
    )


def from_pairs(pairs: Iterable[Mapping[str, str] | Sequence[str]], name: str = "pairs") -> Benchmark:
    """Held-out pairs as a benchmark: each anchor is a query, each positive a document, the same text once.

    Easier than a real benchmark: there is no document without a question.

    Args:
        pairs: {"anchor", "positive"} or (anchor, positive).

    Raises:
        ValueError: a missing column or blank text, or fewer than two different positives.
    """
    queries: dict[str, str] = {}  # text -> id
    corpus: dict[str, str] = {}
    relevant: dict[str, set[str]] = {}
    for row, pair in enumerate(pairs):
        if isinstance(pair, Mapping):
            if lacking := [column for column in ("anchor", "positive") if column not in pair]:
                raise ValueError(
                    f"pairs: row {row} has no {lacking[0]!r}; its columns are {', '.join(map(repr, pair))}"
                )
            pair = pair["anchor"], pair["positive"]
        if isinstance(pair, str) or len(pair) != 2 or not all(isinstance(text, str) and text.strip() for text in pair):
            raise ValueError(f"pairs: row {row} is {pair!r}; give an anchor and a positive, neither of them blank")
        query = queries.setdefault(pair[0], f"q{len(queries)}")
        relevant.setdefault(query, set()).add(corpus.setdefault(pair[1], f"d{len(corpus)}"))
    return Benchmark(
        name=name,
        queries={name: text for text, name in queries.items()},
        corpus={name: text for text, name in corpus.items()},
        relevant={name: frozenset(documents) for name, documents in relevant.items()},
    )


def _document(values: Mapping[str, str]) -> str:
    title, text = values["title"].strip(), values["text"]
    if not title or text.lstrip().lower().startswith(title.lower()):
        return text
    if not text.strip():
        return title
    return f"{title}{'' if title.endswith(('.', '?', '!')) else '.'} {text}"


def _entries(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """(id, {"title", "text"}) of each line."""
    lines: dict[str, int] = {}
    for number, line in _lines(path):
        where = f"{str(path)!r}, line {number}"
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: no JSON ({error}); every line must be one object") from error
        if not isinstance(values, dict) or not isinstance(values.get("_id"), str | int) or values["_id"] in ("", True):
            raise ValueError(f'{where}: must be an object with an "_id", such as {{"_id": "1", "text": "..."}}')
        texts = {"title": "", **{key: values[key] for key in ("title", "text") if values.get(key) is not None}}
        if "text" not in texts or not all(isinstance(text, str) for text in texts.values()):
            raise ValueError(f'{where}: needs a string "text", and a string "title" if any')
        name = str(values["_id"])
        if name in lines:
            raise ValueError(f"{where}: the id {name!r} was on line {lines[name]} already; give each entry its own")
        lines[name] = number
        yield name, texts
    if not lines:
        raise ValueError(f"{str(path)!r} is empty: it must hold one JSON object a line")


def _judgements(path: Path) -> Iterator[tuple[str, str, str, int]]:
    """(where, query id, document id, score) of each line."""
    for index, (number, line) in enumerate(_lines(path)):
        where, fields = f"{str(path)!r}, line {number}", line.rstrip("\r\n").split("\t")
        try:
            query, document, score = fields
        except ValueError:
            raise ValueError(
                f"{where}: {len(fields)} fields between tabs; must be query-id, corpus-id and score"
            ) from None
        try:
            yield where, query, document, int(score)
        except ValueError:
            if index:  # the first line is the header
                raise ValueError(f"{where}: the score {score!r} is no whole number") from None


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    if not path.is_file():
        raise FileNotFoundError(f"{str(path)!r} is missing: a BEIR folder has corpus.jsonl, queries.jsonl and qrels/")
    try:
        with path.open(encoding="utf-8-sig") as file:
            yield from ((number, line) for number, line in enumerate(file, 1) if line.strip())
    except UnicodeDecodeError as error:
        raise ValueError(f"{str(path)!r} is not UTF-8 ({error}): save it as UTF-8") from error
