"""helpers.notebook.unpacking: a user's own `helpers`."""

import importlib
import sys

import pytest

from helpers.notebook import unpacking

pytestmark = pytest.mark.once

FILES = {"helpers/__init__.py": "here = 1\n", "helpers/data.json": "{}\n"}


@pytest.mark.parametrize("name", ["helpers.py", "helpers/__init__.py"])
@pytest.mark.parametrize("imported", [True, False])
def test_a_module_of_the_user_that_is_called_helpers_stays_and_is_named(name, imported, tmp_path, monkeypatch):
    (mine := tmp_path / name).parent.mkdir(exist_ok=True)
    mine.write_text("def clean(text):\n    return text.strip()\n")
    ours = [module for module in sys.modules if module.partition(".")[0] == "helpers"]
    for module in ours:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    loaded = importlib.import_module("helpers") if imported else None
    path = list(sys.path)
    with pytest.raises(RuntimeError, match=rf"{mine} is a module of yours.*rename yours"):
        unpacking.use(FILES, 64 * "a", {})
    assert (sys.modules.get("helpers"), sys.path) == (loaded, path)
