"""helpers.run.mirror: a second place from which a new machine continues, whatever a mounted Drive does."""

import itertools
import os
import random
import sys
import time
import types
from pathlib import Path

import pytest

from helpers.data import data_source
from helpers.machine import runtime
from helpers.parameters import Parameters
from helpers.run import checkpoint, folder_lock, mirror
from helpers.run.run_folder import RunFolder
from tests import colab
from tests.harness import write
from tests.run.test_checkpoint import steps
from tests.run.test_folder_lock import write_lease

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """Copies are made when a test asks for them."""
    monkeypatch.setattr(mirror.Mirror, "start", lambda self: None)
    mirror.say_once.cache_clear()
    yield
    data_source.chosen_upload = data_source.kept_upload = None


def claim(machine: Path, place: Path | str, data: str = "blocks, sha256 1", **changes) -> RunFolder:
    """The claim of a process on a machine, of which this process is the first or the next."""
    mirror.mirror_of.cache_clear()
    run = RunFolder.claim("tiny", Parameters(output_dir=str(machine / "run"), keep_in=str(place), **changes))
    run.note(data=data)
    return run


def train(run: RunFolder, *numbers: int) -> None:
    for step in numbers:
        checkpoint.seal(write(run.path / f"checkpoint-{step}", {"weights": b"1"}))
        checkpoint.rotate(run.path, None)


def test_whatever_a_drive_loses_a_new_machine_has_a_whole_run(tmp_path):
    chance, newest = random.Random(0), set()
    for number in range(8):
        drive = colab.Drive(tmp_path / f"drive {number}")
        run = claim(tmp_path / f"{number}", drive.mounted)
        run.mirror.copy()
        drive.upload()
        for round_ in range(3):
            train(run, 4 * round_, 4 * round_ + 2)
            run.mirror.copy()
            drive.upload(chance)
        drive.new_machine()
        run = claim(tmp_path / f"new {number}", drive.mounted)
        newest.add(max(steps(run.path), default=None))
    assert 10 in newest and len(newest) > 1


def test_old_copies_are_emptied_and_removed_when_newer_ones_have_settled(tmp_path, monkeypatch):
    run = claim(tmp_path, tmp_path / "kept")
    kept = run.mirror.place
    train(run, 1, 2)
    run.mirror.copy()
    (tmp_path / "trash").hardlink_to(kept / "checkpoint-1/weights")  # as Drive's trash keeps its bytes
    write(kept, {".part/weights": b"of a machine that died"})
    train(run, 3, 4)
    run.mirror.copy()
    assert steps(kept) == [4, 3, 2, 1] and not (kept / ".part").exists()
    monkeypatch.setattr(mirror, "SETTLED", 0.0)
    run.mirror.copy()
    assert steps(kept) == [4, 3]
    assert (tmp_path / "trash").stat().st_size == 0


def test_a_place_slower_than_the_saves_holds_the_newest_and_is_named(tmp_path, monkeypatch, capsys):
    run, remove, saved = claim(tmp_path, tmp_path / "kept"), mirror._remove, iter([3, 4, 5, 6])

    def slow(folder):
        if folder.name == ".part":  # a copy begins; meanwhile the run saves twice
            train(run, *itertools.islice(saved, 2))
        remove(folder)

    monkeypatch.setattr(mirror, "_remove", slow)
    train(run, 1, 2)
    for look, newest in enumerate([2, 4, 6], 1):
        assert "everything is copied" in run.mirror.copy() and steps(run.mirror.place)[0] == newest, look
    assert capsys.readouterr().out.count("a copy takes longer") == 1


def test_files_are_copied_when_they_change_and_those_of_wandb_are_not(tmp_path):
    run = claim(tmp_path, tmp_path / "kept")
    kept = run.mirror.place
    for later, weights in ((0, b"1"), (9, b"2")):
        write(run.path, {"model/weights": weights, "wandb/run.wandb": b"1", ".hidden": b"1"})
        os.utime(run.path / "model/weights", (time.time() + later,) * 2)
        run.mirror.copy()
        assert (kept / "model/weights").read_bytes() == weights
    assert {path.name for path in kept.iterdir()} == {"model", "run.json", "owner.lock"}


def test_what_cannot_be_the_second_place_is_refused_by_name(tmp_path):
    run = claim(tmp_path / "one", tmp_path / "kept")
    train(run, 1)
    run.mirror.copy()
    with pytest.raises(ValueError, match=r"keep_in=.*holds another run .seed=0 there, 1 here"):
        claim(tmp_path / "two", tmp_path / "kept", seed=1)
    with pytest.raises(ValueError, match=r"keep_in='drive': Google Drive was not mounted"):
        claim(tmp_path / "three", "drive")
    with pytest.raises(ValueError, match=r"output_dir='/content/drive.*Google Drive is not mounted"):
        RunFolder.claim("tiny", Parameters(output_dir="/content/drive/MyDrive/run"))


def test_a_second_place_that_fails_is_named_and_training_goes_on(tmp_path, capsys, monkeypatch):
    run = claim(tmp_path, tmp_path / "kept")
    (tmp_path / "kept").rename(tmp_path / "gone")
    train(run, 1, 2)
    looks = iter([1, 2])
    with monkeypatch.context() as patch, pytest.raises(StopIteration):
        patch.setattr(time, "sleep", lambda seconds: next(looks))
        run.mirror.run()
    assert capsys.readouterr().out.count("ATTENTION: keep_in: not everything is copied") == 1
    (tmp_path / "gone").rename(tmp_path / "kept")
    run.results(runtime.detect(False))
    assert steps(run.mirror.place) == [2, 1] and (run.mirror.place / "results.json").exists()


def test_a_place_that_another_machine_took_is_left_to_it_and_named(tmp_path):
    run = claim(tmp_path, tmp_path / "kept")
    write_lease(run.mirror.place, folder_lock.SILENCE)
    train(run, 1)
    assert "a run on another machine has taken it" in run.mirror.copy() and steps(run.mirror.place) == []


def test_uploaded_data_go_along_and_are_not_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    window = types.SimpleNamespace(upload=lambda: write(tmp_path, {"texts.csv": b"a,b"}) and ["texts.csv"])
    monkeypatch.setitem(sys.modules, "google.colab", colab.module(files=window))
    run = claim(tmp_path / "one", "kept", data_source="upload")
    data_source.locate("upload")
    run.note(data="texts.csv, sha256 1")
    train(run, 1)
    run.mirror.copy()
    run = claim(tmp_path / "two", "kept", "texts.csv, sha256 1", data_source="upload")
    assert data_source.locate("upload").path == run.path / "uploaded/texts.csv"
