"""The TPU compiler's answers: what the twins' steps need, send and overwrite on chips that are not there.

python -m tests.plan.test_tpu_compiler FOLDER HARDWARE NOTEBOOK ...    prints one line of JSON for each notebook's step, at a small size
"""

import functools
import importlib
import json
import os
import re
import sys
from pathlib import Path

import pytest

from helpers.machine import xla
from tests.harness import ROOT, printed

sys.path.insert(0, str(ROOT / "benchmarks"))
tpu = importlib.import_module("tpu_step")
# GraphMER's step takes two minutes: make tpu
TWINS = ("tinystories_reservoir", "lejepa_training", "legal_cot_sft")
needs_compiler = pytest.mark.skipif(bool(tpu.available()), reason=tpu.available())


def main(folder: str, hardware: str, *notebooks: str) -> None:
    """Beside what the compiler says of a step: bytes of its weights and moments, and of random numbers."""
    tpu.begin()
    from transformers import BertConfig, Qwen2Config

    described = importlib.import_module("tpu_compiler").described
    sizes = {"hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 4, "num_attention_heads": 2}
    BertConfig(vocab_size=2000, **sizes).save_pretrained(f"{folder}/bert")
    Qwen2Config(vocab_size=2000, num_key_value_heads=1, **sizes).save_pretrained(f"{folder}/qwen")
    models = {"tinystories_reservoir": "384", "legal_cot_sft": f"{folder}/qwen"}
    runtime = tpu.runtime_of(hardware)
    chips = runtime.device_count
    for notebook in notebooks:
        model = models.get(notebook, f"{folder}/bert")
        _, step = tpu.notebook_step(notebook, runtime, model=model, length=128)
        made = tpu.compile_step(tpu.trace(step, 8 * chips, chips=chips), hardware)
        held = sum(12 * weight.numel() for weight in step.model.parameters() if weight.requires_grad)
        drawn = sum(map(tpu.size, re.findall(r"= (\S+) rng-bit-generator\(", made.program)))
        print("STEP", json.dumps({"notebook": notebook, "held": held, "drawn": drawn} | described(made)))


def compiled(folder: Path, hardware: str, *notebooks: str) -> dict[str, dict]:
    """Steps by notebook, of a process of their own: its first backward pass must find the device."""
    environment = os.environ | {"XLA_FLAGS": ""}
    output = printed("-m", "tests.plan.test_tpu_compiler", folder, hardware, *notebooks, env=environment)
    steps = map(json.loads, re.findall(r"^STEP (.+)$", output, re.MULTILINE))
    return {step["notebook"]: step for step in steps}


@pytest.fixture(scope="module")
def tuning(tmp_path_factory):
    """The tuning notebook's step on a slice, which is compiled once."""
    folder = tmp_path_factory.mktemp("tuning")
    return functools.cache(lambda hardware: compiled(folder, hardware, "hardware_tuning")["hardware_tuning"])


def assert_overwrites_what_it_replaces(step: dict) -> None:
    assert step["flops"] > 0 and not step["collectives"]
    assert step["aliased"] > 0.99 * (step["outputs"] - 4096)  # the loss and an index of the outputs are new


@needs_compiler
def test_a_step_compiles_for_a_tpu_and_overwrites_what_it_replaces(tuning):
    assert_overwrites_what_it_replaces(tuning("v5e-1"))


@needs_compiler
@pytest.mark.slow
def test_every_twins_step_overwrites_what_it_replaces(tmp_path):
    steps = compiled(tmp_path, "v5e-1", *TWINS)
    for notebook in TWINS:
        assert_overwrites_what_it_replaces(steps[notebook])


@needs_compiler
def test_a_chip_draws_for_its_own_examples_alone(tuning):
    """Both slices have as many examples a chip. Without libtpu's flag (xla.OWN_DRAWS) a chip of eight would draw for all of them."""
    assert 0 < tuning("v5e-8")["drawn"] <= tuning("v5e-1")["drawn"]


@pytest.mark.parametrize("set_by_user", ["--xla_tpu_something=1", xla.OWN_DRAWS.replace("true", "false")])
def test_libtpu_is_told_unless_the_user_has_said_otherwise(monkeypatch, set_by_user):
    monkeypatch.setenv("LIBTPU_INIT_ARGS", set_by_user)
    for _ in range(2):
        xla.set_libtpu_arguments()
    added = f" {xla.OWN_DRAWS}" if "something" in set_by_user else ""
    assert os.environ["LIBTPU_INIT_ARGS"] == set_by_user + added


@needs_compiler
def test_eight_chips_send_each_other_gradients_alone(tuning):
    step = tuning("v5e-8")
    assert set(step["collectives"]) == {"all-reduce"}
    assert step["collectives"]["all-reduce"]["bytes"] < 1.1 * step["held"] / 3  # weights and two moments each


if __name__ == "__main__":
    main(*sys.argv[1:])
