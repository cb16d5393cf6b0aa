import pytest

from . import batches


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Where definitions are kept between two questions."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache/graphmer"


@pytest.fixture(scope="module")
def parser():
    pytest.importorskip("tree_sitter_java", reason="needs pip install tree-sitter tree-sitter-java")


@pytest.fixture(scope="session")
def library(tmp_path_factory):
    """The folder of a small library of sources."""
    return batches.library(tmp_path_factory.mktemp("library"))
