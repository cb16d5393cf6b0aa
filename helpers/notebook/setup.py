"""Installs what a notebook lacks, and keeps what its runtime came with.

Colab and Kaggle ship a torch built for their driver, with torchvision and torch_xla built for that torch. A plain
`pip install` of a package that needs another version replaces it under a kernel that may have it loaded; with a
constraints file of the installed versions pip refuses instead. torch and torch_xla are never upgraded.

Imports only the standard library, since this runs before anything is installed.
"""

import importlib
import re
import subprocess
import sys
import tempfile
import warnings
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packaging.requirements import Requirement

NEVER_MOVED = ("torch", "torch-xla")
HELD_WHEN_INSTALLED = ("torch", "torchvision", "torchaudio", "torch_xla", "numpy")
HELD_WHEN_LOADED = {"pyarrow": "pyarrow", "pandas": "pandas", "PIL": "pillow"}  # module: distribution
PIP_TAIL_LINES = 15


def install(requirements: str) -> list[str]:
    """Installs those `requirements` that are absent or out of range; needs no network if there are none.

    requirements: one specifier in each line, without extras and markers, as in requirements-gpu.txt.

    Returns what was installed for them, as `name==version`. An installed torch or torch_xla is kept, with a warning if it
    is out of range. An absent torch_xla is left out, with a warning, if it does not fit the installed torch.

    Raises ValueError for a line that is no requirement; RuntimeError if pip is absent or fails, or changed a package
    that this kernel has loaded.
    """
    missing, complaints = _missing(requirements)
    for complaint in complaints:
        warnings.warn(complaint, stacklevel=2)
    if not missing:
        return []
    specifiers = [*map(str, missing)]
    print(f"installing {', '.join(specifiers)}")
    loaded = _loaded()
    _run_pip(specifiers, _constraints())
    importlib.invalidate_caches()
    moved = []
    for name, before in loaded.items():
        if version(name) != before:
            moved.append(f"{name} {before} to {version(name)}")
    if moved:
        raise RuntimeError(
            f"pip changed {', '.join(moved)}, loaded in this kernel: restart the runtime and run all cells again."
        )
    installed = [f"{requirement.name}=={metadata.version(requirement.name)}" for requirement in missing]
    print(f"installed {', '.join(installed)}")
    return installed


def version(name: str) -> str | None:
    """Version of a distribution, or None if it is not installed."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _missing(requirements: str) -> tuple[list["Requirement"], list[str]]:
    """What pip must install, and a warning for each package that is out of range but kept."""
    from packaging.requirements import Requirement

    torch = version("torch")
    missing, complaints = [], []
    for line in re.sub(r"(^|\s)#.*", "", requirements, flags=re.MULTILINE).splitlines():
        if not line.strip():
            continue
        requirement = Requirement(line.strip())
        installed = version(requirement.name)
        never_moved = requirement.name.lower().replace("_", "-") in NEVER_MOVED
        if installed is not None and requirement.specifier.contains(installed, prereleases=True):
            continue
        if never_moved and installed:
            complaints.append(
                f"{requirement.name} {installed} is installed; this notebook was tested with "
                f"{requirement.name}{requirement.specifier}. It is kept: moving it would break the runtime."
            )
        elif never_moved and torch and not requirement.specifier.contains(torch, prereleases=True):
            complaints.append(
                f"{requirement.name} is not installed, and {requirement} does not fit the installed torch {torch}: "
                f"left out, so this run uses the GPU or the CPU. For a TPU choose a TPU runtime."
            )
        else:
            missing.append(requirement)
    return missing, complaints


def _constraints() -> list[str]:
    loaded = [distribution for module, distribution in HELD_WHEN_LOADED.items() if module in sys.modules]
    constraints = []
    for name in (*HELD_WHEN_INSTALLED, *loaded):
        installed = version(name)
        if installed:
            constraints.append(f"{name}=={installed}")
    return constraints


def _run_pip(specifiers: list[str], constraints: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "constraints.txt")
        file.write_text("\n".join(constraints) + "\n", encoding="utf-8")
        options = ["--quiet", "--no-input", "--disable-pip-version-check", "-c", str(file)]
        pip = subprocess.run(
            [sys.executable, "-m", "pip", "install", *options, *specifiers],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
        )
    if pip.returncode:
        tail = "\n".join(pip.stdout.splitlines()[-PIP_TAIL_LINES:])
        raise RuntimeError(
            f"pip could not install {', '.join(specifiers)} (exit code {pip.returncode}) "
            f"with {', '.join(constraints) or 'nothing'} unchanged:\n{tail}\n"
            "No network, or no pip? On Kaggle switch Internet on (Settings); elsewhere install requirements-gpu.txt "
            "(TPU: requirements-tpu.txt) beforehand. A conflict of versions? Restart the runtime and run this "
            "cell first; if it stays, choose a newer runtime."
        )


def _loaded() -> dict[str, str]:
    """Version of each distribution that is imported; not of those that share a top-level name, such as `google`."""
    versions = {}
    for module, owners in metadata.packages_distributions().items():
        name = owners[0]  # "" of what an interrupted pip left
        if name and module in sys.modules and len({*owners}) == 1:
            versions[name] = metadata.version(name)
    return versions
