"""The model on XLA: the same numbers as on a CPU, and one graph for every step."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.machine import xla

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import json, torch
from helpers.machine import runtime, xla
machine = runtime.detect(True)
from tests.reservoir.test_model import made, texts
ids = texts(3, 30)[[0, 1, 2, 0, 1, 2, 0, 1]]
here, there = made(), made().to(machine.device)
there.tie_weights()
xla.replicate(there)
expected, found = here(ids, labels=ids), None
expected.loss.backward()
on_device = ids.to(machine.device)
compiles = []
for _ in range(4):
    there.zero_grad()
    found = there(on_device, labels=on_device)
    found.loss.backward()
    xla.sync()
    compiles.append(xla.counters()["compiles"])
pairs = list(zip(here.parameters(), there.parameters(), strict=True))
print("FOUND " + json.dumps({
    "loss": [float(expected.loss), float(found.loss)],
    "gradient": max(float((a.grad - b.grad.cpu()).abs().max()) for a, b in pairs),
    "logits": float((here(ids).logits - there(on_device).logits.cpu()).abs().max()),
    "state": float((expected.state[0] - found.state[0].cpu()).abs().max()),
    "compiles": compiles,
}))
"""


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_logits_and_loss_on_xla_are_the_cpus():
    environment = os.environ | {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert not done.returncode, done.stderr[-3000:]
    found = json.loads(done.stdout.split("FOUND ")[1])
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-4)
    assert found["gradient"] < 1e-4 and found["logits"] < 1e-3 and found["state"] < 1e-4
    assert found["compiles"][1:] == [found["compiles"][1]] * 3  # after the second step nothing compiles
