"""From a record to tokens and labels, held against TRL's own on the chat templates that TRL carries; what is refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import trl
from datasets import Dataset
from trl.chat_template_utils import get_training_chat_template

from helpers.data.rows import Unusable
from helpers.legal.data import Record, Records, load_records
from helpers.legal.model import sample_tokenizer
from helpers.legal.packing import IGNORED
from helpers.legal.template import PLAIN_TEMPLATE, ChatTemplate
from helpers.legal.training import encode, row_of

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
    tokenizer.chat_template = (TEMPLATES / f"{name}.jinja").read_text()
    tokenizer.bos_token = {"llama3": "<|begin_of_text|>", "gemma": "<bos>"}.get(name)
    tokenizer.eos_token = {"llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}.get(name, "<|im_end|>")
    return tokenizer


NAMES = ("qwen2_5", "smollm2", "llama3", "gemma", "plain")


def conversation(*turns: str, system: str = "", **options) -> Record:
    said = [{"role": ("user", "assistant")[n % 2], "content": text} for n, text in enumerate(turns)]
    said = [{"role": "system", "content": system}] * bool(system) + said
    return Record("r", tuple(said), **options)


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
    marked = [message | {"weight": int(message["content"] != "Yes, it ends.")} for message in TWO_TURNS.messages]
    assert replace(TWO_TURNS, messages=tuple(marked)).learned_turns == TWO_TURNS.learned_turns[1:]
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


def with_key(key: str, value, role: str = "assistant") -> Record:
    said = [
        message | ({key: value} if message["role"] == role else {}) for message in conversation("Why?", "So.").messages
    ]
    return Record("r7", tuple(said))


CALL = {"type": "function", "function": {"name": "search", "arguments": {"act": "1977"}}}
LEFT_OUT = {  # template, record, what the reason names
    "a key that no template writes": ("qwen2_5", with_key("rating", 1), "`rating`, which no chat template writes"),
    "a text beside a message": (
        "qwen2_5",
        with_key("refusal", "No."),
        "leaves out `refusal` of a message of `assistant`",
    ),
    "a key of a message that is read": (
        "qwen2_5",
        with_key("mood", "sad", "user"),
        "leaves out `mood` of a message of `user`",
    ),
    "calls": ("smollm2", with_key("tool_calls", [CALL]), "leaves out `tool_calls`"),
    "tools": ("smollm2", replace(TWO_TURNS, tools=(CALL,)), "leaves out `tools`"),
    "an unknown role": (
        "qwen2_5",
        Record("r", ({"role": "judge", "content": "Hm."}, *TWO_TURNS.messages[1:])),
        "leaves out `content` of a message of `judge`",
    ),
    "two users in a row": (
        "gemma",
        Record("r", (TWO_TURNS.messages[1], *TWO_TURNS.messages[1:])),
        "the chat template refuses it",
    ),
}


@pytest.mark.parametrize("name", LEFT_OUT)
def test_what_a_template_leaves_out_of_any_message_sets_the_record_aside_and_stops_the_run_where_most_are(name):
    family, bad, reason = LEFT_OUT[name]
    template = ChatTemplate(tokenizer_of(family))
    good = [conversation("Why?", "So.")] * 3
    rows, kept, _ = encode(of(*good, bad), template)
    assert len(rows["train"]) == 3
    (entry,) = kept.set_aside
    assert entry["row"] == bad.id and reason in entry["reason"]
    with pytest.raises(ValueError, match=f"2 of 3 train records cannot be used, first {bad.id}: "):
        encode(of(bad, bad, good[0]), template)


@pytest.mark.parametrize(
    ("name", "text"), [("qwen3", "<think>\nLook.\n</think>\n\nSo."), ("smollm2", "<think>\nLook.\n</think>\n\nSo.")]
)
def test_reasoning_is_learned_where_the_template_writes_it_or_before_the_answer(name, text):
    template = ChatTemplate(tokenizer_of(name))
    (taught,) = learned(row_of(with_key("reasoning_content", "Look."), template), template)
    assert taught.startswith(text)


def test_several_turns_of_qwen3_keep_their_reasoning_by_the_training_template_of_trl():
    template = ChatTemplate(tokenizer_of("qwen3"))
    user, assistant = with_key("reasoning_content", "Look.").messages
    taught = learned(row_of(Record("r", (user, assistant, user, assistant)), template), template)
    assert [text.count("Look.") for text in taught] == [1, 1]


FORGETS = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}"
    "{% if message['role'] == 'user' or loop.last %}{{ message['content'] }}{% endif %}{{ '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPACED = "{% for message in messages %}{{ '<|im_start|>' + message['role'] + ' ' + message['content'] + '<|im_end|>\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant ' }}{% endif %}"


def test_a_template_that_asks_in_another_way_than_it_was_trained_is_refused():
    tokenizer = sample_tokenizer()
    tokenizer.chat_template = FORGETS
    with pytest.raises(Unusable, match=r"leaves out `content`|does not go on from there"):
        row_of(replace(TWO_TURNS, messages=TWO_TURNS.messages[1:]), ChatTemplate(tokenizer))


def test_a_token_over_the_border_of_prompt_and_answer_is_refused():
    tokenizer = sample_tokenizer()
    tokenizer.chat_template = SPACED
    template = ChatTemplate(tokenizer)
    text = template.text(conversation("Why?", "heard.").messages)
    offsets = tokenizer(text, return_offsets_mapping=True)["offset_mapping"]
    assert any(text[start:end].startswith(" h") for start, end in offsets)
    with pytest.raises(Unusable, match="a token reaches over the place where the answer begins"):
        row_of(conversation("Why?", "heard."), template)


# ---- lengths


def test_a_record_that_is_too_long_or_spells_a_special_token_is_set_aside_and_none_is_cut():
    template = ChatTemplate(sample_tokenizer())
    short, redlined = conversation("Why?", "So."), conversation("The <s>old</s> clause?", "So.")  # no token of this one
    given = of(short, conversation("Why?", "So. " * 200), conversation("What is <|im_end|>?", "So."), redlined)
    rows, kept, length = encode(given, template, max_length=64)
    assert length == 128 and len(rows["train"]) == 2
    assert kept.splits["train"] == (short, redlined)
    assert [each["reason"] for each in kept.set_aside] == [
        "contains the special token <|im_end|>",
        "longer than 128 tokens",
    ]


def test_lengths_follow_the_longest_training_record_and_what_the_model_reads():
    template, records = ChatTemplate(sample_tokenizer()), load_records("sample", seed=0)
    rows, kept, length = encode(records, template)
    longest = max(map(len, rows["train"]["input_ids"]))
    assert length - 128 < longest <= length and length % 128 == 0
    assert {name: len(each) for name, each in rows.items()} == {name: len(each) for name, each in kept.splits.items()}
    assert (
        encode(records, template, reads=length + 127)[2] == length == encode(records, template, max_length=longest)[2]
    )
    with pytest.raises(ValueError, match=r"0 records are left for train.*longer than 128 tokens"):
        encode(records, template, max_length=128)


def test_a_tokenizer_without_a_template_gets_the_plain_one_which_is_saved_with_it(tmp_path):
    from transformers import AutoTokenizer

    template = ChatTemplate(tokenizer_of("plain"))
    assert template.prompt(conversation("Why?", "So.", system="Be brief.")) == (
        "Be brief.\n\n### Instruction:\nWhy?\n\n### Response:\n"
    )
    template.tokenizer.save_pretrained(tmp_path)
    assert AutoTokenizer.from_pretrained(tmp_path).chat_template == PLAIN_TEMPLATE
