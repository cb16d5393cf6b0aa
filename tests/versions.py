"""Runs the core tests at the ends of our version ranges and at Colab's: `make versions` writes docs/results/versions.json.

    python tests/versions.py                    every set
    python tests/versions.py floor colab        some

uv resolves each set (`lowest-direct` is the lowest release of each of our requirements that fits all others), pip
installs it into an environment of its own under .versions/, and pytest runs there.
"""

import argparse
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.run import provenance  # noqa: E402

ENVIRONMENTS = ROOT / ".versions"
RESULTS = ROOT / "docs/results/versions.json"
CORE = (
    "private_names",
    "parameters",
    "run_folder",
    "checkpoint",
    "resume",
    "interruption",
    "failures",
    "early_stopping",
    "counting",
    "plan",
    "arrows",
)
# googlecolab/backend-info, pip-freeze.gpu.txt and pip-freeze.tpu.txt of 2026-11: what a runtime comes with. trl, which is
# not among it, needs a newer `datasets` than the GPU runtime's 4.0.0, so the setup cell moves that one.
COLAB = {
    "gpu": (
        "torch==2.11.0",
        "numpy==2.1.3",
        "transformers==5.15.0",
        "accelerate==1.14.0",
        "peft==0.20.0",
        "sentence-transformers==5.7.0",
        "wandb==0.28.1",
        "huggingface_hub==1.27.0",
    ),
    "tpu": (
        "torch==2.9.0",
        "torch_xla==2.9.0",
        "numpy==2.1.3",
        "transformers==5.15.0",
        "accelerate==1.14.0",
        "datasets==4.8.5",
    ),
}
# name: (requirements, how uv resolves them, what is given)
SETS = {
    "floor": ("gpu", "lowest-direct", ()),
    "newest": ("gpu", "highest", ()),
    "colab": ("gpu", "highest", COLAB["gpu"]),
    "floor_tpu": ("tpu", "lowest-direct", ()),
    "newest_tpu": ("tpu", "highest", ()),
    "colab_tpu": ("tpu", "highest", COLAB["tpu"]),
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


def run(name: str) -> dict:
    """Resolves, installs and tests one set."""
    which, resolution, given = SETS[name]
    folder = ENVIRONMENTS / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "given.txt").write_text("\n".join(given) + "\n", encoding="utf-8")
    files = [str(ROOT / f"requirements-{which}.txt"), str(ROOT / "tests/requirements.txt")]
    resolved = folder / "resolved.txt"
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header"]
    call(*uv, "--resolution", resolution, "--constraints", str(folder / "given.txt"), "-o", str(resolved), *files)
    call(sys.executable, "-m", "venv", str(folder / "venv"))
    python = str(folder / "venv/bin/python")
    call(python, "-m", "pip", "install", "--quiet", *os.environ.get("PIP_ARGS", "").split(), "-r", str(resolved))
    report = folder / "report.xml"
    tests = [str(path) for each in CORE for path in (ROOT / "tests").rglob(f"test_{each}.py")]
    chosen = ["-m", "not once"] if which == "tpu" else []  # as `make test` does
    subprocess.run([python, "-m", "pytest", "-q", *chosen, *tests, f"--junitxml={report}"], cwd=ROOT, check=False)
    suite = ElementTree.parse(report).getroot().find("testsuite")
    broken = [case for case in suite.iter("testcase") if {each.tag for each in case} & {"failure", "error"}]
    pins = dict(line.split("==") for line in resolved.read_text(encoding="utf-8").splitlines() if "==" in line)
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
    parser.add_argument("sets", nargs="*", choices=[*SETS, []], help=", ".join(SETS))
    chosen = parser.parse_args().sets or [*SETS]
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["sets"] if RESULTS.exists() else {}
    for name in chosen:
        found[name] = run(name)
        about = {"code": provenance.code(), "versions": provenance.versions()}
        sets = {each: found[each] for each in SETS if each in found}
        RESULTS.write_text(json.dumps(about | {"sets": sets}, indent=1) + "\n", encoding="utf-8")
    return int(any(found[name]["failed"] for name in chosen))


if __name__ == "__main__":
    sys.exit(main())
