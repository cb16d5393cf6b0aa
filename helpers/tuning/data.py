"""Labelled texts: where they come from, and splits that have no text in common."""

from __future__ import annotations

import ast
import hashlib
import json
import random
import re
import sysconfig
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.data import data_files, hub
from helpers.data.data_source import DataSource, located
from helpers.parameters import SAMPLE, source_path

TEXT_COLUMNS = ("text", "sentence", "content", "comment", "texts")
LABEL_COLUMNS = ("label", "labels", "category", "class", "intent")
SPLITS = {"train": ("train",), "validation": ("validation", "valid", "dev"), "test": ("test",)}
MOST_DECIMALS = 20  # different labels with a decimal point; beyond it they are no labels
SUFFIXES = (".csv", ".jsonl", ".parquet")
HELD_OUT = 0.1  # of the training rows, for each split that is not there
EMOTION = "dair-ai/emotion"
REVISIONS = {EMOTION: "cab853a1dbdf4c42c2b3ef2173804746df8825fe"}
SUBSETS = {EMOTION: "split"}
# Packages that every installed Python has; which of them a docstring is from is its label.
SAMPLE_PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")

Row = tuple[str, str]  # text, label


@dataclass(frozen=True)
class LabelledTexts(DataSource):
    """Rows by split, labels as positions in `labels`. No text is twice in a split or in two; case and space do not count."""

    train: list[tuple[str, int]]
    validation: list[tuple[str, int]]
    test: list[tuple[str, int]]
    labels: tuple[str, ...]  # of two, the second is the positive one
    removed: dict[str, int]  # rows, by why they were removed

    def results(self) -> dict[str, Any]:
        """The `data` part of results.json."""
        return {
            **self.provenance,
            "train_examples": len(self.train),
            "eval_examples": len(self.validation),
            "test_examples": len(self.test),
            "labels": len(self.labels),
            "removed": self.removed,
        }

    def __str__(self) -> str:
        return (
            f"{len(self.train)} training, {len(self.validation)} validation and {len(self.test)} test rows of "
            f"{len(self.labels)} labels from {self.source}"
        )


def load_labelled(
    data_source: str,
    *,
    text_column: str = "",
    label_column: str = "",
    num_rows: int = 0,
    eval_rows: int = 0,
    positive_label: str = "",
    seed: int = 0,
) -> LabelledTexts:
    """Labelled texts, of which `num_rows` to train on and `eval_rows` each to validate and test on are drawn; 0: all.

    data_source: "sample" (docstrings of the installed Python's standard library, the label is the package), a .csv, .jsonl
        or .parquet, a folder with train.csv and perhaps validation.csv and test.csv (or the others), or a hub id. Of each
        split that is missing a tenth is held out, label by label.
    text_column, label_column: "" takes the first of TEXT_COLUMNS and of LABEL_COLUMNS that is there.
    positive_label: this label against all others; "": as they are.

    A text that is in several splits stays in the last of train, validation, test. A text with several labels is left out.

    Raises ValueError (no such column, label or enough rows; labels that are lists or measured numbers), FileNotFoundError
    (no such path or hub id) and ConnectionError (hub not reachable and nothing cached).
    """
    data_source = located(data_source)
    path, asked = source_path("data_source", data_source), (text_column, label_column)
    revision = REVISIONS.get(data_source) if path is None else None
    if data_source == SAMPLE:
        splits = {"train": list(_sample())}
    else:
        parts = _parts(path) if path else hub.splits(data_source, name=SUBSETS.get(data_source), revision=revision)
        named = {split: [name for name in names if name in parts] for split, names in SPLITS.items()}
        splits = {split: list(_read(data_source, parts[found[0]], asked)) for split, found in named.items() if found}
    if positive_label:
        other = f"not {positive_label}"
        for name, rows in splits.items():
            splits[name] = [(text, label if label == positive_label else other) for text, label in rows]
        if all(label == other for _, label in splits["train"]):
            raise ValueError(
                f"positive_label={positive_label!r}: no training row has it; give one of the labels or '' for all"
            )
    removed = Counter()
    cleaned = {name: _clean(rows, removed) for name, rows in splits.items()}
    _hold_out(cleaned, seed)
    _remove_overlaps(cleaned, removed)
    for name, limit in (("train", num_rows), ("validation", eval_rows), ("test", eval_rows)):
        random.Random(seed).shuffle(cleaned[name])
        cleaned[name] = cleaned[name][: limit or None]
    labels = _labels(data_source, cleaned, positive_label)
    positions = {label: position for position, label in enumerate(labels)}
    digest = hashlib.sha256(json.dumps(cleaned, ensure_ascii=True).encode()).hexdigest()
    return LabelledTexts(
        **{name: [(text, positions[label]) for text, label in rows] for name, rows in cleaned.items()},
        labels=labels,
        removed=dict(removed),
        name=path.name if path else data_source,
        revision=revision,
        draw=f"seed {seed}",
        sha256=digest,
    )


# ---- sources


def _sample() -> Iterator[Row]:
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in SAMPLE_PACKAGES:
        files = (file.relative_to(library) for file in (library / package).rglob("*.py"))
        for file in sorted(files, key=lambda file: (file.parent.parts, file.name)):
            if not {"test", "tests"} & set(file.parts):
                texts = _docstrings(ast.parse((library / file).read_bytes()))
                yield from ((text.strip(), package) for text in texts if text and text.strip())


def _docstrings(node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str | None]:
    """Of a module or class and all that is public in it."""
    yield ast.get_docstring(node)
    for child in node.body if isinstance(node, ast.Module | ast.ClassDef) else ():
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and child.name[0] != "_":
            yield from _docstrings(child)


def _parts(path: Path) -> dict[str, Path]:
    """Files by the names of their splits."""
    if path.is_file():
        return {"train": path}
    files = [path / f"{name}{suffix}" for names in SPLITS.values() for name in names for suffix in reversed(SUFFIXES)]
    parts = {file.stem: file for file in files if file.is_file()}
    if "train" not in parts:
        raise FileNotFoundError(
            f"data_source={str(path)!r}: no train.csv, train.jsonl or train.parquet in the folder; name the training file so"
        )
    return parts


def _read(data_source: str, part: Any, asked: tuple[str, str]) -> Iterator[Row]:
    """Texts and labels of a file or of a data set's split."""
    columns, names = None, None
    if isinstance(part, Path):
        where, rows = f"data_source={str(part)!r}", data_files.rows("data_source", part, SUFFIXES)
    else:
        where = f"data_source={data_source!r}"
        columns = _columns(where, part.column_names, asked)
        names = getattr(part.features[columns[1]], "names", None)
        rows = data_files.numbered(where, part.select_columns([*{*columns}]))
    for row in rows:
        columns = columns or _columns(where, [*row.values], asked)
        label = row.values.get(columns[1])
        if None in row.values.values() and isinstance(part, Path) and part.suffix.lower() == ".csv":
            raise ValueError(
                f"{row.where} has fewer fields than the header; put a field that holds a comma in double quotes"
            )
        if isinstance(label, list | dict):
            raise ValueError(
                f"{row.where}: column {columns[1]!r} holds a {type(label).__name__}; this notebook trains one label a text, no "
                "labels of tokens and not several"
            )
        if label is None or not str(label).strip():
            raise ValueError(f"{row.where}: column {columns[1]!r} is empty; every row needs a label")
        yield data_files.text(row, columns[0]).strip(), str(names[label] if names else label).strip()


def _columns(where: str, found: Sequence[str], asked: tuple[str, str]) -> tuple[str, str]:
    """The text and the label column: as asked for, or by their usual names."""

    def chosen(parameter: str, name: str, usual: Sequence[str]) -> str:
        wanted = (name,) if name else usual
        if there := [each for each in wanted if each in found]:
            return there[0]
        raise ValueError(
            f"{where}: no column {', '.join(map(repr, wanted))}; columns found: {', '.join(found) or 'none'}. "
            f"Set {parameter} to the one to take"
        )

    return chosen("text_column", asked[0], TEXT_COLUMNS), chosen("label_column", asked[1], LABEL_COLUMNS)


# ---- splits


def _key(text: str) -> str:
    return " ".join(text.casefold().split())


def _clean(rows: list[Row], removed: Counter) -> list[Row]:
    """Rows of one split without empty, repeated and contradicting ones."""
    filled = [row for row in rows if row[0]]
    removed["empty"] += len(rows) - len(filled)
    labels = defaultdict(set)
    for text, label in filled:
        labels[_key(text)].add(label)
    agreed = [row for row in filled if len(labels[_key(row[0])]) == 1]
    removed["several labels in a split"] += len(filled) - len(agreed)
    unique = {_key(text): (text, label) for text, label in reversed(agreed)}
    removed["repeated in a split"] += len(agreed) - len(unique)
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


def _remove_overlaps(splits: dict[str, list[Row]], removed: Counter) -> None:
    later = {_key(text) for text, _ in splits["test"]}
    for name in ("validation", "train"):
        kept = [row for row in splits[name] if _key(row[0]) not in later]
        removed[f"{name} rows that are in a later split, too"] = len(splits[name]) - len(kept)
        splits[name] = kept
        later |= {_key(text) for text, _ in kept}


def _labels(data_source: str, splits: dict[str, list[Row]], positive: str) -> tuple[str, ...]:
    trained = sorted({label for _, label in splits["train"]})
    if sum(bool(re.fullmatch(r"-?\d*\.\d+", label)) for label in trained) > MOST_DECIMALS:
        raise ValueError(
            f"data_source={data_source!r}: the labels are measured numbers such as {trained[0]} and {trained[-1]}, and this "
            "notebook does not train regression; put each into a class, or set label_column to another column"
        )
    unknown = sorted({label for name in ("validation", "test") for _, label in splits[name]}.difference(trained))
    if unknown:
        raise ValueError(
            f"data_source={data_source!r}: labels {unknown[:5]} are not among the {len(splits['train'])} training rows; add "
            "such rows, or raise num_rows"
        )
    short = [name for name in SPLITS if len(splits[name]) < 2]
    if len(trained) < 2 or short:
        raise ValueError(
            f"data_source={data_source!r}: {len(trained)} labels, and {', '.join(short) or 'no split'} with fewer than two "
            "rows; at least two labels and two rows a split are needed"
        )
    if positive:
        return f"not {positive}", positive
    return tuple(sorted(trained, key=int if all(label.lstrip("-").isdecimal() for label in trained) else str))
