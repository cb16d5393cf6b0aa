"""helpers.notebook.unpacking: where the files go when a user has no home, or a cache folder that is none."""

import tempfile
from pathlib import Path

import pytest

from helpers.notebook import unpacking

pytestmark = pytest.mark.once

FILES = {"helpers/__init__.py": "here = 1\n", "helpers/data.json": "{}\n"}


@pytest.mark.parametrize("cache", ["", "relative/cache"])
def test_without_a_home_the_files_go_into_a_temporary_folder(cache, without_home, tmp_path, monkeypatch):
    (tmp_path / "temporary").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.chdir(tmp_path)
    root = unpacking._unpacked(FILES, 64 * "a")
    assert root.is_relative_to(tmp_path / "temporary")
    assert {path.relative_to(root).as_posix(): path.read_text() for path in root.rglob("*") if path.is_file()} == FILES
    assert [path.name for path in Path.cwd().iterdir()] == ["temporary"]
