"""The real trainer in what happens to people: an edited notebook, a changed folder, no evaluation."""

import os

import pytest

from helpers.run import checkpoint
from tests import harness
from tests.test_resume import result, run

pytestmark = pytest.mark.once

SHORT = {"steps": 4, "save_steps": 2, "accumulation": 1}


def test_the_run_stays_in_its_folder_when_the_directory_changes_and_evaluates_only_if_it_is_to(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    relative = os.path.relpath(tmp_path / "run")
    ended = result(run(relative, **SHORT, elsewhere=str(tmp_path / "elsewhere"), eval_strategy="no"))
    assert ended["eval_losses"] == []
    assert checkpoint.newest_whole(tmp_path / "run")[0].name == "checkpoint-4"
    assert not any((tmp_path / "elsewhere").iterdir())


AGAIN = """
import os, signal, sys
from pathlib import Path
from helpers.run import folder_lock
from helpers.train.interruption import Stopped
from tests.training_run import DEFAULTS, main
path, case = Path(sys.argv[1]), sys.argv[2]
path.mkdir()
options = DEFAULTS | dict(model="llama", width=16, blocks=16, steps=4, save_steps=2, accumulation=1, max_hours=0.5 * (case == "time"))
if case == "time":
    folder_lock.own(path)
    folder_lock._began[path.resolve()] -= 3600
sent = []
def strike(event, arguments):
    best = event == "open" and str(arguments[0]).endswith("model.safetensors") and (path / "checkpoint-4").exists()
    if case == "signal" and best and not sent:
        sent.append(os.kill(os.getpid(), signal.SIGTERM))
sys.addaudithook(strike)
for _ in range(2):
    try:
        print("ENDED", main(str(path), options)["train"]["steps"])
    except Stopped as stopped:
        print("STOPPED", stopped)
"""


@pytest.mark.parametrize(("case", "stopped"), [("time", "max_hours=0.5 at step 1"), ("signal", "SIGTERM at step 4")])
def test_a_stop_is_never_swallowed_and_the_cell_run_again_ends_the_run(tmp_path, case, stopped):
    """After its time was over it has all of it again; a signal while the best checkpoint is loaded counts."""
    said = harness.run("-c", AGAIN, tmp_path / "run", case).stdout
    assert [line.split(":")[0] for line in said.splitlines() if line.startswith(("STOPPED", "ENDED"))] == [
        f"STOPPED {stopped}",
        "ENDED 4",
    ]
