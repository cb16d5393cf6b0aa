"""What the benchmarks have in common: the machine that they ran on, and the file of their results."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tarfile
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from helpers.machine.hardware import cpu_name
from helpers.run import provenance

# Huge pages for torch on a CPU, as in the notebooks (helpers/machine/runtime.py); torch reads it when it is loaded.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

ROOT = Path(__file__).resolve().parents[1]


def machine(device: str, packages: Sequence[str] = ()) -> dict:
    """What it is and how busy, with the versions of `packages`; torch is loaded only where it is one of them."""
    found = {"device": cpu_name(), "cpus": os.cpu_count()}
    if "torch" in packages:
        import torch

        found["device"] = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
        found["threads"] = torch.get_num_threads()
        found |= {name: os.environ.get(name) for name in ("OMP_NUM_THREADS", "THP_MEM_ALLOC_ENABLE")}
    versions = {name: metadata.version(name) for name in packages}
    return found | {"load_average_before": load_average(), "python": platform.python_version(), **versions}


def source_archive(pin: str, folder: Path) -> Path:
    """The unpacked source archive of a package, `name==version`, in a folder of its own; it is fetched once."""
    if not folder.is_dir():
        folder.mkdir(parents=True)
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", pin.partition("==")[0]]
        subprocess.run([*pip, "-d", str(folder), pin], check=True)
        with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
            packed.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def kept(file: Path, make: Callable[[], Any]) -> Any:
    """What `make` returns, as JSON; from the file where it is there."""
    if not file.is_file():
        made = json.dumps(make())
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made, encoding="utf-8")
        print(file.name, flush=True)
    return json.loads(file.read_text(encoding="utf-8"))


def load_average() -> float:
    """Processes that want a CPU, over the last minute: above `threads`, others were running."""
    return round(os.getloadavg()[0], 2)


def commit() -> str | None:
    """The commit of this checkout, with `+` if files differ from it."""
    command = ["git", "-C", str(ROOT), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):  # no git, or no checkout
        return None


def write(output: Path, machine: dict, **parts) -> None:
    """`machine`, with how busy it is now, code and versions, and the parts, as JSON; what was there is replaced at once."""
    report = {
        "machine": machine | {"load_average_after": load_average()},
        "code": provenance.code() | {"commit": commit()},
        "versions": provenance.versions(),
        **parts,
    }
    output.parent.mkdir(parents=True, exist_ok=True)
    written = output.with_name(f".{output.name}")
    written.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    written.replace(output)
