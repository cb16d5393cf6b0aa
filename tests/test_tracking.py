"""helpers.tracking: W&B or nothing, lines a person can read, a plot with units."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

matplotlib = pytest.importorskip("matplotlib")
pytest.importorskip("transformers")
matplotlib.use("Agg")

from transformers import TrainerControl, TrainerState  # noqa: E402

from helpers import tracking  # noqa: E402

ROOT = Path(__file__).resolve().parents[1]
KEY = "0123456789abcdef0123456789abcdef01234567"
REPORT = """
import json, os, sys
from helpers.tracking import report_to
answers = []
for environment in json.loads(sys.argv[1]):
    os.environ.update(environment)
    answers.append(report_to("wandb"))
    for name in environment:
        del os.environ[name]
print("\\n" + json.dumps(answers))
"""
HISTORY = [
    {"loss": 4.0, "learning_rate": 1e-3, "step": 1},
    {"loss": 2.5, "learning_rate": 9e-4, "step": 10},
    {"eval_loss": 2.75, "step": 10},
    {"train_runtime": 3.0, "train_loss": 3.0, "step": 10},
]


@pytest.fixture(scope="module")
def wandb_answers(tmp_path_factory):
    """`report_to("wandb")` by situation, each with its own home, in one process without input; and all it printed."""
    pytest.importorskip("wandb")
    homes = {name: tmp_path_factory.mktemp("home") for name in ("nothing", "key", "offline", "netrc", "broken netrc")}
    (homes["netrc"] / ".netrc").write_text(f"machine api.wandb.ai\n  login user\n  password {KEY}\n")
    (homes["netrc"] / ".netrc").chmod(0o600)
    (homes["broken netrc"] / ".netrc").write_text("machine\n")
    extra = {"key": {"WANDB_API_KEY": KEY}, "offline": {"WANDB_MODE": "offline"}}
    situations = [{"HOME": str(home), **extra.get(name, {})} for name, home in homes.items()]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("WANDB", "NETRC"))}
    finished = subprocess.run(
        [sys.executable, "-c", REPORT, json.dumps(situations)],
        env=clean | {"USE_TORCH_XLA": "0"},
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    answers = zip(homes, json.loads(finished.stdout.splitlines()[-1]), strict=True)
    return dict(answers), finished.stdout + finished.stderr


# -- W&B --


def test_wandb_without_a_key_becomes_none_and_says_so_without_asking(wandb_answers):
    choice, reason = wandb_answers[0]["nothing"]
    assert choice == "none"
    assert "report_to='wandb'" in reason and "WANDB_API_KEY" in reason and "going on without it" in reason


@pytest.mark.parametrize("situation", ["key", "netrc"])
def test_wandb_with_a_key_or_a_login_is_taken(wandb_answers, situation):
    assert wandb_answers[0][situation][0] == "wandb"


def test_offline_wandb_needs_no_key(wandb_answers):
    assert wandb_answers[0]["offline"][0] == "wandb"


def test_a_broken_netrc_is_no_login(wandb_answers):
    assert wandb_answers[0]["broken netrc"][0] == "none"


def test_no_key_is_ever_shown(wandb_answers):
    answers, printed = wandb_answers
    assert KEY not in printed and KEY not in str(answers)


def test_none_stays_none_and_looks_nowhere():
    assert tracking.report_to("none") == ("none", "report_to='none'")


# -- progress --


def progress(live: bool, *logs: dict) -> tracking.Progress:
    watched, state = tracking.Progress(live=live), TrainerState(max_steps=20)
    watched.on_train_begin(None, state, TrainerControl())
    for entry in logs:
        state.global_step = entry["step"]
        watched.on_log(None, state, TrainerControl(), logs={key: entry[key] for key in entry if key != "step"})
    return watched


def test_progress_prints_one_plain_line_a_log(capsys):
    progress(False, *HISTORY)
    first, second, third = capsys.readouterr().out.splitlines()
    assert first.startswith("step 1/20  loss 4.0000  learning_rate 1.00e-03  steps/s ")
    assert second.startswith("step 10/20  loss 2.5000  learning_rate 9.00e-04  steps/s ")
    assert third == "step 10/20  eval_loss 2.7500"


def test_the_closing_summary_of_the_trainer_is_no_line(capsys):
    progress(False, HISTORY[-1])
    assert capsys.readouterr().out == ""


def test_evaluation_before_training_is_no_line(capsys):
    tracking.Progress(live=False).on_log(None, TrainerState(max_steps=20), TrainerControl(), logs={"eval_loss": 1.0})
    assert capsys.readouterr().out == ""


def test_outside_a_notebook_nothing_is_live():
    assert tracking.Progress().live is False


def test_the_live_table_escapes_and_holds_every_column(monkeypatch):
    display = pytest.importorskip("IPython.display")
    shown = []
    monkeypatch.setattr(display, "display", lambda table, display_id: shown.append(table.data))
    progress(True, HISTORY[0])
    assert all(f"<th>{column}</th>" in shown[0] for column in tracking.Progress.columns)
    assert "<td>4.0000</td>" in shown[0]


# -- the plot --


@pytest.fixture
def figure(tmp_path):
    drawn = tracking.plot_loss(
        HISTORY, tmp_path / "plots/loss.png", title="Loss", baselines={"uniform": 3.5, "unknown": float("nan")}
    )
    yield drawn
    matplotlib.pyplot.close(drawn)


def test_the_plot_is_written_as_png_with_its_folder(figure, tmp_path):
    assert (tmp_path / "plots/loss.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_the_axes_say_what_they_show_and_in_which_unit(figure):
    (axes,) = figure.axes
    assert (axes.get_title(), axes.get_xlabel(), axes.get_ylabel()) == (
        "Loss",
        "optimizer step",
        "loss (nats per token)",
    )


def test_the_legend_names_both_curves_and_the_baseline_with_its_value(figure):
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["training", "validation", "uniform (3.50)"]


def test_the_curves_are_the_logged_points(figure):
    training, validation, baseline = figure.axes[0].get_lines()
    assert training.get_xydata().tolist() == [[1, 4.0], [10, 2.5]]
    assert validation.get_xydata().tolist() == [[10, 2.75]]
    assert set(baseline.get_ydata()) == {3.5}


@pytest.mark.filterwarnings("error")
def test_a_history_without_a_loss_is_plotted_without_complaint(tmp_path):
    matplotlib.pyplot.close(tracking.plot_loss([], tmp_path / "loss.png", title="Nothing yet"))
    assert (tmp_path / "loss.png").exists()
