"""Two processes share a batch as two GPUs would: same losses as one process, one whole checkpoint for both."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from helpers import checkpoint

from .test_resume import DRIVER, result, run

pytestmark = pytest.mark.once

OPTIONS = {"accumulation": 1, "batch_size": 8, "dropout": 0.0, "steps": 6, "save_steps": 3}


def test_two_processes_give_the_losses_of_one_and_write_one_whole_checkpoint(tmp_path):
    alone = result(run(tmp_path / "one", **OPTIONS))
    together = subprocess.run(
        [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--standalone",
            "--nproc-per-node=2",
            str(DRIVER),
            str(tmp_path / "two"),
            json.dumps(OPTIONS),
        ],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert together.returncode == 0, together.stderr[-3000:]
    # The other process may print on the same line.
    shared, _ = json.JSONDecoder().raw_decode(together.stdout.split("RESULT ", 1)[1])
    assert shared["plan"]["batch_size"] == alone["plan"]["batch_size"] == 8
    assert shared["plan"]["per_device_batch_size"] == 4
    assert shared["losses"] == pytest.approx(alone["losses"], rel=1e-5)
    last = checkpoint.folder(tmp_path / "two", 6)
    assert checkpoint.damage(last) is None
    assert {path.name for path in last.glob("rng_state*")} == {"rng_state_0.pth", "rng_state_1.pth"}
