"""What a command line asks of a notebook: names, types, values with commas, and the runs that they make."""

from pathlib import Path

import nbformat
import pytest

from helpers.batch import grid
from helpers.batch.command import main

from . import notebook as small

pytestmark = pytest.mark.once


@pytest.fixture
def notebook(tmp_path):
    return small.write(tmp_path / "tiny.ipynb")


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("a,b", ["a", "b"]),
        ('"May she leave early, and why?"', ["May she leave early, and why?"]),
        ('["one, two", "three"]', ["one, two", "three"]),
        ('["one, two"]', ["one, two"]),
        ('say "a"', ['say "a"']),
        ("", [""]),
    ],
)
def test_a_comma_parts_values_unless_they_are_quoted(notebook, text, values):
    varied, fixed = grid.parse(grid.inspect(notebook), [f"prompt={text}"])
    assert (varied, fixed) == (({"prompt": values}, {}) if len(values) > 1 else ({}, {"prompt": values[0]}))


def test_values_have_the_type_that_the_notebook_declares(notebook):
    given = ["seed=0,1", "learning_rate=[1e-3, 2]", "resume=false"]
    varied, fixed = grid.parse(grid.inspect(notebook), given)
    assert varied == {"seed": [0, 1], "learning_rate": [0.001, 2.0]}
    assert fixed == {"resume": False} and type(varied["learning_rate"][1]) is float


@pytest.mark.parametrize(
    ("assignment", "message"),
    [
        ("sead=3", "sead is not a parameter of this notebook: did you mean seed?"),
        ("seed=1e3", "seed='1e3' is not of type int"),
        ("seed=1.5", "seed='1.5' is not of type int"),
        ("learning_rate=nan", "learning_rate='nan' is not of type float"),
        ("resume=maybe", "resume='maybe' is not of type bool"),
        ('prompt=["a", b]', "is not JSON"),
        ("prompt=[1]", "prompt=1 is not of type str"),
        ("seed=[]", "seed=[]: give a list of different values"),
        ("seed", "'seed': write name=value"),
        ("seed=1,1", "seed=[1, 1]: give a list of different values"),
        ("output_dir=a,b", "output_dir: runs cannot share or vary it"),
        ("data_source=./none.txt", "data_source='./none.txt': nothing at /"),
    ],
)
def test_a_wrong_assignment_is_refused_before_any_kernel_starts(notebook, tmp_path, capsys, assignment, message):
    with pytest.raises(SystemExit) as stop:
        main([str(notebook), "--output-dir", str(tmp_path / "grid"), assignment])
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "grid").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--jobs", "0"), "jobs=0: give 1 or more"),
        (("--jobs", "2", "--ray", "auto"), "not allowed with argument --jobs"),
    ],
)
def test_a_wrong_option_is_refused_before_any_kernel_starts(notebook, tmp_path, capsys, arguments, message):
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


def test_the_grid_is_the_product_in_order_with_the_last_name_fastest(notebook, tmp_path):
    runs = grid.plan(notebook, tmp_path, {"seed": [2, 1], "prompt": ["a", "b"]}, {})
    assert [run.name for run in runs] == ["seed=2,prompt=a", "seed=2,prompt=b", "seed=1,prompt=a", "seed=1,prompt=b"]


def test_run_names_are_file_names_and_different_values_never_share_one():
    values = ["a/b", "a_b", "a%2Fb", "a b", "../a", "x" * 300, "x" * 301]
    names = [grid.run_name({"data_source": value}) for value in values]
    assert len(set(names)) == len(values)
    assert all(Path(name).name == name and len(name) < 200 for name in names)
