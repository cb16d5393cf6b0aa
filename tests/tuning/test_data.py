"""Labelled texts: what is removed and counted, what is held out, and what is refused."""

import csv

import pytest

from helpers.tuning.data import load_texts
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.sample import PACKAGES

pytestmark = pytest.mark.once


def load_labelled(data_source: str, **given):
    """The texts with these parameters."""
    return load_texts(TuningParameters.defaults().model_copy(update={"data_source": data_source, **given}))


def write(path, rows, columns=("text", "label")):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(columns)
        writer.writerows(rows)
    return str(path)


def numbered(count: int, labels: int = 2, start: int = 0) -> list[tuple[str, str]]:
    return [(f"text number {i}", "abcdefgh"[i % labels]) for i in range(start, start + count)]


def all_texts(found) -> list[str]:
    return [*found.train.text, *found.validation.text, *found.test.text]


def test_a_text_of_several_splits_stays_in_one_and_is_counted(tmp_path):
    train = [*numbered(20), ("Text  NUMBER 3", "b"), ("in valid", "b"), ("in test", "a"), ("", "a"), ("rare", "c")]
    write(tmp_path / "train.csv", train)
    write(tmp_path / "validation.csv", [*numbered(4, start=100), ("IN valid", "b"), ("in test", "a")])
    write(tmp_path / "test.csv", [*numbered(4, start=200), ("in  Test", "a"), ("torn", "a"), ("Torn", "b")])
    found = load_labelled(str(tmp_path))
    counts = {"train_examples": 20, "eval_examples": 5, "test_examples": 5, "labels": 2, "removed": 8}
    assert found.counts() == counts
    assert "in  Test" in [*found.test.text] and "IN valid" in [*found.validation.text]


def test_one_file_is_split_label_by_label_without_a_common_text(tmp_path):
    path = write(tmp_path / "all.csv", numbered(300, labels=3))
    found = load_labelled(path, seed=1)
    for split, count in ((found.train, 81), (found.validation, 10), (found.test, 9)):
        assert split.label.value_counts().to_dict() == {0: count, 1: count, 2: count}
    assert sorted(all_texts(found)) == sorted(text for text, _ in numbered(300))
    assert found.provenance == load_labelled(path, seed=1).provenance != load_labelled(path, seed=2).provenance


def test_columns_have_the_names_that_are_set(tmp_path):
    rows = [(text, "ignored", label) for text, label in numbered(40)]
    path = write(tmp_path / "d.csv", rows, ("review", "text", "stars"))
    found = load_labelled(path, text_column="review", label_column="stars")
    assert found.labels == ["a", "b"] and "text number 0" in all_texts(found)
    with pytest.raises(ValueError, match=r"no column `star` among \['review', 'text', 'stars'\]; set label_column to"):
        load_labelled(path, text_column="review", label_column="star")


def test_class_labels_are_read_by_name_and_a_row_without_one_is_set_aside(tmp_path, capsys):
    from datasets import ClassLabel, Dataset

    rows = [{"text": text, "label": place % 2} for place, (text, _) in enumerate(numbered(40))]
    for name, label in (("labelled", 1), ("unlabelled", -1)):
        (tmp_path / name).mkdir()
        table = Dataset.from_list([*rows, {"text": "the last", "label": label}])
        table.cast_column("label", ClassLabel(names=["unfair", "fair"])).to_parquet(tmp_path / name / "train.parquet")
    assert load_labelled(str(tmp_path / "labelled")).labels == ["fair", "unfair"]
    load_labelled(str(tmp_path / "unlabelled"))
    assert "1, first train.parquet row 41: no label in column `label`" in capsys.readouterr().out


def test_fewer_rows_are_drawn_with_the_seed(tmp_path):
    path = write(tmp_path / "d.csv", numbered(200))
    found = load_labelled(path, num_rows=50, seed=3)
    assert (len(found.train), len(found.validation), len(found.test)) == (50, 20, 18)
    assert {*found.train.text} != {*load_labelled(path, num_rows=50, seed=4).train.text}


def test_the_sample_is_real_text_of_this_python_by_package():
    found = load_labelled("sample")
    assert {*found.labels} <= {*PACKAGES} and len(found.labels) >= 6
    assert len(found.train) > 500 and found.removed > 0  # the library repeats itself
    assert found.train.text.str.split().str.len().max() > 100


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("words,label\nx,a\n", r"no column `text` among \['words', 'label'\]; set text_column to"),
        ("text,label\nx,a,b\n", "line 2: .*more fields than the header: quote what holds a delimiter"),
        ("text,label\nx\n", r"line 2: no label in column `label` .*needs double quotes"),
        ("text,label\n" + "".join(f"t{i},a\n" for i in range(30)), r"of 1 labels such as \['a'\] 1 have 3 training"),
        ("text,label\n" + "".join(f"t{i},0.{i}\n" for i in range(30)), r"put measured numbers into classes"),
        ("text,label\nx,a\ny,b\n", r"0 have 3 training rows; give two labels so many"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_with_the_remedy(content, message, tmp_path):
    path = tmp_path / "d.csv"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_labelled(str(path))
