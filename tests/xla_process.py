"""XLA in a process of its own: the choice between XLA and the CPU is made once a process, and takes seconds."""

from __future__ import annotations

import json

import pytest

from helpers.machine import runtime, xla

from . import forked


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
    environment = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = forked.run("-c", script, xla=True, **environment)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.rsplit("ANSWERS ", 1)[1])
