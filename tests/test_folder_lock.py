"""helpers.run.folder_lock: two processes never write one run."""

import os
import signal
import socket
import subprocess
import sys
import threading

import pytest
from filelock import SoftFileLease

from tests.harness import ROOT, finished, namespaces, printed

pytestmark = pytest.mark.once

from helpers.run import folder_lock  # noqa: E402

OWN = "import sys; from helpers.run import folder_lock; folder_lock.own(sys.argv[1]); print('owns', flush=True); sys.stdin.read()"


def write_lease(folder, process: int, host: str = socket.gethostname(), seconds: float = 120) -> None:
    text = f"filelock/2\npid={process}\nhost={host}\nmode=lease\ntoken=t\nduration={seconds}.0\n"
    (folder / folder_lock.LOCK_FILE).write_text(text)


@pytest.fixture
def owner(tmp_path):
    """Another process that owns the folder."""
    command, pipes = [sys.executable, "-c", OWN, str(tmp_path)], {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, cwd=ROOT, text=True, **pipes) as process:
        assert process.stdout.readline() == "owns\n"
        yield process
        process.kill()


def test_the_second_process_hears_who_owns_the_folder_and_what_to_do(owner, tmp_path):
    with pytest.raises(folder_lock.FolderTaken) as refused:
        folder_lock.own(tmp_path)
    said = str(refused.value)
    assert f"is in use by process {owner.pid} on {socket.gethostname()};" in said
    assert "set output_dir to a new folder" in said and "A dead owner is replaced" in said


@pytest.mark.parametrize("named", [True, False])
def test_an_owner_that_was_killed_even_before_it_wrote_its_name_is_replaced_at_once(owner, tmp_path, capsys, named):
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    if not named:
        (tmp_path / folder_lock.LOCK_FILE).write_text("")
    folder_lock.own(tmp_path)
    assert "waiting" not in capsys.readouterr().out
    assert SoftFileLease(tmp_path / folder_lock.LOCK_FILE).owner.pid == os.getpid()
    folder_lock.release(tmp_path)


def test_an_owner_on_another_machine_that_is_silent_is_replaced_after_a_while(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(folder_lock, "SILENCE", 6.0)
    monkeypatch.setattr(folder_lock, "HEARTBEAT", 2.0)
    write_lease(tmp_path, 7, "elsewhere", 6)
    folder_lock.own(tmp_path)
    assert "elsewhere gives no sign of life: this process takes over" in capsys.readouterr().out
    folder_lock.release(tmp_path)


@pytest.mark.parametrize("host", ["elsewhere", socket.gethostname()])  # machines may share a name
def test_an_owner_on_another_machine_is_left_alone_at_its_first_sign_of_life(tmp_path, monkeypatch, host):
    monkeypatch.setattr(folder_lock, "SILENCE", 3600.0)  # whoever waited for its end would not return
    lock, ended = tmp_path / folder_lock.LOCK_FILE, threading.Event()
    write_lease(tmp_path, 99999999, host, 3600)

    def live() -> None:
        while not ended.wait(0.2):
            lock.touch()

    living = threading.Thread(target=live)
    living.start()
    with pytest.raises(folder_lock.FolderTaken, match=f"process 99999999 on {host}"):
        folder_lock.own(tmp_path)
    ended.set()
    living.join()


def test_a_disk_that_was_away_costs_its_owner_nothing_and_one_that_stays_away_is_named(tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    folder_lock.own(path)
    (path / "run.json").touch()
    folder_lock._leases[path].release(force=True)  # as the heartbeat does that found no disk
    write_lease(path, os.getpid())
    folder_lock.check(path)
    path.rename(tmp_path / "moved")
    with pytest.raises(FileNotFoundError):
        folder_lock.check(path)
    folder_lock.release(path)


def test_the_time_of_a_session_counts_from_the_claim_of_the_run_and_begins_anew_when_it_was_over(tmp_path):
    folder_lock.own(tmp_path)
    claimed = folder_lock.session_began(tmp_path)
    with folder_lock.owned(tmp_path / "llama") as since:  # a second model of the run
        assert since == claimed
        folder_lock.session_began(tmp_path / "llama", anew=True)
    assert folder_lock.session_began(tmp_path) > claimed
    folder_lock.release(tmp_path)


def test_who_was_taken_over_while_suspended_may_not_write(tmp_path):
    folder_lock.own(tmp_path)
    lock = tmp_path / folder_lock.LOCK_FILE
    lock.unlink()
    with subprocess.Popen(["sleep", "60"]) as other:
        write_lease(tmp_path, other.pid)
        with pytest.raises(folder_lock.FolderTaken):
            folder_lock.check(tmp_path)
        other.kill()
    folder_lock.release(tmp_path)
    assert lock.exists()


def test_a_folder_is_owned_inside_the_block_after_it_only_if_before_and_not_when_its_process_has_ended(tmp_path):
    with folder_lock.owned(tmp_path / "new"):
        assert (tmp_path / "new" / folder_lock.LOCK_FILE).exists()
    assert not (tmp_path / "new" / folder_lock.LOCK_FILE).exists()
    folder_lock.own(tmp_path)
    with folder_lock.owned(tmp_path):
        pass
    assert (tmp_path / folder_lock.LOCK_FILE).exists()
    folder_lock.release(tmp_path)
    own = "import sys; from helpers.run import folder_lock; folder_lock.own(sys.argv[1]); folder_lock.own(sys.argv[1])"
    printed("-c", own, tmp_path)
    assert not (tmp_path / folder_lock.LOCK_FILE).exists()


IN_A_CONTAINER = """
import subprocess, sys
from helpers.run import folder_lock
own = "import sys; from helpers.run import folder_lock; folder_lock.own(sys.argv[1])"
folder_lock.own(sys.argv[1])
subprocess.run([sys.executable, "-c", own, sys.argv[1]], check=True)
stranger = subprocess.Popen(["setsid", "-f", sys.executable, "-c", own, sys.argv[1]], stderr=subprocess.PIPE, text=True)
print(stranger.communicate()[1].strip().splitlines()[-1])
"""


def test_inside_a_pid_namespace_a_launched_process_may_write_and_another_is_refused_at_once(tmp_path):
    shell = ["sh", "-c", '"$@"; code=$?; exit $code', "sh"]  # process 1, which takes over orphans
    namespace = namespaces("--pid", "--fork", "--mount-proc")
    inside = finished(*namespace, *shell, sys.executable, "-c", IN_A_CONTAINER, tmp_path)
    assert inside.returncode == 0, inside.stderr
    assert "FolderTaken" in inside.stdout and "?pidns-" in inside.stdout and "waiting" not in inside.stdout
