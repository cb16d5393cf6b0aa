"""Where data is: paths, folders, archives and Colab's window; what is read of them, and what is named instead."""

import csv
import io
import sys
import types
import zipfile
from pathlib import Path

import pytest

from helpers import parameters
from helpers.data.data_source import locate, read_splits
from helpers.data.files import list_files
from helpers.data.rows import SUFFIXES, Row, SetAside, Unusable
from tests import colab
from tests.harness import write

pytestmark = pytest.mark.once
ROWS = [(f"text {i}, größer", f"l{i % 2}") for i in range(30)]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The working directory."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def table(rows=ROWS, delimiter: str = ",", **options) -> str:
    text = io.StringIO()
    csv.writer(text, delimiter=delimiter, **options).writerows([("text", "label"), *rows])
    return text.getvalue()


def rows_of(name: str) -> list[dict]:
    place = locate(name)
    set_aside = SetAside(place.source)
    rows = set_aside.convert(read_splits(place, SUFFIXES)["train"], lambda row: row.values)
    return [*rows]


def values(**changes) -> dict:
    return parameters.Parameters.defaults().model_dump() | changes


# ---- paths


def test_a_path_that_exists_is_a_path_whatever_a_library_calls_so(folder):
    Path("private.csv").write_text(table([("private", "p")] * 9))
    for name in ("csv", "text", "json", "parquet", "imagefolder", "dair-ai/emotion"):
        write(folder, {f"{name}/mine.csv": table()})
        assert len(rows_of(name)) == len(ROWS)
        assert parameters.Parameters(**values(data_source=name)).data_source == str(folder / name)
    with pytest.raises(FileNotFoundError, match=r"nothing at .*, and it is no hub id \(owner/name\)"):
        locate("audiofolder")


def test_the_same_file_by_another_path_is_the_same_run(folder, monkeypatch):
    Path("mine.csv").write_text(table())
    Path("link.csv").symlink_to("mine.csv")
    monkeypatch.setenv("HOME", str(folder))
    paths = ("mine.csv", "./mine.csv", str(folder / "mine.csv"), "~/mine.csv", "link.csv", f"../{folder.name}/mine.csv")
    runs = [parameters.identity(parameters.Parameters(**values(data_source=path))) for path in paths]
    assert runs == [runs[0]] * len(paths)
    assert {locate(path).name for path in paths} == {"mine.csv"}


def test_a_hub_that_does_not_answer_is_said_with_what_needs_no_network(monkeypatch):
    import huggingface_hub.constants

    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(ValueError, match=r"data_source='owner/name' cannot be read .*Without a network"):
        read_splits(locate("owner/name"), SUFFIXES)
    assert not huggingface_hub.constants.HF_HUB_OFFLINE


# ---- folders and archives


def test_a_file_that_cannot_be_read_is_named_and_the_others_are_read(capsys):
    names = ("train-1.csv", "train-2.csv", "test.csv", "notes.csv")
    write(Path("set"), dict.fromkeys(names, table()) | {"train-3.csv": table().encode("cp1252"), "a.docx": "x"})
    assert len(rows_of("set")) == 2 * len(ROWS)
    printed = capsys.readouterr().out
    assert "passed over: {'.docx': 1}" in printed and "not read: train-3.csv: is not UTF-8" in printed
    assert "30 rows are not used, since their file names no split" in printed


def archive(name: str, *files: str) -> str:
    with zipfile.ZipFile(name, "w", zipfile.ZIP_DEFLATED) as made:
        for file in files:
            made.writestr(file, table(ROWS * 50))
    return name


def test_a_zip_is_unpacked_into_a_folder_of_its_own_and_nowhere_else(folder):
    write(folder, {"documents/old.csv": "old"})
    place = locate(archive("documents.zip", "a.csv", "部分/b.csv", "__MACOSX/._a.csv", "../outside.csv"))
    paths, _ = list_files(place.path, (".csv",), "")
    assert [path.relative_to(place.path).as_posix() for path in paths] == ["a.csv", "outside.csv", "部分/b.csv"]
    assert place.name == "documents.zip" and not (folder.parent / "outside.csv").exists()


def test_a_zip_that_is_broken_is_refused():
    whole = Path(archive("whole.zip", "a.csv")).read_bytes()
    Path("cut.zip").write_bytes(whole[:-8])
    Path("flipped.zip").write_bytes(whole[:60] + bytes([whole[60] ^ 255]) + whole[61:])
    for name in ("cut.zip", "flipped.zip"):
        with pytest.raises(ValueError, match=rf"data_source='{name}' cannot be unpacked"):
            locate(name)


# ---- texts and rows


def test_most_rows_that_cannot_be_used_stop_the_run_and_half_do_not():
    rows = [Row(f"x.csv:{number}", {"Text": f"text {number}"}) for number in range(4)]
    set_aside = SetAside("data_source='x.csv'")

    def convert(row: Row) -> str:
        text = row.text(row.column(("TEXT",), "give one"))
        if text < "text 2":
            raise Unusable("a reason")
        return text

    assert [*set_aside.convert(rows, convert)] == ["text 2", "text 3"]
    set_aside.check()
    assert not [*set_aside.convert([rows[0], Row("x.csv", {})], convert)]
    with pytest.raises(
        ValueError, match=r"data_source='x\.csv': 4 of 6 rows cannot be used\n  3, first x\.csv:0: a reason"
    ):
        set_aside.check()


# ---- Colab's window


def test_the_one_file_that_was_chosen_is_the_data(folder, monkeypatch):
    chosen = {"0.txt": b"text", "1.txt": b"text"}

    def upload() -> dict[str, bytes]:
        write(folder, chosen)
        return dict(chosen)

    assert parameters.check(parameters.Parameters, values(data_source="upload")).data_source == "upload"
    with pytest.raises(ValueError, match="data_source='upload' takes one file, in Colab; elsewhere give its path"):
        locate("upload")
    monkeypatch.setitem(sys.modules, "google.colab", colab.module(files=types.SimpleNamespace(upload=upload)))
    with pytest.raises(ValueError, match="takes one file"):
        locate("upload")
    chosen.pop("1.txt")
    place = locate("upload")
    assert (place.path, place.name) == (folder / "0.txt", "0.txt")
