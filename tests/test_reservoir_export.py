"""A saved reservoir model where this suite is not: transformers loads it with the code that lies beside its weights."""

import ast
import json
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.ridge import fit_readout

from .elsewhere import answers

V, END = 60, 0
MODULES = {f"{name}.py" for name in ("architecture", "model", "readout", "recall", "reservoirs", "scans")}
ELSEWHERE = """
import sys, torch
from pathlib import Path
try:
    import helpers
    raise SystemExit(f"helpers can be imported from {helpers.__file__}: this is not elsewhere")
except ModuleNotFoundError:
    pass
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], trust_remote_code=True)
ids = load_file(sys.argv[2])["ids"]
with torch.no_grad():
    first = model(ids[:, :11])
    second = model(ids[:, 11:], state=first.state)
    whole = model(ids)
    answers = {"whole": whole.logits, "first": first.logits, "second": second.logits, "state": second.state}
    answers["text"] = model.generate(ids[:1, :9], do_sample=False, max_new_tokens=20)
    if model.config.ridge_readout:
        model.learn(ids, times=3.0)
        answers["learned"] = model(ids).logits
save_file({name: tensor.contiguous() for name, tensor in answers.items()}, sys.argv[3])
assert type(model).__module__.startswith("transformers_modules."), type(model).__module__
assert not [name for name in sys.modules if name.partition(".")[0] == "helpers"]
"""


def new_model() -> ReservoirForCausalLM:
    """One of everything, with codes, its trained weights far from where they begin."""
    config = ReservoirConfig(
        vocab_size=V,
        reservoirs="delay:4 delays:3 quadratic:5 + tanh:24 blocks:3 + linear:8 | tanh:10",
        embedding_size=12,
        readout_blocks=2,
        readout_size=16,
        recall_tokens=6,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), END),
    )
    torch.manual_seed(1)
    model = ReservoirForCausalLM.initialise(config, seed=1, codes_VC=torch.randn(V, 9)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model


@torch.no_grad()
def with_ridge_readout(model: ReservoirForCausalLM) -> ReservoirForCausalLM:
    texts = torch.randint(0, V, (2, 10, 40), generator=torch.Generator().manual_seed(2))
    batches = [(model.features(ids)[0][-1], ids) for ids in texts]
    return model.with_ridge_readout(fit_readout(batches, model.reservoirs.features[-1], V, [0.1, 1.0]))


@pytest.fixture(scope="module", params=["trained", "ridge"])
def exported(request, tmp_path_factory):
    model, folder = new_model(), tmp_path_factory.mktemp("export")
    model = with_ridge_readout(model) if request.param == "ridge" else model
    model.save_pretrained(folder)
    return model, folder


@torch.no_grad()
def test_elsewhere_it_gives_the_same_logits_goes_on_from_a_state_and_tells_the_same_text(exported, tmp_path):
    _, folder = exported
    model = ReservoirForCausalLM.from_pretrained(
        folder
    )  # weights of a file lie elsewhere in memory: sums round otherwise
    ids = torch.randint(0, V, (3, 25), generator=torch.Generator().manual_seed(0))
    found = answers(ELSEWHERE, folder, {"ids": ids}, tmp_path)
    first = model(ids[:, :11])
    second = model(ids[:, 11:], state=first.state)
    assert found["whole"].equal(model(ids).logits)
    assert found["first"].equal(first.logits) and found["second"].equal(second.logits)
    assert found["state"].equal(second.state)
    assert found["text"].equal(model.generate(ids[:1, :9], do_sample=False, max_new_tokens=20))
    if model.config.ridge_readout:
        before = model(ids).logits
        model.learn(ids, times=3.0)
        assert found["learned"].equal(model(ids).logits)
        assert not found["learned"].equal(before)


def test_the_folder_holds_weights_settings_and_the_modules_that_they_need(exported):
    _, folder = exported
    weights = {"config.json", "generation_config.json", "model.safetensors"}
    assert {path.name for path in folder.iterdir()} == weights | MODULES
    assert json.loads((folder / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "model.ReservoirConfig",
        "AutoModelForCausalLM": "model.ReservoirForCausalLM",
    }


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_needs_only_torch_transformers_and_numpy(exported, name):
    _, folder = exported
    tree = ast.parse((folder / name).read_text(encoding="utf-8"))
    tried = {node for block in ast.walk(tree) if isinstance(block, ast.Try) for node in ast.walk(block)}
    imported = set()
    for node in set(ast.walk(tree)) - tried:
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level < 2 and node.module  # transformers finds `from .module import name` alone
            imported |= set() if node.level else {node.module.partition(".")[0]}
            assert not node.level or f"{node.module}.py" in MODULES
    assert imported - {"torch", "transformers", "numpy"} <= sys.stdlib_module_names


def test_here_the_suites_own_class_is_loaded_and_no_code_of_the_folder(exported):
    model, folder = exported
    loaded = AutoModelForCausalLM.from_pretrained(folder)
    assert type(loaded) is ReservoirForCausalLM
    ids = torch.arange(V)[None]
    assert torch.allclose(loaded(ids).logits, model(ids).logits, atol=1e-5)


def test_a_ridge_readout_has_no_gradient_loaded_or_not(tmp_path):
    model = with_ridge_readout(new_model())
    model.save_pretrained(tmp_path)
    for each in (model, AutoModelForCausalLM.from_pretrained(tmp_path)):
        assert not each(torch.arange(V)[None]).logits.requires_grad


def test_a_model_that_was_loaded_is_saved_with_its_code_again(exported, tmp_path):
    AutoModelForCausalLM.from_pretrained(exported[1]).save_pretrained(tmp_path)
    for name in MODULES | {"config.json"}:
        assert (tmp_path / name).read_bytes() == (exported[1] / name).read_bytes()
