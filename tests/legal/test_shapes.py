"""Records of every shape that people have, from the file through the notebook's own cells to the score and the answer."""

import json
from pathlib import Path

import pytest

from helpers.legal import evaluation
from helpers.legal.parameters import LegalParameters
from helpers.run import disk
from helpers.show import tables
from tests.harness import NOTEBOOKS, cpu_here

from .test_data import filled, question, written

pytestmark = pytest.mark.once

NUMBER = 24
USER, ASSISTANT = {"role": "user", "content": "{q}"}, {"role": "assistant", "content": "{a}"}
CALL = {"name": "search", "arguments": {"act": "{a}"}}
TOOLS = [{"type": "function", "function": {"name": "search", "description": "Finds acts.", "parameters": {}}}]
OPENAI = {"id": "c1", "type": "function", "function": CALL | {"arguments": '{"act": "{a}"}'}}
ASKED = {"role": "tool", "tool_call_id": "c1", "name": "search", "content": "Found {a}."}
IN_CALL = '<tool_call>\n{"name": "search", "arguments": {"act": "{a}"}}\n</tool_call>'
SHAREGPT = [
    {"from": "human", "value": "{q}"},
    {"from": "function_call", "value": json.dumps(CALL)},
    {"from": "observation", "value": "Found {a}."},
    {"from": "gpt", "value": "It is {a}."},
]
LEGACY = [
    {"role": "developer", "content": "Be brief."},
    USER | {"name": "Ada"},
    {"role": "assistant", "content": None, "function_call": OPENAI["function"]},
    {"role": "function", "name": "search", "content": {"found": "{a}"}},
    ASSISTANT,
]
THINKS = ASSISTANT | {"reasoning_content": "Because {a}."}
PART = [{"type": "text", "text": "{q}"}]
# name -> file, form of a row, what is read and what is learned of it
SHAPES = {
    "messages": ("x.jsonl", {"messages": [USER, ASSISTANT]}, ["{q}"], ["{a}"]),
    "messages in Parquet": ("x.parquet", {"messages": [USER, ASSISTANT]}, ["{q}"], ["{a}"]),
    "Alpaca without input": ("x.jsonl", {"instruction": "{q}", "input": "", "output": "{a}"}, ["{q}"], ["{a}"]),
    "prompt and response": ("x.parquet", {"prompt": "{q}", "response": "{a}"}, ["{q}"], ["{a}"]),
    "context": ("x.jsonl", {"context": "A clause.", "question": "{q}", "answer": "{a}"}, ["A clause.\n\n{q}"], ["{a}"]),
    "capital letters": ("x.csv", {"Question": "{q}", "Answer": "{a}"}, ["{q}"], ["{a}"]),
    "ShareGPT with two turns": ("x.json", {"conversations": SHAREGPT[:1] + SHAREGPT[3:] * 1}, ["{q}"], ["It is {a}."]),
    "Alpaca": ("x.json", {"instruction": "Say.", "input": "{q}", "output": "{a}"}, ["Say.\n\n{q}"], ["{a}"]),
    "prompt and completion": ("x.jsonl", {"prompt": "{q}", "completion": "{a}"}, ["{q}"], ["{a}"]),
    "conversational prompt": ("x.jsonl", {"prompt": [USER], "completion": [ASSISTANT]}, ["{q}"], ["{a}"]),
    "reasoning": (
        "x.csv",
        {"question": "{q}", "reasoning": "Step {a}.", "answer": "{a}"},
        ["{q}"],
        ["<think>\nStep {a}.\n</think>\n\n{a}"],
    ),
    "text and label": ("x.csv", {"text": "{q}", "label": "{l}"}, ["Answer with one of: no, yes.", "{q}"], ["{l}"]),
    "function calls of LLaMA-Factory": (
        "x.json",
        {"conversations": SHAREGPT, "tools": json.dumps([TOOLS[0]["function"]])},
        ["Finds acts.", "<tool_response>\nFound {a}.", "{q}"],
        [IN_CALL, "It is {a}."],
    ),
    "tool calls of OpenAI": (
        "x.jsonl",
        {
            "messages": [USER, {"role": "assistant", "content": "", "tool_calls": [OPENAI]}, ASKED, ASSISTANT],
            "tools": TOOLS,
        },
        ["Finds acts.", "<tool_response>\nFound {a}."],
        [IN_CALL, "{a}"],
    ),
    "a call at the end": (
        "x.jsonl",
        {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [OPENAI]}], "tools": TOOLS},
        ["Finds acts."],
        [IN_CALL],
    ),
    "developer, name and function": (
        "x.jsonl",
        {"messages": LEGACY, "tools": TOOLS},
        ["Be brief.", "Ada: {q}", '{"found": "{a}"}'],
        [IN_CALL, "{a}"],
    ),
    "reasoning in every turn": (
        "x.jsonl",
        {
            "messages": [
                USER,
                THINKS,
                USER | {"content": "And?"},
                ASSISTANT | {"content": "<think>Because {a}.</think>{a}"},
            ]
        },
        ["And?"],
        ["<think>\nBecause {a}.\n</think>\n\n{a}"] * 2,
    ),
    "messages as JSON in a table": (
        "x.csv",
        {"messages": json.dumps([USER | {"role": "User"}, ASSISTANT | {"role": "Assistant"}])},
        ["{q}"],
        ["{a}"],
    ),
    "messages in Python's notation": ("x.csv", {"messages": repr([USER, ASSISTANT])}, ["{q}"], ["{a}"]),
    "a turn of weight 0": (
        "x.jsonl",
        {"messages": [USER, ASSISTANT | {"content": "Perhaps.", "weight": 0}, USER | {"content": "Sure?"}, ASSISTANT]},
        ["{q}", "Perhaps.", "Sure?"],
        ["{a}"],
    ),
    "text parts": ("x.jsonl", {"messages": [USER | {"content": PART}, ASSISTANT]}, ["{q}"], ["{a}"]),
    "a system column beside a system turn": (
        "x.jsonl",
        {"messages": [{"role": "system", "content": "Be exact."}, USER, ASSISTANT], "system": "Be brief."},
        ["Be brief.\n\nBe exact."],
        ["{a}"],
    ),
}


class Run:
    """The folder of a run, without provenance."""

    def __init__(self, path: Path):
        self.path = path
        (path / "figures").mkdir()

    def use_method(self): ...

    def note(self, **facts): ...

    def results(self, machine, **results):
        self.written = results


def cells() -> list[str]:
    """The code cells of the notebook from the data to the question by hand."""
    parts = (NOTEBOOKS / "source/legal_cot_sft.py").read_text().split("\n# %%")
    code = [part.partition("\n")[2] for part in parts if not part.startswith((" [markdown]", " tags"))]
    first = next(n for n, text in enumerate(code) if "run.use_method()" in text)
    last = next(n for n, text in enumerate(code) if "evaluation.ask(" in text)
    return code[first : last + 1]


@pytest.mark.parametrize("name", SHAPES)
def test_every_part_of_a_record_is_read_learned_scored_and_asked(name, tmp_path, monkeypatch):
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    file, form, read, learned = SHAPES[name]
    rows = []
    for number in range(NUMBER):
        text = json.dumps(form).replace("{l}", ("no", "yes")[number % 2])
        rows.append(filled(json.loads(text), question(number), f"Act {number}"))
    data = {"data_source": str(written(tmp_path / file, rows)), "base_model": "sample"}
    params = LegalParameters(**data, max_steps=2, batch_size=4, learning_rate=0.01, save_steps=2)
    space = {"params": params, "machine": cpu_here(), "run": Run(tmp_path)}
    space |= {"tables": tables, "write_json": disk.write_json, "say_changed": lambda *_: None}
    for code in cells():
        exec(code, space)
    record, template = space["records"].splits["train"][0], space["template"]
    number = next(n for n in range(NUMBER) if question(n) in record.question)

    def parts(texts):
        label = ("no", "yes")[number % 2]
        return [
            text.replace("{q}", question(number)).replace("{a}", f"Act {number}").replace("{l}", label)
            for text in texts
        ]

    row = space["rows"]["train"][0]
    text = template.tokenizer.decode(row["input_ids"])
    taught = template.tokenizer.decode([label for label in row["labels"] if label != -100])
    for part in parts(read):
        assert part in text and part not in taught
    for part in parts(learned):
        assert taught.count(part) >= parts(learned).count(part)
    assert not space["records"].set_aside and not space["records"].unused
    for record in space["records"].splits["test"]:  # a model that writes the record's own turn is right in everything
        reasoning, answer = evaluation.parts_of(evaluation.last_turn(template, record))
        assert (reasoning, answer) == (record.reasoning, record.answer)
    results = space["run"].written["eval"]
    assert {"answer is right", "stops"} <= results["after"]["form"].keys()
    assert ("every step is right" in results["after"]["form"]) == bool(record.reasoning)
    assert {"trained", "base model", "nearest training record"} <= results["baselines"]["systems"].keys()
    assert bool(space["records"].choices) == (name == "text and label")
