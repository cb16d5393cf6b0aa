"""Numbers in documents come from results files, and quoted messages from the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
TROUBLESHOOTING = " ".join((ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8").split())


def test_the_readme_has_a_block_a_notebook_and_says_at_once_where_they_have_not_run():
    named = re.findall(r"\(notebooks/(\w+)\.ipynb\)", README)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    first, _, rest = README.partition("<!-- evidence: readme.blocks -->")
    assert "Not yet run on a GPU or a TPU" in first and len(first.splitlines()) <= 16
    assert rest.count("\n### ") == 5


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


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
