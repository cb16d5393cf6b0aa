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
from helpers.train.interruption import Stopped
from tests.training_run import DEFAULTS, main
path = Path(sys.argv[1])
path.mkdir()
options = DEFAULTS | dict(model="llama", width=16, blocks=16, steps=4, save_steps=2, accumulation=1)
sent = []
def strike(event, arguments):
    best = event == "open" and str(arguments[0]).endswith("model.safetensors") and (path / "checkpoint-4").exists()
    if best and not sent:
        sent.append(os.kill(os.getpid(), signal.SIGTERM))
sys.addaudithook(strike)
for _ in range(2):
    try:
        print("ENDED", main(str(path), options)["train"]["steps"])
    except Stopped as stopped:
        print("STOPPED", stopped)
"""


def test_a_signal_while_the_best_checkpoint_is_loaded_is_not_swallowed_and_the_cell_run_again_ends_the_run(tmp_path):
    said = harness.run("-c", AGAIN, tmp_path / "run").stdout
    ends = [line.split(":")[0] for line in said.splitlines() if line.startswith(("STOPPED", "ENDED"))]
    assert ends == ["STOPPED SIGTERM at step 4", "ENDED 4"]


ROOM = """
import shutil, sys
from helpers.run import checkpoint
from tests.training_run import DEFAULTS, main
path, options = sys.argv[1], DEFAULTS | dict(model="llama", width=16, blocks=16, save_steps=2, accumulation=1)
main(path, options | {"steps": 4})
size = max(checkpoint.size(folder) for folder in checkpoint.listed(path))
room = shutil.disk_usage(path)._replace(free=5 * size // 2)
shutil.disk_usage = lambda folder: room
print("ENDED", main(path, options | {"steps": 8})["train"]["steps"])
"""


def test_checkpoints_that_are_there_need_no_room_again(tmp_path):
    assert "ENDED 8" in harness.run("-c", ROOM, tmp_path / "run").stdout
