"""Runs the core tests at the ends of our version ranges and at Colab's: `make versions` writes docs/results/versions.json.

    python tests/versions.py                    every set
    python tests/versions.py floor colab        some
    python tests/versions.py images             what the setup cell would move on Colab's runtimes, by resolution alone (seconds)

uv resolves each set (`lowest-direct` is the lowest release of each of our requirements that fits all others), pip
installs it into an environment of its own under .versions/, and pytest runs there.
"""

import argparse
import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Sequence
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.notebook.setup import HELD_WHEN_INSTALLED  # noqa: E402
from helpers.run import provenance  # noqa: E402

ENVIRONMENTS = ROOT / ".versions"
RESULTS = ROOT / "docs/results/versions.json"
IMAGES = "images"
CORE = (
    "private_names",
    "parameters",
    "run_folder",
    "checkpoint",
    "resume",
    "interruption",
    "failures",
    "counting",
    "plan",
    "arrows",
)
# googlecolab/backend-info @ a724079 (2026-08-19), pip-freeze.gpu.txt and pip-freeze.tpu.txt: what a runtime comes with of all that our
# requirements lead to. Where torch has a build of its own (+cu128, +cpu), the one of the index stands in its place.
COLAB = {
    "gpu": [
        "accelerate==1.14.0",
        "aiohappyeyeballs==2.7.1",
        "aiohttp==3.14.3",
        "aiosignal==1.4.0",
        "annotated-doc==0.0.5",
        "annotated-types==0.8.0",
        "anyio==4.14.2",
        "attrs==26.1.0",
        "backcall==0.2.0",
        "certifi==2026.7.22",
        "charset-normalizer==3.4.9",
        "click==8.4.2",
        "contourpy==1.3.3",
        "cycler==0.12.1",
        "datasets==4.0.0",
        "debugpy==1.8.15",
        "decorator==4.4.2",
        "dill==0.3.8",
        "entrypoints==0.4",
        "fastjsonschema==2.22.2",
        "filelock==3.32.3",
        "fonttools==4.63.0",
        "frozenlist==1.8.0",
        "fsspec==2025.3.0",
        "h11==0.16.0",
        "hf-xet==1.6.0",
        "httpcore==1.0.9",
        "httpx==0.28.1",
        "huggingface-hub==1.27.0",
        "idna==3.18",
        "ipykernel==6.17.1",
        "ipython==7.34.0",
        "jinja2==3.1.6",
        "joblib==1.5.3",
        "jsonschema==4.26.0",
        "jsonschema-specifications==2025.9.1",
        "jupyter-client==7.4.9",
        "jupyter-core==5.9.1",
        "kiwisolver==1.5.0",
        "markdown-it-py==4.2.0",
        "markupsafe==3.0.3",
        "matplotlib==3.10.0",
        "matplotlib-inline==0.2.2",
        "mdurl==0.1.2",
        "mpmath==1.3.0",
        "multidict==6.7.1",
        "multiprocess==0.70.16",
        "nbclient==0.10.4",
        "nbformat==5.11.1",
        "nest-asyncio==1.6.0",
        "networkx==3.6.1",
        "numpy==2.1.3",
        "nvidia-ml-py==13.610.43",
        "packaging==26.3",
        "pandas==2.2.3",
        "parso==0.8.7",
        "peft==0.20.0",
        "pexpect==4.9.0",
        "pickleshare==0.7.5",
        "pillow==11.3.0",
        "platformdirs==4.11.3",
        "prompt-toolkit==3.0.53",
        "propcache==0.5.2",
        "protobuf==5.29.6",
        "psutil==5.9.5",
        "ptyprocess==0.7.0",
        "pyarrow==18.1.0",
        "pydantic==2.13.4",
        "pydantic-core==2.46.4",
        "pygments==2.21.0",
        "pyparsing==3.3.2",
        "python-dateutil==2.9.0.post0",
        "pytz==2025.2",
        "pyyaml==6.0.3",
        "pyzmq==26.2.1",
        "referencing==0.37.0",
        "regex==2025.11.3",
        "requests==2.32.4",
        "rich==13.9.4",
        "rpds-py==2026.6.3",
        "safetensors==0.8.0",
        "scikit-learn==1.6.1",
        "scipy==1.16.3",
        "sentence-transformers==5.7.0",
        "sentry-sdk==2.68.0",
        "setuptools==75.2.0",
        "shellingham==1.5.4",
        "six==1.17.0",
        "sympy==1.14.0",
        "tenacity==9.1.4",
        "threadpoolctl==3.6.0",
        "tokenizers==0.22.2",
        "torch==2.11.0",
        "torchaudio==2.11.0",
        "torchvision==0.26.0",
        "tornado==6.5.7",
        "tqdm==4.67.3",
        "traitlets==5.7.1",
        "transformers==5.15.0",
        "typer==0.27.1",
        "typing-extensions==4.16.0",
        "typing-inspection==0.4.4",
        "tzdata==2026.3",
        "urllib3==2.5.0",
        "wandb==0.28.1",
        "wcwidth==0.8.2",
        "xxhash==4.0.1",
        "yarl==1.24.5",
    ],
    "tpu": [
        "absl-py==1.4.0",
        "accelerate==1.14.0",
        "aiohappyeyeballs==2.7.1",
        "aiohttp==3.14.3",
        "aiosignal==1.4.0",
        "annotated-doc==0.0.5",
        "annotated-types==0.8.0",
        "anyio==4.14.2",
        "attrs==26.1.0",
        "backcall==0.2.0",
        "certifi==2026.7.22",
        "charset-normalizer==3.4.9",
        "click==8.4.2",
        "contourpy==1.3.3",
        "cycler==0.12.1",
        "datasets==4.8.5",
        "debugpy==1.8.15",
        "decorator==5.3.1",
        "dill==0.4.1",
        "distro==1.9.0",
        "entrypoints==0.4",
        "fastjsonschema==2.22.2",
        "filelock==3.32.3",
        "fonttools==4.63.0",
        "frozenlist==1.8.0",
        "fsspec==2026.2.0",
        "googleapis-common-protos==1.75.1",
        "h11==0.16.0",
        "hf-xet==1.6.0",
        "httpcore==1.0.9",
        "httpx==0.28.1",
        "huggingface-hub==1.27.0",
        "idna==3.18",
        "ipykernel==6.17.1",
        "ipython==7.34.0",
        "jinja2==3.1.6",
        "joblib==1.5.3",
        "jsonschema==4.26.0",
        "jsonschema-specifications==2025.9.1",
        "jupyter-client==7.4.9",
        "jupyter-core==5.9.1",
        "kiwisolver==1.5.0",
        "markdown-it-py==4.2.0",
        "markupsafe==3.0.3",
        "matplotlib==3.10.0",
        "matplotlib-inline==0.2.2",
        "mdurl==0.1.2",
        "mpmath==1.3.0",
        "multidict==6.7.1",
        "multiprocess==0.70.19",
        "nbclient==0.10.4",
        "nbformat==5.11.1",
        "nest-asyncio==1.6.0",
        "networkx==3.6.1",
        "numpy==2.1.3",
        "packaging==26.3",
        "pandas==2.2.3",
        "parso==0.8.7",
        "pexpect==4.9.0",
        "pickleshare==0.7.5",
        "pillow==12.3.0",
        "platformdirs==4.11.3",
        "prompt-toolkit==3.0.53",
        "propcache==0.5.2",
        "protobuf==7.35.1",
        "psutil==5.9.5",
        "ptyprocess==0.7.0",
        "pyarrow==25.0.1",
        "pydantic==2.13.4",
        "pydantic-core==2.46.4",
        "pygments==2.21.0",
        "pyparsing==3.3.2",
        "python-dateutil==2.9.0.post0",
        "pytz==2026.3.post1",
        "pyyaml==6.0.3",
        "pyzmq==26.2.1",
        "referencing==0.37.0",
        "regex==2026.7.19",
        "requests==2.32.4",
        "rich==15.0.0",
        "rpds-py==2026.6.3",
        "safetensors==0.8.0",
        "scikit-learn==1.6.1",
        "scipy==1.16.3",
        "setuptools==75.2.0",
        "shellingham==1.5.4",
        "six==1.17.0",
        "sniffio==1.3.1",
        "sympy==1.14.0",
        "tenacity==9.1.4",
        "threadpoolctl==3.6.0",
        "tokenizers==0.22.2",
        "torch==2.9.0",
        "torch-xla==2.9.0",
        "torchaudio==2.9.0",
        "torchvision==0.24.0",
        "tornado==6.5.7",
        "tqdm==4.67.3",
        "traitlets==5.7.1",
        "transformers==5.15.0",
        "typer==0.27.1",
        "typing-extensions==4.16.0",
        "typing-inspection==0.4.4",
        "tzdata==2026.3",
        "urllib3==2.5.0",
        "wcwidth==0.8.2",
        "xxhash==4.0.1",
        "yarl==1.24.5",
    ],
}
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
    file.write_text("\n".join(installed) + "\n", encoding="utf-8")  # uv keeps what the file that it writes has
    held = [pin for pin in installed if pin.split("==")[0].replace("-", "_") in HELD_WHEN_INSTALLED]
    constraints = file.with_suffix(".held")
    constraints.write_text("\n".join(held) + "\n", encoding="utf-8")
    uv = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--no-annotate", "--no-header", *options]
    uv += ["--resolution", resolution, "--constraints", str(constraints), "-o", str(file)]
    call(*uv, str(ROOT / f"requirements-{which}.txt"))
    return dict(line.split("==") for line in file.read_text(encoding="utf-8").splitlines() if "==" in line)


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
    kept = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {"sets": {}}
    about = {"code": provenance.code(), "versions": provenance.versions()}
    for name in chosen:
        if name == IMAGES:
            kept[IMAGES] = {which: [moved_on(which, python) for python in PYTHONS] for which in COLAB}
        else:
            found = kept["sets"] | {name: run(name)}
            kept |= about | {"sets": {each: found[each] for each in SETS if each in found}}
        RESULTS.write_text(json.dumps(kept, indent=1) + "\n", encoding="utf-8")
    return int(any(kept["sets"][name]["failed"] for name in chosen if name != IMAGES))


if __name__ == "__main__":
    sys.exit(main())
