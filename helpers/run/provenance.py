"""Which code and which libraries produced a result."""

from __future__ import annotations

import hashlib
import platform
import subprocess
from pathlib import Path

import helpers
from helpers.notebook.setup import version

LIBRARIES = ("torch", "torch_xla", "transformers", "accelerate", "trl", "peft", "sentence-transformers", "datasets")


def code() -> dict[str, str | None]:
    """Version and sha256 of the helpers, and in a checkout the commit, with `+` if files differ from it."""
    return {"helpers_version": helpers.__version__, "payload_sha256": payload(), "commit": _commit()}


def payload() -> str:
    """sha256 of the notebook's payload; outside a notebook, of all modules of the checkout."""
    digest_of_payload = getattr(helpers, "payload_sha256", "")
    if digest_of_payload:
        return digest_of_payload
    root, digest = Path(helpers.__file__).resolve().parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        name = path.relative_to(root.parent).as_posix()
        digest.update(name.encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that take part in training."""
    installed = {"python": platform.python_version()}
    for name in LIBRARIES:
        number = version(name)
        if number:
            installed[name] = number
    return installed


def _commit() -> str | None:
    root = Path(helpers.__file__).resolve().parents[1]
    if not (root / ".git").exists():
        return None
    git = ["git", "--no-optional-locks", "-C", str(root), "status", "--porcelain=v2", "--branch", "helpers"]
    try:
        lines = subprocess.run(git, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return None
    commit = lines[0].removeprefix("# branch.oid ")
    if all(line.startswith("#") for line in lines):
        return commit
    return f"{commit}+"
