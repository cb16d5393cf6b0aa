"""The legal notebooks as users run them: alone, headless, resumed, refused, on eight virtual XLA devices."""

from __future__ import annotations

import json
import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from helpers.machine import xla

from .harness import assert_refuses, refused, text_of
from .harness import run_notebook as run

TINY = {
    "data_source": "sample",
    "num_records": 120,
    "base_model": "sample",
    "max_length": 768,
    "max_steps": 6,
    "eval_steps": 3,
    "save_steps": 3,
    "logging_steps": 3,
    "batch_size": 8,
    "learning_rate": 0.005,
    "test_records": 3,
    "max_new_tokens": 16,
}


def assert_whole_run(executed, results, kind: str) -> None:
    output = Path("out")
    code = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count for cell in code)
    assert (results["runtime"]["kind"], results["train"]["steps"]) == (kind, TINY["max_steps"])
    assert results["train"]["loss_last"] < results["train"]["loss_first"]
    before, after, baselines = (results["eval"][name] for name in ("before", "after", "baselines"))
    assert [(row["questions"], row["verbatim"]) for row in results["eval"]["overlap"]] == [("test", 0), ("areas", 0)]
    for part in ("test", "areas"):
        assert after[part]["completion"]["loss"] < before[part]["completion"]["loss"] - 0.1
        assert before[part]["verdict"]["of"] == after[part]["verdict"]["of"] == TINY["test_records"]
        assert baselines[part]["gold"]["verdict"]["rate"] == 1
    assert 0 < results["train"]["fill"] <= 1
    assert results["artifacts"]["model"] == "model"
    assert "no legal advice" in text_of(executed)
    plain, packed = re.search(r"^plain ([\d.]+), packed ([\d.]+), difference", text_of(executed), re.MULTILINE).groups()
    rounding = 1e-5 if results["plan"]["precision"] == "fp32" else 1e-3  # bf16 has three digits
    assert float(plain) == pytest.approx(float(packed), rel=rounding)
    assert (output / results["artifacts"]["figures"] / "answers.png").read_bytes().startswith(b"\x89PNG")
    assert (output / "model" / "merged" / "Modelfile").is_file()
    model = AutoModelForCausalLM.from_pretrained(output / "model" / "merged")
    assert model.generation_config.eos_token_id is not None
    assert (output / "model" / "adapter_model.safetensors").is_file()
    assert not [*output.glob("model/**/*.bin"), *output.glob("model/**/*.pt")]
    assert not [row for row in json.loads((output / "set_aside.json").read_text()) if row["set_aside"]]


@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_resumes_it(alone):
    executed, results = run("legal_cot_sft", alone, TINY)
    assert_whole_run(executed, results, "cpu")
    executed, again = run("legal_cot_sft", alone, TINY)
    assert re.search("^the run is finished: checkpoint-6 is its last step", text_of(executed), re.MULTILINE)
    assert again["eval"]["after"] == results["eval"]["after"]
    assert "belongs to another run (seed=0 there, 7 here)" in refused("legal_cot_sft", alone, TINY | {"seed": 7})


@pytest.mark.slow
@pytest.mark.once
def test_full_weights_in_the_plain_layout_in_two_processes(alone):
    changes = {"method": "full", "layout": "instruction"}
    executed, results = run("legal_cot_sft", alone, TINY | changes | {"num_processes": 2})
    assert "training in 2 processes" in text_of(executed)
    assert results["model"]["method"] == "full"
    assert (results["plan"]["device_count"], results["plan"]["per_device_batch_size"]) == (2, 4)
    assert (
        results["eval"]["after"]["test"]["completion"]["loss"]
        < results["eval"]["before"]["test"]["completion"]["loss"] - 0.1
    )
    assert (Path("out") / "model" / "model.safetensors").is_file()


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
@pytest.mark.skipif(find_spec("lm_eval") is None, reason="lm-evaluation-harness is not installed")
def test_four_bits_and_labelled_questions_from_the_first_cell_to_the_last(alone):
    lines = ["text\tanswer", *(f"A promise, case {n}.\t{('Yes', 'No')[n % 2]}" for n in range(8))]
    (alone / "questions.tsv").write_text("\n".join(lines), encoding="utf-8")
    changes = {"method": "qlora", "questions": str(alone / "questions.tsv")}
    executed, results = run("legal_cot_sft", alone, TINY | changes)
    assert results["plan"]["optimizer"] == "paged_adamw_8bit"
    assert results["train"]["loss_last"] < results["train"]["loss_first"]
    assert not (Path("out") / "model" / "merged").exists()
    for when in ("before", "after"):
        asked = results["eval"][when]["test"]["questions"]["tasks"]["questions"]
        assert (asked["sample_len"], asked["best_constant"]) == (8, 0.5)
    assert "Labelled questions, by lm-evaluation-harness" in text_of(executed)


@pytest.mark.slow
@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_the_tpu_notebook_trains_on_eight_virtual_devices(alone, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
    executed, results = run("legal_cot_sft_tpu", alone, TINY)
    assert_whole_run(executed, results, "xla")
    assert results["runtime"]["device_count"] == 8
    assert results["xla"]["compiles_after_warmup"] == 0
    assert results["xla"]["host_syncs_per_step"] == 0


WRONG = [
    ({"num_record": 3}, "num_record is not a parameter"),
    ({"layout": "alpaca"}, "layout='alpaca'"),
    ({"method": "dora"}, "method='dora'"),
    ({"max_length": 64}, "max_length=64"),
    ({"questions": "no.tsv"}, "questions='no.tsv'"),
    ({"base_model": "no such model"}, "base_model='no such model'"),
    ({"test_records": 0}, "test_records=0"),
    ({"num_processes": -1}, "num_processes=-1"),
]


@pytest.mark.once
def test_a_wrong_parameter_is_an_error_that_names_it_before_anything_is_written(alone):
    assert_refuses("legal_cot_sft", alone, TINY, WRONG)
