"""Runs of tests/lejepa_run.py by their options."""

import functools

import pytest

from tests import harness

run = functools.partial(harness.train, "tests.lejepa_run")


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Results of runs by their options; each runs once."""

    @functools.cache
    def of(**options) -> dict:
        return harness.result(run(tmp_path_factory.mktemp("run"), **options))

    return of
