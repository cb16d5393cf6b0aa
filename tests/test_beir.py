"""Benchmarks from BEIR folders and from pairs: what is read, and which file and line an error names."""

import json

import pytest

from helpers.lejepa.beir import from_pairs, read_beir

pytestmark = pytest.mark.once

CORPUS = [
    {"_id": "1", "title": "Wings", "text": "They lift."},
    {"_id": "2", "title": "of shear flow .", "text": "of shear flow . a plate is looked at ."},
    {"_id": "3", "text": "No title here."},
    {"_id": "4", "title": "Only a title", "text": ""},
    {"_id": "5", "title": "What is drag?", "text": "A force."},
    {"_id": "6", "title": "", "text": ""},
]
QUERIES = [{"_id": "a", "text": "why do wings lift"}, {"_id": "b", "text": "drag"}, {"_id": "c", "text": "nothing"}]
JUDGEMENTS = ["query-id\tcorpus-id\tscore", "b\t5\t2", "a\t1\t1", "a\t3\t0", "a\t4\t1", "c\t1\t-1"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "qrels").mkdir()
    write(tmp_path / "corpus.jsonl", map(json.dumps, CORPUS))
    write(tmp_path / "queries.jsonl", map(json.dumps, QUERIES))
    write(tmp_path / "qrels" / "test.tsv", JUDGEMENTS)
    return tmp_path


def write(path, lines):
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def append(path, line):
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")


# ---- what is read


def test_queries_with_a_relevant_document_are_read_in_the_order_of_the_file(folder):
    benchmark = read_beir(folder)
    assert list(benchmark.queries.items()) == [("a", "why do wings lift"), ("b", "drag")]
    assert list(benchmark.corpus) == ["1", "2", "3", "4", "5", "6"]
    assert benchmark.name == folder.name


def test_scores_of_zero_and_below_are_not_relevant(folder):
    assert read_beir(folder).relevant == {"a": {"1", "4"}, "b": {"5"}}


def test_a_title_stands_before_the_text_once(folder):
    assert list(read_beir(folder).corpus.values()) == [
        "Wings. They lift.",
        "of shear flow . a plate is looked at .",
        "No title here.",
        "Only a title",
        "What is drag? A force.",
        "",
    ]


def test_another_split_and_numbers_as_ids_and_blank_lines_are_read(folder):
    append(folder / "corpus.jsonl", '\n{"_id": 7, "title": null, "text": "seven"}')
    write(folder / "qrels" / "dev.tsv", ["a\t7\t1"])  # without a header
    benchmark = read_beir(folder, "dev")
    assert benchmark.corpus["7"] == "seven"
    assert benchmark.relevant == {"a": {"7"}}


def test_the_same_judgement_twice_counts_once(folder):
    append(folder / "qrels" / "test.tsv", "a\t1\t1")
    assert read_beir(folder).relevant["a"] == {"1", "4"}


# ---- what is refused


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_is_named(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=rf"{name}' is missing: a BEIR folder has.*there is .*qrels"):
        read_beir(folder)


def test_a_missing_split_lists_those_that_are_there(folder):
    with pytest.raises(FileNotFoundError, match=r"dev.tsv' is missing.*there is test.tsv"):
        read_beir(folder, "dev")
    (folder / "qrels" / "test.tsv").unlink()
    (folder / "qrels").rmdir()
    with pytest.raises(FileNotFoundError, match=r"test.tsv' is missing"):
        read_beir(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "not JSON"),
        ("[1]", "not a JSON object"),
        ('{"text": "x"}', 'needs an "_id"'),
        ('{"_id": "", "text": "x"}', 'needs an "_id"'),
        ('{"_id": "9"}', 'a string "text"'),
        ('{"_id": "9", "text": 3}', 'a string "text"'),
        ('{"_id": "9", "text": "x", "title": 3}', 'a string "title"'),
        ('{"_id": "2", "text": "x"}', "the id '2' was there already"),
    ],
)
def test_a_wrong_document_is_named_with_its_line(folder, line, message):
    append(folder / "corpus.jsonl", line)
    with pytest.raises(ValueError, match=rf"corpus.jsonl', line 7:? .*{message}"):
        read_beir(folder)


def test_a_query_there_twice_is_refused(folder):
    append(folder / "queries.jsonl", '{"_id": "a", "text": "again"}')
    with pytest.raises(ValueError, match=r"queries.jsonl', line 4: the id 'a' was there already"):
        read_beir(folder)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("a\t99\t1", "the id '99' is not in corpus.jsonl"),
        ("z\t1\t1", "the id 'z' is not in queries.jsonl"),
        ("a 1 1", "must be query-id, corpus-id and a whole score between tabs"),
        ("a\t0\t1\t1", "has more fields than the header"),
        ("a\t2\tyes", "a whole score between tabs, not .*yes"),
        ("a\t3\t1", "had another score before"),
    ],
)
def test_a_wrong_judgement_is_named_with_its_line(folder, line, message):
    append(folder / "qrels" / "test.tsv", line)
    with pytest.raises(ValueError, match=rf"test.tsv', line 7:? .*{message}"):
        read_beir(folder)


@pytest.mark.parametrize("lines", [[], ["query-id\tcorpus-id\tscore"], ["a\t1\t0"]])
def test_judgements_without_a_relevant_document_are_refused(folder, lines):
    write(folder / "qrels" / "test.tsv", lines)
    with pytest.raises(ValueError, match=r"0 queries with a relevant document and 6 documents"):
        read_beir(folder)


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_an_empty_file_is_named(folder, name):
    write(folder / name, [])
    with pytest.raises(ValueError, match=rf"is not in {name}; remove the line or add the entry"):
        read_beir(folder)


def test_a_file_that_is_not_utf8_is_named(folder):
    (folder / "queries.jsonl").write_bytes('{"_id": "a", "text": "ü"}'.encode("latin-1"))
    with pytest.raises(ValueError, match=r"queries.jsonl', line 1 is not JSON in UTF-8"):
        read_beir(folder)


# ---- pairs


def test_pairs_become_queries_and_documents_with_each_text_once():
    benchmark = from_pairs([("x", "X"), ("y", "Y"), ("x", "Y"), ("x", "X")], "pairs")
    assert benchmark.queries == {"q0": "x", "q1": "y"}
    assert benchmark.corpus == {"d0": "X", "d1": "Y"}
    assert benchmark.relevant == {"q0": {"d0", "d1"}, "q1": {"d1"}}


@pytest.mark.parametrize(
    ("pairs", "message"),
    [([], "0 queries .* and 0 documents"), ([("x", "X"), ("y", "X")], "2 queries .* and 1 documents")],
)
def test_pairs_that_are_no_benchmark_are_refused(pairs, message):
    with pytest.raises(ValueError, match=message):
        from_pairs(pairs, "pairs")
