import pytest

from . import notebook as small


@pytest.fixture
def notebook(tmp_path):
    return small.write(tmp_path / "tiny.ipynb")
