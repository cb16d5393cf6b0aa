"""Records: where they come from, which of their questions are nearly the same, and the split that keeps those together.

# R records · S shingles
"""

import hashlib
import itertools
import json
import random
import re
import unicodedata
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from helpers.data import data_files, hub
from helpers.data.data_files import Row
from helpers.data.data_source import DataSource, located
from helpers.legal.sample import PARTS, Gold, sample_records
from helpers.parameters import SAMPLE, source_path

LAW = "rzeraat/law"
SAMPLE_RECORDS = 600
HELD_OUT_SHARE = 0.1  # to validate, and as many to test
NEAR_DUPLICATE = 0.5  # Jaccard of 5-character shingles; on real questions 0.5 to 0.6 is a reworded or extended one
SHINGLE = 5
PAIRED_ROWS = 256  # at a time, for the memory's sake
SUFFIXES = (".jsonl", ".csv", ".parquet")
TEXT = str | int | float  # what a column may hold
_PLACEHOLDERS = frozenset(("n/a", "na", "nan", "none", "null"))  # how other tools write an empty cell
_ONE_LINE = ("id", "topic", "difficulty", "case_citation")


@dataclass(frozen=True)
class Record:
    """One question and its answer. A field that is empty or "N/A" in the source is ""; none has outer white space."""

    id: str  # or the number of its row
    question: str
    answer: str
    topic: str = ""
    difficulty: str = ""  # lower case
    case_citation: str = ""  # several are parted by ";"
    reasoning: str = ""  # "Step 1: ... Step 2: ...", or prose
    turns: tuple[tuple[str, str], ...] = ()  # role and text of what was said before the question
    gold: Gold | None = None  # what is right, of the sample alone

    @property
    def asked(self) -> str:
        """The question with what was said before it, without instructions to the model."""
        return "\n".join([*(text for role, text in self.turns if role != "system"), self.question])


COLUMNS = ("id", "question", "answer", "topic", "difficulty", "case_citation", "reasoning")
FORMS = (("messages",), ("prompt", "completion"), ("question", "answer"))  # columns a source needs; the first it has


@dataclass(frozen=True)
class Records(DataSource):
    """Records of a source."""

    records: tuple[Record, ...]  # in the order of the source


@dataclass(frozen=True)
class RecordSplits:
    """Records to train on, to validate and to test; near-duplicate questions are in the same one."""

    train: tuple[Record, ...]
    validation: tuple[Record, ...]
    test: tuple[Record, ...]
    areas: tuple[Record, ...] = ()  # a second test, of areas of law that are not in training; of the sample alone

    def __str__(self) -> str:
        return ", ".join(f"{name} {len(records):,}" for name, records in vars(self).items())


def load_records(data_source: str, *, num_records: int = 0, seed: int) -> Records:
    """Records from `data_source`, as they are: nothing is checked here but that the columns exist and hold text.

    data_source: "sample" (fictional records, 600 when num_records is 0), a local .jsonl, .csv or .parquet, or a hub id or a
        folder in its layout, of which the split `train` is read. Columns are one of `FORMS`, with what else of `COLUMNS` there is.
    num_records: 0 takes all, another number a seeded draw of that many, or all where there are fewer.

    Raises ValueError (a missing column, a value that is no text, a file that cannot be parsed, no record),
    FileNotFoundError (no such path or hub id) and ConnectionError (hub not reachable and nothing cached).
    """
    data_source = located(data_source)
    path = source_path("data_source", data_source)
    if data_source == SAMPLE:
        records = [Record(**texts) for texts in sample_records(num_records or SAMPLE_RECORDS, seed)]
    elif path is not None and path.is_file():
        rows = [*data_files.rows("data_source", path, SUFFIXES)]
        records = _records(data_source, rows, dict.fromkeys(itertools.chain(*(row.values for row in rows))))
    elif path is None and "/" not in data_source:
        raise FileNotFoundError(
            f'data_source={data_source!r}: no such file. Use "sample", a path to a {", ".join(SUFFIXES)} file '
            f'or a hub id "owner/name" such as "{LAW}"'
        )
    else:
        train = hub.splits(data_source)["train"]
        wanted = {*COLUMNS, *itertools.chain(*FORMS)}.intersection(train.column_names)
        rows = data_files.numbered(f"data_source={data_source!r}", train.select_columns([*wanted]))
        records = _records(data_source, rows, train.column_names)
    if not records:
        raise ValueError(f"data_source={data_source!r}: holds no record")
    if 0 < num_records < len(records):
        kept = sorted(random.Random(seed).sample(range(len(records)), num_records))
        records = [records[row] for row in kept]
    texts = [[*(getattr(record, column) for column in COLUMNS), *record.turns] for record in records]
    return Records(
        tuple(records),
        name=path.name if path else data_source,
        draw=f"{num_records or 'all'} records, seed {seed}",
        sha256=hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
    )


def _records(data_source: str, rows: Iterable[Row], columns: Collection[str]) -> list[Record]:
    """A record of each row. A key that some rows leave out is an empty field, one that all leave out a missing column."""
    form = next((form for form in FORMS if {*form} <= {*columns}), None)
    if columns and not form:
        raise ValueError(
            f"data_source={data_source!r}: no columns `question` and `answer`, `prompt` and `completion`, or `messages`; columns "
            f"found: {', '.join(columns) or 'none'}. Rename a column or add one"
        )
    seen, records = Counter(), []
    for row in rows:
        record = _fields(row) if "question" in form else _conversation(row, form)
        name = record["id"] or str(row.number)
        seen[name] += 1
        records.append(Record(**record | {"id": f"{name}#{seen[name]}" if seen[name] > 1 else name}))
    return records


def _fields(row: Row) -> dict[str, Any]:
    texts = {}
    for column in COLUMNS:
        text = data_files.text(row, column, TEXT).replace("\r\n", "\n").strip()
        text = "" if text.lower() in _PLACEHOLDERS else text
        texts[column] = " ".join(text.split()) if column in _ONE_LINE else text
    return texts | {"difficulty": texts["difficulty"].lower()}


def _conversation(row: Row, form: tuple[str, ...]) -> dict[str, Any]:
    """What the last message answers and what was said before; "" where a user does not ask, or no assistant answers."""
    said: list[tuple[str, str]] = []
    for column, role in zip(form, ("user", "assistant"), strict=False):
        messages = row.values.get(column)
        if isinstance(messages, str | None) and column != "messages":
            messages = [{"role": role, "content": messages}]
        if not isinstance(messages, list) or not all(isinstance(each, dict) and "role" in each for each in messages):
            raise ValueError(
                f"{row.where}, column `{column}` is no list of messages, each with `role` and `content`; it is {str(messages)[:60]!r}"
            )
        said += [
            (each["role"], data_files.text(row._replace(values=each), "content", TEXT).strip()) for each in messages
        ]
    *turns, (asks, question), (answers, answer) = [("", ""), ("", ""), *said][-max(2, len(said)) :]
    return {
        "id": data_files.text(row, "id", TEXT),
        "question": question if asks == "user" else "",
        "answer": answer if answers == "assistant" else "",
        "turns": tuple(turns),
    }


# ---- near-duplicates


def near_duplicates(texts: Sequence[str], threshold: float = NEAR_DUPLICATE) -> list[tuple[int, int, float]]:
    """All pairs (i, j, Jaccard), i < j, whose sets of 5-character shingles have a Jaccard index of `threshold` or more.

    Case, punctuation and white space do not count; a text without a letter or digit is like no other. Exact, not
    estimated: every pair is counted, in a product of sparse matrices.
    """
    pairs = []
    for i, j, jaccard in _jaccard(texts, texts):
        found = (jaccard >= threshold) & (i < j)
        pairs += zip(i[found].tolist(), j[found].tolist(), jaccard[found].tolist(), strict=True)
    return sorted(pairs)


def _jaccard(texts: Sequence[str], others: Sequence[str]) -> Iterator[tuple[Any, Any, Any]]:
    """Rows of texts, rows of others and the Jaccard index of each pair that shares a shingle, some rows at a time."""
    from sklearn.feature_extraction.text import CountVectorizer

    member_RS = CountVectorizer(analyzer=_shingles).fit_transform([*texts, *others, "a vocabulary is never empty"])
    sizes_R = member_RS.sum(1).A1
    others_SR = member_RS[len(texts) : len(texts) + len(others)].T
    for start in range(0, len(texts), PAIRED_ROWS):
        shared = (member_RS[start : min(start + PAIRED_ROWS, len(texts))] @ others_SR).tocoo()
        i, j = shared.row + start, shared.col
        yield i, j, shared.data / (sizes_R[i] + sizes_R[len(texts) + j] - shared.data)


def _shingles(text: str) -> set[str]:
    words = " ".join(re.findall(r"\w+", unicodedata.normalize("NFKC", text).casefold()))
    return {words[i : i + SHINGLE] for i in range(max(1, len(words) - SHINGLE + 1))} if words else set()


# ---- splits


def split_records(records: Sequence[Record], seed: int) -> RecordSplits:
    """80 % to train, 10 % to validate, 10 % to test; seeded, and no near-duplicate question is in two of them.

    Questions linked by a chain of near-duplicates go together. A group too large for what is left of a tenth goes to
    training. Of the sample each record says where it belongs (`sample.PARTS`). Raises ValueError where the groups are too
    few for three splits.
    """
    named = [tuple(r for r in records if r.gold and r.gold.part == part) for part in PARTS]
    splits = RecordSplits(*(named if any(named) else _by_groups(records, seed)))
    if not (splits.train and splits.validation and splits.test):
        raise ValueError(
            f"records: {len(records)} cannot be split into training, validation and test; give more records, or questions "
            "that are less alike"
        )
    return splits


def _by_groups(records: Sequence[Record], seed: int) -> list[tuple[Record, ...]]:
    from scipy.cluster.hierarchy import DisjointSet

    linked = DisjointSet(range(len(records)))
    for i, j, _ in near_duplicates([record.asked for record in records]):
        linked.merge(i, j)
    groups = [sorted(group) for group in linked.subsets()]  # in the order of their first rows
    random.Random(seed).shuffle(groups)
    train: list[int] = []
    validation: list[int] = []
    test: list[int] = []
    quota = max(1, round(HELD_OUT_SHARE * len(records)))
    for group in groups:
        rows = next((rows for rows in (test, validation) if len(rows) + len(group) <= quota), train)
        rows += group
    return [tuple(records[row] for row in sorted(rows)) for rows in (train, validation, test)]
