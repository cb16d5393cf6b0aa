"""A run in a Jupyter kernel ends in a whole checkpoint of its last finished step, whoever ends it and however."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import nbformat
import psutil
import pytest
from filelock import SoftFileLease
from jupyter_client.manager import start_new_kernel

from helpers.run import checkpoint
from tests.test_resume import fingerprint, result, run, undisturbed  # noqa: F401  a fixture

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]


def cell(folder: Path) -> str:
    """A notebook's training cell: the run of tests/training_run.py, slow enough to be stopped in its middle."""
    return (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from tests.training_run import DEFAULTS, main\n"
        f"main({str(folder)!r}, {{**DEFAULTS, 'step_pause': 0.3, 'save_steps': 100}})"
    )


def wait_for_steps(folder: Path, alive) -> None:
    """Until some steps are done: the run logs every step into its session file only when it saves, so by the clock."""
    while not (folder / "checkpoint-0").is_dir():
        assert alive()
        time.sleep(0.05)
    time.sleep(2.0)


def assert_saved_and_exact(folder: Path, reference: Path) -> None:
    last, skipped = checkpoint.newest_whole(folder)
    assert checkpoint.step_of(last) > 0 and not skipped
    result(run(folder, save_steps=100))
    assert fingerprint(folder) == fingerprint(reference)


@pytest.mark.parametrize("how", ["shutdown", "interrupt"])
def test_a_kernel_that_is_shut_down_or_interrupted_saves_first(how, undisturbed, tmp_path):  # noqa: F811
    manager, client = start_new_kernel()
    try:
        client.execute(cell(tmp_path))
        wait_for_steps(tmp_path, manager.is_alive)
        if how == "interrupt":
            manager.interrupt_kernel()
            said = iter(lambda: client.get_shell_msg(timeout=60), None)  # answers about the kernel itself too
            reply = next(each["content"] for each in said if each["msg_type"] == "execute_reply")
            assert reply["ename"] == "Stopped" and "SIGINT at step " in reply["evalue"]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=False)  # as Jupyter does: interrupt, ask, SIGTERM, and SIGKILL five seconds later
    assert_saved_and_exact(tmp_path, undisturbed("cpu")[0])


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("command", ["papermill", "nbconvert"])
def test_a_kernel_whose_papermill_or_nbconvert_dies_saves_and_ends(command, number, undisturbed, tmp_path):  # noqa: F811
    folder, notebook = tmp_path / "run", tmp_path / "train.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell(folder))]), notebook)
    arguments = {
        "papermill": ["papermill", str(notebook), str(tmp_path / "done.ipynb"), "-k", "python3"],
        "nbconvert": ["nbconvert", "--execute", "--to", "notebook", str(notebook), "--output", "done.ipynb"],
    }[command]
    parent = subprocess.Popen([sys.executable, "-m", *arguments], stderr=subprocess.DEVNULL, cwd=tmp_path)
    wait_for_steps(folder, lambda: parent.poll() is None)
    owner = psutil.Process(SoftFileLease(folder / "owner.lock").owner.pid)
    os.kill(parent.pid, number)
    parent.wait(timeout=60)
    owner.wait(timeout=60)
    assert_saved_and_exact(folder, undisturbed("cpu")[0])
