"""README.md's demo followed to the letter with data of one's own, at small sizes: what it promises is there at the end."""

import re
import shutil
import sys
from pathlib import Path

import pytest
from safetensors import safe_open

from tests.notebook.test_notebooks import TINY as RESERVOIR

from . import harness
from .harness import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


def stories(folder: Path) -> Path:
    path = folder / "stories.txt"
    path.write_text(
        "\n\n".join(f"The cat sleeps near the old river. {n} dogs run. The end of story {n}." for n in range(120))
    )
    return path


def test_the_demo_trains_on_own_data_and_says_where_results_are(tmp_path):
    """`make demo` at a smaller size; the environment is the one that runs this test."""
    data = stories(tmp_path)
    (written,) = (line.partition("#")[0].split() for line in COMMANDS if line.startswith("make demo "))
    for name in ("helpers", "notebooks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("source", "__pycache__"))
    for name in ("Makefile", "requirements-gpu.txt"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / ".venv-gpu").symlink_to(sys.prefix)
    fixed = ("data_source", "num_texts", "max_steps", "eval_steps")
    sizes = " ".join(f"{name}='{value}'" for name, value in RESERVOIR.items() if name not in fixed)
    given = ("--old-file=.venv-gpu/.installed", "STEPS=12", f"DATA={data.name}", f"PARAMETERS={sizes}")
    done = harness.finished(*written, *given, cwd=tmp_path, timeout=1500)
    said = done.stdout + done.stderr
    assert not done.returncode, said[-3000:]
    assert ": done" in said and "bits per byte" in said
    (path,) = re.findall(r"^(/.+results\.json)$", said, re.MULTILINE)
    results = harness.read_json(path)
    assert results["eval"]["verdict"] and Path(results["data"]["source"]).name.startswith(data.name)
    with safe_open(Path(path).with_name("model") / "model.safetensors", "pt") as opened:
        assert opened.keys()
