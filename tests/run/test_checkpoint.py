"""helpers.run.checkpoint: a folder counts once it is sealed, and only as long as every file has its size."""

import errno
import shutil
from pathlib import Path

import pytest

from helpers.run import checkpoint
from tests import harness
from tests.damage import remove, truncate
from tests.killing import disturbed, killed

pytestmark = pytest.mark.once

FILES = {"model.bin": bytes(5_000), "optimizer.bin": bytes(9_000), "adapter/weights.bin": bytes(300)}


def write(output_dir: Path, *steps: int) -> None:
    for step in steps:
        folder = output_dir / f"checkpoint-{step}"
        shutil.rmtree(folder, ignore_errors=True)
        harness.write(folder, FILES)
        checkpoint.seal(folder)


def steps(output_dir: Path) -> list[int]:
    return [checkpoint.step_of(path) for path in checkpoint.listed(output_dir) if checkpoint.is_whole(path)]


@pytest.mark.parametrize("harm", [remove, truncate])
@pytest.mark.parametrize("name", ["optimizer.bin", "adapter/weights.bin", "sealed.json"])
def test_a_checkpoint_that_is_not_whole_is_passed_over_by_name(tmp_path, name, harm):
    write(tmp_path, 1, 2)
    harm(tmp_path / "checkpoint-2" / name)
    harness.write(tmp_path, {"checkpoint-9/model.bin": bytes(5), "checkpoint-8-mine/model.bin": bytes(5)})
    assert checkpoint.newest(tmp_path) == (tmp_path / "checkpoint-1", ["checkpoint-9", "checkpoint-2"])


def test_a_kill_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path):
    work = lambda: (write(tmp_path, 3), checkpoint.rotate(tmp_path, None))  # noqa: E731
    kills = 0
    write(tmp_path, 1, 2)
    while killed(work, kills + 1, within=str(tmp_path)):
        kills += 1
        assert checkpoint.newest(tmp_path)[0].name in ("checkpoint-2", "checkpoint-3")
        write(tmp_path, 1, 2)
    assert kills > 10 and steps(tmp_path) == [3, 2]


def test_a_disk_that_does_not_answer_is_never_taken_for_an_empty_one(tmp_path):
    write(tmp_path, 1)
    answer = disturbed(lambda: checkpoint.newest(tmp_path), errno.EIO, 0, checkpoint.SEAL)
    assert f"Input/output error: '{tmp_path}/checkpoint-1/sealed.json'" in answer


def test_rotation_keeps_the_newest_the_best_and_the_one_that_is_copied(tmp_path, monkeypatch):
    write(tmp_path, 0, 1, 2, 3, 4, 5)
    harness.write(tmp_path, {"checkpoint-6/model.bin": bytes(5)})  # not whole: never the newest
    monkeypatch.setattr(checkpoint, "copied", tmp_path / "checkpoint-2")
    checkpoint.rotate(tmp_path, best=1)
    assert steps(tmp_path) == [5, 4, 2, 1]
    checkpoint.copied = None
    checkpoint.rotate(tmp_path, best=5)
    assert steps(tmp_path) == [5, 4]
