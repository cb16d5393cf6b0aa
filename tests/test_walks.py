"""README.md followed to the letter with data of one's own, at small sizes: what it promises is there at the end."""

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

from tests.legal.test_notebook import TINY as LEGAL
from tests.lejepa.test_notebook import TINY as EMBEDDING
from tests.notebook.test_notebooks import TINY as RESERVOIR
from tests.tuning.test_notebook import TINY as TUNING

from .graphmer.batches import library
from .graphmer.test_notebook import CHANGES
from .harness import NOTEBOOKS, ROOT

pytestmark = [pytest.mark.slow, pytest.mark.once]
README = (ROOT / "README.md").read_text()
COMMANDS = [line for block in re.findall(r"```bash\n(.*?)```", README, re.DOTALL) for line in block.splitlines()]
WORDS = [
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


def sentences(count: int) -> str:
    draw = random.Random(count)
    return " ".join(" ".join(draw.choices(WORDS, k=9)).capitalize() + "." for _ in range(count))


def stories(folder: Path) -> Path:
    path = folder / "stories.txt"
    path.write_text("\n\n".join(f"{sentences(12)} The end of story {n}." for n in range(120)))
    return path


def documents(folder: Path) -> Path:
    path = folder / "documents"
    path.mkdir()
    for n in range(80):
        title = f"# {' '.join(random.Random(n).sample(WORDS, 5))} of page {n}"
        paragraphs = [f"{sentences(6 + part)} Page {n}, part {part}." for part in range(4)]
        text = "\n\n".join([title, *paragraphs])
        (path / f"{n}.{'md' if n % 2 else 'txt'}").write_text(text)
    return path


def records(folder: Path) -> Path:
    path = folder / "records.jsonl"
    (told,) = re.findall(r"^\| chat model \| (.*) \|$", README, re.MULTILINE)
    assert "`.jsonl`" in told and "`question` and `answer`" in told
    draw = random.Random(2)
    rows = []
    for n in range(120):
        weight, price = draw.randint(2, 90), draw.randint(2, 9)
        question = f"Order {n}: {weight} kilograms of stone at {price} euros each, carried to the old house. What does it cost?"
        rows.append(
            {"question": question, "answer": f"{weight} times {price} is {weight * price}, so {weight * price} euros."}
        )
    path.write_text("\n".join(map(json.dumps, rows)))
    return path


def sources(folder: Path) -> Path:
    return library(folder / "my_repository")


def table(folder: Path) -> Path:
    path = folder / "tickets.csv"
    draw = random.Random(0)
    with path.open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["body", "team"])
        for n in range(260):
            team = draw.choice(["billing", "network"])
            words = {"billing": "invoice card refund price", "network": "router cable signal slow"}[team].split()
            rows.writerow([f"{' '.join(draw.choices([*words, *WORDS], k=8))} {n}", team])
    return path


def papermill_command(notebook: str, parameters: dict, data: Path) -> list[str]:
    """README's command, for another notebook and other data, with smaller sizes."""
    (written,) = (line for line in COMMANDS if line.startswith("papermill "))
    assert f"notebooks/{notebook}.ipynb" in README
    words = shlex.split(written.replace("tinystories_reservoir", notebook))
    words[words.index("data_source") + 1] = data.name
    for name, value in parameters.items():
        words += ["-p", name, str(value)]
    return [sys.executable, "-m", *words]


def finished(folder: Path, command: list[str]) -> str:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1500)
    assert not done.returncode, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


@pytest.fixture
def checkout(tmp_path) -> Path:
    shutil.copytree(NOTEBOOKS, tmp_path / "notebooks", ignore=shutil.ignore_patterns("source", "__pycache__"))
    return tmp_path


GRAPH = {"changes": "; ".join(f"{key}={value}" for key, value in CHANGES.items() if key != "run.seed")}
WALKS = {
    "tinystories_reservoir": (stories, {**RESERVOIR, "num_texts": 0}),
    "lejepa_training": (documents, {**EMBEDDING, "num_samples": 0}),
    "legal_cot_sft": (records, LEGAL),
    "graphmer_se": (sources, {**GRAPH, "max_steps": 8, "base_model": "sample", "search_steps": 2}),
    "hardware_tuning": (table, TUNING | {"text_column": "body", "label_column": "team"}),
}


@pytest.mark.parametrize("notebook", WALKS)
def test_own_data_train_a_model_that_is_measured_and_loads(checkout, notebook):
    make, parameters = WALKS[notebook]
    data = make(checkout)
    sizes = {key: value for key, value in parameters.items() if key != "data_source"}
    finished(checkout, papermill_command(notebook, sizes, data))
    assert (checkout / "out.ipynb").is_file()
    folder = checkout / "outputs" / notebook
    results = json.loads((folder / "results.json").read_text())
    assert results["notebook"] == notebook
    assert Path(results["data"]["source"]).name.startswith(data.name)
    assert results["train"]["steps"] and results["eval"]
    weights = list((folder / "model").rglob("*.safetensors"))
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
    assert "run: done" in said and "bits per byte" in said
    (results,) = re.findall(r"^(/.+results\.json)$", said, re.MULTILINE)
    assert json.loads(Path(results).read_text())["eval"]["verdict"]


def test_the_grid_of_the_readme_writes_one_table_of_three_seeds(checkout):
    stories(checkout)
    shutil.copytree(ROOT / "helpers", checkout / "helpers", ignore=shutil.ignore_patterns("__pycache__"))
    (written,) = (line for line in COMMANDS if line.startswith("python -m helpers.batch "))
    sizes = [f"{name}={value}" for name, value in RESERVOIR.items() if name not in ("data_source", "num_texts")]
    command = [sys.executable, *shlex.split(written)[1:], *sizes, "num_texts=0"]
    for status in ("done", "done before"):
        finished(checkout, command)
        with (checkout / "runs/results.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["seed"], row["status"]) for row in rows] == [(seed, status) for seed in "012"]
