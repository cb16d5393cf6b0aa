"""Text from a model, held against transformers' own greedy search token by token, and a CPU against 8 XLA devices."""

import pytest
import torch

from helpers.legal.generation import generate
from tests.harness import answers_on_xla
from tests.models import tiny, with_lora

PAD, STOP, OTHER_STOP = 0, 1, 7
LENGTHS = (5, 40, 3, 17, 90, 8, 21, 33, 60, 2)


class Numbers:
    """A template whose prompts are token numbers, as its tokeniser's text is."""

    pad_token_id = PAD

    def __init__(self, stop_token_ids=(STOP, OTHER_STOP)):
        self.tokenizer, self.stops, self.stop_token_id = self, [*stop_token_ids], stop_token_ids[0]

    def stop_token_ids(self):
        return self.stops

    def encode(self, ids):
        return list(ids)

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


def prompts(lengths=LENGTHS):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(8, 64, (length,), generator=generator).tolist() for length in lengths]


def written(model, asked, stop_token_ids=(STOP, OTHER_STOP), **options):
    return generate(model, Numbers(stop_token_ids), asked, **{"max_new_tokens": 24} | options)


@torch.no_grad()
def alone(model, prompt):
    """The likeliest tokens by a full forward pass each, up to a stop token."""
    tokens = list(prompt)
    for _ in range(24):
        token = int(model(input_ids=torch.tensor([tokens])).logits[0, -1].argmax())
        if token in (STOP, OTHER_STOP):
            return " ".join(map(str, tokens[len(prompt) :])), True
        tokens.append(token)
    return " ".join(map(str, tokens[len(prompt) :])), False


@pytest.fixture(scope="module")
def model():
    return tiny_model()


def test_a_batch_of_different_lengths_equals_each_prompt_alone(model):
    found = written(model, prompts(), batch_size=4)
    assert [(one.text, one.stopped) for one in found] == [alone(model, prompt) for prompt in prompts()]
    assert {one.stopped for one in found} == {True, False}


def test_sampling_of_the_models_generation_config_does_not_count():
    plain, told = tiny_model(), tiny_model()
    told.generation_config.update(
        do_sample=True, temperature=0.7, top_k=3, top_p=0.8, repetition_penalty=1.5, eos_token_id=9, min_new_tokens=20
    )
    assert written(told, prompts()) == written(plain, prompts())


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers.machine import xla
from tests.legal.test_generation import prompts, tiny_lora, tiny_model, written

device = xla.start()
answers = {}
for make in (tiny_model, tiny_lora):
    model, asked = make().to(device), prompts()
    answers[make.__name__] = runs = {"cpu": written(make(), asked), "first": written(model, asked)}
    before = xla.counters()
    runs["again"] = written(model, asked[::-1])
    after = xla.counters()
    runs["counted"] = {name: after[name] - before[name] for name in ("compiles", "host_transfers", "item_calls")}
print("ANSWERS " + json.dumps(answers, default=lambda one: [one.text, one.stopped]))
"""


@pytest.mark.parametrize("make", ["tiny_model", "tiny_lora"])
def test_xla_writes_the_cpus_tokens_and_compiles_nothing_later(make):
    runs = answers_on_xla(ON_XLA)[make]
    assert runs["cpu"] == runs["first"] == runs["again"][::-1]  # a batch of eight texts and one of two
    assert runs["counted"] == {"compiles": 0, "host_transfers": 2, "item_calls": 0}
