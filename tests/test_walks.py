"""README.md followed to the letter with data of one's own, at small sizes: what it promises is there at the end."""

from __future__ import annotations

import csv
import json
import random
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.notebook.test_notebooks import TINY as RESERVOIR

from .harness import NOTEBOOKS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


def stories(folder: Path) -> None:
    draw = random.Random(0)
    words = [
        "the",
        "a",
        "river",
        "stone",
        "cat",
        "dog",
        "runs",
        "sleeps",
        "under",
        "near",
        "bright",
        "old",
        "house",
        "then",
    ]
    sentences = [" ".join(draw.choices(words, k=9)).capitalize() + "." for _ in range(12 * 120)]
    told = (f"{' '.join(sentences[n::120])} The end of story {n}." for n in range(120))
    (folder / "stories.txt").write_text("\n\n".join(told), encoding="utf-8")


def finished(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500, check=False)
    assert not done.returncode, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path) -> Path:
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("source", "__pycache__"))
    return tmp_path


def test_the_papermill_command_trains_on_own_data_a_model_that_is_measured_and_loads(checkout):
    stories(checkout)
    (written,) = (shlex.split(line) for line in COMMANDS if line.startswith("papermill "))
    for name, value in {**RESERVOIR, "num_texts": 0}.items():
        written += ["-p", name, str(value)] if name != "data_source" else []
    finished(checkout, [sys.executable, "-m", *written])
    assert (checkout / "out.ipynb").is_file()
    folder = checkout / "outputs/tinystories_reservoir"
    results = json.loads((folder / "results.json").read_text())
    assert Path(results["data"]["source"]).name == "stories.txt"
    assert results["train"]["steps"] and results["eval"]
    weights = [*(folder / "model").rglob("*.safetensors")]
    assert weights
    for path in weights:
        with safe_open(path, "pt") as opened:
            assert opened.keys()


def test_the_demo_says_what_was_seen_and_where_its_figures_are(checkout):
    """`make demo` at a smaller size; the environment is the one that runs this test."""
    (written,) = (line.partition("#")[0].split() for line in COMMANDS if line.startswith("make demo "))
    for name in ("helpers", "Makefile", "requirements-gpu.txt"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, checkout / name)
    (checkout / ".venv-gpu").symlink_to(sys.prefix)
    fixed = ("data_source", "max_steps", "eval_steps")
    sizes = " ".join(f"{name}='{value}'" for name, value in RESERVOIR.items() if name not in fixed)
    said = finished(checkout, [*written, "--old-file=.venv-gpu/.installed", "STEPS=12", f"PARAMETERS={sizes}"])
    assert "run done" in said and "the mixture" in said.lower() and "bits per byte" in said
    (results,) = re.findall(r"^(/.+results\.json)$", said, re.MULTILINE)
    assert json.loads(Path(results).read_text(encoding="utf-8"))["eval"]["verdict"]


def test_the_grid_of_the_readme_writes_one_table_of_three_seeds(checkout):
    stories(checkout)
    shutil.copytree(ROOT / "helpers", checkout / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (written,) = (line for line in COMMANDS if line.startswith("python -m helpers.batch "))
    sizes = [f"{name}={value}" for name, value in RESERVOIR.items() if name not in ("data_source", "num_texts")]
    command = [sys.executable, *shlex.split(written)[1:], *sizes, "num_texts=0"]
    for status in ("done", "done before"):
        finished(checkout, command)
        with (checkout / "runs/results.csv").open(newline="", encoding="utf-8") as file:
            rows = list(csv.DictReader(file))
        assert [(row["seed"], row["status"]) for row in rows] == [(seed, status) for seed in "012"]
