"""helpers.show: W&B or nothing, lines a person can read, tables with sensible digits."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

from transformers import TrainerControl, TrainerState  # noqa: E402

from helpers.machine import runtime  # noqa: E402
from helpers.show import progress as progress_of  # noqa: E402
from helpers.show import tables  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
KEY = "0123456789abcdef0123456789abcdef01234567"
SERVER = "http://wandb.example:8080"
# A process of wandb's would ask its server for the user's name: without a network it tries for long, also at the end of ours.
REPORT = """import json, psutil
from helpers.show.tracking import report_to
print(json.dumps(report_to("wandb")))
assert not psutil.Process().children(), "wandb started its service"
"""
HISTORY = [
    {"loss": 4.0, "learning_rate": 1e-3, "step": 1},
    {"loss": 2.5, "learning_rate": 9e-4, "step": 10},
    {"eval_loss": 2.75, "step": 10},
    {"train_runtime": 3.0, "train_loss": 3.0, "step": 10},
]


def wandb_answer(home: Path, **environment: str) -> tuple[str, str, str]:
    """`report_to("wandb")` in a process of its own without input: choice, reason, and all that was printed."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "NETRC"))}
    finished = subprocess.run(
        [sys.executable, "-c", REPORT],
        env=clean | {"HOME": str(home)} | environment,
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    return (*json.loads(finished.stdout.splitlines()[-1]), finished.stdout + finished.stderr)


# -- W&B --


def test_wandb_without_a_key_becomes_none_and_says_so_without_asking(tmp_path):
    choice, reason, _ = wandb_answer(tmp_path)
    assert choice == "none" and "WANDB_API_KEY" in reason and "going on without it" in reason


def test_wandb_with_a_key_is_taken_and_the_key_is_not_shown(tmp_path):
    choice, _, printed = wandb_answer(tmp_path, WANDB_API_KEY=KEY)
    assert choice == "wandb" and KEY not in printed


def test_a_login_at_a_server_of_ones_own_is_found(tmp_path):
    (tmp_path / ".netrc").write_text(f"machine wandb.example:8080\n  login user\n  password {KEY}\n")
    (tmp_path / ".netrc").chmod(0o600)
    assert wandb_answer(tmp_path, WANDB_BASE_URL=SERVER)[0] == "wandb"
    assert SERVER in wandb_answer(tmp_path / "another", WANDB_BASE_URL=SERVER)[1]


@pytest.mark.parametrize(("mode", "choice"), [("offline", "wandb"), ("disabled", "none")])
def test_the_mode_of_wandb_is_followed(tmp_path, mode, choice):
    found, reason, _ = wandb_answer(tmp_path, WANDB_MODE=mode)
    assert found == choice and ("WANDB_MODE" in reason) == (choice == "none")


def test_a_netrc_that_cannot_be_read_is_no_login(tmp_path):
    (tmp_path / ".netrc").mkdir()
    assert wandb_answer(tmp_path)[0] == "none"


def test_all_sessions_of_a_run_are_one_wandb_run(tmp_path):
    assert progress_of._wandb_run(tmp_path) == progress_of._wandb_run(tmp_path)
    (tmp_path / "other").mkdir()
    assert progress_of._wandb_run(tmp_path) != progress_of._wandb_run(tmp_path / "other")


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
