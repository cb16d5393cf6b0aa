"""Metrics of held-out answers: intervals against Wilson's formula, an untrained model, one that knows an answer by heart."""

import math

import pytest
import torch

from helpers.legal.correctness import answers, measure, rate
from helpers.legal.layout import Layout, response
from helpers.legal.records import load_records

from .test_legal_layout import CHATML, byte_level_bpe, taught, tiny_qwen2

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
    samples = answers(model, layout, RECORDS[:5], **options)
    assert answers(model, layout, RECORDS[:5], **options) == samples
    found = measure(samples)
    assert found["format"]["count"] == 0
    assert [s.record for s in samples] == list(RECORDS[:5])
    assert all(s.generated.stopped or len(s.generated.tokens) == 12 for s in samples)


def test_a_model_that_knows_one_answer_by_heart_is_well_formed_and_stops(tokenizer):
    layout, record = Layout(tokenizer), RECORDS[0]
    rows = taught(layout, [record])
    ids, labels = (torch.tensor([rows[0][name]]) for name in ("input_ids", "labels"))
    model = tiny_qwen2(tokenizer)
    optimizer = torch.optim.Adam(model.parameters(), 3e-2)
    for _ in range(150):
        loss = model(input_ids=ids, labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    samples = answers(model, layout, [record], max_new_tokens=ids.shape[1])
    found = measure(samples)
    assert samples[0].generated.text == response(record)
    assert [found[name]["count"] for name in ("format", "verdict", "support", "stops")] == [1, 1, 1, 1]
