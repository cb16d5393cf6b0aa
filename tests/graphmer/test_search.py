"""Search in words: pairs of docstrings, BM25 against its formula, what is found, and with a saved encoder."""

from collections import Counter

import numpy as np
import pytest
import torch
from datasets import Dataset

from helpers.graphmer.graph.index import read_index
from helpers.graphmer.pairs import hold_out, in_batches, pairs, read_file
from helpers.graphmer.search import search, words
from helpers.graphmer.search_training import freeze_lower_half
from helpers.train.sentence_encoder import load_sentence_encoder
from tests.harness import write

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


def test_a_saved_encoder_orders_all_definitions(package, tmp_path):
    load_sentence_encoder("sample", texts=[SOURCE]).save_pretrained(str(tmp_path / "model"))
    (package / "broken.py").unlink()
    found = search(read_index(package), "nowhere in the sources", model=tmp_path / "model")
    assert len(found) == 5 and np.isfinite([one.score for one in found]).all()
