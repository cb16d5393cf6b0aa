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
NAMES = ("qwen2_5", "smollm2", "llama3", "gemma")


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


def conversation(*turns: str, system: str = "", name: str = "r", **options) -> Record:
    messages = [{"role": "system", "content": system}] * bool(system)
    messages += [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
    return Record(name, tuple(messages), **options)


def of(*records: Record) -> Records:
    return Records(name="x", sha256="", splits={"train": list(records)})


TWO_TURNS = conversation("If it fails?", "Yes, it ends.", "And then?", "It falls.", system="Be brief.")


def learned(records: Records, template: ChatTemplate, folder: Path) -> tuple[list[str], list[str]]:
    """The texts of the trainer's rows, and of each run of its labels."""
    rows, _, length = encode(records, template)
    model = sample_model(len(template.tokenizer), template.stop_token_id, 0)
    plan = plan_by_hand(cpu_here(), batch_size=1, steps=1, length=length)
    config = sft_config(plan, cpu_here(), folder, length=length, seed=0, eval_steps=9, save_steps=9)
    data = {"train_dataset": rows["train"], "eval_dataset": rows["train"], "processing_class": template.tokenizer}
    trainer = LegalTrainer(model, config, **data, plan=plan, runtime=cpu_here())
    read, runs = [], []
    for block in trainer.train_dataset:
        start = 0
        for size in block["seq_lengths"]:
            ids, labels = (block[name][start : start + size] for name in ("input_ids", "labels"))
            start += size
            read.append(template.tokenizer.decode(ids))
            runs.append(template.tokenizer.decode([label for label in labels if label != IGNORED]))
    return read, runs


@pytest.mark.parametrize("name", NAMES)
def test_every_turn_of_the_assistant_is_learned_up_to_its_stop_token(name, tmp_path):
    template = ChatTemplate(tokenizer_of(name))
    stop = template.tokenizer.decode([template.stop_token_id])
    read, runs = learned(of(TWO_TURNS, TWO_TURNS), template, tmp_path)
    assert sorted(runs) == sorted([f"Yes, it ends.{stop}", f"It falls.{stop}"] * 2)
    assert all("Be brief." in text for text in read)
    assert template.text(TWO_TURNS.messages) in read


def test_messages_of_a_prompt_are_read_and_not_learned(tmp_path):
    record = conversation("If it fails?", "Yes, it ends.", "And then?", "It falls.", first_learned=3)
    _, runs = learned(of(record, record), ChatTemplate(sample_tokenizer()), tmp_path)
    assert runs == ["It falls.<|im_end|>"] * 2


@pytest.mark.parametrize("name", ["qwen3", "smollm2"])
def test_reasoning_is_learned_before_the_answer(name, tmp_path):
    question, answer = conversation("Why?", "So.").messages
    record = Record("r", (question, answer | {"content": THINK.format("Look.", "So.")}))
    _, runs = learned(of(record, record), ChatTemplate(tokenizer_of(name)), tmp_path)
    assert all(text.startswith("<think>\nLook.\n</think>\n\nSo.") for text in runs)


def test_a_record_that_is_refused_or_too_long_is_set_aside():
    template = ChatTemplate(tokenizer_of("gemma"))
    question, answer = conversation("Why?", "So.").messages
    good = [conversation("Why?", "So.", name=f"good {n}") for n in range(4)]
    two_users = Record("two users", (question, question, answer))
    long = conversation("Why?", "So. " * 200, name="long")
    rows, kept, length = encode(of(*good, two_users, long), template, max_length=64)
    assert (length, len(rows["train"]), kept.splits["train"]) == (128, 4, good)
    assert [(name, reason[:28]) for name, reason in kept.set_aside] == [
        ("two users", "the chat template refuses it"),
        ("long", "longer than 128 tokens"),
    ]
    with pytest.raises(ValueError, match=r"1 of 3 train records can be used.*two users"):
        encode(of(good[0], two_users, two_users), template)


def test_the_length_is_that_of_the_longest_record_or_what_the_model_reads():
    template, records = ChatTemplate(sample_tokenizer()), load_records("sample", seed=0)
    rows, _, length = encode(records, template)
    longest = max(rows["train"]["tokens"])
    assert length - 128 < longest <= length and length % 128 == 0
    assert encode(records, template, reads=length + 127)[2] == length
    with pytest.raises(ValueError, match=r"0 of 240 train records can be used.*longer than 128 tokens"):
        encode(records, template, max_length=128)
