"""helpers.plan: memory as an interval, time, forecasts, calibrations, machines; and the command line over all rooms."""

import functools
import json
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.machine.hardware import find
from helpers.plan import outlook, prices
from helpers.plan.counting import Count, count
from helpers.plan.forecast import forecast
from helpers.plan.machines import machine, runtime_of
from helpers.plan.memory import memory
from helpers.plan.settings import Recipe, memory_of, plan
from helpers.plan.speed import ADAMW_BYTES, PUBLIC, SIZES, clipped, step_seconds
from helpers.plan.workloads import ROOMS, Asked, room
from helpers.show.tables import GIB

from .workloads import bert, stack
from .xla_process import cpu_here

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
RECIPE = Recipe(batch_size=8, learning_rate=1e-3, max_steps=50, sequence_length=16)
SMALL = stack(3)
HARDWARE = ("T4", "L4", "A100 40GB", "RTX 3050", "v5e-1", "v5e-8")
ON_HARDWARE = [pytest.param(name, marks=() if name == "T4" else pytest.mark.slow) for name in HARDWARE]
NOTEBOOKS = sorted(path.stem for path in (ROOT / "notebooks" / "source").glob("*.py"))


def counted(peak: int, gradients: int = 0, **changes) -> Count:
    nothing = dict.fromkeys(Count.__dataclass_fields__, 0)
    return Count(**nothing | {"begin_peak": peak, "gradients": gradients} | changes)


# -- memory --


@pytest.mark.parametrize(("gigabytes", "fits"), [(14.9, "no"), (15.4, "tight"), (20.8, "tight"), (21.0, "yes")])
def test_what_fits_follows_from_the_whole_interval_with_the_drivers_context(gigabytes, fits):
    held = memory(counted(15 * 10**9), "cuda", int(gigabytes * 10**9))
    assert (held.peak.low, held.peak.high) == (15.3e9, 1.3 * 15e9 + 1.4e9)
    assert held.fits == fits


def test_processes_hold_their_gradients_once_more_to_exchange_them():
    one, two = (memory(counted(10, 4), "cuda", None, processes=processes).peak.low for processes in (1, 2))
    assert two - one == 4
    assert memory(counted(10, 4), "xla", None, processes=8).peak == memory(counted(10, 4), "xla", None).peak


def test_a_run_may_take_four_fifths_of_a_computers_memory():
    assert memory(counted(80), "cpu", 100).capacity == 80 and memory(counted(80), "xla", 100).capacity == 100


def bert_large():
    import torch

    with torch.device("meta"):
        return bert(
            24, attention="eager", hidden_size=1024, num_attention_heads=16, intermediate_size=4096, vocab_size=30_522,
            max_position_embeddings=512,
        )  # fmt: skip


def test_bert_large_on_a_v100_is_where_hugging_face_measured_it():
    """Megabytes of nvidia-smi for batches of 512 tokens, documentation of transformers 4.x."""
    large = replace(bert_large(), length=512)
    for megabytes, precision, options in (
        (14_949, "fp32", {"examples": 4}),
        (8_681, "fp32", {"examples": 1, "accumulating": True}),
        (6_775, "fp32", {"examples": 1, "accumulating": True, "checkpointing": True}),
        (13_275, "fp16", {"examples": 4}),
    ):
        span = memory(count(large, kind="cuda", precision=precision, **options), "cuda", None).peak
        assert span.low <= megabytes * 2**20 <= span.high, (megabytes, precision, options)


# -- time --


def seconds(name: str, *, workload=SMALL, precision="fp16", **changes):
    step = counted(0, flops=6.5e12, trained=10**6, **changes)
    return step_seconds(workload, step, machine(name), precision)


def test_a_step_takes_what_published_runs_made_of_their_bound():
    span = seconds("T4")
    bound = 6.5e12 / 65e12 + ADAMW_BYTES * 1e6 / 320e9  # products, and what AdamW reads and writes
    least, most, size, balance = PUBLIC["cuda"]
    shift = size * math.log(0.1) + balance * math.log(65e12 / 320e9)
    assert span.low == pytest.approx(bound * math.exp(least + shift))
    assert span.high == pytest.approx(bound * math.exp(most + shift))
    assert bound < span.low < span.high < 5 * span.low and (span.value, span.basis) == (None, "published runs")


def test_no_step_is_faster_than_peak_and_bandwidth_allow():
    """What the fit would allow on a device that has little of a peak for its bandwidth, in micro-batches of a minute."""
    long = step_seconds(SMALL, counted(0, flops=60 * 8.1e12), machine("T4"), "fp32")
    assert long.low == pytest.approx(60) and long.high > 60


def test_a_smaller_micro_batch_than_any_published_takes_at_most_what_the_smallest_takes():
    tiny, smallest = (
        step_seconds(SMALL, counted(0, flops=ideal * 65e12), machine("T4"), "fp16") for ideal in (1e-5, SIZES[0])
    )
    assert tiny.high == pytest.approx(smallest.high) and tiny.low < smallest.low / 100
    assert clipped(1e-5) == clipped(SIZES[0]) and clipped(9.0) == math.log(SIZES[1])


def test_the_public_run_that_the_legal_notebook_stems_from_is_slower_than_others():
    """2.70 s a step of 4 x 1,000 tokens of a 0.5B model on two T4 under DataParallel, which the notebooks never use."""
    asked = Asked(length=1000, examples=2054)
    _, workload = room("legal_cot_sft").planned(asked, runtime_of(machine("2xT4")))
    step = count(workload, 2, kind="cuda", precision="fp16", length=1000)
    span = step_seconds(workload, step, machine("2xT4"), "fp16")
    assert span.high < 2.70 < 10 * span.high


def test_bert_large_on_a_v100_takes_as_long_as_hugging_face_measured():
    """Four examples of 512 tokens: 8.86 a second in fp32, 18.64 in fp16 (docs/results/public_runs.json)."""
    large = replace(bert_large(), length=512)
    for precision, rate in (("fp32", 8.86), ("fp16", 18.64)):
        step = count(large, 4, kind="cuda", precision=precision)
        v100 = replace(machine("T4"), name="V100", accelerator=find("Tesla V100-SXM2-16GB"))
        span = step_seconds(large, step, v100, precision)
        assert span.low <= 4 / rate <= span.high, (precision, span)


def test_accumulation_repeats_the_micro_batch():
    step = counted(0, flops=1e12, trained=0)
    one, four = (step_seconds(SMALL, step, machine("T4"), "fp16", accumulation=times) for times in (1, 4))
    assert four.low == pytest.approx(4 * one.low)


def test_a_recurrence_has_no_bound_from_above():
    assert seconds("T4", workload=replace(SMALL, recurrent=True)).high == math.inf


# -- forecasts --


def forecasted(name="T4", **options):
    where = machine(name)
    return forecast(SMALL, plan(RECIPE, SMALL, runtime_of(where)), where, **options)


def test_a_run_of_several_lengths_is_their_sum_and_a_part_of_it_its_first_steps():
    found = forecasted(phases=[(30, 16), (20, 64)])
    short, long = (each for _, each in found.phases)
    assert found.seconds().low == pytest.approx(30 * short.low + 20 * long.low) and long.low > short.low
    assert found.seconds(40).low == pytest.approx(30 * short.low + 10 * long.low)


def test_a_run_costs_its_hours_and_several_devices_their_number():
    one, two = (forecasted(name, price=prices.of(machine(name))) for name in ("T4", "2xT4"))
    assert one.price.usd_per_hour == prices.table()["T4"].usd_per_hour > 0
    assert one.usd.low == pytest.approx(one.seconds().low / 3600 * one.price.usd_per_hour, abs=1e-15)
    assert two.price.usd_per_hour == pytest.approx(2 * one.price.usd_per_hour) and "Kaggle" in two.price.free


def test_a_run_that_was_only_found_finished_has_no_memory_of_its_own():
    cost = {"steps": 50, "seconds": 1, "compile_seconds": 0, "evaluate_and_save_seconds": 0, "peak_memory_bytes": 1}
    assert forecasted().beside(cost | {"resumed_from_step": 50})[1]["inside"] is None


def test_results_are_json_without_infinity():
    found = forecast(replace(SMALL, recurrent=True), forecasted().plan, machine("T4"))
    assert json.loads(json.dumps(found.results(), allow_nan=False))["run_seconds"]["high"] is None


# -- the rooms and the command line --


def test_every_notebook_has_a_room_that_plans_it():
    assert set(ROOMS) == set(NOTEBOOKS)
    with pytest.raises(ValueError, match=r"did you mean legal_cot_sft\?"):
        room("legal_cot")


@functools.cache
def published(notebook, hardware):
    """The outlook of a notebook's default run, as the command line makes it."""
    return outlook.forecasts(notebook, (hardware,), Asked())[0]


@pytest.mark.parametrize("hardware", ON_HARDWARE)
@pytest.mark.parametrize("notebook", NOTEBOOKS)
def test_the_command_line_recommends_the_batch_that_the_notebook_trains_with(notebook, hardware):
    found = published(notebook, hardware)
    here = runtime_of(machine(hardware))
    ours = plan(*room(notebook).planned(Asked(), here), here)
    assert found.plan.memory.fits in ("yes", "tight")
    for name in (
        "per_device_batch_size",
        "gradient_accumulation_steps",
        "gradient_checkpointing",
        "max_steps",
        "precision",
    ):
        assert getattr(found.plan, name) == getattr(ours, name), name


@pytest.mark.parametrize("hardware", ON_HARDWARE)
@pytest.mark.parametrize(
    "notebook", [name for name in NOTEBOOKS if name != "graphmer_se"]
)  # whose profile says its own
def test_one_more_doubling_of_the_chosen_micro_batch_would_not_surely_fit(notebook, hardware):
    chosen = published(notebook, hardware).plan
    if chosen.gradient_accumulation_steps > 1:
        here = runtime_of(machine(hardware))
        _, workload = room(notebook).planned(Asked(), here)
        share = chosen.per_device_batch_size * chosen.gradient_accumulation_steps
        next_one = min(n for n in range(chosen.per_device_batch_size + 1, share + 1) if share % n == 0)
        assert memory_of(workload, here, next_one, share, chosen.gradient_checkpointing).fits != "yes"


@pytest.fixture(scope="module")
def larger_models(tmp_path_factory):
    """Folders with the configuration of Qwen2.5 with 3 and 7 billion weights (their config.json on the hub)."""
    sizes = {
        "3b": (151_936, 2048, 11_008, 36, 16, 2, True),
        "7b": (152_064, 3584, 18_944, 28, 28, 4, False),
    }
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "tie_word_embeddings")
    folder = tmp_path_factory.mktemp("models")
    for name, values in sizes.items():
        (folder / name).mkdir()
        config = {"model_type": "qwen2", **dict(zip(names, values, strict=True))}
        (folder / name / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("model", "method", "hardware", "fits", "checkpointing"),
    [
        ("7b", "lora", "A100 40GB", "yes", False),
        pytest.param("3b", "lora", "T4", "yes", True, marks=pytest.mark.slow),
        ("7b", "lora", "L4", "tight", True),
        ("", "full", "T4", "yes", True),
        pytest.param("7b", "qlora", "T4", "yes", True, marks=pytest.mark.slow),
    ],
)
def test_the_usual_set_ups_fit_where_people_train_them(larger_models, model, method, hardware, fits, checkpointing):
    asked = Asked(model=str(larger_models / model) if model else "", method=method)
    (found,) = outlook.forecasts("legal_cot_sft", [hardware], asked)
    assert (found.plan.memory.fits, found.plan.gradient_checkpointing) == (fits, checkpointing)


def test_seven_billion_weights_in_four_bits_take_at_most_twelve_gib_of_a_t4(larger_models):
    t4 = runtime_of(machine("T4"))
    _, step = room("legal_cot_sft").planned(Asked(model=str(larger_models / "7b"), method="qlora"), t4)
    held = memory_of(step, t4, 1, 16, checkpointing=True)
    assert held.count.parameters > 7e9
    assert held.count.weights < 6 * 2**30
    assert held.peak.high < 12 * 2**30


def test_four_bits_do_not_fit_a_tpu_and_the_other_machines_are_still_planned():
    gpu, chip = outlook.forecasts("legal_cot_sft", ["A100 40GB", "v5e-1"], Asked(method="qlora"))
    assert gpu.plan.optimizer == "paged_adamw_8bit"
    assert (chip.plan, chip.problem) == (None, "no: 4 bits need a GPU")


def test_what_does_not_fit_is_said_with_the_bytes_that_are_missing(larger_models):
    (found,) = outlook.forecasts("legal_cot_sft", ["T4"], Asked(model=str(larger_models / "7b"), method="full"))
    assert found.plan is None and found.problem.startswith("no: needs 1") and found.problem.endswith("GiB of 14.90 GiB")


def test_frozen_half_precision_weights_cost_two_bytes_each():
    for hardware, size in (("A100 40GB", 2), ("T4", 2), ("CPU", 4)):
        _, workload = room("legal_cot_sft").planned(Asked(), runtime_of(machine(hardware)))
        found = count(workload, 1, kind="cpu", precision="fp32", length=16)
        frozen = found.parameters - found.trained
        assert found.weights == pytest.approx(size * frozen + 4 * found.trained, rel=0.001)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command."""
    status = outlook.main(arguments)
    return status, *capsys.readouterr()


def test_the_module_is_a_command(alone):
    environment = os.environ | {"PYTHONPATH": str(ROOT), "USE_TORCH_XLA": "0", "CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, "-m", "helpers.plan", "tinystories_reservoir", "--hardware", "T4", "--json"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert [each["hardware"] for each in json.loads(done.stdout)] == ["T4"]


def test_the_report_has_a_line_a_machine_with_fit_price_and_basis(capsys, alone):
    status, text, _ = run(capsys, "tinystories_reservoir", "--hardware", "T4,RTX 3050")
    assert status == 0
    t4, rtx = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("T4 ", "RTX 3050 "))
    assert "yes" in t4 and "$0 on Colab's free tier" in t4 and "datasheet bound" in t4
    assert "no price" in rtx
    assert "not decided, the intervals overlap" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing",), "notebook='nothing'"),
        (("legal_cot_sft", "--hardware", "T5"), "hardware='T5'"),
        (("legal_cot_sft", "--method", "dora", "--hardware", "T4"), "method='dora'"),
        (("legal_cot_sft", "--precision", "bf16", "--hardware", "T4"), "precision='bf16'"),
        (("legal_cot_sft", "--batch-size", "3", "--hardware", "v5e-8"), "batch_size=3"),
    ],
)
def test_bad_input_is_one_sentence_on_standard_error(capsys, alone, arguments, says):
    status, text, error = run(capsys, *arguments)
    assert (status, text) == (2, "") and says in error and "Traceback" not in error


# -- machines --


def test_a_planned_runtime_is_that_of_the_machine():
    found = runtime_of(machine("2xT4"))
    assert (found.kind, found.precision, found.device_count, found.memory) == ("cuda", "fp16", 2, 16 * 10**9)
    assert runtime_of(machine("v5e-8")).precision == "bf16" and runtime_of(machine("CPU")).memory is None
    with pytest.raises(ValueError, match="precision='bf16' is emulated and slow on T4"):
        runtime_of(machine("T4"), "bf16")


@pytest.mark.parametrize("name", ["A100-SXM-64GB", "NVIDIA A100-SXM4-64GB"])
def test_an_a100_of_another_size_does_not_borrow_figures(name):
    assert find(name) is None


def test_gibibytes_are_binary():
    assert GIB == 1024**3


def tiny_classifier(folder):
    from helpers.tuning.classifier import load_classifier
    from helpers.tuning.workload import workload

    labels, texts = [str(label) for label in range(6)], ["a small text of some words", "and another"]
    model, tokenizer = load_classifier("sample", labels, texts=texts, seed=0)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded, _ = load_classifier(str(folder), labels, seed=0)
    return "hardware_tuning", workload(loaded, "notebook", 128)


def tiny_language_model(folder):
    from helpers.legal.model import load_model
    from helpers.legal.parameters import LegalParameters
    from helpers.legal.training import workload

    params = LegalParameters.defaults().model_copy(update={"base_model": "sample", "method": "full"})
    model, tokenizer = load_model(params, cpu_here())
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    loaded, _ = load_model(params.model_copy(update={"base_model": str(folder), "method": "lora"}), cpu_here())
    return "legal_cot_sft", workload(loaded, "notebook", 128, "lora")


def tiny_embedder(folder):
    from helpers.lejepa.loss import LeJEPALoss
    from helpers.lejepa.model import encode, load_backbone, principal_head, with_head
    from helpers.lejepa.workload import workload

    texts = ["some words", "of a text"]
    load_backbone("sample", texts=texts)[0].save(str(folder))
    backbone = load_backbone(str(folder))
    model = with_head(backbone, *principal_head(encode(backbone, texts, "document")))
    return "lejepa_training", workload(LeJEPALoss(model, sigreg_weight=0.02, contrastive_weight=1.0), "notebook", 128)


@pytest.mark.parametrize("made", [tiny_classifier, tiny_language_model, tiny_embedder])
def test_the_command_line_counts_the_step_that_the_notebook_trains(made, tmp_path):
    """Of a local model: the one loads its weights as the notebook does, the other knows its configuration alone."""
    from helpers.plan.counting import count

    notebook, ours = made(tmp_path)
    _, step = room(notebook).planned(Asked(model=str(tmp_path), length=128, method="lora"), cpu_here())
    for precision in ("fp32", "bf16"):
        how = {"kind": "cuda", "precision": precision, "length": 128}
        assert count(step, 4, **how) == count(ours, 4, **how)
