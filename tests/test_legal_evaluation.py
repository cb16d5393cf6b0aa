"""Metrics of held-out answers: intervals against Wilson's formula, loss against a loop, verdicts on known texts."""

import math

import pytest
import torch

from helpers.cpu_copy import cpu_copy
from helpers.legal.correctness import rate
from helpers.legal.evaluation import evaluate_answers, loss_and_perplexity, row_nats
from helpers.legal.layout import IGNORED, Layout, response
from helpers.legal.records import load_records

from .test_legal_layout import CHATML, byte_level_bpe, tiny_qwen2
from .xla_process import answers_on_xla

RECORDS = load_records("sample", num_records=40, seed=3).records


@pytest.fixture(scope="module")
def tokenizer():
    return byte_level_bpe(CHATML, eos="<|im_end|>")


@pytest.fixture(scope="module")
def model(tokenizer):
    return tiny_qwen2(tokenizer).eval()


# ---- rates


@pytest.mark.parametrize(("count", "of"), [(0, 10), (10, 10), (3, 7), (81, 263), (1, 1)])
def test_the_interval_is_wilsons(count, of):
    z, p = 1.959963984540054, count / of
    centre, half = p + z * z / (2 * of), z * math.sqrt(p * (1 - p) / of + z * z / (4 * of * of))
    expected = [(centre - half) / (1 + z * z / of), (centre + half) / (1 + z * z / of)]
    found = rate(count, of)
    assert (found["low"], found["high"]) == pytest.approx(expected, abs=1e-9)


def test_a_rate_of_nothing_is_unknown():
    assert rate(0, 0) == {"rate": None, "count": 0, "of": 0, "low": 0.0, "high": 1.0}


# ---- what is written


def test_an_untrained_model_has_no_form_and_asked_again_writes_the_same(model, tokenizer):
    layout = Layout(tokenizer)
    options = {"max_new_tokens": 12, "batch_size": 3}
    found, samples = evaluate_answers(model, layout, RECORDS[:5], **options)
    again, _ = evaluate_answers(model, layout, RECORDS[:5], **options)
    assert found == again
    assert found["format"]["count"] == 0
    assert [s.record for s in samples] == list(RECORDS[:5])
    assert all(s.generated.stopped or len(s.generated.tokens) == 12 for s in samples)


def test_a_model_that_knows_one_answer_by_heart_is_well_formed_and_stops(tokenizer):
    layout, record = Layout(tokenizer), RECORDS[0]
    rows = layout.rows([record])
    ids, labels = (torch.tensor([rows[0][name]]) for name in ("input_ids", "labels"))
    model = tiny_qwen2(tokenizer)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(150):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found, samples = evaluate_answers(model, layout, [record], max_new_tokens=ids.shape[1])
    assert samples[0].generated.text == response(record)
    assert [found[name]["count"] for name in ("format", "verdict", "support", "stops")] == [1, 1, 1, 1]
    assert loss_and_perplexity(model, rows)["loss"] == pytest.approx(loss.item(), abs=0.05)


# ---- loss


def slow_nats(model, row):
    total = 0.0
    for t in range(1, len(row["input_ids"])):
        if row["labels"][t] != IGNORED:
            with torch.no_grad():
                logits = model(input_ids=torch.tensor([row["input_ids"][:t]])).logits[0, -1].double()
            total -= float(logits.log_softmax(-1)[row["labels"][t]])
    return total


@pytest.fixture(scope="module")
def rows(tokenizer):
    """Rows of 40 to 60 tokens with prompts and completions of very different lengths."""
    whole = Layout(tokenizer).rows(RECORDS[:6])
    starts = [next(t for t, label in enumerate(row["labels"]) if label != IGNORED) for row in whole]
    cuts = [(start - 5 * n, start + 40 - 7 * n) for n, start in enumerate(starts)]
    return [{k: v[a:b] for k, v in row.items()} for row, (a, b) in zip(whole, cuts, strict=True)]


def test_each_rows_nats_are_those_of_a_loop_over_its_tokens(model, rows):
    found = row_nats(model, rows, batch_size=4)
    assert [nats for nats, _ in found] == pytest.approx([slow_nats(model, row) for row in rows], abs=1e-3)
    assert [count for _, count in found] == [sum(label != IGNORED for label in row["labels"][1:]) for row in rows]


def test_the_loss_weighs_tokens_not_rows_or_batches(model, rows):
    tokens = sum(label != IGNORED for row in rows for label in row["labels"][1:])
    expected = sum(slow_nats(model, row) for row in rows) / tokens
    for batch_size in (1, 4, 8):
        found = loss_and_perplexity(model, rows, batch_size=batch_size)
        assert found == {
            "loss": pytest.approx(expected, abs=1e-5),
            "perplexity": pytest.approx(math.exp(expected), rel=1e-5),
            "tokens": tokens,
            "rows": 6,
        }


def test_the_loss_is_that_of_the_models_own_forward(model, tokenizer):
    (row,) = Layout(tokenizer).rows(RECORDS[:1])
    with torch.no_grad():
        own = model(input_ids=torch.tensor([row["input_ids"]]), labels=torch.tensor([row["labels"]])).loss
    assert loss_and_perplexity(model, [row])["loss"] == pytest.approx(float(own), abs=1e-5)


def test_logits_of_the_prompts_are_not_computed(model, rows):
    widths = []
    handle = model.lm_head.register_forward_hook(lambda module, inputs, output: widths.append(output.shape[1]))
    row_nats(model, rows[1:2], batch_size=1)
    handle.remove()
    assert widths == [sum(label != IGNORED for label in rows[1]["labels"]) + 1]


def test_a_lora_models_loss_is_that_of_its_merged_weights(tokenizer, rows):
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    adapted = get_peft_model(tiny_qwen2(tokenizer), LoraConfig(target_modules="all-linear", init_lora_weights=False))
    merged = loss_and_perplexity(cpu_copy(adapted).merge_and_unload(), rows)
    assert loss_and_perplexity(adapted, rows)["loss"] == pytest.approx(merged["loss"], abs=1e-5)


def test_rows_without_a_label_have_no_loss(model, rows):
    with pytest.raises(ValueError, match="no token carries a label"):
        loss_and_perplexity(model, [{"input_ids": [5, 6], "labels": [IGNORED, IGNORED]}])
    unlabelled = {"input_ids": [5, 6], "labels": [5, IGNORED]}  # the first token has no prediction
    assert row_nats(model, [unlabelled, *rows[:1]], batch_size=2)[0] == (0.0, 0)


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers import xla
from helpers.legal.evaluation import loss_and_perplexity
from helpers.legal.layout import Layout
from tests.test_legal_evaluation import CHATML, RECORDS, byte_level_bpe, tiny_qwen2

device = xla.start()
tokenizer = byte_level_bpe(CHATML, eos="<|im_end|>")
rows = Layout(tokenizer).rows(RECORDS[:11])
answers = {"cpu": loss_and_perplexity(tiny_qwen2(tokenizer), rows)}
model = tiny_qwen2(tokenizer).to(device)
xla.replicate(model)
xla.sync()
answers["compiles"] = []
for some in (rows, rows[:3]):
    before = xla.counters()["compiles"]
    answers.setdefault("xla", loss_and_perplexity(model, some))
    loss_and_perplexity(model, some)
    answers["compiles"].append(xla.counters()["compiles"] - before)
print("ANSWERS " + json.dumps(answers))
"""


def test_eight_xla_devices_give_the_cpus_loss_with_one_graph():
    answers = answers_on_xla(ON_XLA)
    assert answers["xla"] == {name: pytest.approx(value, rel=1e-5) for name, value in answers["cpu"].items()}
    assert answers["compiles"][0] <= 2
