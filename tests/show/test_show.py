"""helpers.show: W&B or nothing, lines a person can read, tables with sensible digits."""

import os
import subprocess
from pathlib import Path

import pytest
from scipy.stats import binomtest
from transformers import TrainerControl, TrainerState

from helpers.show import progress, tables
from helpers.show.intervals import wilson
from tests import harness

pytestmark = pytest.mark.once

KEY = "0123456789abcdef0123456789abcdef01234567"
TRAIN = """import sys
from pathlib import Path
from tests import training_run
folder, steps = Path(sys.argv[1]), int(sys.argv[2])
options = training_run.DEFAULTS | {"report_to": "wandb", "steps": steps, "save_steps": 2, "width": 16}
for output_dir in (folder, folder / "rival"):
    training_run.main(str(output_dir), options | {"then_evaluate": True})
"""


@pytest.fixture(autouse=True)
def without_settings_of_wandb(monkeypatch):
    for name in list(os.environ):
        if name.startswith("WANDB"):
            monkeypatch.delenv(name)


def train(folder: Path, steps: int, **environment: str) -> subprocess.CompletedProcess:
    """A trainer and then a rival, each of which reports to W&B, in a process that no `wandb login` reaches."""
    return harness.run("-c", TRAIN, folder, steps, **{"HOME": str(folder.parent), "NETRC": ""} | environment)


def test_each_trainer_is_one_wandb_run_that_later_sessions_continue(tmp_path):
    folder = tmp_path / "seed=0"
    for steps in (2, 4):
        process = train(folder, steps)
        assert process.returncode == 0, process.stderr[-3000:]
        assert process.stdout.count("for want of a WANDB_API_KEY") == 2 and "wandb" not in process.stderr
    for output_dir in (folder, folder / "rival"):
        identity = (output_dir / "wandb_run").read_text()
        files = [*output_dir.glob("wandb/offline-run-*/*.wandb")]
        assert [file.stem for file in files] == [f"run-{identity}"] * 2
        assert all(b"train/loss" in file.read_bytes() for file in files)


def test_a_server_that_does_not_answer_stops_the_run_before_its_first_step(tmp_path):
    server = {"WANDB_API_KEY": KEY, "WANDB_BASE_URL": "http://127.0.0.1:9", "WANDB_INIT_TIMEOUT": "1"}
    process = train(tmp_path / "run", 2, **server)
    assert process.returncode == 1 and "step 1/2" not in process.stdout
    assert "RuntimeError: report_to='wandb': " in process.stderr and "Set WANDB_MODE=offline" in process.stderr
    assert KEY not in process.stdout + process.stderr
    assert not any(KEY in path.read_text(errors="replace") for path in tmp_path.rglob("*") if path.is_file())


def test_progress_is_one_plain_line_a_log_with_the_time_that_is_left(capsys, monkeypatch):
    clock = [6.0, 2.0]
    monkeypatch.setattr(progress.time, "monotonic", lambda: clock.pop())
    lines, state = progress.Progress(), TrainerState(max_steps=20)
    lines.on_train_begin(None, state, TrainerControl())
    for step, logs in (
        (2, {"loss": 4.0, "learning_rate": 1e-3}),
        (12, {"loss": 2.5}),
        (12, {"eval_loss": 2.75}),
        (12, {"train_runtime": 3.0}),
    ):
        lines.on_step_begin(None, state, TrainerControl())
        state.global_step = step
        lines.on_log(None, state, TrainerControl(), logs=logs)
    first, second, third = capsys.readouterr().out.splitlines()
    assert (first, third) == ("step 2/20  loss 4.0000  learning_rate 1.00e-03", "step 12/20  eval_loss 2.7500")
    assert second.startswith("step 12/20  loss 2.5000  left 3.2 s, until ")


ROWS = [
    {"model": "<b>ours</b>", "perplexity": 26.637812, "weights": 4_835_696, "done": True},
    {"model": "theirs", "perplexity": 25.0, "extra": None},
]


def test_a_table_is_text_outside_a_notebook_and_html_in_one(capsys):
    tables.show(ROWS, "Two models")
    caption, head, first, second = capsys.readouterr().out.splitlines()
    assert caption == "Two models" and head.split() == ["model", "perplexity", "weights", "done", "extra"]
    assert first.split() == ["<b>ours</b>", "26.64", "4,835,696", "yes"] and second.split() == ["theirs", "25"]
    html = tables.Table(ROWS, "Two models")._repr_html_()
    assert "<th>perplexity</th>" in html and "&lt;b&gt;ours&lt;/b&gt;" in html
    assert '<td style="text-align:left">4,835,696</td>' in html


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.0123456, "0.01235"),
        (123456.7, "123,457"),
        (None, ""),
        (False, "no"),
        ("x\ny", "x y"),
    ],
)
def test_a_cell_has_sensible_digits(value, shown):
    assert tables.cell(value) == shown


def test_bytes_and_seconds_have_the_units_of_a_person():
    assert (tables.size(3 * 2**30), tables.size(5 * 2**20), tables.size(None)) == ("3.00 GiB", "5 MiB", None)
    shown = [tables.seconds(value) for value in (0.0123, 5, 119, 120, 7200, 200_000)]
    assert shown == ["12 ms", "5 s", "119 s", "2 min", "2 h", "2.3 d"]


@pytest.mark.parametrize(("right", "items"), [(0, 5), (81, 100), (100, 100)])
def test_a_share_has_the_interval_that_scipy_computes_by_wilson(right, items):
    interval = wilson(right / items, items)
    expected = binomtest(right, items).proportion_ci(method="wilson")
    assert (interval.low, interval.high) == pytest.approx((expected.low, expected.high), abs=1e-6)
