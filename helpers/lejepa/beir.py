"""Retrieval benchmarks: folders in BEIR's layout, or held-out pairs where there is nothing else.

    corpus.jsonl    {"_id": "1", "title": "...", "text": "..."}    title may be missing
    queries.jsonl   {"_id": "7", "text": "..."}
    qrels/test.tsv  query-id <tab> corpus-id <tab> score, one header line

Thakur et al., BEIR (NeurIPS 2021 Datasets and Benchmarks).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from helpers.data import data_files

JUDGED = ("query-id", "corpus-id", "score")


@dataclass(frozen=True)
class Benchmark:
    """Queries, documents, and which documents answer which query, in the order of the files."""

    name: str
    queries: dict[str, str]  # id -> text
    corpus: dict[str, str]  # id -> text, title included
    relevant: dict[str, set[str]]  # query id -> ids of documents

    def __post_init__(self) -> None:
        if not self.queries or len(self.corpus) < 2:
            raise ValueError(
                f"benchmark {self.name!r} has {len(self.queries)} queries with a relevant document and {len(self.corpus)} "
                "documents: a ranking needs a query and two documents at least"
            )


def read_beir(folder: str | Path, split: str = "test") -> Benchmark:
    """Reads `corpus.jsonl`, `queries.jsonl` and `qrels/<split>.tsv`.

    A document is "title. text", or its text alone where that begins with the title already. A score of 0 or below is
    not relevant, and every score above it the same. Queries without a relevant document are left out.

    Raises FileNotFoundError for a missing file, and ValueError for a line that does not fit, with its place.
    """
    folder = Path(folder)
    corpus, queries = (_texts(folder / f"{name}.jsonl") for name in ("corpus", "queries"))
    relevant: dict[str, set[str]] = {}
    scores: dict[tuple[str, str], int] = {}
    qrels = _file(folder / "qrels" / f"{split}.tsv")
    for row in data_files.separated(f"benchmark={str(qrels)!r}", qrels, "\t", JUDGED):
        query, document, score = (row.values[column] for column in JUDGED)
        if not scores and score == "score":  # a header of other names
            continue
        try:
            score = int(score)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"{row.where}: must be query-id, corpus-id and a whole score between tabs, not {str(row.values)[:200]}"
            ) from error
        for name, known, file in ((query, queries, "queries.jsonl"), (document, corpus, "corpus.jsonl")):
            if name not in known:
                raise ValueError(f"{row.where}: the id {name!r} is not in {file}; remove the line or add the entry")
        if scores.setdefault((query, document), score) != score:
            raise ValueError(
                f"{row.where}: query {query!r} and document {document!r} had another score before; keep one"
            )
        if score > 0:
            relevant.setdefault(query, set()).add(document)
    judged = {name: text for name, text in queries.items() if name in relevant}
    return Benchmark(folder.resolve().name, judged, corpus, {name: relevant[name] for name in judged})


def from_pairs(pairs: Iterable[tuple[str, str]], name: str, others: Iterable[str] = ()) -> Benchmark:
    """Held-out pairs as a benchmark: each anchor is a query, each positive a document; `others` answer none of them."""
    queries: dict[str, str] = {}  # text -> id
    corpus: dict[str, str] = {}
    relevant: dict[str, set[str]] = {}
    for anchor, positive in pairs:
        query = queries.setdefault(anchor, f"q{len(queries)}")
        relevant.setdefault(query, set()).add(corpus.setdefault(positive, f"d{len(corpus)}"))
    for text in others:
        corpus.setdefault(text, f"d{len(corpus)}")
    by_id = ({name: text for text, name in texts.items()} for texts in (queries, corpus))
    return Benchmark(name, *by_id, relevant)


def _file(path: Path) -> Path:
    if not path.is_file():
        there = ", ".join(sorted(file.name for file in path.parent.glob("*"))) or "nothing"
        raise FileNotFoundError(
            f"{str(path)!r} is missing: a BEIR folder has corpus.jsonl, queries.jsonl and qrels/; there is {there}"
        )
    return path


def _texts(path: Path) -> dict[str, str]:
    """Id -> text of each line, the title before it."""
    found: dict[str, str] = {}
    for where, _, values in data_files.rows("benchmark", _file(path), (".jsonl",)):
        name, title, text = values.get("_id"), values.get("title") or "", values.get("text")
        if not (isinstance(name, str | int) and isinstance(title, str) and isinstance(text, str)) or name in ("", True):
            raise ValueError(f'{where}: needs an "_id", a string "text", and a string "title" if any')
        if str(name) in found:
            raise ValueError(f"{where}: the id {str(name)!r} was there already; give each entry its own")
        title, begin = title.strip(), text.lstrip().lower()
        if title and not begin.startswith(title.lower()):
            stop = "" if title.endswith((".", "?", "!")) else "."
            text = f"{title}{stop} {text}" if begin else title
        found[str(name)] = text
    return found
