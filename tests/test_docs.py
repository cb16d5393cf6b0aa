"""What a reader follows: every link of the pages leads somewhere, every command exists, every quoted message is what the code says."""

import re
import shlex
from pathlib import Path

import pytest
from papermill import inspect_notebook

from helpers.batch import grid
from tests.harness import ROOT

pytestmark = pytest.mark.once

FIRST = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "benchmarks/README.md")]
PAGES = [*FIRST, *sorted((ROOT / "docs").glob("*.md"))]
COMMANDS = [
    pytest.param(words, id=f"{page.stem}-{' '.join(words[:4])}")
    for page in PAGES
    for block in re.findall(r"```bash\n(.*?)```", page.read_text(), re.DOTALL)
    for line in block.replace("\\\n", " ").splitlines()
    if (words := shlex.split(line, comments=True)) and page.stem != "architecture"  # whose notebook is not there yet
]
TROUBLESHOOTING = " ".join((ROOT / "docs/troubleshooting.md").read_text().split())
SOURCES = [*(ROOT / "helpers").rglob("*.py"), ROOT / "tools/setup_cell.py"]


def links(page: Path) -> list[str]:
    """Targets of a page's relative links and pictures, those in code left out."""
    text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.DOTALL)
    return [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]


def anchors(page: Path) -> set[str]:
    """As GitHub makes them of headings."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(page):
    broken = []
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path) if path else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            broken.append(target)
    assert not broken


@pytest.mark.parametrize("words", COMMANDS)
def test_a_command_gives_a_notebook_parameters_that_it_has(words):
    for name in words:
        if name.endswith(".ipynb") and name.startswith("notebooks/"):
            declared = inspect_notebook(str(ROOT / name))
            given = [words[at + 1] for at, word in enumerate(words) if word == "-p"]
            grid.parse(declared, [word for word in words if re.match(r"\w+=", word) and not word.isupper()])
            assert {*given} <= {*declared}


@pytest.mark.parametrize(
    "quoted",
    [
        "going on without a TPU",
        "torch_xla found no TPU chip",
        "do not fit together",
        "cannot change over. Restart the kernel",
        "out of memory with micro-batch",
        "tokens at a time on ",
        "nothing was saved since",
        "not whole, and passed over: ",
        "was not written to output_dir=",
        "another run (",
        "is in use by",
        "is written and whole.",
        "is not a parameter of this notebook",
        "A gated repository needs its licence accepted on",
        "The payload is damaged: upload the notebook again, as it came.",
        "pip could not install",
        "weights, gradients and optimizer need",
        ", and it is no hub id (owner/name)",
    ],
)
def test_a_message_that_is_explained_is_what_the_code_says(quoted):
    assert quoted in TROUBLESHOOTING
    said = (re.sub(r'"\s*\n\s*f?"', "", path.read_text()) for path in SOURCES)
    assert any(quoted in " ".join(text.split()) for text in said)
