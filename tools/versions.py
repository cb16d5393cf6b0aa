"""Runs the core tests with the oldest and the newest releases that the requirements allow, and with Colab's: `make versions`.

    python tools/versions.py                 every set
    python tools/versions.py floor colab     some

uv resolves each set (`lowest-direct` is the lowest release of each of our requirements that fits all others, and what Colab has
stays where it fits), and pytest runs in an environment of its own under .versions/. docs/results/versions.json has what passed.
"""

import json
import re
import subprocess
import sys
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.run import disk, provenance  # noqa: E402

RESULTS = ROOT / "docs/results/versions.json"
CORE = ("test_parameters.py", "run", "train", "reservoir", "data")  # of tests/
SETS = {  # name: requirements, how uv resolves them
    "floor": ("gpu", "lowest-direct"),
    "newest": ("gpu", "highest"),
    # googlecolab/backend-info @ a724079 (2026-08-19): what a runtime comes with of all that our requirements lead to
    "colab": ("gpu", "highest"),
    "colab_tpu": ("tpu", "highest"),
}
SHOWN = ("torch", "torch-xla", "transformers", "accelerate", "trl", "peft", "datasets", "sentence-transformers")


def run(name: str) -> dict:
    """Resolves, installs and tests one set."""
    which, resolution = SETS[name]
    folder = ROOT / ".versions" / name
    folder.mkdir(parents=True, exist_ok=True)
    pins, python = folder / "resolved.txt", str(folder / "venv/bin/python")
    pins.write_text((ROOT / f"tests/colab-{which}.txt").read_text() if name.startswith("colab") else "")
    uv = [sys.executable, "-m", "uv"]
    compiled = [f"requirements-{which}.txt", "tests/requirements.txt", "--resolution", resolution, "--no-annotate"]
    call(*uv, "pip", "compile", "--quiet", *compiled, "--output-file", str(pins))
    call(*uv, "venv", "--quiet", "--clear", str(folder / "venv"))
    call(*uv, "pip", "install", "--quiet", "--python", python, "--requirements", str(pins))
    tests = [str(Path("tests", part)) for part in CORE]
    marked = "not slow and not once" if which == "tpu" else "not slow"
    pytest = subprocess.run(
        [python, "-m", "pytest", "-q", "-m", marked, *tests], cwd=ROOT, capture_output=True, text=True
    )
    print(pytest.stdout[-3000:])
    counts = {word: int(count) for count, word in re.findall(r"(\d+) (passed|failed|error)", pytest.stdout)}
    found = dict(re.findall(r"^([\w-]+)==(\S+)", pins.read_text(), re.MULTILINE))
    shown = {each: found[each] for each in SHOWN if each in found}
    return {"date": date.today().isoformat(), "python": sys.version.split()[0], "versions": shown, **counts}


def call(*command: str) -> None:
    subprocess.run(command, check=True, cwd=ROOT)


def main() -> None:
    found = json.loads(RESULTS.read_text(encoding="utf-8"))["sets"] if RESULTS.exists() else {}
    for name in sys.argv[1:] or SETS:
        found[name] = run(name)
        about = {"schema": 2, "code": provenance.code(), "versions": provenance.versions()}
        disk.write_json(RESULTS, about | {"sets": {each: found[each] for each in SETS if each in found}})


if __name__ == "__main__":
    main()
