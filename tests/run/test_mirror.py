"""helpers.run.mirror: a second place from which a new machine continues, whatever a mounted Drive does."""

import random
import shutil
import sys
import threading
import types
from pathlib import Path

import pytest

from helpers.data import data_source
from helpers.machine import ranks, runtime
from helpers.parameters import Parameters
from helpers.run import checkpoint, disk, folder_lock, mirror, run_folder
from helpers.run.run_folder import RunFolder
from tests import colab
from tests.harness import write

pytestmark = pytest.mark.once


@pytest.fixture(autouse=True)
def ended():
    yield
    mirror.close_current()
    data_source.chosen_upload = data_source.kept_upload = None


def claim(machine: Path, place: Path, **changes) -> RunFolder:
    """The claim of a process on a machine, of which this process is the first or the next."""
    run = RunFolder.claim("tiny", Parameters(output_dir=str(machine / "run"), keep_in=str(place), **changes))
    run.same_data("blocks, sha256 1")
    return run


def train(run: RunFolder, *steps: int) -> None:
    for step in steps:
        with checkpoint.staged(run.path, step) as staging:
            written = staging / f"checkpoint-{step}"
            written.mkdir()
            (written / "weights").write_bytes(random.Random(step).randbytes(300))
            run_folder.copy_identity(run.path, written)
        checkpoint.prune(run.path, 2, newest=step)


def test_whatever_part_of_the_last_minutes_a_drive_loses_a_new_machine_has_a_whole_run_or_begins_anew(tmp_path):
    chance, steps = random.Random(0), set()
    for number in range(20):
        drive = colab.Drive(tmp_path / f"drive {number}")
        run = claim(tmp_path / f"{number}", drive.mounted)
        for round_ in range(3):
            train(run, 4 * round_, 4 * round_ + 2)
            assert run.mirror.finish(60)
            drive.upload(chance)
        mirror.close_current()
        drive.new_machine()
        run = claim(tmp_path / f"new {number}", drive.mounted)
        newest, skipped = checkpoint.newest_whole(run.path)
        assert not skipped
        steps.add(newest and checkpoint.step_of(newest))
    assert None in steps or 2 in steps or 6 in steps
    assert 10 in steps


def test_old_copies_are_emptied_and_removed_when_newer_ones_have_settled_and_not_before(tmp_path, monkeypatch):
    run = claim(tmp_path, tmp_path / "kept")
    train(run, 1, 2)
    assert run.mirror.finish(60)
    kept = tmp_path / "kept/run"
    (tmp_path / "trash").hardlink_to(kept / "checkpoint-1/weights")  # as Drive's trash keeps its bytes
    train(run, 3, 4)
    assert run.mirror.finish(60)
    assert [path.name for path in checkpoint.listed(kept)] == [f"checkpoint-{step}" for step in (4, 3, 2, 1)]
    monkeypatch.setattr(mirror, "SETTLED", 0.0)
    assert run.mirror.finish(60)
    assert [path.name for path in checkpoint.listed(kept)] == ["checkpoint-4", "checkpoint-3"]
    assert (tmp_path / "trash").stat().st_size == 0


def test_a_copy_that_the_second_place_lost_a_part_of_is_made_anew_in_the_next_session(tmp_path):
    run = claim(tmp_path, tmp_path / "kept")
    train(run, 2)
    assert run.mirror.finish(60)
    mirror.close_current()
    kept = tmp_path / "kept/run/checkpoint-2"
    (kept / "weights").write_bytes(b"")
    assert claim(tmp_path, tmp_path / "kept").mirror.finish(60)
    assert checkpoint.damage(kept) is None


def test_what_another_run_or_person_has_at_the_second_place_is_refused_and_left_as_it_is(tmp_path):
    train(claim(tmp_path / "one", tmp_path / "kept"), 1)
    mirror.close_current()
    with pytest.raises(ValueError, match=r"keep_in=.*belongs to another run .seed=0 there, 1 here"):
        claim(tmp_path / "two", tmp_path / "kept", seed=1)
    with pytest.raises(ValueError, match="resume=False, but keep_in="):
        claim(tmp_path / "two", tmp_path / "kept", resume=False)
    write(tmp_path, {"mine/run/letters.txt": "mine"})
    with pytest.raises(ValueError, match=r"keep_in=.*holds files that are no run of this suite"):
        claim(tmp_path / "two", tmp_path / "mine")
    with pytest.raises(ValueError, match="lie in each other"):
        claim(tmp_path, tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"keep_in='drive' is Google Drive in Colab, and this is not Colab: name a folder"
    ):
        claim(tmp_path / "two", Path("drive"))
    with pytest.raises(ValueError, match=r"output_dir='/content/drive.*no disk is mounted at /content/drive"):
        RunFolder.claim("tiny", Parameters(output_dir="/content/drive/MyDrive/run"))


def test_a_disk_that_is_gone_is_never_taken_for_an_empty_one(tmp_path, monkeypatch):
    monkeypatch.setattr(disk, "_mounts", {tmp_path})  # where this process saw a disk before
    with pytest.raises(ValueError, match=r"keep_in=.*no disk is mounted at"):
        mirror.place_of(str(tmp_path / "kept"), Path("run"))


@pytest.mark.parametrize("platform", ["Colab", "Kaggle", ""])
def test_where_the_disk_goes_with_the_runtime_one_line_says_so_and_what_to_set(tmp_path, monkeypatch, capsys, platform):
    if platform == "Colab":
        monkeypatch.setitem(sys.modules, "google.colab", colab.module(drive=types.SimpleNamespace()))
    if platform == "Kaggle":
        monkeypatch.setenv("KAGGLE_KERNEL_RUN_TYPE", "Interactive")
    RunFolder.claim("tiny", Parameters(output_dir=str(tmp_path / "run")))
    said = capsys.readouterr().out
    remedy = {"Colab": "set keep_in='drive'", "Kaggle": "choose Persistence", "": ""}[platform]
    assert ("this run is deleted with this runtime's disk" in said) == bool(platform) and remedy in said
    folder_lock.release(tmp_path / "run")


def test_uploaded_data_go_along_and_are_not_asked_for_again(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    asked = []
    window = types.SimpleNamespace(
        upload=lambda: asked.append(1) or {"texts.csv": Path("texts.csv").write_bytes(b"a,b")}
    )
    monkeypatch.setitem(sys.modules, "google.colab", colab.module(files=window))
    run = RunFolder.claim("tiny", Parameters(output_dir="one/run", keep_in="kept", data_source="upload"))
    data_source.locate("upload")
    run.same_data("texts.csv, sha256 1")
    with monkeypatch.context() as launched:  # the notebook's kernel starts several processes, before the first step
        launched.setattr(ranks, "count", lambda: 2)
        RunFolder.claim("tiny", Parameters(output_dir="one/run", data_source="upload"))
        assert data_source.locate("upload").path.parent.name == "uploaded"
    run = RunFolder.claim("tiny", Parameters(output_dir="one/run", keep_in="kept", data_source="upload"))
    train(run, 1)
    mirror.close_current()
    Path("texts.csv").unlink()
    shutil.rmtree("one")
    RunFolder.claim("tiny", Parameters(output_dir="two/run", keep_in="kept", data_source="upload"))
    assert data_source.locate("upload").path.read_bytes() == b"a,b"
    assert len(asked) == 1


def test_training_does_not_wait_for_a_second_place_that_does_not_answer(tmp_path, monkeypatch, capsys):
    run, answers, copy = claim(tmp_path, tmp_path / "kept"), threading.Event(), disk.copy
    assert run.mirror.finish(60)
    monkeypatch.setattr(disk, "copy", lambda *paths: answers.wait() and copy(*paths))  # as a system call that hangs
    train(run, 1, 2, 3)
    assert not run.mirror.finish(0.5)
    assert checkpoint.newest_whole(run.path)[0].name == "checkpoint-3" and not checkpoint.listed(tmp_path / "kept/run")
    answers.set()
    run.results(runtime.detect(False))
    assert "keep_in: everything is copied" in capsys.readouterr().out
    assert checkpoint.newest_whole(tmp_path / "kept/run")[0].name == "checkpoint-3"
