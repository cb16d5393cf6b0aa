"""Labelled texts: where they come from, and splits that have no text in common."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from helpers.data.data_source import DataSource, Place, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable

from .parameters import TuningParameters
from .sample import sample_rows

TEXT_COLUMNS = ("text", "sentence", "content", "comment", "texts")
LABEL_COLUMNS = ("label", "labels", "category", "class", "intent")
SPLITS = ("train", "validation", "test")
HELD_OUT = 0.1  # of the training rows, for each split that is not there
REMEDY = "set {0}_column to the one that holds the {0}s"
EMOTION = "dair-ai/emotion"
REVISIONS = {EMOTION: "cab853a1dbdf4c42c2b3ef2173804746df8825fe"}
SUBSETS = {EMOTION: "split"}

Pair = tuple[str, str]  # text, label


@dataclass(frozen=True)
class LabelledTexts(DataSource):
    """Rows by split, labels as positions in `labels`. No text is twice in a split or in two; case and space do not count."""

    train: list[tuple[str, int]]
    validation: list[tuple[str, int]]
    test: list[tuple[str, int]]
    labels: tuple[str, ...]
    removed: int  # rows: empty, repeated, in a later split, too, or with several labels
    set_aside: int = 0  # rows that cannot be used

    def results(self) -> dict[str, Any]:
        """The `data` part of results.json."""
        sizes = {
            "train_examples": len(self.train),
            "eval_examples": len(self.validation),
            "test_examples": len(self.test),
        }
        counts = {"labels": len(self.labels), "removed": self.removed, "set_aside": self.set_aside}
        return self.provenance | sizes | counts

    def __str__(self) -> str:
        return (
            f"{len(self.train)} training, {len(self.validation)} validation and {len(self.test)} test rows of "
            f"{len(self.labels)} labels from {self.source}\n{self.removed} rows removed: empty, repeated, in a later split, too, or with "
            "several labels"
        )


def load_texts(params: TuningParameters) -> LabelledTexts:
    """The texts of `data_source`, in three splits. Of each split that is missing a tenth is held out, label by label.

    A text that is in several splits stays in the last of train, validation, test. A text with several labels is left out.

    Raises ValueError (no such column, most rows without a text or a label, too few rows, a hub set that cannot be read) and
    FileNotFoundError (no such path).
    """
    place = locate(params.data_source)
    set_aside = SetAside(place.source)
    rows = _read(place, params, set_aside)
    if set_aside.rows:
        print(set_aside)
    splits = _without_repeats(rows)
    read = sum(map(len, rows.values()))
    removed = read - sum(map(len, splits.values()))
    missing = [name for name in SPLITS if name not in splits]
    splits |= _held_out(splits["train"], missing, params.seed)
    for name in SPLITS:
        random.Random(params.seed).shuffle(splits[name])
        count = params.num_rows
        if name != "train":
            count //= 5
        if count:
            del splits[name][count:]
    labels = _labels(place, splits)
    numbers = {label: number for number, label in enumerate(labels)}
    numbered = {}
    for name in SPLITS:
        numbered[name] = [(text, numbers[label]) for text, label in splits[name]]
    return LabelledTexts(
        **numbered,
        labels=labels,
        removed=removed,
        set_aside=len(set_aside.rows),
        name=place.name,
        revision=None if place.path else REVISIONS.get(place.value),
        draw=f"seed {params.seed}",
        sha256=hashlib.sha256(json.dumps(splits).encode()).hexdigest(),
    )


def _read(place: Place, params: TuningParameters, set_aside: SetAside) -> dict[str, list[Pair]]:
    """The texts with their labels of each split that there is, at least of train."""
    if place.is_sample:
        return {"train": list(sample_rows())}

    text_columns = [params.text_column] if params.text_column else TEXT_COLUMNS
    label_columns = [params.label_column] if params.label_column else LABEL_COLUMNS

    def pair(row: Row) -> Pair:
        text = row.text(row.column(text_columns, REMEDY.format("text"))).strip()
        return text, _label(row, row.column(label_columns, REMEDY.format("label")))

    revision = REVISIONS.get(place.value)
    splits = read_splits(place, SUFFIXES, name=SUBSETS.get(place.value), revision=revision)
    pairs = {}
    for name in SPLITS:
        if name in splits:
            pairs[name] = list(set_aside.convert(splits[name], pair))
    set_aside.check()
    return pairs


def _label(row: Row, column: str) -> str:
    label = row.values[column]
    if isinstance(label, list | dict):
        raise Unusable(f"column `{column}` holds a {type(label).__name__} and not a label; give each row one class")
    if label is None or not str(label).strip():
        raise Unusable(f"no label in column `{column}` (a field that holds a delimiter needs double quotes)")
    return str(label).strip()


def _without_repeats(splits: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """The splits without empty, repeated and contradicting rows, and without those that a later split has, too."""
    distinct: dict[str, list[Pair]] = {}
    later = set()
    for split in reversed(SPLITS):
        if split not in splits:
            continue
        labels = defaultdict(set)
        first: dict[str, Pair] = {}
        for text, label in splits[split]:
            key = " ".join(text.casefold().split())
            labels[key].add(label)
            first.setdefault(key, (text, label))
        distinct[split] = []
        for key, pair in first.items():
            if key and len(labels[key]) == 1 and key not in later:
                distinct[split].append(pair)
                later.add(key)
    return dict(reversed(distinct.items()))


def _held_out(train: list[Pair], missing: Sequence[str], seed: int) -> dict[str, list[Pair]]:
    """A tenth of the training rows for each missing split, of every label with at least three rows, and the rest."""
    by_label = defaultdict(list)
    for pair in train:
        by_label[pair[1]].append(pair)
    splits: dict[str, list[Pair]] = {name: [] for name in ("train", *missing)}
    for _, pairs in sorted(by_label.items()):
        random.Random(seed).shuffle(pairs)
        count = 0
        if len(pairs) >= 3:
            count = max(1, round(HELD_OUT * len(pairs)))
        for name in missing:
            splits[name] += pairs[:count]
            del pairs[:count]
        splits["train"] += pairs
    return splits


def _labels(place: Place, splits: dict[str, list[Pair]]) -> tuple[str, ...]:
    """The labels of the training rows. Raises ValueError where they are no classes, or a later split has others."""
    used = {}
    for name, pairs in splits.items():
        used[name] = {label for _, label in pairs}
    labels, rows = sorted(used["train"]), len(splits["train"])
    if len(labels) < 2 or min(map(len, splits.values())) < 2 or len(labels) > rows / 2:
        raise ValueError(
            f"{place.source}: {len(labels)} labels such as {labels[:3]} on {rows} training rows; give at least two labels and two "
            "rows of each (in a folder every file of rows is read, as the lines above say), put measured numbers into classes, or set "
            "label_column to another column"
        )
    unknown = (used["validation"] | used["test"]) - used["train"]
    if unknown:
        raise ValueError(
            f"{place.source}: labels {sorted(unknown)[:5]} are not among the {rows} training rows; add such rows, or raise num_rows"
        )
    return tuple(labels)
