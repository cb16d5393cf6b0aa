"""An exported model read back by the ecosystem's own calls, folders not overwritten, cards that invent nothing."""

import json

import pytest
import torch
from huggingface_hub import ModelCard
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from helpers.legal.export import MERGED, export, reload_check
from helpers.legal.layout import Layout
from helpers.legal.model import QWEN, QWEN_REVISION
from helpers.legal.records import load_records

from .test_legal_layout import CHATML, byte_level_bpe, tiny_qwen2
from .xla_process import answers_on_xla

RECORDS = load_records("sample", num_records=4, seed=1).records
CARD = {
    "Data": {"source": "sample, 4 records, seed 1", "train_examples": 3},
    "Plan": [{"setting": "learning_rate", "value": 2e-4}],
    "Results": [{"answers": "base model", "verdict": "50 [27, 73]"}, {"answers": "trained", "verdict": "90 [60, 98]"}],
    "Use": "No legal advice.",
}


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_bpe(CHATML, eos="<|im_end|>")


@pytest.fixture(scope="module")
def asked(tokenizer):
    return Layout(tokenizer).prompt_ids([record.question for record in RECORDS[:2]])


def whole_model(tokenizer):
    model = tiny_qwen2(tokenizer)
    Layout(tokenizer).set_stop_tokens(model.generation_config)
    return model


def lora_model(tokenizer):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    return get_peft_model(
        whole_model(tokenizer),
        LoraConfig(task_type="CAUSAL_LM", target_modules="all-linear", init_lora_weights=False, lora_dropout=0.1),
    )


def exported(model, tokenizer, folder, **options):
    return export(model, tokenizer, folder, **{"base_model": QWEN, "card": CARD} | options)


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


# ---- what is written


@pytest.mark.parametrize("build", [whole_model, lora_model])
def test_an_export_reads_back_with_the_same_logits_and_stop_tokens(tokenizer, asked, tmp_path, build):
    model = build(tokenizer)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    folder = exported(model, tokenizer, tmp_path / "model")
    differences = reload_check(folder, model, asked)
    assert differences.keys() == ({"model", "adapter"} if build is lora_model else {"model"})
    assert max(differences.values()) <= 1e-5
    assert all(torch.equal(before[name], weight) for name, weight in model.state_dict().items())
    files = names(folder)
    assert not [name for name in files if name.endswith((".bin", ".pt", ".pth", ".pkl"))]
    assert ("model.safetensors" in files) == (build is whole_model)
    loads = folder / MERGED if build is lora_model else folder
    assert AutoTokenizer.from_pretrained(loads).apply_chat_template([{"role": "user", "content": "a"}], tokenize=False)
    assert AutoModelForCausalLM.from_pretrained(loads).generation_config.eos_token_id == [tokenizer.eos_token_id]


def test_a_lora_export_holds_the_adapter_in_itself_and_the_whole_model_beside_it(tokenizer, tmp_path):
    model = lora_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")
    assert model.peft_config["default"].revision is None
    assert {"adapter_model.safetensors", "adapter_config.json", f"{MERGED}/model.safetensors"} <= names(folder)
    config = json.loads((folder / "adapter_config.json").read_text())
    assert (config["base_model_name_or_path"], config["revision"]) == (QWEN, QWEN_REVISION)
    assert GenerationConfig.from_pretrained(folder).eos_token_id == [tokenizer.eos_token_id]


def test_the_merged_model_needs_no_peft_and_equals_the_adapted_one(tokenizer, asked, tmp_path):
    model = lora_model(tokenizer).eval()
    folder = exported(model, tokenizer, tmp_path / "model")
    merged = AutoModelForCausalLM.from_pretrained(folder / MERGED)
    assert not hasattr(merged, "peft_config")
    with torch.no_grad():
        ids = torch.tensor(asked[:1])
        assert (merged(input_ids=ids).logits - model(input_ids=ids).logits).abs().max() <= 1e-5


def test_a_bf16_base_with_trained_tokens_and_a_tied_head_reads_back_too(tokenizer, asked, tmp_path):
    from peft import LoraConfig, get_peft_model
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(**sizes, vocab_size=len(tokenizer), num_key_value_heads=1, tie_word_embeddings=True)
    base = Qwen2ForCausalLM(config)
    for weight in base.parameters():  # .to() would round the rotary frequencies too, which are not saved
        weight.data = weight.data.to(torch.bfloat16)
    Layout(tokenizer).set_stop_tokens(base.generation_config)
    trained = {"embed_tokens": [tokenizer.eos_token_id]}
    model = get_peft_model(
        base, LoraConfig(target_modules="all-linear", init_lora_weights=False, trainable_token_indices=trained)
    )
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "trainable_tokens" in name:
                weight += 1
    differences = reload_check(exported(model, tokenizer, tmp_path / "model"), model, asked)
    assert max(differences.values()) <= 1e-5


def test_an_export_of_another_model_fails_the_check(tokenizer, asked, tmp_path):
    model = whole_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")
    other = whole_model(tokenizer)
    with torch.no_grad():
        other.lm_head.weight[5] += 0.01
    with pytest.raises(ValueError, match="differs from the trained one"):
        reload_check(folder, other, asked)


def test_a_model_without_stop_token_is_refused(tokenizer, tmp_path):
    model = tiny_qwen2(tokenizer)
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="set_stop_tokens"):
        exported(model, tokenizer, tmp_path / "model")
    assert not (tmp_path / "model").exists()


# ---- whose folder it is


def test_an_earlier_export_is_replaced_whole(tokenizer, asked, tmp_path):
    folder = exported(lora_model(tokenizer), tokenizer, tmp_path / "model")
    model = whole_model(tokenizer)
    exported(model, tokenizer, folder)
    assert "adapter_model.safetensors" not in names(folder)
    assert reload_check(folder, model, asked)["model"] <= 1e-5
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


def test_an_export_that_fails_leaves_the_earlier_one(tokenizer, asked, tmp_path):
    model = whole_model(tokenizer)
    folder = exported(model, tokenizer, tmp_path / "model")

    class Unwritable(dict):
        def items(self):
            raise OSError("no space")

    with pytest.raises(OSError, match="no space"):
        exported(whole_model(tokenizer), tokenizer, folder, card=Unwritable(CARD))
    assert reload_check(folder, model, asked)["model"] <= 1e-5
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


# ---- card


def test_the_card_says_what_was_passed_in_and_the_base_models_licence(tokenizer, tmp_path):
    folder = exported(lora_model(tokenizer), tokenizer, tmp_path / "model")
    card = ModelCard.load(folder / "README.md")
    assert (card.data.license, card.data.base_model) == ("apache-2.0", QWEN)
    assert (card.data.library_name, card.data.pipeline_tag) == ("peft", "text-generation")
    for line in ("- source: sample, 4 records, seed 1", "| learning_rate | 0.0002 |", "No legal advice."):
        assert line in card.text.splitlines()
    assert f"revision `{QWEN_REVISION}`" in card.text
    row = next(line for line in card.text.splitlines() if line.startswith("| trained"))
    assert row == "| trained | 90 [60, 98] |"
    sections = [line for line in card.text.splitlines() if line.startswith("## ")]
    assert sections == ["## Data", "## Plan", "## Results", "## Use"]


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
from helpers import xla
from helpers.legal.export import reload_check
from helpers.legal.layout import Layout
from tests.test_legal_export import CHATML, RECORDS, byte_level_bpe, exported, lora_model, names, whole_model

device = xla.start()
tokenizer = byte_level_bpe(CHATML, eos="<|im_end|>")
asked = Layout(tokenizer).prompt_ids([record.question for record in RECORDS[:2]])
answers = {}
for build in (whole_model, lora_model):
    model = build(tokenizer).to(device)
    xla.replicate(model)
    xla.sync()
    with tempfile.TemporaryDirectory() as folder:
        path = exported(model, tokenizer, Path(folder) / "model")
        answers[build.__name__] = reload_check(path, model, asked)
        answers[build.__name__]["place"] = str(model.device.type)
print("ANSWERS " + json.dumps(answers))
"""


def test_a_model_on_xla_is_exported_from_copies():
    answers = answers_on_xla(ON_XLA)
    assert answers["whole_model"].pop("place") == answers["lora_model"].pop("place") == "xla"
    assert answers["lora_model"].keys() == {"model", "adapter"}
    assert max(value for found in answers.values() for value in found.values()) <= 1e-5
