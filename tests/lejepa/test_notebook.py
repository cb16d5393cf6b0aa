"""The LeJEPA notebooks as users run them: alone, headless, resumed, refused, on eight virtual XLA devices."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from helpers.lejepa.parameters import EmbeddingParameters
from helpers.machine import xla
from helpers.parameters import MAIN, extra
from tests.harness import assert_refuses, refused, text_of
from tests.harness import run_notebook as run

TINY = {
    "data_source": "sample",
    "num_samples": 400,
    "base_model": "sample",
    "output_dim": 48,
    "max_seq_length": 32,
    "train_length": 32,
    "max_steps": 6,
    "save_steps": 3,
    "batch_size": 16,
}


def assert_whole_run(executed, results, kind: str) -> None:
    output = Path("out")
    code = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count for cell in code)
    assert (results["runtime"]["kind"], results["train"]["steps"]) == (kind, TINY["max_steps"])
    assert math.isfinite(results["train"]["loss_last"])
    for found in results["eval"].values():
        assert 0 <= found["dense"] <= 1 and 0 <= found["hybrid"] <= 1
    trained, whole = results["evidence"]["verdicts"]
    assert trained["what"] == "what training adds to the same search"
    assert whole["what"] == "the whole search over the stock model"
    said = results["eval"]["LeJEPA"]["hybrid"] - results["eval"]["as it came"]["hybrid"]
    assert float(re.match(r"[+-][\d.]+", trained["nDCG@10"])[0]) == pytest.approx(said, abs=6e-4)
    assert results["evidence"]["reason"] in text_of(executed)
    assert {"index.faiss", "passages.json", "search.py", "bm25", "model"} <= {
        path.name for path in (output / "search").iterdir()
    }
    assert not [*output.glob("[ms]*/**/*.bin"), *output.glob("[ms]*/**/*.pkl")]
    model = SentenceTransformer(str(output / "model"), device="cpu")
    assert model.encode("a text").shape == (TINY["output_dim"],)


@pytest.mark.slow
@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_resumes_it(alone):
    executed, results = run("lejepa_training", alone, TINY)
    assert_whole_run(executed, results, "cpu")
    executed, again = run("lejepa_training", alone, TINY)
    assert "the run is finished: checkpoint-6 is its last step" in text_of(executed)
    assert again["eval"] == results["eval"]
    assert "belongs to another run (seed=0 there, 7 here)" in refused("lejepa_training", alone, TINY | {"seed": 7})


@pytest.mark.once
@pytest.mark.slow
def test_a_folder_of_documents_is_enough(alone):
    folder = alone / "documents"
    folder.mkdir()
    for number in range(60):
        words = " ".join(f"word{(number * 7 + i * i) % 97}" for i in range(60))
        (folder / f"{number}.md").write_text(f"# The page of topic {number}\n{words}.", encoding="utf-8")
    _, results = run("lejepa_training", alone, TINY | {"data_source": str(folder), "num_samples": 0})
    assert (results["data"]["kind"], results["data"]["documents"]) == ("headings", 60)
    assert results["evidence"]["kept"] != "LeJEPA"  # which is not chosen by headings


@pytest.mark.slow
@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_the_tpu_notebook_trains_on_eight_virtual_devices(alone, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
    executed, results = run("lejepa_training_tpu", alone, TINY)
    assert_whole_run(executed, results, "xla")
    assert results["runtime"]["device_count"] == 8
    assert results["xla"]["compiles_after_warmup"] == results["xla"]["host_syncs_per_step"] == 0


WRONG = [
    ({"num_sample": 3}, "num_sample is not a parameter"),
    ({"output_dim": 1}, "output_dim=1"),
    ({"sigreg_weight": 1.5}, "sigreg_weight=1.5"),
    ({"contrastive_weight": -1.0}, "contrastive_weight=-1.0"),
    ({"num_samples": 1}, "num_samples=1"),
    ({"batch_size": 1}, "batch_size=1"),
    ({"train_length": 4}, "train_length=4"),
    ({"data_source": "no/such/texts.jsonl"}, "data_source='no/such/texts.jsonl'"),
]


@pytest.mark.once
def test_a_wrong_parameter_is_an_error_that_names_it_before_anything_is_written(alone):
    assert_refuses("lejepa_training", alone, TINY, WRONG)


@pytest.mark.once
def test_the_form_has_at_most_twenty_parameters_eight_of_them_first():
    groups = [extra(field)["group"] for field in EmbeddingParameters.model_fields.values()]
    assert len(groups) <= 20 and groups.count(MAIN) <= 8
