"""helpers.train.meter: counts, clocks that keep evaluation apart, MFU against a named peak."""

from types import SimpleNamespace

import pytest
import torch
from transformers import TrainerState

from helpers.legal.packing import FixedBlocks
from helpers.train import meter
from helpers.train.meter import Meter
from tests.workloads import cpu_by_hand

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


def begun(saved: dict | None = None, **options) -> Meter:
    """A meter of a training that goes on from the state of a checkpoint."""
    begun = Meter(**{"runtime": cpu_by_hand(), "flops_per_token": 1.0} | options)
    state = TrainerState()
    state.stateful_callbacks["Meter"] = saved or {"attributes": {}}
    begun.on_train_begin(None, state, None)
    return begun


def test_every_column_of_texts_counts_and_a_pair_is_one_example():
    counted = begun()
    for shape in ((4, 16), (3, 8)):
        counted.count({"input_ids": torch.zeros(shape), "labels": torch.zeros(shape[0])})
    mask = torch.tensor([[1, 1, 1, 1, 0], [1, 1, 0, 0, 0]])
    anchors = {"anchor_input_ids": torch.zeros(2, 7), "anchor_attention_mask": torch.ones(2, 7)}
    counted.count(anchors | {"positive_input_ids": torch.zeros(2, 5), "positive_attention_mask": mask})
    counted.count(FixedBlocks(8, pad_token_id=0)([{"input_ids": [5] * n, "labels": [5] * n} for n in (8, 3)]))
    segments = torch.tensor([[1, 1, 2, 0, 0, 0]])
    counted.count({"root_ids": torch.ones(1, 6), "leaf_ids": torch.ones(1, 4, 2), "root_segments": segments})
    state = counted.state()["attributes"]
    assert (state["examples"], state["positions"]) == (4 + 3 + 2 + 2 + 1, 4 * 16 + 3 * 8 + 2 * 12 + 16 + 6)
    assert state["padding"] == 4 + 5 + 3


def test_rates_are_over_training_alone_in_all_sessions(passes):
    first = begun()
    passes(4.0, 3.0)
    first.count({"input_ids": torch.zeros(50, 100)})
    with first.aside():
        passes(2.0, 2.0)
        saved = first.state()  # as written into the checkpoint that is being saved
    passes(9.0, 9.0)  # of no session that goes on
    second = begun(saved)
    passes(2.0, 1.0)
    with second.aside():
        passes(3.0, 3.0)
    second.on_train_end()
    passes(5.0, 5.0)
    assert (second.training_seconds(), second.counts["processor_seconds"]) == (6.0, 4.0)
    results = second.results()
    assert (results["seconds"], results["evaluate_and_save_seconds"]) == (9.0, 3.0)
    assert (results["tokens_per_second"], results["examples_per_second"]) == (833.3, 8.333)
    shown = {row["measured"]: row[""] for row in Meter.rows(results)}
    assert shown["seconds"] == "9 s" and shown["peak memory bytes"].endswith("iB")


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
    counts = {"attributes": {"positions": 7_000, "padding": 2_000}}
    measured = begun(counts, runtime=cpu_by_hand(precision, name, devices), flops_per_token=6.5e9)
    passes(5.0, 5.0)
    assert measured.results()["mfu"] == pytest.approx(expected, abs=5e-5)


def test_peak_memory_of_a_cpu_run_grows_with_what_was_touched():
    before = cpu_by_hand().engine.peak_memory()
    block = torch.ones((before + 2**26) // 4)  # more than the peak so far, whatever ran before
    assert cpu_by_hand().engine.peak_memory() >= block.nbytes
