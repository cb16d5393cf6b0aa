"""Labelled texts: where they come from, and splits that have no text in common."""

from __future__ import annotations

import hashlib
import json
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.data import data_files, hub
from helpers.data.data_source import DataSource, located
from helpers.parameters import SAMPLE, source_path

from .parameters import TuningParameters
from .sample import sample_rows

TEXT_COLUMNS = ("text", "sentence", "content", "comment", "texts")
LABEL_COLUMNS = ("label", "labels", "category", "class", "intent")
SPLITS = ("train", "validation", "test")
SUFFIXES = (".csv", ".jsonl", ".parquet")
HELD_OUT = 0.1  # of the training rows, for each split that is not there
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
            f"{len(self.labels)} labels from {self.source}\n{self.removed} rows removed: empty, repeated, in a later split, too, or with "
            "several labels"
        )


def load_texts(params: TuningParameters) -> LabelledTexts:
    """The texts of `data_source`, in three splits. Of each split that is missing a tenth is held out, label by label.

    A text that is in several splits stays in the last of train, validation, test. A text with several labels is left out.

    Raises ValueError (no such column, label or enough rows), FileNotFoundError (no such path or hub id) and ConnectionError
    (hub not reachable and nothing cached).
    """
    params = params.model_copy(update={"data_source": located(params.data_source)})
    path = source_path("data_source", params.data_source)
    given = dict(_splits(params, path))
    splits = _without_repeats(given)
    removed = sum(len(given[name]) - len(splits[name]) for name in given)
    splits |= _held_out(splits["train"], [name for name in SPLITS if name not in splits], params.seed)
    for name in SPLITS:
        random.Random(params.seed).shuffle(splits[name])
        del splits[name][(params.num_rows if name == "train" else params.num_rows // 5) or len(splits[name]) :]
    labels = _labels(params.data_source, splits)
    return LabelledTexts(
        **{name: [(text, labels.index(label)) for text, label in splits[name]] for name in SPLITS},
        labels=labels,
        removed=removed,
        name=path.name if path else params.data_source,
        revision=None if path else REVISIONS.get(params.data_source),
        draw=f"seed {params.seed}",
        sha256=hashlib.sha256(json.dumps(splits).encode()).hexdigest(),
    )


def _splits(params: TuningParameters, path: Path | None) -> Iterator[tuple[str, list[Pair]]]:
    """(split, its texts with their labels) of what there is; at least "train"."""
    source = params.data_source
    if source == SAMPLE:
        yield "train", list(sample_rows())
        return
    if path and path.is_file():
        rows = {"train": data_files.rows("data_source", path, SUFFIXES)}
    else:  # of the hub, or a folder in its layout: train.csv, test.csv
        found = hub.splits(source, name=SUBSETS.get(source), revision=REVISIONS.get(source))
        rows = {name: data_files.numbered(f"data_source={source!r}, {name}", part) for name, part in found.items()}
    for split in SPLITS:
        if split in rows:
            yield split, list(_pairs(rows[split], params))


def _pairs(rows: Iterable, params: TuningParameters) -> Iterator[Pair]:
    for row in rows:
        text_column = _column(row, "text_column", params.text_column, TEXT_COLUMNS)
        label_column = _column(row, "label_column", params.label_column, LABEL_COLUMNS)
        label = row.values[label_column]
        if label is None or isinstance(label, list | dict) or not str(label).strip():
            raise ValueError(
                f"{row.where}, column {label_column!r}: {label!r} is no label; give each row one class (a field that holds a comma "
                "needs double quotes)"
            )
        yield data_files.text(row, text_column).strip(), str(label).strip()


def _column(row, parameter: str, asked: str, usual: Sequence[str]) -> str:
    wanted = (asked,) if asked else usual
    if there := [name for name in wanted if name in row.values]:
        return there[0]
    raise ValueError(
        f"{row.where}: no column {', '.join(map(repr, wanted))}; columns found: {', '.join(row.values) or 'none'}. Set {parameter} to "
        "the one to take"
    )


def _without_repeats(splits: dict[str, list[Pair]]) -> dict[str, list[Pair]]:
    """The splits without empty, repeated and contradicting rows, and without those that a later split has, too."""
    import pandas

    rows = [(split, *pair) for split in reversed(SPLITS) for pair in splits.get(split, ())]
    rows = pandas.DataFrame(rows, columns=["split", "text", "label"], dtype=object)
    rows["key"] = [" ".join(text.casefold().split()) for text in rows["text"]]
    clear = rows.groupby(["split", "key"])["label"].transform("nunique") == 1
    kept = rows[clear & (rows["key"] != "") & ~rows["key"].duplicated()]
    return {
        split: kept.loc[kept["split"] == split, ["text", "label"]].to_numpy().tolist() for split in reversed(splits)
    }


def _held_out(train: list[Pair], missing: Sequence[str], seed: int) -> dict[str, list[Pair]]:
    """A tenth of the training rows for each missing split, of every label with at least three rows, and the rest."""
    by_label = defaultdict(list)
    for pair in train:
        by_label[pair[1]].append(pair)
    found = {name: [] for name in ("train", *missing)}
    for _, pairs in sorted(by_label.items()):
        random.Random(seed).shuffle(pairs)
        count = max(1, round(HELD_OUT * len(pairs))) if len(pairs) >= 3 else 0
        for name in missing:
            found[name] += pairs[:count]
            del pairs[:count]
        found["train"] += pairs
    return found


def _labels(data_source: str, splits: dict[str, list[Pair]]) -> tuple[str, ...]:
    labels = sorted({label for _, label in splits["train"]})
    if len(labels) < 2 or min(len(splits[name]) for name in SPLITS) < 2 or len(labels) > len(splits["train"]) / 2:
        raise ValueError(
            f"data_source={data_source!r}: {len(labels)} labels such as {labels[:3]} on {len(splits['train'])} training rows; give at "
            "least two labels and two rows of each, put measured numbers into classes, or set label_column to another column"
        )
    if unknown := {label for name in ("validation", "test") for _, label in splits[name]}.difference(labels):
        raise ValueError(
            f"data_source={data_source!r}: labels {sorted(unknown)[:5]} are not among the {len(splits['train'])} training rows; add "
            "such rows, or raise num_rows"
        )
    return tuple(labels)
