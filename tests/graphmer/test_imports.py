"""Which file an import means: in trees of every kind that people have, and beside Python itself, which runs them."""

import importlib
import importlib.machinery
import random
from pathlib import Path

import pytest

from helpers.graphmer.graph.imports import Imports, module_path
from helpers.graphmer.graph.repository import load_graph
from tests.harness import printed, write

pytestmark = pytest.mark.once


def calls(folder: Path, files: dict[str, str]) -> dict[str, set[str]]:
    """File -> the files and functions that it calls, as `file:function`; those that are open as `?:function`."""
    graph = load_graph(write(folder, files))
    paths = {file["module"]: file["path"] for file in graph.manifest["files"]}
    found: dict[str, set[str]] = {path: set() for path in paths.values()}
    for head, relation, tail in graph.triples:
        if relation == "calls":
            callee = graph.entities[tail]
            place = paths[callee.module] if callee.status == "defined" else "?" if tail[:2] == "?." else tail
            found[paths[graph.entities[head].module]].add(f"{place}:{callee.name}" if place != tail else tail)
    return found


def application(folder: str) -> dict[str, str]:
    return {
        f"{folder}/app/__init__.py": "",
        f"{folder}/app/models.py": f"def build():\n    return {folder!r}\n",
        f"{folder}/app/views.py": "from app.models import build\n\n\ndef show():\n    return build()\n",
        f"{folder}/app/relative.py": "from .models import build\n\nbuild()\n",
        f"{folder}/app/whole.py": "import app.models\n\napp.models.build()\n",
        f"{folder}/run.py": "from app import views\n\nprint(views.show())\n",
        f"{folder}/tests/test_views.py": "from app.views import show\n\nshow()\n",
    }


ONE, TWO = application("services/a"), application("services/b")


def test_each_of_two_applications_with_packages_of_one_name_calls_its_own(tmp_path):
    found = calls(tmp_path, ONE | TWO)
    for each in ("services/a", "services/b"):
        for file in ("views", "relative", "whole"):
            assert found[f"{each}/app/{file}.py"] == {f"{each}/app/models.py:build"}
        assert f"{each}/app/views.py:show" in found[f"{each}/run.py"]
        assert found[f"{each}/tests/test_views.py"] == {f"{each}/app/views.py:show"}
        assert printed("run.py", cwd=tmp_path / each).strip() == each
    graph = load_graph(tmp_path)  # in which their modules have ids that say their folders
    for each in ("a", "b"):
        assert graph.place(graph.entities[f"services.{each}.app.models.build"]) == f"services/{each}/app/models.py:1"
    triples = {(head, tail) for head, relation, tail in graph.triples if relation == "contains"}
    assert ("services.a.app", "services.a.app.models") in triples


SIBLINGS = {
    "x/main.py": "import utils\n\nutils.mend()\n",
    "x/utils.py": "def mend(): print('x')\n",
    "y/main.py": "from utils import mend\n\nmend()\n",
    "y/utils.py": "def mend(): print('y')\n",
}


def test_a_script_imports_its_siblings(tmp_path):
    found = calls(tmp_path, SIBLINGS)
    for each in ("x", "y"):
        assert found[f"{each}/main.py"] == {f"{each}/utils.py:mend"}
        assert printed(f"{each}/main.py", cwd=tmp_path).strip() == each


def test_a_package_that_two_folders_have_is_not_proved(tmp_path):
    files = {f"{folder}/src/shop/__init__.py": "" for folder in "ab"}
    files["a/src/shop/goods.py"] = "def find(): pass\n"
    files["tests/test_goods.py"] = "from shop.goods import find\nfind()\n"
    assert calls(tmp_path, files)["tests/test_goods.py"] == {"?:find"}


@pytest.mark.parametrize(
    ("files", "user", "expected"),
    [
        pytest.param(
            {"src/shop/__init__.py": "", "src/shop/goods.py": "def find(): pass\n",
             "tests/test_goods.py": "from shop.goods import find\nfind()\n"},
            "tests/test_goods.py", "src/shop/goods.py:find", id="a src layout, from its tests",
        ),
        pytest.param(
            {"libs/c/pyproject.toml": "", "libs/c/src/common/__init__.py": "def log(): pass\n",
             "services/a/app/__init__.py": "", "services/a/app/views.py": "from common import log\nlog()\n"},
            "services/a/app/views.py", "libs/c/src/common/__init__.py:log", id="a library of the same repository",
        ),
        pytest.param(
            {"company/team/tools.py": "def mend(): pass\n", "use.py": "from company.team import tools\ntools.mend()\n"},
            "use.py", "company/team/tools.py:mend", id="a namespace package",
        ),
        pytest.param(
            {"company/team/tools.py": "def mend(): pass\n", "use.py": "import company.team.tools\ncompany.team.tools.mend()\n"},
            "use.py", "company/team/tools.py:mend", id="a namespace package by its whole name",
        ),
        pytest.param(
            {"company/team/tools.py": "def mend(): pass\n", "company/team/use.py": "from .tools import mend\nmend()\n"},
            "company/team/use.py", "company/team/tools.py:mend", id="a relative import of a namespace package",
        ),
        pytest.param(
            {"libs/a/src/company/a/m.py": "from company.b.n import g\ng()\n", "libs/b/src/company/b/n.py": "def g(): pass\n"},
            "libs/a/src/company/a/m.py", "libs/b/src/company/b/n.py:g", id="a namespace package of two folders",
        ),
        pytest.param(
            {"pkg/__init__.py": "from .impl import run\n", "pkg/impl.py": "def run(): pass\n", "use.py": "import pkg\npkg.run()\n"},
            "use.py", "pkg/impl.py:run", id="a name that a package passes on",
        ),
        pytest.param(
            {"pkg/__init__.py": "", "pkg/deep/__init__.py": "", "pkg/deep/m.py": "from ..top import go\ngo()\n",
             "pkg/top.py": "def go(): pass\n"},
            "pkg/deep/m.py", "pkg/top.py:go", id="a relative import of the package above",
        ),
        pytest.param(
            {"tests/helper.py": "def help_(): pass\n", "tests/deep/test_a.py": "from helper import help_\nhelp_()\n"},
            "tests/deep/test_a.py", "tests/helper.py:help_", id="a helper of the folder above",
        ),
        pytest.param(
            {"json.py": "def dumps(): pass\n", "use.py": "import json\njson.dumps()\n"},
            "use.py", "json.py:dumps", id="a file beside a script hides the standard library's",
        ),
        pytest.param(
            SIBLINGS | {"z/main.py": "import utils\n\nutils.mend()\n"},
            "z/main.py", "?:mend", id="a script of another folder is not foreign",
        ),
        pytest.param(
            {"tools/json.py": "def dumps(): pass\n", "use.py": "import json\njson.dumps()\n"},
            "use.py", "json.dumps", id="a file of another folder hides no standard library",
        ),
        pytest.param(
            {"pkg/__init__.py": "", "pkg/m.py": "import numpy as np\nnp.sum()\n"}, "pkg/m.py", "numpy.sum", id="an installed package",
        ),
        pytest.param(
            {"pkg/__init__.py": "", "pkg/m.py": "from ._fast import add\nadd()\n"}, "pkg/m.py", "pkg._fast.add", id="compiled code",
        ),
        pytest.param(
            {"pkg/__init__.py": "", "pkg/m.py": "from ...other import f\nf()\n", "other.py": "def f(): pass\n"},
            "pkg/m.py", "?:f", id="a relative import out of the outermost package",
        ),
        pytest.param(
            {"third/pkg/__init__.py": "def f(): pass\n", "app/use.py": "import pkg\npkg.f()\n"},
            "app/use.py", "?:f", id="a package of a folder that nothing says is installed",
        ),
        pytest.param(
            {"tests/data/requests/pyproject.toml": "", "tests/data/requests/requests/__init__.py": "def get(): pass\n",
             "app/use.py": "import requests\nrequests.get()\n"},
            "app/use.py", "?:get", id="a package that the tests bring",
        ),
    ],
)  # fmt: skip
def test_an_import_is_followed_in_every_layout_and_what_the_sources_do_not_prove_is_not_known(
    tmp_path, files, user, expected
):
    assert calls(tmp_path, files)[user] == {expected}


def test_a_script_beside_a_package_of_its_name_is_read_and_never_imported(tmp_path):
    files = {"shop.py": "def f(): pass\nf()\n", "shop/__init__.py": "def f(): pass\n"}
    assert calls(tmp_path, files | {"use.py": "import shop\nshop.f()\n"}) == {
        "shop.py": {"shop.py:f"},
        "shop/__init__.py": set(),
        "use.py": {"shop/__init__.py:f"},
    }


def test_a_package_by_itself_has_the_names_that_imports_use(tmp_path):
    files = {"__init__.py": "", "goods.py": "from shop.tills import pay\npay()\n", "tills.py": "def pay(): pass\n"}
    graph = load_graph(write(tmp_path / "shop", files))
    assert ("shop.goods", "calls", "shop.tills.pay") in graph.triples
    assert graph.place(graph.entities["shop.tills.pay"]) == "tills.py:1"


def origin(root: Path, name: str) -> str | None:
    """The file that Python itself finds for `import name` from a folder; None for no file."""
    path, spec = [str(root)], None
    for part in name.split("."):
        spec = importlib.machinery.PathFinder.find_spec(part, path)
        if spec is None:
            return None
        path = list(spec.submodule_search_locations or [])
    return spec.origin


@pytest.mark.parametrize("seed", range(12))
def test_what_python_finds_from_the_files_own_folder_is_found(seed, tmp_path):
    draw, names = random.Random(seed), ("alpha", "beta", "utils", "src", "lib")
    files = {"/".join((*draw.choices(names, k=draw.randint(0, 3)), f"{draw.choice(names[:3])}.py")) for _ in range(9)}
    packages = {file.rpartition("/")[0] for file in files if draw.random() < 0.5} - {""}
    write(tmp_path, dict.fromkeys((*files, *(f"{folder}/__init__.py" for folder in packages)), ""))
    imports = Imports([path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.py")], [])
    importlib.invalidate_caches()
    for file in files:
        path = module_path(file)
        for name in (*names[:3], *(".".join(draw.choices(names, k=2)) for _ in range(6))):
            truth = origin(tmp_path / imports.root(path), name)
            if truth:
                assert imports.find(name, path) == module_path(Path(truth).relative_to(tmp_path).as_posix())
