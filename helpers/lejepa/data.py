"""Texts to train an embedding on: where they come from, in which form, and three splits of which no two share a text.

A row is a pair (anchor, positive), a triplet (anchor, positive, negative) or a document (text), of which views are
cropped (helpers/lejepa/crops.py).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from helpers.data import data_files, hub
from helpers.data.data_files import Row
from helpers.data.data_source import DataSource, located
from helpers.lejepa import sample
from helpers.parameters import SAMPLE, source_path

if TYPE_CHECKING:
    import datasets

MSMARCO = "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1"
# The commit that the model cards of sentence-transformers name; what it holds was not looked at from here.
MSMARCO_REVISION = "84ed2d35626f617d890bd493b4d6db69a741e0e2"
SUBSETS = ("triplet-hard", "triplet", "pair", "default")  # of a hub set with several; the first that it has
SUFFIXES = (".jsonl", ".csv", ".parquet", ".txt", ".md")
HUB_ROWS = 20_000  # of a hub set when num_samples is 0; all of MS MARCO are 11.7 million
SHUFFLE_BUFFER = 10_000  # rows of a stream that are shuffled among each other
COLUMNS = {
    "triplets": ("anchor", "positive", "negative"),
    "pairs": ("anchor", "positive"),
    "documents": ("text",),
}
ANCHORS = ("anchor", "query")
PASSAGE_WORDS = 400  # longer documents are cut: two crops of a whole book need not have anything in common
HELD_OUT_SHARE, MAX_HELD_OUT = 0.1, 1000  # rows, of validation and as many of test
MIN_ROWS, MIN_PART = 6, 2  # LeJEPA compares at least two texts, in every split

Texts = tuple[str, ...]
_PARAGRAPH_END = re.compile(r"[ \t]*\n[ \t]*\n")


@dataclass(frozen=True)
class TextData(DataSource):
    """Texts to train on, to choose by and to test on. No text is in two, in any column; case and white space do not count."""

    kind: str  # "pairs", "triplets" or "documents"
    train: datasets.Dataset  # columns as in COLUMNS[kind]
    validation: datasets.Dataset
    test: datasets.Dataset
    duplicates_removed: int  # of a hub set also further rows of the same anchor
    empty_removed: int
    overlaps_removed: int  # held-out rows of which a text, most often a negative, is also in another split


def load_texts(
    data_source: str,
    *,
    num_samples: int = 0,
    seed: int,
    documents: bool = False,
) -> TextData:
    """Texts from `data_source`, split with `seed`: 10 % each (2 to 1,000 rows) to validate and to test on, the rest to train on.

    data_source: one of
        "sample": pairs out of the docstrings of the installed Python's standard library;
        a .jsonl, .csv or .parquet with columns `anchor` (or `query`) and `positive`, perhaps `negative`; or `text`, perhaps `title`;
        a .txt or .md: documents parted by blank lines, or where there is none one a line;
        a folder of .txt and .md files, a document each, or in BEIR's layout, of which only corpus.jsonl is read;
        a hub id (MS MARCO at a pinned commit), or a folder of .parquet files, with the columns of a .jsonl. Its split
        `train` is streamed, one row an anchor, from its first files in a seeded order.
    num_samples: rows to draw, with the seed. 0: all there are, of a hub set 20,000.
    documents: read pairs and triplets as documents: the positives, of "sample" the whole docstrings.

    Rows that share an anchor, a positive or a document are on one side. Raises ValueError (a missing column, an empty text, too few rows, none of the subsets),
    FileNotFoundError (no such path or hub id) and ConnectionError (hub not reachable and nothing cached).
    """
    data_source = located(data_source)
    path, empty, repeated = source_path("data_source", data_source), 0, 0
    revision = MSMARCO_REVISION if data_source == MSMARCO else None
    if data_source == SAMPLE:
        found = sample.docstrings()
        kind = "documents" if documents else "pairs"
        rows = [(text,) for text in sample.documents(found)] if documents else sample.pairs(found)
    elif path is None or (path.is_dir() and any(path.rglob("*.parquet"))):
        stream = data_files.numbered(f"data_source={data_source!r}", _stream(data_source, revision, seed))
        with hub.reading(data_source):
            kind, rows, empty, repeated = _draw(stream, num_samples or HUB_ROWS, documents)
    else:
        kind, rows, empty = _read_folder(path) if path.is_dir() else _read_file(path)
    if documents and kind != "documents":
        kind, rows = "documents", [(row[1],) for row in rows]
    return _split(kind, rows, data_source, revision, num_samples, seed, empty, repeated)


# ---- local files


def _read_folder(path: Path) -> tuple[str, list[Texts], int]:
    if (corpus := path / "corpus.jsonl").is_file():
        return _read_file(corpus)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in (".txt", ".md") and file.is_file())
    if not files:
        raise ValueError(
            f"data_source={str(path)!r}: the folder has no .txt, .md or .parquet file and no corpus.jsonl; "
            "give the path of a file, or put the documents there"
        )
    texts = [_read_text(file) for file in files]
    return "documents", [(text,) for text in texts if text], texts.count("")


def _read_text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig").strip()
    except UnicodeDecodeError as error:
        raise ValueError(f"data_source={str(path)!r}: not UTF-8 ({error}); save the file as UTF-8") from error


def _read_file(path: Path) -> tuple[str, list[Texts], int]:
    if path.suffix.lower() in (".txt", ".md"):
        text = _read_text(path)
        parts = re.split(blank_lines, text) if re.search(blank_lines := r"\n[ \t]*\n", text) else text.split("\n")
        return "documents", [(part.strip(),) for part in parts if part.strip()], 0
    kind, rows, empty = None, [], 0
    for row in data_files.rows("data_source", path, SUFFIXES):
        kind = kind or _kind(f"data_source={str(path)!r}", row)
        texts = _texts(kind, row)
        if path.suffix.lower() == ".csv":  # a field's lines end as those of a text file
            texts = tuple(re.sub("\r\n?", "\n", text) for text in texts)
        if all(texts):
            rows.append(texts)
        elif path.name == "corpus.jsonl" and "_id" in row.values:
            empty += 1  # BEIR corpora have some, and their qrels count on them
        else:
            raise ValueError(
                f"{row.where} has an empty text in `{COLUMNS[kind][texts.index('')]}`; fill it in or remove the row"
            )
    return kind or "documents", rows, empty


def _kind(source: str, row: Row) -> str:
    found = row.values
    anchor = any(name in found for name in ANCHORS)
    if anchor and "positive" in found:
        return "triplets" if "negative" in found else "pairs"
    if "text" in found and not anchor and "positive" not in found:
        return "documents"
    wanting = "`anchor` (or `query`)" if "positive" in found else "`text`, nor `anchor` and `positive`"
    missing = "`positive`" if anchor else wanting
    raise ValueError(
        f"{source}: no column {missing}; columns found: {', '.join(found) or 'none'}. Rename a column: "
        "`anchor` and `positive` (perhaps `negative`) make pairs, `text` (perhaps `title`) documents"
    )


def _texts(kind: str, row: Row) -> Texts:
    """The texts in the order of COLUMNS[kind], "" for an empty one; a title goes before its text."""
    if kind == "documents":
        title, body = data_files.text(row, "title").strip(), data_files.text(row, "text").strip()
        return (body if body.startswith(title) else f"{title}\n{body}".strip(),)
    anchor = next((name for name in ANCHORS if name in row.values), ANCHORS[0])
    return tuple(data_files.text(row, anchor if column == "anchor" else column).strip() for column in COLUMNS[kind])


# ---- hub sets


def _stream(data_source: str, revision: str | None, seed: int) -> datasets.IterableDataset:
    """Rows of the split `train` in a seeded order, read as they are asked for."""
    import datasets

    with hub.reading(data_source):
        name = str(source_path("data_source", data_source) or data_source)
        subsets = datasets.get_dataset_config_names(name, revision=revision)
        chosen = next((s for s in SUBSETS if s in subsets), subsets[0] if len(subsets) == 1 else None)
        if chosen is None:
            raise ValueError(
                f"data_source={data_source!r} has the subsets {', '.join(subsets)}, of which none is {', '.join(SUBSETS)}; "
                "download the one that you want and give its folder"
            )
    train = hub.splits(data_source, name=chosen, revision=revision, streaming=True)["train"]
    return train.shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)


def _draw(stream: Iterable[Row], wanted: int, documents: bool) -> tuple[str, list[Texts], int, int]:
    """The first `wanted` rows with different anchors (MS MARCO has twenty a query): kind, rows, empty and repeated ones."""
    rows: dict[bytes, Texts] = {}
    kind, empty, repeated = None, 0, 0
    for row in stream:
        kind = kind or _kind(row.where, row)
        texts = _texts(kind, row)
        key = _digest(texts[1 if documents and kind != "documents" else 0])
        if not all(texts):
            empty += 1
        elif key in rows:
            repeated += 1
        else:
            rows[key] = texts
            if len(rows) == wanted:
                break
    return kind or "documents", list(rows.values()), empty, repeated


# ---- both


def _split(
    kind: str,
    rows: Sequence[Texts],
    data_source: str,
    revision: str | None,
    wanted: int,
    seed: int,
    empty: int,
    repeated: int,
) -> TextData:
    """Drops repeats, draws `wanted` rows, cuts long documents, holds two splits out."""
    import datasets

    unique = {b"".join(map(_digest, row)): row for row in reversed(rows)}  # the first of equal rows is kept
    duplicates = repeated + len(rows) - len(unique)
    drawn = list(reversed(unique.values()))
    random.Random(seed).shuffle(drawn)
    drawn = drawn[: wanted or None]
    if len(drawn) < MIN_ROWS:
        raise ValueError(
            f"data_source={data_source!r}: {len(drawn)} different rows; at least {MIN_ROWS} are needed, "
            "two to validate and two to test on. Add texts"
        )
    keys = [[_digest(text) for text in row[:2]] for row in drawn]
    if kind == "documents":  # passages have the key of their document
        cut = [((part,), key) for (text,), key in zip(drawn, keys, strict=True) for part in passages(text)]
        drawn, keys = zip(*cut, strict=True)
    found = _hold_out(_groups(keys), len(drawn), data_source)
    seen: set[bytes] = set()
    kept = []
    for part in found:  # training first
        kept.append([row for row in part if not any(_digest(text) in seen for text in drawn[row])])
        seen.update(_digest(text) for row in kept[-1] for text in drawn[row])
    if min(map(len, kept)) < MIN_PART:
        raise ValueError(
            f"data_source={data_source!r}: of {len(drawn)} rows {sum(map(len, found)) - sum(map(len, kept))} of those held out "
            "share a text with another split; leave out the column `negative`, or give texts that are repeated less often"
        )
    texts = hashlib.sha256(b"".join(_digest(text) for row in drawn for text in row)).hexdigest()
    # The name alone of a local file: results are shared, and the digest says which file it was.
    name = Path(data_source).name if Path(data_source).expanduser().exists() else data_source
    parts = (
        datasets.Dataset.from_dict({column: [drawn[row][i] for row in part] for i, column in enumerate(COLUMNS[kind])})
        for part in kept
    )
    return TextData(
        kind,
        *parts,
        duplicates_removed=duplicates,
        empty_removed=empty,
        overlaps_removed=sum(map(len, found)) - sum(map(len, kept)),
        name=name,
        revision=revision,
        draw=f"{wanted or 'all'} {kind}, seed {seed}",
        sha256=texts,
    )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=16).digest()


def _groups(keys: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Rows linked by a chain of shared keys, in the order of their first rows."""
    from scipy.cluster.hierarchy import DisjointSet

    linked, first = DisjointSet(range(len(keys))), {}
    for row, row_keys in enumerate(keys):
        for key in row_keys:
            linked.merge(row, first.setdefault(key, row))
    return [sorted(group) for group in linked.subsets()]


def _hold_out(groups: list[list[int]], rows: int, data_source: str) -> tuple[list[int], list[int], list[int]]:
    """Rows of training, validation and test. A group too large for what is left of a quota goes to training."""
    quota = min(max(MIN_PART, round(HELD_OUT_SHARE * rows)), MAX_HELD_OUT)
    train: list[int] = []
    held_out: tuple[list[int], list[int]] = [], []
    for group in groups:
        next((part for part in held_out if len(part) + len(group) <= quota), train).extend(group)
    if min(map(len, (train, *held_out))) < MIN_PART:
        raise ValueError(
            f"data_source={data_source!r}: {rows} rows with {len(groups)} groups that share no text cannot be split into "
            "training, validation and test; give texts that are repeated less often"
        )
    return train, *held_out


def passages(text: str, words: int = PASSAGE_WORDS) -> list[str]:
    """`text` in the fewest passages of at most `words` words and of nearly equal length, white space as it was.

    A cut is moved back to the end of a paragraph, or else of a sentence, where one is in the quarter before it.
    """
    ends = [match.end() for match in re.finditer(r"\S+", text)]
    parts: list[str] = []
    begin, done = 0, 0
    while len(ends) - done > words:
        count = -(-(len(ends) - done) // -(-(len(ends) - done) // words))
        candidates = range(done + count, done + count - count // 4, -1)
        cut = next((i for i in candidates if _PARAGRAPH_END.match(text, ends[i - 1])), None) or next(
            (i for i in candidates if text[ends[i - 1] - 1] in ".!?"), done + count
        )
        parts.append(text[begin : ends[cut - 1]].strip())
        begin, done = ends[cut - 1], cut
    return [*parts, text[begin:].strip()]
