"""What is asked and what TRL makes of it, what fits, and the way back from text."""

import itertools
import tempfile
from dataclasses import asdict, replace

import pytest
import torch

from helpers.legal.layout import (
    SPELLS_STOP,
    SYSTEM,
    TOO_LONG,
    Layout,
    Response,
    choose_max_length,
    parse_response,
    response,
)
from helpers.legal.records import Record, load_records

pytestmark = pytest.mark.once

RECORDS = load_records("sample", num_records=60, seed=0).records
TURN = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
)
CHATML = (  # Qwen2.5's, without tools
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n{% endif %}"
    + TURN
    + "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NO_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + CHATML.partition("{% endif %}")[2]
)
WORDS = (  # Qwen2.5's split, which joins punctuation with the newlines after it
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def byte_level_bpe(chat_template: str | None, eos: str, bos: str | None = None):
    """A tokeniser like Qwen2.5's, of 900 entries, trained on the sample."""
    from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORDS), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        special_tokens=["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<s>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    texts = [f"### Instruction:\n{r.question}\n\n### Response:\n{response(r)}" for r in RECORDS]
    backend.train_from_iterator(texts, trainer)
    if bos:
        backend.post_processor = processors.TemplateProcessing(
            single=f"{bos} $A", special_tokens=[(bos, backend.token_to_id(bos))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token=eos,
        pad_token="<|endoftext|>",
        bos_token=bos,
        chat_template=chat_template,
        clean_up_tokenization_spaces=False,
    )


@pytest.fixture(scope="module")
def instruct():
    return byte_level_bpe(CHATML, eos="<|im_end|>")


@pytest.fixture(scope="module")
def base():
    """A base model's: it has the template, but its own end of text is another token."""
    return byte_level_bpe(CHATML, eos="<|endoftext|>")


@pytest.fixture(scope="module")
def with_bos():
    return byte_level_bpe(None, eos="<|endoftext|>", bos="<s>")


def tiny_qwen2(tokenizer):
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=len(tokenizer), hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, eos_token_id=tokenizer.eos_token_id, bos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    return Qwen2ForCausalLM(config)


def trl_trainer(examples, tokenizer, tmp_path, max_length=None):
    from datasets import Dataset
    from trl import SFTConfig, SFTTrainer

    arguments = SFTConfig(
        output_dir=str(tmp_path),
        completion_only_loss=True if "prompt" in examples[0] else None,
        max_length=max_length,
        per_device_train_batch_size=4,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        report_to="none",
        save_strategy="no",
        disable_tqdm=True,
    )
    return SFTTrainer(
        model=tiny_qwen2(tokenizer),
        args=arguments,
        train_dataset=Dataset.from_list(examples),
        processing_class=tokenizer,
    )


# ---- against TRL


def varied_records() -> list[Record]:
    """40 records: plain ones, and ones with each kind of text that tokenisers and templates treat in its own way."""
    odd = [
        replace(RECORDS[0], question="Qu’est-ce qu’un délit ? 你好 🦊 e\u0301"),
        replace(RECORDS[1], question="a"),
        replace(RECORDS[2], question="Line one.\n\nLine two:\n\t- tab\n"),
        replace(RECORDS[3], question="  spaces around  "),
        replace(RECORDS[4], question="### Response:"),
        replace(RECORDS[5], case_citation=""),
        replace(RECORDS[6], reasoning=""),
        replace(RECORDS[7], answer="Yes"),
        replace(RECORDS[8], answer="**ISSUE**: £5\u00a0000?\r\n\r\n1) “No”…"),
        replace(RECORDS[9], answer=RECORDS[9].answer * 12),
        replace(RECORDS[10], question=RECORDS[10].question * 20),
        replace(RECORDS[11], topic="", difficulty=""),
        Record("12", "Hello?", "Hello."),
        Record(
            "13",
            "And then?",
            "It falls.",
            turns=(("system", "Be brief."), ("user", "If it fails?"), ("assistant", "Yes.")),
        ),
        replace(RECORDS[12], reasoning="It depends on what was agreed."),
    ]
    return [*odd, *RECORDS[15:40]]


def varied_conversations() -> list[dict]:
    """Ten prompt-completion conversations that no record gives: turns, no system message, odd ends."""
    user, assistant = "user", "assistant"
    texts = [
        ([(user, "Hi")], "Hello"),
        ([(user, "Hi"), (assistant, "Hello."), (user, "What is a tort?")], "A wrong."),
        ([("system", "Be brief."), (user, "Hi")], "Hello\n"),
        ([("system", "Be brief."), (user, "Hi"), (assistant, "Hm?"), (user, "Go on")], "\nStep 1: a"),
        ([(user, "")], "Nothing was asked."),
        ([(user, "Hi")], ""),
        ([(user, "Hi")], "  two spaces"),
        ([(user, "a\n\n\n")], "\n\n\n"),
        ([(user, "1234567890")], "0987654321 £€"),
        ([(user, "Hi"), (assistant, "a"), (user, "b"), (assistant, "c"), (user, "d")], "### Answer:\nf"),
    ]
    return [
        {
            "prompt": [{"role": role, "content": text} for role, text in turns],
            "completion": [{"role": "assistant", "content": text}],
        }
        for turns, text in texts
    ]


def taught(layout: Layout, examples) -> list[dict[str, list[int]]]:
    """What TRL's own trainer makes of records or of examples: tokens, and labels that are -100 where nothing is learned."""
    examples = [layout.example(each) if isinstance(each, Record) else each for each in examples]
    with tempfile.TemporaryDirectory() as folder:
        return list(trl_trainer(examples, layout.tokenizer, folder).train_dataset)


@pytest.mark.parametrize("name", ["chat", "instruction"])
@pytest.mark.parametrize("tokenizer", ["instruct", "with_bos"])
def test_trl_learns_what_follows_the_prompt_that_is_asked_and_as_many_tokens_as_are_counted(name, tokenizer, request):
    tokenizer = request.getfixturevalue(tokenizer)
    if name == "chat" and not tokenizer.chat_template:
        pytest.skip("has no chat template")
    layout, records = Layout(tokenizer, name), varied_records()
    examples = [layout.example(record) for record in records]
    examples += varied_conversations() if name == "chat" else []
    rows = taught(layout, examples)
    assert layout.lengths(records) == [len(row["input_ids"]) for row in rows[: len(records)]]
    for example, row in zip(examples, rows, strict=True):
        (prompt,) = layout._encode([layout.prompt_text(example["prompt"])])
        same = [*itertools.takewhile(lambda pair: pair[0] == pair[1], zip(prompt, row["input_ids"], strict=False))]
        assert row["labels"] == [-100] * len(same) + row["input_ids"][len(same) :]
        assert len(prompt) - len(same) <= 1, "where prompt and completion meet two tokens may be one"
        assert layout.text(example).startswith(layout.prompt_text(example["prompt"]))


# ---- what is trained on


@pytest.mark.parametrize("name", ["chat", "instruction"])
def test_loss_is_on_the_response_and_its_end_and_on_nothing_else(name, instruct):
    layout = Layout(instruct, name)
    end = "<|im_end|>\n" if name == "chat" else "<|im_end|>"
    for record, row in zip(RECORDS, taught(layout, RECORDS), strict=True):
        trained = [token for token in row["labels"] if token != -100]
        assert instruct.decode(trained) == response(record) + end
        assert row["input_ids"][-len(trained) :] == trained


@pytest.mark.parametrize("name", ["chat", "instruction"])
def test_the_prompt_at_generation_is_the_prompt_in_training(name, base):
    layout = Layout(base, name)
    for prompt, row in zip(layout.prompt_ids(RECORDS), taught(layout, RECORDS), strict=True):
        assert row["labels"][: len(prompt)] == [-100] * len(prompt)
        assert row["labels"][len(prompt) :] == row["input_ids"][len(prompt) :]
        assert row["input_ids"][: len(prompt)] == prompt


def test_the_instruction_layout_is_the_documented_text(base):
    record = Record("1", "Why?", "ISSUE: a", "Tort Law", "basic", "Hall v Brook [2071] UKSC 1", "Step 1: b")
    layout = Layout(base, "instruction")
    example = layout.example(record)
    assert example["prompt"] + example["completion"] == (
        "### Instruction:\nWhy?\n\n### Response:\n### Topic: Tort Law\n### Difficulty: basic\n\n### Reasoning:\nStep 1: b\n\n"
        "### Answer:\nISSUE: a\n\n### Case Citation:\nHall v Brook [2071] UKSC 1"
    )


def test_a_template_that_refuses_a_system_message_gets_it_before_the_question():
    layout = Layout(byte_level_bpe(NO_SYSTEM, eos="<|im_end|>"))
    assert layout.prompt("Why?") == [{"role": "user", "content": f"{SYSTEM}\n\nWhy?"}]


def test_a_template_that_leaves_a_system_message_out_gets_it_before_the_question():
    skip = "{% if message['role'] == 'system' %}{% continue %}{% endif %}"
    silent = CHATML.replace("<|im_start|>{{", skip + "<|im_start|>{{")
    layout = Layout(byte_level_bpe(silent, eos="<|im_end|>"))
    assert layout.prompt("Why?") == [{"role": "user", "content": f"{SYSTEM}\n\nWhy?"}]


# ---- stopping


def test_the_stop_token_ends_the_turn_and_carries_a_label(instruct, base):
    for tokenizer in (instruct, base):
        layout = Layout(tokenizer)
        assert layout.stop_token_id == tokenizer.convert_tokens_to_ids("<|im_end|>")
        rows = taught(layout, RECORDS)
        assert all(row["labels"].count(layout.stop_token_id) == 1 for row in rows)


def test_a_base_model_stops_at_the_end_of_turn_and_at_its_own_end_of_text(base, instruct):
    end_of_turn, end_of_text = base.convert_tokens_to_ids(["<|im_end|>", "<|endoftext|>"])
    assert Layout(base).stop_token_ids == (end_of_turn, end_of_text)
    assert Layout(base, "instruction").stop_token_ids == (end_of_text,)
    assert Layout(instruct).stop_token_ids == (end_of_turn,)


@pytest.mark.parametrize(("before", "after"), [(None, [2, 0]), (0, [2, 0]), ([2, 0], [2, 0]), (5, [2, 0, 5])])
def test_generation_config_keeps_what_it_stopped_at_before(base, before, after):
    from transformers import GenerationConfig

    config = GenerationConfig(eos_token_id=before)
    Layout(base).set_stop_tokens(config)
    assert (config.eos_token_id, config.pad_token_id) == (after, 0)


def test_generation_ends_at_the_token_that_was_trained_to_end_it(base):
    layout, model = Layout(base), tiny_qwen2(base)

    def says_stop_after_three_tokens(ids, scores):
        scores[:, layout.stop_token_id] = 1e9 if ids.shape[1] == prompt.shape[1] + 3 else -1e9
        scores[:, base.eos_token_id] = -1e9
        return scores

    prompt = torch.tensor(layout.prompt_ids(["Why?"]))

    def generated() -> int:
        out = model.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=12,
            do_sample=False,
            logits_processor=[says_stop_after_three_tokens],
        )
        return out.shape[1] - prompt.shape[1]

    assert generated() == 12
    layout.set_stop_tokens(model.generation_config)
    assert generated() == 4


def test_a_template_that_never_stops_is_refused():
    endless = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
    with pytest.raises(ValueError, match=r"no special token.*layout='instruction'"):
        Layout(byte_level_bpe(endless, eos="<|im_end|>"))


def test_a_special_token_before_the_answer_is_not_taken_for_the_stop_token():
    channels = CHATML.replace("{{ message['content'] }}", "<s>{{ message['content'] }}")
    layout = Layout(byte_level_bpe(channels, eos="<|im_end|>"))
    assert layout.tokenizer.decode([layout.stop_token_id]) == "<|im_end|>"


def test_a_model_without_chat_template_is_refused_with_the_remedy(with_bos):
    with pytest.raises(ValueError, match=r"no chat template.*layout='instruction'.*Instruct"):
        Layout(with_bos)


def test_an_unknown_layout_is_refused(instruct):
    with pytest.raises(ValueError, match="layout='alpaca' is unknown: give one of 'chat', 'instruction'"):
        Layout(instruct, "alpaca")


# ---- what is asked for, and what fits


def test_a_record_is_asked_for_the_sections_that_it_has(instruct):
    layout = Layout(instruct)
    bare = replace(RECORDS[0], reasoning="", case_citation="")
    assert layout.prompt(RECORDS[0])[0]["content"] == layout.prompt("Why?")[0]["content"] == SYSTEM
    assert layout.prompt(bare)[0]["content"] == (
        "You are a legal assistant. Write three sections, each under its own heading: ### Topic, ### Difficulty (basic, "
        "intermediate, advanced or expert) and ### Answer."
    )
    assert "### Reasoning (in prose)" in layout.prompt(replace(RECORDS[0], reasoning="It depends."))[0]["content"]
    assert "### Reasoning" not in response(bare)
    plain = Layout(instruct, "instruction")
    assert "Write" not in plain.prompt(RECORDS[0])
    assert (
        plain.prompt(bare)
        == f"### Instruction:\n{bare.question}\n\n{layout.prompt(bare)[0]['content']}\n\n### Response:\n"
    )


def test_a_conversation_is_asked_as_it_was_said_and_answered_without_headings(instruct, base):
    record = Record(
        "1", "And then?", "It falls.", turns=(("system", "Be brief."), ("user", "If so?"), ("assistant", "Yes."))
    )
    chat = Layout(instruct).example(record)
    said = [(each["role"], each["content"]) for each in (*chat["prompt"], *chat["completion"])]
    assert said == [*record.turns, ("user", "And then?"), ("assistant", "It falls.")]
    plain = Layout(base, "instruction").example(record)
    assert plain["prompt"] + plain["completion"] == (
        "### Instruction:\nBe brief.\n\n### Instruction:\nIf so?\n\n### Response:\nYes.\n\n### Instruction:\nAnd then?\n\n"
        "### Response:\nIt falls."
    )
    folded = Layout(byte_level_bpe(NO_SYSTEM, eos="<|im_end|>")).prompt(record)
    assert folded[0] == {"role": "user", "content": "Be brief.\n\nIf so?"}
    assert parse_response("It falls. ### Answer: no", record) == Response(answer="It falls. ### Answer: no")


def test_a_response_is_well_formed_where_it_has_what_its_record_has():
    for changes in ({"reasoning": ""}, {"reasoning": "It depends."}, {"topic": "", "case_citation": ""}):
        record = replace(RECORDS[0], **changes)
        assert parse_response(response(record), record).well_formed
        assert not parse_response(response(record)).well_formed
    assert not parse_response(response(replace(RECORDS[0], reasoning="It depends.")), RECORDS[0]).well_formed


@pytest.mark.parametrize("longer", ["question", "answer", "reasoning"])
def test_a_record_that_is_too_long_is_set_aside_whole_and_no_other_is_changed(longer, instruct):
    layout = Layout(instruct)
    long = replace(RECORDS[0], **{longer: getattr(RECORDS[0], longer) * 40})
    lengths = layout.lengths([RECORDS[1], long])
    assert layout.fit([long, RECORDS[1]], max_length=lengths[1] - 1) == (
        (RECORDS[1],),
        ((long.id, TOO_LONG),),
    )
    assert layout.fit([long, RECORDS[1]], max_length=lengths[1])[0] == (long, RECORDS[1])
    with pytest.raises(ValueError, match=r"max_length=128: none of 1 records can be used \(too long 1\); raise it"):
        layout.fit([long], max_length=128)
    assert [len(row["input_ids"]) for row in taught(layout, (RECORDS[1], long))] == lengths


def test_a_record_that_spells_out_the_stop_token_is_set_aside_by_id(instruct):
    records = [RECORDS[0], replace(RECORDS[1], question="What does <|im_end|> mean?")]
    assert Layout(instruct).fit(records, max_length=1024) == (
        (RECORDS[0],),
        ((RECORDS[1].id, SPELLS_STOP),),
    )


def test_a_template_whose_prompt_is_not_how_a_training_row_begins_is_refused():
    """As those of R1's distillations: the prompt opens the reasoning, and a whole conversation leaves it out."""
    thinking = CHATML.replace("<|im_start|>assistant\n{% endif %}", "<|im_start|>assistant\n<think>\n{% endif %}")
    assert thinking != CHATML
    with pytest.raises(ValueError, match=r"asks with .*<think>.* does not go on.*Use layout='instruction'"):
        Layout(byte_level_bpe(thinking, eos="<|im_end|>"))
    Layout(byte_level_bpe(thinking, eos="<|im_end|>"), "instruction")


# ---- max_length


@pytest.mark.parametrize(
    ("lengths", "options", "expected"),
    [
        ([100] * 99 + [5000], {}, 1024),
        ([100] * 98 + [129], {}, 256),
        ([128] * 10, {}, 128),
        ([1000] * 10, {}, 1024),
        ([100] * 10, {"wanted": 1000}, 1024),
        ([100] * 10, {"wanted": 2048}, 2048),
        ([], {"wanted": 1}, 128),
    ],
)
def test_max_length_is_that_of_the_longest_record_in_steps_of_128(lengths, options, expected):
    assert choose_max_length(lengths, **options)[0] == expected


def test_the_reason_for_max_length_counts_what_is_longer():
    _, reason = choose_max_length([100] * 98 + [3000, 4000])
    assert "the longest record has 4,000 tokens, at most 1,024" in reason
    assert "2 of 100 training records are longer and set aside" in reason


# ---- reading back


def test_every_response_is_read_back_as_it_was_written():
    for record in [
        *RECORDS,
        replace(RECORDS[0], case_citation=""),
        replace(RECORDS[1], answer="a\n\n# Title\n## b: c"),
    ]:
        written = parse_response(response(record))
        assert {name: asdict(record)[name] for name in asdict(written) if name != "problems"} == {
            name: text for name, text in asdict(written).items() if name != "problems"
        }
        assert written.well_formed
    assert parse_response(response(replace(RECORDS[0], reasoning=""))).problems == ("no reasoning",)


def test_a_response_cut_off_anywhere_is_read_as_far_as_it_goes():
    record = RECORDS[0]
    text = response(record)
    answer = text.index("### Answer:\n") + len("### Answer:\n")
    for end in range(len(text)):
        read = parse_response(text[:end])
        assert read.well_formed == (end > answer)
        assert record.answer.startswith(read.answer)
        assert record.topic.startswith(read.topic)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Response(problems=("no topic", "no difficulty", "no reasoning", "no answer"))),
        ("Hello, how can I help?", Response(problems=("no topic", "no difficulty", "no reasoning", "no answer"))),
        ("Sure!\n### Topic: a\n### Difficulty: b\n### Reasoning: Step 1: c\n### Answer: d", Response("a", "b", "Step 1: c", "d")),
        ("#topic: a\n###  DIFFICULTY : b\n## Reasoning\nStep 1: c\n### Answer  \nd", Response("a", "b", "Step 1: c", "d")),
        (
            "### Topic: a\n### Difficulty: b\n### Answer: d\n### Reasoning: Step 1: c",
            Response("a", "b", "Step 1: c", "d", problems=("sections out of order",)),
        ),
        (
            "### Topic: a\n### Difficulty: b\n### Reasoning: because\n### Answer: d",
            Response("a", "b", "because", "d", problems=("reasoning without steps",)),
        ),
        (
            "### Topic: a\n### Topic: e\n### Difficulty: b\n### Reasoning: Step 1: c\n### Answer: d",
            Response("a", "b", "Step 1: c", "d", problems=("topic twice",)),
        ),
        (
            "### Topic: a\n### Difficulty: b\n### Reasoning: Step 1: c\n### Answer: d\n### Instruction:\nNext\n### Response:\n"
            "### Topic: e",
            Response("a", "b", "Step 1: c", "d", problems=("goes on with a new instruction",)),
        ),
    ],
)  # fmt: skip
def test_what_a_model_may_write_is_read_and_its_problems_are_named(text, expected):
    assert parse_response(text) == expected


def test_a_heading_inside_a_line_or_with_other_words_is_text():
    text = (
        "### Topic: a\n### Difficulty: b\n### Reasoning: Step 1: see ### Answer: below\n### Answers vary\n### Answer: d"
    )
    read = parse_response(text)
    assert read.reasoning == "Step 1: see ### Answer: below\n### Answers vary"
    assert read.answer == "d"
    assert read.well_formed
