"""helpers.run.folder_lock: two processes never write one run."""

import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.run import folder_lock
from tests.harness import ROOT

pytestmark = pytest.mark.once

OWN = "import sys; from helpers.run import folder_lock; folder_lock.own(sys.argv[1]); print('owns', flush=True); sys.stdin.read()"


@pytest.fixture
def owner(tmp_path):
    """Another process that owns the folder."""
    command, pipes = [sys.executable, "-c", OWN, str(tmp_path)], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout.readline() == "owns\n"
        yield process
        process.kill()


def write_lease(folder: Path, seconds: float) -> None:
    text = f"filelock/2\npid=7\nhost=elsewhere\nmode=lease\ntoken=t\nduration={seconds}\n"
    (folder / folder_lock.LOCK_FILE).write_text(text)


def test_a_second_process_is_told_who_owns_the_folder_and_what_to_do(owner, tmp_path):
    with pytest.raises(folder_lock.FolderTaken) as refused:
        folder_lock.own(tmp_path)
    assert f"is in use by process {owner.pid} on {socket.gethostname()}" in str(refused.value)
    assert "set output_dir to a new folder" in str(refused.value)


@pytest.mark.parametrize("named", [True, False])
def test_an_owner_that_was_killed_is_replaced(owner, tmp_path, named):
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    if not named:
        (tmp_path / folder_lock.LOCK_FILE).write_text("")
    folder_lock.own(tmp_path)
    assert folder_lock.is_owner(tmp_path)
    folder_lock.own(tmp_path / "inner")  # is in a folder of this process
    assert not (tmp_path / "inner" / folder_lock.LOCK_FILE).exists()
    shutil.rmtree(tmp_path)
    folder_lock.own(tmp_path)
    assert folder_lock.is_owner(tmp_path)


def test_a_silent_owner_on_another_machine_is_replaced_after_a_while(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock, "SILENCE", 4.0)
    write_lease(tmp_path, 4.0)
    folder_lock.own(tmp_path)
    assert folder_lock.is_owner(tmp_path)
    write_lease(tmp_path, 4.0)  # as a machine that has not seen this one for a while
    assert not folder_lock.is_owner(tmp_path)
