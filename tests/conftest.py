"""Fixtures that several test files share."""

import gc
import os
import re
from pathlib import Path

import pytest

import helpers  # noqa: F401  keeps libraries quiet that the tests import
from helpers.machine import xla

# XLA on a CPU compiles in a sixth of the time, in every process that a test starts: what comes out runs for a second.
os.environ.setdefault("XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false")

# Python looks for garbage again and again while the libraries are imported: half of the time of a collection.
gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with runs in processes of their own come first: none is left to one worker at the end."""
    items.sort(
        key=lambda item: (
            not {"harness", "forked", "faults", "run", "run_notebook", "compiled"} & vars(item.module).keys()
        )
    )


def pytest_collection_finish(session: pytest.Session) -> None:
    gc.enable()
    gc.freeze()  # nor is what was imported looked at again


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Does not even import a file of which `-m 'not once ...'` takes no test."""
    if collection_path.suffix == ".py" and config.option.markexpr.startswith("not once"):
        text = collection_path.read_text()
        return bool(re.search(r"^pytestmark = .*\bmark\.once\b", text, re.MULTILINE)) or None
    return None


@pytest.fixture
def alone(tmp_path, monkeypatch) -> Path:
    """An empty folder with no checkout above it, no token, no W&B key, an empty home, and no way to a hub."""
    for name in ("HF_TOKEN", "WANDB_API_KEY", "PYTHONPATH", "USE_TORCH_XLA", "PJRT_DEVICE", "CPU_NUM_DEVICES"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    (tmp_path / "home").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    folder = tmp_path / "alone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def eight_devices(alone, monkeypatch) -> None:
    """Eight virtual devices of XLA for a notebook. Skips where torch_xla is not installed."""
    if not xla.installed():
        pytest.skip("torch_xla is not installed")
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
