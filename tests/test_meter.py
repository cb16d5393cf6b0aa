"""helpers.train.meter: counts, clocks that keep evaluation apart, MFU against a named peak."""

from types import SimpleNamespace

import pytest
import torch

from helpers.legal.packing import FixedBlocks
from helpers.train import meter
from helpers.train.meter import Meter

from .workloads import cpu_by_hand

pytestmark = pytest.mark.once


@pytest.fixture
def passes(monkeypatch):
    """Lets time pass: seconds on the wall, and of the processor."""
    now = [100.0, 7.0]
    monkeypatch.setattr(meter, "time", SimpleNamespace(perf_counter=lambda: now[0], process_time=lambda: now[1]))

    def passes(wall: float, processor: float) -> None:
        now[0] += wall
        now[1] += processor

    return passes


def test_every_column_of_texts_counts_and_a_pair_is_one_example():
    counted = Meter(cpu_by_hand(), 1.0)
    for shape in ((4, 16), (3, 8)):
        counted.count({"input_ids": torch.zeros(shape), "labels": torch.zeros(shape[0])})
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    anchors = {"anchor_input_ids": torch.zeros(2, 7), "anchor_attention_mask": torch.ones(2, 7)}
    counted.count(anchors | {"positive_input_ids": torch.zeros(2, 5), "positive_attention_mask": mask})
    assert (counted.examples, counted.positions) == (4 + 3 + 2, 4 * 16 + 3 * 8 + 2 * 12)
    assert counted.padding == 4 and counted.results()["padding"] == round(4 / 112, 4)
    blocks = FixedBlocks(8, pad_token_id=0)([{"input_ids": [5] * length, "labels": [5] * length} for length in (8, 3)])
    counted.count(blocks)
    roots = {
        "root_ids": torch.ones(1, 6),
        "leaf_ids": torch.ones(1, 4, 2),
        "root_segments": torch.tensor([[1, 1, 2, 0, 0, 0]]),
    }
    counted.count(roots)
    assert (counted.positions, counted.padding) == (112 + 16 + 6, 4 + 5 + 3)


def test_rates_are_over_training_alone_in_all_sessions_and_the_state_that_is_being_saved_counts_the_saving(passes):
    first = Meter(cpu_by_hand(), 1.0)
    first.start()
    passes(4.0, 3.0)
    first.count({"input_ids": torch.zeros(50, 100)})
    with first.aside():
        passes(2.0, 2.0)
        state = first.state()  # as written into the checkpoint that is being saved
    assert (state["seconds"], state["aside_seconds"], state["processor_seconds"]) == (6.0, 2.0, 3.0)
    passes(9.0, 9.0)  # of no session that goes on
    second = Meter(cpu_by_hand(), 1.0)
    second.start(state | {"compile_seconds": 1.0})
    passes(2.0, 1.0)
    second.close()
    passes(5.0, 5.0)
    assert (second.training_seconds(), second.processor_seconds) == (5.0, 4.0)
    results = second.results()
    assert (results["tokens_per_second"], results["examples_per_second"]) == (1_000.0, 10.0)
    assert (results["seconds"], results["evaluate_and_save_seconds"], results["compile_seconds"]) == (8.0, 2.0, 1.0)


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
def test_mfu_agrees_with_hand_arithmetic(passes, name, precision, devices, expected):
    measured = Meter(cpu_by_hand(precision, name, devices), flops_per_token=6.5e9)
    measured.start({"positions": 7_000, "padding": 2_000})
    passes(5.0, 5.0)
    assert measured.results()["mfu"] == pytest.approx(expected, abs=5e-5)


def test_peak_memory_of_a_cpu_run_grows_with_what_was_touched():
    before = cpu_by_hand().engine.peak_memory()
    block = torch.ones((before + 2**26) // 4)  # more than the peak so far, whatever ran before
    assert cpu_by_hand().engine.peak_memory() >= block.nbytes
