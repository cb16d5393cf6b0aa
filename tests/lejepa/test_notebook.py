"""The LeJEPA notebooks as users run them: alone, headless, resumed, refused, on eight virtual XLA devices."""

import json
import re
from pathlib import Path

import pytest
from sentence_transformers import SentenceTransformer

from tests.harness import refused, text_of, write
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
    assert (results["runtime"]["kind"], results["train"]["steps"]) == (kind, TINY["max_steps"])
    for values in results["eval"].values():
        assert values.keys() >= {"meaning alone", "BM25 alone"} and all(0 <= value <= 1 for value in values.values())
    trained, whole = results["evidence"]["verdicts"]
    assert trained["what"].startswith("what training adds (the whole model")
    method = re.fullmatch("the search that is kept, over the strongest simple method: (.+)", whole["what"])[1]
    names = "BM25 alone|stock model, meaning alone|meaning and BM25 by rank|linear[a-z ]+model"
    shares = dict(re.findall(rf"({names}) +([01]\.\d+)", text_of(executed)))
    assert shares[method] == max(shares.values())
    assert results["evidence"]["reason"] in text_of(executed)
    assert {"index.faiss", "search.json", "search.py", "bm25", "model"} <= {
        path.name for path in (output / "search").iterdir()
    }
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
    assert "holds another run (seed=0 there, 7 here)" in refused("lejepa_training", alone, TINY | {"seed": 7})


@pytest.mark.once
@pytest.mark.slow
def test_a_folder_of_documents_is_enough_and_a_changed_one_is_refused(alone):
    words = [" ".join(f"word{(number * 7 + i * i) % 97}" for i in range(60)) for number in range(60)]
    files = {f"{number}.md": f"# The page of topic {number}\n{text}." for number, text in enumerate(words)}
    folder = write(alone / "documents", files)
    asked = TINY | {"data_source": str(folder), "num_samples": 0}
    _, results = run("lejepa_training", alone, asked)
    assert (results["data"]["kind"], results["data"]["documents"]) == ("headings", 60)
    (folder / "new.md").write_text("# A page that came later\nIts text is about zebras.")
    assert "another run (data=" in refused("lejepa_training", alone, asked)


@pytest.mark.once
@pytest.mark.slow
def test_past_questions_are_searched_beside_their_answers(alone):
    rows = [{"question": f"how to {verb} the {thing} {n}", "answer": f"{verb} it so: {thing}"}
            for n in range(12) for verb in ("mend", "clean", "sell") for thing in ("boat", "roof", "clock", "lamp")]  # fmt: skip
    file = alone / "tickets.jsonl"
    file.write_text("\n".join(json.dumps(row) for row in rows))
    executed, results = run("lejepa_training", alone, TINY | {"data_source": str(file), "batch_size": 0})
    assert results["data"]["split"].startswith("by question") and results["data"]["documents"] == 12
    assert "linear classifier" in text_of(executed) and results["plan"]["batch_size"] == 12
    passages = json.loads((Path("out") / "search/search.json").read_text())["passages"]
    assert len(passages) == 12 + 144


@pytest.mark.slow
def test_the_tpu_notebook_trains_on_eight_virtual_devices(alone, eight_devices):
    executed, results = run("lejepa_training_tpu", alone, TINY)
    assert_whole_run(executed, results, "xla")
