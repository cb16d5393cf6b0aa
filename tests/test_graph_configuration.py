"""helpers.graphmer.configuration: the YAML of a run, read strictly."""

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Literal, get_origin

import pytest
import yaml
from pydantic import ValidationError

from helpers.graphmer.configuration import PROFILES, Configuration, Stage, override, read_configuration, to_yaml
from helpers.graphmer.parameters import GraphParameters, in_precision
from helpers.machine import runtime
from helpers.machine.runtime import Runtime

from .graph_batches import weight_count

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]

# The configuration that GraphMER-SE's analysis of an RTX 3050 prints, whole.
PUBLISHED = """\
run:
  seed: 1337
  epochs: 5
  gradient_accumulation_steps: 1  # Not needed with larger batch
  log_interval: 50
  eval_interval_steps: 500
  save_interval_steps: 1000
  mixed_precision: fp16
  deterministic: true
hardware:
  device: cuda
  num_workers: 4
model:
  hidden_size: 768
  num_layers: 12
  num_heads: 12
  intermediate_size: 3072
  dropout: 0.1
  positional_encoding: alibi
  norm: rmsnorm
  activation: swiglu
  hgat:
    enabled: true
    relation_bias: true
  use_rel_attention_bias: true
optimizer:
  name: adamw
  lr: 3.0e-4
  weight_decay: 0.01
  betas: [0.9, 0.98]
  eps: 1e-8
  scheduler:
    name: cosine
    warmup_steps: 1500
training_data:
  max_seq_len: 768
  micro_batch_size: 32
  pack_sequences: true
  short_to_long_curriculum:
    enabled: true
    schedule:
      - {steps: 0, max_seq_len: 512}
      - {steps: 15000, max_seq_len: 768}
objectives:
  mlm:
    mask_prob: 0.15
    span_mask_identifiers: true
  mnm:
    mask_prob: 0.20
    type_consistent_negatives: 2
    hard_negatives: 2
encoding:
  leaves_per_anchor:
    positive: 2
    negatives: 2
  max_leaves_per_sequence: 10
regularizers:
  ontology_constraints:
    antisymmetry_weight: 0.2
    acyclicity_weight: 0.2
  contrastive:
    enabled: true
    temperature: 0.07
checkpointing:
  activation_checkpointing: false
"""


def flat(tree, path=""):
    """Dotted path -> value of what PyYAML reads, mappings opened."""
    if not isinstance(tree, dict):
        return {path: tree}
    return {key: value for name in tree for key, value in flat(tree[name], f"{path}.{name}".lstrip(".")).items()}


def declared(section, path=""):
    """Dotted path -> declaration of each key that holds a value."""
    for name, field in section.model_fields.items():
        if hasattr(field.annotation, "model_fields"):
            yield from declared(field.annotation, f"{path}{name}.")
        else:
            yield f"{path}{name}", field


def value_at(configuration, path):
    for name in path.split("."):
        configuration = getattr(configuration, name)
    return configuration


# -- what is read --


def test_every_key_of_the_published_document_is_read_as_written():
    configuration = read_configuration(PUBLISHED)
    said = flat(yaml.safe_load(PUBLISHED))
    schedule = said.pop("training_data.short_to_long_curriculum.schedule")
    assert configuration.stages() == tuple((stage["steps"], stage["max_seq_len"]) for stage in schedule)
    assert said.pop("optimizer.eps") == "1e-8" and configuration.optimizer.eps == 1e-8  # YAML 1.1 reads text
    assert tuple(said.pop("optimizer.betas")) == configuration.optimizer.betas
    assert {path: value_at(configuration, path) for path in said} == said


def test_a_missing_key_has_its_default_and_an_empty_document_is_all_defaults(tmp_path):
    assert read_configuration("") == Configuration()
    path = tmp_path / "some.yaml"
    path.write_text("optimizer:\n  lr: 1e-4\n", encoding="utf-8")
    assert read_configuration(path) == override(Configuration(), {"optimizer.lr": 1e-4})


@pytest.mark.parametrize("source", ["", PUBLISHED, *PROFILES])
def test_what_is_written_is_read_as_the_same_configuration(source):
    configuration = read_configuration(source)
    text = to_yaml(configuration)
    assert read_configuration(text) == configuration
    assert set(flat(yaml.safe_load(text))) == set(dict(declared(Configuration)))


def test_a_configuration_cannot_be_changed_in_place():
    with pytest.raises(ValidationError, match="frozen"):
        Configuration().run.seed = 1


def test_importing_it_loads_no_torch():
    code = "import sys, helpers.graphmer.configuration; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == 0


# -- what is refused --

REFUSED = [
    # document, line, key, what the message says
    ("model:\n  hiden_size: 768\n", 2, "model.hiden_size", "did you mean model.hidden_size?"),
    ("hardware:\n  device: cuda\n  batch_size: 32\n", 3, "hardware.batch_size", "training_data.micro_batch_size"),
    ("hardware:\n  mixed_precision: fp16\n", 2, "hardware.mixed_precision", "did you mean run.mixed_precision?"),
    ("run: {}\ntrainning_data: {}\n", 2, "trainning_data", "did you mean training_data?"),
    ("run:\n  seed: 1\n  seed: 2\n", 3, "run.seed", "twice, first in line 2"),
    ("run:\n  seed: '3'\n", 2, "run.seed", "without quotes"),
    ("run:\n  seed: 010\n", 2, "run.seed", "a whole number"),
    ("run:\n  seed: 1.0\n", 2, "run.seed", "a whole number"),
    ("run:\n  seed: 0x1F\n", 2, "run.seed", "a whole number"),
    ("run:\n  seed: 1:30\n", 2, "run.seed", "a whole number"),
    ("run:\n  seed: 1e3\n", 2, "run.seed", "a whole number"),
    ("run:\n  seed: 99999999999999999999\n", 2, "run.seed", "a whole number"),
    ("run:\n  seed: -1\n", 2, "run.seed", "greater than or equal to 0"),
    ("run:\n  seed:\n", 2, "run.seed", "has no value"),
    ("run:\n  epochs: true\n", 2, "run.epochs", "a whole number"),
    ("run:\n  epochs: 0\n", 2, "run.epochs", "greater than or equal to 1"),
    ("run:\n  epochs: [5]\n", 2, "run.epochs=[5]", "a whole number"),
    ("run:\n  3: 5\n", 2, "run.3", "unknown key"),
    ("run:\n  deterministic: 1\n", 2, "run.deterministic", "true or false"),
    ("run:\n  mixed_precision: no\n", 2, "run.mixed_precision=no", "'auto', 'fp32', 'bf16' or 'fp16'"),
    ("model:\n  norm: rms\n", 2, "model.norm", "'rmsnorm' or 'layernorm'"),
    ("model:\n  dropout: 1.5\n", 2, "model.dropout", "less than or equal to 0.9"),
    ("optimizer:\n  lr: .nan\n", 2, "optimizer.lr=.nan", "a number"),
    ("optimizer:\n  lr: 1e400\n", 2, "optimizer.lr=1e400", "a finite number"),
    ("optimizer:\n  lr: 0\n", 2, "optimizer.lr", "greater than 0"),
    ("optimizer:\n  betas: 0.9\n", 2, "optimizer.betas", "a list"),
    ("optimizer:\n  betas: [0.9]\n", 2, "optimizer.betas[1]", "is missing"),
    ("optimizer:\n  betas: [0.9, 0.9, 0.9]\n", 2, "optimizer.betas", "at most 2 items"),
    ("optimizer:\n  betas:\n    - 0.9\n    - 1.2\n", 4, "optimizer.betas[1]", "less than or equal to 0.99999"),
    ("run: 3\n", 1, "run", "must hold keys with values: seed, epochs"),
    ("\n- run\n", 2, "the document", "must hold keys with values: run, hardware"),
    ("run:\n\tseed: 3\n", 2, "", "not YAML"),
    ("run: {seed: 3\n\n", 3, "", "not YAML"),
    ("run: {}\n---\nrun: {}\n", 2, "", "not YAML"),
]
SCHEDULE = "training_data:\n  short_to_long_curriculum:\n    enabled: true\n    schedule:\n"
TOGETHER = [
    ("model:\n  hidden_size: 770\n", 2, "model.hidden_size", "model.num_heads=12"),
    ("model:\n  num_heads: 10\n", 2, "model.hidden_size", "model.num_heads=10"),
    ("model:\n  hgat:\n    enabled: false\n    relation_bias: true\n", 4, "model.hgat.relation_bias", "(and line 3)"),
    ("hardware:\n  device: tpu\nrun:\n  mixed_precision: fp16\n", 4, "run.mixed_precision", "use bf16 (and line 2)"),
    ("hardware: {device: cpu}\nrun: {mixed_precision: fp16}\n", 2, "run.mixed_precision", "use fp32 or bf16"),
    ("hardware: {device: tpu, num_workers: 2}\n", 1, "hardware.num_workers", "give 0"),
    ("hardware:\n  tpu_cores: 8\n", 2, "hardware.tpu_cores", "device: tpu"),
    ("optimizer:\n  name: adafactor\n  eps: 1e-6\n", 3, "optimizer.eps", "Adafactor has none"),
    ("encoding:\n  max_leaves_per_sequence: 3\n", 2, "encoding.max_leaves_per_sequence", "4 or more"),
    ("training_data:\n  max_seq_len: 74\n", 2, "training_data.max_seq_len", "leave 4 tokens for code"),
    ("encoding:\n  max_leaves_per_sequence: 109\n", 2, "encoding.max_leaves_per_sequence", "leave 5 tokens for code"),
    (f"{SCHEDULE}      - {{steps: 5, max_seq_len: 768}}\n", 4, "schedule", "a stage at steps 0"),
    (f"{SCHEDULE}      []\n", 4, "schedule", "a stage at steps 0"),
    (f"{SCHEDULE}      - {{steps: 0, max_seq_len: 512}}\n", 5, "schedule[0].max_seq_len", "768"),
    (
        f"{SCHEDULE}      - {{steps: 0, max_seq_len: 512}}\n      - {{steps: 0, max_seq_len: 768}}\n",
        6,
        "schedule[1].steps",
        "more than the 0",
    ),
    (
        f"{SCHEDULE}      - {{steps: 0, max_seq_len: 768}}\n      - {{steps: 9, max_seq_len: 512}}\n",
        6,
        "schedule[1].max_seq_len",
        "more than the 768",
    ),
    (
        f"{SCHEDULE}      - {{steps: 0, max_seq_len: 512}}\n      - {{steps: 9.5, max_seq_len: 768}}\n",
        6,
        "schedule[1].steps",
        "a share below 1",
    ),
    (
        SCHEDULE + "".join(f"      - {{steps: {n}, max_seq_len: {764 + n}}}\n" for n in range(5)),
        4,
        "schedule",
        "has 5 stages, and each compiles anew on a TPU; give at most 4",
    ),
    (f"{SCHEDULE}      - {{steps: 0, max_seq: 512}}\n", 5, "schedule[0].max_seq: unknown", "schedule[0].max_seq_len?"),
    (f"{SCHEDULE}      - {{steps: 0}}\n", 5, "schedule[0].max_seq_len", "is missing"),
    ("objectives: {mnm: {mask_prob: 0}}\n", 1, "objectives.mnm.mask_prob", "nothing is masked"),
    (
        "regularizers: {contrastive: {enabled: false}}\nobjectives: {scoring: {weight: 0}}\n",
        1,
        "objectives.mnm.hard_negatives",
        "nothing learns to tell them",
    ),
    ("encoding: {leaves_per_anchor: {negatives: 0}}\n", 1, "objectives.triple.weight", "all leaves are true"),
    ("objectives: {triple: {weight: 0}}\n", 1, "encoding.leaves_per_anchor.negatives", "nothing learns"),
    ("objectives: {scoring: {weight: 0}}\n", 1, "antisymmetry_weight", "nothing teaches"),
    ("regularizers: {contrastive: {weight: 0}}\n", 1, "regularizers.contrastive.weight", "enabled to false"),
]


@pytest.mark.parametrize(("text", "line", "key", "says"), REFUSED + TOGETHER)
def test_an_error_names_the_file_the_line_the_key_and_the_remedy(tmp_path, text, line, key, says):
    path = tmp_path / "mine.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read_configuration(str(path))
    assert str(caught.value).startswith(f"{path}:{line}: ")
    assert key in str(caught.value) and says in str(caught.value)


def test_all_that_is_wrong_is_said_at_once_by_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("model:\n  hiden_size: 3\nrun:\n  seed: -1\n  epochs: x\n", encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read_configuration(path)
    lines = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert lines == [f"{path}:2", f"{path}:4", f"{path}:5"]
    path.write_text("hardware:\n  tpu_cores: 8\nmodel:\n  num_heads: 7\n", encoding="utf-8")
    with pytest.raises(ValueError) as caught:
        read_configuration(path)
    lines = [line.partition(": ")[0] for line in str(caught.value).splitlines()]
    assert lines == [f"{path}:2", f"{path}:4"]


def test_a_wrong_value_is_said_with_what_its_key_means():
    with pytest.raises(ValueError, match=r"optimizer\.lr=fast: must be a number\. Peak learning rate\."):
        override(Configuration(), {"optimizer.lr": "fast"})


@pytest.mark.parametrize(
    "text", ["run: &run {seed: *run}\n", "run: {seed: !!python/object/apply:os.getcwd []}\n", "a\0"]
)
def test_what_is_no_plain_document_is_refused(text):
    with pytest.raises(ValueError, match="configuration"):
        read_configuration(text + "\n")


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\xfd")
    with pytest.raises(ValueError, match=r"mine\.yaml: not UTF-8 text"):
        read_configuration(path)


@pytest.mark.parametrize(
    ("text", "value"), [("1e-8", 1e-8), ("1.5e-3", 1.5e-3), ("1E-3", 1e-3), (".5", 0.5), ("5", 5.0)]
)
def test_a_number_is_read_however_it_is_written(text, value):
    read = read_configuration(f"optimizer:\n  lr: {text}\n").optimizer.lr
    assert (read, type(read)) == (value, float)


@pytest.mark.parametrize("source", ["nowhere.yaml", Path("nowhere.yaml"), "rtx3051"])
def test_a_file_that_is_not_there_is_said_with_the_profiles(source):
    with pytest.raises(FileNotFoundError, match="rtx3050"):
        read_configuration(source)


def test_every_key_refuses_a_value_of_another_type():
    for path, field in declared(Configuration):
        for wrong in ({"a": 1}, None, "[[]]", 3 if get_origin(field.annotation) is Literal else "a text"):
            with pytest.raises(ValueError, match=re.escape(path)):
                override(Configuration(), {path: wrong})


def test_every_key_says_what_it_means_in_a_sentence():
    for path, field in [*declared(Configuration), *declared(Stage)]:
        assert re.fullmatch(r"\S.{5,}\.", field.description), path


# -- override --


def test_override_takes_values_and_the_command_lines_texts_alike():
    base, schedule = Configuration(), "[{steps: 0, max_seq_len: 512}, {steps: 9, max_seq_len: 768}]"
    curriculum = "training_data.short_to_long_curriculum"
    stages = (Stage(steps=0, max_seq_len=512), Stage(steps=9, max_seq_len=768))
    texts = {
        "optimizer.lr": "1e-4",
        "run.deterministic": "false",
        "optimizer.betas": "[0.8, 0.9]",
        "model.norm": "layernorm",
    }
    values = {
        "optimizer.lr": 1e-4,
        "run.deterministic": False,
        "optimizer.betas": (0.8, 0.9),
        "model.norm": "layernorm",
    }
    texts |= {f"{curriculum}.enabled": "true", f"{curriculum}.schedule": schedule}
    values |= {f"{curriculum}.enabled": True, f"{curriculum}.schedule": stages}
    changed = override(base, texts)
    assert changed == override(base, values) != base
    assert {path: value_at(changed, path) for path in values} == values
    assert base == Configuration()


def test_override_changes_all_before_it_checks_any_combination():
    with pytest.raises(ValueError, match=r"model\.num_heads=12: not a multiple"):
        override(Configuration(), {"model.hidden_size": 640})
    assert override(Configuration(), {"model.hidden_size": 640, "model.num_heads": 10}).model.hidden_size == 640


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("optimizer.LR", "did you mean optimizer.lr?"),
        ("model.hgat", "is a section; name its keys: enabled"),
        ("lr", "did you mean optimizer.lr?"),
        ("optimizer.lr.peak", "unknown key"),
        ("training_data.short_to_long_curriculum.schedule[0].steps", "unknown key"),
        ("", "is a section"),
    ],
)
def test_override_refuses_what_is_no_key(path, says):
    with pytest.raises(ValueError, match=re.escape(says)):
        override(Configuration(), {path: 1})


# -- what follows from it --


def test_roots_and_leaf_slots_fill_the_sequence():
    assert Configuration().shape(768) == (698, 10)
    assert 698 + 10 * Configuration().encoding.leaf_tokens == 768


def test_the_batch_is_micro_batch_by_accumulation_by_devices():
    configuration = override(read_configuration("tpu_v5e_8"), {"run.gradient_accumulation_steps": 3})
    assert configuration.batch_size(8) == 4 * 3 * 8
    with pytest.raises(ValueError, match=r"hardware\.tpu_cores=8: the machine has 4"):
        configuration.batch_size(4)


def test_every_key_of_the_model_and_every_weight_reaches_the_model():
    base = Configuration()
    changes = {
        "model.hidden_size": 384,
        "model.num_layers": 3,
        "model.num_heads": 6,
        "model.intermediate_size": 64,
        "model.dropout": 0.2,
        "model.positional_encoding": "none",
        "model.norm": "layernorm",
        "model.activation": "gelu",
        "model.hgat.relation_dropout": 0.1,
        "model.use_rel_attention_bias": False,
        "model.leaf_positions": False,
        "model.decay.mode": "none",
        "model.decay.base": 0.8,
        "model.embedding_size": 32,
        "encoding.leaf_tokens": 5,
        "encoding.max_head_tokens": 4,
        "objectives.mlm.weight": 0.9,
        "objectives.mnm.weight": 0.8,
        "objectives.triple.weight": 0.6,
        "objectives.scoring.weight": 0.4,
        "regularizers.ontology_constraints.antisymmetry_weight": 0.3,
        "regularizers.ontology_constraints.acyclicity_weight": 0.1,
        "regularizers.ontology_constraints.margin": 0.25,
        "regularizers.contrastive.temperature": 0.1,
        "regularizers.contrastive.weight": 0.55,
    }
    before = base.graphmer_config(512, 22).to_dict()
    for path, value in changes.items():
        now = override(base, {path: value}).graphmer_config(512, 22).to_dict()
        assert [now[key] for key in now if now[key] != before[key]] == [value], path
    off = {"model.hgat.enabled": False, "model.hgat.relation_bias": False, "regularizers.contrastive.enabled": False}
    now = override(base, off).graphmer_config(512, 22)
    assert (now.hgat, now.hgat_relation_bias, now.contrastive_weight) == (False, False, 0.0)
    assert base.graphmer_config(512, 22, pad_token_id=3, acyclic_relations=[1]).pad_token_id == 3


def test_the_default_model_has_80m_weights_and_the_published_width_more():
    assert weight_count(Configuration().graphmer_config(8192, 30)) == pytest.approx(80e6, rel=0.01)
    assert weight_count(read_configuration(PUBLISHED).graphmer_config(8192, 30)) > 113e6


# -- profiles --


def test_a_profile_is_for_every_kind_of_machine():
    profiles = {name: read_configuration(name) for name in PROFILES}
    devices = {name: profile.hardware.device for name, profile in profiles.items()}
    assert devices == {"rtx3050": "cuda", "t4": "cuda", "a100": "cuda", "tpu_v5e_8": "tpu", "cpu": "cpu"}
    precisions = {name: profile.run.mixed_precision for name, profile in profiles.items()}
    assert precisions == {"rtx3050": "bf16", "t4": "fp16", "a100": "bf16", "tpu_v5e_8": "bf16", "cpu": "fp32"}
    for name in {*PROFILES} - {"cpu"}:
        assert profiles[name].batch_size(profiles[name].hardware.tpu_cores or 1) == 32
        assert profiles[name].stages() == ((0, 512), (0.3, 768))


def test_profiles_are_read_from_beside_the_module_wherever_it_is_unpacked(tmp_path):
    shutil.copytree(ROOT / "helpers", tmp_path / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    code = "import helpers.graphmer.configuration as c; print(c.__file__, c.read_configuration('t4').hardware.device)"
    said = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.split() == [str(tmp_path / "helpers" / "graphmer" / "configuration.py"), "cuda"]


def test_the_cpu_profile_is_small():
    configuration = read_configuration("cpu")
    assert configuration.shape(configuration.training_data.max_seq_len) == (96, 10)
    assert weight_count(configuration.graphmer_config(configuration.encoding.vocab_size, 22)) < 5e6


# -- with the notebook's parameters --


def on_a_cpu(**given) -> tuple[Configuration, Runtime]:
    machine = runtime.detect(False)
    configuration = GraphParameters(**given).configuration(machine)
    return configuration, in_precision(machine, configuration)


def test_a_run_computes_in_the_precision_of_its_configuration():
    assert on_a_cpu()[1].precision == "fp32"
    assert on_a_cpu(changes="run.mixed_precision=bf16")[1].precision == "bf16"
    assert on_a_cpu(changes="run.mixed_precision=bf16", precision="fp32")[1].precision == "fp32"
    with pytest.raises(ValueError, match="precision='fp16' needs a CUDA GPU"):
        on_a_cpu(config="t4")


def test_the_profile_of_a_machine_insists_on_no_device_and_changes_may():
    assert on_a_cpu(config="cpu")[0].hardware.device == "cpu"
    assert on_a_cpu()[0].hardware.device == "auto"
    assert on_a_cpu(changes="hardware.device=cuda")[0].hardware.device == "cuda"


def test_the_batch_size_is_shared_by_accumulation_and_devices():
    changes = "run.gradient_accumulation_steps=3"
    assert on_a_cpu(changes=changes, batch_size=12)[0].training_data.micro_batch_size == 4
    with pytest.raises(ValueError, match="batch_size=10: must be a multiple of 3"):
        on_a_cpu(changes=changes, batch_size=10)
