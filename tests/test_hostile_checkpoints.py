"""Checkpoints that somebody else made: nothing in them runs, and no manifest makes the program fail."""

from __future__ import annotations

import hashlib
import json
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from helpers.run import checkpoint

from .hostile import MARKER, cases, guarded, payload
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


@cases(40)
@given(
    st.one_of(
        st.binary(max_size=50),
        st.sampled_from((b"[" * 100_000, b'{"schema": 1, "step": ' + b"9" * 5_000 + b"}", b"\xff\xfe{\0}\0")),
        st.recursive(st.none() | st.integers() | st.text(max_size=5), lambda inner: st.lists(inner, max_size=3)).map(
            lambda files: json.dumps({"schema": 1, "step": 2, "files": files}).encode()
        ),
        st.dictionaries(st.text(max_size=9), st.fixed_dictionaries({"bytes": st.integers(), "sha256": st.text()})).map(
            lambda files: json.dumps({"schema": 1, "step": 2, "files": files or {"a": 1}}).encode()
        ),
    )
)
def test_a_manifest_of_anything_is_damage(copied, manifest):
    around, newest = copied()
    (newest / checkpoint.MANIFEST).write_bytes(manifest)
    with guarded(around):
        assert checkpoint.damage(newest)


@pytest.mark.parametrize(
    ("name", "form"),
    [
        ("optimizer.pt", "zip"),
        ("optimizer.pt", "old"),
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


def test_weights_of_another_shape_stop_the_run_and_are_named(copied):
    _, newest = copied()
    weights = load_file(newest / "model.safetensors")
    weights["lm_head.weight"] = torch.zeros(3, 3)
    save_file(weights, newest / "model.safetensors", {"format": "pt"})
    signed(newest)
    with pytest.raises(RuntimeError, match=r"lm_head\.weight"):
        main(str(newest.parent), OPTIONS | {"steps": 3})
