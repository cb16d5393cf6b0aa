"""helpers.train.meter: tokens without padding, a clock that stands still beside the steps, MFU against a named peak."""

import math

import pytest
import torch
from transformers import TrainerControl, TrainerState

from helpers.legal.packing import FixedBlocks
from helpers.train.meter import Meter
from tests.workloads import cpu_by_hand

pytestmark = pytest.mark.once


def test_every_column_of_texts_counts_but_not_its_padding():
    meter = Meter(cpu_by_hand(), 1.0)
    meter.count({"input_ids": torch.zeros(4, 16), "labels": torch.zeros(4)})
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    anchors = {"anchor_input_ids": torch.zeros(2, 7), "anchor_attention_mask": torch.ones(2, 7)}
    meter.count(anchors | {"positive_input_ids": torch.zeros(2, 5), "positive_attention_mask": mask})
    meter.count(FixedBlocks(8, pad_token_id=0)([{"input_ids": [5] * n, "labels": [5] * n} for n in (8, 3)]))
    segments = torch.tensor([[1, 1, 2, 0, 0, 0]])
    meter.count({"root_ids": torch.ones(1, 6), "leaf_ids": torch.ones(1, 4, 2), "root_segments": segments})
    assert meter.state()["attributes"]["tokens"] == 4 * 16 + (2 * 12 - 4) + (16 - 5) + (6 - 3)


def session(state: TrainerState, steps: int, save_at: int) -> Meter:
    """Steps of 100 tokens in 2 s, the first two in 60 s; then the seconds of everything between the steps are 5."""
    seconds = [0.0]
    meter = Meter(cpu_by_hand(), 1.0)
    meter.clock = lambda: seconds[0]
    meter.on_train_begin(None, state, None)
    for step in range(steps):
        control = TrainerControl(should_save=step + 1 in (save_at, steps))
        meter.on_step_begin(None, state, control)
        seconds[0] += 60.0 if step < 2 else 2.0
        meter.count({"input_ids": torch.zeros(2, 50)})
        state.global_step += 1
        meter.on_step_end(None, state, control)
        if control.should_save:
            state.stateful_callbacks["Meter"] = meter.state()
            seconds[0] += 5.0
    return meter


def test_rates_are_over_the_steps_alone_in_all_sessions():
    state = TrainerState(max_steps=20, stateful_callbacks=[Meter(cpu_by_hand(), 1.0)])
    session(state, steps=8, save_at=4)
    results = session(state, steps=12, save_at=3).results(steps=20, examples=3)
    assert (results["seconds"], results["examples_per_second"], results["tokens_per_second"]) == (40.0, 1.5, 50.0)
    shown = {row["measured"]: row[""] for row in Meter.rows(results)}
    assert shown["seconds"] == "40 s" and shown["peak memory bytes"].endswith("iB")


def test_a_run_of_one_step_has_a_rate_and_a_run_of_none_has_not():
    state = TrainerState(max_steps=1, stateful_callbacks=[Meter(cpu_by_hand(), 1.0)])
    assert session(state, steps=1, save_at=1).step_seconds() == 60.0
    assert math.isnan(Meter(cpu_by_hand(), 1.0).results(0, 8)["tokens_per_second"])


@pytest.mark.parametrize(
    ("name", "precision", "devices", "expected"),
    [
        # 1,000 tokens/s x 6.5e9 FLOP = 6.5 TFLOP/s, of 65 (fp16) or 8.1 (fp32); 6.5 of 197 and of 4 x 197.
        ("Tesla T4", "fp16", 1, 0.1),
        ("Tesla T4", "fp32", 1, 0.8025),
        ("TPU v5e", "bf16", 1, 0.033),
        ("TPU v5e", "bf16", 4, 0.0082),
    ],
)
def test_mfu_agrees_with_hand_arithmetic(name, precision, devices, expected):
    meter = Meter(cpu_by_hand(precision, name, devices), flops_per_token=6.5e9)
    meter.tokens, meter.seconds, meter.timed_steps = 10_000, 4.0, 8  # of ten steps
    assert meter.results(10, 1)["mfu"] == pytest.approx(2 * expected, abs=1e-4)


def test_peak_memory_of_a_cpu_run_grows_with_what_was_touched():
    before = cpu_by_hand().engine.peak_memory()
    block = torch.ones((before + 2**26) // 4)  # more than the peak so far, whatever ran before
    assert cpu_by_hand().engine.peak_memory() >= block.nbytes
