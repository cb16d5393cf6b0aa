"""Where legal records come from, near-duplicates against slow set arithmetic, and splits that keep them together."""

import csv
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from helpers.legal.records import COLUMNS, Record, load_records, near_duplicates, split_records
from helpers.legal.sample import sample_records

pytestmark = pytest.mark.once

ROOT = Path(__file__).parents[1]
ROWS = [{name: row[name] for name in COLUMNS} for row in sample_records(40, seed=0)]
RECORDS = tuple(Record(**row) for row in ROWS)


def write_jsonl(path: Path, rows: list[dict]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def write_csv(path: Path, rows: list[dict]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def write_parquet(path: Path, rows: list[dict]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path.parent.mkdir(exist_ok=True)
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    return path


WRITERS = {".jsonl": write_jsonl, ".csv": write_csv, ".parquet": write_parquet}


@pytest.fixture
def dataset_cache(tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")


# ---- reading


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_local_file_gives_back_what_was_written(tmp_path, suffix):
    path = WRITERS[suffix](tmp_path / f"law{suffix}", ROWS)
    assert load_records(str(path), seed=0).records == RECORDS


@pytest.mark.parametrize("suffix", WRITERS)
def test_a_missing_column_is_named_beside_those_found(tmp_path, suffix):
    rows = [{name: text for name, text in row.items() if name != "answer"} for row in ROWS]
    path = WRITERS[suffix](tmp_path / f"law{suffix}", [row | {"thoughts": "a"} for row in rows])
    expected = (
        r"no columns `question` and `answer`, `prompt` and `completion`, or `messages`; columns found: id, question, topic, "
        r"difficulty, case_citation, reasoning, thoughts\. Rename"
    )
    with pytest.raises(ValueError, match=expected):
        load_records(str(path), seed=0)


@pytest.mark.parametrize("suffix", WRITERS)
def test_question_and_answer_are_enough_and_rows_without_id_are_named_by_number(tmp_path, suffix):
    rows = [{name: row[name] for name in ("question", "answer")} for row in ROWS[:3]]
    found = load_records(str(WRITERS[suffix](tmp_path / f"law{suffix}", rows)), seed=0).records
    assert [(r.question, r.answer, r.topic, r.reasoning) for r in found] == [(*row.values(), "", "") for row in rows]
    assert len({record.id for record in found}) == 3


def test_an_id_that_comes_again_gets_a_number(tmp_path):
    path = write_jsonl(tmp_path / "law.jsonl", [row | {"id": "7"} for row in ROWS[:3]])
    assert [record.id for record in load_records(str(path), seed=0).records] == ["7", "7#2", "7#3"]


SAID = [
    ("system", "Be brief."),
    ("user", "If it fails?"),
    ("assistant", "Yes."),
    ("user", "And then?"),
    ("assistant", "It falls."),
]
MESSAGES = [{"role": role, "content": text} for role, text in SAID]
CONVERSATION = Record("a", "And then?", "It falls.", turns=tuple(SAID[:3]))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"messages": MESSAGES}, CONVERSATION),
        ({"prompt": MESSAGES[:-1], "completion": MESSAGES[-1:]}, CONVERSATION),
        ({"prompt": " Why? ", "completion": "So."}, Record("a", "Why?", "So.")),
        ({"prompt": None, "completion": "So."}, Record("a", "", "So.")),
        ({"messages": MESSAGES[:-1]}, Record("a", "", "", turns=tuple(SAID[:2]))),
        ({"messages": MESSAGES[-1:]}, Record("a", "", "It falls.")),
        ({"messages": []}, Record("a", "", "")),
    ],
)
def test_conversations_and_completions_are_read(tmp_path, suffix, row, expected):
    rows = [{"id": "a", "extra": 1} | row, {"id": "b", "extra": 2, **dict.fromkeys(row, MESSAGES)}]
    if isinstance(row.get("prompt", ""), str | None) and "prompt" in row:
        rows[1] |= {"prompt": "Who?", "completion": "Me."}
    found = load_records(str(WRITERS[suffix](tmp_path / f"law{suffix}", rows)), seed=0).records
    assert found[0] == expected


@pytest.mark.parametrize("messages", ["Hello", [["user", "Hello"]], [{"content": "Hello"}]])
def test_messages_that_are_none_are_named_with_their_line(tmp_path, messages):
    path = write_jsonl(tmp_path / "law.jsonl", [{"messages": MESSAGES}, {"messages": messages}])
    with pytest.raises(
        ValueError, match=r"line 2, column `messages` is no list of messages, each with `role` and `content`"
    ):
        load_records(str(path), seed=0)


def test_questions_that_follow_other_turns_are_no_near_duplicates():
    records = [Record(str(n), "And then?", "a", turns=(("user", r.question),)) for n, r in enumerate(RECORDS)]
    assert [len(part) for part in vars(split_records(records, seed=0)).values()] == [32, 4, 4, 0]


def test_a_hub_layout_is_read_from_its_train_split(tmp_path, dataset_cache):
    write_parquet(tmp_path / "law" / "train.parquet", [row | {"batch_id": 3} for row in ROWS])
    assert load_records(str(tmp_path / "law"), seed=0).records == RECORDS


def test_a_hub_layout_without_a_column_names_it(tmp_path, dataset_cache):
    write_parquet(tmp_path / "law" / "train.parquet", [{"id": "1", "question": "a"}])
    with pytest.raises(ValueError, match=r"no columns `question` and `answer`.*columns found: id, question\."):
        load_records(str(tmp_path / "law"), seed=0)


def test_a_hub_layout_without_train_split_names_its_splits(tmp_path, dataset_cache):
    write_parquet(tmp_path / "law" / "test.parquet", ROWS)
    with pytest.raises(ValueError, match=r"no split `train`; splits found: test"):
        load_records(str(tmp_path / "law"), seed=0)


def test_hub_out_of_reach_names_the_remedy(tmp_path):
    code = "from helpers.legal.records import load_records; load_records('owner/name', seed=0)"
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    run = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert run.returncode == 1
    assert run.stderr.splitlines()[-1].startswith("ConnectionError: data_source='owner/name'")
    assert 'data_source="sample"' in run.stderr.splitlines()[-1]


def test_empty_cells_of_any_kind_become_empty_text(tmp_path):
    rows = [ROWS[0] | {"case_citation": value, "id": str(n)} for n, value in enumerate([None, "N/A", " none ", "nan"])]
    rows.append({name: text for name, text in ROWS[0].items() if name != "case_citation"})
    for path in (write_jsonl(tmp_path / "a.jsonl", rows), write_parquet(tmp_path / "a.parquet", rows)):
        assert {record.case_citation for record in load_records(str(path), seed=0).records} == {""}


def test_white_space_and_case_are_normalised_where_they_mean_nothing(tmp_path):
    row = ROWS[0] | {"topic": " Tort\n Law", "difficulty": "Basic ", "answer": "\r\nISSUE: a\r\nRULE: b ", "id": 17}
    (record,) = load_records(str(write_jsonl(tmp_path / "law.jsonl", [row])), seed=0).records
    assert (record.id, record.topic, record.difficulty) == ("17", "Tort Law", "basic")
    assert record.answer == "ISSUE: a\nRULE: b"


def test_a_value_that_is_no_text_is_named_with_its_line_and_column(tmp_path):
    path = write_jsonl(tmp_path / "law.jsonl", [ROWS[0], ROWS[1] | {"answer": ["a"]}])
    with pytest.raises(ValueError, match=r"line 2, column `answer` holds a list"):
        load_records(str(path), seed=0)


@pytest.mark.parametrize(
    ("text", "message"), [('{"id": 1}\n{"id"', "line 2 is not JSON"), ("[1]\n", "line 1 is not a")]
)
def test_a_line_that_is_no_json_object_is_named(tmp_path, text, message):
    path = tmp_path / "law.jsonl"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_records(str(path), seed=0)


def test_a_csv_line_with_an_unquoted_comma_is_named(tmp_path):
    path = tmp_path / "law.csv"
    path.write_text(",".join(COLUMNS) + "\n1,a,b,c,basic,d,e\n2,a,b,c,basic,d,e,f\n")
    with pytest.raises(ValueError, match=r"line 3 has more fields.*double quotes"):
        load_records(str(path), seed=0)


def test_bytes_that_are_not_utf8_are_refused(tmp_path):
    path = tmp_path / "law.csv"
    path.write_bytes((",".join(COLUMNS) + "\n1,Caf").encode() + b"\xe9")
    with pytest.raises(ValueError, match=r"law\.csv.*not UTF-8 .*save the file as UTF-8"):
        load_records(str(path), seed=0)


def test_a_file_that_is_no_parquet_is_named(tmp_path):
    path = tmp_path / "law.parquet"
    path.write_text("no parquet at all")
    with pytest.raises(ValueError, match=r"law\.parquet.*not a readable parquet"):
        load_records(str(path), seed=0)


@pytest.mark.parametrize("name", ["missing.csv", "/nowhere/at/all", "sampel", "./missing"])
def test_a_missing_path_is_file_not_found(name):
    with pytest.raises(FileNotFoundError, match="data_source="):
        load_records(name, seed=0)


def test_an_unknown_suffix_lists_the_known_ones(tmp_path):
    path = tmp_path / "law.xlsx"
    path.write_text("a")
    with pytest.raises(ValueError, match=r"\.xlsx.*\.jsonl, \.csv, \.parquet"):
        load_records(str(path), seed=0)


@pytest.mark.parametrize("suffix", [".jsonl", ".csv"])
def test_a_file_without_records_is_refused(tmp_path, suffix):
    path = tmp_path / f"law{suffix}"
    path.write_text("" if suffix == ".jsonl" else ",".join(COLUMNS) + "\n")
    with pytest.raises(ValueError, match="holds no record"):
        load_records(str(path), seed=0)


def test_a_number_of_records_draws_by_seed_and_keeps_their_order(tmp_path):
    path = str(write_jsonl(tmp_path / "law.jsonl", ROWS))
    first, again, other = (load_records(path, num_records=15, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.records != other.records
    assert list(first.records) == [record for record in RECORDS if record in first.records]
    assert len(set(first.records)) == 15


def test_source_names_the_file_without_its_folder_and_changes_with_one_letter(tmp_path):
    first = load_records(str(write_jsonl(tmp_path / "law.jsonl", ROWS)), seed=0).source
    changed = [ROWS[0] | {"answer": ROWS[0]["answer"] + "!"}, *ROWS[1:]]
    second = load_records(str(write_jsonl(tmp_path / "law.jsonl", changed)), seed=0).source
    assert first.startswith("law.jsonl, all records, seed 0, sha256 ")
    assert first != second


def test_provenance_names_the_source_and_digests_the_texts(tmp_path):
    sample = load_records("sample", num_records=40, seed=0)
    file = load_records(str(write_jsonl(tmp_path / "law.jsonl", ROWS)), seed=3)
    texts = json.dumps([list(row[column] for column in COLUMNS) for row in ROWS])
    digest = hashlib.sha256(texts.encode()).hexdigest()
    assert sample.provenance == {"source": "sample", "revision": None, "sha256": digest}
    assert file.provenance == {"source": "law.jsonl", "revision": None, "sha256": digest}
    assert file.source == f"law.jsonl, all records, seed 3, sha256 {digest[:16]}"


# ---- near-duplicates


def slow_pairs(texts: list[str], threshold: float) -> list[tuple[int, int, float]]:
    """Jaccard of every pair of shingle sets."""
    words = [" ".join(re.findall(r"\w+", text.casefold())) for text in texts]
    sets = [{w[i : i + 5] for i in range(max(1, len(w) - 4))} if w else set() for w in words]
    pairs = [(i, j, len(a & b) / len(a | b)) for j, b in enumerate(sets) for i, a in enumerate(sets[:j]) if a and b]
    return sorted(pair for pair in pairs if pair[2] >= threshold)


def perturbed(texts: list[str], seed: int) -> list[str]:
    """`texts` with some of their words dropped, repeated or cut short."""
    generator = random.Random(seed)
    kinds = [lambda word: "", lambda word: word + " " + word, lambda word: word[:3]]
    return [
        " ".join(generator.choice(kinds)(word) if generator.random() < 0.1 else word for word in text.split())
        for text in texts
    ]


@pytest.mark.parametrize("threshold", [0.3, 0.5, 0.55, 0.8, 1.0])
def test_near_duplicates_are_exactly_those_that_counting_every_pair_finds(threshold):
    questions = [row["question"] for row in sample_records(120, seed=3)]
    texts = [*questions, *perturbed(questions[:60], seed=1), *questions[:5], "", "?!", "a", "A.", "What is law?"]
    expected = slow_pairs(texts, threshold)
    assert len(expected) >= 6
    assert near_duplicates(texts, threshold) == expected


def test_case_punctuation_and_white_space_make_no_difference():
    assert near_duplicates(["Is it a tort?", "is it:  a TORT"], 1.0) == [(0, 1, 1.0)]


def test_texts_without_words_are_like_no_other():
    assert near_duplicates(["", "", "??", "??"], 0.1) == []
    assert near_duplicates([], 0.5) == []


# ---- splits


def reworded(records: list[Record]) -> list[Record]:
    return [replace(record, id=record.id + "-2", question=f"Please tell me: {record.question}") for record in records]


def unlabelled(count: int) -> list[Record]:
    return [replace(record, gold=None) for record in load_records("sample", num_records=count, seed=0).records]


def test_the_sample_says_where_each_record_belongs():
    records = load_records("sample", num_records=500, seed=0).records
    splits = split_records(records, seed=0)
    assert [len(part) for part in vars(splits).values()] == [350, 50, 50, 50]
    for name, part in vars(splits).items():
        assert part == tuple(record for record in records if record.gold.part == name)


def test_splits_are_80_10_10_and_hold_every_record_once():
    records = unlabelled(500)
    splits = split_records(records, seed=0)
    assert [len(part) for part in vars(splits).values()] == [400, 50, 50, 0]
    assert Counter(splits.train + splits.validation + splits.test) == Counter(records)


def test_no_near_duplicate_question_crosses_the_splits():
    records = unlabelled(300)
    records += reworded(records[::3])
    splits = split_records(records, seed=1)
    where = {r.id: name for name in ("train", "validation", "test") for r in getattr(splits, name)}
    pairs = [(records[i].id, records[j].id) for i, j, _ in slow_pairs([record.question for record in records], 0.5)]
    assert len({each for pair in pairs for each in pair}) >= 200
    assert not [pair for pair in pairs if where[pair[0]] != where[pair[1]]]


def test_questions_linked_through_a_third_stay_together():
    words = [f"word{number:03d}" for number in range(40)]
    chain = [" ".join(words[start : start + 20]) for start in (0, 5, 10)]
    assert {(i, j) for i, j, _ in slow_pairs(chain, 0.5)} == {(0, 1), (1, 2)}
    linked = [replace(RECORDS[n], question=text) for n, text in enumerate(chain)]
    for seed in range(10):
        splits = split_records([*linked, *RECORDS[3:]], seed=seed)
        held = [sum(record in linked for record in part) for part in (splits.train, splits.validation, splits.test)]
        assert sorted(held) == [0, 0, 3]


def test_the_seed_alone_decides_the_splits():
    first, again, other = (split_records(RECORDS, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first.test != other.test


def test_a_group_larger_than_a_tenth_goes_to_training():
    records = [*RECORDS, *(replace(RECORDS[0], id=f"copy-{n}") for n in range(20))]
    for seed in range(5):
        splits = split_records(records, seed=seed)
        assert sum(record.question == RECORDS[0].question for record in splits.train) == 21
        assert len(splits.test) == len(splits.validation) == 6


def test_too_few_different_questions_are_refused():
    with pytest.raises(ValueError, match=r"records: 30 cannot be split"):
        split_records([replace(RECORDS[0], id=str(n)) for n in range(30)], seed=0)


def test_asdict_of_a_record_has_the_seven_columns_of_the_data_set():
    names = {"id", "question", "answer", "topic", "difficulty", "case_citation", "reasoning"}
    assert set(asdict(RECORDS[0])) - {"gold", "turns"} == set(COLUMNS) == names
