"""A saved GraphMER where this suite is not: transformers loads it with the code that lies beside its weights."""

import ast
import json
import sys

import pytest
import torch
from transformers import AutoModel

from helpers.graphmer.modeling_graphmer.encoder import INPUTS, GraphMERModel
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining

from .elsewhere import answers
from .graph_batches import config, leafy_batch, perturbed

MODULES = {
    f"{name}.py"
    for name in (
        "configuration_graphmer",
        "copy_head",
        "encoder",
        "graph_attention",
        "modeling_graphmer",
        "objectives",
    )
}
ELSEWHERE = """
import sys, torch
try:
    import helpers
    raise SystemExit(f"helpers can be imported from {helpers.__file__}: this is not elsewhere")
except ModuleNotFoundError:
    pass
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForPreTraining
batch = load_file(sys.argv[2])
encoder = AutoModel.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
whole = AutoModelForPreTraining.from_pretrained(sys.argv[1], trust_remote_code=True).eval()
with torch.no_grad():
    states = encoder(**batch)
    features = whole.query_features(**batch)
answers = {"roots": states.root_states, "leaves": states.leaf_states, "features": features[0], "copied": features[2]}
save_file({name: tensor.contiguous() for name, tensor in answers.items()}, sys.argv[3])
assert type(encoder).__module__.startswith("transformers_modules."), type(encoder).__module__
assert not [name for name in sys.modules if name.partition(".")[0] == "helpers"]
"""


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    torch.manual_seed(0)
    model, folder = perturbed(GraphMERForPreTraining(config())).eval(), tmp_path_factory.mktemp("export")
    model.save_pretrained(folder)
    return model, folder


@torch.no_grad()
def test_elsewhere_encoder_and_whole_model_give_the_same_states(exported, tmp_path):
    _, folder = exported
    model = GraphMERForPreTraining.from_pretrained(folder).eval()
    batch = {name: value for name, value in leafy_batch().items() if name in INPUTS}
    found = answers(ELSEWHERE, folder, batch, tmp_path)
    states, features = model.encoder(**batch), model.query_features(**batch)
    assert states.root_states.abs().sum() > 0
    assert torch.allclose(found["roots"], states.root_states, atol=1e-6)
    assert torch.allclose(found["leaves"], states.leaf_states, atol=1e-6)
    assert torch.allclose(found["features"], features[0], atol=1e-6)
    assert torch.allclose(found["copied"], features[2], atol=1e-6)


def test_the_folder_holds_weights_settings_and_the_modules_that_they_need(exported):
    _, folder = exported
    assert {path.name for path in folder.iterdir()} == {"config.json", "model.safetensors"} | MODULES
    assert json.loads((folder / "config.json").read_text())["auto_map"] == {
        "AutoConfig": "configuration_graphmer.GraphMERConfig",
        "AutoModel": "encoder.GraphMERModel",
        "AutoModelForPreTraining": "modeling_graphmer.GraphMERForPreTraining",
    }


@pytest.mark.parametrize("name", sorted(MODULES))
def test_a_module_needs_only_torch_and_transformers(exported, name):
    _, folder = exported
    imported = set()
    for node in ast.walk(ast.parse((folder / name).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level < 2 and node.module  # transformers finds `from .module import name` alone
            imported |= set() if node.level else {node.module.partition(".")[0]}
            assert not node.level or f"{node.module}.py" in MODULES
    assert imported - {"torch", "transformers"} <= sys.stdlib_module_names


def test_here_the_suites_own_encoder_is_loaded_with_the_weights(exported):
    model, folder = exported
    loaded = AutoModel.from_pretrained(folder)
    assert type(loaded) is GraphMERModel
    for (name, one), other in zip(model.encoder.state_dict().items(), loaded.state_dict().values(), strict=True):
        assert torch.equal(one, other), name
