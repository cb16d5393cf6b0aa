"""Repositories as people have them: each is read and split by what fits its size; the smallest is trained on and measured."""

import email
import json
import shutil
from pathlib import Path

import pytest
import torch

from helpers.graphmer import evaluation
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.graph.extraction import load_graph
from helpers.graphmer.graph.sources import MOST_BYTES
from helpers.graphmer.parameters import profile
from helpers.graphmer.training import Corpus, load_corpus, make_plan, new_model, new_trainer
from helpers.graphmer.workload import planned
from helpers.machine import runtime
from helpers.plan.machines import machine, runtime_of
from helpers.plan.workloads import Asked
from tests.graph_run import SMALL

from .batches import library

pytestmark = pytest.mark.once

LIBRARY = Path(json.__file__).parents[1]
SCRIPTS = (
    "argparse", "bisect", "calendar", "cmd", "csv", "fnmatch", "getopt", "heapq", "pprint", "queue", "shlex", "sched",
)  # fmt: skip


def one_package(folder: Path) -> None:
    shutil.copytree(Path(email.__file__).parent, folder / "email", ignore=shutil.ignore_patterns("__pycache__"))


def five_modules(folder: Path) -> None:
    shutil.copytree(Path(json.__file__).parent, folder / "json", ignore=shutil.ignore_patterns("__pycache__"))


def scripts(folder: Path) -> None:
    for name in SCRIPTS:
        shutil.copy(LIBRARY / f"{name}.py", folder)


def one_script(folder: Path) -> None:
    shutil.copy(LIBRARY / "argparse.py", folder)


KINDS = {
    one_package: "held out by module (2",
    five_modules: "held out by module (5 of them): by package they would be too few or too large",
    scripts: "held out by package (12 of them)",
    one_script: "held out by definition (",
}


def unreadable(folder: Path) -> None:
    (folder / "old.py").write_text("print 'of Python 2'\nexec 'x' in {}\n")
    (folder / "broken.py").write_text("def f(:\n    pass\n")
    (folder / "data.py").write_text("TABLE = [\n" + "    'x' * 40,\n" * (10_000_000 // 14) + "]\n")
    (folder / "notes.ipynb").write_text("{}")


def corpus_of(folder: Path, configuration) -> Corpus:
    return load_corpus(load_graph(folder), str(folder), configuration)


@pytest.mark.parametrize("kind", KINDS, ids=[kind.__name__ for kind in KINDS])
def test_a_repository_of_any_shape_is_split_by_what_fits(kind, tmp_path):
    kind(tmp_path)
    unreadable(tmp_path)
    corpus = corpus_of(tmp_path, override(read_configuration("cpu"), SMALL))
    assert corpus.splits.said.startswith(KINDS[kind])
    assert {each["path"] for each in corpus.graph.manifest["failed"]} == {"old.py", "broken.py", "data.py"}
    total = sum(map(len, (corpus.splits.train, corpus.splits.validation, corpus.splits.test)))
    for part in (corpus.splits.validation, corpus.splits.test):
        assert 0.02 * total < len(part) <= 0.15 * total


def test_one_script_is_enough_to_train_on_and_to_measure(tmp_path):
    one_script(tmp_path)
    configuration = override(read_configuration("cpu"), SMALL | {"run.max_steps": 2})
    corpus, here = corpus_of(tmp_path, configuration), runtime.detect(False, precision="fp32")
    model = new_model(configuration, corpus)
    plan = make_plan(configuration, model, corpus, here)
    trainer = new_trainer(model, corpus, configuration, plan, here, tmp_path / "run")
    trainer.train()
    triples = evaluation.asked_triples(corpus, 20)
    ranks = evaluation.reciprocal_ranks(evaluation.Encoder(trainer.model, corpus), corpus, triples)
    assert 0 < ranks.mean() <= 1


def test_too_little_source_says_how_little(tmp_path):
    (tmp_path / "a.py").write_text("def f(): pass\n")
    with pytest.raises(ValueError, match="1 triples, too few to hold some out by package or module or definition"):
        corpus_of(tmp_path, read_configuration("cpu"))


def test_sources_of_which_none_can_be_read_say_why(tmp_path):
    (tmp_path / "old.py").write_text("print 'x'\n")
    (tmp_path / "long.py").write_bytes(b"#" * (MOST_BYTES + 1))
    with pytest.raises(
        ValueError, match=r"none of its 2 files can be read.*long.py \(.*1,000,000 bytes.*old.py \(line 1"
    ):
        load_graph(tmp_path)


ON = {"cpu": "CPU", "t4": "T4", "rtx3050": "RTX 3050", "a100": "A100 40GB", "tpu_v5e_8": "v5e-8"}


@pytest.mark.parametrize("name", ON)
def test_the_planner_counts_the_job_that_a_profile_asks_for(name, tmp_path):
    """Batch, lengths and every tensor of it, and the model: those of the planner are those that a run on these sources has."""
    here = runtime_of(machine(ON[name]))
    recipe, step = planned(Asked(model=name), here)
    written = read_configuration(name)
    assert profile(here) == name
    assert recipe.batch_size == written.batch_size(here.device_count)
    assert recipe.micro_batch_size == written.training_data.micro_batch_size
    assert recipe.gradient_checkpointing == written.checkpointing.activation_checkpointing
    assert step.length == recipe.sequence_length == written.stages()[-1][1]
    corpus = corpus_of(library(tmp_path / "library"), written)
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
