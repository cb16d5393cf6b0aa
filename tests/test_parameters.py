"""Types, ranges and names of notebook parameters, in plain objects and in IPython."""

import math
import sys
from typing import Literal

import pytest
from IPython.core.interactiveshell import InteractiveShell
from traitlets.config import Config

from helpers import parameters
from helpers.legal.parameters import LegalParameters
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.parameters import Parameters, parameter
from helpers.tuning.parameters import TuningParameters

pytestmark = pytest.mark.once

GOOD = Parameters.defaults().model_dump()
CELL = "#@title Parameters\n" + "\n".join(f"{k}: {type(v).__name__} = {v!r}  #@param" for k, v in GOOD.items())


class Reservoir(Parameters):
    size: int = parameter(4, "Units of the reservoir.", low=1)
    kind: Literal["tanh", "linear"] = parameter("tanh", "What a unit does.", identity=False)


def make(**changes):
    return Parameters(**{**GOOD, **changes})


@pytest.mark.parametrize("text", ["false", "False", "true", 0, 1, None])
def test_only_a_bool_is_a_bool_and_the_message_says_what_to_write(text):
    remedy = "; write it without quotes" if isinstance(text, str) else ""
    with pytest.raises(ValueError, match=rf"resume={text!r}: Input should be a valid boolean{remedy}"):
        make(resume=text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_steps", -1),
        ("learning_rate", math.nan),
        ("learning_rate", math.inf),
        ("learning_rate", True),
        ("seed", 2**32),
        ("precision", "float16"),
        ("report_to", "tensorboard"),
        ("output_dir", " "),
    ],
)
def test_value_out_of_range_is_refused_by_name_and_value(name, value):
    with pytest.raises(ValueError, match=f"^{name}={value!r}"):
        make(**{name: value})


OUT_OF_RANGE = {
    TuningParameters: {"num_rows": -1, "max_length": 4, "tuning_minutes": 0.0, "precision": "fp8"},
    EmbeddingParameters: {"output_dim": 1, "sigreg_weight": 1.5, "contrastive_weight": -1.0, "num_samples": -1}
    | {"train_length": 4},
    LegalParameters: {"method": "dora", "max_length": -1, "base_model": "no such model"},
}


@pytest.mark.parametrize(("room", "name"), [(room, name) for room, values in OUT_OF_RANGE.items() for name in values])
def test_parameters_out_of_range_are_refused_by_name(room, name):
    given = room.defaults().model_dump() | {"data_source": "sample", "base_model": "sample"}
    room(**given)
    with pytest.raises((ValueError, FileNotFoundError), match=f"{name}="):
        room(**given | {name: OUT_OF_RANGE[room][name]})


@pytest.mark.parametrize("below", ["", "/run"])
def test_output_dir_that_is_or_lies_under_a_file_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=r"output_dir=.* is empty, a file, or below one"):
        make(output_dir=f"{tmp_path}/file{below}")


@pytest.mark.parametrize("source", ["", " ", "a/b/c", "two words", "a--b", "a..b", "-a/b", "owner/"])
def test_source_that_is_neither_path_nor_hub_id_is_refused(source):
    with pytest.raises(FileNotFoundError, match="data_source="):
        make(data_source=source)


def test_everything_that_is_wrong_is_said_at_once():
    with pytest.raises(ValueError) as error:
        Reservoir(**GOOD | {"seed": -1, "resume": "yes"}, size=0)
    assert [line.partition("=")[0] for line in str(error.value).splitlines()] == ["seed", "resume", "size"]


def test_an_unknown_name_is_refused_with_the_closest():
    with pytest.raises(ValueError, match=r"sise is not a parameter of this notebook: did you mean size\?"):
        Reservoir(**GOOD, sise=4)


def test_identity_ignores_where_a_run_is_written_and_watched():
    one = parameters.identity(Reservoir(**GOOD, size=4))
    watched = {
        "output_dir": "elsewhere",
        "resume": False,
        "report_to": "wandb",
        "max_hours": 2.0,
        "max_steps": 9,
        "keep_in": "drive",
    }
    assert parameters.identity(Reservoir(**GOOD | watched, size=4)) == one
    assert set(GOOD) | {"size"} == set(one) | set(watched)
    assert parameters.identity(Reservoir(**GOOD, size=4, kind="linear")) == one


@pytest.fixture
def shell(monkeypatch):
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])  # a shell puts its own there; put ours back
    return InteractiveShell(config=Config(HistoryManager={"enabled": False}))


def execute(shell, *cells):
    for cell in cells:
        shell.run_cell(cell, store_history=True).raise_error()


def test_a_misspelt_parameter_is_refused_until_the_cell_is_corrected(shell):
    execute(shell, CELL, CELL + "\nmax_step = 3")
    with pytest.raises(ValueError, match=r"max_step is not a parameter .* did you mean max_steps\?"):
        parameters.check(Parameters, shell.user_ns)
    execute(shell, "# Parameters\nmax_step = 3", CELL)  # what was injected before the correction is forgotten, too
    assert parameters.check(Parameters, shell.user_ns) == make()
