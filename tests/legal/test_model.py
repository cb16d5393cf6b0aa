"""The model that is fine-tuned: the sample, a local path, adapters, and the recipe."""

import pytest
import torch

from helpers.legal.model import load_model, sample_model, sample_tokenizer
from helpers.legal.parameters import LegalParameters, recipe
from tests.workloads import cpu_by_hand


def loaded(precision: str = "fp32", **parameters):
    """Model and tokeniser of a run with these parameters on a CPU."""
    return load_model(LegalParameters(**{"base_model": "sample"} | parameters), cpu_by_hand(precision))


@pytest.mark.parametrize(("precision", "frozen"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_lora_in_half_precision_keeps_its_adapter_in_fp32(precision, frozen):
    model, _ = loaded(precision)
    dtypes = {(weight.requires_grad, weight.dtype) for weight in model.parameters()}
    assert dtypes == {(True, torch.float32), (False, frozen)}


def test_a_template_that_cannot_be_learned_is_refused_before_weights(tmp_path):
    tokenizer = sample_tokenizer()
    sample_model(len(tokenizer), 2, seed=0).config.save_pretrained(tmp_path)  # and no weights
    template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    for text, refusal in ((template, "with no special token: choose another"), ("", "has no chat template")):
        tokenizer.chat_template = text
        tokenizer.save_pretrained(tmp_path)
        with pytest.raises(ValueError, match=refusal):
            loaded(base_model=str(tmp_path))
    sample_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"base_model=.*cannot be read .*model\.safetensors"):
        loaded(base_model=str(tmp_path))


def test_few_records_have_enough_steps_and_many_have_three_passes():
    plans = [recipe(blocks, 512, "lora", 576) for blocks in (10, 50, 3200)]
    plans.append(recipe(50, 512, "lora", 576, devices=8))
    assert [(plan.batch_size, plan.max_steps) for plan in plans] == [(1, 80), (1, 150), (16, 600), (8, 50)]


def test_a_small_model_is_trained_at_a_higher_rate_than_a_wide_one():
    rates = [recipe(50, 512, "lora", width).learning_rate for width in (64, 576, 896, 4096)]
    assert rates[:2] == [1e-3, 1e-3] and 2e-4 < rates[2] < 1e-3 and rates[3] == 2e-4
    assert recipe(50, 512, "full", 4096).learning_rate == pytest.approx(2e-5)
