"""Labelled texts: where they come from, and splits that have no text in common."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass

import pandas
from sklearn.model_selection import train_test_split

from helpers.data.data_source import DataSource, Place, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable

from .parameters import TuningParameters
from .sample import sample_rows

TEXT_COLUMNS = ("text", "sentence", "content", "comment", "texts")
LABEL_COLUMNS = ("label", "labels", "category", "class", "intent")
SPLITS = ("train", "validation", "test")
HELD_OUT = 0.1  # of the training rows, for each split that is not there
EMOTION = "dair-ai/emotion"
REVISIONS = {EMOTION: "cab853a1dbdf4c42c2b3ef2173804746df8825fe"}
SUBSETS = {EMOTION: "split"}


@dataclass(frozen=True)
class LabelledTexts(DataSource):
    """Rows by split, labels as positions in `labels`. No text is twice in a split or in two; case and space do not count."""

    train: list[tuple[str, int]]
    validation: list[tuple[str, int]]
    test: list[tuple[str, int]]
    labels: tuple[str, ...]
    removed: int  # rows: empty, repeated, in a later split, too, or with several labels
    set_aside: int = 0  # rows that cannot be used

    def counts(self) -> dict[str, int]:
        """For results.json, beside the provenance."""
        return {
            "train_examples": len(self.train),
            "eval_examples": len(self.validation),
            "test_examples": len(self.test),
            "labels": len(self.labels),
            "removed": self.removed,
            "set_aside": self.set_aside,
        }


def load_texts(params: TuningParameters) -> LabelledTexts:
    """The texts of `data_source`, in three splits. Of each split that is missing a tenth is held out, label by label.

    A text that is in several splits stays in the last of train, validation, test. A text with several labels is left out.

    Raises ValueError (no such column, most rows without a text or a label, no classes, a hub set that cannot be read) and
    FileNotFoundError (no such path).
    """
    place = locate(params.data_source)
    set_aside = SetAside(place.source)
    rows = pandas.DataFrame(_read(place, params, set_aside), columns=["split", "text", "label"])
    if set_aside.rows:
        set_aside.check()
        print(set_aside)
    key = rows.text.str.casefold().str.split().str.join(" ")
    has_one_label = rows.label.groupby(key).transform("nunique") == 1
    distinct = rows[has_one_label & (key != "") & ~key.duplicated(keep="last")]
    labels = sorted(set(distinct.label))
    if len(labels) < 2 or len(labels) > len(distinct) / 3:
        raise ValueError(
            f"{place.source}: {len(labels)} labels such as {labels[:3]} on {len(distinct)} rows; give at least two labels and three "
            "rows of each, put measured numbers into classes, or set label_column to another column"
        )
    splits = {name: distinct[distinct.split == name] for name in SPLITS}
    for name in SPLITS[1:]:
        if splits[name].empty:
            splits["train"], splits[name] = _hold_out(splits["train"], params.seed)
    numbered = {}
    for name, split in splits.items():
        drawn = split.sample(frac=1, random_state=params.seed).head(params.num_rows or len(split))
        numbered[name] = list(zip(drawn.text, map(labels.index, drawn.label), strict=True))
    return LabelledTexts(
        **numbered,
        labels=tuple(labels),
        removed=len(rows) - len(distinct),
        set_aside=len(set_aside.rows),
        name=place.name,
        revision=None if place.path else REVISIONS.get(place.value),
        draw=f"seed {params.seed}",
        sha256=hashlib.sha256(repr((numbered, labels)).encode()).hexdigest(),
    )


def _read(place: Place, params: TuningParameters, set_aside: SetAside) -> Iterator[tuple[str, str, str]]:
    """Split, text and label of each row that can be used."""
    if place.is_sample:
        yield from sample_rows()
        return
    text_columns = [params.text_column] if params.text_column else TEXT_COLUMNS
    label_columns = [params.label_column] if params.label_column else LABEL_COLUMNS

    def text_and_label(row: Row) -> tuple[str, str]:
        text = row.text(row.column(text_columns, "set text_column to the one that holds the texts"))
        column = row.column(label_columns, "set label_column to the one that holds the labels")
        label = row.values[column]
        if label is None or not str(label).strip():
            raise Unusable(f"no label in column `{column}` (a field that holds a delimiter needs double quotes)")
        return text.strip(), str(label).strip()

    revision = REVISIONS.get(place.value)
    splits = read_splits(place, SUFFIXES, name=SUBSETS.get(place.value), revision=revision)
    for name in SPLITS:
        for text, label in set_aside.convert(splits.get(name, []), text_and_label):
            yield name, text, label


def _hold_out(train: pandas.DataFrame, seed: int) -> tuple[pandas.DataFrame, pandas.DataFrame]:
    """The rows without a tenth of them, and that tenth, label by label. A label with a single row stays where it is."""
    frequency = train.label.groupby(train.label).transform("size")
    divided = train[frequency > 1]
    count = max(round(HELD_OUT * len(train)), divided.label.nunique())
    rest, held_out = train_test_split(divided, test_size=count, stratify=divided.label, random_state=seed)
    return pandas.concat([rest, train[frequency == 1]]), held_out
