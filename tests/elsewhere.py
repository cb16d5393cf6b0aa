"""Moved to tests/harness.py; goes when nothing imports it any more."""

from tests.harness import elsewhere as answers  # noqa: F401
