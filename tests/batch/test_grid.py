"""Grids on real papermill kernels: what is refused, what a run gives, what is run again, and signals."""

import contextlib
import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from papermill.iorw import load_notebook_node

from helpers.batch import grid

from . import notebook as small
from .notebook import columns, command, wait_for

pytestmark = pytest.mark.once

TRAINED = ("run", "status", "error", "train.steps", "train.loss_first", "train.loss_last")


@pytest.fixture
def notebook(tmp_path):
    return small.write(tmp_path / "tiny.ipynb")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("sead=3", "write name=value once, for one of data_source, "),
        ("output_dir=a", "but not for output_dir"),
        ("seed=1e3", "is not of type int"),
    ],
)
def test_a_wrong_value_is_refused_before_any_kernel_starts(notebook, tmp_path, capsys, argument, message):
    with pytest.raises(SystemExit):
        grid.main([str(notebook), "--output-dir", str(tmp_path / "grid"), argument])
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()


def test_values_are_typed_quoted_and_have_folders_of_their_own(notebook, tmp_path):
    assignments = ["seed=2,1", "resume=false", f'prompt="a, b",a/b,a%2Fb,../a,{"x" * 300},{"x" * 301}']
    runs = [parameters for parameters, _ in grid.plan(load_notebook_node(str(notebook)), tmp_path, assignments)]
    folders = {Path(run.pop("output_dir")) for run in runs}
    assert runs[0] == {"seed": 2, "resume": False, "prompt": "a, b"} and runs[6]["seed"] == 1
    assert len(folders) == 12 and all(folder.parent == tmp_path and len(folder.name) < 200 for folder in folders)


def test_a_grid_gives_one_table_and_only_what_is_not_done_runs_again(notebook, tmp_path):
    folder, values = tmp_path / "grid", ("ending=good,raise,kill,exit", "seed=1")
    assert command(notebook, folder, *values).wait() == 1
    missing = folder / "ending=exit,seed=1/results.json"
    assert columns(folder, "ending", "status", "error", "passed.seed") == [
        ["good", "done", "", "1"],
        ["raise", "failed", "RuntimeError: out of luck (In [3])", ""],  # after the parameters and what was passed
        ["kill", "failed", "DeadKernelError: Kernel died", ""],
        ["exit", "failed", f"FileNotFoundError: [Errno 2] No such file or directory: '{missing}'", ""],
    ]
    executed = {path: path.stat().st_mtime_ns for path in folder.glob("*.ipynb")}
    assert command(notebook, folder, *values, "max_hours=2", f"keep_in={tmp_path}").wait() == 1
    assert [path.stem for path in executed if path.stat().st_mtime_ns == executed[path]] == ["ending=good,seed=1"]


def test_an_edited_notebook_and_changed_data_are_runs_of_their_own(notebook, tmp_path):
    data, folder = tmp_path / "stories.txt", tmp_path / "grid"
    for text in ("once", "twice"):
        data.write_text(text)
        assert command(notebook, folder, f"data_source={data}").wait() == 0
    edited = notebook.read_text().replace("0.5", "0.1").replace("(output_dir)", "(output_dir + '-edited-0badcafe')")
    notebook.write_text(edited)
    assert command(notebook, folder, f"data_source={data}").wait() == 0
    assert columns(folder, "status", "train.loss_last") == [["done", "0.1"]]
    assert len([*folder.glob("*.batch.json")]) == 3


def test_max_hours_stops_a_run_and_nothing_failed(notebook, tmp_path):
    assert command(notebook, tmp_path / "grid", "ending=train", "max_hours=1e-9").wait() == 0
    ((status, error),) = columns(tmp_path / "grid", "status", "error")
    assert status == "stopped" and error.startswith("Stopped: max_hours=1e-09 at step 1")


def test_a_kernel_that_is_deaf_is_killed_and_the_rest_not_run(notebook, tmp_path):
    folder = tmp_path / "grid"
    process = command(notebook, folder, "ending=deaf", "seed=0,1")
    kernel = folder / "ending=deaf,seed=0/kernel"
    wait_for(kernel.with_name("held").exists, process)
    while process.poll() is None:
        process.send_signal(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(12)  # one that comes while it ends would change how it ends
    assert process.returncode == 128 + signal.SIGINT
    assert columns(folder, "status", "error") == [["stopped", ""], ["not run", ""]]
    assert not psutil.pid_exists(int(kernel.read_text()))


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    command(small.write(folder / "tiny.ipynb"), folder / "grid", "ending=train", "seed=0,1").wait()
    return columns(folder / "grid", *TRAINED)


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, *(pytest.param(number, marks=pytest.mark.slow) for number in (signal.SIGKILL, 0))]
)
def test_a_grid_given_twice_ends_like_an_undisturbed_one(notebook, tmp_path, undisturbed, number):
    """The second command takes the run that is free, and goes on with the one that the first leaves if it is stopped."""
    folder, commands = tmp_path / "grid", []
    (tmp_path / "hold").touch()
    for seed in (0, 1):
        commands.append(command(notebook, folder, "ending=train", "seed=0,1"))
        wait_for((folder / f"ending=train,seed={seed}/held").exists, commands[-1])
    first, second = commands
    if number:
        first.send_signal(number)
        assert first.wait() in (128 + number, -number)
    (tmp_path / "hold").unlink()
    assert second.wait() == 0
    assert columns(folder, *TRAINED) == undisturbed
