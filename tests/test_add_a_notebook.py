"""docs/architecture.md, followed to the letter in a copy of the sources."""

import re
import shutil
from pathlib import Path

import pytest

from .harness import ROOT, printed, text_of, write
from .harness import run_notebook as run

pytestmark = pytest.mark.once
PAGE = (ROOT / "docs/architecture.md").read_text()
FILES = dict(re.findall(r"^`([\w/]+\.py)`\n\n```python\n(.*?)```$", PAGE, re.MULTILINE | re.DOTALL))
NAME = "byte_language_model"


@pytest.fixture(scope="module")
def checkout(tmp_path_factory) -> Path:
    """The sources with the files of the page, and no other notebook."""
    folder = tmp_path_factory.mktemp("checkout")
    unwanted = shutil.ignore_patterns("__pycache__", "source", "*.ipynb")
    for name in ("helpers", "notebooks", "tools"):
        shutil.copytree(ROOT / name, folder / name, ignore=unwanted)
    for name in ("requirements-gpu.txt", "requirements-tpu.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, folder)
    assert not [name for name in FILES if (folder / name).exists()]
    write(folder, FILES)
    printed("tools/notebooks.py", cwd=folder)
    return folder


@pytest.mark.slow
def test_it_trains_beside_what_costs_nothing(checkout, alone):
    executed, results = run(NAME, alone, {"max_steps": 40, "precision": "fp32"}, notebooks=checkout / "notebooks")
    reached = results["eval"]
    assert reached["trained"] < reached["bytes counted"] < reached["untrained"]
    assert "LZMA" in text_of(executed)
