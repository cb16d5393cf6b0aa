"""The LeJEPA notebooks as users run them: alone, headless, resumed, refused, on eight virtual XLA devices."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from helpers.machine import xla

from .notebook_run import assert_refuses, refused, run, text_of

TINY = {
    "data_source": "sample",
    "num_samples": 400,
    "base_model": "sample",
    "output_dim": 64,
    "max_seq_length": 32,
    "train_length": 0,
    "freeze_layers": 1,
    "max_steps": 6,
    "eval_steps": 3,
    "save_steps": 3,
    "logging_steps": 3,
    "batch_size": 16,
    "num_slices": 64,
}
HEAD, LEJEPA, CONTRASTIVE = "backbone + closed-form head, untrained", "LeJEPA", "MultipleNegativesRankingLoss"


def assert_whole_run(executed, results, kind: str) -> None:
    output = Path("out")
    code = [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]
    assert all(cell.execution_count for cell in code)
    assert (results["runtime"]["kind"], results["train"]["steps"]) == (kind, TINY["max_steps"])
    assert math.isfinite(results["train"]["loss_last"])
    rows = results["comparison"][str(results["seed"])]
    assert list(rows) == [LEJEPA, CONTRASTIVE]
    assert rows[LEJEPA]["steps"] == rows[CONTRASTIVE]["steps"] == TINY["max_steps"]
    untrained = results["eval"]["baselines"]
    for values in (*rows.values(), *untrained.values()):
        assert 0 < values["ndcg@10"] <= 1
    assert not [*output.glob("model/**/*.bin"), *output.glob("model/**/*.pt"), *output.glob("**/*.pkl")]
    model = SentenceTransformer(str(output / "model"), device="cpu")
    assert model.encode("a text").shape == (TINY["output_dim"],)
    record = json.loads((output / "index" / "index.json").read_text())
    assert record["metric"] == "cosine" and len(record["texts"]) > 40
    evidence = results["evidence"]
    assert evidence["chosen_by"][evidence["exported"]] == max(evidence["chosen_by"].values())
    assert set(evidence["chosen_by"]) == {"backbone, untrained", HEAD, LEJEPA, CONTRASTIVE}
    assert evidence["says"] in text_of(executed) and evidence["says"] in (output / "model" / "README.md").read_text()
    verdict = next(each for each in evidence["verdicts"] if each["against"] == "backbone, untrained")
    before, after = untrained["backbone, untrained"]["ndcg@10"], rows[LEJEPA]["ndcg@10"]
    assert verdict["low"] <= verdict["difference"] <= verdict["high"]
    assert verdict["difference"] == pytest.approx(after - before, abs=1e-6)
    assert {"source", "revision", "sha256", "kind"} <= set(results["data"])


@pytest.mark.slow
@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_resumes_it(alone):
    executed, results = run("lejepa_training", alone, TINY)
    assert_whole_run(executed, results, "cpu")
    executed, again = run("lejepa_training", alone, TINY)
    assert len(re.findall("^the run is finished: checkpoint-6 is its last step", text_of(executed), re.MULTILINE)) == 2
    assert again["eval"]["after"]["ndcg@10"] == results["eval"]["after"]["ndcg@10"]
    assert "belongs to another run (seed=0 there, 7 here)" in refused("lejepa_training", alone, TINY | {"seed": 7})


@pytest.mark.once
@pytest.mark.slow
def test_a_folder_of_documents_is_enough(alone):
    folder = alone / "documents"
    folder.mkdir()
    for number in range(60):
        words = " ".join(f"word{(number * 7 + i * i) % 97}" for i in range(60))
        (folder / f"{number}.md").write_text(f"Document {number} tells of {words}.", encoding="utf-8")
    _, results = run("lejepa_training", alone, TINY | {"data_source": str(folder), "num_samples": 0, "crops": 3})
    assert results["data"]["kind"] == "documents"
    assert results["eval"]["after"]["ndcg@10"] > 0


@pytest.mark.skipif(not xla.installed(), reason="torch_xla is not installed")
def test_the_tpu_notebook_trains_on_eight_virtual_devices(alone, monkeypatch):
    monkeypatch.setenv("PJRT_DEVICE", "CPU")
    monkeypatch.setenv("CPU_NUM_DEVICES", "8")
    executed, results = run("lejepa_training_tpu", alone, TINY)
    assert_whole_run(executed, results, "xla")
    assert results["runtime"]["device_count"] == 8
    assert results["xla"]["compiles_after_warmup"] == 0
    assert results["xla"]["host_syncs_per_step"] == 0


WRONG = [
    ({"num_sample": 3}, "num_sample is not a parameter"),
    ({"benchmark": "no/such/folder"}, "benchmark='no/such/folder'"),
    ({"output_dim": 1}, "output_dim=1"),
    ({"sigreg_weight": 1.5}, "sigreg_weight=1.5"),
    ({"n_points": 16}, "n_points=16"),
    ({"batch_size": 1}, "batch_size=1"),
    ({"train_length": 64}, "train_length=64"),
    ({"data_source": "no/such/texts.jsonl"}, "data_source='no/such/texts.jsonl'"),
]


@pytest.mark.once
def test_a_wrong_parameter_is_an_error_that_names_it_before_anything_is_written(alone):
    assert_refuses("lejepa_training", alone, TINY, WRONG)
