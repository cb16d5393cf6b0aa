"""`base_model="auto"`: which model it is on which machine, with and without the hub."""

import json

import pytest
from transformers import Gemma3TextConfig, Gemma3TextModel

from helpers.lejepa.model import REVISIONS, chosen
from helpers.lejepa.parameters import AUTO, EMBEDDING_GEMMA, MINILM, MPNET, EmbeddingParameters
from helpers.plan import settings as plan
from helpers.plan.machines import machine, runtime_of
from helpers.plan.workloads import Asked, room

pytestmark = pytest.mark.once
CPU, T4, A100 = (runtime_of(machine(name)) for name in ("cpu", "t4", "a100"))


def asked(folder, **changes) -> EmbeddingParameters:
    return EmbeddingParameters.defaults().model_copy(update={"output_dir": str(folder), **changes})


@pytest.fixture(autouse=True)
def no_hub(monkeypatch, tmp_path):
    """Offline and nothing cached, as on a machine behind a wall."""
    import huggingface_hub.constants as hub

    monkeypatch.setattr(hub, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(hub, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("HF_TOKEN", raising=False)


def cached(tmp_path, name: str, revision: str) -> None:
    folder = tmp_path / "cache" / f"models--{name.replace('/', '--')}" / "snapshots" / revision
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")


@pytest.mark.parametrize(
    ("machine", "name", "reason"),
    [
        (CPU, MINILM, f"{EMBEDDING_GEMMA} takes hours on a CPU"),
        (T4, MPNET, f"{EMBEDDING_GEMMA} overflows in fp16, and T4 has no bf16"),
        (A100, MPNET, f"{EMBEDDING_GEMMA} cannot be had: the hub cannot be reached"),
    ],
)
def test_without_the_hub_it_is_a_model_that_anybody_may_have(tmp_path, machine, name, reason):
    params, why = chosen(asked(tmp_path / "out"), machine)
    assert (params.base_model, why) == (name, reason)


def test_what_is_in_the_cache_needs_no_hub(tmp_path):
    cached(tmp_path, MINILM, REVISIONS[MINILM])
    assert chosen(asked(tmp_path / "out"), T4)[0].base_model == MINILM  # mpnet is not there
    cached(tmp_path, EMBEDDING_GEMMA, REVISIONS[EMBEDDING_GEMMA])
    params, why = chosen(asked(tmp_path / "out"), A100)
    assert (params.base_model, why) == (EMBEDDING_GEMMA, "it is in the cache")
    assert chosen(asked(tmp_path / "out"), T4)[0].base_model == MINILM


def test_what_is_asked_for_stays(tmp_path):
    params = asked(tmp_path / "out", base_model="sample")
    assert chosen(params, A100) == (params, "asked for")


def test_a_run_that_goes_on_keeps_its_model(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"parameters": {"base_model": MPNET}}))
    params, why = chosen(asked(tmp_path), CPU)
    assert (params.base_model, why) == (MPNET, "the run in output_dir began with it")
    (tmp_path / "run.json").write_text("no JSON")
    assert chosen(asked(tmp_path), CPU)[0].base_model == MINILM


def test_it_is_the_default_of_the_notebook():
    assert EmbeddingParameters(**EmbeddingParameters.defaults().model_dump()).base_model == AUTO


def test_gemma_is_planned_in_fp32_where_there_is_no_bf16():
    config = Gemma3TextConfig(
        vocab_size=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2, head_dim=8
    )
    assert config.model_type.startswith("gemma3")  # what the step asks its model
    recipe, step = room("lejepa_training").planned(Asked(), T4)
    assert step.overflows_fp16 and any(isinstance(module, Gemma3TextModel) for module in step.model.modules())
    planned = plan.plan(recipe, step, T4)
    assert planned.precision == "fp32" and "overflow in fp16, and T4 has no better" in planned.reasons["precision"]
    assert plan.plan(recipe, step, A100).precision == "bf16"
