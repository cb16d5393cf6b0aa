"""Ranks of held-out tails against a loop, and the table of the verdict."""

import numpy as np
import pytest

from helpers.graphmer import evaluation, search_training
from helpers.graphmer.configuration import override, read_configuration
from helpers.graphmer.graph.build import load_graph
from helpers.graphmer.graph.knowledge_graph import read_ontology
from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.training import load_corpus, make_plan, new_model, new_trainer, run_recipe
from helpers.machine import runtime
from helpers.show.intervals import bootstrap
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
        tails = {t.tail for t in graph.triples if t.relation == relation}
        others = [
            name for name, one in graph.entities.items() if name not in right and (one.type in types or name in tails)
        ]
        above = sum(len(name) % 5 > len(tail) % 5 for name in others)
        equal = sum(len(name) % 5 == len(tail) % 5 for name in others)
        assert 1 / rank == pytest.approx(above + (equal + 2) / 2)


def test_words_beat_an_untrained_encoder_and_a_constant_gains_nothing(corpus):
    triples = evaluation.draw_triples(corpus, 40)
    model = new_model(override(read_configuration("rtx3050"), SMALL), corpus)
    scorers = {"words": evaluation.score_words(corpus), "untrained": evaluation.score_encoder(model, corpus)}
    ranks = {name: evaluation.rank_tails(scorer, corpus, triples).mean() for name, scorer in scorers.items()}
    constant = evaluation.rank_tails(lambda heads, relation, names: np.zeros((len(heads), len(names))), corpus, triples)
    assert ranks["words"] > 2 * ranks["untrained"] and constant.mean() < 0.1


def test_the_verdict_has_the_difference_of_means_and_an_interval_over_groups():
    rows = {"words": [0.5, 0.5, 1.0, 1.0] * 9, "trained": [1.0] * 36}
    groups = [f"{place % 3}{place // 4}" for place in range(36)]  # places 0 and 3 of each four are one group
    words, trained = search_training.verdict(rows, groups, "trained")
    assert (words["row"], words["MRR"], trained["trained above it (95 %)"]) == ("words", 0.75, "")
    interval = bootstrap(np.mean, 1 - np.array(rows["words"]), groups=groups)
    assert interval.items == 27 and words["trained above it (95 %)"] == str(interval)
    few, _ = search_training.verdict({"words": [0.5, 1.0], "trained": [1.0, 1.0]}, ["a", "b"], "trained")
    assert few["trained above it (95 %)"] == "+0.250 (too few for an interval: 2)"


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


def test_the_batch_is_micro_batch_by_accumulation_by_devices():
    sizes = {"training_data.micro_batch_size": 4, "run.gradient_accumulation_steps": 3}
    assert override(read_configuration("rtx3050"), sizes).batch_size(2) == 24


def test_a_configuration_that_is_named_keeps_its_micro_batch_whatever_a_card_has_room_for():
    card = machine_by_hand("cuda", "NVIDIA A100-SXM4-40GB", memory=40 * GIB)
    for config, micro_batch in (("rtx3050", 16), ("auto", 0)):
        configuration = GraphParameters(base_model="sample", config=config).configuration(card)
        recipe = run_recipe(configuration, 1000, card)
        assert (recipe.batch_size, recipe.micro_batch_size) == (32, micro_batch)
    params = GraphParameters(base_model="sample", batch_size=20)
    assert params.configuration(card).batch_size(1) == 20


@pytest.mark.parametrize(
    ("kind", "name", "memory", "again"),
    [
        ("cuda", "Tesla T4", 15 * GIB, True),
        ("cuda", "NVIDIA GeForce RTX 3050", 8 * GIB, True),
        ("cuda", "NVIDIA A100-SXM4-40GB", 40 * GIB, False),
        ("xla", "TPU v5e", 16 * GIB, False),
    ],
)
def test_layers_are_computed_again_on_a_gpu_of_up_to_16_gb(kind, name, memory, again):
    there = machine_by_hand(kind, name, memory=memory)
    configuration = GraphParameters(base_model="sample").configuration(there)
    assert run_recipe(configuration, 1000, there).gradient_checkpointing is again


def test_keys_of_the_optimizer_reach_the_trainer(corpus, tmp_path):
    changes = {"optimizer.betas": [0.8, 0.9], "optimizer.eps": 1e-6, "optimizer.scheduler.name": "linear"}
    changes |= {"run.seed": 5, "run.deterministic": False}
    changes |= {"run.log_interval": 3, "run.eval_interval_steps": 2, "run.save_interval_steps": 4}
    asked = override(read_configuration("rtx3050"), SMALL | changes | {"optimizer.weight_decay": 0.3})
    model, machine = new_model(asked, corpus), runtime.detect(False, precision="fp32")
    trainer = new_trainer(model, corpus, asked, make_plan(asked, model, corpus, machine), machine, tmp_path)
    args = trainer.args
    assert (args.adam_beta1, args.adam_beta2, args.adam_epsilon, args.weight_decay) == (0.8, 0.9, 1e-6, 0.3)
    assert (args.lr_scheduler_type.value, args.warmup_steps, args.seed) == ("linear", 2, 5)
    assert (args.logging_steps, args.eval_steps, args.save_steps, args.max_steps) == (3, 2, 4, 12)
    assert not trainer.engine.repeats
    assert len(trainer.train_dataset) == 12 * 8
