"""What is tried where, how a gain is judged, and the climb itself on a real model."""

from __future__ import annotations

import dataclasses
import json
import math
import re
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor
from transformers import BertForSequenceClassification, Trainer, TrainingArguments, pipeline

from helpers.machine import xla
from helpers.machine.runtime import Runtime
from helpers.show import tables
from helpers.tuning import experiment, measurement
from helpers.tuning.climb import Climb, Climber, Rung, judge, plot, tune
from helpers.tuning.decision import Noise, Ratio
from helpers.tuning.measurement import Window
from helpers.tuning.optimisations import Ladder, Optimisation, ladder
from helpers.tuning.parameters import TuningParameters
from helpers.tuning.task import Settings, Task, clock

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


def rungs_of(runtime: Runtime, *, enough_length: int = 64, supported: bool = True, **parameters) -> Ladder:
    """What is tried for a model that supports what can be asked of it, or nothing of it."""
    config = SimpleNamespace(_attn_implementation="sdpa" if supported else "eager")
    model = SimpleNamespace(config=config, supports_gradient_checkpointing=supported)
    task = Task(None, model, None, None, TuningParameters.defaults().model_copy(update=parameters), runtime)
    return ladder(task, enough_length=enough_length)


def by_name(steps: Ladder) -> dict[str, Optimisation]:
    return {each.name: each for each in (*steps.changes, *steps.memory_savers)}


def test_the_start_is_what_the_trainer_and_the_libraries_choose(tmp_path):
    task = task_of(cpu_here())
    start, stock = task.start, TrainingArguments(str(tmp_path), use_cpu=True)
    assert start.batch_size == stock.per_device_train_batch_size and start.optimizer == stock.optim
    assert start.dataloader_workers == stock.dataloader_num_workers
    assert start.gradient_checkpointing == stock.gradient_checkpointing and start.compiled == stock.torch_compile
    assert start.precision == "fp32" and not stock.bf16 and not stock.fp16 and not stock.tf32
    model = BertForSequenceClassification(task.model.config)
    assert start.attention == model.config._attn_implementation == "sdpa"
    short, long = ({"input_ids": list(range(length)), "labels": 0} for length in (3, 5))
    trainer = trainer_of(cpu_here(), tmp_path / "run", {})
    ours = trainer.data_collator([short, long])
    theirs = Trainer(model, stock, processing_class=task.tokenizer).data_collator([short, long])
    assert ours["input_ids"].tolist() == theirs["input_ids"].tolist()


def test_tf32_comes_before_half_precision_and_the_batch_after_all_else():
    names = [
        "TF32",
        "bf16 autocast",
        "attention written out",
        "length-grouped batches",
        "loader workers",
        "torch.compile",
    ]
    steps = rungs_of(A100)
    assert [each.name for each in steps.changes] == names
    assert steps.batch_sizes == (16, 32, 64)
    assert [each.name for each in steps.memory_savers] == ["gradient checkpointing", "8-bit AdamW"]


def test_a_t4_gets_fp16_and_no_tf32():
    found = by_name(rungs_of(T4))
    assert found["fp16 autocast"].changes == {"precision": "fp16"}
    assert found["TF32"].why_not == "Tesla T4 (sm_75) has none; it came with sm_80"


def test_an_a100_gets_bf16_and_tf32():
    found = by_name(rungs_of(A100))
    assert found["bf16 autocast"].changes == {"precision": "bf16"}
    assert found["TF32"].changes == {"tf32": True}


def test_a_cpu_has_no_tf32_and_no_8_bit_optimizer():
    found = by_name(rungs_of(CPU))
    assert "NVIDIA" in found["TF32"].why_not and "NVIDIA" in found["8-bit AdamW"].why_not
    assert found["bf16 autocast"].changes == {"precision": "bf16"}


def test_a_tpu_is_tried_on_what_it_has_and_told_why_not_the_rest():
    found = by_name(rungs_of(TPU))
    assert found["bf16 autocast"].changes == {"precision": "bf16"}
    assert found["padding length 64"].changes == {"length": 64}
    for name in ("loader workers", "TF32", "torch.compile", "8-bit AdamW"):
        assert found[name].why_not, name
    assert "length-grouped batches" not in found
    assert by_name(rungs_of(TPU, enough_length=192))["padding length"].why_not == "the texts fill 192 tokens"


def test_one_thread_of_a_cpu_is_timed_in_processor_time_by_which_loader_workers_are_not_judged(monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert clock(CPU) == "processor time" and clock(T4) == clock(TPU) == "wall time"
    assert by_name(rungs_of(CPU))["loader workers"].why_not.startswith(
        "in processor time they cost what they do beside"
    )
    assert not by_name(rungs_of(T4))["loader workers"].why_not
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert clock(CPU) == "wall time" and not by_name(rungs_of(CPU))["loader workers"].why_not


def test_batches_double_up_to_what_is_of_use_or_are_the_one_that_is_asked_for():
    assert rungs_of(CPU, largest_batch_size=48).batch_sizes == (16, 32)
    assert rungs_of(CPU, batch_size=24).batch_sizes == (24,)
    assert rungs_of(CPU, largest_batch_size=8).batch_sizes == rungs_of(CPU, batch_size=8).batch_sizes == ()


def test_what_the_user_or_the_model_rules_out_is_not_tried():
    found = by_name(rungs_of(CPU, precision="fp32", supported=False, try_compile=False))
    names = ("mixed precision", "attention written out", "gradient checkpointing", "torch.compile")
    assert [found[name].why_not for name in names] == [
        "precision='fp32' is asked for",
        "the model has no other",
        "the model does not support it",
        "try_compile=False",
    ]


# ---- judging


def window(seconds: float, *, examples: int = 32, loss: float = 1.0, memory: int | None = None) -> Window:
    return Window(
        steps=4,
        examples=examples,
        seconds=seconds,
        warm_up_seconds=0.0,
        compile_seconds=0.0,
        loss=loss,
        peak_memory=memory,
    )


NOISE = Noise.of([100.0, 101.0, 99.0, 100.0])  # about one percent a timing


@pytest.mark.parametrize(
    ("gains", "kept"),
    [
        ((1.5, 1.4, 1.6), True),
        ((1.04, 1.04, 1.05), True),
        ((1.5, 0.99, 1.6), False),
        ((1.01, 1.01, 1.01), False),
        ((1.5,), False),
    ],
)
def test_only_what_is_faster_by_more_than_noise_is_kept(gains, kept):
    good, said, ratio = judge(gains, NOISE, [window(1)], [window(1)])
    assert good is kept
    assert said.startswith("kept" if kept else "did not help here")
    assert ratio.low < ratio.value < ratio.high
    assert said.endswith("timed once") is (len(gains) == 1)


def test_memory_is_told_and_a_loss_that_is_no_number_is_not_kept():
    assert "memory x 0.50" in judge((0.8, 0.8), NOISE, [window(1, memory=1000)], [window(1, memory=500)])[1]
    kept, said, _ = judge((2.0, 2.0), NOISE, [window(1)], [window(1, loss=float("nan"))])
    assert (kept, said) == (False, "the loss is no longer a number")


# ---- the climb


@pytest.fixture(scope="module")
def climbed():
    """(rungs, climber) of a real climb on the CPU, where plain AdamW runs out of memory."""
    torch.set_num_threads(1)
    bench, start = bench_of(cpu_here())
    run = bench.run

    def short_of_memory(settings, **options):
        if settings.optimizer == "adamw_torch":
            raise torch.OutOfMemoryError("CUDA out of memory")
        return run(settings, **options)

    bench.run = short_of_memory
    steps = Ladder(
        (
            Optimisation("attention written out", {"attention": "eager"}),
            Optimisation("TF32", why_not="no tensor cores"),
            Optimisation("plain AdamW", {"optimizer": "adamw_torch"}),
            Optimisation("length-grouped batches", {"padding": "grouped"}),
        )
    )
    climber = Climber(bench, start, repetitions=2)
    return list(climber.climb(steps)), climber


def test_every_rung_has_its_numbers_or_its_reason(climbed):
    rungs, climber = climbed
    names = ["start", "attention written out", "TF32", "plain AdamW", "length-grouped batches"]
    assert [rung.name for rung in rungs] == names
    start, eager, tf32, plain, grouped = rungs
    assert tf32.verdict == "not tried: no tensor cores" and not tf32.kept and tf32.speed_up is None
    assert plain.verdict == "does not fit into memory" and not plain.kept
    for rung in (start, eager, grouped):
        assert rung.speed_up_low < rung.speed_up < rung.speed_up_high
        assert rung.examples_per_second > 0 and rung.steps_per_second > 0
        assert rung.peak_memory_bytes is None or rung.peak_memory_bytes > 10**8
        assert rung.kept == rung.verdict.startswith("kept") or rung is start
    assert start.speed_up == pytest.approx(1) and len(start.gains) == 4
    assert eager.loss == pytest.approx(start.loss, rel=1e-4)  # the same examples from the same weights
    assert grouped.loss == pytest.approx(start.loss, rel=0.1)
    assert climber.kept == [rung for rung in rungs if rung.kept][-1].settings


def test_settings_survive_json_and_the_last_that_was_kept_is_the_tuned_one(climbed, tmp_path):
    rungs, _ = climbed
    found = Climb(tuple(rungs), Ratio(1.5, 1.2, 1.9), 12.5)
    (tmp_path / "ladder.json").write_text(json.dumps(dataclasses.asdict(found)))
    task = task_of(cpu_here(), resume=True)
    assert tune(task, tmp_path) == found
    assert found.top == [rung for rung in rungs if rung.kept][-1] and isinstance(found.top.settings, Settings)


def test_the_table_and_the_picture_show_every_rung(climbed, tmp_path):
    rungs, _ = climbed
    table = tables.text(Climb(tuple(rungs), Ratio(1.5, 1.2, 1.9), 12.5).rows())
    names = [*(rung.name for rung in rungs), "tuned over the start, timed again"]
    assert [line.split("  ")[0] for line in table.splitlines()[1:]] == names and "1.50 x (1.20 to 1.90)" in table
    figure = plot(rungs, tmp_path / "bars.png", title="t")
    labels = [label.get_text().removesuffix(" (not kept)") for label in figure.axes[0].get_yticklabels()]
    assert labels == ["start", "attention written out", "length-grouped batches"]
    assert (tmp_path / "bars.png").read_bytes().startswith(b"\x89PNG")


class Drawn:
    """A bench whose seconds are a function of the settings, on a device that holds so many examples."""

    def __init__(self, seconds, holds=10**9):
        self.seconds, self.holds, self.ran = seconds, holds, []

    def run(self, settings, **options):
        self.ran.append(settings)
        return window(self.seconds(settings) * (1 + 0.001 * (len(self.ran) % 3)), examples=4 * settings.batch_size)

    def probe(self, settings):
        if settings.batch_size > self.holds * (2 if settings.gradient_checkpointing else 1):
            raise torch.OutOfMemoryError("CUDA out of memory")

    def steps(self, settings):
        return 1


CHECKPOINTING = Optimisation("gradient checkpointing", {"gradient_checkpointing": True})
BATCHES = Ladder((), (16, 32, 64), (CHECKPOINTING,))


def climbed_on(bench, steps=BATCHES, seconds=math.inf):
    climber = Climber(bench, START, repetitions=2, seconds=seconds)
    return list(climber.climb(steps)), climber


def test_the_start_is_timed_twice_as_often_and_each_change_in_turn_with_what_was_kept():
    bench = Drawn(lambda settings: 1.0 if settings.attention == "eager" else 2.0)
    grouped = Optimisation("length-grouped batches", {"padding": "grouped"})
    climbed_on(bench, Ladder((Optimisation("attention written out", {"attention": "eager"}), grouped)))
    ran = [(settings.attention, settings.padding) for settings in bench.ran]
    start, eager, both = ("sdpa", "dynamic"), ("eager", "dynamic"), ("eager", "grouped")
    assert ran == [start] * 4 + [start, eager, eager, start] + [eager, both, both, eager]


def test_a_larger_batch_is_not_tried_where_a_smaller_one_did_not_help_and_memory_is_not_to_blame():
    rungs, climber = climbed_on(Drawn(lambda settings: settings.batch_size))
    assert [rung.name for rung in rungs] == ["start", "batch size 16", "gradient checkpointing"]
    assert rungs[1].verdict.startswith("did not help here")
    assert rungs[2].verdict == "not tried: memory does not limit the batch"
    assert climber.kept == START and climber.over_start() is None


@pytest.mark.parametrize(("cost", "kept"), [(1.2, True), (2.5, False)])
def test_checkpointing_is_judged_by_the_batch_that_it_unlocks_and_the_search_goes_on_from_there(cost, kept):
    """A step takes the same time whatever the batch, which 32 examples fill; checkpointing costs more, and holds 64."""
    bench = Drawn(lambda settings: cost if settings.gradient_checkpointing else 1.0, holds=32)
    rungs, climber = climbed_on(bench, Ladder((), (16, 32, 64, 128), (CHECKPOINTING,)))
    names = ["start", "batch size 16", "batch size 32", "batch size 64", "gradient checkpointing, batch size 64"]
    assert [rung.name for rung in rungs] == names + ["batch size 128"] * kept
    assert rungs[3].verdict.startswith("does not fit into memory")
    assert rungs[4].kept is kept and climber.kept.batch_size == (64 if kept else 32)
    assert climber.kept.gradient_checkpointing is kept
    over = climber.over_start()
    assert over.low < (8 / cost if kept else 4) < over.high


def test_a_change_that_is_far_slower_is_timed_once():
    bench = Drawn(lambda settings: 3.0 if settings.attention == "eager" else 1.0)
    rungs, _ = climbed_on(bench, Ladder((Optimisation("attention written out", {"attention": "eager"}),)))
    assert rungs[1].verdict.startswith("did not help here: 0.33 x") and rungs[1].verdict.endswith("timed once")
    assert len(bench.ran) == 4 + 2


def test_what_no_time_is_left_for_is_not_tried_and_says_so():
    bench = Drawn(lambda settings: 1.0)
    rungs, climber = climbed_on(bench, seconds=0.0)
    assert bench.ran == [START] * 2  # of which noise can be told
    verdicts = [rung.verdict for rung in rungs[1:]]
    assert verdicts == ["not tried: tuning_minutes is used up", "not tried: memory does not limit the batch"]
    assert climber.kept == START and climber.over_start() is None


def test_a_start_that_does_not_fit_is_an_error_that_names_the_parameter():
    class Full(Drawn):
        def run(self, settings, **options):
            raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(RuntimeError, match="start_batch_size=8 does not fit into memory; lower it, or max_length"):
        climbed_on(Full(lambda settings: 1.0))


@pytest.mark.slow
def test_a_setting_that_is_hopelessly_slow_is_given_up_in_its_warm_up_and_the_climb_goes_on(monkeypatch):
    """A layer that takes a quarter of a second in bf16, as on a CPU that emulates it, and next to nothing in fp32."""
    ran = []

    class Emulated(torch.nn.Linear):
        def forward(self, states):
            if torch.is_autocast_enabled("cpu") and not isinstance(states, FakeTensor):
                ran.append(begun := time.process_time())  # as the clock here is: one thread
                while time.process_time() < begun + 0.25:
                    pass
            return super().forward(states)

    torch.set_num_threads(1)
    monkeypatch.setattr(measurement, "GRACE", 0.4)
    bench, start = bench_of(cpu_here())
    bench.task.model.bert.encoder.layer[1].output.dense.__class__ = Emulated
    steps = [
        Optimisation("bf16 autocast", {"precision": "bf16"}),
        Optimisation("attention written out", {"attention": "eager"}),
    ]
    _, bf16, eager = Climber(bench, start, repetitions=2).climb(Ladder(tuple(steps)))
    times = re.fullmatch(r"gave up: more than (\d+) times as slow as the start", bf16.verdict)
    assert times and int(times[1]) > measurement.HOPELESS
    assert not bf16.kept and bf16.settings.precision == "bf16" and bf16.speed_up is None
    assert 1 <= len(ran) <= 2  # of six steps: after 0.4 seconds of warm-up the next module is the last
    assert eager.settings.precision == "fp32" and eager.gains
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert not [thread for thread in threading.enumerate() if thread.name == "monitor"]


def test_a_batch_that_takes_too_much_of_the_memory_is_refused_before_it_runs_on_a_cpu(monkeypatch):
    bench, start = bench_of(cpu_here())
    monkeypatch.setattr(bench, "run", None)
    bench.probe(start)
    needed = bench.task.plan(start).memory.peak.high
    bench.task = dataclasses.replace(bench.task, runtime=dataclasses.replace(bench.runtime, memory=int(needed / 0.7)))
    with pytest.raises(MemoryError, match=r"up to [\d.]+ [GM]iB of [\d.]+ [GM]iB"):
        bench.probe(dataclasses.replace(start, batch_size=64 * BATCH))


# ---- the model elsewhere


def test_a_model_trained_in_bf16_is_saved_as_safetensors_alone_and_reloads_to_the_same_logits(tmp_path):
    torch.set_num_threads(1)
    trainer = trainer_of(cpu_here(), tmp_path / "run", {"precision": "bf16"}, steps=2)
    task = task_of(cpu_here())
    trainer.train()
    reloaded, tokenizer, difference = experiment.save_and_reload(trainer, task, tmp_path / "model")
    assert difference < 1e-5
    files = {path.name for path in (tmp_path / "model").iterdir()}
    assert "model.safetensors" in files and not [name for name in files if name.endswith((".bin", ".pt"))]
    trained = {name: tensor for name, tensor in trainer.model.state_dict().items()}
    assert all(torch.equal(tensor, trained[name]) for name, tensor in reloaded.state_dict().items())
    assert not all(torch.equal(tensor, trained[name]) for name, tensor in task.model.state_dict().items())
    (answer,) = pipeline("text-classification", model=reloaded, tokenizer=tokenizer, device="cpu")("crimson")
    assert answer["label"] in WORDS and 1 / 3 <= answer["score"] <= 1


# ---- XLA


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_a_climb_on_virtual_devices_knows_compile_time(tmp_path):
    options = {"kind": "xla", "devices": 2, "climb": ["bf16 autocast", "TF32"]}
    process = forked.run(DRIVER, tmp_path, json.dumps(options), xla=True, TF_CPP_MIN_LOG_LEVEL="3")
    assert process.returncode == 0, process.stderr[-3000:]
    found = json.loads(process.stdout.rsplit("RESULT ", 1)[1])
    start, tf32, bf16, batch, *_ = (Rung(**rung) for rung in found["rungs"])
    assert bf16.compile_seconds > 0
    assert bf16.loss == pytest.approx(start.loss, rel=0.05)
    assert tf32.verdict.startswith("not tried") and batch.name == "batch size 16"
