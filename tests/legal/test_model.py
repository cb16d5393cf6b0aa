"""The model that is fine-tuned: the sample, a local path, adapters, and what is said about one that cannot be had."""

import os
import re
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
import torch

from helpers.legal.model import load_model, sample_model, sample_tokenizer
from helpers.legal.parameters import LegalParameters, recipe
from tests.harness import printed
from tests.workloads import cpu_by_hand


def loaded(precision: str = "fp32", **parameters):
    """Model and tokeniser of a run with these parameters on a CPU."""
    return load_model(LegalParameters(**{"base_model": "sample"} | parameters), cpu_by_hand(precision))


@pytest.mark.parametrize(("precision", "frozen"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_lora_in_half_precision_keeps_its_adapter_in_fp32(precision, frozen):
    model, _ = loaded(precision)
    dtypes = {p.requires_grad: set() for p in model.parameters()}
    for parameter in model.parameters():
        dtypes[parameter.requires_grad].add(parameter.dtype)
    assert dtypes == {True: {torch.float32}, False: {frozen}}


def test_a_template_that_cannot_be_learned_is_refused_before_weights(tmp_path):
    tokenizer = sample_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    sample_model(len(tokenizer), 2, seed=0).config.save_pretrained(tmp_path)  # and no weights
    with pytest.raises(ValueError, match="with no special token: choose another"):
        loaded(base_model=str(tmp_path))
    sample_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"base_model=.*cannot be read .*model\.safetensors"):
        loaded(base_model=str(tmp_path))


class Hub(BaseHTTPRequestHandler):
    """Answers every request as the hub does for a gated repository."""

    def do_HEAD(self):
        self.send_response(401)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *args):
        pass


LOAD = """
import sys
from helpers.legal.model import load_model
from helpers.legal.parameters import LegalParameters, recipe
from helpers.machine.runtime import detect

try:
    load_model(LegalParameters(base_model="owner/model"), detect(False))
except Exception as error:
    print(type(error).__name__, error)
"""


@pytest.mark.once
def test_a_model_that_the_hub_refuses_says_what_to_do(tmp_path):
    with HTTPServer(("127.0.0.1", 0), Hub) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        environment = {"HF_ENDPOINT": endpoint, "HF_HOME": str(tmp_path), "NO_PROXY": "127.0.0.1", "HF_TOKEN": ""}
        said = printed("-c", LOAD, env=os.environ | environment)
        server.shutdown()
    assert said.startswith("ValueError base_model='owner/model' "), said
    assert re.search("(?s)cannot be read .*gated.*licence accepted .* HF_TOKEN", said), said


def test_few_records_have_enough_steps_and_many_have_three_passes():
    few, several, many = (recipe(blocks, 512, "lora", 576) for blocks in (10, 50, 3200))
    assert (few.batch_size, few.max_steps) == (1, 80)
    assert (several.batch_size, several.max_steps) == (1, 150)
    assert (many.batch_size, many.max_steps) == (16, 600)
    shared = recipe(50, 512, "lora", 576, devices=8)
    assert (shared.batch_size, shared.max_steps) == (8, 50)


def test_a_small_model_is_trained_at_a_higher_rate_than_a_wide_one():
    rates = {width: recipe(50, 512, "lora", width).learning_rate for width in (64, 576, 896, 4096)}
    assert (rates[64], rates[576], rates[4096]) == (1e-3, 1e-3, 2e-4)
    assert 2e-4 < rates[896] < 1e-3
    assert recipe(50, 512, "full", 4096).learning_rate == pytest.approx(2e-5)
