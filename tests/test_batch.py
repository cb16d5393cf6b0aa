"""The grid runner on real papermill kernels: names and types before a run, failures papermill hides after it."""

import csv
import json
import sys
from pathlib import Path

import nbformat
import papermill
import pytest
from nbformat.v4 import new_code_cell, new_notebook

from helpers.batch import command as batch

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
PARAMETERS = """#@title Parameters
data_source: str = "sample"  #@param {type:"string"}
output_dir: str = "out"  #@param {type:"string"}
max_steps: int = 0  #@param {type:"integer"}
batch_size: int = 0  #@param {type:"integer"}
learning_rate: float = 0.0  #@param {type:"number"}
seed: int = 0  #@param {type:"integer"}
max_hours: float = 0.0  #@param {type:"number"}
resume: bool = True  #@param {type:"boolean"}
use_tpu: bool = False  #@param {type:"boolean"}
precision: str = "auto"  #@param ["auto", "fp32", "bf16", "fp16"]
report_to: str = "none"  #@param ["none", "wandb"]
ending: str = "good"
"""
CHECK = f"""import sys
sys.path.insert(0, {str(ROOT)!r})
from helpers import parameters

class Tiny(parameters.Parameters):
    ending: str = "good"

params = parameters.check(Tiny, globals())
"""
# What the run does is a parameter, so that one grid holds runs that end well and runs that do not.
TRAIN = """import json, os, pathlib
if params.ending == "exit":
    sys.exit(0)
if params.ending == "raise" or (params.ending == "once" and not pathlib.Path(output_dir).exists()):
    os.makedirs(output_dir)
    raise RuntimeError("out of luck")
if params.ending == "kill":
    os.kill(os.getpid(), 9)
"""
RESULTS = """folder = pathlib.Path(output_dir)
(folder / "model").mkdir(parents=True, exist_ok=True)
(folder / "figures").mkdir(exist_ok=True)
loss = float("nan") if params.ending == "nan" else 0.5
results = {"seed": seed, "interpreter": sys.executable, "parameters": params.model_dump(),
    "train": {"loss_last": loss, "examples_per_second": 10.0 * (1 + seed)}, "artifacts": {"model": str(folder / "model")}}
if seed:
    results["eval"] = {"after": {"perplexity": 3.25}, "list": [1]}
if params.ending != "silent":
    (folder / "results.json").write_text(json.dumps(results))
"""


@pytest.fixture
def notebook(tmp_path):
    tagged = new_code_cell(PARAMETERS, metadata={"tags": ["parameters"]})
    made = new_notebook(cells=[tagged, *map(new_code_cell, (CHECK, TRAIN, RESULTS, ""))])
    made.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    nbformat.write(made, tmp_path / "tiny.ipynb")
    return tmp_path / "tiny.ipynb"


def command(notebook, folder, *arguments):
    return batch.main([str(notebook), "--output-dir", str(folder), *arguments])


def table(folder):
    with (folder / "results.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_grid_runs_typed_writes_one_table_and_is_skipped_the_second_time(notebook, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "stories.txt").write_text("once")
    arguments = ("data_source=stories.txt", "seed=0,1", "learning_rate=1e-3", "resume=false", "max_steps=5")
    folder = tmp_path / "grid {braces}"
    assert command(notebook, folder, *arguments) == 0

    wrote = json.loads((folder / "seed=1" / "output" / "results.json").read_text())
    got = wrote["parameters"]
    assert {name: got[name] for name in ("seed", "learning_rate", "resume", "max_steps", "data_source")} == {
        "seed": 1,
        "learning_rate": 0.001,
        "resume": False,
        "max_steps": 5,
        "data_source": str(tmp_path / "stories.txt"),
    }
    assert wrote["interpreter"] == sys.executable

    rows = table(folder)
    assert [(row["run"], row["seed"], row["status"]) for row in rows] == [
        ("seed=0", "0", "done"),
        ("seed=1", "1", "done"),
    ]
    assert [row["train.examples_per_second"] for row in rows] == ["10.0", "20.0"]
    assert [row["eval.after.perplexity"] for row in rows] == ["", "3.25"], "only seed 1 has it: the union of columns"

    printed = capsys.readouterr().out.splitlines()
    for line in (
        f"notebook {folder}/seed=1/tiny.ipynb",
        f"results  {folder}/seed=1/output/results.json",
        f"figures  {folder}/seed=1/output/figures",
        f"model    {folder}/seed=1/output/model",
        f"table    {folder}/results.csv",
    ):
        assert line in printed

    stamps = [path.stat().st_mtime_ns for path in sorted(folder.glob("*/tiny.ipynb"))]
    assert command(notebook, folder, *arguments) == 0
    assert [row["status"] for row in table(folder)] == ["done before", "done before"]
    assert [row["train.loss_last"] for row in table(folder)] == ["0.5", "0.5"]
    assert [path.stat().st_mtime_ns for path in sorted(folder.glob("*/tiny.ipynb"))] == stamps

    with pytest.raises(SystemExit):
        command(notebook, folder, *arguments[:2], "learning_rate=2e-3", *arguments[3:])
    assert "learning_rate=0.001 there, 0.002 now" in capsys.readouterr().err


def test_every_failure_papermill_hides_is_recorded_and_the_grid_goes_on(notebook, tmp_path, capsys):
    assert command(notebook, tmp_path / "grid", "ending=raise,exit,kill,nan,silent,good") == 1
    rows = {row["ending"]: row for row in table(tmp_path / "grid")}
    assert {ending: row["status"] for ending, row in rows.items() if row["status"] != "failed"} == {"good": "done"}
    assert rows["raise"]["error"] == "RuntimeError: out of luck"
    # RESULTS never ran; the empty cell after it is not one that should have.
    assert rows["exit"]["error"] == "the notebook stopped early (sys.exit?), 1 code cells never ran"
    assert rows["kill"]["error"].startswith("DeadKernelError")
    assert "train.loss_last" in rows["nan"]["error"]
    assert "there is no" in rows["silent"]["error"]
    # In [1] parameters, In [2] injected, In [3] check, In [4] train
    assert [rows[ending]["failed_cell"] for ending in ("raise", "exit", "kill")] == ["4", "4", "4"]
    assert "ending=raise failed: RuntimeError: out of luck (In [4])" in capsys.readouterr().out


def test_failed_run_is_resumed_in_its_folder_and_its_traceback_kept(notebook, tmp_path):
    statuses = [batch.run(notebook, tmp_path / "grid", fixed={"ending": "once"})[0]["status"] for _ in range(2)]
    assert statuses == ["failed", "done"]
    assert "out of luck" in (tmp_path / "grid" / "run" / "tiny.attempt1.ipynb").read_text()


def test_results_left_by_an_earlier_run_are_not_taken_for_this_ones(notebook, tmp_path):
    left = tmp_path / "output" / "results.json"
    left.parent.mkdir()
    left.write_text(json.dumps({"train": {"loss_last": 0.1}}))
    (row,) = batch.run(notebook, tmp_path / "grid", fixed={"ending": "silent", "output_dir": str(left.parent)})
    assert row["status"] == "failed"
    assert "from an earlier run" in row["error"]
    assert "train.loss_last" not in row


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("max_step=3", "max_step is not a parameter of this notebook: did you mean max_steps?"),
        ("max_steps=1e3", "max_steps='1e3' is not of type int"),
        ("learning_rate=fast", "learning_rate='fast' is not of type float"),
        ("learning_rate=nan", "learning_rate=nan is not a finite number"),
        ("resume=yes", "resume='yes' is unknown"),
        ("seed", "'seed': write name=value"),
        ("seed=1,1", "a value is given twice"),
        ("output_dir=a,b", "output_dir: runs cannot share or vary it"),
        ("data_source=./none.txt", "data_source='./none.txt': nothing at /"),
    ],
)
def test_wrong_assignment_is_refused_before_any_kernel_starts(notebook, tmp_path, capsys, assignment, message):
    with pytest.raises(SystemExit) as stop:
        command(notebook, tmp_path / "grid", assignment)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize(
    ("grid", "fixed", "message"),
    [
        ({"seed": ["1"]}, {}, r"seed='1' is of type str, not int"),
        ({}, {"resume": "false"}, r"resume='false' is of type str, not bool"),
        ({"seed": []}, {}, r"seed=\[\]: give a list"),
        ({"precision": "auto"}, {}, r"precision='auto': give a list"),
        ({"seed": [1]}, {"seed": 2}, r"seed is both fixed and varied"),
        ({"seed": [1, 2]}, {"output_dir": "x"}, r"output_dir: runs cannot share"),
    ],
)
def test_python_values_of_the_wrong_kind_are_refused_before_any_kernel_starts(notebook, tmp_path, grid, fixed, message):
    with pytest.raises(ValueError, match=message):
        batch.run(notebook, tmp_path / "grid", grid, fixed)
    assert not (tmp_path / "grid").exists()


def test_kernel_that_is_not_installed_is_refused_with_those_that_are(notebook, tmp_path):
    with pytest.raises(ValueError, match=r"kernel='julia' is not installed; there are: .*python3"):
        batch.run(notebook, tmp_path / "grid", kernel_name="julia")


def test_notebook_without_a_parameters_tag_is_an_error_although_papermill_runs_it(notebook, tmp_path):
    made = nbformat.read(notebook, as_version=4)
    del made.cells[0].metadata["tags"]
    nbformat.write(made, notebook)
    assert papermill.inspect_notebook(notebook) == {}
    with pytest.raises(ValueError, match="the tag 'parameters'"):
        batch.run(notebook, tmp_path / "grid")


def test_missing_notebook_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ipynb"):
        batch.run(tmp_path / "none.ipynb", tmp_path / "grid")


def test_grid_is_the_product_in_order_with_the_last_name_fastest(notebook, tmp_path):
    runs = batch.plan(notebook, tmp_path, {"seed": [2, 1], "precision": ["fp32", "auto"]}, {})
    assert [run.name for run in runs] == [
        "seed=2,precision=fp32",
        "seed=2,precision=auto",
        "seed=1,precision=fp32",
        "seed=1,precision=auto",
    ]


def test_run_names_are_file_names_and_different_values_never_share_one():
    values = ["a/b", "a_b", "a%2Fb", "a b", "../a", "x" * 300, "x" * 301]
    names = [batch.run_name({"data_source": value}) for value in values]
    assert len(set(names)) == len(values)
    assert all(Path(name).name == name and len(name) < 200 for name in names)


def test_text_table_is_aligned():
    rows = [
        {"run": "seed=1", "status": "done", "seconds": 2.0, "train.loss_last": 0.123456},
        {"run": "r", "status": "failed"},
    ]
    assert batch.text_table(rows).splitlines() == [
        "run     status  seconds  train.loss_last",
        "seed=1  done          2           0.1235",
        "r       failed",
    ]
    many = {"run": "r"} | {f"eval.after.{number}": number for number in range(50)}
    assert len(batch.text_table([many]).splitlines()[0].split()) == batch.COLUMNS
