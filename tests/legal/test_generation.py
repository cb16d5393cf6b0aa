"""Text from a model, held against transformers' own greedy search token by token, and a CPU against 8 XLA devices."""

import pytest
import torch

from helpers.legal.generation import generate
from tests.harness import answers_on_xla
from tests.models import tiny, with_lora

STOPS = [1, 7]
LENGTHS = (5, 40, 3, 17, 90, 8, 21, 33, 60, 2)


class Numbers:
    """A template whose prompts are token numbers, as its tokeniser's text is."""

    pad_token_id = 0
    encode = staticmethod(list)

    def __init__(self):
        self.tokenizer = self

    def stop_token_ids(self):
        return STOPS

    def decode(self, tokens, skip_special_tokens):
        return " ".join(map(str, tokens))


def tiny_model(**options):
    """Weights wide enough that texts differ and some of them reach a stop token."""
    sizes = {
        "vocab_size": 64,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
    }
    sizes |= {"initializer_range": 0.3, "bos_token_id": None, "eos_token_id": None, "max_position_embeddings": 4096}
    return tiny("Qwen2", **sizes | options)


def tiny_lora():
    return with_lora(tiny_model())


def prompts():
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(8, 64, (length,), generator=generator).tolist() for length in LENGTHS]


def written(model, asked):
    return generate(model, Numbers(), asked, max_new_tokens=24)


@torch.no_grad()
def alone(model, prompt):
    """The likeliest tokens by a full forward pass each, up to a stop token."""
    tokens = []
    while len(tokens) < 24:
        tokens.append(int(model(input_ids=torch.tensor([prompt + tokens])).logits[0, -1].argmax()))
        if tokens[-1] in STOPS:
            return " ".join(map(str, tokens[:-1])), True
    return " ".join(map(str, tokens)), False


def test_a_batch_of_different_lengths_equals_each_prompt_alone():
    model = tiny_model()
    outputs = written(model, prompts())
    assert [(output.text, output.stopped) for output in outputs] == [alone(model, prompt) for prompt in prompts()]
    assert {output.stopped for output in outputs} == {True, False}


def test_sampling_of_the_models_generation_config_does_not_count():
    plain, sampling = tiny_model(), tiny_model()
    sampling.generation_config.update(
        do_sample=True, temperature=0.7, top_k=3, repetition_penalty=1.5, min_new_tokens=20
    )
    assert written(sampling, prompts()) == written(plain, prompts())


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers.machine import xla
from tests.harness import counters
from tests.legal.test_generation import prompts, tiny_lora, tiny_model, written

device = xla.start()
answers = {}
for make in (tiny_model, tiny_lora):
    model, asked = make().to(device), prompts()
    answers[make.__name__] = runs = {"cpu": written(make(), asked), "first": written(model, asked)}
    before = counters()
    runs["again"] = written(model, asked[::-1])
    after = counters()
    runs["counted"] = {name: after[name] - before[name] for name in ("compiles", "host_transfers", "item_calls")}
print("ANSWERS " + json.dumps(answers, default=lambda one: [one.text, one.stopped]))
"""


@pytest.mark.parametrize("make", ["tiny_model", "tiny_lora"])
def test_xla_writes_the_cpus_tokens_and_compiles_nothing_later(make):
    runs = answers_on_xla(ON_XLA)[make]
    assert runs["cpu"] == runs["first"] == runs["again"][::-1]  # a batch of eight texts and one of two
    assert runs["counted"] == {"compiles": 0, "host_transfers": 2, "item_calls": 0}
