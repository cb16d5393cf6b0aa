"""Checkpoints and output folders that somebody else made: nothing in them runs, and nothing is written outside."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from helpers.parameters import Parameters
from helpers.run import checkpoint
from helpers.run.run_folder import RunFolder

from .hostile import MARKER, cases, guarded, payload
from .training_run import DEFAULTS, main

pytestmark = pytest.mark.once

FORMS = ("zip", "old", "bare")
STATES = ("optimizer.pt", "scheduler.pt", "rng_state.pth")
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
@given(data=st.data())
def test_a_file_that_is_a_link_or_leads_out_of_the_checkpoint_is_damage(copied, data):
    around, newest = copied()
    manifest = json.loads((newest / checkpoint.MANIFEST).read_text())
    name = data.draw(st.sampled_from(sorted(manifest["files"])))
    kind = data.draw(st.sampled_from(("link", "loop", "folder", "name", "all")))
    if kind == "name":
        other = data.draw(
            st.sampled_from(("../../secret", "/etc/passwd", "a\0b", "x" * 5_000, "..", "a/../../run", ""))
        )
        (around / "secret").write_bytes((newest / name).read_bytes())
        manifest["files"][other] = manifest["files"][name]
        (newest / checkpoint.MANIFEST).write_text(json.dumps(manifest))
    elif kind == "all":
        newest.rename(around / "elsewhere")
        newest.symlink_to(around / "elsewhere")
        assert newest not in checkpoint.listed(newest.parent)
    else:
        (newest / name).rename(around / "secret")
        (newest / name).symlink_to({"link": around / "secret", "loop": newest / name, "folder": around}[kind])
    with guarded(around):
        assert checkpoint.damage(newest)


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


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", [*STATES, "training_args.bin"])
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


INSIDE = ("model", "results.json", "run.json", ".staging-2", "checkpoint-2", "model/config.json", "tokens/train/a.bin")


@cases(30)
@given(
    name=st.sampled_from(INSIDE), target=st.sampled_from(("file", "folder", "/etc/passwd", "/no/such", "..", "../.."))
)
def test_an_output_folder_with_a_link_out_of_it_is_refused_before_anything_is_written(tmp_path_factory, name, target):
    around = tmp_path_factory.mktemp("around")
    params = Parameters(output_dir=str(around / "run"))
    RunFolder.claim("test", params)
    (around / "folder").mkdir()
    (around / "file").write_text("mine")
    link = around / "run" / name
    link.parent.mkdir(parents=True, exist_ok=True)
    link.unlink(missing_ok=True)
    link.symlink_to(around / target if target in ("file", "folder") else target)
    with guarded(around, "output_dir=") as refusal:
        RunFolder.claim("test", params)
    inside = Path(os.path.realpath(link)).is_relative_to(around / "run")
    assert (refusal and (inside or f"{link} leads out of it" in refusal[0])) or (inside and name != "run.json")


def test_a_link_within_the_output_folder_is_nobodys_business(tmp_path):
    params = Parameters(output_dir=str(tmp_path / "run"))
    RunFolder.claim("test", params)
    (tmp_path / "run" / "latest").symlink_to("run.json")
    assert RunFolder.claim("test", params).path == tmp_path / "run"
