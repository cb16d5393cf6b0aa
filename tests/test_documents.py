"""Numbers in documents come from results files, and quoted messages from the code."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TROUBLESHOOTING = " ".join((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split())
RESERVOIR_PAGE = (ROOT / "docs" / "reservoir-tried.md").read_text(encoding="utf-8")
BENCHMARK = ROOT / "docs" / "results" / "reservoir_benchmark_cpu.json"
STUDIES = [ROOT / "docs" / "results" / f"reservoir_study_{name}.json" for name in ("cpu", "long_cpu")]


def spread(values: list[float], digits: int) -> str:
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_the_page_quotes_every_row_of_the_studies_with_the_spread_of_its_seeds(study):
    for name, row in json.loads(study.read_text(encoding="utf-8"))["rows"].items():
        values = row["test"]
        assert f"| {spread(values, 3) if len(values) > 1 else f'{values[0]:.3f}'} |" in RESERVOIR_PAGE, name


def test_the_readme_says_who_is_ahead_after_the_longer_study():
    rows = json.loads(STUDIES[-1].read_text(encoding="utf-8"))["rows"]
    means = {name: statistics.mean(row["test"]) for name, row in rows.items()}
    for name in set(means) - {"reservoirs"}:
        assert f"{name} {100 * (means[name] / means['reservoirs'] - 1):+.1f} %" in README


def test_the_readme_has_a_row_a_notebook_that_says_where_it_ran():
    rows = [line for line in README.splitlines() if "_tpu.ipynb)" in line]
    assert len(rows) == len(list((ROOT / "notebooks").glob("*_tpu.ipynb"))) == 5
    for row in rows:
        assert "CPU yes · XLA virtual devices yes · TPU compiler yes" in row


@pytest.mark.parametrize("study", STUDIES, ids=lambda path: path.stem)
def test_runs_that_are_quoted_did_not_blow_up_after_their_best(study):
    for row in json.loads(study.read_text(encoding="utf-8"))["rows"].values():
        losses = [point["loss"] for point in row.get("curve", [])]
        assert not losses or losses[-1] <= min(losses) + 0.01


def test_speeds_on_the_page_are_those_of_the_benchmark():
    for result in json.loads(BENCHMARK.read_text(encoding="utf-8"))["comparisons"]:
        assert f"{result['ours_tokens_per_second']:,}" in RESERVOIR_PAGE, result["comparison"]


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 150


@pytest.mark.parametrize(
    ("quoted", "module"),
    [
        ("going on without a TPU", "runtime.py"),
        ("torch_xla found no TPU chip", "xla.py"),
        ("do not fit together", "xla.py"),
        ("cannot change over. Restart the kernel", "runtime.py"),
        ("out of memory with micro-batch", "trainer.py"),
        ("no smaller micro-batch keeps", "trainer.py"),
        ("nothing was saved since", "trainer.py"),
        ("has changed since it was written", "checkpoint.py"),
        ("was not written to output_dir=", "checkpoint.py"),
        ("belongs to another run", "run_folder.py"),
        ("the data has changed since the run in output_dir=", "run_folder.py"),
        ("holds files that are no run of this suite", "run_folder.py"),
        ("already holds this run", "run_folder.py"),
        ("is in use by", "folder_lock.py"),
        ("is written and whole.", "trainer.py"),
        ("is not a parameter of this notebook", "parameters.py"),
        ("is gated. Accept its licence on", "hub.py"),
        ("The payload is damaged: upload the notebook again, as it came.", "../notebooks/setup_cell.py"),
        ("pip could not install", "setup.py"),
        ("the Hugging Face hub cannot be reached", "hub.py"),
        ("need at least", "plan.py"),
        ("; correct the path", "parameters.py"),
        ("is neither a path that exists nor a hub id", "parameters.py"),
    ],
)
def test_a_message_that_is_explained_is_what_the_code_says(quoted, module):
    assert quoted in TROUBLESHOOTING
    source = (ROOT / "helpers" / module).read_text(encoding="utf-8")
    said = " ".join(re.sub(r'"\s*\n\s*f?"', "", source).split())
    assert quoted in said
