"""Which code and which libraries produced a result."""

import platform
from importlib import metadata

import helpers

LIBRARIES = ("torch", "torch_xla", "transformers", "accelerate", "trl", "peft", "sentence-transformers", "datasets")


def code() -> dict[str, str | None]:
    """Version of the helpers and, in a notebook, sha256 of its payload."""
    return {"helpers_version": helpers.__version__, "payload_sha256": getattr(helpers, "payload_sha256", None)}


def versions() -> dict[str, str]:
    """Versions of Python and of the installed libraries that take part in training."""
    versions = {"python": platform.python_version()}
    for distribution in metadata.distributions():
        if distribution.name in LIBRARIES:
            versions[distribution.name] = distribution.version
    return versions
