"""Repositories as people have them: each is read and split by what fits its size; the smallest is trained on and measured."""

from pathlib import Path

import pytest
import torch

from helpers.graphmer.configuration import read_configuration
from helpers.graphmer.graph.repository import load_graph
from helpers.graphmer.graph.sources import MOST_BYTES
from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.training import Corpus, load_corpus, new_model
from helpers.graphmer.workload import planned
from helpers.plan.machines import machine, runtime_of
from helpers.plan.workloads import Asked
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


@pytest.mark.parametrize(("name", "batch", "micro_batch"), [("CPU", 24, 24), ("RTX 3050", 32, 0), ("v5e-8", 32, 0)])
def test_the_planner_counts_the_job_that_a_machine_gets(name, batch, micro_batch, library):
    """Batch, lengths and every tensor of it, and the model: those of the planner are those that a run on these sources has."""
    here = runtime_of(machine(name))
    recipe, step = planned(Asked(), here)
    written = GraphParameters.defaults().configuration(here)
    assert recipe.batch_size == written.batch_size(here.device_count) == batch
    assert recipe.micro_batch_size == micro_batch  # 0: the planner's, as are recomputed activations
    assert recipe.gradient_checkpointing is (False if name == "CPU" else None)
    assert step.length == recipe.sequence_length == written.stages()[-1][1]
    corpus = corpus_of(library, written)
    for _, length in written.stages():
        chains = corpus.train.with_roots(written.roots(length))
        real, counted = chains.collate([chains[0], chains[1]]), step.batch(2, length)
        assert {field: (each.shape, each.dtype) for field, each in counted.items()} == {
            field: (each.shape, each.dtype) for field, each in real.items()
        }
    sizes = {"vocab_size": 0, "antisymmetric_relations": [], "acyclic_relations": []}
    with torch.device("meta"):
        model = new_model(written, corpus)
    assert model.config.to_dict() | sizes == step.model.config.to_dict() | sizes
