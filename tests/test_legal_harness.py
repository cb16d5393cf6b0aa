"""Labelled questions by lm-evaluation-harness: files with line numbers, accuracies against likelihoods of a slow loop."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch

from helpers.legal.harness import evaluate, load_tasks, read_tasks, table

from .test_legal_layout import CHATML, byte_level_bpe, tiny_qwen2

INSTALLED = importlib.util.find_spec("lm_eval") is not None
needs_lm_eval = pytest.mark.skipif(not INSTALLED, reason="lm-evaluation-harness (lm_eval) is not installed")
pytestmark = pytest.mark.once
HEARSAY = [("The letter was read aloud.", "Yes"), ("She saw the dog.", "No"), ("He said so in court.", "No")]
FORMS = [
    ("Repair a kettle.", "Common Law"),
    ("Sell a kettle.", "UCC"),
    ("Sell two kettles.", "UCC"),
    ("Mend it.", "UCC"),
]


def jsonl(path: Path, rows) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


@pytest.fixture
def two_tasks(tmp_path) -> str:
    rows = [
        {"task": name, "text": t, "answer": a} for name, of in (("hearsay", HEARSAY), ("forms", FORMS)) for t, a in of
    ]
    return jsonl(tmp_path / "legal.jsonl", rows)


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_bpe(CHATML, eos="<|im_end|>")


# ---- reading


def test_a_tsv_is_one_task_named_after_its_file_and_quoted_fields_hold_tabs(tmp_path):
    (tmp_path / "hearsay.tsv").write_text('index\tanswer\ttext\n0\tYes\t"a\tb"\n1\tNo\tc\n', encoding="utf-8")
    found = read_tasks(str(tmp_path / "hearsay.tsv"))
    assert found == {"hearsay": [{"text": "a\tb", "answer": "Yes"}, {"text": "c", "answer": "No"}]}


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"holds no row"),
        ([{"text": "t"}], r"line 1: `text` or `answer` is missing or empty; fields found: text"),
        (
            [{"answer": "Yes", "text": "t"}, {"answer": " ", "text": "t"}],
            r"line 2: `text` or `answer` is missing or empty",
        ),
        ([{"answer": "Yes", "text": ["t"]}], r"line 1, column `text` holds a list"),
        ([{"answer": "Yes", "text": "t"}] * 2, r"all answers of task 'bad' are the same"),
        ([["t"]], r"line 1 is not a JSON object"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, rows, message):
    with pytest.raises(ValueError, match=rf"bad\.jsonl.*{message}"):
        read_tasks(jsonl(tmp_path / "bad.jsonl", rows))


@pytest.mark.skipif(INSTALLED, reason="lm-evaluation-harness is installed")
def test_without_the_harness_the_error_says_what_to_install(two_tasks):
    with pytest.raises(ImportError, match=r"questions='legalbench' needs .* `%pip install lm_eval`"):
        load_tasks("legalbench")


@needs_lm_eval
def test_tasks_are_those_of_the_harness_and_an_unknown_one_is_named():
    assert load_tasks("legalbench, mmlu_professional_law") == ["legalbench", "mmlu_professional_law"]
    with pytest.raises(ValueError, match=r"no task 'legalbench_pro'; did you mean legalbench_proa"):
        load_tasks("legalbench_pro")


# ---- asking


def nats(model, tokenizer, context: str, text: str) -> float:
    """-log p(text | context), a forward pass a token."""
    before, whole = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (context, context + text))
    total = 0.0
    for t in range(len(before), len(whole)):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([whole[:t]])).logits[0, -1].double()
        total -= float(logits.log_softmax(-1)[whole[t]])
    return total


@needs_lm_eval
def test_accuracy_is_the_argmax_of_likelihoods_counted_by_hand(two_tasks, tokenizer):
    model = tiny_qwen2(tokenizer).train()
    found = evaluate(model, tokenizer, two_tasks, batch_size=3)
    for name, rows in (("hearsay", HEARSAY), ("forms", FORMS)):
        options = sorted({answer for _, answer in rows})
        right = normalised = 0
        for text, answer in rows:
            scores = [nats(model.eval(), tokenizer, f"{text}\nAnswer:", f" {each}") for each in options]
            right += options[scores.index(min(scores))] == answer
            shares = [score / len(each) for score, each in zip(scores, options, strict=True)]
            normalised += options[shares.index(min(shares))] == answer
        measured = found["tasks"][name]
        assert (measured["acc"], measured["acc_norm"]) == (right / len(rows), normalised / len(rows))
        assert measured["uniform_chance"] == 0.5
    assert found["tasks"]["forms"]["best_constant"] == 0.75
    assert found["examples_in_the_prompt"] == {"hearsay": 0, "forms": 0}


@needs_lm_eval
def test_a_model_that_learnt_the_answers_is_right_and_the_questions_are_pinned(two_tasks, tokenizer):
    model = tiny_qwen2(tokenizer)
    before = evaluate(model, tokenizer, two_tasks)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = []
    for text, answer in HEARSAY + FORMS:
        prompt, whole = (tokenizer(f"{text}\nAnswer:{end}")["input_ids"] for end in ("", f" {answer}"))
        rows.append((torch.tensor([whole]), torch.tensor([[-100] * len(prompt) + whole[len(prompt) :]])))
    for _ in range(60):
        loss = sum(model(input_ids=ids, labels=labels).loss for ids, labels in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = evaluate(model, tokenizer, two_tasks)
    assert [after["tasks"][name]["acc"] for name in ("hearsay", "forms")] == [1, 1]
    assert before["hashes"] == after["hashes"]
    row = {"task": "forms", "measure": "acc", "before": before["tasks"]["forms"]["acc"], "after": 1.0}
    assert row in table(before=before, after=after)


@needs_lm_eval
def test_legalbench_with_its_official_prompt_is_asked_of_a_local_copy(tokenizer, tmp_path, monkeypatch):
    """`nguha/legalbench` below the working directory is read in the place of the hub; the rows are made here."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    copy = tmp_path / "nguha" / "legalbench"
    copy.mkdir(parents=True)
    rows = [
        {"text": f"The mark '{word}' for kettles.", "answer": "generic"}
        for word in ["Kettle", "Pot", "Pan", "Jug", "Cup", "Mug"]
    ]
    for split in ("train", "test"):
        jsonl(copy / f"{split}.jsonl", rows)
    splits = "".join(f"\n  - split: {split}\n    path: {split}.jsonl" for split in ("train", "test"))
    (copy / "README.md").write_text(f"---\nconfigs:\n- config_name: abercrombie\n  data_files:{splits}\n---\n")
    model = tiny_qwen2(tokenizer)
    before = evaluate(model, tokenizer, "legalbench_abercrombie")
    assert before["tasks"]["legalbench_abercrombie"]["exact_match get-answer"] == 0
    assert before["examples_in_the_prompt"] == {"legalbench_abercrombie": 5}
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    ids = torch.tensor([tokenizer(f"Description: {row['text']}\nType: generic\n\n")["input_ids"][-24:] for row in rows])
    for _ in range(60):
        loss = model(input_ids=ids, labels=ids).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = evaluate(model, tokenizer, "legalbench_abercrombie")
    assert after["tasks"]["legalbench_abercrombie"]["exact_match get-answer"] == 1
    assert before["hashes"] == after["hashes"]
