"""From a record to TRL's prompt and completion, and to the labels of the trainer; what is set aside."""

from pathlib import Path

import pytest
import trl

from helpers.legal.data import THINK, Record, Records, load_records
from helpers.legal.model import sample_model, sample_tokenizer
from helpers.legal.packing import IGNORED
from helpers.legal.template import ChatTemplate
from helpers.legal.training import LegalTrainer, encode, sft_config
from tests.harness import cpu_here
from tests.workloads import plan_by_hand

pytestmark = pytest.mark.once

TEMPLATES = Path(trl.__file__).parent / "chat_templates"
MARKS = {  # tokens of each template that the sample's tokenizer has not
    "qwen2_5": (),
    "qwen3": ("<think>", "</think>"),
    "llama3": ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "gemma": ("<bos>", "<start_of_turn>", "<end_of_turn>"),
}
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\nYou are a helpful AI assistant.<|im_end|>\n' }}{% endif %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


def tokenizer_of(name: str):
    """The sample's tokenizer with the chat template and the special tokens of a family of models."""
    tokenizer = sample_tokenizer()
    if name == "smollm2":  # whose first token of a text is the mark of a turn
        tokenizer.chat_template, tokenizer.bos_token = SMOLLM2, "<|im_start|>"
        return tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS[name])})
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    tokenizer.bos_token = {"llama3": "<|begin_of_text|>", "gemma": "<bos>"}.get(name)
    tokenizer.eos_token = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(name, "<|im_end|>")
    return tokenizer


def conversation(*turns: str, system: str = "", name: str = "r") -> Record:
    messages = [{"role": "system", "content": system}] * bool(system)
    messages += [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
    return Record(name, tuple(messages))


def of(*records: Record) -> Records:
    return Records(name="x", sha256="", splits={"train": list(records)})


def learned(record: Record, template: ChatTemplate, folder: Path) -> tuple[str, list[str]]:
    """What a trainer reads of two such records, and each turn that it learns with its stop token."""
    rows, _, length = encode(of(record, record), template)
    tokenizer, plan = template.tokenizer, plan_by_hand(cpu_here(), batch_size=1, steps=1, length=length)
    model = sample_model(len(tokenizer), template.stop_token_id, 0)
    config = sft_config(plan, cpu_here(), folder, length=length, seed=0, eval_steps=9, save_steps=9)
    trainer = LegalTrainer(model, config, rows["train"], rows["train"], tokenizer, plan=plan, runtime=cpu_here())
    ids = [token for block in trainer.train_dataset for token in block["input_ids"]]
    labels = [label for block in trainer.train_dataset for label in block["labels"] if label != IGNORED]
    turns = tokenizer.decode(labels).split(tokenizer.decode([template.stop_token_id]))
    return tokenizer.decode(ids), sorted(turns)


@pytest.mark.parametrize("name", ["qwen2_5", "smollm2", "llama3", "gemma"])
def test_every_turn_of_the_assistant_is_learned_up_to_its_stop_token(name, tmp_path):
    template = ChatTemplate(tokenizer_of(name))
    system = "" if name == "gemma" else "Be brief."  # whose template refuses it
    record = conversation("If it fails?", "Yes, it ends.", "And then?", "It falls.", system=system)
    read, turns = learned(record, template, tmp_path)
    assert turns == ["", "It falls.", "It falls.", "Yes, it ends.", "Yes, it ends."]
    assert read.count(template.text(record.messages)) == 2


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_reasoning_is_learned_before_the_answer(name, tmp_path):
    record = conversation("Why?", THINK.format("Look.", "So."))
    _, turns = learned(record, ChatTemplate(tokenizer_of(name)), tmp_path)
    assert turns == ["", *2 * ["<think>\nLook.\n</think>\n\nSo."]]


def test_a_record_that_is_refused_or_too_long_is_set_aside():
    template = ChatTemplate(tokenizer_of("gemma"))
    good = [conversation("Why?", "So.", name=f"good {n}") for n in range(4)]
    refused = conversation("Why?", "So.", system="Be brief.", name="refused")
    long = conversation("Why?", "So. " * 200, name="long")
    rows, kept, length = encode(of(*good, refused, long), template, max_length=64)
    assert (length, len(rows["train"]), kept.splits["train"]) == (128, 4, good)
    reasons = dict(kept.set_aside)
    assert reasons["long"] == "longer than 128 tokens"
    assert reasons["refused"].startswith("the chat template of base_model refuses it (System role")
    with pytest.raises(ValueError, match=r"1 of 3 train records can be used.*refused.*without `system`"):
        encode(of(good[0], refused, refused), template)


def test_the_length_is_that_of_the_longest_record_or_what_the_model_reads():
    template, records = ChatTemplate(sample_tokenizer()), load_records("sample", seed=0)
    rows, _, length = encode(records, template)
    longest = max(rows["train"]["tokens"])
    assert length - 128 < longest <= length and length % 128 == 0
    assert encode(records, template, reads=length + 127)[2] == length
    with pytest.raises(ValueError, match=r"0 of 240 train records can be used.*longer than 128 tokens"):
        encode(records, template, max_length=128)
