"""Models, tokenisers and checkpoints that somebody else made: nothing in them runs, and what is wrong is said."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from helpers.legal.model import load_model, sample_model, sample_tokenizer
from helpers.legal.parameters import LegalParameters
from helpers.lejepa.model import load_backbone
from helpers.machine import runtime
from helpers.reservoir.tokens import load_tokenizer
from helpers.tuning.classifier import load_classifier

from .hostile import MARKER, cases, guarded, payload

pytestmark = pytest.mark.once

EXABYTES = 2**60
CODE = "import pathlib\npathlib.Path({marker!r}).touch()\nclass Mine: pass\n"
HUGE = {"dtype": "F32", "shape": [2**31, 2**29], "data_offsets": [0, EXABYTES * 4]}
HEADERS = {  # of a safetensors file: length, content
    "claims 2^60 bytes": (EXABYTES, b"{}"),
    "claims more than there is": (10_000, b"{}"),
    "no JSON": (3, b"\x00\xff{"),
    "nested too deep": (100_000, b"[" * 100_000),
    "no object": (2, b"[]"),
    "a tensor of exabytes": (len(json.dumps({"a": HUGE})), json.dumps({"a": HUGE}).encode()),
    "negative offsets": (61, b'{"a":{"dtype":"F32","shape":[1],"data_offsets":[-4, 0]}}     '),
    "shape and bytes differ": (61, b'{"a":{"dtype":"F32","shape":[9],"data_offsets":[0, 4]}}      ' + b"\0" * 4),
    "unknown dtype": (61, b'{"a":{"dtype":"PKL","shape":[1],"data_offsets":[0, 4]}}      ' + b"\0" * 4),
    "empty": (0, b""),
}


def header(path: Path, kind: str) -> None:
    length, content = HEADERS[kind]
    path.write_bytes(struct.pack("<Q", length) + content)


def saved(path: Path, value: object, form: str) -> None:
    """`value` as torch.save writes it, as it wrote it before 1.6, or as a bare pickle."""
    if form == "bare":
        path.write_bytes(pickle.dumps(value))
    else:
        torch.save(value, path, _use_new_zipfile_serialization=form == "zip")


FORMS = ("zip", "old", "bare")


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a model that every room loads."""
    folder = tmp_path_factory.mktemp("model") / "model"
    tokenizer = sample_tokenizer()
    sample_model(len(tokenizer), tokenizer.eos_token_id, 0).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def legal(folder: Path) -> None:
    params = LegalParameters.defaults().model_copy(update={"base_model": str(folder)})
    load_model(params, runtime.detect(False, precision="fp32"))


LOADERS = {
    "legal": legal,
    "tuning": lambda folder: load_classifier(str(folder), ["a", "b"], seed=0),
    "lejepa": lambda folder: load_backbone(str(folder)),
    "tokenizer": lambda folder: load_tokenizer(str(folder), ["a story"], 300),
}


def weights_that_run(draw, folder: Path, bomb: object) -> None:
    (folder / "model.safetensors").unlink()
    saved(folder / "pytorch_model.bin", {"model.embed_tokens.weight": bomb}, draw(st.sampled_from(FORMS)))


def code_beside(draw, folder: Path, bomb: object) -> None:
    (folder / "mine.py").write_text(CODE.format(marker=str(folder.parent / MARKER)))
    kind = draw(st.sampled_from(("config", "tokenizer", "module", "activation")))
    if kind == "module":
        listed = [{"idx": 0, "name": "0", "path": "", "type": "mine.Mine"}]
        (folder / "modules.json").write_text(json.dumps(listed))
        return
    if kind == "activation":
        listed = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Dense"}]
        (folder / "modules.json").write_text(json.dumps(listed))
        dense = {"in_features": 2, "out_features": 2, "bias": True, "activation_function": "mine.Mine"}
        (folder / "config.json").write_text(json.dumps(dense))
        return
    path = folder / ("config.json" if kind == "config" else "tokenizer_config.json")
    names = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForCausalLM"), "mine.Mine")
    own = {"auto_map": names | {"AutoTokenizer": ["mine.Mine", "mine.Mine"]}}
    own |= {"model_type": "mine"} if kind == "config" else {"tokenizer_class": "Mine"}
    path.write_text(json.dumps(json.loads(path.read_text()) | own))


def adapter(draw, folder: Path, bomb: object) -> None:
    base = draw(st.sampled_from((str(folder), "../../../etc", "/no/such", "")))
    peft = {
        "peft_type": "LORA",
        "base_model_name_or_path": base,
        "task_type": "CAUSAL_LM",
        "target_modules": ["q_proj"],
    }
    (folder / "adapter_config.json").write_text(json.dumps(peft | draw(st.sampled_from(({}, {"r": -1}, {"r": 2**40})))))
    saved(folder / "adapter_model.bin", {"base_model.model.q_proj.lora_A.weight": bomb}, draw(st.sampled_from(FORMS)))


def no_tensors(draw, folder: Path, bomb: object) -> None:
    header(folder / "model.safetensors", draw(st.sampled_from(list(HEADERS))))


def misshapen(draw, folder: Path, bomb: object) -> None:
    weights = load_file(folder / "model.safetensors")
    name = draw(st.sampled_from(sorted(weights)))
    weights[name] = draw(st.sampled_from((weights[name].flatten()[:3], weights[name][None], torch.zeros(0))))
    save_file(
        {key: value.contiguous() for key, value in weights.items()}, folder / "model.safetensors", {"format": "pt"}
    )


def cut(draw, folder: Path, bomb: object) -> None:
    path = folder / draw(
        st.sampled_from(("model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"))
    )
    os.truncate(path, draw(st.integers(0, path.stat().st_size - 1)))


def wrong_settings(draw, folder: Path, bomb: object) -> None:
    name = draw(st.sampled_from(("hidden_size", "num_attention_heads", "vocab_size", "model_type", "architectures")))
    value = draw(st.sampled_from((-1, 0, 7, "$(touch x)", None, [], {}, "../../etc/passwd", 1e308, True)))
    settings = json.loads((folder / "config.json").read_text()) | {name: value}
    (folder / "config.json").write_text(json.dumps(settings))


def no_json(draw, folder: Path, bomb: object) -> None:
    name = draw(st.sampled_from(("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json")))
    content = st.sampled_from(
        (b"", b"\0" * 9, b"[" * 100_000, b"[]", b"null", b"{", "é".encode("latin-1"), b"{}", b'"a"')
    )
    (folder / name).write_bytes(draw(content))


def link(draw, folder: Path, bomb: object) -> None:
    path = folder / draw(st.sampled_from(("model.safetensors", "config.json", "tokenizer.json")))
    path.unlink()
    path.symlink_to(draw(st.sampled_from(("/etc/passwd", "/dev/null", "/no/such", path.name, "."))))


REFUSED = (weights_that_run, no_tensors, misshapen)
HARMS = (weights_that_run, code_beside, adapter, no_tensors, misshapen, cut, wrong_settings, no_json, link)


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@cases(12)
@given(data=st.data())
def test_no_code_of_a_model_runs_and_one_that_is_none_is_refused_by_name(model, tmp_path_factory, harm, data):
    around = tmp_path_factory.mktemp("around")
    shutil.copytree(model, folder := around / "mine")
    harm(data.draw, folder, payload(around))
    for name, loader in LOADERS.items():
        with guarded(around, "base_model=", "tokenizer=") as refusal:
            loader(folder)
        assert refusal or name == "tokenizer" or harm not in REFUSED
    assert not (around / MARKER).exists()
