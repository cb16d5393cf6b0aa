"""Checkpoints that somebody else made: nothing in them runs, and no manifest makes the program fail."""

import shutil
from pathlib import Path

import pytest
import torch

from helpers.run import checkpoint

from .damage import sign
from .hostile import MARKER, payload
from .training_run import DEFAULTS, main

pytestmark = pytest.mark.once

OPTIONS = DEFAULTS | {"model": "llama", "width": 16, "blocks": 16, "steps": 2, "save_steps": 2, "accumulation": 1}


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a run with the checkpoints 0 and 2."""
    folder = tmp_path_factory.mktemp("finished") / "run"
    main(str(folder), OPTIONS)
    return folder


@pytest.mark.parametrize("name", ["optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"])
def test_the_trainer_runs_no_pickle_of_a_checkpoint_and_goes_on_from_the_one_before(finished, tmp_path, name, capsys):
    shutil.copytree(finished, tmp_path / "run")
    newest = checkpoint.folder(tmp_path / "run", 2)
    torch.save({"state": payload(tmp_path)}, newest / name)
    sign(newest)
    main(str(newest.parent), OPTIONS | {"steps": 3, "save_steps": 3})
    assert not (tmp_path / MARKER).exists()
    skipped = f"skipped checkpoint-2: torch does not load {name}" in capsys.readouterr().out
    assert skipped == (name != "training_args.bin")  # which nothing reads
