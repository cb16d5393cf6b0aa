"""Checkpoints that somebody else made: nothing in them runs, and no manifest makes the program fail."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch

from helpers.run import checkpoint

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


def saved(path: Path, value: object, form: str) -> None:
    """`value` as torch.save writes it, as it wrote it before 1.6, or as a bare pickle."""
    if form == "bare":
        path.write_bytes(pickle.dumps(value))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=form == "zip")


def signed(folder: Path) -> None:
    """Writes the manifest that fits what is there now."""
    manifest = json.loads((folder / checkpoint.MANIFEST).read_text())
    for name in manifest["files"]:
        content = (folder / name).read_bytes()
        manifest["files"][name] = {"bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}
    (folder / checkpoint.MANIFEST).write_text(json.dumps(manifest))


@pytest.fixture
def copied(finished, tmp_path_factory):
    def make() -> tuple[Path, Path]:
        around = tmp_path_factory.mktemp("around")
        shutil.copytree(finished, around / "run")
        return around, checkpoint.folder(around / "run", 2)

    return make


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("optimizer.pt", "zip"),
        ("scheduler.pt", "bare"),
        ("rng_state.pth", "zip"),
        ("training_args.bin", "bare"),
    ],
)
def test_the_trainer_runs_no_pickle_of_a_checkpoint(copied, name, form):
    around, newest = copied()
    saved(newest / name, {"state": payload(around)}, form)
    signed(newest)
    if name == "training_args.bin":  # which nothing reads
        main(str(newest.parent), OPTIONS | {"steps": 3, "save_steps": 3})
    else:
        with pytest.raises(Exception, match=r"Weights only load failed|Unsupported|weights_only"):
            main(str(newest.parent), OPTIONS | {"steps": 3, "save_steps": 3})
    assert not (around / MARKER).exists()
