"""Training on TorchTPU's device `tpu`, which XLA's CPU stands in for: `make test-torchtpu`, with tests/requirements-torchtpu.txt."""

import re
import signal
import subprocess
from pathlib import Path

import pytest

from helpers.machine import runtime, torch_tpu
from tests import harness
from tests.harness import fingerprint, result

here = pytest.mark.skipif(not torch_tpu.installed(), reason="torch_tpu is not installed: run `make test-torchtpu`")
ROOMS = ("reservoir", "lejepa", "legal", "graphmer", "tuning")
DRIVER = Path(__file__).with_name("room_trainers.py")


@pytest.mark.once
def test_an_unknown_engine_is_refused_with_the_choices(monkeypatch):
    monkeypatch.setenv("TPU_ENGINE", "jax")
    with pytest.raises(
        ValueError, match="TPU_ENGINE='jax' in the environment: give 'auto', 'torch_xla' or 'torch_tpu'"
    ):
        runtime.detect(True)


@pytest.mark.once
def test_where_torch_tpu_is_asked_for_and_absent_the_run_goes_on_with_the_reason(monkeypatch):
    if torch_tpu.installed():
        pytest.skip("it is installed here")
    monkeypatch.setenv("TPU_ENGINE", "torch_tpu")
    with pytest.warns(UserWarning, match="torch_tpu is not installed: going on without a TPU"):
        assert runtime.detect(True).kind == "cpu"


@here
def test_accelerate_does_not_know_the_device_by_itself():
    code = (
        "from tests.machine import tpu_stand_in; tpu_stand_in.start(); from helpers.machine import runtime, torch_tpu; "
        "assert torch_tpu.teach_accelerate(), 'accelerate knows tpu now: teach_accelerate can go'; "
        "assert not torch_tpu.teach_accelerate()"
    )
    harness.printed("-c", code)


@here
def test_several_chips_are_refused_with_torch_xla_as_the_way():
    code = (
        "from tests.machine import tpu_stand_in; tpu_stand_in.load(chips=4); "
        "from helpers.machine import runtime; runtime.detect(True)"
    )
    refused = harness.python("-c", code)
    expected = r"ValueError: use_tpu=True: .*for all chips of a TPU install torch_xla \(4 chips are there\)"
    assert refused.returncode == 1 and re.match(expected, refused.stderr.splitlines()[-1])


def trained(folder: Path, room: str, **options) -> subprocess.CompletedProcess:
    folder.mkdir(exist_ok=True)
    return harness.train(DRIVER, folder / "out", room=room, **options)


@here
@pytest.mark.parametrize("room", ROOMS)
def test_each_trainer_has_the_losses_of_the_cpu(room, tmp_path):
    cpu, tpu = (result(trained(tmp_path / kind, room, kind=kind, dropout=0.0)) for kind in ("cpu", "tpu"))
    assert tpu["device"].startswith("tpu") and len(tpu["losses"]) == 4
    assert tpu["losses"] == pytest.approx(cpu["losses"], abs=1e-5)
    assert tpu["eval_losses"] == pytest.approx(cpu["eval_losses"], abs=1e-5)


@here
@pytest.mark.parametrize("room", ROOMS)
def test_a_killed_trainer_ends_with_identical_weights_with_dropout(room, tmp_path):
    whole = result(trained(tmp_path / "whole", room, kind="tpu"))
    killed = trained(tmp_path / "killed", room, kind="tpu", kill_step=4)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    resumed = result(trained(tmp_path / "killed", room, kind="tpu"))
    assert resumed["train"]["resumed_from_step"] == 2
    assert resumed["losses"] == whole["losses"]
    assert fingerprint(tmp_path / "killed/out", 4) == fingerprint(tmp_path / "whole/out", 4)
