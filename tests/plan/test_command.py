"""python -m helpers.plan over all notebooks: it plans what the notebook trains, and says what it cannot plan."""

import functools
import json
import os
import re

import pytest

from helpers.plan.__main__ import forecasts, main
from helpers.plan.counting import count
from helpers.plan.machines import machine, runtime_of
from helpers.plan.settings import memory_of
from helpers.plan.workloads import ROOMS, Asked, room
from tests.harness import ROOT, cpu_here, printed

pytestmark = pytest.mark.once

SOURCES = (ROOT / "notebooks/source").glob("*.py")
NOTEBOOKS = sorted({path.stem for path in SOURCES} - {"runtime_report"})  # which runs the others
QUICK = (
    "T4",
    "H100",
    "lejepa_training",
    "tinystories_reservoir",
    "hardware_tuning",
)  # half of the time is the other two's
RUNS = [
    pytest.param(name, hardware, marks=() if {name, hardware} <= set(QUICK) else pytest.mark.slow)
    for name in NOTEBOOKS
    for hardware in ("T4", "RTX 3050", "v5e-8", "H100")
]
# vocabulary, width, inner width, layers, heads, heads of keys, tied: config.json of Qwen2.5 on the hub, but for the last two.
MODELS = {
    "3b": (151_936, 2_048, 11_008, 36, 16, 2, True),
    "7b": (152_064, 3_584, 18_944, 28, 28, 4, False),
    "shallow": (151_936, 896, 4_864, 3, 14, 2, True),
    "wide": (152_064, 16_384, 65_536, 2, 128, 8, False),
}


def test_every_notebook_has_a_room_that_plans_it():
    assert set(ROOMS) == set(NOTEBOOKS)


@pytest.mark.parametrize(("notebook", "hardware"), RUNS)
def test_a_notebooks_default_run_fits_and_one_larger_micro_batch_would_not_surely(notebook, hardware):
    chosen = forecasts(notebook, (hardware,), Asked())[0].plan
    assert chosen.memory.fits in ("yes", "tight")
    if hardware == "H100":  # which has room for the whole batch
        assert chosen.memory.fits == "yes" and not chosen.gradient_checkpointing
        assert (chosen.gradient_accumulation_steps, chosen.per_device_batch_size) == (1, chosen.batch_size)
    if chosen.gradient_accumulation_steps > 1:
        here = runtime_of(machine(hardware))
        _, workload = room(notebook).planned(Asked(), here)
        share = chosen.per_device_batch_size * chosen.gradient_accumulation_steps
        larger = min(n for n in range(chosen.per_device_batch_size + 1, share + 1) if share % n == 0)
        assert memory_of(workload, here, larger, share, chosen.gradient_checkpointing).fits != "yes"


def test_adapters_neither_cast_what_autocast_casts_nor_start_a_dropout_at_rate_zero():
    """The job of the first card: 25 records in 4,930 tokens. Casts of the inputs were 28 operations a layer, dropout 14."""
    (run,) = forecasts("legal_cot_sft", ("H100",), Asked(batch_size=5))
    assert run.plan.launches <= 5_850


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Folders with the configurations of MODELS."""
    names = ("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads")
    names += ("num_key_value_heads", "tie_word_embeddings")
    folder = tmp_path_factory.mktemp("models")
    for name, values in MODELS.items():
        (folder / name).mkdir()
        config = {"model_type": "qwen2", **dict(zip(names, values, strict=True))}
        (folder / name / "config.json").write_text(json.dumps(config))
    return folder


@functools.cache
def legal_step(model, method, hardware):
    """(runtime, training step) of the legal notebook."""
    here = runtime_of(machine(hardware))
    return here, room("legal_cot_sft").planned(Asked(model=str(model), method=method), here)[1]


@pytest.mark.parametrize(
    ("model", "method", "hardware", "fits", "checkpointing"),
    [
        pytest.param("7b", "lora", "A100 40GB", "yes", False, marks=pytest.mark.slow),
        pytest.param("7b", "lora", "L4", "tight no", False, marks=pytest.mark.slow),
        ("7b", "lora", "L4", "tight", True),
        pytest.param("3b", "lora", "T4", "yes", True, marks=pytest.mark.slow),
        pytest.param("", "full", "T4", "yes", True, marks=pytest.mark.slow),
    ],
)
def test_the_usual_set_ups_fit_where_people_train_them(models, model, method, hardware, fits, checkpointing):
    here, step = legal_step(models / model if model else "", method, hardware)
    assert memory_of(step, here, 1, 16, checkpointing, evaluated=True).fits in fits.split()


def test_seven_billion_weights_in_four_bits_take_at_most_twelve_gib_of_a_t4(models):
    t4, step = legal_step(models / "7b", "qlora", "T4")
    held = memory_of(step, t4, 1, 16, checkpointing=True)
    assert held.count.parameters > 7e9
    assert held.count.weights < 6 * 2**30
    assert held.peak.high < 12 * 2**30


def test_four_bits_do_not_fit_a_tpu_and_the_other_machines_are_still_planned(models):
    asked = Asked(model=str(models / "shallow"), method="qlora")
    gpu, chip = forecasts("legal_cot_sft", ["A100 40GB", "v5e-1"], asked)
    assert gpu.plan.optimizer == "paged_adamw_8bit"
    assert chip.plan is None and "no kernels for a TPU" in chip.problem


@pytest.mark.slow
def test_what_does_not_fit_is_said_with_the_bytes_that_are_missing(models):
    (run,) = forecasts("legal_cot_sft", ["T4"], Asked(model=str(models / "wide"), method="full"))
    assert run.plan is None and re.search(r"need at least \d+\.\d+ GiB and T4 has 14\.90 GiB", run.problem)


def test_frozen_half_precision_weights_cost_two_bytes_each(models):
    for hardware, size in (("A100 40GB", 2), ("T4", 2), ("CPU", 4)):
        _, step = legal_step(models / "shallow", "", hardware)
        found = count(step, 1, kind="cpu", precision="fp32", length=16)
        frozen = found.parameters - found.trained
        assert found.weights == pytest.approx(size * frozen + 4 * found.trained, rel=0.001)


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    """Exit status, standard output and standard error of the command."""
    status = main(arguments)
    return status, *capsys.readouterr()


def test_the_module_is_a_command(alone):
    environment = os.environ | {"USE_TORCH_XLA": "0", "CUDA_VISIBLE_DEVICES": ""}
    arguments = ("tinystories_reservoir", "--hardware", "T4", "--json")
    answers = json.loads(printed("-m", "helpers.plan", *arguments, env=environment))
    assert [each["hardware"] for each in answers] == ["T4"]


def test_the_report_has_a_line_a_machine_with_fit_price_and_basis(capsys, alone):
    status, text, _ = run(capsys, "hardware_tuning", "--hardware", "T4,RTX 3050,A100 40GB")
    assert status == 0
    t4, rtx = (next(line for line in text.splitlines() if line.startswith(name)) for name in ("T4 ", "RTX 3050 "))
    assert "yes" in t4 and "$0 (Colab) or $0.0" in t4 and "published runs" in t4
    assert "no price" in rtx and "compilation" in text
    assert "fastest on the same examples: A100 40GB" in text


def test_machines_are_compared_on_the_same_examples():
    """A step of a TPU has twice as many."""
    runs = forecasts("lejepa_training", ("T4", "2xT4", "v5e-1"), Asked(steps=1000))
    assert len({run.plan.batch_size for run in runs}) > 1
    assert {run.examples for run in runs} == {runs[0].examples} == {1000 * runs[0].plan.batch_size}
    assert runs[2].step.basis.startswith("a guess")


def test_an_unknown_machine_costs_one_row(capsys, alone):
    status, text, error = run(capsys, "hardware_tuning", "--hardware", "T4,GTX 1650,A6000:48GB,768GB/s,155TFLOPS")
    assert status == 0 and not error and "GTX 1650: hardware='GTX 1650': unknown" in text
    own = next(line for line in text.splitlines() if line.startswith("A6000 "))
    assert "yes" in own and "published runs" in own and "A6000: datasheet given by hand" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("legal_cot",), "did you mean legal_cot_sft?"),
        (("legal_cot_sft", "--hardware", "T5"), "hardware='T5'"),
        (("legal_cot_sft", "--method", "dora", "--hardware", "T4"), "method='dora'"),
        (("legal_cot_sft", "--batch-size", "3", "--hardware", "v5e-8"), "batch_size=3"),
        (("hardware_tuning", "--examples", "-5", "--hardware", "T4"), "examples=-5 is out of range"),
        (("hardware_tuning", "--length", "100000", "--hardware", "T4"), "reads 512 tokens at most"),
        (
            ("hardware_tuning", "--hardware", "A6000:48GB"),
            "no datasheet; write memory, bandwidth and peak such as A6000:48GB",
        ),
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


def save(folder, model, tokenizer):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def tiny_classifier(folder):
    from helpers.tuning.training import load_classifier, workload

    labels = [*map(str, range(6))]
    save(folder, *load_classifier("sample", labels, texts=["a small text of some words", "and another"], seed=0))
    loaded, _ = load_classifier(str(folder), labels, seed=0)
    return "hardware_tuning", workload(loaded, "notebook", 128)


def tiny_language_model(folder):
    from helpers.legal.model import load_model
    from helpers.legal.parameters import LegalParameters
    from helpers.legal.workload import workload

    save(folder, *load_model(LegalParameters(base_model="sample", method="full"), cpu_here()))
    loaded, _ = load_model(LegalParameters(base_model=str(folder), method="lora"), cpu_here())
    return "legal_cot_sft", workload(loaded, "notebook", 128, "lora")


def tiny_embedder(folder):
    from helpers.lejepa.loss import LeJEPALoss
    from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head
    from helpers.lejepa.workload import workload
    from helpers.train.sentence_encoder import encode, load_sentence_encoder

    texts = ["some words", "of a text"]
    load_sentence_encoder("sample", texts=texts)[0].save(str(folder))
    backbone = load_sentence_encoder(str(folder))
    model = GaussianEmbeddingGemma(backbone, principal_head(encode(backbone, texts, "document")))
    return "lejepa_training", workload(
        LeJEPALoss(model, sigreg_weight=0.02, contrastive_weight=1.0), "notebook", (128, 128)
    )


@pytest.mark.parametrize("made", [tiny_classifier, tiny_language_model, tiny_embedder])
def test_the_command_line_counts_the_step_that_the_notebook_trains(made, tmp_path):
    """Of a local model: the one loads its weights as the notebook does, the other knows its configuration alone."""
    notebook, ours = made(tmp_path)
    _, step = room(notebook).planned(Asked(model=str(tmp_path), length=128, method="lora"), cpu_here())
    for precision in ("fp32", "bf16"):
        how = {"kind": "cuda", "precision": precision, "length": 128}
        assert count(step, 4, **how) == count(ours, 4, **how)
