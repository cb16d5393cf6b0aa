"""What is tried where, how a gain is judged, and the climb itself on a real model."""

from __future__ import annotations

import dataclasses
import json
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor

from helpers import tables, xla
from helpers.runtime import Runtime
from helpers.tuning import experiment, measurement
from helpers.tuning.climb import Climb, Rung, climb, judge, plot, tune
from helpers.tuning.measurement import Window
from helpers.tuning.optimisations import Optimisation, optimisations
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.settings import Settings
from helpers.tuning.task import Task

from . import forked
from .tuning_run import BATCH, WORDS, bench_of, task_of, trainer_of
from .xla_process import cpu_here

DRIVER = Path(__file__).with_name("tuning_run.py")
START = Settings(batch_size=8, length=192)


def machine(kind: str, name: str = "a machine", capability=None, precision: str = "fp32") -> Runtime:
    return Runtime(
        kind=kind,
        reason="",
        device_name=name,
        device_count=1,
        memory=16 * 10**9,
        compute_capability=capability,
        precision=precision,
        precision_reason="",
        torch="2.9",
        torch_xla=None,
    )


T4 = machine("cuda", "Tesla T4", (7, 5), "fp16")
A100 = machine("cuda", "NVIDIA A100-SXM4-40GB", (8, 0), "bf16")
CPU = machine("cpu", "x86_64")
TPU = machine("xla", "TPU v5 lite", None, "bf16")


def ladder(runtime: Runtime, *, largest_batch: int = 32, enough_length: int = 64, supported: bool = True, **parameters):
    """Optimisations by name, for a model that supports what can be asked of it, or nothing of it."""
    model = SimpleNamespace(_supports_sdpa=supported, supports_gradient_checkpointing=supported)
    task = Task(None, model, None, None, TuningParameters.defaults().model_copy(update=parameters), runtime)
    found = optimisations(task, largest_batch=largest_batch, enough_length=enough_length)
    return {each.name: each for each in found}


def test_a_t4_gets_fp16_and_no_tf32():
    found = ladder(T4)
    assert found["fp16 autocast"].changes == {"precision": "fp16"}
    assert found["TF32"].why_not == "Tesla T4 (sm_75) has none; it came with sm_80"
    assert found["loader workers, pinned memory"].changes["pin_memory"]


def test_an_a100_gets_bf16_and_tf32():
    found = ladder(A100)
    assert found["bf16 autocast"].changes == {"precision": "bf16"}
    assert found["TF32"].changes == {"tf32": True}


def test_a_cpu_has_no_tf32_and_no_pinned_memory():
    found = ladder(CPU)
    assert "NVIDIA" in found["TF32"].why_not
    assert found["loader workers"].changes["pin_memory"] is False
    assert found["bf16 autocast"].changes == {"precision": "bf16"}


def test_a_tpu_is_tried_on_what_it_has_and_told_why_not_the_rest():
    found = ladder(TPU)
    assert found["bf16 autocast"].changes == {"precision": "bf16"}
    assert found["padding length 64"].changes == {"length": 64}
    for name in ("fused AdamW", "loader workers", "TF32", "torch.compile", "scan over layers"):
        assert found[name].why_not, name
    assert "dynamic padding" not in found
    assert ladder(TPU, enough_length=192)["padding length"].why_not == "the texts fill 192 tokens"


def test_batches_double_up_to_what_fits_or_are_the_one_that_is_asked_for():
    assert [name for name in ladder(CPU) if "batch size" in name] == ["batch size 16", "batch size 32"]
    assert [name for name in ladder(CPU, batch_size=24) if "batch size" in name] == ["batch size 24"]
    assert ladder(CPU, largest_batch=8)["batch size"].why_not == "no larger one fits or is of use (at most 8)"


def test_what_the_user_or_the_model_rules_out_is_not_tried():
    found = ladder(CPU, precision="fp32", supported=False, try_compile=False)
    whys = [
        found[name].why_not for name in ("mixed precision", "SDPA attention", "gradient checkpointing", "torch.compile")
    ]
    assert whys == ["precision='fp32' is asked for", *["the model does not support it"] * 2, "try_compile=False"]


# ---- judging


def windows(*seconds: float, loss: float = 1.0, memory: int | None = None) -> list[Window]:
    return [
        Window(
            steps=4,
            examples=32,
            seconds=s,
            warm_up_seconds=0.0,
            compile_seconds=0.0,
            loss=loss,
            peak_memory=memory,
            utilisation=None,
        )
        for s in seconds
    ]


@pytest.mark.parametrize(
    ("gains", "kept"),
    [((1.5, 1.4, 1.6), True), ((1.03, 1.03, 1.03), True), ((1.5, 0.99, 1.6), False), ((1.01, 1.01, 1.01), False)],
)
def test_only_what_is_faster_every_time_and_more_than_noise_is_kept(gains, kept):
    good, said = judge(gains, windows(1, 1, 1), windows(1, 1, 1))
    assert good is kept
    assert said.startswith("kept" if kept else "did not help here")


def test_memory_is_told_and_a_loss_that_is_no_number_is_not_kept():
    assert "memory x 0.50" in judge((0.8, 0.8), windows(1, memory=1000), windows(1, memory=500))[1]
    assert judge((2.0, 2.0), windows(1), windows(1, loss=float("nan"))) == (False, "the loss is no longer a number")


# ---- the climb


@pytest.fixture(scope="module")
def climbed():
    """(rungs, the bench, how often each setting ran) of a real climb on the CPU."""
    torch.set_num_threads(1)
    bench, start = bench_of(cpu_here())
    ran, run = [], bench.run

    def counted(settings, **options):
        if settings.optimizer == "adamw_torch_fused":
            raise torch.OutOfMemoryError("CUDA out of memory")
        ran.append(settings)
        return run(settings, **options)

    bench.run = counted
    steps = [
        Optimisation("SDPA attention", {"attention": "sdpa"}),
        Optimisation("TF32", why_not="no tensor cores"),
        Optimisation("fused AdamW", {"optimizer": "adamw_torch_fused"}),
        Optimisation("length-grouped batches", {"padding": "grouped"}),
    ]
    return list(climb(bench, start, steps, repetitions=2)), ran


def test_every_setting_is_timed_in_turn_with_what_was_kept_before_it(climbed):
    rungs, ran = climbed
    attention = [settings.attention for settings in ran[2:6]]
    assert attention == ["eager", "sdpa"] * 2
    kept = rungs[1].settings if rungs[1].kept else rungs[0].settings
    after = [settings for settings in ran[6:] if settings.padding == "fixed"]
    assert [settings.attention for settings in after] == [kept.attention] * len(after)
    assert [settings.padding for settings in ran[-4:]] == ["fixed", "grouped"] * 2


def test_every_rung_has_its_numbers_or_its_reason(climbed):
    rungs, _ = climbed
    assert [rung.name for rung in rungs] == ["start", "SDPA attention", "TF32", "fused AdamW", "length-grouped batches"]
    start, sdpa, tf32, fused, grouped = rungs
    assert tf32.verdict == "not tried: no tensor cores" and not tf32.kept and tf32.speed_up is None
    assert fused.verdict == "does not fit into memory" and not fused.kept
    for rung in (start, sdpa, grouped):
        assert rung.speed_up_low <= rung.speed_up <= rung.speed_up_high
        assert rung.examples_per_second > 0 and rung.steps_per_second > 0
        assert 0 <= rung.f1 <= 1 and 0 <= rung.utilisation <= 1
        assert rung.peak_memory_bytes is None or rung.peak_memory_bytes > 10**8
        assert len(rung.gains) == 2
    assert start.speed_up == pytest.approx(1)
    assert sdpa.loss == pytest.approx(start.loss, rel=1e-4)  # the same examples from the same weights
    assert grouped.loss == pytest.approx(start.loss, rel=0.1)


def test_settings_survive_json_and_the_last_that_was_kept_is_the_tuned_one(climbed, tmp_path):
    rungs, _ = climbed
    found = Climb(None, tuple(rungs))
    (tmp_path / "ladder.json").write_text(json.dumps(dataclasses.asdict(found)))
    task = task_of(cpu_here(), resume=True)
    assert tune(task, tmp_path) == found
    assert found.top == [rung for rung in rungs if rung.kept][-1] and isinstance(found.top.settings, Settings)


def test_the_table_and_the_picture_show_every_rung(climbed, tmp_path):
    rungs, _ = climbed
    table = tables.text([rung.row() for rung in rungs])
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == [rung.name for rung in rungs]
    figure = plot(rungs, tmp_path / "bars.png", title="t")
    labels = [label.get_text().removesuffix(" (not kept)") for label in figure.axes[0].get_yticklabels()]
    assert labels == ["start", "SDPA attention", "length-grouped batches"]
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


def test_a_larger_batch_is_not_tried_where_a_smaller_one_did_not_help():
    class Slower:
        """A bench on which nothing helps."""

        def __init__(self):
            self.f1 = {}

        def run(self, settings, **options):
            return windows(settings.batch_size / 8)[0]

        def steps(self, settings):
            return 1

    sizes = [Optimisation(f"batch size {size}", {"batch_size": size}) for size in (16, 32)]
    rungs = list(climb(Slower(), START, sizes, repetitions=2))
    assert [rung.verdict.split(":")[0] for rung in rungs] == ["32 examples a second", "did not help here", "not tried"]


@pytest.mark.slow
def test_a_setting_that_is_hopelessly_slow_is_given_up_in_its_warm_up_and_the_climb_goes_on(monkeypatch):
    """A layer that takes a quarter of a second in bf16, as on a CPU that emulates it, and next to nothing in fp32."""
    ran = []

    class Emulated(torch.nn.Linear):
        def forward(self, states):
            if torch.is_autocast_enabled("cpu") and not isinstance(states, FakeTensor):
                ran.append(time.sleep(0.25))
            return super().forward(states)

    torch.set_num_threads(1)
    monkeypatch.setattr(measurement, "GRACE", 0.4)
    bench, start = bench_of(cpu_here())
    bench.task.model.bert.encoder.layer[1].output.dense.__class__ = Emulated
    steps = [
        Optimisation("bf16 autocast", {"precision": "bf16"}),
        Optimisation("SDPA attention", {"attention": "sdpa"}),
    ]
    _, bf16, sdpa = climb(bench, start, steps, repetitions=2)
    times = re.fullmatch(r"gave up: more than (\d+) times as slow as the start", bf16.verdict)
    assert times and int(times[1]) > measurement.HOPELESS
    assert not bf16.kept and bf16.settings.precision == "bf16" and bf16.speed_up is None
    assert 1 <= len(ran) <= 2  # of six steps: after 0.4 seconds of warm-up the next module is the last
    assert sdpa.settings.precision == "fp32" and len(sdpa.gains) == 2
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not [thread for thread in threading.enumerate() if thread.name == "monitor"]


def test_the_search_on_a_real_model_ends_at_its_limit():
    torch.set_num_threads(1)
    bench, _ = bench_of(cpu_here())
    found = bench.largest_batch(2 * BATCH)
    assert (found.batch_size, found.reason) == (16, "the limit of the search is 16")


# ---- the model elsewhere


def test_a_model_trained_in_bf16_is_saved_as_safetensors_alone_and_reloads_to_the_same_logits(tmp_path):
    torch.set_num_threads(1)
    trainer = trainer_of(cpu_here(), tmp_path / "run", {"precision": "bf16"}, steps=2)
    task = task_of(cpu_here())
    trainer.train()
    reloaded, tokenizer, difference = experiment.save_and_reload(
        trainer, task, tmp_path / "model", ["red", "azure sea"]
    )
    assert difference < 1e-5
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in files and not [name for name in files if name.endswith((".bin", ".pt"))]
    trained = {name: tensor for name, tensor in trainer.model.state_dict().items()}
    assert all(torch.equal(tensor, trained[name]) for name, tensor in reloaded.state_dict().items())
    assert not all(torch.equal(tensor, trained[name]) for name, tensor in task.model.state_dict().items())
    label, probability = experiment.classify(reloaded, tokenizer, "crimson", 16)
    assert label in WORDS and 1 / 3 <= probability <= 1


# ---- XLA


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_a_climb_on_virtual_devices_knows_compile_time_and_memory(tmp_path):
    options = {"kind": "xla", "devices": 2, "climb": ["bf16 autocast", "TF32"]}
    process = forked.run(DRIVER, tmp_path, json.dumps(options), xla=True, TF_CPP_MIN_LOG_LEVEL="3")
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.rsplit("RESULT ", 1)[1])
    start, bf16, tf32 = (Rung(**rung) for rung in found["rungs"])
    assert bf16.compile_seconds > 0 and start.peak_memory_bytes > 10**6  # the start was compiled in the search before
    assert bf16.loss == pytest.approx(start.loss, rel=0.05)
    assert tf32.verdict.startswith("not tried")
    small, large = found["trials"]
    assert small["bytes"] < large["bytes"]  # eight examples a step, then sixteen
