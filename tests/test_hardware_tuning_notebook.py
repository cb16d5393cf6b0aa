"""The tuning notebooks as users run them: alone, headless, run again, refused, on eight virtual XLA devices."""

from __future__ import annotations

import math
import random
import re
from pathlib import Path

import pytest
from transformers import pipeline

from helpers.machine import xla

from .notebook_run import assert_refuses, refused, run, text_of

TINY = {
    "data_source": "sample",
    "base_model": "sample",
    "num_rows": 200,
    "eval_rows": 24,
    "positive_label": "asyncio",
    "max_length": 32,
    "start_batch_size": 8,
    "largest_batch_size": 16,
    "window_examples": 16,
    "repetitions": 2,
    "try_compile": False,
    "further_seeds": 0,
    "max_steps": 12,
    "evaluations": 2,
    "logging_steps": 3,
    "learning_rate": 1e-3,
}
NAMES = ["TF32", "bf16 autocast", "attention written out"]


@pytest.fixture
def texts(alone) -> dict:
    """Parameters of a tiny run on texts that are written here: the library's docstrings take long to parse."""
    draw = random.Random(0)
    families = {"asyncio": "await loop task future", "xml": "element tree node parse"}
    rows = []
    for i in range(260):
        label = draw.choice(list(families))
        words = draw.choices([*families[label].split(), "the", "a", "returns"], k=draw.randint(2, 20))
        rows.append(f'"{" ".join(words)} {i}",{label}')
    (alone / "texts.csv").write_text("text,label\n" + "\n".join([*rows, rows[0]]) + "\n", encoding="utf-8")
    return TINY | {"data_source": str(alone / "texts.csv")}


def assert_whole_run(executed, results, kind: str) -> None:
    output = Path("out")
    code = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count for cell in code)
    assert results["runtime"]["kind"] == kind
    found = {each["name"]: each for each in results["optimisations"]}
    assert list(found)[: len(NAMES)] == NAMES
    for each in found.values():
        assert re.match("kept|did not help here|not tried|gave up|failed|does not fit", each["verdict"]), each[
            "verdict"
        ]
        assert each["kept"] == each["verdict"].startswith("kept")
        if each["speed_up"] is not None:
            assert each["speed_up_low"] <= each["speed_up"] <= each["speed_up_high"]
            assert math.isfinite(each["loss"]) and each["examples_per_second"] > 0
    assert not [each for each in found.values() if each["verdict"].startswith("failed")]
    assert found["TF32"]["verdict"].startswith("not tried: TF32 is a mode of NVIDIA's tensor cores")
    assert results["start"]["speed_up"] == pytest.approx(1)
    assert {"batch size 16", "8-bit AdamW"} < set(found)
    assert results["tuning_seconds"] > 0
    changed = results["settings"]["tuned"] != results["settings"]["start"]
    assert (results["over_start"] is not None) is changed
    steps = TINY["max_steps"] * 8 // results["settings"]["tuned"]["batch_size"]
    rows = results["comparison"][str(results["seed"])]
    assert rows["tuned"]["steps"] == results["train"]["steps"] == steps
    assert rows["start"]["steps"] == TINY["max_steps"]
    for values in (*rows.values(), results["eval"]["before"]):
        assert 0 <= values["f1"] <= 1 and 0 < values["threshold"] < 1
    assert results["eval"]["after"]["log_loss"] < results["eval"]["before"]["log_loss"]
    assert len(results["verdict"]["speed_up"]) == 1 and results["verdict"]["quality_kept"] is None
    assert (output / "figures" / "optimisations.png").read_bytes().startswith(b"\x89PNG")
    assert not [*output.glob("model/**/*.bin"), *output.glob("model/**/*.pt")]
    answer = pipeline("text-classification", str(output / "model"), device="cpu")("await the loop")
    assert answer[0]["label"] in ("asyncio", "not asyncio")


def assert_forecast(executed, results) -> None:
    """The timings of the climb are what the tuned run was expected to take, and what it took stands beside them."""
    planned, rung = results["forecast"], [results["start"], *results["optimisations"]]
    rung = [each for each in rung if each["kept"]][-1]
    assert planned["step_seconds"]["basis"] == "measured"
    assert planned["step_seconds"]["value"] == pytest.approx(1 / rung["steps_per_second"])
    assert planned["run_seconds"]["value"] == pytest.approx(results["plan"]["max_steps"] / rung["steps_per_second"])
    assert planned["peak_memory_bytes"]["low"] < planned["peak_memory_bytes"]["high"]
    assert re.search("^forecast and measured +interval +measured +inside", text_of(executed), re.M)


@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_measures_nothing_again(texts, alone):
    executed, results = run("hardware_tuning", alone, texts)
    assert_whole_run(executed, results, "cpu")
    assert_forecast(executed, results)
    assert results["data"]["removed"]["repeated in a split"] == 1
    assert results["data"]["source"] == "texts.csv" and re.fullmatch("[0-9a-f]{64}", results["data"]["sha256"])
    assert [each["last_step"] for each in results["sessions"]] == [results["train"]["steps"]]
    assert re.search("^Trials: about .+ of which 30 minutes may pass", text_of(executed), re.MULTILINE)
    carried = {file.name for file in Path("out/stock").iterdir()}
    assert carried == {"train.py", "training_args.json", "model.json", "accelerate.yaml"}
    executed, again = run("hardware_tuning", alone, texts)
    assert "measured before: ladder.json" in text_of(executed)
    assert len(re.findall("^the run is finished", text_of(executed), re.MULTILINE)) == 2
    assert again["optimisations"] == results["optimisations"]
    assert again["eval"]["after"]["f1"] == results["eval"]["after"]["f1"]
    assert "belongs to another run (seed=0 there, 7 here)" in refused("hardware_tuning", alone, texts | {"seed": 7})


@pytest.mark.slow
@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_the_tpu_notebook_tunes_on_eight_virtual_devices(texts, alone, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
    executed, results = run("hardware_tuning_tpu", alone, texts | {"max_length": 40})
    assert_whole_run(executed, results, "xla")
    assert results["runtime"]["device_count"] == 8
    assert results["xla"]["compiles_after_warmup"] == 0
    assert results["xla"]["host_syncs_per_step"] == 0
    found = {each["name"]: each for each in results["optimisations"]}
    assert found["bf16 autocast"]["compile_seconds"] > 0
    assert (
        results["settings"]["start"]["padding"] == "fixed"
        and results["settings"]["start"]["optimizer"] == "adamw_torch"
    )
    assert found["torch.compile"]["verdict"] == "not tried: XLA compiles the whole step already"


WRONG = [
    ({"repetition": 3}, "repetition is not a parameter"),
    ({"repetitions": 1}, "repetitions=1"),
    ({"data_source": "no/such/texts.csv"}, "data_source='no/such/texts.csv'"),
]


@pytest.mark.once
def test_a_wrong_parameter_is_an_error_that_names_it_before_anything_is_written(alone):
    assert_refuses("hardware_tuning", alone, TINY, WRONG)
