"""The model on XLA: the same numbers as on a CPU, and one graph for every step."""

import pytest

from tests.harness import answers_on_xla

PROGRAM = """
import json, torch
from helpers.machine import runtime, xla
from tests.harness import counters
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
    compiles.append(counters()["compiles"])
pairs = list(zip(here.parameters(), there.parameters(), strict=True))
print("ANSWERS " + json.dumps({
    "loss": [float(expected.loss), float(found.loss)],
    "gradient": max(float((a.grad - b.grad.cpu()).abs().max()) for a, b in pairs),
    "logits": float((here(ids).logits - there(on_device).logits.cpu()).abs().max()),
    "state": float((expected.state[0] - found.state[0].cpu()).abs().max()),
    "compiles": compiles,
}))
"""


def test_logits_and_loss_on_xla_are_the_cpus():
    found = answers_on_xla(PROGRAM)
    assert found["loss"][0] == pytest.approx(found["loss"][1], rel=1e-4)
    assert found["gradient"] < 1e-4 and found["logits"] < 1e-3 and found["state"] < 1e-4
    assert found["compiles"][1:] == [found["compiles"][1]] * 3  # after the second step nothing compiles
