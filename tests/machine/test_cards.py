"""What a CUDA card can do decides, not that it is one: precision, TF32, attention, kernels. The CPU stands in a card's place."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from helpers.machine import attention, runtime
from helpers.machine.engine import CudaEngine
from tests.test_resume import result, run

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[2]
RECENT = ["sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120", "compute_120"]  # the cu130 wheel of torch 2.13


@pytest.mark.parametrize(("card", "capability"), [("Tesla P100-PCIE-16GB", (6, 0)), ("Tesla V100-SXM2-16GB", (7, 0))])
def test_a_card_without_kernels_in_the_installed_torch_is_refused_with_the_remedy(card, capability):
    with pytest.raises(RuntimeError, match=rf"{card}.*no kernels for it.*T4 x2.*cu126"):
        runtime.refuse_without_kernels(card, capability, RECENT)


@pytest.mark.parametrize("capability", [(7, 5), (8, 0), (8, 6), (8, 9), (9, 0), (10, 3), (12, 0), (12, 1), (13, 0)])
def test_a_card_with_kernels_of_its_generation_or_newer_than_the_wheel_is_taken(capability):
    runtime.refuse_without_kernels("a card", capability, RECENT)


def test_detection_refuses_a_p100_before_its_first_kernel():
    code = "from tests.machine.cuda_stand_in import pretend; pretend('P100')\nfrom helpers.machine import runtime; runtime.detect(False)"
    refused = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert refused.returncode == 1 and "has no kernels for it" in refused.stderr.splitlines()[-1]


@pytest.mark.parametrize(
    ("capability", "able"),
    [((7, 0), set()), ((7, 5), set()), ((8, 0), {"bf16", "tf32", "grouped_heads"})],
)
def test_abilities_follow_the_capability_and_each_has_a_reason(capability, able):
    found = runtime.abilities("cuda", "a card", capability)
    assert {name for name, (can, _) in found.items() if can} == able
    assert all(reason for _, reason in found.values())


def test_tf32_holds_inside_the_block_alone_and_can_be_asked_for_as_torch_compile_does():
    engine, before = CudaEngine(), torch.backends.cuda.matmul.allow_tf32
    with engine.computing(True):
        assert torch.backends.cuda.matmul.allow_tf32
        with engine.computing(False):
            assert not torch.backends.cuda.matmul.allow_tf32
        assert torch.backends.cuda.matmul.allow_tf32
    with pytest.raises(OSError), engine.computing(True):
        raise OSError
    assert torch.backends.cuda.matmul.allow_tf32 == before


def llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


@pytest.mark.parametrize("padded", [False, True])
def test_repeated_heads_give_the_logits_of_grouped_ones(padded):
    ids, mask = torch.randint(0, 50, (2, 9)), torch.ones(2, 9, dtype=torch.long)
    mask[0, : 4 * padded] = 0
    model, stock = llama(), llama()
    assert attention.repeat_heads(model)
    seen = mask.bool()
    expected = stock(ids, attention_mask=mask).logits[seen]
    assert torch.allclose(model(ids, attention_mask=mask).logits[seen], expected, atol=1e-6)


def test_a_t4_trains_in_fp16_with_a_loss_scale_and_resumes_bit_for_bit(tmp_path):
    options = {"card": "T4", "precision": "auto", "model": "llama", "steps": 4, "save_steps": 2, "accumulation": 1}
    whole = result(run(tmp_path / "whole", fresh=True, **options))
    assert whole["plan"]["precision"] == "fp16"
    run(tmp_path / "killed", fresh=True, **options, kill_step=4)
    resumed = result(run(tmp_path / "killed", fresh=True, **options))
    assert json.dumps(resumed["losses"]) == json.dumps(whole["losses"])
    assert resumed["train"]["skipped_steps"] == whole["train"]["skipped_steps"]
