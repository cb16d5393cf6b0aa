"""Labelled texts: where they come from, and splits that have no text in common."""

from __future__ import annotations

import csv
import hashlib
import io
import json
import random
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.parameters import SAMPLE, source_path

TEXT_COLUMNS = ("text", "sentence", "content", "comment", "texts")
LABEL_COLUMNS = ("label", "labels", "category", "class", "intent")
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
HELD_OUT = 0.1  # of the training rows, for each split that is not there
EMOTION = "dair-ai/emotion"
REVISIONS = {EMOTION: "cab853a1dbdf4c42c2b3ef2173804746df8825fe"}
SUBSETS = {EMOTION: "split"}
# Packages that every installed Python has; which of them a docstring is from is its label.
SAMPLE_PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")

Row = tuple[str, str]  # text, label


@dataclass(frozen=True)
class LabelledTexts:
    """Rows by split, labels as positions in `labels`. No text is twice in a split or in two; case and space do not count."""

    train: list[tuple[str, int]]
    validation: list[tuple[str, int]]
    test: list[tuple[str, int]]
    labels: tuple[str, ...]  # of two, the second is the positive one
    source: str  # data source, rows, seed and a digest of the texts
    empty_removed: int
    duplicates_removed: int  # rows that repeat another of their split
    conflicts_removed: int  # rows whose text has several labels in their split
    overlaps_removed: dict[str, int]  # rows of a split whose text is in a later one, too

    def __str__(self) -> str:
        overlaps = ", ".join(f"{count} of {split}" for split, count in self.overlaps_removed.items())
        return (
            f"{len(self.train)} training, {len(self.validation)} validation and {len(self.test)} test rows of "
            f"{len(self.labels)} labels from {self.source}\n"
            f"removed: {self.empty_removed} empty, {self.duplicates_removed} duplicates, {self.conflicts_removed} with "
            f"contradicting labels, and because their text is in a later split, too: {overlaps}"
        )


def load_labelled(
    data_source: str, *, num_rows: int = 0, eval_rows: int = 0, positive_label: str = "", seed: int = 0
) -> LabelledTexts:
    """Labelled texts from `data_source`.

    data_source: one of
        "sample": docstrings of the installed Python's standard library, the label is the package;
        a .csv or .jsonl with a text and a label column, of which a tenth each is held out to validate and to test on,
            label by label; or a folder with train.csv and perhaps validation.csv and test.csv (or .jsonl);
        a hub id with such splits and columns.
    num_rows: of training, drawn with the seed; 0: all. eval_rows: the same of validation and of test.
    positive_label: this label against all others; "": as they are.

    A text that is in several splits stays in the last of train, validation, test. A text with several labels is left out.

    Raises ValueError (no such column, label or enough rows), FileNotFoundError (no such path or hub id) and
    ConnectionError (hub not reachable and nothing cached).
    """
    path = source_path("data_source", data_source)
    if data_source == SAMPLE:
        splits = {"train": list(_sample())}
    elif path is not None:
        splits = _read_folder(path) if path.is_dir() else {"train": list(_read_file(path))}
    else:
        splits = _read_hub(data_source)
    if positive_label:
        splits = {name: _against_others(rows, positive_label) for name, rows in splits.items()}
        if all(label != positive_label for _, label in splits["train"]):
            raise ValueError(
                f"positive_label={positive_label!r}: no training row has it; give one of the labels or '' for all"
            )
    counts = Counter()
    cleaned = {name: _clean(rows, counts) for name, rows in splits.items()}
    _hold_out(cleaned, seed)
    overlaps = _remove_overlaps(cleaned)
    for name, limit in (("train", num_rows), ("validation", eval_rows), ("test", eval_rows)):
        random.Random(seed).shuffle(cleaned[name])
        cleaned[name] = cleaned[name][: limit or None]
    labels = _labels(data_source, cleaned, positive_label)
    positions = {label: position for position, label in enumerate(labels)}
    digest = hashlib.sha256(json.dumps(cleaned, ensure_ascii=True).encode()).hexdigest()
    named = (
        path.name if path else f"{data_source}@{REVISIONS[data_source]}" if data_source in REVISIONS else data_source
    )
    return LabelledTexts(
        **{name: [(text, positions[label]) for text, label in rows] for name, rows in cleaned.items()},
        labels=labels,
        source=f"{named}, seed {seed}, sha256 {digest[:16]}",
        empty_removed=counts["empty"],
        duplicates_removed=counts["duplicates"],
        conflicts_removed=counts["conflicts"],
        overlaps_removed=overlaps,
    )


# ---- sources


def _sample() -> Iterator[Row]:
    from helpers.docstrings import docstrings

    library = Path(sysconfig.get_paths()["stdlib"])
    for package in SAMPLE_PACKAGES:
        if (library / package).is_dir():
            yield from ((docstring.text, package) for docstring in docstrings(library / package))


def _read_folder(path: Path) -> dict[str, list[Row]]:
    found = {}
    for split, names in SPLITS.items():
        files = [path / f"{name}{suffix}" for name in names for suffix in (".csv", ".jsonl")]
        if file := next((file for file in files if file.is_file()), None):
            found[split] = list(_read_file(file))
    if "train" not in found:
        raise FileNotFoundError(
            f"data_source={str(path)!r}: no train.csv or train.jsonl in the folder; name the training file so"
        )
    return found


def _read_file(path: Path) -> Iterator[Row]:
    where = f"data_source={str(path)!r}"
    readers = {".csv": _csv, ".jsonl": _jsonl}
    if path.suffix.lower() not in readers:
        raise ValueError(f"{where}: cannot read this; give a .csv or .jsonl with a text and a label column")
    try:
        content = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{where}: not UTF-8 ({error}); save the file as UTF-8") from error
    columns = None
    for number, values in readers[path.suffix.lower()](where, content):
        columns = columns or _columns(where, list(values))
        yield _row(f"{where}: line {number}", values, columns)


def _csv(where: str, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    reader = csv.DictReader(io.StringIO(content, newline=""), strict=True)
    try:
        for values in reader:
            if None in values or None in values.values():
                raise ValueError(
                    f"{where}: line {reader.line_num} has not as many fields as the header; put fields that hold a comma "
                    "in double quotes"
                )
            yield reader.line_num, values
    except csv.Error as error:
        raise ValueError(f"{where}: line {reader.line_num} is not CSV ({error})") from error


def _jsonl(where: str, content: str) -> Iterator[tuple[int, Mapping[str, Any]]]:
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        try:
            values = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}: line {number} is not JSON ({error})") from error
        if not isinstance(values, dict):
            raise ValueError(f"{where}: line {number} is not a JSON object")
        yield number, values


def _columns(where: str, found: Sequence[str]) -> tuple[str, str]:
    chosen = [next((name for name in wanted if name in found), None) for wanted in (TEXT_COLUMNS, LABEL_COLUMNS)]
    if None in chosen:
        wanted = TEXT_COLUMNS if chosen[0] is None else LABEL_COLUMNS
        raise ValueError(
            f"{where}: no column {', '.join(map(repr, wanted))}; columns found: {', '.join(found) or 'none'}. "
            "Rename them to text and label"
        )
    return chosen[0], chosen[1]


def _row(where: str, values: Mapping[str, Any], columns: tuple[str, str]) -> Row:
    text, label = (values.get(column) for column in columns)
    if not isinstance(text, str | None):
        raise ValueError(f"{where}: column {columns[0]!r} holds a {type(text).__name__}, not text")
    if label is None or not str(label).strip():
        raise ValueError(f"{where}: column {columns[1]!r} is empty; every row needs a label")
    return (text or "").strip(), str(label).strip()


def _read_hub(data_source: str) -> dict[str, list[Row]]:
    import datasets
    import huggingface_hub.errors

    where = f"data_source={data_source!r}"
    try:
        loaded = datasets.load_dataset(data_source, SUBSETS.get(data_source), revision=REVISIONS.get(data_source))
    except (ConnectionError, huggingface_hub.errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f"{where}: the Hugging Face hub cannot be reached ({error}). Use data_source='sample' or a local file"
        ) from error
    except FileNotFoundError as error:  # also what datasets raises for an id that is not on the hub
        raise FileNotFoundError(f"{where}: cannot be read ({error})") from error
    found = {split: next((n for n in names if n in loaded), None) for split, names in SPLITS.items()}
    if found["train"] is None:
        raise ValueError(f"{where}: no split 'train'; splits found: {', '.join(loaded)}")
    return {split: _rows_of(where, loaded[name]) for split, name in found.items() if name}


def _rows_of(where: str, part) -> list[Row]:
    columns = _columns(where, part.column_names)
    names = getattr(part.features[columns[1]], "names", None)
    return [
        _row(f"{where}: row {number}", {columns[0]: text, columns[1]: names[label] if names else label}, columns)
        for number, (text, label) in enumerate(zip(part[columns[0]], part[columns[1]], strict=True))
    ]


# ---- splits


def _against_others(rows: list[Row], positive: str) -> list[Row]:
    return [(text, label if label == positive else f"not {positive}") for text, label in rows]


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _clean(rows: list[Row], counts: Counter) -> list[Row]:
    """Rows of one split without empty, repeated and contradicting ones."""
    filled = [row for row in rows if row[0]]
    counts["empty"] += len(rows) - len(filled)
    labels = defaultdict(set)
    for text, label in filled:
        labels[_key(text)].add(label)
    agreed = [row for row in filled if len(labels[_key(row[0])]) == 1]
    counts["conflicts"] += len(filled) - len(agreed)
    unique = {_key(text): (text, label) for text, label in reversed(agreed)}
    counts["duplicates"] += len(agreed) - len(unique)
    return list(reversed(unique.values()))


def _hold_out(splits: dict[str, list[Row]], seed: int) -> None:
    """Takes a tenth of the training rows for each split that is missing, of every label with at least three rows."""
    missing = [name for name in SPLITS if name not in splits]
    if not missing:
        return
    by_label = defaultdict(list)
    for row in splits["train"]:
        by_label[row[1]].append(row)
    splits |= {name: [] for name in missing}
    splits["train"] = []
    for label in sorted(by_label):
        rows = by_label[label]
        random.Random(seed).shuffle(rows)
        count = max(1, round(HELD_OUT * len(rows))) if len(rows) >= 3 else 0
        for name in missing:
            splits[name] += rows[:count]
            rows = rows[count:]
        splits["train"] += rows


def _remove_overlaps(splits: dict[str, list[Row]]) -> dict[str, int]:
    removed, later = {}, {_key(text) for text, _ in splits["test"]}
    for name in ("validation", "train"):
        kept = [row for row in splits[name] if _key(row[0]) not in later]
        removed[name] = len(splits[name]) - len(kept)
        splits[name] = kept
        later |= {_key(text) for text, _ in kept}
    return dict(reversed(removed.items()))


def _labels(data_source: str, splits: dict[str, list[Row]], positive: str) -> tuple[str, ...]:
    trained = {label for _, label in splits["train"]}
    unknown = {label for name in ("validation", "test") for _, label in splits[name]} - trained
    if unknown:
        raise ValueError(
            f"data_source={data_source!r}: labels {sorted(unknown)[:5]} are not among the {len(splits['train'])} training "
            "rows; add such rows, or raise num_rows"
        )
    short = [name for name in SPLITS if len(splits[name]) < 2]
    if len(trained) < 2 or short:
        raise ValueError(
            f"data_source={data_source!r}: {len(trained)} labels, and {', '.join(short) or 'no split'} with fewer than two "
            "rows; at least two labels and two rows a split are needed"
        )
    numbers = all(label.lstrip("-").isdecimal() for label in trained)
    ordered = sorted(trained, key=int if numbers else str)
    return (f"not {positive}", positive) if positive else tuple(ordered)
