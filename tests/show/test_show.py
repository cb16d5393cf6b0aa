"""helpers.show: W&B or nothing, lines a person can read, tables with sensible digits."""

import os
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

from transformers import TrainerControl, TrainerState  # noqa: E402

from helpers.machine import runtime  # noqa: E402
from helpers.show import progress as progress_of  # noqa: E402
from helpers.show import tables, tracking  # noqa: E402
from tests import harness  # noqa: E402

KEY = "0123456789abcdef0123456789abcdef01234567"
TRAIN = """import sys
from pathlib import Path
from tests import training_run
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
folder.mkdir(exist_ok=True)
(folder / "run.json").write_text("{}")
options = training_run.DEFAULTS | {"report_to": "wandb", "steps": steps, "save_steps": 2, "width": 16}
for output_dir in (folder, folder / "rival"):
    training_run.main(str(output_dir), options)
"""
HISTORY = [
    {"loss": 4.0, "learning_rate": 1e-3, "step": 1},
    {"loss": 2.5, "learning_rate": 9e-4, "step": 10},
    {"eval_loss": 2.75, "step": 10},
    {"train_runtime": 3.0, "train_loss": 3.0, "step": 10},
]


@pytest.fixture(autouse=True)
def without_settings_of_wandb(monkeypatch):
    for name in list(os.environ):
        if name.startswith("WANDB"):
            monkeypatch.delenv(name)


def trained(folder: Path, steps: int, **environment: str) -> subprocess.CompletedProcess:
    """A trainer and then a rival, each of which reports to W&B, in a process that no `wandb login` reaches."""
    alone = {"HOME": str(folder.parent), "NETRC": ""} | environment
    process = harness.run("-c", TRAIN, folder, steps, **alone)
    assert process.returncode == 0, process.stderr[-3000:]
    return process


# -- W&B --


def test_each_trainer_of_a_run_is_one_wandb_run_that_later_sessions_continue(tmp_path):
    folder = tmp_path / "seed=0"
    first, second = trained(folder, 2), trained(folder, 4)
    identity = (folder / "wandb_run").read_text()
    runs = [path.name.split("-", 3)[3] for path in folder.glob("wandb/offline-run-*")]
    assert sorted(runs) == [identity, identity, f"{identity}-rival", f"{identity}-rival"]
    for file in folder.glob("wandb/offline-run-*/*.wandb"):
        content = file.read_bytes()
        assert f"seed=0-{identity}".encode() in content, "the group"
        assert b"train/loss" in content
    for process in (first, second):
        assert process.stdout.count("no WANDB_API_KEY") == 2 and "wandb sync" in process.stdout
        assert "wandb" not in process.stderr


def test_a_server_that_does_not_answer_stops_no_training_and_the_key_is_not_shown(tmp_path):
    server = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "1"}
    process = trained(tmp_path / "run", 2, **server)
    assert "W&B cannot be reached, going on without it" in process.stdout
    assert KEY not in process.stdout + process.stderr
    assert not any(KEY in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())


@pytest.mark.parametrize(
    ("key", "login", "mode", "chosen"),
    [
        ("", "", "", "offline"),
        (KEY, "", "", None),
        ("", "wandb.example:8080", "", None),
        ("", "another.example", "", "offline"),
        (KEY, "", "disabled", "disabled"),
    ],
)
def test_without_a_key_metrics_stay_offline_with_the_reason(tmp_path, monkeypatch, key, login, mode, chosen):
    file = tmp_path / "netrc"
    if login:
        file.write_text(f"machine {login}\n  login user\n  password {KEY}\n")
        file.chmod(0o600)
    else:
        file.mkdir()  # cannot be read
    values = {"NETRC": file, "WANDB_API_KEY": key, "WANDB_MODE": mode, "WANDB_BASE_URL": "http://wandb.example:8080"}
    for name, value in values.items():
        if value:
            monkeypatch.setenv(name, str(value))
    monkeypatch.setattr("pathlib.Path.home", lambda: tmp_path)
    found, reason = tracking.wandb_mode()
    assert found == chosen and ("WANDB_API_KEY" in reason) == (chosen == "offline") and KEY not in reason


# -- progress --


def progress(*logs: dict) -> None:
    watched, state = progress_of.progress(), TrainerState(max_steps=20)
    watched.on_train_begin(None, state, TrainerControl())
    for entry in logs:
        state.global_step = entry["step"]
        watched.on_log(None, state, TrainerControl(), logs={key: entry[key] for key in entry if key != "step"})


def test_outside_a_notebook_progress_is_one_plain_line_a_log_and_says_how_long_the_rest_will_take(capsys):
    progress(*HISTORY)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1/20  loss 4.0000  learning_rate 1.00e-03  steps/s ") and "left " in first
    assert second.startswith("step 10/20  loss 2.5000  learning_rate 9.00e-04  steps/s ")
    assert third == "step 10/20  eval_loss 2.7500"


def test_the_time_that_is_left_is_that_of_the_steps_that_are_left(capsys, monkeypatch):
    seconds = [5.0, 0.0]
    monkeypatch.setattr(progress_of.time, "perf_counter", lambda: seconds.pop())
    progress({"step": 10, "loss": 1.0})
    assert capsys.readouterr().out.endswith("steps/s 2.00  left 5 s\n")


# -- tables --

ROWS = [
    {"model": "<b>ours</b>", "perplexity": 26.637812, "weights": 4_835_696, "done": True},
    {"model": "theirs", "perplexity": 25.0, "extra": None},
]


def test_a_table_is_aligned_text_outside_a_notebook(capsys):
    tables.show(ROWS, "Two models")
    caption, head, first, second = capsys.readouterr().out.splitlines()
    assert caption == "Two models" and head.split() == ["model", "perplexity", "weights", "done", "extra"]
    assert first.split() == ["<b>ours</b>", "26.64", "4,835,696", "yes"] and second.split() == ["theirs", "25"]
    assert head.index("perplexity") == first.index("26.64") == second.index("25")


def test_a_table_is_html_in_a_notebook_and_text_in_its_plain_form():
    from IPython.core.formatters import DisplayFormatter

    shown, _ = DisplayFormatter().format(tables.Table(ROWS, "Two"))
    assert shown["text/plain"] == tables.text(ROWS, "Two")
    html = shown["text/html"]
    assert (
        "<th>perplexity</th>" in html
        and "&lt;b&gt;ours&lt;/b&gt;" in html
        and '<td style="text-align:left">4,835,696</td>' in html
    )


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0123456, "0.01235"),
        (123456.7, "123,457"),
        (3, "3"),
        (None, ""),
        (False, "no"),
        ("x\ny", "x y"),
        (1e-9, "1e-09"),
    ],
)
def test_a_cell_has_sensible_digits(value, shown):
    assert tables.cell(value) == shown


def test_bytes_and_seconds_have_the_units_of_a_person():
    assert (tables.size(3 * 2**30), tables.size(5 * 2**20), tables.size(None)) == ("3.00 GiB", "5 MiB", None)
    shown = [tables.seconds(value) for value in (0.0123, 5, 119, 120, 7200, 200_000)]
    assert shown == ["12 ms", "5 s", "119 s", "2 min", "2 h", "2.3 d"]


# -- what libraries say --


def test_only_the_named_chatter_of_libraries_is_silenced(recwarn):
    import logging
    import warnings

    runtime.silence_chatter()
    warnings.warn("IProgress not found. Please update jupyter", stacklevel=1)
    warnings.warn("something that matters", stacklevel=1)
    assert [str(each.message) for each in recwarn.list] == ["something that matters"]
    logger = logging.getLogger("transformers.trainer_callback")
    record = logger.makeRecord(logger.name, logging.WARNING, "f", 1, "a real problem", (), None)
    chatter = logger.makeRecord(logger.name, logging.WARNING, "f", 1, f"{runtime.CHATTER[2]}=True.", (), None)
    assert logger.filter(record) and not logger.filter(chatter)
