"""Texts to train an embedding on: where they come from, in which form, and three splits of which no two share a text.

A row is a pair (anchor, positive), a triplet (anchor, positive, negative) or a document (text), of which views are
cropped (helpers/lejepa/crops.py).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from helpers import hub
from helpers.lejepa import sample, text_files
from helpers.parameters import SAMPLE, source_path

if TYPE_CHECKING:
    import datasets

MSMARCO = "sentence-transformers/msmarco-co-condenser-margin-mse-sym-mnrl-mean-v1"
# The commit that the model cards of sentence-transformers name; what it holds was not looked at from here.
MSMARCO_REVISION = "84ed2d35626f617d890bd493b4d6db69a741e0e2"
SUBSETS = ("triplet-hard", "triplet", "pair", "default")  # of a hub set with several; the first that it has
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

Row = tuple[str, ...]
_PARAGRAPH_END = re.compile(r"[ \t]*\n[ \t]*\n")


@dataclass(frozen=True)
class TextData:
    """Texts to train on, to choose by and to test on. No text is in two, in any column; case and white space do not count."""

    kind: str  # "pairs", "triplets" or "documents"
    train: datasets.Dataset  # columns as in COLUMNS[kind]
    validation: datasets.Dataset
    test: datasets.Dataset
    source: str  # the same string means the same data
    provenance: dict[str, str | None]  # for results.json: source, revision and sha256 of the texts
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
        a .jsonl or .csv with columns `anchor` (or `query`) and `positive`, perhaps `negative`; or `text`, perhaps `title`;
        a .txt or .md: documents parted by blank lines, or where there is none one a line;
        a folder of .txt and .md files, a document each, or in BEIR's layout, of which only corpus.jsonl is read;
        a hub id (MS MARCO at a pinned commit), or a folder of .parquet files, with the columns of a .jsonl. Its split
        `train` is streamed, one row an anchor, from its first files in a seeded order.
    num_samples: rows to draw, with the seed. 0: all there are, of a hub set 20,000.
    documents: read pairs and triplets as documents: the positives, of "sample" the whole docstrings.

    Rows that share an anchor, a positive or a document are on one side. Raises ValueError (a missing column, an empty text, too few rows, none of the subsets),
    FileNotFoundError (no such path or hub id) and ConnectionError (hub not reachable and nothing cached).
    """
    path, empty, repeated = source_path("data_source", data_source), 0, 0
    revision = MSMARCO_REVISION if data_source == MSMARCO else None
    if data_source == SAMPLE:
        found = sample.docstrings()
        kind = "documents" if documents else "pairs"
        rows = [(text,) for text in sample.documents(found)] if documents else sample.pairs(found)
    elif path is None or (path.is_dir() and any(path.rglob("*.parquet"))):
        stream = _stream(data_source, str(path or data_source), revision, seed)
        with hub.reading(data_source):
            kind, rows, empty, repeated = _draw_from_hub(data_source, stream, num_samples or HUB_ROWS, documents)
    else:
        kind, rows, empty = _read_folder(path) if path.is_dir() else _read_file(path)
    if documents and kind != "documents":
        kind, rows = "documents", [(row[1],) for row in rows]
    return _split(kind, rows, data_source, revision, num_samples, seed, empty, repeated)


# ---- local files


def _read_folder(path: Path) -> tuple[str, list[Row], int]:
    if (corpus := path / "corpus.jsonl").is_file():
        return _read_file(corpus)
    files = sorted(file for file in path.rglob("*") if file.suffix.lower() in (".txt", ".md") and file.is_file())
    if not files:
        raise ValueError(
            f"data_source={str(path)!r}: the folder has no .txt, .md or .parquet file and no corpus.jsonl; "
            "give the path of a file, or put the documents there"
        )
    texts = ["".join(text_files.lines("data_source", file)).strip() for file in files]
    return "documents", [(text,) for text in texts if text], texts.count("")


def _read_file(path: Path) -> tuple[str, list[Row], int]:
    if path.suffix.lower() in (".txt", ".md"):
        text = "".join(text_files.lines("data_source", path)).strip()
        parts = re.split(blank_lines, text) if re.search(blank_lines := r"\n[ \t]*\n", text) else text.split("\n")
        return "documents", [(part.strip(),) for part in parts if part.strip()], 0
    read = {".jsonl": text_files.objects, ".csv": text_files.table}.get(path.suffix.lower())
    if read is None:
        raise ValueError(f"data_source={str(path)!r}: cannot read this; give .jsonl, .csv, .txt, .md or a folder")
    kind, rows, empty = None, [], 0
    for where, values in read("data_source", path):
        kind = kind or _kind(str(path), list(values))
        row = _row(kind, values, where)
        if all(row):
            rows.append(row)
        elif path.name == "corpus.jsonl" and "_id" in values:
            empty += 1  # BEIR corpora have some, and their qrels count on them
        else:
            raise ValueError(
                f"{where} has an empty text in `{COLUMNS[kind][row.index('')]}`; fill it in or remove the row"
            )
    return kind or "documents", rows, empty


def _kind(data_source: str, found: Sequence[str]) -> str:
    anchor = any(name in found for name in ANCHORS)
    if anchor and "positive" in found:
        return "triplets" if "negative" in found else "pairs"
    if "text" in found and not anchor and "positive" not in found:
        return "documents"
    wanting = "`anchor` (or `query`)" if "positive" in found else "`text`, nor `anchor` and `positive`"
    missing = "`positive`" if anchor else wanting
    raise ValueError(
        f"data_source={data_source!r}: no column {missing}; columns found: {', '.join(found) or 'none'}. Rename a column: "
        "`anchor` and `positive` (perhaps `negative`) make pairs, `text` (perhaps `title`) documents"
    )


def _row(kind: str, values: Mapping[str, Any], where: str) -> Row:
    """The texts in the order of COLUMNS[kind], "" for an empty one; a title goes before its text."""

    def text(column: str) -> str:
        value = values.get(column)
        if not isinstance(value, str | None):
            raise ValueError(
                f"{where}: column `{column}` holds a {type(value).__name__}, not text; write it as a string"
            )
        return (value or "").strip()

    if kind == "documents":
        title, body = text("title"), text("text")
        return (body if body.startswith(title) else f"{title}\n{body}".strip(),)
    anchor = next((name for name in ANCHORS if name in values), ANCHORS[0])
    return tuple(text(anchor if column == "anchor" else column) for column in COLUMNS[kind])


# ---- hub sets


def _stream(data_source: str, name: str, revision: str | None, seed: int) -> datasets.IterableDataset:
    """Rows of the split `train` in a seeded order, read as they are asked for."""
    import datasets

    with hub.reading(data_source):
        subsets = datasets.get_dataset_config_names(name, revision=revision)
        chosen = next((s for s in SUBSETS if s in subsets), subsets[0] if len(subsets) == 1 else None)
        if chosen is None:
            raise ValueError(
                f"data_source={data_source!r} has the subsets {', '.join(subsets)}, of which none is {', '.join(SUBSETS)}; "
                "download the one that you want and give its folder"
            )
        splits = datasets.load_dataset(name, chosen, revision=revision, streaming=True)
    return hub.train_split(data_source, splits).shuffle(seed=seed, buffer_size=SHUFFLE_BUFFER)


def _draw_from_hub(
    data_source: str, stream: Iterable[Mapping[str, Any]], wanted: int, documents: bool
) -> tuple[str, list[Row], int, int]:
    """The first `wanted` rows with different anchors (MS MARCO has twenty a query): kind, rows, empty and repeated ones."""
    rows: dict[bytes, Row] = {}
    kind, empty, repeated = None, 0, 0
    for number, values in enumerate(stream, 1):
        kind = kind or _kind(data_source, list(values))
        row = _row(kind, values, f"data_source={data_source!r}: row {number} of the stream")
        key = _digest(row[1 if documents and kind != "documents" else 0])
        if not all(row):
            empty += 1
        elif key in rows:
            repeated += 1
        else:
            rows[key] = row
            if len(rows) == wanted:
                break
    return kind or "documents", list(rows.values()), empty, repeated


# ---- both


def _split(
    kind: str,
    rows: Sequence[Row],
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
    named = f"{name}@{revision}" if revision else name
    parts = (
        datasets.Dataset.from_dict({column: [drawn[row][i] for row in part] for i, column in enumerate(COLUMNS[kind])})
        for part in kept
    )
    return TextData(
        kind,
        *parts,
        source=f"{named}, {wanted or 'all'} {kind}, seed {seed}, sha256 {texts[:16]}",
        provenance={"source": name, "revision": revision, "sha256": texts},
        duplicates_removed=duplicates,
        empty_removed=empty,
        overlaps_removed=sum(map(len, found)) - sum(map(len, kept)),
    )


def _digest(text: str) -> bytes:
    return hashlib.blake2b(" ".join(text.casefold().split()).encode(), digest_size=16).digest()


def _groups(keys: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Rows linked by a chain of shared keys, in the order of their first rows."""
    import numpy as np
    from scipy import sparse

    ids: dict[bytes, int] = {}
    links = [(row, len(keys) + ids.setdefault(key, len(ids))) for row, row_keys in enumerate(keys) for key in row_keys]
    first, second = np.array(links).T
    size = len(keys) + len(ids)
    graph = sparse.coo_matrix((np.ones(len(links), bool), (first, second)), shape=(size, size))
    _, labels = sparse.csgraph.connected_components(graph, directed=False)
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels[: len(keys)].tolist()):
        groups.setdefault(label, []).append(row)
    return list(groups.values())


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
