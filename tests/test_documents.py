"""Numbers in documents come from results files, and quoted messages from the code."""

from __future__ import annotations

import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RESULTS = sorted((ROOT / "docs" / "results").glob("tinystories_reservoir_cpu_seed*.json"))


def runs() -> list[dict]:
    return [json.loads(path.read_text(encoding="utf-8")) for path in RESULTS]


def spread(*path: str) -> str:
    values = []
    for run in runs():
        for key in path:
            run = run[key]
        values.append(run)
    digits = 3 if path[-1] == "bits_per_byte" else 1
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def test_the_readme_quotes_the_three_seeds_with_their_spread():
    assert len({run["seed"] for run in runs()}) == 3
    for path in (
        ("eval", "after", "bits_per_byte"),
        ("eval", "after", "perplexity"),
        ("eval", "baselines", "bigram", "bits_per_byte"),
        ("eval", "baselines", "unigram", "bits_per_byte"),
    ):
        assert spread(*path) in README, f"{path}: {spread(*path)}"
    for count in runs()[0]["model"].values():
        assert f"{count:,}" in README


def test_every_path_that_the_readme_links_exists():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", README):
        assert (ROOT / target).exists(), target


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
        ("is not a parameter of this notebook", "parameters.py"),
    ],
)
def test_a_message_that_the_readme_quotes_is_what_the_code_says(quoted, module):
    flat = " ".join(README.split())
    assert quoted in flat
    source = (ROOT / "helpers" / module).read_text(encoding="utf-8")
    said = " ".join(re.sub(r'"\s*\n\s*f?"', "", source).split())
    assert quoted in said
