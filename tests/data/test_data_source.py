"""Where data is: paths, folders, archives and Colab's window; what is read of them, and what is named instead."""

import csv
import io
import json
import sys
import types
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers import parameters
from helpers.data.data_source import locate, read_splits
from helpers.data.listing import list_files
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable, read_rows
from helpers.data.text import read_text
from tests import colab
from tests.harness import write
from tests.hostile import cases

pytestmark = pytest.mark.once
ROWS = [(f"text {i}, größer", f"l{i % 2}") for i in range(30)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory, beside a home of its own."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    return tmp_path / "here"


def table(rows=ROWS, delimiter: str = ",", **options) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, **options).writerows([("text", "label"), *rows])
    return text.getvalue()


def rows_of(name: str) -> tuple[list[dict], SetAside]:
    place = locate(name)
    set_aside = SetAside(place.source)
    rows = [row.values for row in read_splits(place, SUFFIXES, set_aside)["train"]]
    set_aside.check()
    return rows, set_aside


# ---- paths


def test_a_path_that_exists_is_a_path_whatever_a_library_calls_so(folder):
    Path("private.csv").write_text(table([("private", "p")] * 9))
    for name in ("csv", "text", "json", "parquet", "imagefolder", "dair-ai/emotion"):
        write(folder, {f"{name}/mine.csv": table()})
        assert len(rows_of(name)[0]) == len(ROWS)
        made = parameters.Parameters(**values(data_source=name))
        assert made.data_source == str(folder / name)
    with pytest.raises(FileNotFoundError, match=r"no file or folder of this name .*owner/name"):
        locate("audiofolder")


def test_the_same_file_by_another_path_is_the_same_run(folder, monkeypatch):
    Path("mine.csv").write_text(table())
    Path("link.csv").symlink_to("mine.csv")
    monkeypatch.setenv("HOME", str(folder))
    paths = ("mine.csv", "./mine.csv", str(folder / "mine.csv"), "~/mine.csv", "link.csv", "../here/mine.csv")
    runs = [parameters.identity(parameters.Parameters(**values(data_source=path))) for path in paths]
    assert runs == [runs[0]] * len(paths)
    assert {locate(path).name for path in paths} == {"mine.csv"}


def test_a_model_of_ones_own_is_known_by_its_weights():
    class WithModel(parameters.Parameters):
        base_model: parameters.Source = parameters.parameter("sample", "A model.")

    def run(path: str) -> dict:
        return parameters.identity(WithModel(**values(base_model=path)))

    write(Path(), {"a/model/model.safetensors": b"1", "b/model/model.safetensors": b"2"})
    assert run("a/model") == run("./a/../a/model") != run("b/model")


def test_a_hub_that_does_not_answer_is_said_with_what_needs_no_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    place = locate("owner/name")
    wanted = (
        r"data_source='owner/name': .*cannot be reached.* data_source=\"sample\" and, .* base_model=\"sample\", too"
    )
    with pytest.raises(ConnectionError, match=wanted):
        read_splits(place, SUFFIXES, SetAside(place.source))
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


# ---- folders


def test_a_file_of_a_folder_that_cannot_be_read_is_named_and_the_others_are_read(capsys):
    names = ("train-1.csv", "train-2.csv", "test.csv", "notes.csv")
    write(Path("set"), dict.fromkeys(names, table()) | {"train-3.csv": table().encode("cp1252")})
    assert len(rows_of("set")[0]) == 2 * len(ROWS)
    printed = capsys.readouterr().out
    assert "not read: train-3.csv: is not UTF-8 (30 lines); its bytes fit cp1252" in printed
    assert "not read: notes.csv: its name is not one of train, validation and test" in printed


# ---- archives


def archive(name: str, files: dict[str, str | bytes]) -> str:
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as made:
        for file, content in files.items():
            made.writestr(file, content)
    return name


def test_a_zip_is_unpacked_into_a_folder_of_its_own_and_stays_inside_of_it(folder):
    write(folder, {"documents/old.csv": "old"})
    files = {name: table() for name in ("a.csv", "部分/b.csv", "../outside.csv", "/root.csv", "__MACOSX/._a.csv")}
    place = locate(archive("documents.zip", files))
    listing = list_files(place.path, (".csv",), source=place.source)
    assert [listing.name(file) for file in listing.files] == ["a.csv", "outside.csv", "root.csv", "部分/b.csv"]
    assert place.name == "documents.zip" and not (folder.parent / "outside.csv").exists()
    assert locate("documents.zip").path == place.path
    one = locate(archive("one.zip", {"my set/train.csv": table(), "__MACOSX/my set/._train.csv": "x"}))
    assert one.path.name == "my set" and len(rows_of("one.zip")[0]) == len(ROWS)


def test_names_of_a_mac_that_do_not_say_that_they_are_utf8_are_read():
    content = Path(archive("made.zip", {"XXXXXX.csv": table()})).read_bytes()
    Path("made.zip").write_bytes(content.replace(b"XXXXXX", "今天".encode()))
    assert list_files(locate("made.zip").path, (".csv",), source="").files[0].name == "今天.csv"


def harm(content: bytes, kind: str) -> bytes:
    if kind == "encrypted":
        flags = content.index(b"PK\1\2") + 8
        return content[:flags] + b"\1" + content[flags + 1 :]
    if kind == "cut":
        return content[:-8]
    at = content.index(b"a.csv") + 40
    return content[:at] + bytes([content[at] ^ 255]) + content[at + 1 :]


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("encrypted", "is encrypted"),
        ("cut", "not a whole .zip"),
        ("flipped", "not a whole .zip"),
        ("large", r"unpacks to 200,000 bytes; at most 100,000"),
    ],
)
def test_an_archive_that_cannot_or_should_not_be_unpacked_is_refused_before_it_fills_the_disk(
    kind, message, tmp_path, monkeypatch
):
    monkeypatch.setattr("helpers.data.archive.LARGEST", 100_000)
    content = bytes(200_000) if kind == "large" else table(ROWS * 50)
    path = Path(archive("documents.zip", {"a.csv": content}))
    if kind != "large":
        path.write_bytes(harm(path.read_bytes(), kind))
    with pytest.raises(ValueError, match=rf"data_source='documents\.zip' .*{message}"):
        locate("documents.zip")
    assert sum(file.stat().st_size for file in (tmp_path / "home").rglob("*") if file.is_file()) == 0


# ---- texts and rows


@pytest.mark.parametrize(
    ("encoding", "fits"),
    [
        ("utf-16", "utf-16"),
        ("cp1252", "cp1252"),
        ("latin-1", "cp1252"),
        ("gb18030", "gb18030"),
    ],
)
def test_another_encoding_is_refused_with_its_name(encoding, fits):
    words = "今天天气很好，我们去公园散步。" if encoding == "gb18030" else "Größe über fünf Straßen"
    rows = [(f"{words} {i}", "l") for i in range(9)]
    for name, text in (
        ("x.txt", words),
        ("x.csv", table(rows)),
        ("x.json", json.dumps([{"text": words}], ensure_ascii=False)),
    ):
        Path(name).write_bytes(text.encode(encoding))
        with pytest.raises(ValueError, match=rf"not UTF-8.* fit {fits}: .*encoding='{fits}'"):
            read_text(Path(name)) if name == "x.txt" else rows_of(name)
    Path("x.txt").write_bytes(b"a\0b")
    with pytest.raises(ValueError, match="NUL byte in line 1"):
        read_text(Path("x.txt"))


@cases(60)
@given(
    rows=st.lists(
        st.tuples(st.text("ab,;\t\"'\n\r é今", max_size=12), st.text('ab"\n,;', max_size=4)), min_size=1, max_size=6
    ),
    delimiter=st.sampled_from(",;\t"),
    start=st.sampled_from(("", "\ufeff", "sep=\n", "\ufeffsep=\n")),
)
def test_a_table_that_a_program_wrote_is_read_as_it_was(rows, delimiter, start):
    text = start.replace("=", f"={delimiter}") + table(rows, delimiter, quoting=csv.QUOTE_ALL)
    Path("x.csv").write_text(text, encoding="utf-8", newline="")
    read, set_aside = rows_of("x.csv")
    assert [(row["text"], row["label"]) for row in read] == rows and not set_aside.rows


def test_a_field_may_be_long():
    Path("x.csv").write_text(table([("w" * 500_000, "l")] * 2))
    assert len(rows_of("x.csv")[0][0]["text"]) == 500_000


@pytest.mark.parametrize("quoting", [csv.QUOTE_MINIMAL, csv.QUOTE_NONNUMERIC])
@pytest.mark.parametrize("closing", ["", 'size 10",l1\r\n'])
def test_an_unclosed_quote_that_swallows_rows_is_refused_with_its_line(quoting, closing):
    rows = [(f"text {i}", f"l{i % 2}") for i in range(30)]
    before, after = table(rows[:8], quoting=quoting), table(rows[8:], quoting=quoting).partition("\r\n")[2]
    middle, end = after.split("text 12")[0], after
    Path("x.csv").write_text(f'{before}"never closed,l0\r\n{middle.rpartition(chr(10))[0]}\n{closing}{end}', newline="")
    with pytest.raises(ValueError, match=r"x\.csv', line 10: a double quote opens a field"):
        rows_of("x.csv")


def test_a_bad_row_is_set_aside_with_its_line_and_its_reason_unless_most_rows_are_bad():
    lines = [json.dumps({"text": text}) for text, _ in ROWS]
    lines[4:4] = ["{", "3", '{"title": "x"}', '{"text": "\\ud800"}', '{"text": 5}']
    Path("x.jsonl").write_bytes("\n".join(lines).encode() + b'\n{"text": "\xfc"}\n')

    def text_of(row: Row) -> str:
        return row.text(row.column(("text",), "give one"))

    set_aside = SetAside("data_source='x.jsonl'")
    rows = read_rows(Path("x.jsonl"), SUFFIXES, set_aside)
    assert list(set_aside.convert(rows, text_of)) == [text for text, _ in ROWS]
    set_aside.check()
    assert [where for where, _ in set_aside.rows] == ["line 5", "line 6", "line 7", "line 8", "line 9", "line 36"]
    for reason in (
        "not JSON (",
        "not a JSON object",
        "its columns: title",
        "half of a character",
        "holds a int",
        "fit cp1252",
    ):
        assert reason in str(set_aside)

    def refuse(row: Row) -> str:
        raise Unusable("no reason")

    assert not list(set_aside.convert(read_rows(Path("x.jsonl"), SUFFIXES, set_aside), refuse))
    with pytest.raises(
        ValueError, match=r"data_source='x\.jsonl': 42 of 72 rows cannot be used\n  32, first line 1: no reason"
    ):
        set_aside.check()


# ---- Colab's window


@pytest.fixture
def window(monkeypatch) -> dict[str, bytes]:
    """Colab's `files.upload`, which writes what was chosen into the working directory."""
    chosen = {}

    def upload() -> dict[str, bytes]:
        for name, content in chosen.items():
            Path(name).write_bytes(content)
        return dict(chosen)

    monkeypatch.setitem(sys.modules, "google.colab", colab.module(files=types.SimpleNamespace(upload=upload)))
    return chosen


def values(**changes) -> dict:
    return parameters.Parameters.defaults().model_dump() | changes


def test_the_check_of_the_parameters_asks_for_nothing_and_outside_of_colab_a_path_is_wanted():
    assert parameters.check(parameters.Parameters, values(data_source="upload")).data_source == "upload"
    with pytest.raises(ValueError, match="data_source='upload' works in Colab only; here give the path of the file"):
        locate("upload")


def test_the_one_file_that_was_chosen_is_the_data(window, folder):
    for count in (0, 2):
        window.update({f"{n}.txt": b"text" for n in range(count)})
        with pytest.raises(ValueError, match=f"{count} files were chosen"):
            locate("upload")
    window.popitem()
    place = locate("upload")
    assert (place.path, place.name) == (folder / "0.txt", "0.txt")


def test_a_file_of_which_half_can_be_used_is_read():
    set_aside = SetAside("data_source='x.jsonl'")
    set_aside.read, set_aside.rows = 2, [("line 1", "a reason")]
    set_aside.check()
