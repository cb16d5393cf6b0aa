"""`data_source="upload"`: refused outside of Colab; in it, what its window leaves in the working directory is what is read."""

from __future__ import annotations

import sys
import types
import zipfile
from pathlib import Path

import pytest

from helpers import parameters
from helpers.data import data_source as uploads

pytestmark = pytest.mark.once


@pytest.fixture
def window(tmp_path, monkeypatch):
    """Colab's `files.upload`, which writes what was chosen into the working directory, a second copy under another name."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    chosen = {}

    def upload() -> dict[str, bytes]:
        written = {}
        for name, content in chosen.items():
            path = Path(name)
            if path.exists():
                path = Path(f"{path.stem} (1){path.suffix}")
            path.write_bytes(content)
            written[path.name] = content
        return written

    colab = types.ModuleType("google.colab")
    colab.files = types.SimpleNamespace(upload=upload)
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    return chosen


def values() -> dict:
    return parameters.Parameters.defaults().model_dump() | {"data_source": "upload"}


def test_the_check_of_the_parameters_asks_for_nothing():
    assert parameters.check(parameters.Parameters, values()).data_source == "upload"


def test_outside_of_colab_a_path_is_asked_for():
    with pytest.raises(
        ValueError, match=r"data_source='upload' asks for a file in Colab's window; here give the file's path"
    ):
        uploads.locate("upload")


def test_the_chosen_file_is_the_data_source_and_chosen_again_it_is_the_same(window):
    window["texts.csv"] = b"text,label\na,b\n"
    for _ in range(2):
        place = uploads.locate("upload")
        assert (place.path, place.name) == (Path("texts.csv").absolute(), "texts.csv")
    assert [path.name for path in Path().glob("*.csv")] == ["texts.csv"]


def test_another_file_of_the_same_name_is_kept_beside_it(window):
    Path("texts.csv").write_text("an older one")
    window["texts.csv"] = b"text,label\na,b\n"
    assert uploads.uploaded("data_source") == "texts (1).csv"
    assert Path("texts.csv").read_text() == "an older one"


@pytest.mark.parametrize("count", [0, 2])
def test_one_file_is_wanted(window, count):
    window.update({f"{n}.txt": b"text" for n in range(count)})
    with pytest.raises(ValueError, match=f"{count} files were chosen"):
        uploads.uploaded("data_source")


def archive(names: list[str]) -> bytes:
    with zipfile.ZipFile("made", "w", zipfile.ZIP_DEFLATED) as made:
        for name in names:
            made.writestr(name, "text")
    content = Path("made").read_bytes()
    Path("made").unlink()
    return content


def test_a_zip_is_a_folder_and_stays_inside_of_it(window):
    window["documents.zip"] = archive(["a.md", "part/b.txt", "../outside.txt", "/root.txt"])
    place = uploads.locate("upload")
    found = {path.relative_to(place.path).as_posix() for path in place.path.rglob("*") if path.is_file()}
    assert found == {"a.md", "part/b.txt", "outside.txt", "root.txt"}
    assert place.name == "documents.zip"
    assert not Path("../outside.txt").exists()


def test_a_damaged_archive_is_refused(window):
    window["documents.zip"] = archive(["a.md"])[:-8]
    with pytest.raises(ValueError, match=r"data_source='documents\.zip' is not a whole \.zip"):
        uploads.locate("upload")
