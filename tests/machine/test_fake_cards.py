"""Each trainer's model on fake tensors of a CUDA card, which tell a tensor that was left on the CPU: `make cuda`."""

import json
import os
import sys
from pathlib import Path

import pytest
import torch

from tests.harness import ROOT, finished, result
from tests.machine.test_cards import DRIVER, HALF, ROOMS

PYTHON = Path(sys.executable) if torch.version.cuda else ROOT / ".venv-cuda/bin/python"
pytestmark = [
    pytest.mark.once,
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="no CUDA build of torch is installed: run `make cuda`"),
]


def run(folder: Path, room: str, **options):
    options = {"room": room, "precision": "auto", "fake": True, **options}
    environment = os.environ | {
        "USE_TORCH_XLA": "0",
        "CUDA_VISIBLE_DEVICES": "",
    }  # where there is a card, it is left alone
    return finished(PYTHON, "-m", DRIVER, folder / "out", json.dumps(options), env=environment)


@pytest.mark.parametrize("card", HALF)
@pytest.mark.parametrize("room", ROOMS)
def test_a_step_forward_and_the_evaluation_leave_no_tensor_on_the_cpu(room, card, tmp_path):
    found = result(run(tmp_path, room, card=card))
    assert found["devices"] == [found["loss"]] == ["cuda:0"]


@pytest.mark.parametrize("room", ROOMS)
def test_a_tensor_that_stays_on_the_cpu_is_told(room, tmp_path):
    stopped = run(tmp_path, room, card="T4", stray=True)
    assert stopped.returncode == 1
    assert "all tensors to be on the same device, but found at least two devices, cuda:0 and cpu" in stopped.stderr
