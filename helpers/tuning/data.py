"""Labelled texts: where they come from, and splits that have no text in common."""

import hashlib
from dataclasses import dataclass

import pandas
from sklearn.model_selection import train_test_split

from helpers.data.data_source import DataSource, locate, read_splits
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable, number_rows

from .parameters import TuningParameters
from .sample import sample_rows

SPLITS = ("train", "validation", "test")
HUB = {"dair-ai/emotion": {"name": "split", "revision": "cab853a1dbdf4c42c2b3ef2173804746df8825fe"}}


@dataclass(frozen=True, eq=False)
class LabelledTexts(DataSource):
    """Splits with the columns `text` and `label`, a position in `labels`.

    No text is twice in a split or in two; case and space do not count.
    """

    train: pandas.DataFrame
    validation: pandas.DataFrame
    test: pandas.DataFrame
    labels: list[str]
    removed: int  # rows: empty, repeated, in a later split, too, with several labels, or with a rare one

    def counts(self) -> dict[str, int]:
        """For results.json, beside the provenance."""
        return {
            "train_examples": len(self.train),
            "eval_examples": len(self.validation),
            "test_examples": len(self.test),
            "labels": len(self.labels),
            "removed": self.removed,
        }


def load_texts(params: TuningParameters) -> LabelledTexts:
    """The texts of `data_source`, in three splits. Of each split that is missing a tenth is held out, label by label.

    A text that is in several splits stays in the last of train, validation, test. A text with several labels is left out, and so is a
    label with less than three training rows.

    Raises ValueError (no such column, most rows without a text or a label, no classes, a hub set that cannot be read) and
    FileNotFoundError (no such path).
    """

    def text_and_label(row: Row) -> tuple[str, str]:
        text = row.text(row.column([params.text_column], "set text_column to the one that holds the texts"))
        column = row.column([params.label_column], "set label_column to the one that holds the labels")
        label = row.text(column).strip()
        if not label:
            raise Unusable(f"no label in column `{column}` (a field that holds a delimiter needs double quotes)")
        return text, label

    place = locate(params.data_source)
    set_aside = SetAside(place.source)
    if place.is_sample:
        sources = {"train": [*number_rows(sample_rows())]}
    else:
        sources = read_splits(place, SUFFIXES, **HUB.get(place.name, {}))
    read = [(name, *pair) for name in SPLITS for pair in set_aside.convert(sources.get(name, []), text_and_label)]
    set_aside.check()
    rows = pandas.DataFrame(read, columns=["split", "text", "label"])
    key = rows.text.str.casefold().str.split().str.join(" ")
    has_one_label = rows.label.groupby(key).transform("nunique") == 1
    is_last = ~key.duplicated(keep="last")
    distinct = rows[has_one_label & is_last & (key != "")]
    frequency = distinct.label[distinct.split == "train"].value_counts()
    labels = sorted(frequency.index[frequency >= 3])
    if len(labels) < 2:
        raise ValueError(
            f"{place.source}: of {len(frequency)} labels such as {[*frequency.index[:3]]} {len(labels)} have 3 training rows; give "
            "two labels so many, put measured numbers into classes, or set label_column to another column"
        )
    usable = distinct[distinct.label.isin(labels)]
    splits = {name: usable[usable.split == name] for name in SPLITS}
    for name in SPLITS[1:]:
        if splits[name].empty:
            train = splits["train"]
            count = max(len(train) // 10, len(labels))
            divided = train_test_split(train, test_size=count, stratify=train.label, random_state=params.seed)
            splits["train"], splits[name] = divided
    for name, split in splits.items():
        drawn = split.sample(frac=1, random_state=params.seed).head(params.num_rows or len(split))
        splits[name] = drawn.assign(label=drawn.label.map(labels.index))[["text", "label"]]
    return LabelledTexts(
        **splits,
        labels=labels,
        removed=len(rows) - len(usable),
        name=place.name,
        revision=HUB.get(place.name, {}).get("revision"),
        draw=f"seed {params.seed}",
        sha256=hashlib.sha256(f"{labels}{pandas.concat(splits).to_csv()}".encode()).hexdigest(),
    )
