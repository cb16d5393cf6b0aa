"""Several real processes (gloo), as torchrun, accelerate and a notebook's kernel start them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
import psutil
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers.batch import processes
from helpers.machine import runtime
from helpers.notebook.method import WRITTEN
from helpers.run import checkpoint
from tests import harness
from tests.harness import read_json

from . import in_processes
from . import notebook as small

pytestmark = pytest.mark.once

HERE = "tests.batch.in_processes"
TORCHRUN = ("torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m")
ACCELERATE = ("accelerate.commands.launch", "--multi_gpu", "--num_processes=2", "--main_process_port=0", "-m")
SHOWN = f"{WRITTEN}\nmine = output_dir\n"


def start(target: str, launcher: tuple = TORCHRUN, **parameters) -> subprocess.Popen:
    """The launcher in a process group of its own."""
    given = [text for name, value in parameters.items() for text in ("-p", name, str(value))]
    return subprocess.Popen(
        [sys.executable, "-m", *launcher, "helpers.batch.processes", target, *given],
        cwd=small.ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finished(process: subprocess.Popen, status: int = 0) -> str:
    """What it says on stdout, or on stderr if it is to fail."""
    said, complaints = process.communicate(timeout=600)
    assert process.returncode == status, complaints[-3000:]
    return complaints if status else said


def processes_of(launcher: subprocess.Popen) -> dict[int, psutil.Process]:
    """Those that it started, by rank."""
    found = [child for child in psutil.Process(launcher.pid).children() if "RANK" in child.environ()]
    return {int(child.environ()["RANK"]): child for child in found}


@pytest.mark.parametrize("launcher", [TORCHRUN, ACCELERATE], ids=["torchrun", "accelerate"])
def test_processes_gather_and_broadcast(launcher, tmp_path):
    finished(start(f"{HERE}:tell", launcher, folder=tmp_path))
    first, second = (read_json(tmp_path / f"{rank}.json") for rank in range(2))
    assert first["gathered"] == second["gathered"] == [0, 10]
    assert first["broadcast"] == second["broadcast"] == {"from": 0}


@pytest.mark.slow
def test_two_processes_give_the_losses_and_gradients_of_one_also_from_its_checkpoint(tmp_path):
    finished(start(f"{HERE}:train", TORCHRUN, folder=tmp_path / "two"))
    in_one = (*TORCHRUN[:2], "--nproc-per-node=1", "-m")
    finished(start(f"{HERE}:train", in_one, folder=tmp_path / "one"))
    shutil.copytree(tmp_path / "one", tmp_path / "resumed")
    shutil.rmtree(checkpoint.folder(tmp_path / "resumed", in_processes.STEPS))
    assert "resuming from checkpoint-4" in finished(start(f"{HERE}:train", TORCHRUN, folder=tmp_path / "resumed"))
    histories = {path.parent.name: read_json(path) for path in tmp_path.glob("*/history.json")}
    expected = histories.pop("one")
    assert histories.keys() == {"two", "resumed"}
    for found in histories.values():
        for key in ("loss", "grad_norm", "eval_loss"):
            wanted = [entry[key] for entry in expected if key in entry]
            assert len(wanted) >= 2 and [e[key] for e in found if key in e] == pytest.approx(wanted, rel=1e-5), key
    last = checkpoint.folder(tmp_path / "two", in_processes.STEPS)
    assert {path.name for path in last.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}


def test_cells_with_magics_run_in_each_process_and_only_the_first_speaks_and_writes(tmp_path):
    told = tmp_path / "told"
    told.mkdir()
    cells = [
        new_code_cell('output_dir: str = "outputs/x"\nrate: float = 1.0', metadata={"tags": ["parameters"]}),
        new_code_cell("import pathlib, types\nfrom helpers.machine import ranks\nfolder = pathlib.Path(output_dir)"),
        new_code_cell("folder.mkdir()\nrun = types.SimpleNamespace(method=folder / 'the method.py')"),
        new_code_cell(SHOWN),
        new_code_cell("exec(run.method.read_text())\nprint('I am', ranks.rank(), 'of', ranks.count())"),
        new_code_cell(f"pathlib.Path({str(told)!r}, str(ranks.rank())).write_text(f'{{mine}} {{rate}} {{len(In)}}')"),
    ]
    kernel = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(new_notebook(cells=cells, metadata={"kernelspec": kernel}), tmp_path / "shown.ipynb")
    said = finished(start(str(tmp_path / "shown.ipynb"), output_dir=tmp_path / "out", rate="1e-3"))
    assert "I am 0 of 2" in said and "I am 1" not in said
    first, second = ((told / rank).read_text().split() for rank in "01")
    assert first == [str(tmp_path / "out"), "0.001", "8"]  # In has the cell of the passed parameters, too
    assert second[1:] == first[1:] and not Path(second[0]).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"out", "told", "shown.ipynb"}


def test_the_last_run_of_each_marked_cell_is_what_processes_run():
    executed = [
        "# @title Parameters\na = 1",
        "b = 2",
        "# In every process: data\nc = 3",
        "# In every process: model\nd = 4",
    ]
    edited = executed[2].replace("3", "5")
    assert processes.marked_cells([*executed, edited]) == [executed[0], edited, executed[3]]


def test_processes_whose_launcher_is_killed_end_by_themselves(tmp_path):
    launcher = start(f"{HERE}:linger", folder=tmp_path)
    small.wait_for((tmp_path / "here").exists, launcher, tmp_path)
    orphans = list(processes_of(launcher).values())
    launcher.kill()
    _, alive = psutil.wait_procs(orphans, timeout=600)
    assert len(orphans) == 2 and not alive
    launcher.communicate()


def test_a_call_from_a_kernel_says_why_a_process_failed():
    said = r"training in 2 processes failed: process 1 failed: FileNotFoundError.*gone\.jsonl"
    with pytest.raises(RuntimeError, match=said):
        processes.call(f"{HERE}:fail", {"missing": "./gone.jsonl"}, 2)


CALL = f"""import sys
from helpers.batch import processes
from helpers.notebook import method
from helpers.run import folder_lock
folder_lock.own(sys.argv[1])
method.use("helpers.reservoir.model", sys.argv[1] + "/model.py")
processes.call("{HERE}:own", {{"folder": sys.argv[1]}}, 2)
"""


def test_processes_that_a_kernel_starts_work_in_its_folder_with_its_method_also_in_a_container(tmp_path):
    inside = ("unshare", "--pid", "--fork", "--mount-proc")
    if harness.finished(*inside, "true").returncode:
        inside = ()  # a pid namespace needs root, or CAP_SYS_ADMIN
    shutil.copy(small.ROOT / "helpers/reservoir/model.py", tmp_path)
    done = harness.finished(*inside, sys.executable, "-c", CALL, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert (tmp_path / "worked").read_text() == str(tmp_path / "model.py")


def test_several_processes_or_hosts_on_a_tpu_are_refused(monkeypatch):
    monkeypatch.setattr("helpers.machine.xla.available", lambda: (True, "a TPU"))
    with pytest.raises(ValueError, match="num_processes=2: one process drives all chips of one host"):
        runtime.detect(True, num_processes=2)
