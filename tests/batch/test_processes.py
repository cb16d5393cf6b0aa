"""Several real processes (gloo), as a notebook's kernel starts them."""

import shutil
import subprocess
import sys

import psutil
import pytest

from helpers.batch import processes
from helpers.notebook.method import WRITTEN
from tests import harness

from .notebook import ROOT, wait_for

pytestmark = pytest.mark.once


def call(name, count=2, **parameters):
    values = {key: str(value) for key, value in parameters.items()}
    processes.call(f"tests.batch.in_processes:{name}", values, count)


def test_processes_exchange_values_and_the_first_prints(tmp_path, capfd):
    call("exchange", folder=tmp_path)
    assert {path.read_text() for path in tmp_path.glob("rank-*")} == {"[0, 1] 0"}
    printed = capfd.readouterr().out
    assert "I am 0" in printed and "I am 1" not in printed


def test_a_process_that_fails_ends_the_cell_and_says_why(capfd):
    with pytest.raises(RuntimeError, match="training in 2 processes failed: the lines above say why"):
        call("linger", folder="gone")
    assert "No such file or directory: 'gone/rank-" in capfd.readouterr().out


def test_processes_end_with_the_kernel_that_started_them(tmp_path):
    code = f"from tests.batch import test_processes as test; test.call('linger', folder={str(tmp_path)!r})"
    kernel = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT)
    wait_for(lambda: len([*tmp_path.glob("rank-*")]) == 2, kernel)
    orphans = psutil.Process(kernel.pid).children(recursive=True)
    kernel.kill()
    kernel.wait()
    assert len(orphans) == 3 and psutil.wait_procs(orphans, timeout=300)[1] == []


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one_also_after_a_kill(tmp_path):
    call("train", 1, folder=tmp_path / "one")
    shutil.copytree(tmp_path / "one", tmp_path / "resumed")
    shutil.rmtree(tmp_path / "resumed/checkpoint-8")
    with pytest.raises(RuntimeError):
        call("train", folder=tmp_path / "killed", options='{"kill_step": 6}')
    expected = harness.read_json(tmp_path / "one/history.json")
    for name in ("two", "resumed", "killed"):
        call("train", folder=tmp_path / name)
        assert harness.read_json(tmp_path / name / "history.json") == pytest.approx(expected, rel=1e-5)


def test_the_last_run_of_each_marked_cell_runs_with_magics(tmp_path):
    executed = [
        "# @title Parameters\nmine = 1",
        "raise AssertionError",
        f"# In every process: run\nimport pathlib, types\nrun = types.SimpleNamespace(method=pathlib.Path({str(tmp_path)!r}, 'a.py'))",
        f"{WRITTEN}\nmine = 0\n",
        f"{WRITTEN}\nmine += 1\n",
        "# In every process: use\nexec(run.method.read_text())\nprint(mine, len(In))",
    ]
    code = f"from helpers.batch import processes\nlist(processes.run_cells(processes.marked_cells({executed!r})))"
    assert harness.printed("-c", code).endswith("2 5\n")
