"""Labelled questions: reading with file and line, likelihoods against a slow loop, accuracies against hand counts."""

import json
from pathlib import Path

import pytest
import torch

from helpers.legal.correctness import rate
from helpers.legal.generation import generate
from helpers.legal.layout import Layout
from helpers.legal.multiple_choice import ANSWER, Question, Scored, accuracy, load_questions, prompt_text, score_labels

from .test_legal_layout import CHATML, byte_level_bpe, tiny_qwen2
from .xla_process import answers_on_xla

HEARSAY = [("The letter was read aloud.", "Yes"), ("She saw the dog.", "No"), ("He said so in court.", "no")]
FORMS = [("Repair a kettle.", "Common Law"), ("Sell a kettle.", "UCC"), ("Sell two kettles.", "UCC")]


def tsv(path, rows, header=("index", "answer", "text")):
    lines = ["\t".join(header), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def jsonl(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


@pytest.fixture
def two_tasks(tmp_path):
    rows = [{"task": "hearsay", "text": text, "answer": answer} for text, answer in HEARSAY]
    rows += [{"task": "ucc_v_common_law", "inputs": {"contract": t, "state": "Ohio"}, "answer": a} for t, a in FORMS]
    return jsonl(tmp_path / "legal.jsonl", rows)


@pytest.fixture(scope="module")
def layout():
    return Layout(byte_level_bpe(CHATML, eos="<|im_end|>"))


@pytest.fixture(scope="module")
def model(layout):
    return tiny_qwen2(layout.tokenizer).eval()


# ---- reading


def test_a_tsv_in_its_tasks_folder_is_one_task_with_the_labels_that_occur(tmp_path):
    folder = tmp_path / "hearsay"
    folder.mkdir()
    rows = [(n, answer, text) for n, (text, answer) in enumerate(HEARSAY)]
    found = load_questions(tsv(folder / "test.tsv", rows))
    assert found.questions == (
        Question("hearsay", "The letter was read aloud.", "Yes", ("No", "Yes"), 2),
        Question("hearsay", "She saw the dog.", "No", ("No", "Yes"), 3),
        Question("hearsay", "He said so in court.", "No", ("No", "Yes"), 4),
    )


def test_each_task_of_a_jsonl_has_its_own_labels(two_tasks):
    questions = load_questions(two_tasks).questions
    assert [question.labels for question in questions] == [("No", "Yes")] * 3 + [("Common Law", "UCC")] * 3
    assert questions[3].text == "contract: Repair a kettle.\nstate: Ohio"


def test_quoted_fields_hold_tabs_and_quotes(tmp_path):
    path = tsv(tmp_path / "a.tsv", [(0, "Yes", '"a\tb ""c"""'), (1, "No", "d")])
    assert load_questions(path).questions[0].text == 'a\tb "c"'


def test_a_task_with_a_single_label_is_set_aside_and_refused_where_there_is_no_other(tmp_path):
    rows = [{"task": "a", "text": "t", "answer": "Yes"}] * 2
    with pytest.raises(ValueError, match=r"x\.jsonl.*no task has answers of more than one kind"):
        load_questions(jsonl(tmp_path / "x.jsonl", rows))
    rows += [{"task": "b", "text": "u", "answer": answer} for answer in ("Yes", "No")]
    found = load_questions(jsonl(tmp_path / "x.jsonl", rows))
    assert [question.task for question in found.questions] == ["b", "b"]
    assert found.set_aside == ("a",)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], r"no task has answers"),
        ([{"text": "t"}], r"line 1: `answer` is missing or empty; fields found: text"),
        ([{"answer": "Yes"}], r"line 1: `text` is missing or empty; fields found: answer"),
        ([{"answer": "Yes", "text": "t"}, {"answer": " ", "text": "t"}], r"line 2: `answer` is missing or empty"),
        ([{"answer": "Yes", "text": ["t"]}], r"line 1, column `text` holds a list"),
        ([["t"]], r"line 1 is not a JSON object"),
    ],
)
def test_a_bad_row_is_named_with_file_and_line(tmp_path, rows, message):
    with pytest.raises(ValueError, match=rf"bad\.jsonl.*{message}"):
        load_questions(jsonl(tmp_path / "bad.jsonl", rows))


def test_a_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.tsv"):
        load_questions(tmp_path / "none.tsv")
    (tmp_path / "a.csv").write_text("answer,text\n")
    with pytest.raises(ValueError, match=r"cannot read \.csv"):
        load_questions(tmp_path / "a.csv")
    (tmp_path / "a.jsonl").write_text('{"answer": "Yes", "text": "t"}\n{"answer"\n')
    with pytest.raises(ValueError, match=r"a\.jsonl.*line 2 is not JSON"):
        load_questions(tmp_path / "a.jsonl")
    with pytest.raises(ValueError, match=r"empty\.tsv.*no task has answers"):
        load_questions(tsv(tmp_path / "empty.tsv", []))
    with pytest.raises(ValueError, match=r"wide\.tsv.*line 2 has more fields"):
        load_questions(tsv(tmp_path / "wide.tsv", [(0, "Yes", "t", "u")]))
    with pytest.raises(ValueError, match=r"no\.tsv.*line 2: `text` is missing or empty; fields found: index, answer"):
        load_questions(tsv(tmp_path / "no.tsv", [(0, "Yes")], header=("index", "answer")))


# ---- likelihood


def slow_nats(model, layout, context, text):
    """-log p(text | context), a forward pass a token."""
    ids = layout.tokenizer(text, add_special_tokens=False)["input_ids"]
    total = 0.0
    for t, token in enumerate(ids):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([context + ids[:t]])).logits[0, -1].double()
        total -= float(logits.log_softmax(-1)[token])
    return total


def test_label_likelihoods_are_those_of_a_loop(model, layout, two_tasks):
    questions = load_questions(two_tasks).questions
    found = score_labels(model, layout, questions, max_length=512, batch_size=5)
    for one in found:
        context = layout.prompt_ids([prompt_text(one.question)])[0]
        head = slow_nats(model, layout, context, ANSWER)
        expected = [slow_nats(model, layout, context, ANSWER + label) - head for label in one.question.labels]
        assert one.nats == pytest.approx(expected, abs=1e-3)
        assert not one.cut


def test_a_longer_label_wins_only_when_its_length_is_allowed_for():
    question = Question("t", "text", "Common Law", ("Common Law", "UCC"), 1)
    one = Scored(question, (8.0, 3.0), cut=False)  # 0.8 against 1.0 nats a byte
    assert (one.plain, one.normalised) == ("UCC", "Common Law")


def test_the_prompt_shows_task_text_and_labels(two_tasks):
    question = load_questions(two_tasks).questions[3]
    assert prompt_text(question) == (
        "Task: ucc v common law\n\ncontract: Repair a kettle.\nstate: Ohio\n\nAnswer with one of: Common Law; UCC"
    )


def test_a_text_that_is_too_long_loses_its_end_and_says_so(model, layout):
    question = Question("t", "kettle " * 400, "Yes", ("No", "Yes"), 7)
    one = score_labels(model, layout, [question], max_length=256)[0]
    assert one.cut
    lengths = []
    handle = model.register_forward_pre_hook(
        lambda module, args, kwargs: lengths.append(kwargs["input_ids"].shape[1]), with_kwargs=True
    )
    score_labels(model, layout, [question], max_length=256)
    handle.remove()
    assert 240 < max(lengths) <= 256
    with pytest.raises(ValueError, match=r"max_length=20: the question of line 7 \(task 't'\)"):
        score_labels(model, layout, [question], max_length=20)


def test_with_reasoning_the_label_follows_what_the_model_wrote(model, layout, two_tasks):
    questions = load_questions(two_tasks).questions[:3]
    found = score_labels(model, layout, questions, max_length=512, reasoning_tokens=6)
    contexts = layout.prompt_ids([prompt_text(question) for question in questions])
    written = generate(
        model, layout.tokenizer, contexts, max_new_tokens=6, stop_token_ids=layout.stop_token_ids, batch_size=8
    )
    for one, context, text in zip(found, contexts, written, strict=True):
        head = f"{text.text.strip()}\n\n{ANSWER}" if text.text.strip() else ANSWER
        before = slow_nats(model, layout, context, head)
        expected = [slow_nats(model, layout, context, head + label) - before for label in one.question.labels]
        assert one.nats == pytest.approx(expected, abs=1e-3)
    assert [one.nats for one in found] != [one.nats for one in score_labels(model, layout, questions, max_length=512)]


# ---- accuracy


def scored(task, answers, choices, labels=("No", "Yes")):
    return [
        Scored(
            Question(task, "t", answer, labels, n), tuple(0.0 if label == choice else 9.0 for label in labels), False
        )
        for n, (answer, choice) in enumerate(zip(answers, choices, strict=True))
    ]


def test_accuracies_and_baselines_are_those_counted_by_hand():
    ones = scored("a", ["Yes", "Yes", "Yes", "No"], ["Yes", "Yes", "Yes", "Yes"])
    ones += scored("b", ["x", "y"], ["x", "y"], labels=("x", "y", "z", "w"))
    found = accuracy(ones)
    assert found["accuracy"] == rate(5, 6)
    assert found["balanced"] == pytest.approx((0.5 + 1) / 2)
    baselines = found["baselines"]
    assert baselines["uniform_chance"] == pytest.approx((4 * 0.5 + 2 * 0.25) / 6)
    assert baselines["best_constant"] == pytest.approx((3 + 1) / 6)
    assert found["tasks"]["b"] == {"questions": 2, "labels": 4, "right": 2, "right_normalised": 2}


def test_a_model_that_learnt_the_labels_is_right(layout, two_tasks):
    questions = load_questions(two_tasks).questions
    model = tiny_qwen2(layout.tokenizer)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    rows = []
    for question in questions:
        prompt = layout.prompt_ids([prompt_text(question)])[0]
        label = layout.tokenizer(ANSWER + question.answer)["input_ids"]
        rows.append((torch.tensor([prompt + label]), torch.tensor([[-100] * len(prompt) + label])))
    before = accuracy(score_labels(model, layout, questions, max_length=512))
    for _ in range(60):
        loss = sum(model(input_ids=ids, labels=labels).loss for ids, labels in rows)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    after = accuracy(score_labels(model, layout, questions, max_length=512))
    assert after["accuracy"]["count"] == after["accuracy_normalised"]["count"] == 6 > before["accuracy"]["count"]


LEGALBENCH = Path("/work/shared/data/legalbench_fewshot/legalbench_train.jsonl")


@pytest.mark.skipif(not LEGALBENCH.exists(), reason="needs a copy of LegalBench's training rows")
def test_legalbench_rows_load_with_their_single_label_tasks_set_aside():
    found = load_questions(LEGALBENCH)
    assert all(task.startswith("maud_") for task in found.set_aside)
    assert (len(found.questions), len(found.set_aside)) == (464, 34)
    assert accuracy([Scored(q, tuple(range(len(q.labels))), False) for q in found.questions])["accuracy"]["of"] == 464


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers import xla
from helpers.legal.layout import Layout
from helpers.legal.multiple_choice import Question, score_labels
from tests.test_legal_multiple_choice import CHATML, FORMS, HEARSAY, byte_level_bpe, tiny_qwen2

device = xla.start()
layout = Layout(byte_level_bpe(CHATML, eos="<|im_end|>"))
asked = [Question("a", text, "Yes", ("No", "Yes"), 1) for text, _ in HEARSAY]
asked += [Question("b", text, "UCC", ("Common Law", "UCC"), 1) for text, _ in FORMS]


def nats(model, questions):
    return [one.nats for one in score_labels(model, layout, questions, max_length=256, batch_size=4)]


answers = {"cpu": nats(tiny_qwen2(layout.tokenizer), asked)}
model = tiny_qwen2(layout.tokenizer).to(device)
xla.replicate(model)
xla.sync()
answers["xla"] = nats(model, asked)
before = xla.counters()["compiles"]
answers["again"] = nats(model, asked[1:])
answers["compiles"] = xla.counters()["compiles"] - before
print("ANSWERS " + json.dumps(answers))
"""


def test_eight_xla_devices_give_the_cpus_likelihoods_and_other_questions_compile_nothing():
    answers = answers_on_xla(ON_XLA)
    for found, expected in zip(answers["xla"] + answers["again"], answers["cpu"] + answers["cpu"][1:], strict=True):
        assert found == pytest.approx(expected, abs=1e-3)
    assert answers["compiles"] == 0
