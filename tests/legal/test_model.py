"""The model that is fine-tuned: the sample, a local path, adapters, and what is said about one that cannot be had."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from transformers import AutoModelForCausalLM

from helpers.legal.data import load_records
from helpers.legal.model import (
    END_OF_TEXT,
    SAMPLE_VOCABULARY,
    apply_lora,
    frozen_dtype,
    load_model,
    sample_model,
    sample_tokenizer,
)
from helpers.legal.parameters import LegalParameters
from helpers.legal.sample import sample_records
from helpers.legal.training import IGNORED, ChatTemplate, row_of
from helpers.machine.runtime import Runtime


def runtime(precision: str = "fp32") -> Runtime:
    """A CPU, described by hand: `detect` would settle for the whole process whether transformers may use XLA."""
    return Runtime(
        kind="cpu", reason="", device_name="CPU", device_count=1, memory=None, compute_capability=None,
        precision=precision, precision_reason="",
    )  # fmt: skip


def loaded(precision: str = "fp32", **parameters):
    """Model and tokeniser of a run with these parameters on a CPU."""
    return load_model(LegalParameters(**{"base_model": "sample"} | parameters), runtime(precision))


def test_the_sample_is_a_small_qwen2_with_a_chat_template_and_encodes_records():
    model, tokenizer = loaded(method="full")
    assert type(model).__name__ == "Qwen2ForCausalLM"
    assert len(tokenizer) == model.config.vocab_size == SAMPLE_VOCABULARY
    texts = [text for record in sample_records(40) for text in record.values()]
    # A text of 1,500 characters is a few hundred tokens, as with a real tokeniser.
    assert sum(map(len, texts)) / sum(len(tokenizer(text)["input_ids"]) for text in texts) > 3


def test_generation_stops_at_the_token_that_a_record_ends_with():
    model, tokenizer = loaded(method="full")
    template = ChatTemplate(tokenizer)
    row = row_of(load_records("sample", seed=0).splits["train"][0], template)
    last = [label for label in row["labels"] if label != IGNORED][-1]
    assert last == template.stop_token_id and last in model.generation_config.eos_token_id


def test_lora_trains_every_projection_and_nothing_else():
    model, _ = loaded(lora_rank=4)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    projections = {re.search(r"(\w+_proj)\.lora_", name)[1] for name in trained}
    assert projections == {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
    assert len(trained) == 2 * 7 * 2  # A and B, projections, layers
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout) == (4, 8, 0.05)


@pytest.mark.parametrize(("precision", "frozen"), [("bf16", torch.bfloat16), ("fp16", torch.float16)])
def test_lora_in_half_precision_keeps_its_adapter_in_fp32_beside_a_frozen_base_in_half(precision, frozen):
    model, _ = loaded(precision)
    dtypes = {p.requires_grad: set() for p in model.parameters()}
    for parameter in model.parameters():
        dtypes[parameter.requires_grad].add(parameter.dtype)
    assert dtypes == {True: {torch.float32}, False: {frozen}}


def test_only_frozen_weights_are_ever_in_half_precision():
    kinds = {(method, precision) for method in ("lora", "qlora", "full") for precision in ("fp32", "bf16", "fp16")}
    half = {each for each in kinds if frozen_dtype(*each) != torch.float32}
    assert half == {(method, precision) for method, precision in kinds if method != "full" and precision != "fp32"}


def test_full_fine_tuning_in_bf16_keeps_fp32_weights():
    model, _ = loaded("bf16", method="full")
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}


@pytest.fixture
def base_model(tmp_path) -> Path:
    """Saved as a base model is: with a chat template, and an end of text that is not the end of a turn."""
    tokenizer = sample_tokenizer()
    tokenizer.eos_token = END_OF_TEXT
    sample_model(len(tokenizer), tokenizer.eos_token_id, seed=0).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    return tmp_path


def test_the_stop_token_of_a_base_model_gets_an_embedding_that_is_trained(base_model, tmp_path):
    model, tokenizer = loaded(base_model=str(base_model), lora_rank=2)
    stop = ChatTemplate(tokenizer).stop_token_id
    assert stop != tokenizer.eos_token_id
    assert model.peft_config["default"].trainable_token_indices == {"model.embed_tokens": [stop]}
    deltas = [p for name, p in model.named_parameters() if "trainable_tokens_delta" in name]
    assert [tuple(delta.shape) for delta in deltas] == [(1, model.config.hidden_size)]  # the head shares it
    with torch.no_grad():
        before = model(input_ids=torch.tensor([[5, 6, 7]])).logits
        deltas[0].add_(1.0)
        after = model(input_ids=torch.tensor([[5, 6, 7]])).logits
    changed = (before != after).any(dim=1).nonzero()[:, 1].unique().tolist()
    assert changed == [stop]
    model.save_pretrained(tmp_path / "adapter")
    fresh = AutoModelForCausalLM.from_pretrained(base_model)
    reloaded = PeftModel.from_pretrained(fresh, tmp_path / "adapter")
    with torch.no_grad():
        torch.testing.assert_close(reloaded(input_ids=torch.tensor([[5, 6, 7]])).logits, after)


def test_an_untied_head_gets_its_own_row_trained():
    tokenizer = sample_tokenizer()
    model = sample_model(len(tokenizer), 0, seed=0)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach().clone())
    adapted = apply_lora(model, 2, trained_tokens=[2])
    shapes = {n.split(".token_adapter")[0]: tuple(p.shape) for n, p in adapted.named_parameters() if "delta" in n}
    assert shapes == dict.fromkeys(
        ("base_model.model.model.embed_tokens", "base_model.model.lm_head"), (1, model.config.hidden_size)
    )


def test_a_template_that_cannot_be_learned_is_refused_before_weights_are_read(tmp_path):
    tokenizer = sample_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message['content'] }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path)
    sample_model(len(tokenizer), 2, seed=0).config.save_pretrained(tmp_path)  # and no weights
    with pytest.raises(ValueError, match="cannot learn to stop"):
        loaded(base_model=str(tmp_path))
    sample_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match=r"base_model=.*cannot be read .*model\.safetensors"):
        loaded(base_model=str(tmp_path))


class Hub(BaseHTTPRequestHandler):
    """Answers every request as the hub does for one that is not allowed or not there."""

    status, code = 401, "GatedRepo"

    def do_HEAD(self):
        self.send_response(self.status)
        self.send_header("X-Error-Code", self.code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_GET = do_HEAD

    def log_message(self, *args):
        pass


LOAD = """
import sys
from helpers.legal.model import load_model
from helpers.legal.parameters import LegalParameters
from helpers.machine.runtime import detect

try:
    load_model(LegalParameters(base_model="owner/model"), detect(False))
except Exception as error:
    print(type(error).__name__, error)
"""


def load_from(endpoint: str, home: Path, *, offline: bool = False) -> str:
    environment = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    environment["HF_HUB_OFFLINE"] = "1" if offline else "0"  # an address that refuses is tried again for a minute
    environment.pop("HF_TOKEN", None)
    process = subprocess.run(
        [sys.executable, "-c", LOAD],
        capture_output=True,
        text=True,
        timeout=120,
        cwd=Path(__file__).parents[2],
        env=environment,
    )
    assert process.returncode == 0, process.stderr[-2000:]
    return process.stdout


@pytest.mark.once
@pytest.mark.parametrize(
    ("status", "code", "error", "message"),
    [
        (401, "GatedRepo", "PermissionError", "is gated. Accept its licence .* HF_TOKEN"),
        (404, "RepoNotFound", "FileNotFoundError", "(?s)cannot be read .*check the name"),
    ],
)
def test_a_model_that_the_hub_refuses_says_what_to_do(status, code, error, message, tmp_path):
    handler = type("Refusing", (Hub,), {"status": status, "code": code})
    server = HTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        said = load_from(f"http://127.0.0.1:{server.server_port}", tmp_path)
    finally:
        server.shutdown()
        server.server_close()
    assert said.startswith(f"{error} base_model='owner/model': "), said
    assert re.search(message, said), said


@pytest.mark.once
def test_a_hub_that_cannot_be_reached_is_named_with_what_works_offline(tmp_path):
    said = load_from("http://127.0.0.1:9", tmp_path, offline=True)
    assert said.startswith("ConnectionError base_model='owner/model': the Hugging Face hub cannot be reached"), said
    assert 'base_model="sample" or a local path' in said
