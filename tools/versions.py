"""Runs the core tests at the ends of our version ranges and at Colab's: `make versions` writes docs/results/versions.json.

    python tools/versions.py                    every set
    python tools/versions.py floor colab        some
    python tools/versions.py images             what the setup cell would move on Colab's runtimes, by resolution alone (seconds)

uv resolves each set (`lowest-direct` is the lowest release of each of our requirements that fits all others), pip
installs it into an environment of its own under .versions/, and pytest runs there.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.notebook.setup import HELD  # noqa: E402
from helpers.run import provenance  # noqa: E402

ENVIRONMENTS = ROOT / ".versions"
RESULTS = ROOT / "docs/results/versions.json"
IMAGES = "images"
CORE = (
    "parameters",
    "run_folder",
    "checkpoint",
    "resume",
    "interruption",
    "failures",
    "counting",
)
# googlecolab/backend-info @ a724079 (2026-08-19), pip-freeze.gpu.txt and pip-freeze.tpu.txt: what a runtime comes with of all that our
# requirements lead to. Where torch has a build of its own (+cu128, +cpu), the one of the index stands in its place.
COLAB = {name: (ROOT / f"tests/colab-{name}.txt").read_text().split() for name in ("gpu", "tpu")}
PYTHONS = ("3.12", "3.13")  # of Kaggle's and of Colab's runtimes
BUILDS = ("nvidia-", "cuda-", "triton")  # come with one build of torch or another
# name: (requirements, how uv resolves them, what is installed before)
SETS = {
    "floor": ("gpu", "lowest-direct", ()),
    "newest": ("gpu", "highest", ()),
    "colab": ("gpu", "highest", COLAB["gpu"]),
    "floor_tpu": ("tpu", "lowest-direct", ()),
    "newest_tpu": ("tpu", "highest", ()),
    "colab_tpu": ("tpu", "highest", COLAB["tpu"]),
    "kaggle_tpu": (
        "tpu",
        "highest",
        ("torch==2.8.0", "torch_xla==2.8.0"),
    ),  # older than our range, and kept with a warning
}
SHOWN = (
    "torch",
    "torch_xla",
    "transformers",
    "accelerate",
    "trl",
    "peft",
    "datasets",
    "sentence-transformers",
    "pydantic",
)


def resolved(which: str, file: Path, resolution: str, installed: Sequence[str], *options: str) -> dict[str, str]:
    """Version of each package that uv chooses for requirements-`which`.txt, and writes into `file`.

    installed: pins that stay where the requirements allow it; those that the setup cell holds stay in any case.
    """
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(installed) + "\n")  # uv keeps what the file that it writes has
    held = [pin for pin in installed if pin.split("==")[0].replace("-", "_") in HELD[:5]]
    constraints = file.with_suffix(".held")
    constraints.write_text("\n".join(held) + "\n")
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", *options]
    uv += ["--resolution", resolution, "--constraints", str(constraints), "-o", str(file)]
    wanted = (ROOT / f"requirements-{which}.txt").read_text().splitlines()
    exact = {pin.split("==")[0]: pin for pin in held}
    wanted = [exact.get(re.split("[<>=]", line)[0], line) for line in wanted]
    requirements = file.with_suffix(".in")
    requirements.write_text("\n".join(wanted) + "\n")
    call(*uv, str(requirements))
    return dict(line.split("==") for line in file.read_text().splitlines() if "==" in line)


def moved_on(which: str, python: str) -> dict:
    """What the setup cell changes on Colab's runtime of this Python: nothing is installed, and nothing that it holds may move."""
    file = ENVIRONMENTS / f"colab_{which}_{python}.txt"
    found = resolved(which, file, "highest", COLAB[which], "--python-version", python)
    before = dict(pin.split("==") for pin in COLAB[which])
    found = {name: version for name, version in found.items() if not name.startswith(BUILDS)}
    return {
        "python": python,
        "kept": sum(before.get(name) == version for name, version in found.items()),
        "added": sorted(found.keys() - before.keys()),
        "moved": {
            name: [before[name], found[name]] for name in before if found.get(name, before[name]) != before[name]
        },
    }


def run(name: str) -> dict:
    """Resolves, installs and tests one set."""
    which, resolution, installed = SETS[name]
    folder = ENVIRONMENTS / name
    pins = resolved(which, folder / "resolved.txt", resolution, installed, str(ROOT / "tests/requirements.txt"))
    call(sys.executable, "-m", "venv", str(folder / "venv"))
    python = str(folder / "venv/bin/python")
    call(
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        *os.environ.get("PIP_ARGS", "").split(),
        "-r",
        str(folder / "resolved.txt"),
    )
    report = folder / "report.xml"
    tests = [str(path) for each in CORE for path in (ROOT / "tests").rglob(f"test_{each}.py")]
    chosen = ["-m", "not once"] if which == "tpu" else []  # as `make test` does
    subprocess.run([python, "-m", "pytest", "-q", *chosen, *tests, f"--junitxml={report}"], cwd=ROOT, check=False)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    broken = [case for case in suite.iter("testcase") if {each.tag for each in case} & {"failure", "error"}]
    return {
        "date": date.today().isoformat(),
        "python": sys.version.split()[0],
        "requirements": f"requirements-{which}.txt",
        "versions": {each: pins[each.replace("_", "-")] for each in SHOWN if each.replace("_", "-") in pins},
        "passed": int(suite.get("tests")) - len(broken) - int(suite.get("skipped")),
        "skipped": int(suite.get("skipped")),
        "failed": [f"{case.get('classname').rpartition('.')[2]}::{case.get('name')}" for case in broken],
    }


def call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="*", choices=[*SETS, IMAGES, []], help=", ".join([*SETS, IMAGES]))
    chosen = parser.parse_args().sets or [*SETS, IMAGES]
    kept = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"sets": {}}
    about = {"code": provenance.code(), "versions": provenance.versions()}
    for name in chosen:
        if name == IMAGES:
            kept[IMAGES] = {which: [moved_on(which, python) for python in PYTHONS] for which in COLAB}
        else:
            found = kept["sets"] | {name: run(name)}
            kept |= about | {"sets": {each: found[each] for each in SETS if each in found}}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n")
    return int(any(kept["sets"][name]["failed"] for name in chosen if name != IMAGES))


if __name__ == "__main__":
    sys.exit(main())
