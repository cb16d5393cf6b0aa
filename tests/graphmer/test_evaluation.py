"""Ranks of held-out tails against a loop, and the table of the verdict."""

import pytest

from helpers.graphmer import evaluation
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.graph.build import load_graph
from helpers.graphmer.graph.knowledge_graph import read_ontology
from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.training import load_corpus
from helpers.machine import runtime
from tests.graph_run import SMALL
from tests.workloads import machine_by_hand

GIB = 2**30

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def corpus(library):
    return load_corpus(load_graph(library), override(read_configuration("rtx3050"), SMALL))


def test_ranks_leave_other_right_answers_out_and_share_equal_scores(corpus):
    def length(heads, relation, candidates):
        entities = corpus.train.encoded.entities
        return [[len(entities[number].id) % 5 for number in candidates]] * len(heads)

    triples = evaluation.draw_triples(corpus, 30)
    found = evaluation.rank_tails(length, corpus, triples)
    graph = corpus.graph
    for rank, (head, relation, tail) in zip(found, triples, strict=True):
        types = read_ontology()[relation].range
        right = {t.tail for t in graph.triples if (t.head, t.relation) == (head, relation)}
        tails = {t.tail for t in triples if t.relation == relation}
        others = [
            name for name, one in graph.entities.items() if name not in right and (one.type in types or name in tails)
        ]
        above = sum(len(name) % 5 > len(tail) % 5 for name in others)
        equal = sum(len(name) % 5 == len(tail) % 5 for name in others)
        assert 1 / rank == pytest.approx(above + (equal + 2) / 2)


# ---- plan and trainer of a configuration


def test_a_device_that_is_not_there_is_refused():
    cpu, tpu = runtime.detect(False, precision="fp32"), machine_by_hand("xla", "TPU v5e")
    for where, changes, message in (
        (cpu, "hardware.device=cuda", r"hardware.device='cuda': this run is on .*choose that runtime"),
        (cpu, "hardware.tpu_cores=8", "hardware.tpu_cores=8: the machine has 1"),
        (tpu, "hardware.num_workers=2", "hardware.num_workers=2: forked loaders hang on a TPU; give 0"),
    ):
        with pytest.raises(ValueError, match=message):
            GraphParameters(changes=changes, base_model="sample").configuration(where)
