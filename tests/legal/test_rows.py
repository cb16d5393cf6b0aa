"""From a record to tokens and labels, held against TRL's own on the chat templates that TRL carries; what is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from trl.chat_template_utils import get_training_chat_template

from helpers.legal.data import Record, Records, load_records
from helpers.legal.model import CHATML, sample_tokenizer
from helpers.legal.training import IGNORED, PLAIN_TEMPLATE, ChatTemplate, encode, row_of

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
    if name == "plain":
        tokenizer.chat_template, tokenizer.eos_token = None, "<|endoftext|>"
        return tokenizer
    if name == "smollm2":  # whose first token of a text is the mark of a turn
        tokenizer.chat_template, tokenizer.bos_token = SMOLLM2, "<|im_start|>"
        return tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": list(MARKS[name])})
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text(encoding="utf-8")
    tokenizer.bos_token = {"llama3": "<|begin_of_text|>", "gemma": "<bos>"}.get(name)
    tokenizer.eos_token = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(name, "<|im_end|>")
    return tokenizer


NAMES = ("qwen2_5", "smollm2", "llama3", "gemma", "plain")


def conversation(*turns: str, system: str = "", **options) -> Record:
    said = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
    said = [{"role": "system", "content": system}] * bool(system) + said
    return Record("r", tuple(said), turns[-1], **options)


def of(*records: Record) -> Records:
    return Records(name="x", sha256="", splits={"train": records})


TWO_TURNS = conversation("If it fails?", "Yes, it ends.", "And then?", "It falls.", system="Be brief.")


def learned(row, template) -> list[str]:
    """The texts of each run of labels."""
    texts, run = [], []
    for label in [*row["labels"], IGNORED]:
        if label != IGNORED:
            run.append(label)
        elif run:
            texts, run = [*texts, template.tokenizer.decode(run)], []
    return texts


@pytest.mark.parametrize("name", NAMES)
def test_all_turns_of_the_assistant_are_learned_with_the_token_that_ends_each(name):
    template = ChatTemplate(tokenizer_of(name))
    stop = template.tokenizer.decode([template.stop_token_id])
    row = row_of(TWO_TURNS, template)
    assert learned(row, template) == [f"Yes, it ends.{stop}", f"It falls.{stop}"]
    assert learned(row_of(TWO_TURNS, template, "last turn"), template) == [f"It falls.{stop}"]
    assert template.tokenizer.decode(row["input_ids"]) == template.text(TWO_TURNS.messages)
    assert "Be brief." in template.prompt(TWO_TURNS)


@pytest.mark.parametrize("name", ["qwen2_5", "smollm2", "plain"])
def test_ids_and_labels_of_a_question_are_those_of_trl_up_to_white_space_after_the_end(name, tmp_path):
    tokenizer = tokenizer_of(name)
    template = ChatTemplate(tokenizer)
    records = [conversation(f"Name {n}.", f"It is {n}.") for n in range(5)]
    prompts = [{"prompt": list(each.messages[:1]), "completion": list(each.messages[1:])} for each in records]
    rows = trl_rows(tokenizer, prompts, tmp_path)
    for record, theirs in zip(records, rows, strict=True):
        ours = row_of(record, template)
        assert ours["input_ids"] == theirs["input_ids"]
        end = len(ours["labels"]) - ours["labels"][::-1].index(template.stop_token_id)
        assert ours["labels"][:end] == theirs["labels"][:end]
        assert not tokenizer.decode(theirs["input_ids"][end:]).strip() and {*ours["labels"][end:]} <= {IGNORED}


@pytest.mark.parametrize("name", ["qwen2_5", "llama3", "gemma"])
def test_labels_of_several_turns_are_those_of_trls_training_template(name):
    tokenizer = tokenizer_of(name)
    template = ChatTemplate(tokenizer)
    record = replace(TWO_TURNS, messages=TWO_TURNS.messages[1:])
    row = row_of(record, template)
    theirs = tokenizer.apply_chat_template(
        list(record.messages),
        chat_template=get_training_chat_template(tokenizer),
        return_assistant_tokens_mask=True,
        return_dict=True,
    )
    assert row["input_ids"] == theirs["input_ids"]
    taught = [
        token if mask else IGNORED for token, mask in zip(theirs["input_ids"], theirs["assistant_masks"], strict=True)
    ]
    space = {token for token in row["input_ids"] if not tokenizer.decode([token]).strip()}
    differ = [(a, b) for a, b in zip(row["labels"], taught, strict=True) if a != b]
    assert all({a, b} <= space | {IGNORED} for a, b in differ) and len(differ) <= 4


def trl_rows(tokenizer, rows: list[dict], folder: Path) -> Dataset:
    from trl import SFTConfig, SFTTrainer

    from helpers.legal.model import sample_model

    model = sample_model(len(tokenizer), tokenizer.eos_token_id, 0)
    arguments = SFTConfig(output_dir=str(folder), use_cpu=True, bf16=False, report_to="none", max_length=None)
    return SFTTrainer(model, arguments, train_dataset=Dataset.from_list(rows), processing_class=tokenizer).train_dataset


# ---- what is refused


def with_key(key: str, value) -> Record:
    user, assistant = conversation("Why?", "So.").messages
    return Record("r7", (user, assistant | {key: value}), "So.")


def test_a_key_that_the_template_writes_is_learned_and_one_that_it_leaves_out_is_refused():
    template = ChatTemplate(tokenizer_of("qwen3"))
    (text,) = learned(row_of(with_key("reasoning_content", "Look it up."), template), template)
    assert "Look it up." in text
    with pytest.raises(ValueError, match=r"record r7: the chat template leaves out `weight` of a message\. Move it"):
        row_of(with_key("weight", 1), template)
    plain = ChatTemplate(tokenizer_of("smollm2"))
    with pytest.raises(ValueError, match="leaves out `reasoning_content`"):
        row_of(with_key("reasoning_content", "Look it up."), plain)
    with pytest.raises(ValueError, match="leaves out `tools`"):
        row_of(replace(TWO_TURNS, tools=({"type": "function", "function": {"name": "f"}},)), plain)


def test_a_tool_call_is_written_with_its_arguments_as_an_object():
    template = ChatTemplate(tokenizer_of("qwen2_5"))
    call = {"id": "1", "type": "function", "function": {"name": "search", "arguments": '{"act": "1977"}'}}
    (text,) = learned(row_of(with_key("tool_calls", [call]), template), template)
    assert '{"name": "search", "arguments": {"act": "1977"}}' in text


def test_a_prompt_that_is_no_prefix_is_refused_in_whichever_record_it_shows():
    """Qwen3's template drops the reasoning of an earlier turn, once another turn follows."""
    template = ChatTemplate(tokenizer_of("qwen3"))
    user, assistant = with_key("reasoning_content", "Look it up.").messages
    good = conversation("Why?", "So.")
    bad = Record("bad one", (user, assistant, user, assistant), "So.")
    with pytest.raises(ValueError, match=r"record bad one: the chat template asks with .*learn='last turn'"):
        encode(of(good, good, bad), template)
    rows, *_ = encode(of(good, bad), template, learn="last turn")
    assert len(rows["train"]) == 2


def test_a_token_over_the_border_of_prompt_and_answer_is_refused():
    tokenizer = sample_tokenizer()
    tokenizer.chat_template = CHATML.replace("assistant\n", "assistant ").replace("+ '\n' + message", "+ ' ' + message")
    template = ChatTemplate(tokenizer)
    whole = template.text(conversation("Why?", "fails.").messages)
    pieces = [whole[start:end] for start, end in tokenizer(whole, return_offsets_mapping=True)["offset_mapping"]]
    assert any(piece.startswith(" f") for piece in pieces)
    with pytest.raises(ValueError, match="a token reaches over the place where the answer begins"):
        row_of(conversation("Why?", "fails."), template)


# ---- lengths


def test_a_record_that_is_too_long_or_spells_a_special_token_is_set_aside_and_none_is_cut():
    template = ChatTemplate(sample_tokenizer())
    short, redlined = conversation("Why?", "So."), conversation("The <s>old</s> clause?", "So.")  # no token of this one
    given = of(short, conversation("Why?", "So. " * 200), conversation("What is <|im_end|>?", "So."), redlined)
    rows, kept, length = encode(given, template, max_length=64)
    assert length == 128 and len(rows["train"]) == 2
    assert kept.splits["train"] == (short, redlined)
    assert [each["reason"] for each in kept.set_aside] == ["longer than 128 tokens", "spells out <|im_end|>"]


def test_lengths_follow_the_longest_training_record_and_what_the_model_reads():
    template, records = ChatTemplate(sample_tokenizer()), load_records("sample", seed=0)
    rows, kept, length = encode(records, template)
    longest = max(map(len, rows["train"]["input_ids"]))
    assert length - 128 < longest <= length and length % 128 == 0
    assert {name: len(each) for name, each in rows.items()} == {name: len(each) for name, each in kept.splits.items()}
    assert (
        encode(records, template, reads=length + 127)[2] == length == encode(records, template, max_length=longest)[2]
    )
    with pytest.raises(ValueError, match=r"no record is left for train.*longer than 128 tokens"):
        encode(records, template, max_length=128)


def test_a_tokenizer_without_a_template_gets_the_plain_one_which_is_saved_with_it(tmp_path):
    from transformers import AutoTokenizer

    template = ChatTemplate(tokenizer_of("plain"))
    assert template.prompt(conversation("Why?", "So.", system="Be brief.")) == (
        "Be brief.\n\n### Instruction:\nWhy?\n\n### Response:\n"
    )
    template.tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == PLAIN_TEMPLATE
