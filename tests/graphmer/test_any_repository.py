"""Repositories as people have them: each is read and split by what fits its size; the smallest is trained on and measured."""

from pathlib import Path

import pytest

from helpers.graphmer.configuration import read_configuration
from helpers.graphmer.graph.repository import load_graph
from helpers.graphmer.graph.sources import MOST_BYTES
from helpers.graphmer.training import Corpus, load_corpus
from tests.harness import write

pytestmark = pytest.mark.once


def corpus_of(folder: Path, configuration) -> Corpus:
    return load_corpus(load_graph(folder), str(folder), configuration)


def test_too_little_source_says_how_little(tmp_path):
    (tmp_path / "a.py").write_text("def f(): pass\n")
    with pytest.raises(ValueError, match="1 triples, too few to hold some out by package or module or definition"):
        corpus_of(tmp_path, read_configuration("rtx3050"))


def test_sources_of_which_none_can_be_read_say_why(tmp_path):
    write(tmp_path, {"old.py": "print 'x'\n", "long.py": b"#" * (MOST_BYTES + 1)})
    with pytest.raises(
        ValueError, match=r"none of its 2 files can be read.*long.py \(.*1,000,000 bytes.*old.py \(line 1"
    ):
        load_graph(tmp_path)
