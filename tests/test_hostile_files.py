"""Every reader of a user's data against broken lines, other encodings, NUL, bombs, and files that are none."""

from __future__ import annotations

import gzip
import io
import json
import os
import zipfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.legal.harness import read_tasks
from helpers.legal.records import COLUMNS, load_records
from helpers.lejepa import data as lejepa_data
from helpers.reservoir.stories import load_stories
from helpers.tuning.data import load_labelled

from .hostile import cases, guarded

pytestmark = pytest.mark.once

ROWS = 30
LINES = [{"text": f"story {i} of ß words", "label": f"l{i % 2}"} for i in range(ROWS)]
PAIRS = [{"anchor": f"question {i}", "positive": f"answer {i} ß"} for i in range(ROWS)]
RECORDS = [dict.fromkeys(COLUMNS, "") | {"id": str(i), "question": f"ß {i}?", "answer": f"{i}"} for i in range(ROWS)]
ANSWERS = [{"text": f"is {i} ß?", "answer": "yes" if i % 2 else "no"} for i in range(ROWS)]


def jsonl(rows: list[dict]) -> bytes:
    return b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows)


def separated(rows: list[dict], mark: str = ",") -> bytes:
    lines = (mark.join(map(str, values)) for values in (rows[0], *(row.values() for row in rows)))
    return "".join(f"{line}\n" for line in lines).encode()


def parquet(rows: list[dict]) -> bytes:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file := io.BytesIO())
    return file.getvalue()


def stories(path: Path):
    found = load_stories(str(path), num_stories=0, seed=0)
    return [*found.train, *found.validation]


def texts(path: Path):
    found = lejepa_data.load(str(path))
    asked = [question.text for question in found.dev + found.test]
    return asked + [text for pair in found.training for text in pair if text] + [each.body for each in found.passages]


def records(path: Path):
    return [record.question for record in load_records(str(path), seed=0).records]


def labelled(path: Path):
    return [text for text, _ in load_labelled(str(path)).train]


def questions(path: Path):
    return [row["text"] for rows in read_tasks(str(path)).values() for row in rows]


# name -> reader, suffix, a file that it takes
READERS = {
    "stories.txt": (stories, ".txt", "\n\n".join(row["text"] for row in LINES).encode()),
    "stories.jsonl": (stories, ".jsonl", jsonl(LINES)),
    "stories.parquet": (stories, ".parquet", parquet(LINES)),
    "texts.txt": (texts, ".txt", "\n\n".join(row["text"] for row in LINES).encode()),
    "texts.jsonl": (texts, ".jsonl", jsonl(PAIRS)),
    "texts.csv": (texts, ".csv", separated(PAIRS)),
    "records.jsonl": (records, ".jsonl", jsonl(RECORDS)),
    "records.csv": (records, ".csv", separated(RECORDS)),
    "records.parquet": (records, ".parquet", parquet(RECORDS)),
    "questions.tsv": (questions, ".tsv", separated(ANSWERS, "\t")),
    "questions.jsonl": (questions, ".jsonl", jsonl(ANSWERS)),
    "labelled.csv": (labelled, ".csv", separated(LINES)),
    "labelled.jsonl": (labelled, ".jsonl", jsonl(LINES)),
}
BROKEN_LINES = [
    b"\x00" * 50,
    b'{"text": "\xff\xfe"}',
    "é,ß".encode("latin-1"),
    b"[" * 100_000,
    b'{"text": ' + b"[" * 100_000,
    b'{"text": ' + b"9" * 5_000 + b', "label": "l0"}',
    b'{"text": "\\ud800", "anchor": "\\ud800", "positive": "\\udfff", "label": "l0", "answer": "yes"}',
    b'{"text": "a\\u0000b", "anchor": "\\u0000a", "positive": "b", "label": "l0", "answer": "yes"}',
    b'{"text": "never closed',
    b"null",
    b"[1, 2]",
    b"NaN",
    b'{"text": NaN, "label": Infinity, "anchor": 1e999, "positive": {}, "answer": []}',
    b'{"text": {"text": ["text"]}, "label": {}, "anchor": [], "positive": {}, "answer": {"a": 1}}',
    b'{"label": "l0"}',
    b"{}",
    b'"' * 3,
    b'"' + b"a," * 70_000,
    b",,,,,,,,,,,,",
    b"\t\t\t\t\t",
    b"\r\r\n\x0b\x0c\x1c\x85",
    b"\xef\xbb\xbf{}",
    "\u202e\u2028\u2029".encode(),
    b"=cmd|'/c calc'!A1,$(touch executed),`touch executed`",
]


@st.composite
def damaged(draw, whole: bytes) -> bytes:
    """A file with one thing wrong."""
    lines = whole.split(b"\n")
    kind = draw(st.sampled_from(("line", "line", "line", "cut", "bytes", "encoding", "packed", "columns", "junk")))
    if kind == "line":
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(BROKEN_LINES)))
        return b"\n".join(lines)
    if kind == "cut":
        return whole[: draw(st.integers(0, len(whole)))]
    if kind == "bytes":
        broken = bytearray(whole)
        for at in draw(st.lists(st.integers(0, len(whole) - 1), min_size=1, max_size=8)):
            broken[at] = draw(st.integers(0, 255))
        return bytes(broken)
    if kind == "encoding":
        codec = draw(st.sampled_from(("utf-16", "utf-16-be", "utf-32", "utf-8-sig", "cp1252", "utf-7", "cp037")))
        return whole.decode("latin-1").encode(codec, "replace")
    if kind == "packed":
        return gzip.compress(whole, mtime=0)
    if kind == "columns":
        return whole.replace(draw(st.sampled_from((b"text", b"label", b"answer", b"question", b"positive"))), b"x")
    return draw(st.binary(max_size=300))


@pytest.mark.parametrize("name", READERS)
@cases(40)
@given(data=st.data())
def test_a_damaged_file_is_read_for_what_it_is_or_refused_by_name(tmp_path_factory, name, data):
    read, suffix, whole = READERS[name]
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / f"mine{suffix}"
    path.write_bytes(data.draw(damaged(whole)))
    with guarded(folder, path.name):
        for text in read(path):
            text.encode()


@pytest.mark.parametrize("name", READERS)
def test_every_line_that_is_none_leaves_a_file_readable_or_is_named(tmp_path, name):
    read, suffix, whole = READERS[name]
    path = tmp_path / f"mine{suffix}"
    for line in BROKEN_LINES:
        first, _, rest = whole.partition(b"\n")
        path.write_bytes(b"\n".join((first, line, rest)))
        with guarded(tmp_path, path.name, writes=path):
            for text in read(path):
                text.encode()


@pytest.mark.parametrize("name", [name for name in READERS if "parquet" not in name])
def test_a_line_of_ten_megabytes_is_read_or_refused_in_little_memory(tmp_path, name):
    read, suffix, whole = READERS[name]
    path = tmp_path / f"mine{suffix}"
    for line in (b"x" * 10**7, b'{"text": "' + b"word " * 2 * 10**6 + b'", "label": "l0"}', b"," * 10**7, b"[" * 10**7):
        path.write_bytes(whole + line)
        with guarded(tmp_path, path.name, writes=path):
            read(path)


# ---- what unpacks to more than it is


@pytest.mark.parametrize("read", [stories, records])
def test_a_parquet_file_of_some_kilobytes_that_holds_gigabytes_is_refused(tmp_path, read):
    path = tmp_path / "bomb.parquet"
    row = dict.fromkeys((*COLUMNS, "text"), "x" * 2**17)
    schema = pyarrow.schema([(name, pyarrow.string()) for name in row])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="zstd") as file:
        table = pyarrow.table({name: [text] * 100 for name, text in row.items()}, schema=schema)
        for _ in range(50):
            file.write_table(table)
    assert path.stat().st_size < 2**20
    with guarded(tmp_path, path.name) as refusal:
        read(path)
    assert "unpacks to more than" in refusal[0]


def bomb(suffix: str) -> bytes:
    """Ten megabytes of rows that would be read, in some kilobytes."""
    file = io.BytesIO()
    rows = jsonl([{**LINES[i], **RECORDS[i], "topic": " " * 300_000} for i in range(ROWS)])
    if suffix == ".gz":
        return gzip.compress(rows, mtime=0)
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("../../escaped.txt", "x")
        packed.writestr("train.jsonl", rows)
    return file.getvalue()


@pytest.mark.parametrize("read", [stories, texts, records, labelled])
@pytest.mark.parametrize("suffix", [".gz", ".zip"])
def test_what_is_packed_is_refused_and_not_unpacked(tmp_path, read, suffix):
    folder = tmp_path / "mine"
    folder.mkdir()
    for name in (f"train.jsonl{suffix}", "train.jsonl", "train.csv", "train.parquet"):
        path = folder / name
        path.write_bytes(bomb(suffix))
        for given_path in (path, folder):
            with guarded(tmp_path, path.name, folder.name) as refusal:
                read(given_path)
            assert refusal
        path.unlink()


# ---- folders, pipes and devices


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path_factory):
    """`datasets` writes what it reads into its cache."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path_factory.mktemp("cache"))


CARD = "---\nconfigs:\n- config_name: default\n  data_files: {}\n---\n"


@cases(30)
@given(
    name=st.sampled_from(
        ("train.jsonl", "train.csv", "train.txt", "train.parquet", "train.arrow", "train.py", "a.png")
    ),
    content=st.sampled_from((b"", b"\0" * 60, b"[" * 10**5, b"PAR1" * 3, b"{\n{", b"a,b\n1\n2,3,4\n", b"\xff\xfe")),
    card=st.sampled_from(
        ("", CARD.format("../../../../etc/passwd"), CARD.format("!!python/object/apply:os.system [x]"))
    ),
)
def test_a_folder_of_anything_is_refused_by_name(tmp_path_factory, name, content, card):
    folder = tmp_path_factory.mktemp("folder")
    (folder / name).write_bytes(content)
    if card:
        (folder / "README.md").write_text(card)
    for read in (stories, texts, records, labelled):
        with guarded(folder, folder.name, name):
            read(folder)


@pytest.mark.parametrize("read", [stories, texts, records, labelled])
def test_a_pipe_or_a_device_is_refused_instead_of_read_for_ever(tmp_path, read):
    os.mkfifo(pipe := tmp_path / "mine.jsonl")
    for path in (pipe, Path("/dev/zero")):
        with guarded(tmp_path, str(path)) as refusal:
            read(path)
        assert refusal
