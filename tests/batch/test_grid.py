"""What a command line asks of a notebook: names, types, values with commas, and the runs that they make."""

from pathlib import Path

import nbformat
import pytest

from helpers.batch import grid
from helpers.batch.command import main

pytestmark = pytest.mark.once


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a,b", ["a", "b"]),
        ('"May she leave early, and why?"', ["May she leave early, and why?"]),
        ('["one, two", "three"]', ["one, two", "three"]),
        ('say "a"', ['say "a"']),
        ("", [""]),
    ],
)
def test_a_comma_parts_values_unless_they_are_quoted(text, values):
    assert grid.parse([f"prompt={text}"]) == {"prompt": values}


def test_the_grid_is_the_product_of_typed_values_with_the_last_name_fastest(notebook, tmp_path):
    given = grid.parse(["seed=2,1,2", "learning_rate=[1e-3, 2]", "resume=false"])
    runs = grid.plan(notebook, tmp_path, given)
    assert [run.folder.name for run in runs] == [
        f"seed={seed},learning_rate={rate}" for seed in (2, 1) for rate in (0.001, 2.0)
    ]
    output = str(tmp_path / "seed=2,learning_rate=2.0/output")
    assert runs[1].parameters == {"seed": 2, "learning_rate": 2.0, "resume": False, "output_dir": output}
    assert type(runs[1].parameters["learning_rate"]) is float


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["sead=3"], "sead is not a parameter of this notebook: did you mean seed?"),
        (["seed=1e3"], "seed='1e3' is not of type int"),
        (["learning_rate=nan"], "learning_rate='nan' is not of type float"),
        (["resume=maybe"], "resume='maybe' is not of type bool"),
        (['prompt=["a", b]'], "is not JSON"),
        (["prompt=[1]"], "prompt=1 is not of type str"),
        (["seed=[]"], "seed=[]: give a value"),
        (["seed"], "'seed': write name=value"),
        (["seed=1", "seed=2"], "'seed=2': write name=value or name=value1,value2, and each name once"),
        (["output_dir=a"], "output_dir: leave it out"),
        (["data_source=./none.txt"], "data_source='./none.txt': nothing at /"),
        (["--jobs", "0"], "jobs=0: give 1 or more"),
        (["--jobs", "2", "--ray", "auto"], "not allowed with argument --jobs"),
    ],
)
def test_what_is_wrong_is_refused_before_any_kernel_starts(notebook, tmp_path, capsys, arguments, message):
    with pytest.raises(SystemExit) as stop:
        main([str(notebook), "--output-dir", str(tmp_path / "grid"), *arguments])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()


def test_a_notebook_that_is_not_there_or_has_no_parameters_is_named(notebook, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none\.ipynb"):
        grid.inspect(tmp_path / "none.ipynb")
    made = nbformat.read(notebook, as_version=4)
    del made.cells[0].metadata["tags"]
    nbformat.write(made, notebook)
    with pytest.raises(ValueError, match="the tag 'parameters'"):
        grid.inspect(notebook)


def test_run_names_are_file_names_and_different_values_never_share_one():
    values = ["a/b", "a_b", "a%2Fb", "a b", "../a", "x" * 300, "x" * 301]
    names = [grid.run_name({"data_source": value}) for value in values]
    assert len(set(names)) == len(values)
    assert all(Path(name).name == name and len(name) < 200 for name in names)
