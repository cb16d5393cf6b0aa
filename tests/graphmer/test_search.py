"""Search in words: pairs of docstrings, BM25 against its formula, what is found, and a tuned encoder elsewhere and after a kill."""

import json
import subprocess
from collections import Counter
from pathlib import Path

import pytest
import torch
from datasets import Dataset

from helpers.graphmer.graph.index import read_index
from helpers.graphmer.pairs import hold_out, in_batches, pairs, read_file
from helpers.graphmer.search import search, words
from helpers.graphmer.search_training import freeze_lower_half
from tests.harness import cpu_here, isolated, run, write

pytestmark = pytest.mark.once

SOURCE = '''
"""A module."""
import os


class Cache:
    """Keeps answers until they are too old."""

    size = 3

    @property
    def full(self):
        """Whether nothing more can be kept here."""
        return len(self.kept) == self.size

    def drop_oldest(self):
        # no docstring
        del self.kept[0]


def read_settings(path):
    """Reads the settings of a program from a file.

    And more.
    """
    return open(path).read()


def short():
    """See above."""
'''


@pytest.fixture
def package(tmp_path):
    test = 'def test_it():\n    """Tests that it is as it should be."""\n'
    return write(tmp_path / "shop", {"__init__.py": SOURCE, "broken.py": "def f(:\n", "tests/test_shop.py": test})


def test_code_of_a_definition_has_no_docstring_and_no_methods_bodies(package):
    found = {one.name: one for one in read_file(package / "__init__.py", package)}
    names = ("Cache", "Cache.full", "Cache.drop_oldest", "read_settings", "short")
    assert found.keys() == {f"shop.{name}" for name in names}
    assert found["shop.read_settings"].code == "def read_settings(path):\n    return open(path).read()"
    assert found["shop.read_settings"].sentence == "Reads the settings of a program from a file."
    assert found["shop.Cache.full"].code.startswith("@property\ndef full(self):\n    return")
    assert "size = 3" in found["shop.Cache"].code and "del self" not in found["shop.Cache"].code
    assert "Keeps" not in found["shop.Cache"].code and "def drop_oldest" in found["shop.Cache"].code


def test_pairs_are_of_sentences_that_ask_something_and_none_is_there_twice(package):
    rows = pairs([package, package])
    assert sorted(rows["question"]) == [
        "Keeps answers until they are too old.",
        "Reads the settings of a program from a file.",
        "Whether nothing more can be kept here.",
    ]
    assert all(question not in code for question, code in zip(rows["question"], rows["code"], strict=True))
    assert set(rows["package"]) == {"shop"}


def some_rows(sizes: dict[str, int]) -> Dataset:
    return Dataset.from_list(
        [
            {"question": f"{name} {n}", "code": f"code of {name} {n}", "package": name}
            for name, count in sizes.items()
            for n in range(count)
        ]
    )


def test_batches_are_of_one_package_each_and_hold_no_pair_twice():
    rows = some_rows({"a": 40, "b": 90, "c": 3, "d": 9})
    found = in_batches(rows, batch_size=10, steps=60, seed=0)
    batches = [found["question"][first : first + 10] for first in range(0, 600, 10)]
    owners = [{question.split()[0] for question in batch} for batch in batches]
    assert all(len(set(batch)) == 10 for batch in batches)
    assert all(owner in ({"a"}, {"b"}) or owner <= {"c", "d"} for owner in owners)
    counts = Counter(min(owner) for owner in owners)
    assert counts["b"] > counts["a"] > 0 < counts["c"] + counts["d"]
    assert found["question"] == in_batches(rows, batch_size=10, steps=60, seed=0)["question"]
    with pytest.raises(ValueError, match="batch_size=200: there are only 142 pairs"):
        in_batches(rows, batch_size=200, steps=1, seed=0)


def test_packages_that_choose_or_test_are_in_no_training_pair():
    rows = some_rows({"mine": 50, "a": 60, "b": 120, "c": 45, "d": 10})
    parts = hold_out(rows, dev=1, test=1)
    packages = [set(part["package"]) for part in parts]
    assert not packages[0] & packages[1] and not packages[0] & packages[2] and not packages[1] & packages[2]
    assert {"mine", "d"} <= packages[0] and all(len(part) in (45, 60, 100) for part in parts[1:])
    with pytest.raises(ValueError, match="only 3 other packages have 40 docstrings, and 3 are needed to test"):
        hold_out(rows, dev=1, test=2)


def test_words_of_names_and_prose_meet():
    assert words("parseHTTPHeaders") == words("parsed http header")
    assert words("connection_pool2") == [*words("connects pools"), "2"]
    assert words("rate") == words("rating") != words("read")
    assert words("used using") == ["used", "using"]


def test_the_upper_half_of_the_layers_learns():
    layers = torch.nn.ModuleList(torch.nn.Linear(1, 1) for _ in range(4))
    model = torch.nn.Sequential(torch.nn.Embedding(2, 1), layers)
    freeze_lower_half(model)
    assert [part.weight.requires_grad for part in (model[0], *layers)] == [False, False, False, True, True]


def test_functions_methods_and_classes_are_found_with_their_place(package, tmp_path):
    (package / "broken.py").unlink()
    for question, name in (
        ("read the settings from a file", "shop.read_settings"),
        ("drop what is oldest", "shop.Cache.drop_oldest"),
        ("keeps answers until they are old", "shop.Cache"),
    ):
        found = search(read_index(package.parent), question)
        assert found[0].name == name
        path, _, line = found[0].defined.partition(":")
        assert name.rpartition(".")[2] in (package.parent / path).read_text().splitlines()[int(line) - 1]
    with pytest.raises(FileNotFoundError, match="no saved SentenceTransformer"):
        search(read_index(package.parent), "read", model=tmp_path)


@pytest.mark.parametrize("question", ["", "?!", "чтение файла", "读取文件", "\ud800", "zzz"])
def test_a_question_that_nothing_fits_has_no_hit_in_any_script(package, question):
    assert search(read_index(package), question) == []


# ---- the tuned encoder


RUN = """
import json, os, signal, sys
import torch
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from transformers import TrainerCallback
from helpers.graphmer import search_training as training
from helpers.graphmer.graph.index import read_index
from helpers.graphmer.pairs import in_batches, pairs
from helpers.machine import runtime
from helpers.train.sentence_encoder import load_sentence_encoder
torch.set_num_threads(1)
rows = pairs([sys.argv[1]])
model = load_sentence_encoder("sample", texts=rows["code"], max_seq_length=64)
training.freeze_lower_half(model)
machine = runtime.detect(False, "fp32")
plan = training.search_plan(model, 4, machine, batch_size=8, max_steps=4)
batches = in_batches(rows, batch_size=8, steps=4, seed=0)
loss = MultipleNegativesRankingLoss(model)
trainer = training.new_search_trainer(model, batches, batches.select(range(8)), loss, plan, machine, sys.argv[2], seed=0)

class Kill(TrainerCallback):
    def on_pre_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step + 1 == int(sys.argv[3]):
            os.kill(os.getpid(), signal.SIGKILL)

trainer.add_callback(Kill())
trainer.train()
trainer.save_model(sys.argv[2] + "/model")
print("LOSSES " + json.dumps([each["loss"] for each in trainer.state.log_history if "loss" in each]))
"""
ELSEWHERE = """
import sys
try:
    import helpers
    raise SystemExit("helpers can be imported: this is not elsewhere")
except ModuleNotFoundError:
    pass
from sentence_transformers import SentenceTransformer
model = SentenceTransformer(sys.argv[1], device="cpu")
codes = ["def read(path):\\n    return open(path).read()", "def add(a, b):\\n    return a + b"]
print(model.similarity(model.encode(["reads a file"]), model.encode(codes)).shape, model.max_seq_length)
"""


def trained(sources: Path, folder: Path, kill_step: int = 0) -> subprocess.CompletedProcess:
    return run("-c", RUN, sources, folder, kill_step)


@pytest.mark.slow
def test_a_killed_search_training_ends_the_same_and_loads_elsewhere(library, tmp_path):
    cpu_here()
    whole = trained(library, tmp_path / "whole")
    assert whole.returncode == 0, whole.stderr[-3000:]
    assert trained(library, tmp_path / "killed", kill_step=3).returncode < 0
    resumed = trained(library, tmp_path / "killed")
    assert resumed.returncode == 0, resumed.stderr[-3000:]
    losses = [json.loads(one.stdout.rsplit("LOSSES ", 1)[1]) for one in (whole, resumed)]
    assert losses[0] == losses[1]
    weights = [(tmp_path / name / "model/model.safetensors").read_bytes() for name in ("whole", "killed")]
    assert weights[0] == weights[1]
    output = isolated(ELSEWHERE, tmp_path / "whole/model", folder=tmp_path)
    assert output.split() == ["torch.Size([1,", "2])", "64"]
    assert not [*(tmp_path / "whole/model").rglob("*.bin")]
    found = search(read_index(library), "decode a JSON document", model=tmp_path / "whole/model")
    assert len(found) == 5 and torch.isfinite(torch.tensor([one.score for one in found])).all()
