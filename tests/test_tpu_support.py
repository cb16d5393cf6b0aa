"""Validates a machine: device, precision, loader, sharding and one training step, with the real code.

    python tests/test_tpu_support.py            # what passed here, and what could not be shown here
    PJRT_DEVICE=CPU CPU_NUM_DEVICES=8 python tests/test_tpu_support.py      # the TPU code on 8 virtual devices

Right with and without torch_xla, and with and without a TPU; pytest runs the same checks.
"""

import functools
import os
import sys
import warnings
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.harness import printed


@functools.cache
def detected() -> tuple:
    """What use_tpu=True gives, and the warnings that it gives."""
    from helpers.machine import runtime

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        machine = runtime.detect(use_tpu=True)
    return machine, [str(warning.message) for warning in caught if "use_tpu=True" in str(warning.message)]


def check_device() -> str:
    """The device that use_tpu=True gives, with exactly one warning where it is no TPU."""
    from helpers.machine import runtime, xla

    machine, said = detected()
    if machine.kind == "xla":
        assert not said, said
        assert machine.device.type == "xla"
        assert machine.device_count == xla.device_count()
    else:
        assert len(said) == 1, said
        assert "going on without a TPU" in said[0]
        assert ("torch_xla is not installed" in said[0]) == (not xla.installed())
        assert os.environ["USE_TORCH_XLA"] == "0"
    assert str(runtime.get_device(use_tpu=machine.kind == "xla").type) == machine.kind
    return f"{machine.device_count} x {machine.device_name} ({machine.kind}): {machine.reason}"


def check_precision() -> str:
    """The dtype that a matrix product really has under the precision chosen."""
    import torch

    machine, _ = detected()
    expected = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}[machine.precision]
    weight = torch.ones(8, 8, device=machine.device)
    with torch.autocast(machine.kind, dtype=expected, enabled=expected != torch.float32):
        product = weight @ weight
    assert product.dtype == expected, product.dtype
    assert weight.dtype == torch.float32
    return f"{machine.precision}: {machine.precision_reason}"


def check_training() -> str:
    """Two optimizer steps of the real trainer: finite loss, weights moved, batch split over all devices."""
    import tempfile

    from tests import training_run

    machine, _ = detected()
    options = training_run.DEFAULTS | {"kind": "xla" if machine.kind == "xla" else "cpu", "steps": 2, "accumulation": 1}
    with tempfile.TemporaryDirectory() as folder:
        results = training_run.main(folder, options)  # asserts itself that the first batch is split over all devices
    assert results["train"]["steps"] == 2
    assert 0 < results["train"]["loss_last"] < 10
    assert results["losses"][0] != results["losses"][1]
    compiled = f", {results['xla']['compiles']} compilations" if machine.kind == "xla" else ""
    return f"loss {results['train']['loss_first']:.3f} -> {results['train']['loss_last']:.3f}{compiled}"


CHECKS = {"device": check_device, "precision": check_precision, "training": check_training}


def _in_process(environment: dict[str, str]) -> str:
    """Output of this script under an environment; each device kind needs a process of its own."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PJRT_DEVICE", "USE_TORCH_XLA")}
    return printed(__file__, env=clean | environment)


def test_this_machine_passes_as_it_is():
    assert _in_process({}).count("passed") == len(CHECKS)


def test_eight_virtual_xla_devices_pass():
    import pytest

    from helpers.machine import xla

    if not xla.installed():
        pytest.skip("torch_xla is not installed")
    shown = _in_process({"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8"})
    assert shown.count("passed") == len(CHECKS)
    assert "8 x XLA on CPU (xla)" in shown
    assert "bf16" in shown


if __name__ == "__main__":
    failed = 0
    for name, check in CHECKS.items():
        try:
            print(f"passed  {name:<10} {check()}", flush=True)
        except Exception as error:  # a validation reports every check, whatever the first one raised
            failed += 1
            print(f"FAILED  {name:<10} {type(error).__name__}: {error}", flush=True)
    if not os.environ.get("PJRT_DEVICE", "").startswith("TPU"):
        print("not shown here: speed, device memory and anything else that needs a TPU")
    sys.exit(bool(failed))
