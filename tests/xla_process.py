"""XLA in a process of its own: the choice between XLA and the CPU is made once a process, and takes seconds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import runtime, xla

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 600  # seconds


def cpu_here() -> runtime.Runtime:
    """The CPU, to train on in this process. Skips where torch_xla is installed: accelerate would take XLA here.

    What needs it is run by the other half of the tests, with requirements-gpu.txt.
    """
    if xla.installed():
        pytest.skip("accelerate would take XLA in this process; the tests with requirements-gpu.txt run it")
    return runtime.detect(use_tpu=False)


def answers_on_xla(script: str, devices: int = 8) -> dict:
    """What `script` prints after "ANSWERS ", as JSON, from a process with that many virtual XLA devices.

    Skips the test without torch_xla; fails it with the end of the script's messages if the script fails.
    """
    if not xla.installed():
        pytest.skip("torch_xla is not installed")
    environment = {name: value for name, value in os.environ.items() if name != "USE_TORCH_XLA"}
    environment |= {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.rsplit("ANSWERS ", 1)[1])
