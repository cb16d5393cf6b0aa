"""The TPU compiler's answers: what the twins' steps need, send and overwrite on chips that are not there."""

import functools
import importlib
import json
import os
import sys
from pathlib import Path

import pytest

from helpers.machine import xla
from tests.harness import ROOT, printed

sys.path.insert(0, str(ROOT / "benchmarks"))
tpu = importlib.import_module("tpu_step")
TWINS = ("reservoir", "lejepa", "legal")  # beside the tuning notebook's; GraphMER's takes two minutes: make tpu
needs_compiler = pytest.mark.skipif(bool(tpu.available()), reason=tpu.available())


def compiled(folder: Path, hardware: str, *names: str) -> dict[str, dict]:
    """Of each named step (tests/plan/tpu_programs.py), in a process of their own: its first backward pass must find the device."""
    environment = {**os.environ, "XLA_FLAGS": ""}
    output = printed("tests/plan/tpu_programs.py", folder, hardware, *names, env=environment)
    found = [json.loads(line.removeprefix("STEP ")) for line in output.splitlines() if line.startswith("STEP ")]
    return {each["step"]: each for each in found}


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    """What the compiler says of steps on a slice; those of a call are compiled once."""
    return functools.cache(lambda *names: compiled(tmp_path_factory.mktemp("steps"), *names))


ON_ONE_CHIP = ("v5e-1", "tuning")
ON_EIGHT = ("v5e-8", "tuning")


@needs_compiler
@pytest.mark.parametrize("twin", ["tuning", *(pytest.param(each, marks=pytest.mark.slow) for each in TWINS)])
def test_a_twins_step_compiles_for_a_tpu_and_overwrites_what_it_replaces(steps, twin):
    step = (steps("v5e-1", *TWINS) if twin in TWINS else steps(*ON_ONE_CHIP))[twin]
    assert step["flops"] > 0 and not step["collectives"]
    assert step["aliased"] > 0.99 * (step["outputs"] - 4096)  # the loss and an index of the outputs are new
    assert (
        step["arguments"] >= step["held"] and step["peak"] < step["arguments"] + step["outputs"] + step["temporaries"]
    )


@needs_compiler
def test_a_chip_draws_for_its_own_examples_alone(steps):
    """Both slices have as many examples a chip. Without libtpu's flag (xla.OWN_DRAWS) a chip of eight would draw for all of them."""
    assert 0 < steps(*ON_EIGHT)["tuning"]["drawn"] <= steps(*ON_ONE_CHIP)["tuning"]["drawn"]


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        (None, xla.OWN_DRAWS),
        ("--xla_tpu_something=1", f"--xla_tpu_something=1 {xla.OWN_DRAWS}"),
        (xla.OWN_DRAWS.replace("true", "false"), xla.OWN_DRAWS.replace("true", "false")),
    ],
)
def test_libtpu_is_told_unless_the_user_has_said_otherwise(monkeypatch, told, expected):
    monkeypatch.delenv("LIBTPU_INIT_ARGS", raising=False)
    if told:
        monkeypatch.setenv("LIBTPU_INIT_ARGS", told)
    for _ in range(2):
        xla.set_libtpu_arguments()
        assert os.environ["LIBTPU_INIT_ARGS"] == expected


@needs_compiler
def test_eight_chips_send_each_other_gradients_alone(steps):
    step = steps(*ON_EIGHT)["tuning"]
    assert set(step["collectives"]) == {"all-reduce"}
    assert step["collectives"]["all-reduce"]["bytes"] < 1.1 * step["held"] / 3  # weights and two moments each
