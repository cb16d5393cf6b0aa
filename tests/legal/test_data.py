"""Everybody's records: the shapes that people have, what is set aside and why, labels, official splits, near-duplicates."""

import json
from pathlib import Path

import numpy as np
import pandas
import pytest

from helpers.legal.data import Record, groups_of, load_records, near_duplicates
from helpers.legal.sample import sample_records
from tests.harness import write

pytestmark = pytest.mark.once

NUMBER = 30


@pytest.fixture(autouse=True)
def dataset_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


def question(number: int) -> str:
    """Questions that are no near-duplicates of each other."""
    return f"Q{number} {' '.join(f'{number * 7919 + word * 104729:x}' for word in range(8))}?"


def written(path: Path, rows: list[dict]) -> Path:
    """Rows in a file of the kind of its suffix."""
    table = pandas.DataFrame(rows)
    if path.suffix == ".parquet":
        table.to_parquet(path)
    elif path.suffix == ".csv":
        table.to_csv(path, index=False, encoding="utf-8-sig")
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def loaded(folder: Path, rows: list[dict], name: str = "x.jsonl"):
    return load_records(str(written(folder / name, rows)), seed=0)


def everything(records) -> list[Record]:
    return [record for part in records.splits.values() for record in part]


USER, ASSISTANT = {"role": "user", "content": "{q}"}, {"role": "assistant", "content": "{a}"}
THINKS = ASSISTANT | {"content": "<think>\nStep 1.\n</think>\n\n{a}"}
SHARED = [{"from": "human", "value": "{q}"}, {"from": "gpt", "value": "{a}"}]
SHAPES = {  # file, form of a row, its question and its reasoning
    "messages": ("x.jsonl", {"messages": [USER, ASSISTANT]}, "{q}", ""),
    "messages with reasoning": ("x.parquet", {"messages": [USER, THINKS]}, "{q}", "Step 1."),
    "prompt and completion": ("x.jsonl", {"prompt": "{q}", "completion": "{a}"}, "{q}", ""),
    "with reasoning": ("x.csv", {"Question": "{q}", "Reasoning": "Step 1.", "Answer": "{a}"}, "{q}", "Step 1."),
    "Alpaca": ("x.jsonl", {"instruction": "Is it?", "input": "{q}", "output": "{a}"}, "Is it?\n\n{q}", ""),
    "ShareGPT": ("x.json", {"conversations": SHARED}, "{q}", ""),
    "text and label": ("x.csv", {"text": "{q}", "label": "{a}"}, "{q}", ""),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_row_of_each_shape_is_read_with_its_question_and_answer(name, tmp_path):
    file, form, asked, reasoning = SHAPES[name]
    rows = [json.loads(json.dumps(form).replace("{q}", question(n)).replace("{a}", f"Act {n}")) for n in range(NUMBER)]
    records = loaded(tmp_path, rows, file)
    assert not records.set_aside
    expected = {(asked.replace("{q}", question(n)), reasoning, f"Act {n}") for n in range(NUMBER)}
    assert {(record.question, record.reasoning, record.answer) for record in everything(records)} == expected


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "search", "arguments": "{}"}}]}
REFUSED = {
    "no answer column": ([{"question": "Why?", "comment": "So."}], r"columns: question, comment\)\. Give `messages`"),
    "a message that is a text": ([{"messages": ["Why?"]}], "a message must be an object"),
    "an image in a message": ([{"messages": [USER | {"content": [{"type": "image"}]}]}], "must be a text"),
    "tool calls": ([{"messages": [USER, CALL, ASSISTANT]}], "tool calls are not read"),
    "messages in a column": ([{"prompt": [USER], "completion": [ASSISTANT]}], "column `prompt` holds a list"),
    "answers alone": ([{"question": "", "answer": "So."}], "no question and answer"),
    "an empty turn": ([{"messages": [USER, ASSISTANT | {"content": " "}, USER, ASSISTANT]}], "and not empty"),
    "three records": (
        [{"question": question, "answer": "b"} for question in ("a", "a", "b", "c")],
        "3 different records to train with; at least 10 are needed",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_shape_that_cannot_be_used_is_refused_with_the_reason(name, tmp_path):
    rows, reason = REFUSED[name]
    with pytest.raises(ValueError, match=reason):
        loaded(tmp_path, rows)


def test_every_row_that_is_set_aside_has_its_reason(tmp_path):
    rows = [{"question": question(n // 3), "reasoning": f"Step {n}.", "answer": f"{n // 3}"} for n in range(3 * NUMBER)]
    rows += [rows[3], {"question": "Why?", "answer": None}, {"title": "a row of something else"}]
    path = written(tmp_path / "x.jsonl", rows)
    with path.open("ab") as file:
        file.write(b'{"question": "\xfc"\n')
    records = load_records(str(path), seed=0)
    reasons = dict(records.set_aside)
    assert reasons["x.jsonl line 91"] == "repeats another row"
    assert "its columns: question)" in reasons["x.jsonl line 92"]
    assert "its columns: title)" in reasons["x.jsonl line 93"]
    assert "not a JSON object" in reasons["x.jsonl line 94"] and len(reasons) == 4
    assert [row["number"] for row in records.rows() if row["records"].startswith("set aside")] == [1, 1, 1, 1]
    questions = [{record.question for record in part} for part in records.splits.values()]
    assert sum(map(len, questions)) == NUMBER and len(everything(records)) == 3 * NUMBER


# ---- splits


def test_the_splits_of_a_folder_are_kept_with_the_names_of_class_labels(tmp_path):
    from datasets import ClassLabel, Dataset

    counts = {"train": 20, "validation": 5, "test": 6}
    for name, count in counts.items():
        rows = Dataset.from_list([{"text": question(len(name) * 100 + n), "label": n % 2} for n in range(count)])
        rows.cast_column("label", ClassLabel(names=["fair", "unfair"])).to_parquet(tmp_path / f"{name}.parquet")
    records = load_records(str(tmp_path), seed=0)
    assert {name: len(part) for name, part in records.splits.items()} == counts
    assert {record.answer for record in everything(records)} == {"fair", "unfair"}


def test_what_training_repeats_of_the_test_is_taken_from_training(tmp_path):
    rows = [{"question": question(n), "answer": "a"} for n in range(NUMBER)]
    records = load_records(str(write(tmp_path / "set", {"train.jsonl": rows, "test.jsonl": rows[3:4]})), seed=0)
    assert [record.question for record in records.splits["test"]] == [question(3)]
    assert [reason for _, reason in records.set_aside] == ["repeats another row"]
    assert records.splits["validation"]


def test_records_of_one_document_are_in_one_split(tmp_path):
    rows = [{"document": str(n // 5), "question": question(n), "answer": f"{n}"} for n in range(100)]
    parts = loaded(tmp_path, rows).splits.values()
    assert [len(part) for part in parts] == [80, 10, 10]
    assert [len({record.group for record in part}) for part in parts] == [16, 2, 2]


INSTRUCTION = "Read the following clause of an agreement carefully and say whether it lets a party end the agreement. "


def pairs(texts: list[str]) -> list[tuple[int, int]]:
    return [(i, j) for i, j in np.argwhere(near_duplicates(texts).toarray()).tolist() if i < j]


def test_near_duplicates_are_those_of_set_arithmetic():
    texts = [record["question"].lower() for record in sample_records(3)]
    texts = [" ".join("".join(c if c.isalnum() else " " for c in text).split()) for text in texts]
    sets = [{text[i : i + 5] for i in range(len(text) - 4)} for text in texts]
    slow = [(i, j) for i, j in ((0, 1), (0, 2), (1, 2)) if len(sets[i] & sets[j]) >= 0.5 * len(sets[i] | sets[j])]
    assert pairs(texts) == slow
    other = [question(n) for n in range(30)]
    assert pairs([*other, other[4] + " Please."]) == [(4, 30)]


def test_an_instruction_that_all_records_share_makes_no_duplicates_of_them():
    texts = [INSTRUCTION + question(n) for n in range(60)]
    assert pairs(texts) == []
    texts.append(texts[5] + " Thank you.")
    assert [5, 60] in groups_of([Record("", (USER | {"content": text}, ASSISTANT)) for text in texts])
