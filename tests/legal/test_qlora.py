"""QLoRA through bitsandbytes' CPU backend: weights in NF4, an adapter that learns, is saved, read back and resumed; a TPU refuses."""

import importlib.util
from dataclasses import replace

import pytest
import torch
from torch.utils._pytree import tree_leaves

from helpers.legal.export import export
from helpers.legal.launch import blank_blocks, step_loss
from helpers.legal.model import load_model
from helpers.legal.parameters import LegalParameters
from helpers.legal.training import ChatTemplate
from helpers.plan.memory import activations, state
from tests.harness import assert_killed_run_ends_as, result
from tests.workloads import cpu_by_hand

from .test_model import loaded
from .test_training import run

INSTALLED = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not INSTALLED, reason="bitsandbytes is not installed")
pytestmark = pytest.mark.once
RUN = {
    "method": "qlora",
    "rank": 32,
    "steps": 14,
    "logging_steps": 6,
    "save_steps": 6,
    "dropout": 0.1,
    "checkpointing": True,
}


@needs_bitsandbytes
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_projections_have_four_bits_and_the_adapter_is_fp32(precision):
    from bitsandbytes.nn import Linear4bit

    model, _ = loaded(precision, method="qlora")
    projections = [
        layer.base_layer for layer in model.modules() if isinstance(getattr(layer, "base_layer", None), Linear4bit)
    ]
    assert len(projections) == 2 * 7
    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16}[precision]
    for each in projections:
        state = each.weight.quant_state
        assert (state.quant_type, state.nested, each.compute_dtype) == ("nf4", True, dtype)
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.uint8, dtype}
    assert {p.dtype for p in model.parameters() if p.requires_grad} == {torch.float32}


@pytest.mark.slow
@needs_bitsandbytes
def test_a_killed_run_in_four_bits_ends_as_an_undisturbed_one(tmp_path):
    whole = tmp_path / "whole"
    reference = result(run(whole, **RUN))
    assert reference["losses"][-1] < reference["losses"][0] - 1
    assert reference["loss_by_hand"] == pytest.approx(min(reference["eval_losses"]), rel=1e-5)
    assert reference["dtypes"] == ["torch.float32", "torch.uint8"]
    moments = torch.load(whole / "checkpoint-14/optimizer.pt", weights_only=True)["state"]
    assert torch.uint8 in {each.dtype for each in tree_leaves(moments) if torch.is_tensor(each)}
    assert_killed_run_ends_as((whole, reference), run, tmp_path / "killed", 9, 6, fresh=True, **RUN)


@torch.no_grad()
@needs_bitsandbytes
def test_the_export_is_the_adapter_and_reads_back_to_the_same_logits(tmp_path):
    model, tokenizer = loaded(method="qlora")
    for weight in model.parameters():
        if weight.requires_grad:
            weight += 0.02
    ids = torch.arange(30)[None]
    expected = model.eval()(input_ids=ids).logits
    folder = export(model, ChatTemplate(tokenizer), tmp_path / "model", base_model="sample", system="", card={})
    model.load_adapter(str(folder), "read_back")
    model.set_adapter("read_back")
    assert torch.equal(model.eval()(input_ids=ids).logits, expected)
    assert not (folder / "merged").exists()
    assert "load the base in 16 bits" in (folder / "README.md").read_text()


@needs_bitsandbytes
def test_the_plan_counts_four_bits_and_activations_of_sixteen():
    four, sixteen = (loaded("bf16", method=method)[0] for method in ("qlora", "lora"))
    packed = sum(weight.nbytes for weight in four.parameters() if hasattr(weight, "quant_state"))
    weights = [state(model)["weights"] for model in (four, sixteen)]
    assert weights[1] - weights[0] == 3 * packed > 0
    saved = [activations(model, step_loss, blank_blocks(128, 2), "bf16", False) for model in (four, sixteen)]
    assert saved[0] == saved[1]


def test_a_tpu_refuses_with_the_remedy():
    chip = replace(cpu_by_hand("bf16"), kind="xla")
    with pytest.raises(ValueError, match=r"no kernels for a TPU\. Use method='lora'"):
        load_model(LegalParameters(base_model="sample", method="qlora"), chip)
