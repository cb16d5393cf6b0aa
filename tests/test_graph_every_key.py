"""Every key of the configuration changes a run: each is flipped, and what a small run does must not stay the same."""

from __future__ import annotations

import gc
import hashlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from helpers.graphmer import evaluation, experiment
from helpers.graphmer.configuration import PROFILES, Configuration, override, read_configuration
from helpers.graphmer.links.predictor import LinkPredictor
from helpers.graphmer.modeling_graphmer.encoder import Attention
from helpers.graphmer.training import new_trainer
from helpers.machine import runtime
from helpers.plan import settings as planner

from .xla_process import cpu_here

pytestmark = pytest.mark.once

SMALL = {
    "run.max_steps": 4,
    "run.log_interval": 2,
    "run.eval_interval_steps": 4,
    "run.save_interval_steps": 2,
    "run.mixed_precision": "fp32",
    "hardware.device": "auto",
    "model.hidden_size": 24,
    "model.num_layers": 2,
    "model.num_heads": 2,
    "model.intermediate_size": 32,
    "model.embedding_size": 12,
    "optimizer.lr": 3e-3,
    "optimizer.scheduler.warmup_steps": 1,
    "training_data.max_seq_len": 72,
    "training_data.micro_batch_size": 4,
    "objectives.mlm.mask_prob": 0.2,
    "objectives.mnm.mask_prob": 0.5,
    "objectives.mnm.type_consistent_negatives": 1,
    "objectives.mnm.hard_negatives": 1,
    "objectives.triple.weight": 0.5,  # and every other term
    "objectives.scoring.weight": 0.5,
    "regularizers.ontology_constraints.antisymmetry_weight": 0.2,
    "regularizers.ontology_constraints.acyclicity_weight": 0.2,
    "encoding.leaves_per_anchor.positive": 2,
    "encoding.leaves_per_anchor.negatives": 2,
    "model.dropout": 0.1,
    "encoding.leaf_tokens": 4,
    "encoding.max_leaves_per_sequence": 6,
    "encoding.entity_tokens": 12,
    "encoding.vocab_size": 600,
    "encoding.max_head_tokens": 4,
    "regularizers.ontology_constraints.margin": -0.9,  # every cycle scores above it, so that its terms are felt
    "evaluation.unit": "module",
    "evaluation.micro_batch_size": 32,
    "evaluation.max_triples": 16,
}
STAGES = "[{steps: 0, max_seq_len: 56}, {steps: 2, max_seq_len: 72}]"
CURRICULUM = "training_data.short_to_long_curriculum"
WHOLE_PASSES = {  # few steps: as many sequences as possible in each, and no term that encodes further texts
    "encoding.windows_per_document": 1,
    "objectives.mnm.type_consistent_negatives": 0,
    "objectives.mnm.hard_negatives": 0,
    "objectives.triple.weight": 0.0,
    "objectives.scoring.weight": 0.0,
    "encoding.leaves_per_anchor.negatives": 0,
    "regularizers.ontology_constraints.antisymmetry_weight": 0.0,
    "regularizers.ontology_constraints.acyclicity_weight": 0.0,
    "run.max_steps": 0,
    "training_data.micro_batch_size": 64,
    "run.eval_interval_steps": 1000,
    "run.save_interval_steps": 1000,
}
FLIPS: dict[str, dict] = {
    "run.seed": {"run.seed": 7},
    "run.epochs": {"run.epochs": 2, **WHOLE_PASSES},
    "run.max_steps": {"run.max_steps": 3},
    "run.gradient_accumulation_steps": {"run.gradient_accumulation_steps": 2},
    "run.log_interval": {"run.log_interval": 1},
    "run.eval_interval_steps": {"run.eval_interval_steps": 2},
    "run.save_interval_steps": {"run.save_interval_steps": 3},
    "run.mixed_precision": {"run.mixed_precision": "bf16"},
    "run.deterministic": {"run.deterministic": False},
    "hardware.device": {"hardware.device": "cuda"},
    "hardware.num_workers": {"hardware.num_workers": 1},
    "hardware.tpu_cores": {"hardware.device": "tpu", "hardware.tpu_cores": 8},
    "model.hidden_size": {"model.hidden_size": 32},
    "model.num_layers": {"model.num_layers": 1},
    "model.num_heads": {"model.num_heads": 3},
    "model.intermediate_size": {"model.intermediate_size": 48},
    "model.dropout": {"model.dropout": 0.0},
    "model.positional_encoding": {"model.positional_encoding": "none"},
    "model.norm": {"model.norm": "layernorm"},
    "model.activation": {"model.activation": "gelu"},
    "model.hgat.enabled": {"model.hgat.enabled": False, "model.hgat.relation_bias": False},
    "model.hgat.relation_bias": {"model.hgat.relation_bias": False},
    "model.hgat.relation_dropout": {"model.hgat.relation_dropout": 0.0},
    "model.use_rel_attention_bias": {"model.use_rel_attention_bias": False},
    "model.leaf_positions": {"model.leaf_positions": False},
    "model.decay.mode": {"model.decay.mode": "none"},
    "model.decay.base": {"model.decay.base": 0.9},
    "model.embedding_size": {"model.embedding_size": 16},
    "model.token_match": {"model.token_match": False},
    "optimizer.name": {"optimizer.name": "adafactor"},
    "optimizer.lr": {"optimizer.lr": 1e-3},
    "optimizer.weight_decay": {"optimizer.weight_decay": 0.5},
    "optimizer.betas": {"optimizer.betas": [0.5, 0.9]},
    "optimizer.eps": {"optimizer.eps": 1e-2},
    "optimizer.max_grad_norm": {"optimizer.max_grad_norm": 1e-3},
    "optimizer.scheduler.name": {"optimizer.scheduler.name": "linear"},
    "optimizer.scheduler.warmup_steps": {"optimizer.scheduler.warmup_steps": 3},
    "training_data.max_seq_len": {"training_data.max_seq_len": 64},
    "training_data.micro_batch_size": {"training_data.micro_batch_size": 2},
    "training_data.pack_sequences": {"training_data.pack_sequences": False},
    f"{CURRICULUM}.enabled": {f"{CURRICULUM}.enabled": True, f"{CURRICULUM}.schedule": STAGES},
    f"{CURRICULUM}.schedule": {
        f"{CURRICULUM}.enabled": True,
        f"{CURRICULUM}.schedule": STAGES.replace("steps: 2", "steps: 3"),
    },
    "objectives.mlm.mask_prob": {"objectives.mlm.mask_prob": 0.4},
    "objectives.mlm.span_mask_identifiers": {"objectives.mlm.span_mask_identifiers": False},
    "objectives.mlm.weight": {"objectives.mlm.weight": 0.1},
    "objectives.mnm.mask_prob": {"objectives.mnm.mask_prob": 0.8},
    "objectives.mnm.type_consistent_negatives": {"objectives.mnm.type_consistent_negatives": 2},
    "objectives.mnm.hard_negatives": {"objectives.mnm.hard_negatives": 2},
    "objectives.mnm.weight": {"objectives.mnm.weight": 0.1},
    "objectives.triple.weight": {"objectives.triple.weight": 2.0},
    "objectives.scoring.weight": {"objectives.scoring.weight": 2.0},
    "encoding.leaf_tokens": {"encoding.leaf_tokens": 5},
    "encoding.max_head_tokens": {"encoding.max_head_tokens": 2},
    "encoding.leaves_per_anchor.positive": {"encoding.leaves_per_anchor.positive": 1},
    "encoding.leaves_per_anchor.negatives": {"encoding.leaves_per_anchor.negatives": 1},
    "encoding.max_leaves_per_sequence": {"encoding.max_leaves_per_sequence": 5},
    "encoding.entity_tokens": {"encoding.entity_tokens": 8},
    "encoding.windows_per_document": {"encoding.windows_per_document": 1},
    "encoding.vocab_size": {"encoding.vocab_size": 700},
    "regularizers.ontology_constraints.antisymmetry_weight": {
        "regularizers.ontology_constraints.antisymmetry_weight": 5.0
    },
    "regularizers.ontology_constraints.acyclicity_weight": {"regularizers.ontology_constraints.acyclicity_weight": 5.0},
    "regularizers.ontology_constraints.margin": {"regularizers.ontology_constraints.margin": -0.5},
    "regularizers.contrastive.enabled": {"regularizers.contrastive.enabled": False},
    "regularizers.contrastive.temperature": {"regularizers.contrastive.temperature": 0.5},
    "regularizers.contrastive.weight": {"regularizers.contrastive.weight": 0.1},
    "checkpointing.activation_checkpointing": {"checkpointing.activation_checkpointing": True},
    "checkpointing.save_total_limit": {"checkpointing.save_total_limit": 3},
    "evaluation.unit": {"evaluation.unit": "package"},
    "evaluation.held_out": {"evaluation.held_out": 0.25},
    "evaluation.max_triples": {"evaluation.max_triples": 8},
    "evaluation.micro_batch_size": {"evaluation.micro_batch_size": 16},
}
BESIDE = {  # what the flipped run is held against, where that is not the small run itself
    "run.epochs": {"run.epochs": 1, **WHOLE_PASSES},
    f"{CURRICULUM}.schedule": {f"{CURRICULUM}.enabled": True, f"{CURRICULUM}.schedule": STAGES},
    "model.hgat.enabled": {"model.hgat.relation_bias": False},
}
REFUSED = {"hardware.device": "hardware.device='cuda'", "hardware.tpu_cores": "hardware.tpu_cores=8"}  # on a CPU


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> str:
    """A package and some modules of the standard library."""
    import json as package
    import textwrap

    folder = tmp_path_factory.mktemp("library")
    shutil.copytree(Path(package.__file__).parent, folder / "json", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("textwrap", "bisect", "heapq", "shlex", "fnmatch", "glob", "stat", "copy", "queue"):
        shutil.copy(Path(textwrap.__file__).with_name(f"{name}.py"), folder)
    return str(folder)


@pytest.fixture(scope="module")
def run(sources, tmp_path_factory):
    """From changes to what a run of that configuration does, as plain numbers; each once. Ranks where asked for.

    The planner counts memory once for all of them, which takes as long as a run.
    """
    cpu_here()
    counted, memory_of = [], planner.memory_of

    def counted_once(*args):
        counted.extend([] if counted else [memory_of(*args)])
        return counted[0]

    done: dict[str, dict] = {}
    read: dict[tuple, experiment.Corpus] = {}  # by what graph, splits and tokens depend on

    def of(changes: dict, ranks: bool = False) -> dict:
        key = json.dumps([changes, ranks], sort_keys=True)
        if key not in done:
            configuration = override(read_configuration("cpu"), SMALL | changes)
            made_of = (configuration.evaluation, configuration.encoding, configuration.run.seed, configuration.stages())
            if made_of not in read:
                read[made_of] = experiment.load_corpus(sources, configuration)
            corpus = experiment.with_options(read[made_of], configuration)
            done[key] = what_it_does(configuration, corpus, tmp_path_factory.mktemp("run"), ranks)
        return done[key]

    gc.freeze()  # each run collects garbage, and would look at everything that torch imported
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(planner, "memory_of", counted_once)
        yield of
    gc.unfreeze()


def what_it_does(configuration: Configuration, corpus: experiment.Corpus, folder: Path, ranks: bool = False) -> dict:
    machine = runtime.detect(False, configuration.run.mixed_precision)
    model = experiment.new_model(configuration, corpus)
    plan = experiment.make_plan(configuration, model, corpus, machine)
    trainer = new_trainer(model, corpus.train, corpus.validation, configuration, plan, machine, folder)
    deterministic: list[bool] = []
    compute_loss = trainer.compute_loss

    def watched(*args, **kwargs):
        deterministic.append(torch.are_deterministic_algorithms_enabled())
        return compute_loss(*args, **kwargs)

    trainer.compute_loss = watched
    computed: list[torch.nn.Module] = []  # attentions, and again in the backward pass where they are not kept
    for module in trainer.model.modules():
        if isinstance(module, Attention):
            module.register_forward_pre_hook(lambda module, _: computed.append(module))
    try:
        trainer.train()
    finally:
        torch.use_deterministic_algorithms(False)
    weights = hashlib.sha256()
    for tensor in trainer.model.state_dict().values():
        weights.update(tensor.detach().flatten().contiguous().view(torch.uint8).numpy().tobytes())
    history = [
        {k: v for k, v in entry.items() if "seconds" not in k and "per_second" not in k and "runtime" not in k}
        for entry in trainer.state.log_history
    ]
    scorer = LinkPredictor(trainer.model, corpus.validation).ends()["given end: meaning"]
    found = evaluation.links(scorer, corpus, configuration) if ranks else {}
    return {
        "weights": weights.hexdigest(),
        "history": history,
        "checkpoints": sorted(path.name for path in folder.glob("checkpoint-*")),
        "workers": plan.dataloader_workers,
        "deterministic": deterministic[0],
        "computed": len(computed),
        "evaluated": len(trainer.eval_dataset),
        "ranks": found,
    }


@pytest.mark.parametrize("name", sorted(evaluation.ABLATIONS))
@pytest.mark.parametrize("profile", sorted(PROFILES))
def test_an_ablation_is_another_configuration_that_can_be(profile, name):
    whole = read_configuration(profile)
    assert override(whole, evaluation.ABLATIONS[name]) != whole


def values_in(tree: dict, path: str = "") -> Iterator[str]:
    """Dotted paths of what is no mapping."""
    for name, value in tree.items():
        yield from values_in(value, f"{path}{name}.") if isinstance(value, dict) else (f"{path}{name}",)


def test_every_key_is_flipped_here():
    assert set(FLIPS) == set(values_in(Configuration().model_dump()))


@pytest.mark.slow
@pytest.mark.parametrize("key", sorted(set(FLIPS) - set(REFUSED)))
def test_a_flipped_key_changes_the_run(key, run):
    ranks = key.startswith("evaluation.")
    assert run(BESIDE.get(key, {}), ranks) != run(FLIPS[key], ranks)


def test_the_same_configuration_does_the_same_twice(run, sources, tmp_path):
    configuration = override(read_configuration("cpu"), SMALL)
    assert what_it_does(configuration, experiment.load_corpus(sources, configuration), tmp_path) == run({})


@pytest.mark.parametrize("key", sorted(REFUSED))
def test_a_device_that_is_not_there_is_refused(key, sources, tmp_path):
    cpu_here()
    configuration = override(read_configuration("cpu"), SMALL | FLIPS[key])
    with pytest.raises(ValueError, match=REFUSED[key]):
        what_it_does(configuration, experiment.load_corpus(sources, configuration), tmp_path)
