"""The YAML of a run: what is wrong has its key, and every key has an effect."""

import pytest

from helpers.graphmer import configuration
from helpers.graphmer.chains import LeafyChains
from helpers.graphmer.configuration import FIXED, override, paths, read_configuration
from helpers.graphmer.graph.build import load_graph
from helpers.graphmer.parameters import GraphParameters
from helpers.graphmer.training import load_corpus, run_recipe
from helpers.machine.runtime import detect
from tests.workloads import cpu_by_hand

from .batches import weight_count

pytestmark = pytest.mark.once

WRONG = {
    "model:\n  hiden_size: 3\n": "c: model.hiden_size: unknown key; did you mean model.hidden_size",
    "run: {seed: 1}\noptimizer:\n  lr: -1\n": "c: optimizer.lr=-1: Input should be greater than 0",
    "run:\n  epochs: x\n": "c: run.epochs='x': Input should be a valid integer",
    "model:\n  norm: layernorm\n": "c: model.norm='layernorm': Input should be 'rmsnorm'",
    "model: {hidden_size: 100}\n": "model.hidden_size=100: must be a multiple of model.num_heads=12",
    "model: {hgat: {enabled: false}}\n": "model.hgat.enabled=False: Input should be True",
    "training_data: {max_seq_len: 100, short_to_long_curriculum: {enabled: false}}\n": "max_seq_len=100 with 24 leaves of 4 tokens leaves no room for code",
    "encoding: {max_leaves_per_sequence: 4}\n": "max_leaves_per_sequence=4: the leaves of one anchor need more room; give at least 8",
    "model: [\n": "c: not YAML (",
    "model:\n  dropout: 2\nrun:\n  epochs: 0\n": "c: run.epochs=0: Input should be greater than 0\nc: model.dropout=2: ",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items())
def test_what_is_wrong_is_said_with_its_file_its_key_and_its_value(text, message, tmp_path):
    path = tmp_path / "c"
    path.write_text(text)
    with pytest.raises(ValueError) as caught:
        read_configuration(path)
    assert message in str(caught.value).replace(str(path), "c")


def test_the_published_profile_is_the_projects_with_140_million_weights():
    found = read_configuration("published")
    assert (found.training_data.micro_batch_size, found.optimizer.betas, found.optimizer.eps) == (32, (0.9, 0.98), 1e-8)
    assert found.stages() == ((0, 512), (15_000, 768))
    assert found.objectives.mnm.hard_negatives == found.encoding.leaves_per_anchor.negatives == 2
    config = found.graphmer_config(8192, 30)
    assert config.weights().keys() == {"mlm", "mnm", "triple", "contrastive", "scoring", "antisymmetry", "acyclicity"}
    assert 135e6 < weight_count(config) < 145e6


BASE = override(
    read_configuration("published"),
    {"hardware.device": "auto", "run.mixed_precision": "fp32", "run.max_steps": 20_000},
)
OTHER = {  # what a key is changed to where twice its value, or the other truth, cannot be
    "run.mixed_precision": "bf16",
    "hardware.device": "cpu",
    "hardware.tpu_cores": {"hardware.tpu_cores": 8, "hardware.device": "tpu", "hardware.num_workers": 0},
    "model.dropout": 0.3,
    "model.decay_base": 0.3,
    "optimizer.betas": [0.8, 0.9],
    "optimizer.scheduler.name": "linear",
    "training_data.max_seq_len": {
        "training_data.max_seq_len": 900,
        "training_data.short_to_long_curriculum.schedule": [{"steps": 0, "max_seq_len": 900}],
    },
    "training_data.short_to_long_curriculum.schedule": [{"steps": 0, "max_seq_len": 768}],
    "objectives.mlm.mask_prob": 0.3,
    "objectives.mnm.mask_prob": 1.0,
    "encoding.leaves_per_anchor.negatives": 0,
    "evaluation.held_out": 0.2,
}
# Keys that corpus, plan and trainer read, see test_evaluation.py.
READ_ELSEWHERE = [
    "hardware.num_workers", "hardware.device", "hardware.tpu_cores", "optimizer.name", "optimizer.betas", "optimizer.eps",
    "optimizer.scheduler.name", "run.log_interval", "run.eval_interval_steps", "run.save_interval_steps", "run.seed",
    "run.deterministic", "run.mixed_precision", "encoding.vocab_size", "encoding.entity_tokens", "evaluation.held_out",
    "evaluation.max_triples",
]  # fmt: skip


@pytest.fixture(scope="module")
def sequence(library):
    """The first sequence that a configuration makes of a small library, as bytes."""
    corpus = load_corpus(load_graph(library), override(BASE, {"encoding.vocab_size": 1000}))
    made_of = (corpus.splits.train, corpus.train.encoded)
    return lambda of: {name: field.tobytes() for name, field in LeafyChains(*made_of, of)[0].items()}


def effects(of: configuration.Configuration) -> list:
    """What the model, the stages and the recipe are made from."""
    return [
        of.graphmer_config(8192, 30).to_dict(),
        of.stages(),
        run_recipe(of, 1000, cpu_by_hand(devices=8 if of.hardware.tpu_cores else 1)),
    ]


@pytest.mark.parametrize(
    "path", [path for path in paths(BASE) if path not in READ_ELSEWHERE and not path.endswith(FIXED)]
)
def test_every_key_changes_the_model_the_sequences_or_the_recipe(path, sequence):
    value = BASE
    for name in path.split("."):
        value = getattr(value, name)
    change = OTHER.get(path, not value if isinstance(value, bool) else value * 2)
    base = override(BASE, {"run.max_steps": 0}) if path == "run.epochs" else BASE
    changed_one = override(base, change if isinstance(change, dict) else {path: change})
    assert effects(changed_one) != effects(base) or sequence(changed_one) != sequence(base)


# ---- parameters


def test_parameters_change_the_configuration_of_the_machine():
    machine = detect(use_tpu=False, precision="fp32")
    params = GraphParameters(
        changes="model.num_layers=2; optimizer.lr=2e-4", max_steps=7, batch_size=12, base_model="sample"
    )
    found = params.configuration(machine)
    assert (found.model.num_layers, found.optimizer.lr, found.run.max_steps) == (2, 2e-4, 7)
    assert found.batch_size(machine.device_count) == 12


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"changes": "model.hiden_size=3"}, "model.hiden_size: unknown key"),
        ({"changes": "model.num_layers"}, "must be key=value"),
        ({"changes": "run.seed=["}, "run.seed='\\[': not YAML"),
        ({"config": "no.yaml"}, "config='no.yaml'"),
        ({"search_steps": -1}, "search_steps=-1"),
        ({"base_model": "./nothing"}, "base_model"),
    ],
)
def test_a_wrong_parameter_is_named(given, message):
    with pytest.raises((ValueError, FileNotFoundError), match=message):
        GraphParameters(**given)
