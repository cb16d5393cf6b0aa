"""The legal notebooks as users run them: alone, headless, resumed, refused, on eight virtual XLA devices."""

import json
import re
from importlib.util import find_spec
from pathlib import Path

import nbformat
import pytest
from transformers import AutoModelForCausalLM

from helpers.legal.evaluation import UNTRAINED
from helpers.legal.sample import sample_records
from tests.harness import NOTEBOOKS, read_json, run_notebook, text_of

TINY = {
    "data_source": "sample",
    "base_model": "sample",
    "max_steps": 6,
    "save_steps": 3,
    "batch_size": 8,
    "learning_rate": 0.005,
}


def assert_whole_run(executed, results, kind: str) -> None:
    assert (results["runtime"]["kind"], results["train"]["steps"]) == (kind, TINY["max_steps"])
    before, after = (results["eval"][name] for name in ("before", "after"))
    assert after["completion"]["loss"] < before["completion"]["loss"] - 0.1
    assert len(after["samples"]) == results["data"]["test_examples"]
    assert len(before["samples"]) == min(UNTRAINED, len(after["samples"]))
    plain, packed = re.search(r"by hand ([\d.]+), by the trainer ([\d.]+)", text_of(executed)).groups()
    rounding = 1e-5 if results["plan"]["precision"] == "fp32" else 1e-3  # bf16 has three digits
    assert float(plain) == pytest.approx(float(packed), rel=rounding)
    model = AutoModelForCausalLM.from_pretrained("out/model/merged")
    assert model.generation_config.eos_token_id is not None
    assert Path("out/model/adapter_model.safetensors").is_file()
    assert read_json("out/set_aside.json") == []


@pytest.mark.slow
@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_resumes_it(alone):
    (alone / "records.jsonl").write_text("\n".join(map(json.dumps, sample_records(70))))
    parameters = TINY | {"data_source": str(alone / "records.jsonl")}
    executed, results = run_notebook("legal_cot_sft", alone, parameters)
    assert_whole_run(executed, results, "cpu")
    assert "The model has hardly learned its records" in text_of(executed)
    assert "Raise learning_rate (it was 0.005) or max_steps (it was 6)" in text_of(executed)
    executed, again = run_notebook("legal_cot_sft", alone, parameters)
    assert re.search("^the run is finished: checkpoint-6 is its last step", text_of(executed), re.MULTILINE)
    assert again["eval"]["after"] == results["eval"]["after"]


@pytest.mark.slow
@pytest.mark.once
def test_two_processes_train_what_one_trains_with_edited_cells(alone):
    notebook = nbformat.read(NOTEBOOKS / "legal_cot_sft.ipynb", 4)
    for cell in notebook.cells:
        cell.source = cell.source.replace("length=block, **", "length=block, adam_beta2=0.9, **")
        cell.source = cell.source.replace("seed=params.seed)\nrun.note", "seed=params.seed + 1)\nrun.note")
    assert sum("adam_beta2" in cell.source or "seed + 1" in cell.source for cell in notebook.cells) == 2
    (alone / "edited").mkdir()
    nbformat.write(notebook, alone / "edited/legal_cot_sft.ipynb")
    histories = {}
    for count in (2, 1):
        parameters = TINY | {"method": "full", "num_processes": count}
        executed, results = run_notebook("legal_cot_sft", alone, parameters, alone / "edited")
        state = read_json(f"out/checkpoint-{TINY['max_steps']}/trainer_state.json")
        Path("out").rename(str(count))
        names = ("loss", "grad_norm", "eval_loss")
        histories[count] = [entry[name] for entry in state["log_history"] for name in names if name in entry]
        assert ("training in 2 processes" in text_of(executed)) == (count == 2)
        assert (results["plan"]["device_count"], results["plan"]["per_device_batch_size"]) == (count, 8 // count)
    assert histories[2] == pytest.approx(histories[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.skipif(find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_labelled_rows_in_four_bits_from_the_first_cell_to_the_last(alone):
    lines = ["text;label"]
    for number in range(80):
        label = ("void", "valid")[number % 2]
        lines.append(f"Clause {number * 7919:x} is {label} {number * 104729:x}.;{label}")
    (alone / "clauses.csv").write_text("\n".join(lines))
    parameters = TINY | {"method": "qlora", "data_source": str(alone / "clauses.csv")}
    executed, results = run_notebook("legal_cot_sft", alone, parameters)
    assert results["train"]["loss_last"] < results["train"]["loss_first"]
    assert not Path("out/model/merged").exists()
    systems = results["eval"]["baselines"]["systems"]
    assert systems["words (TF-IDF, logistic regression)"]["value"] == 1
    assert systems["most frequent answer"]["value"] <= 0.75
    assert "too few for an interval: 8" in text_of(executed)
    assert Path("out/figures/answers.png").is_file()


@pytest.mark.slow
def test_the_tpu_notebook_trains_on_eight_virtual_devices(alone, eight_devices):
    executed, results = run_notebook("legal_cot_sft_tpu", alone, TINY)
    assert_whole_run(executed, results, "xla")
