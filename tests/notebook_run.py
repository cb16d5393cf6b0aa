"""Moved to tests/harness.py; goes when nothing imports it any more."""

from tests.harness import NOTEBOOKS, ROOT, assert_refuses, refused, text_of  # noqa: F401
from tests.harness import run_notebook as run  # noqa: F401
