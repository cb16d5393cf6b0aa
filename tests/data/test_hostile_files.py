"""Readers of a user's files and models against what is broken and what would run code."""

import json
import os
import shutil
import struct
from pathlib import Path

import pytest
import torch

from helpers.graphmer.graph.index import read_index
from helpers.legal.data import load_records
from helpers.lejepa import data as lejepa_data
from helpers.reservoir.data import load_texts
from helpers.train.sentence_encoder import load_sentence_encoder
from helpers.tuning.data import load_texts as load_labelled
from helpers.tuning.parameters import TuningParameters
from tests.harness import write
from tests.hostile import MARKER, payload

pytestmark = pytest.mark.once

LINES = [
    {
        "text": f"story {i} of ß words",
        "label": f"l{i % 2}",
        "anchor": f"question {i}",
        "positive": f"answer {i} ß",
        "question": f"ß {i}?",
        "answer": f"{i}",
    }
    for i in range(30)
]
READERS = {
    "stories": lambda path: load_texts(str(path), num_texts=0, seed=0),
    "texts": lambda path: lejepa_data.load(str(path)),
    "records": lambda path: load_records(str(path), seed=0),
    "labelled": lambda path: load_labelled(TuningParameters.defaults().model_copy(update={"data_source": str(path)})),
}
FOLDER_READERS = READERS | {"code": lambda path: read_index(path)}
JUNK = {  # name -> content: no room reads one of them
    "__MACOSX/._notes.txt": b"\0\5\x16\7 JUNK",
    ".git/config.py": b"def junk(): JUNK",
    ".trash/old.txt": b"JUNK\n\nJUNK",
    ".ipynb_checkpoints/train-checkpoint.csv": b"text,label\nJUNK,l0\n",
    "node_modules/left/pad.py": b"def junk(): JUNK",
    "outputs/run/run.json": b'{"notebook": "n", "parameters": {}}',
    "outputs/run/train.jsonl": b'{"text": "JUNK", "label": "l0", "question": "JUNK", "answer": "l0"}',
    "desktop.ini": b"JUNK",
    "~$notes.txt": b"JUNK",
    "latin1.txt": "J\xfcNK JUNK\n\nJUNK".encode("latin-1"),
    "latin1.py": "def junk(): 'J\xfcNK'".encode("latin-1"),
    "nul.md": b"JUNK\0",
    "old-train.csv": "text,label,question,answer\nJ\xfcNK,l0,JUNK,l0\n".encode("utf-16-le"),
    "bad-train.jsonl": b'{"text": "JUNK", "label": "l0", "question": "JUNK", "answer": "l0"\n',
    "encrypted.zip": b"PK JUNK",
    "picture.png": b"\x89PNG JUNK",
}
LEFT_OUT = (
    ".git",
    ".trash",
    "'run': 1",
    "desktop.ini",
    "~$notes.txt",
    ".png",
    "outside.txt",
    "up",
)
NAMED = {  # beside these
    "stories": ("latin1.txt", "nul.md"),
    "texts": ("latin1.txt", "nul.md", "old-train.csv"),
    "records": ("old-train.csv", "'.txt': "),
    "labelled": ("old-train.csv", "'.txt': "),
    "code": ("latin1.py",),
}
BROKEN_LINES = (
    b"\x00" * 50,
    b'{"text": "\xff\xfe"}',
    b"[" * 100_000,
    b'{"text": ' + b"9" * 5_000 + b', "label": "l0"}',
    b'{"text": "\\ud800", "anchor": "\\ud800", "positive": "\\udfff", "question": "\\ud800", "answer": "yes"}',
    b'{"text": "never closed',
    b"null",
    b'{"text": NaN, "label": Infinity, "anchor": 1e999, "positive": {}, "question": [], "answer": []}',
    b"{}",
    b'"' + b"a," * 70_000,
    b"\r\r\n\x0b\x0c\x1c\x85",
    b"\xef\xbb\xbf{}",
    b"x" * 10**7,
)


JSONL = b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in LINES)


@pytest.mark.parametrize("name", READERS)
def test_broken_lines_stop_no_run(tmp_path, name):
    (tmp_path / "mine.jsonl").write_bytes(JSONL + b"\n".join(BROKEN_LINES))
    READERS[name](tmp_path / "mine.jsonl")


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("content", [b"", b"\0" * 300, JSONL[:90], JSONL.decode().encode("cp037", "replace")])
def test_a_file_of_nothing_useful_is_refused_by_name(tmp_path, name, content):
    (tmp_path / "mine.jsonl").write_bytes(content)
    with pytest.raises(ValueError, match=r"mine\.jsonl"):
        READERS[name](tmp_path / "mine.jsonl")


@pytest.mark.parametrize("name", FOLDER_READERS)
def test_a_folder_of_junk_is_read_without_it_and_the_unread_is_named(tmp_path, name, monkeypatch, capsys):
    """The folder is called as a builder of the library datasets is, beside a private file, and given by this name alone."""
    folder, readable = tmp_path / "text", {f"story{i}.txt": f"Story {i} of größe.".encode() for i in range(30)}
    readable |= {f"Tag {i}.md": f"# Heading of day {i}\n\nDay {i} was long.".encode() for i in range(30)}
    readable |= {"m.py": b"def f():\n    return g()\n\n\ndef g():\n    return 1\n", "train.jsonl": JSONL}
    write(folder, readable | JUNK)
    (tmp_path / "private.txt").write_text("JUNK\n\n" * 40)
    (folder / "outside.txt").symlink_to(tmp_path / "private.txt")
    (folder / "train-loop.csv").symlink_to("train-loop.csv")
    (folder / "up").symlink_to(tmp_path)
    (folder / "device.py").symlink_to("/dev/zero")
    (folder / "loop.py").symlink_to("loop.py")
    os.mkfifo(folder / "pipe.py")
    monkeypatch.chdir(tmp_path)
    data = FOLDER_READERS[name](Path("text"))
    assert "JUNK" not in repr(vars(data))
    printed = capsys.readouterr().out + repr(vars(data))
    left_out = () if name == "code" else LEFT_OUT
    assert [file for file in (*NAMED[name], *left_out) if file not in printed] == []


@pytest.mark.parametrize("name", READERS)
def test_a_pipe_or_a_device_is_refused_instead_of_read_for_ever(tmp_path, name):
    os.mkfifo(pipe := tmp_path / "mine.jsonl")
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(ValueError, match=str(path)):
            READERS[name](path)


# ---- models of others


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    """A folder with a model that both rooms load."""
    from tests.training_run import DEFAULTS, build_model

    folder = tmp_path_factory.mktemp("model") / "model"
    build_model(DEFAULTS | {"model": "llama"}).save_pretrained(folder)
    return folder


def weights_that_run(folder: Path, around: Path) -> None:
    (folder / "model.safetensors").unlink()
    torch.save({"model.embed_tokens.weight": payload(around)}, folder / "pytorch_model.bin")


def code_beside(folder: Path, around: Path) -> None:
    (folder / "mine.py").write_text(
        f"import pathlib\npathlib.Path({str(around / MARKER)!r}).touch()\nclass Mine: pass\n"
    )
    names = dict.fromkeys(("AutoConfig", "AutoModel", "AutoTokenizer", "AutoModelForCausalLM"), "mine.Mine")
    own = {"auto_map": names, "model_type": "mine"}
    (folder / "config.json").write_text(json.dumps(json.loads((folder / "config.json").read_text()) | own))
    listed = [{"idx": 0, "name": "0", "path": "", "type": "mine.Mine"}]
    (folder / "modules.json").write_text(json.dumps(listed))


def no_tensors(folder: Path, around: Path) -> None:
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", 2**60) + b"{}")


@pytest.mark.parametrize("harm", [weights_that_run, code_beside, no_tensors], ids=lambda harm: harm.__name__)
def test_no_code_of_a_model_runs_and_one_that_is_none_is_refused_by_name(model, tmp_path, harm):
    shutil.copytree(model, folder := tmp_path / "mine")
    harm(folder, tmp_path)
    with pytest.raises(ValueError, match="base_model="):
        load_sentence_encoder(str(folder))
    assert not (tmp_path / MARKER).exists()
