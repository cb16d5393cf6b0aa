"""The GraphMER notebooks as users run them."""

import re
from pathlib import Path

import pytest

from helpers.graphmer.encoder import GraphMERForPreTraining
from tests.graph_run import SMALL
from tests.harness import refused, text_of
from tests.harness import run_notebook as run

from .batches import library

STEPS = 8
CHANGES = {key: value for key, value in SMALL.items() if key not in ("run.seed", "run.max_steps")}


def tiny(alone: Path, **others) -> dict:
    if not (alone / "sources").exists():
        library(alone / "sources")
    changes = "; ".join(f"{key}={value}" for key, value in (CHANGES | others.pop("changes", {})).items())
    found = {"data_source": str(alone / "sources"), "changes": changes, "max_steps": STEPS}
    return found | {"base_model": "sample", "search_steps": 2, "question": "decode a JSON document"} | others


def assert_whole_run(results, kind: str) -> None:
    output = Path("out")
    assert (results["runtime"]["kind"], results["train"]["steps"]) == (kind, STEPS)
    after = results["eval"]["after"]
    assert {row["row"] for row in after["links"]} == {"words", "untrained", "trained"}
    rows = {row["row"]: row["MRR"] for row in after["search"]}
    assert rows.keys() == {"BM25", "start", "start, fused", "tuned", "tuned, fused"}
    assert after["search_is"] == "BM25"  # the sample's random encoder helps nothing, and is not sold as a search
    assert not (output / "search_model").exists() and results["artifacts"]["search_model"] is None
    assert all(0 < mrr <= 1 for mrr in rows.values()) and rows["BM25"] > 0.3
    model = GraphMERForPreTraining.from_pretrained(output / "model")
    assert model.config.hidden_size == SMALL["model.hidden_size"]


@pytest.mark.slow
@pytest.mark.once
def test_the_gpu_notebook_runs_alone_and_a_second_run_resumes_it(alone):
    executed, results = run("graphmer_se", alone, tiny(alone))
    assert_whole_run(results, "cpu")
    shown = set(re.findall(r"[\w.]+", text_of(executed)))
    assert {"called_by", "head", "relation", "tail", "masked"} <= shown
    assert any(word.startswith("json.decoder.") for word in shown)  # what the question finds
    _, again = run("graphmer_se", alone, tiny(alone))
    assert again["train"]["resumed_from_step"] == STEPS
    assert again["eval"]["after"] == results["eval"]["after"]
    source = next((alone / "sources").rglob("*.py"))
    source.write_text(source.read_text() + "# edited since\n")  # the same graph, another text
    assert "holds another run (data=" in refused("graphmer_se", alone, tiny(alone))


@pytest.mark.slow
def test_the_tpu_notebook_trains_on_eight_virtual_devices(alone, eight_devices):
    _, results = run("graphmer_se_tpu", alone, tiny(alone, changes={"training_data.micro_batch_size": 1}))
    assert_whole_run(results, "xla")
