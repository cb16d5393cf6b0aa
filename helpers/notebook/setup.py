"""Installs what a notebook lacks, and keeps what its runtime came with.

Colab and Kaggle ship a torch built for their driver, with torchvision and torch_xla built for that torch. A plain
`pip install` of a package that needs another version replaces it under a kernel that may have it loaded; with a
constraints file of the installed versions pip refuses instead. torch and torch_xla are never upgraded.

Imports only the standard library, since this runs before anything is installed.
"""

import importlib
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HELD = ("torch", "torch_xla", "torchvision", "torchaudio", "numpy", "pandas", "pyarrow", "pillow")


def version(name: str) -> str | None:
    """Version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def install(requirements: str) -> None:
    """Installs those `requirements` that are absent or out of range; needs no network if there are none.

    requirements: specifiers without spaces, extras and markers.

    An installed package of HELD is kept, and an absent torch_xla is left out where it does not fit the installed torch; a line says so.

    Raises RuntimeError if pip is absent or fails.
    """
    from packaging.requirements import Requirement

    torch = version("torch")
    missing = []
    for line in requirements.split():
        requirement = Requirement(line)
        name, fits = requirement.name, requirement.specifier.contains
        installed = version(name)
        if installed and fits(installed, prereleases=True):
            continue
        if installed and name in HELD:
            print(f"{name} {installed} is kept; this notebook was tested with {requirement}")
        elif name == "torch_xla" and torch and not fits(torch, prereleases=True):
            print(
                f"{requirement} does not fit the installed torch {torch}: left out, so this run uses the GPU or the CPU"
            )
        else:
            missing.append(line)
    if not missing:
        return
    print(f"installing {', '.join(missing)}")
    pins = [f"{name}=={version(name)}" for name in HELD if version(name)]
    with tempfile.TemporaryDirectory() as folder:
        constraints = Path(folder, "constraints.txt")
        constraints.write_text("\n".join(pins), encoding="utf-8")
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "-c", str(constraints)]
        command = [sys.executable, "-m", "pip", "install", *options, *missing]
        pip = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
    if pip.returncode:
        raise RuntimeError(
            f"pip could not install {', '.join(missing)} beside {', '.join(pins)}:\n{pip.stdout[-2000:]}\nNo network, or no pip? On "
            "Kaggle switch Internet on (Settings); elsewhere install requirements-gpu.txt (TPU: requirements-tpu.txt) beforehand. "
            "A conflict of versions? Restart the runtime and run this cell first; if it stays, choose a newer runtime."
        )
    importlib.invalidate_caches()
