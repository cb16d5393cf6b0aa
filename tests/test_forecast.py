"""helpers.planning.forecast: a run's own table, against `outlook`, real models, a real calibration and hand arithmetic."""

import json
import math
from dataclasses import replace

import pytest

from helpers.plan import Plan
from helpers.planning import architectures, calibration, forecast, model_sizes
from helpers.planning.calibration import Calibration, Measured, Size, StepModel
from helpers.planning.catalogue import job, named
from helpers.planning.estimate import TIME_SPREAD, outlook
from helpers.planning.ranges import BOUND, COUNTED, MEASURED, SCALED
from helpers.runtime import Runtime

from .xla_process import cpu_here

pytestmark = pytest.mark.once

BERT = job("hardware_tuning")


def runtime(kind="cuda", device_name="Tesla T4", memory=16 * 10**9, precision="fp16", count=1) -> Runtime:
    return Runtime(
        kind=kind,
        reason="",
        device_name=device_name,
        device_count=count,
        memory=memory,
        compute_capability=None,
        precision=precision,
        precision_reason="",
        torch="2.13.0",
        torch_xla=None,
    )


def plan(precision="fp16", micro=8, accumulation=2, devices=1, steps=100, length=192, checkpointing=False) -> Plan:
    return Plan(
        precision=precision,
        per_device_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        device_count=devices,
        learning_rate=1e-5,
        max_steps=steps,
        sequence_length=length,
        warmup_steps=0,
        weight_decay=0.0,
        max_grad_norm=1.0,
        optimizer="adamw_torch",
        gradient_checkpointing=checkpointing,
        dataloader_workers=0,
        pin_memory=False,
        memory_estimate=0,
    )


def measured(steps=100, seconds=70.0, compiling=5.0, aside=15.0, peak=2 * 2**30, resumed=None) -> dict:
    """The `train` part of results: 50 s of training."""
    return {
        "steps": steps,
        "seconds": seconds,
        "compile_seconds": compiling,
        "evaluate_and_save_seconds": aside,
        "tokens_per_second": 1000.0,
        "peak_memory_bytes": peak,
        "resumed_from_step": resumed,
    }


def timed(**changed) -> forecast.Forecast:
    """A forecast of 0.5 s a step, by hand."""
    span = forecast.timed(0.5)
    given = {"job": "hardware_tuning", "model": "bert-base", "device": "Tesla T4", "devices": 1, "precision": "fp16"}
    given |= {"steps": 100, "tokens": 3072, "phases": ((100, span),), "memory": forecast.held(2 * 2**30)}
    return forecast.Forecast(**given | {"capacity": 16 * 10**9, "usd_per_hour": 0.36} | changed)


def calibrated(tmp_path, chosen=BERT, precision="fp16", **changed):
    """A file of a T4 on which products run at 10 TFLOP/s after 10 ms."""
    time = StepModel(fixed=0.01, per_weight_flop=1e-13, per_pair_flop=1e-13, update_seconds=0.004)
    size = Size(sequences=16, length=192, seconds=0.05, seconds_range=(0.05, 0.05), peak_bytes=1)
    one = Measured(
        job=chosen.name,
        model=chosen.model,
        precision=precision,
        sizes=(size,),
        time=time,
        flops_per_second=1e13,
        memory_ratio=1.1,
    )
    given = {"kind": "cuda", "device": "Tesla T4", "count": 1, "cores": 1, "threads": 1, "date": "2026-11-21"}
    given |= {"versions": {}, "matmul_flops_per_second": 1e13, "copy_bytes_per_second": 1e11, "jobs": (one,)}
    return calibration.save(Calibration(**given | changed), tmp_path / "calibration.json"), time


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


# -- against outlook --


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("name", ["hardware_tuning", "legal_cot_sft", "lejepa_training", "tinystories_reservoir"])
def test_time_memory_and_cost_are_those_of_outlook(name, checkpointing):
    chosen = job(name)
    expected = outlook(chosen, forecast.machine_of(runtime()), steps=70, precision="fp16", checkpointing=checkpointing)
    planned = plan(
        micro=expected.per_device_batch_size,
        accumulation=expected.gradient_accumulation_steps,
        steps=70,
        length=chosen.views * expected.length,
        checkpointing=checkpointing,
    )
    found = forecast.make(chosen, planned, runtime())
    for ours, theirs in (
        (found.step_seconds, expected.step_seconds),
        (found.run_seconds(), expected.run_seconds),
        (found.run_usd(), expected.run_usd),
        (found.memory, expected.memory.peak),
    ):
        assert (ours.low, ours.high, ours.basis) == (
            pytest.approx(theirs.low),
            pytest.approx(theirs.high),
            theirs.basis,
        )
    assert (found.step_seconds.basis, found.memory.basis, found.model) == (BOUND, COUNTED, chosen.model)
    assert "datasheet bound" in str(found) and "Google Cloud list price" in str(found)


def test_devices_share_the_batch_and_each_has_its_own_memory():
    one = forecast.make(BERT, plan(micro=8), runtime())
    two = forecast.make(BERT, plan(micro=8, devices=2), runtime(count=2))
    assert two.memory == one.memory and two.usd_per_hour == 2 * one.usd_per_hour
    assert two.step_seconds.low == pytest.approx(one.step_seconds.low)


def test_a_run_of_several_lengths_is_their_sum_and_a_part_of_it_its_first_steps():
    parts = [
        forecast.make(BERT, plan(steps=steps, length=length), runtime()) for steps, length in ((30, 64), (70, 192))
    ]
    found = forecast.make(BERT, plan(), runtime(), phases=((30, 64), (70, 192)))
    assert found.run_seconds().low == pytest.approx(sum(part.run_seconds().low for part in parts))
    assert found.run_seconds(30).low == pytest.approx(parts[0].run_seconds().low)
    assert found.step_seconds.low == pytest.approx(found.run_seconds().low / 100)
    assert found.memory == parts[1].memory


# -- a calibration --


def test_a_calibration_of_this_device_in_the_working_directory_is_used(tmp_path):
    _, time = calibrated(tmp_path)
    found = forecast.make(BERT, plan(), runtime())
    seconds = 2 * time.seconds(BERT, 8, 192) - 0.004
    assert found.step_seconds.value == pytest.approx(seconds) and found.step_seconds.basis == MEASURED
    assert found.step_seconds.high == pytest.approx((1 + TIME_SPREAD) * seconds)
    counted = forecast.make(BERT, plan(), runtime(), calibration="none.json").memory.value
    assert found.memory.value == pytest.approx(1.1 * counted) and found.memory.basis == MEASURED
    assert "calibration.json of 2026-11-21" in str(found)


def test_another_model_of_the_job_is_scaled_from_the_calibration(tmp_path):
    calibrated(tmp_path)
    small = job("hardware_tuning", "small")
    found = forecast.make(small, plan(), runtime()).step_seconds
    assert found.basis == SCALED and found.value == pytest.approx(sum(small.flops(16, 192)) / 1e13)


def test_a_calibration_of_another_device_is_not_used_and_the_table_says_so(tmp_path):
    calibrated(tmp_path, device="NVIDIA L4")
    found = forecast.make(BERT, plan(), runtime())
    assert found.step_seconds.basis == BOUND
    assert "calibration.json is of NVIDIA L4, and this is Tesla T4" in str(found)


def test_a_broken_calibration_is_refused(tmp_path):
    (tmp_path / "calibration.json").write_text("{}")
    with pytest.raises(ValueError, match=r"calibration=.*make it anew"):
        forecast.make(BERT, plan(), runtime())


def test_a_model_is_known_by_its_layers_and_its_arithmetic_not_by_its_name():
    assert named(replace(BERT, model="mine")).model == "bert-base"
    assert named(architectures.hardware_tuning(BERT.sizes, "", labels=6)).model == "bert-base"
    assert named(architectures.hardware_tuning(replace(BERT.sizes, layers=6), "")).model == "6 layers of 768"
    assert named(architectures.legal_cot_sft(job("legal_cot_sft").sizes, "", lora_rank=128)).model == "24 layers of 896"


@pytest.fixture(scope="module")
def real():
    """A calibration of this machine by real steps, and the model that it was of."""
    from helpers.planning import workloads

    here, small = cpu_here(), job("hardware_tuning", "small")
    found = calibration.calibrate(["hardware_tuning"], sizes=((2, 16), (4, 16), (2, 32)), repeats=2, runtime=here)
    return here, found, workloads.build(small)


def test_on_this_machine_a_real_model_is_found_in_a_real_calibration(real, tmp_path):
    here, made, workload = real
    calibration.save(made, tmp_path / "calibration.json")
    sizes, options = model_sizes.encoder_sizes(workload.model.config)
    described = architectures.hardware_tuning(sizes, "", **options)
    planned = plan("fp32", micro=3, accumulation=1, steps=4, length=32)
    found = forecast.make(described, planned, here, parameters=workload.model.num_parameters())
    assert (found.model, found.step_seconds.basis, found.memory.basis) == ("small", MEASURED, MEASURED)
    assert found.step_seconds.value == pytest.approx(made.jobs[0].time.seconds(described, 3, 32))
    other = replace(made, threads=made.threads + 1)
    calibration.save(other, tmp_path / "calibration.json")
    assert forecast.make(described, planned, here).step_seconds is None


def test_the_process_grows_by_what_training_was_said_to_add(real):
    """What is alive in real steps, within 15 %: the process's own part is read from the system."""
    import psutil
    import torch

    from helpers.planning.live_bytes import LiveBytes
    from helpers.planning.workloads import Stepper

    here, _, workload = real
    stepper = Stepper(workload, "cpu", "fp32", torch.device("cpu"))
    planned = plan("fp32", micro=6, accumulation=1, length=64)
    before = psutil.Process().memory_info().rss
    found = forecast.make(job("hardware_tuning", "small"), planned, here)
    batch = stepper.on_device(6, 64)
    stepper.step(batch)
    with LiveBytes(workload.model, stepper.optimizer) as live:
        stepper.step(batch)
    weights = 4 * workload.model.num_parameters()
    # Not below what the process had before, which a larger test may have made much.
    expected = max(before - weights + live.peak, forecast.peak_memory(here))
    assert found.memory.value == pytest.approx(expected, abs=0.15 * live.peak)
    assert found.memory.high >= expected and found.memory.low <= expected


# -- what is not known --


def test_an_unknown_gpu_has_memory_and_neither_time_nor_cost_until_it_is_calibrated(tmp_path):
    where = runtime(device_name="Mystery GPU")
    found = forecast.make(BERT, plan(), where)
    assert found.step_seconds is found.run_seconds() is found.run_usd() is None
    assert found.memory == forecast.make(BERT, plan(), runtime()).memory
    assert "Mystery GPU is not in the catalogue" in str(found) and "helpers.planning.calibration" in str(found)
    calibrated(tmp_path, device="Mystery GPU")
    assert forecast.make(BERT, plan(), where).step_seconds.basis == MEASURED
    assert forecast.make(BERT, plan(), runtime(device_name="Other GPU")).step_seconds is None


def test_a_cpu_without_a_calibration_says_how_to_get_one():
    found = forecast.make(BERT, plan("fp32"), runtime("cpu", "x86_64", precision="fp32"))
    assert found.step_seconds is None and found.memory.value > 0
    row = str(found).splitlines()[1]
    assert row.startswith("seconds a step") and "unknown" in row and "python -m helpers.planning.calibration" in row
    assert "peak memory of the process" in str(found) and "cost" not in str(found)


def test_a_precision_that_the_datasheet_lacks_has_no_time():
    found = forecast.make(BERT, plan("fp32"), runtime("xla", "TPU v5e", precision="fp32"))
    assert found.step_seconds is None and "datasheet has no fp32" in found.reasons["time"]


@pytest.mark.parametrize(
    ("chosen", "options", "says"),
    [
        (
            None,
            {"architecture": "distilbert"},
            "no builder in helpers/planning/architectures.py describes 'distilbert'",
        ),
        (
            BERT,
            {"parameters": 2 * BERT.parameters, "architecture": "bert"},
            "bert has 218,967,556 weights and the builder",
        ),
    ],
)
def test_an_unknown_architecture_has_neither_time_nor_memory(chosen, options, says):
    found = forecast.make(chosen, plan(), runtime(), **options)
    assert found.step_seconds is found.memory is found.run_usd() is None
    assert says in str(found) and says in found.results()["reasons"]["memory"]
    assert "2.00 GiB" in found.beside(measured())


def test_what_was_timed_before_counts_also_for_an_unknown_architecture():
    step, peak = forecast.timed(0.5), forecast.held(10**9)
    found = forecast.make(None, plan(), runtime(), architecture="distilbert", step=step, peak=peak)
    assert (found.phases, found.memory) == (((100, step),), peak) and found.run_seconds().value == pytest.approx(50)
    assert found.step_seconds.basis == MEASURED and found.reasons["memory"] == "with these settings on this machine"


# -- beside what was measured --


def row(text: str, name: str) -> str:
    return next(line for line in text.splitlines() if line.startswith(name))


def test_measured_stands_beside_planned_with_its_ratio_and_the_interval():
    text = timed().beside(measured())
    assert row(text, "seconds a step").split()[-4:] == ["500", "ms", "1.00", "yes"]
    assert row(text, "time of 100 steps").split()[-4:] == ["50", "s", "1.00", "yes"]
    assert row(text, "peak memory a device").split()[-4:] == ["2.00", "GiB", "1.00", "yes"]
    assert row(text, "cost").split()[-3:] == ["$0.005", "1.00", "yes"]
    assert row(text, "tokens a step").split()[-2:] == ["500", "0.16"]


def test_what_lies_outside_the_interval_is_said():
    text = timed().beside(measured(seconds=120.0, peak=3 * 2**30))
    assert row(text, "seconds a step").split()[-2:] == ["2.00", "no"]
    assert row(text, "peak memory a device").split()[-2:] == ["1.50", "no"]


def test_a_bound_has_no_ratio_but_a_multiple_of_the_least():
    found = forecast.make(BERT, plan(), runtime())
    seconds = 3 * found.step_seconds.low
    text = found.beside(measured(seconds=100 * seconds + 20))
    assert row(text, "seconds a step").split()[-4:] == ["3.00", "of", "least", "yes"]


def test_a_run_that_stopped_early_is_held_against_as_many_steps():
    text = timed().beside(measured(steps=40, seconds=40.0))
    assert row(text, "time of 40 of 100 steps").split()[-4:] == ["20", "s", "1.00", "yes"]


def test_a_resumed_run_says_which_part_was_measured():
    text = timed().beside(measured(resumed=60))
    assert text.endswith("time is of all sessions, memory of this one, from step 60 on")
    assert row(text, "peak memory a device").endswith("yes")
    finished = timed().beside(measured(resumed=100))
    assert "unknown" in row(finished, "peak memory a device") and finished.endswith("their memory was not kept")
    assert row(finished, "time of 100 steps").endswith("yes")


def test_nothing_trained_and_nothing_known_are_no_error():
    assert "unknown" in timed().beside(measured(steps=0, seconds=20.0, peak=None))
    assert "unknown" in timed(phases=((100, None),), memory=None, usd_per_hour=None).beside(measured())


def test_results_are_json_without_infinity():
    chosen = job("tinystories_reservoir")
    found = forecast.make(chosen, plan(length=128), runtime())
    assert found.step_seconds.high == math.inf and "at least" in str(found)
    told = json.loads(json.dumps(found.results(), allow_nan=False))
    assert told["step_seconds"] == {"low": found.step_seconds.low, "high": None, "value": None, "basis": BOUND}
    assert told["run_seconds"]["low"] == pytest.approx(100 * found.step_seconds.low)
    assert set(told) >= {"peak_memory_bytes", "run_usd", "reasons", "steps", "tokens_per_step", "memory_bytes"}


# -- sizes of real models --

TINY = {"vocab_size": 120, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 48}


def counts(model) -> tuple[int, int]:
    weights = list(model.parameters())
    return sum(w.numel() for w in weights), sum(w.numel() for w in weights if w.requires_grad)


@pytest.mark.parametrize("kind", ["bert", "roberta", "xlm-roberta", "camembert", "mpnet"])
def test_an_encoder_like_bert_is_counted_exactly(kind):
    from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

    config = AutoConfig.for_model(kind, **TINY, max_position_embeddings=40, num_labels=3)
    sizes, options = model_sizes.encoder_sizes(config)
    described = architectures.hardware_tuning(sizes, "", labels=3, **options)
    assert described.parameters == counts(AutoModelForSequenceClassification.from_config(config))[0]
    described = architectures.lejepa_training(sizes, "", freeze_layers=1, output_dim=8, **options)
    assert described.parameters == counts(AutoModel.from_config(config))[0] + 32 * 8 + 8
    assert described.is_fused("cuda") is (kind != "mpnet")


def test_a_gemma_encoder_is_counted_exactly_with_its_dense_layers_and_without():
    from transformers import Gemma3TextConfig, Gemma3TextModel

    config = Gemma3TextConfig(**TINY | {"head_dim": 16, "num_key_value_heads": 2})
    sizes, options = model_sizes.encoder_sizes(config)
    own = counts(Gemma3TextModel(config))[0] + 32 * 8 + 8
    for dense, more in (((), 0), (((32, 64, False), (64, 32, True)), 2 * 32 * 64 + 32)):
        described = architectures.lejepa_training(sizes, "", freeze_layers=1, output_dim=8, dense=dense, **options)
        assert described.parameters == own + more


@pytest.mark.parametrize("method", ["lora", "full"])
@pytest.mark.parametrize(
    ("kind", "changed"),
    [
        ("qwen2", {"tie_word_embeddings": True}),
        ("qwen2", {"tie_word_embeddings": False}),
        ("qwen3", {"tie_word_embeddings": True, "head_dim": 16}),
        ("llama", {"tie_word_embeddings": False}),
        ("llama", {"tie_word_embeddings": True, "attention_bias": True}),
        ("mistral", {"tie_word_embeddings": False}),
    ],
)
def test_a_decoder_like_qwen_is_counted_exactly(kind, changed, method):
    from transformers import AutoConfig, AutoModelForCausalLM

    from helpers.legal.model import apply_lora

    config = AutoConfig.for_model(kind, **TINY | {"num_key_value_heads": 2} | changed)
    model = AutoModelForCausalLM.from_config(config)
    if method == "lora":
        model = apply_lora(model, 4, 8)
    sizes, options = model_sizes.decoder_sizes(model.config)
    described = architectures.legal_cot_sft(sizes, "", method=method, lora_rank=4, **options)
    assert (described.parameters, described.updated) == counts(model)


@pytest.mark.parametrize("kind", ["distilbert", "albert", "gpt2", "t5"])
def test_what_no_builder_describes_has_no_sizes(kind):
    from transformers import AutoConfig

    config = AutoConfig.for_model(kind)
    assert model_sizes.encoder_sizes(config) is None and model_sizes.decoder_sizes(config) is None


def test_all_but_the_head_may_stay_as_it_is():
    described = architectures.lejepa_training(job("lejepa_training", "small").sizes, "", freeze_layers=-1, output_dim=8)
    assert described.updated == 128 * 8 + 8


@pytest.mark.parametrize(
    "options",
    [
        {"reservoirs": "delay:8 delays:4 quadratic:16 + tanh:64 blocks:4 + linear:16 | tanh:32", "readout_blocks": 2},
        {"attention_heads": 3, "tie_word_embeddings": False, "recall_tokens": 0},
    ],
)
def test_a_reservoir_model_is_counted_exactly(options):
    from helpers.reservoir.experiment import training_job
    from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

    given = {"reservoirs": "tanh:32 | linear:16", "vocab_size": 90, "embedding_size": 24, "readout_size": 40}
    model = ReservoirForCausalLM(ReservoirConfig(**given | options))
    described = training_job(model)
    assert described.updated == counts(model)[1]
    assert described.still == sum(b.numel() for b in model.buffers() if b.is_floating_point())
    # The model's own count takes a gradient of the features too, which nothing needs.
    needless = 2 * sum(projection.weight.weight.numel() for projection in model.projections)
    assert sum(described.flops(1, 1)) == pytest.approx(model.flops_per_token() - needless, rel=0.02)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model.hgat.enabled": False, "model.hgat.relation_bias": False, "model.activation": "gelu"},
        {"model.norm": "layernorm", "model.decay.mode": "none"},
    ],
)
def test_a_graphmer_is_counted_exactly_and_its_texts_cost_time(changes):
    from helpers.graphmer.configuration import override, read_configuration
    from helpers.graphmer.experiment import forecast as of
    from helpers.graphmer.experiment import training_job
    from helpers.graphmer.model import GraphMERForPreTraining

    configuration = override(read_configuration("cpu"), {"model.num_layers": 2, **changes})
    model = GraphMERForPreTraining(configuration.model_config(300, 6))
    described = training_job(configuration, model)
    assert described.parameters == counts(model)[0]
    assert described.settings["texts"] > 0
    alone = architectures.graphmer_se(described.sizes, "", **described.settings | {"texts": 0})
    assert sum(described.flops(1)) > 1.5 * sum(alone.flops(1))
    found = of(configuration, model, replace(plan(length=described.length), memory_estimate=10**9), runtime())
    assert found.memory.value == 10**9 and found.step_seconds.low > 0 and found.tokens is None
