import pytest

from . import batches


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The folder of a small library of sources."""
    return batches.library(tmp_path_factory.mktemp("library"))
