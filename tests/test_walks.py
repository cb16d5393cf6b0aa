"""README.md followed to the letter with data of one's own, at small sizes: what it promises is there at the end."""

import json
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
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]


def stories(folder: Path) -> Path:
    path = folder / "stories.txt"
    path.write_text(
        "\n\n".join(f"The cat sleeps near the old river. {n} dogs run. The end of story {n}." for n in range(120))
    )
    return path


def finished(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500)
    assert not done.returncode, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path) -> Path:
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("source", "__pycache__"))
    return tmp_path


def test_own_data_train_a_model_that_is_measured_and_loads(checkout):
    """README's command; the other notebooks have data of one's own in the tests of their rooms."""
    data = stories(checkout)
    (written,) = (shlex.split(line) for line in COMMANDS if line.startswith("papermill "))
    written[written.index("data_source") + 1] = data.name
    sizes = {key: value for key, value in RESERVOIR.items() if key != "data_source"} | {"num_texts": 0}
    given = [word for name, value in sizes.items() for word in ("-p", name, str(value))]
    finished(checkout, [sys.executable, "-m", *written, *given])
    assert (checkout / "out.ipynb").is_file()
    folder = checkout / "outputs" / "tinystories_reservoir"
    results = json.loads((folder / "results.json").read_text())
    assert Path(results["data"]["source"]).name.startswith(data.name)
    assert results["train"]["steps"] and results["eval"]
    for path in (folder / "model").rglob("*.safetensors"):
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
    assert "run: done" in said and "bits per byte" in said
    (results,) = re.findall(r"^(/.+results\.json)$", said, re.MULTILINE)
    assert json.loads(Path(results).read_text())["eval"]["verdict"]
