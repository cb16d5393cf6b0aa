"""QLoRA through bitsandbytes' CPU backend: weights in NF4, their plan, an adapter that is read back; a TPU refuses."""

import importlib.util
from dataclasses import replace

import pytest
import torch

from helpers.legal.export import export
from helpers.legal.launch import blank_blocks, step_loss
from helpers.legal.model import load_model
from helpers.legal.parameters import LegalParameters
from helpers.legal.training import ChatTemplate
from helpers.plan.memory import activations, state
from tests.workloads import cpu_by_hand

from .test_model import loaded

INSTALLED = importlib.util.find_spec("bitsandbytes") is not None
needs_bitsandbytes = pytest.mark.skipif(not INSTALLED, reason="bitsandbytes is not installed")
pytestmark = pytest.mark.once


@needs_bitsandbytes
@pytest.mark.parametrize(("precision", "dtype"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_projections_have_four_bits_and_the_adapter_is_fp32(precision, dtype):
    model, _ = loaded(precision, method="qlora")
    weights = [*model.parameters()]
    quantised = [weight.quant_state for weight in weights if hasattr(weight, "quant_state")]
    assert [(each.quant_type, each.nested) for each in quantised] == [("nf4", True)] * 2 * 7
    assert {weight.dtype for weight in weights if not weight.requires_grad} == {torch.uint8, dtype}
    assert {weight.dtype for weight in weights if weight.requires_grad} == {torch.float32}


@torch.no_grad()
@needs_bitsandbytes
def test_the_export_is_the_adapter_and_reads_back_to_the_same_logits(tmp_path):
    model, tokenizer = loaded(method="qlora")
    for weight in model.parameters():
        if weight.requires_grad:
            weight += 0.02
    ids = torch.arange(30)[None]
    expected = model.eval()(input_ids=ids).logits
    export(model, ChatTemplate(tokenizer), tmp_path, base_model="sample", system="", card={})
    model.load_adapter(str(tmp_path), "read_back")
    model.set_adapter("read_back")
    assert torch.equal(model.eval()(input_ids=ids).logits, expected)
    assert not (tmp_path / "merged").exists()
    assert "load the base in 16 bits" in (tmp_path / "README.md").read_text()


@needs_bitsandbytes
def test_the_plan_counts_four_bits_and_activations_of_sixteen():
    four, sixteen = (loaded("bf16", method=method)[0] for method in ("qlora", "lora"))
    packed = sum(weight.nbytes for weight in four.parameters() if hasattr(weight, "quant_state"))
    assert state(sixteen)["weights"] - state(four)["weights"] == 3 * packed > 0
    saved = [activations(model, step_loss, blank_blocks(128, 2), "bf16", False) for model in (four, sixteen)]
    assert saved[0] == saved[1]


def test_a_tpu_refuses_with_the_remedy():
    chip = replace(cpu_by_hand("bf16"), kind="xla")
    with pytest.raises(ValueError, match=r"no kernels for a TPU\. Use method='lora'"):
        load_model(LegalParameters(base_model="sample", method="qlora"), chip)
