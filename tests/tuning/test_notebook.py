"""The tuning notebooks as users run them: alone, headless, run again, refused, on eight virtual XLA devices."""

import re
from pathlib import Path

import pytest
from transformers import pipeline

from tests.harness import refused, text_of
from tests.harness import run_notebook as run
from tests.tuning_run import WORDS, write_csv

TINY = {
    "data_source": "sample",
    "base_model": "sample",
    "num_rows": 1600,  # with enough dev texts to compare quality
    "max_length": 32,
    "tuning_minutes": 2.0,
    "max_steps": 12,
    "learning_rate": 1e-3,
}
FIRST = ["stock Trainer", "batch 16"]


@pytest.fixture
def texts(alone) -> dict:
    """Parameters of a tiny run on texts that are written here: the library's docstrings take long to parse."""
    return TINY | {"data_source": str(write_csv(alone / "texts.csv", 3300))}


def assert_whole_run(results, kind: str) -> None:
    output = Path("out")
    assert results["runtime"]["kind"] == kind
    ladder = {rung["name"]: rung for rung in results["ladder"]}
    assert list(ladder)[:1] == FIRST[:1] and "TF32" in ladder and ladder["TF32"]["outcome"] == "not tried"
    outcomes = {"the start", "kept", "not faster", "not decided", "not tried"}
    assert {rung["outcome"] for rung in results["ladder"]} <= outcomes
    tuned = results["settings"]["tuned"]
    batch = tuned["per_device_train_batch_size"] * results["runtime"]["device_count"]
    assert results["train"]["steps"] == TINY["max_steps"] * 8 * tuned.get("times_the_examples", 1) // batch
    raced = results["race"]
    kept = tuned != results["settings"]["reference"]
    assert raced["outcome"] in ("kept", "worse", "not decided", "not faster")
    assert (raced["outcome"] == "kept") is kept is (results["f1_over_reference"] is not None)
    assert results["eval"]["baselines"]["a linear model on the frozen encoder"]["f1"] > 0.5
    assert results["utilisation"]["advice"]
    assert (output / "figures/optimisations.png").read_bytes().startswith(b"\x89PNG")
    answer = pipeline("text-classification", str(output / "model"), device="cpu")("navy sea")
    assert answer[0]["label"] in WORDS


@pytest.mark.slow
@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_measures_nothing(texts, alone):
    executed, results = run("hardware_tuning", alone, texts)
    assert_whole_run(results, "cpu")
    assert results["data"]["source"] == "texts.csv" and re.fullmatch("[0-9a-f]{64}", results["data"]["sha256"])
    assert {file.name for file in Path("out/stock").iterdir()} == {"train.py", "settings.json", "texts.csv", "model"}
    executed, again = run("hardware_tuning", alone, texts)
    assert "measured before: ladder.json" in text_of(executed) and "the run is finished" in text_of(executed)
    assert "measured before: race.json" in text_of(executed)
    assert (again["ladder"], again["race"]) == (results["ladder"], results["race"])
    assert again["eval"]["after"]["f1"] == results["eval"]["after"]["f1"]
    assert "holds another run (seed=0 there, 7 here)" in refused("hardware_tuning", alone, texts | {"seed": 7})


@pytest.mark.slow
def test_the_tpu_notebook_tunes_on_eight_virtual_devices(texts, alone, eight_devices):
    _, results = run("hardware_tuning_tpu", alone, texts | {"max_length": 40})
    assert_whole_run(results, "xla")
    assert results["settings"]["start"]["optim"] == "adamw_torch" and results["plan"]["sequence_length"] <= 40
    assert not Path("out/stock").exists()
