"""Numbers in documents come from results files, and quoted messages from the code."""

import re

import pytest

import helpers
from tests.harness import ROOT

pytestmark = pytest.mark.once

README = (ROOT / "README.md").read_text()
TROUBLESHOOTING = " ".join((ROOT / "docs" / "troubleshooting.md").read_text().split())


def test_the_readme_begins_with_a_table_of_all_notebooks_and_says_where_they_have_not_run():
    named = re.findall(r"\(notebooks/(\w+)\.ipynb\)", README)
    assert sorted(named) == sorted(path.stem for path in (ROOT / "notebooks").glob("*.ipynb"))
    first, _, rest = README.partition("<!-- evidence: readme.blocks -->")
    assert first.index("| I have | I get |") < first.index("1. Download")
    assert "No TPU has run one" in first and "All figures here were measured on a CPU" in first
    assert "if its disk is still there" in first
    assert rest.count("\n### ") == 5


def test_the_version_is_that_of_the_newest_entry_of_the_changelog():
    newest = re.search(r"^## (\d+\.\d+\.\d+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest[1] == helpers.__version__


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 110


@pytest.mark.parametrize(
    "quoted",
    [
        "going on without a TPU",
        "torch_xla found no TPU chip",
        "do not fit together",
        "cannot change over. Restart the kernel",
        "out of memory with micro-batch",
        "no smaller micro-batch keeps",
        "nothing was saved since",
        "has changed since it was written",
        "was not written to output_dir=",
        "belongs to another run",
        "the data has changed since the run in output_dir=",
        "holds files that are no run of this suite",
        "already holds this run",
        "is in use by",
        "is written and whole.",
        "is not a parameter of this notebook",
        "Accept its licence on",
        "The payload is damaged: upload the notebook again, as it came.",
        "pip could not install",
        "the Hugging Face hub cannot be reached",
        "need at least",
        "; correct the path",
        "is neither a path that exists nor a hub id",
    ],
)
def test_a_message_that_is_explained_is_what_the_code_says(quoted):
    assert quoted in TROUBLESHOOTING
    sources = [*(ROOT / "helpers").rglob("*.py"), ROOT / "notebooks/setup_cell.py"]
    said = (re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in sources)
    assert any(quoted in " ".join(text.split()) for text in said)
