"""A process where this suite is not: what is saved there must load without it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import safetensors.torch
import torch


def answers(script: str, model: Path, given: dict[str, torch.Tensor], folder: Path) -> dict[str, torch.Tensor]:
    """What `script` saves for these tensors, isolated and in an empty folder; its arguments are model, tensors, answers."""
    safetensors.torch.save_file(given, folder / "given.safetensors")
    (folder / "empty").mkdir()
    files = model, folder / "given.safetensors", folder / "answers.safetensors"
    environment = {"HF_HOME": str(folder / "home"), "HOME": str(folder), "HF_HUB_OFFLINE": "1", "PATH": ""}
    environment["OMP_NUM_THREADS"] = str(torch.get_num_threads())
    process = subprocess.run(
        [sys.executable, "-I", "-c", script, *map(str, files)],
        cwd=folder / "empty",
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return safetensors.torch.load_file(files[2])
