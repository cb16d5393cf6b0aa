"""Legal records: where they come from, which of their questions are nearly the same, and the split that keeps those together.

# R records · S shingles
"""

import csv
import hashlib
import json
import math
import random
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from helpers import hub_data
from helpers.legal.sample import sample_records

LAW = "rzeraat/law"
LAW_REVISION: str | None = None  # not pinned: no commit of it is known here; None reads the newest
SAMPLE_RECORDS = 600
VALIDATION_SHARE = TEST_SHARE = 0.1
NEAR_DUPLICATE = 0.5  # Jaccard of 5-character shingles; on real questions 0.5 to 0.6 is a reworded or extended one
SHINGLE = 5
_SUFFIXES = (".jsonl", ".csv", ".parquet")
_PLACEHOLDERS = frozenset(("n/a", "na", "nan", "none", "null"))  # how other tools write an empty cell
_ONE_LINE = ("id", "topic", "difficulty", "case_citation")


@dataclass(frozen=True)
class Record:
    """One question and its answer. A field that is empty or "N/A" in the source is ""; none has outer white space."""

    id: str
    question: str
    answer: str
    topic: str
    difficulty: str  # lower case
    case_citation: str  # several are parted by ";"
    reasoning: str  # "Step 1: ... Step 2: ..."


COLUMNS = tuple(field.name for field in fields(Record))


@dataclass(frozen=True)
class Records:
    records: tuple[Record, ...]  # in the order of the source
    source: str  # data source, number of records, seed and a digest of the texts: the same string means the same data


@dataclass(frozen=True)
class RecordSplits:
    """Records to train on, to validate and to test; near-duplicate questions are in the same one."""

    train: tuple[Record, ...]
    validation: tuple[Record, ...]
    test: tuple[Record, ...]
    groups: int  # sets of near-duplicate questions, single ones included
    grouped: int  # records that share a group with another


def load_records(data_source: str, *, num_records: int = 0, seed: int, revision: str | None = LAW_REVISION) -> Records:
    """Records from `data_source`, as they are: nothing is checked here but that the columns exist and hold text.

    data_source: "sample" (fictional records, 600 when num_records is 0), a local .jsonl, .csv or .parquet with the
        columns of `Record` (others are ignored), or a hub id such as "rzeraat/law", of which the split `train` is read.
        A local directory in hub layout is read like a hub id.
    num_records: 0 takes all, another number a seeded draw of that many, or all where there are fewer.
    revision: branch, tag or commit of a hub id; None is the newest.

    Raises ValueError (a missing column, a value that is no text, a file that cannot be parsed, no record),
    FileNotFoundError (no such path or hub id) and ConnectionError (hub not reachable and nothing cached).
    """
    if num_records < 0:
        raise ValueError(f"num_records={num_records}: must be 0 (all) or more")
    path, named = Path(data_source).expanduser(), data_source
    if data_source == "sample":
        records = [Record(**texts) for texts in sample_records(num_records or SAMPLE_RECORDS, seed)]
    elif path.is_dir():
        records = _from_hub(data_source, str(path), None)
    elif path.is_file():
        records = _read_file(path)
    elif path.suffix in _SUFFIXES or data_source.count("/") != 1 or data_source.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f'data_source={data_source!r}: no such file. Use "sample", a path to a {", ".join(_SUFFIXES)} file '
            f'or a hub id "owner/name" such as "{LAW}"'
        )
    else:
        records = _from_hub(data_source, data_source, revision)
        named = f"{data_source}@{revision}" if revision else data_source
    if not records:
        raise ValueError(f"data_source={data_source!r}: holds no record")
    if 0 < num_records < len(records):
        kept = sorted(random.Random(seed).sample(range(len(records)), num_records))
        records = [records[row] for row in kept]
    return Records(tuple(records), _describe(named, num_records, seed, records))


def _describe(data_source: str, num_records: int, seed: int, records: Sequence[Record]) -> str:
    digest = hashlib.sha256(json.dumps([astuple(record) for record in records]).encode()).hexdigest()
    # The name alone of a local file: results are shared, and the digest says which file it was.
    name = Path(data_source).name if Path(data_source).expanduser().exists() else data_source
    return f"{name}, {num_records or 'all'} records, seed {seed}, sha256 {digest[:16]}"


# ---- reading


def _from_hub(data_source: str, name: str, revision: str | None) -> list[Record]:
    import datasets

    with hub_data.reading(data_source):
        splits = datasets.load_dataset(name, revision=revision)
    train = hub_data.train_split(data_source, splits)
    _check_columns(data_source, train.column_names)
    return [_record(data_source, f"row {row}", values) for row, values in enumerate(train.select_columns(COLUMNS), 1)]


def _read_file(path: Path) -> list[Record]:
    read = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}.get(path.suffix)
    if read is None:
        suffix = path.suffix or "no suffix"
        raise ValueError(f"data_source={str(path)!r}: cannot read {suffix}; use {', '.join(_SUFFIXES)}")
    try:
        return read(path)
    except UnicodeDecodeError as error:
        raise ValueError(f"data_source={str(path)!r}: not UTF-8 ({error}); save the file as UTF-8") from error


def _read_jsonl(path: Path) -> list[Record]:
    rows: list[tuple[str, dict[str, Any]]] = []
    with path.open(encoding="utf-8-sig") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except json.JSONDecodeError as error:
                raise ValueError(f"data_source={str(path)!r}: line {number} is not JSON ({error})") from error
            if not isinstance(values, dict):
                raise ValueError(f"data_source={str(path)!r}: line {number} is not a JSON object")
            rows.append((f"line {number}", values))
    if rows:  # a key that some lines leave out is an empty field; one that all leave out is a missing column
        _check_columns(str(path), dict.fromkeys(key for _, values in rows for key in values))
    return [_record(str(path), where, values) for where, values in rows]


def _read_csv(path: Path) -> list[Record]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, strict=True)
        try:
            _check_columns(str(path), reader.fieldnames or ())
            records = []
            for values in reader:
                if None in values:
                    raise ValueError(
                        f"data_source={str(path)!r}: line {reader.line_num} has more fields than the header; "
                        "put fields that hold a comma in double quotes"
                    )
                records.append(_record(str(path), f"line {reader.line_num}", values))
        except csv.Error as error:
            raise ValueError(f"data_source={str(path)!r}: line {reader.line_num} is not CSV ({error})") from error
    return records


def _read_parquet(path: Path) -> list[Record]:
    import pyarrow
    import pyarrow.parquet

    try:
        _check_columns(str(path), pyarrow.parquet.read_schema(path).names)
        rows = pyarrow.parquet.read_table(path, columns=list(COLUMNS)).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"data_source={str(path)!r}: not a readable parquet file ({error})") from error
    return [_record(str(path), f"row {row}", values) for row, values in enumerate(rows, 1)]


def _check_columns(data_source: str, found: Iterable[str]) -> None:
    missing = [column for column in COLUMNS if column not in found]
    if missing:
        raise ValueError(
            f"data_source={data_source!r}: no column {', '.join(f'`{column}`' for column in missing)}; "
            f"columns found: {', '.join(found) or 'none'}. Rename a column or add one (it may be empty)"
        )


def _record(data_source: str, where: str, values: Mapping[str, Any]) -> Record:
    texts = {}
    for column in COLUMNS:
        value = values.get(column)
        if not isinstance(value, str | int | float | None):
            raise ValueError(
                f"data_source={data_source!r}: {where}, column `{column}` holds a {type(value).__name__}, not text"
            )
        text = str(value).replace("\r\n", "\n").strip()
        text = "" if text.lower() in _PLACEHOLDERS else text
        texts[column] = " ".join(text.split()) if column in _ONE_LINE else text
    return Record(**texts | {"difficulty": texts["difficulty"].lower()})


# ---- near-duplicates


def near_duplicates(texts: Sequence[str], threshold: float = NEAR_DUPLICATE) -> list[tuple[int, int, float]]:
    """All pairs (i, j, Jaccard), i < j, whose sets of 5-character shingles have a Jaccard index of `threshold` or more.

    Case, punctuation and white space do not count; a text without a letter or digit is like no other. Exact, not
    estimated: sets this similar must share one of their rarest shingles, and enough of them (prefix and positional
    filtering; Xiao et al. 2008, "Efficient similarity joins for near duplicate detection"); pairs that do are counted out.
    """
    import numpy as np
    from scipy import sparse

    if not 0 < threshold <= 1:
        raise ValueError(f"threshold={threshold}: must be above 0 and at most 1")
    ids: dict[str, int] = {}
    rows = [np.array([ids.setdefault(s, len(ids)) for s in _shingles(text)], dtype=np.int64) for text in texts]
    sizes_R = np.array([len(row) for row in rows], dtype=np.int64)
    frequency_S = np.bincount(np.concatenate(rows), minlength=len(ids)) if ids else np.zeros(0, int)
    rank_S = np.empty(len(ids), dtype=np.int64)
    rank_S[np.argsort(frequency_S, kind="stable")] = np.arange(len(ids))
    rows = [np.sort(rank_S[row]) for row in rows]  # rarest first

    def matrix(sets):
        ends = np.cumsum([0, *map(len, sets)])
        columns = np.concatenate(sets) if sets else np.zeros(0, int)
        return sparse.csr_matrix((np.ones(len(columns), np.int32), columns, ends), shape=(len(sets), max(1, len(ids))))

    # J >= t makes the intersection at least t|x|: all but |x| - ceil(t|x|) of x, so one of any |x| - ceil(t|x|) + 1.
    prefixes = [row[: len(row) - math.ceil(threshold * len(row) - 1e-9) + 1] for row in rows]
    suffix_R = sizes_R - np.array([len(row) for row in prefixes], dtype=np.int64)
    last_R = np.array([row[-1] if len(row) else -1 for row in prefixes], dtype=np.int64)
    whole_RS, prefix_RS = matrix(rows), matrix(prefixes)
    prefix_SR = prefix_RS.T.tocsr()
    pairs = []
    for start in range(0, len(rows), 256):
        candidates = sparse.coo_matrix(prefix_RS[start : start + 256] @ prefix_SR)
        i, j, shared = candidates.row + start, candidates.col, candidates.data
        # Where i's prefix ends first, all that j shares with it is in j's prefix: the rest is at most i's suffix.
        most = shared + np.where(last_R[i] <= last_R[j], suffix_R[i], suffix_R[j])
        likely = np.flatnonzero((i < j) & (most >= threshold / (1 + threshold) * (sizes_R[i] + sizes_R[j]) - 1e-9))
        for part in range(0, len(likely), 20_000):
            first, second = i[likely[part : part + 20_000]], j[likely[part : part + 20_000]]
            shared = np.asarray(whole_RS[first].multiply(whole_RS[second]).sum(axis=1)).ravel()
            jaccard = shared / (sizes_R[first] + sizes_R[second] - shared)
            found = jaccard >= threshold
            pairs += zip(first[found].tolist(), second[found].tolist(), jaccard[found].tolist(), strict=True)
    return sorted(pairs)


def _shingles(text: str) -> set[str]:
    words = " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))
    return {words[i : i + SHINGLE] for i in range(max(1, len(words) - SHINGLE + 1))} if words else set()


# ---- splits


def split_records(records: Sequence[Record], seed: int) -> RecordSplits:
    """80 % to train, 10 % to validate, 10 % to test; seeded, and no near-duplicate question is in two of them.

    Questions linked by a chain of near-duplicates go together. A group too large for what is left of a tenth goes to
    training. Raises ValueError where the groups are too few for three splits.
    """
    groups = list(_groups(records))
    random.Random(seed).shuffle(groups)
    held_out: dict[str, list[int]] = {"test": [], "validation": []}
    train: list[int] = []
    quotas = {
        "test": max(1, round(TEST_SHARE * len(records))),
        "validation": max(1, round(VALIDATION_SHARE * len(records))),
    }
    for group in groups:
        for name, rows in held_out.items():
            if len(rows) + len(group) <= quotas[name]:
                rows += group
                break
        else:
            train += group
    if not (train and all(held_out.values())):
        raise ValueError(
            f"records: {len(records)} with {len(groups)} different questions cannot be split into training, validation and "
            "test; give more records, or questions that are less alike"
        )
    return RecordSplits(
        *(tuple(records[row] for row in sorted(rows)) for rows in (train, held_out["validation"], held_out["test"])),
        groups=len(groups),
        grouped=sum(len(group) for group in groups if len(group) > 1),
    )


def _groups(records: Sequence[Record]) -> Iterator[list[int]]:
    """Rows of each set of questions linked by near-duplicates, in the order of their first rows."""
    import numpy as np
    from scipy import sparse

    pairs = np.array([(i, j) for i, j, _ in near_duplicates([r.question for r in records])], int).reshape(-1, 2)
    links = sparse.coo_matrix((np.ones(len(pairs), bool), (pairs[:, 0], pairs[:, 1])), shape=(len(records),) * 2)
    _, labels = sparse.csgraph.connected_components(links, directed=False)
    groups: dict[int, list[int]] = {}
    for row, label in enumerate(labels.tolist()):
        groups.setdefault(label, []).append(row)
    yield from groups.values()
