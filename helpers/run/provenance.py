"""Which code and which libraries produced a result."""

from __future__ import annotations

import platform
from importlib import metadata

import helpers

LIBRARIES = ("torch", "torch_xla", "transformers", "accelerate", "trl", "peft", "sentence-transformers", "datasets")


def code() -> dict[str, str | None]:
    """Version of the helpers and, in a notebook, sha256 of its payload."""
    return {"helpers_version": helpers.__version__, "payload_sha256": getattr(helpers, "payload_sha256", None)}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that take part in training."""
    installed = {distribution.name: distribution.version for distribution in metadata.distributions()}
    return {"python": platform.python_version()} | {name: installed[name] for name in LIBRARIES if name in installed}
