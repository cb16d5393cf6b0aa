"""helpers.run.checkpoint: whole or absent, against damage, a full disk, and a kill at every file operation."""

import errno
import json
import random
from pathlib import Path

import pytest

from helpers.run import checkpoint
from tests import harness
from tests.damage import flip_a_bit, remove, truncate
from tests.harness import printed
from tests.killing import disturbed

pytestmark = pytest.mark.once

FILES = {
    "model.bin": random.Random(0).randbytes(5_000),
    "optimizer.bin": random.Random(1).randbytes(9_000),
    "rng_state.bin": random.Random(2).randbytes(700),
    "trainer_state.json": b'{"global_step": 1}',
    "adapter/weights.bin": random.Random(3).randbytes(300),
}


def write(output_dir: Path, step: int = 5) -> Path:
    with checkpoint.staged(output_dir, step) as staging:
        fill(staging / f"checkpoint-{step}", step)
    return checkpoint.folder(output_dir, step)


def fill(folder: Path, step: int) -> None:
    harness.write(folder, {name: content + str(step).encode() for name, content in FILES.items()})


def names(output_dir: Path) -> list[str]:
    return sorted(path.name for path in output_dir.iterdir())


# -- damage --


@pytest.mark.parametrize("harm", [remove, truncate, flip_a_bit])
@pytest.mark.parametrize("name", ["optimizer.bin", "adapter/weights.bin", "manifest.json"])
def test_damage_of_any_file_is_named_and_passed_over(tmp_path, name, harm):
    older, newer = write(tmp_path, 1), write(tmp_path, 2)
    harm(newer / name)
    problem = checkpoint.damage(newer)
    # A flipped bit in a digest of the manifest is taken for a change of that digest's file.
    assert Path(name).name in problem or (
        name == checkpoint.MANIFEST and harm is flip_a_bit and "has changed" in problem
    )
    found, (skipped,) = checkpoint.newest_whole(tmp_path)
    assert found == older
    assert skipped == f"skipped checkpoint-2: {problem}"


def test_a_checkpoint_of_the_stock_trainer_is_passed_over(tmp_path):
    fill(tmp_path / "checkpoint-9", 9)
    assert checkpoint.newest_whole(tmp_path) == (None, ["skipped checkpoint-9: manifest.json is missing"])


def test_any_flipped_bit_of_the_manifest_is_damage_or_changes_nothing_it_says(tmp_path):
    written = write(tmp_path, 2)
    path = written / "manifest.json"
    original = path.read_bytes()
    said = json.loads(original)
    crashed, unnoticed = [], []
    for position in range(len(original)):
        for bit in range(8):
            changed = bytearray(original)
            changed[position] ^= 1 << bit
            path.write_bytes(changed)
            try:
                problem = checkpoint.damage(written)
            except Exception as error:
                crashed.append(f"byte {position} bit {bit}: {error!r}")
                continue
            if problem is None and json.loads(bytes(changed)) != said:
                unnoticed.append(f"byte {position} bit {bit}")
    assert not unnoticed
    assert not crashed, crashed[:3]


# -- a disk that does not answer --


@pytest.mark.parametrize("code", [errno.EIO, errno.ENOTCONN, errno.EACCES, errno.EMFILE, errno.ENOMEM])
def test_what_cannot_be_read_raises_and_is_never_taken_for_damage(tmp_path, code):
    write(tmp_path, 1)
    write(tmp_path, 2)
    before = names(tmp_path)
    # Operation 0: all fail, as after a dropped mount; the last ones are never reached.
    answers = [
        disturbed(lambda: checkpoint.newest_whole(tmp_path)[0].name, code, number, str(tmp_path))
        for number in range(20)
    ]
    assert {answer.partition("(")[0] for answer in answers} == {"CheckpointUnreadable", "checkpoint-2"}
    assert answers[0].startswith("CheckpointUnreadable") and answers[-1] == "checkpoint-2"
    assert names(tmp_path) == before


# -- what a killed writer leaves --


def test_a_leftover_of_a_killed_writer_does_not_leak_into_the_next_checkpoint(tmp_path):
    (tmp_path / ".staging-2/checkpoint-2").mkdir(parents=True)
    (tmp_path / ".staging-2/checkpoint-2/stale.bin").write_text("stale")
    assert not (write(tmp_path, 2) / "stale.bin").exists()
    (tmp_path / ".staging-3").mkdir()
    (tmp_path / "run.json").write_text("{}")
    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == ["checkpoint-2", "run.json"]


# -- kills --

KILLED = """
import json, shutil, sys
from pathlib import Path
from helpers.run import checkpoint
from tests.killing import killed
from tests.damage import truncate
from tests.test_checkpoint import names, write
base, case = Path(sys.argv[1]), sys.argv[2]

def prepare(output_dir):
    if case != "same step":
        write(output_dir, 1)
    if case == "damaged":
        truncate(write(output_dir, 2) / "optimizer.bin")
    if case == "same step":
        write(output_dir, 2)
    if case == "prune":
        write(output_dir, 2)

def work(output_dir):
    write(output_dir, 3 if case == "prune" else 2)
    if case == "prune":
        checkpoint.prune(output_dir, keep=1, newest=3)

kills, bad = 0, []
while True:
    output_dir = base / str(kills)
    prepare(output_dir)
    if not killed(lambda: work(output_dir), kills + 1):
        break
    kills += 1
    before = names(output_dir)
    checkpoint.sweep(output_dir)  # as a run that comes back does first
    newest, skipped = checkpoint.newest_whole(output_dir)
    after = newest and (newest.name, checkpoint.damage(newest))
    left = [name for name in names(output_dir) if not name.startswith("checkpoint-")]
    work(output_dir)
    retried = checkpoint.newest_whole(output_dir)[0]
    final = "checkpoint-3" if case == "prune" else "checkpoint-2"
    if newest is None or after[1] or left or retried.name != final:
        bad.append(f"kill {kills}: newest {after}, folder {before}, after sweep {left}, after a retry {retried}")
    shutil.rmtree(output_dir)
print(json.dumps(dict(kills=kills, bad=bad)))
"""


@pytest.mark.parametrize("case", ["new", "damaged", "same step", "prune"])
def test_a_kill_at_any_file_operation_leaves_a_whole_checkpoint(tmp_path, case):
    seen = json.loads(printed("-c", KILLED, tmp_path, case).splitlines()[-1])
    assert seen["kills"] > 25  # every open, mkdir, rename and delete was one
    assert seen["bad"] == []


# -- replacing and pruning --


def test_pruning_keeps_the_newest_and_the_protected(tmp_path):
    for step in (1, 2, 3, 4):
        write(tmp_path, step)
    checkpoint.prune(tmp_path, keep=2, newest=4, protect=checkpoint.folder(tmp_path, 1))
    assert names(tmp_path) == ["checkpoint-1", "checkpoint-3", "checkpoint-4"]


def test_damaged_checkpoints_with_higher_numbers_do_not_cost_the_whole_ones(tmp_path):
    # A run that passed over checkpoints 30 and 40 went on from 20 and wrote 25.
    write(tmp_path, 20)
    for step in (30, 40):
        truncate(write(tmp_path, step) / "optimizer.bin")
    written = write(tmp_path, 25)
    checkpoint.prune(tmp_path, keep=2, newest=25)
    assert names(tmp_path) == ["checkpoint-20", "checkpoint-25"]
    assert checkpoint.newest_whole(tmp_path) == (written, [])
