"""The notebooks as users run them: copied alone into an empty folder, headless, by papermill and by nbmake."""

import re
import shutil
from pathlib import Path

import nbformat
import pytest

from tests.harness import NOTEBOOKS, printed, run_notebook, text_of

TINY = {
    "data_source": "sample",
    "num_texts": 120,
    "max_steps": 12,
    "eval_steps": 6,
    "batch_size": 128,
    "vocab_size": 512,
    "units": 128,
}


def execute(name: str, folder: Path, **parameters) -> tuple[nbformat.NotebookNode, dict]:
    return run_notebook(name, folder, {**TINY, **parameters})


def assert_whole_run(executed, results, kind: str) -> None:
    output = Path("out")
    assert results["runtime"]["kind"] == kind
    assert results["train"]["steps"] == TINY["max_steps"] and results["train"]["first_step_seconds"] > 0
    rows = results["eval"]["baselines"]
    assert {"counting", "reservoir", "xz"} == set(rows)
    assert rows["reservoir"] <= rows["counting"] + 0.01 and results["eval"]["verdict"]
    model = output / results["artifacts"]["model"]
    assert (model / "model.safetensors").is_file() and (model / "counts.safetensors").is_file()
    assert results["artifacts"]["same_story"] or kind != "cpu"


@pytest.mark.once
def test_the_gpu_notebook_runs_alone(alone):
    executed, results = execute("tinystories_reservoir", alone, prompt="Tom and Sue")
    assert_whole_run(executed, results, "cpu")
    assert "Tom and Sue" in text_of(executed)
    unpacked = r"helpers \d+\.\d+\.\d+, payload [0-9a-f]{12}: the code of the cells is in /\S*helpers-"
    assert re.search(unpacked, text_of(executed)), "did not unpack its own helpers"


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.filterwarnings("ignore")
def test_the_tpu_notebook_without_a_tpu_warns_and_goes_on(alone):
    executed, results = execute("tinystories_reservoir_tpu", alone)
    assert_whole_run(executed, results, "cpu")
    assert "use_tpu=True, but torch_xla" in text_of(executed)


@pytest.mark.slow
def test_the_tpu_notebook_trains_on_eight_virtual_devices_and_resumes(alone, eight_devices):
    executed, results = execute("tinystories_reservoir_tpu", alone)
    assert_whole_run(executed, results, "xla")
    assert results["xla"]["compile_seconds"] > 0
    shutil.rmtree(alone / "out/checkpoint-12")  # as if the machine had gone before the last save
    executed, again = execute("tinystories_reservoir_tpu", alone)
    assert again["train"]["resumed_from_step"] == 6
    assert again["eval"] == results["eval"]


@pytest.mark.slow
def test_use_tpu_alone_moves_the_gpu_notebook_to_xla(alone, eight_devices):
    executed, results = execute("tinystories_reservoir", alone, use_tpu=True)
    assert_whole_run(executed, results, "xla")


@pytest.mark.slow
@pytest.mark.once
def test_nbmake_passes_from_another_working_directory(alone, tmp_path):
    notebook = nbformat.read(NOTEBOOKS / "tinystories_reservoir.ipynb", as_version=4)
    cell = next(cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", []))
    for name, value in TINY.items():
        cell.source, count = re.subn(rf"(?m)^({name}: \w+) = .*?(  #|$)", rf"\1 = {value!r}\2", cell.source)
        assert count == 1, name
    nbformat.write(notebook, alone / "tinystories_reservoir.ipynb")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    command = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "--nbmake", "--nbmake-timeout=300"]
    printed(*command, alone / "tinystories_reservoir.ipynb", cwd=elsewhere)
