"""helpers.notebook.setup in throwaway environments: real pip, against wheels that are built here."""

import json
import os
import venv
import zipfile
from importlib import metadata, util
from pathlib import Path

import pytest

from tests.harness import ROOT, finished

pytestmark = pytest.mark.once

INSTALL = """
import json, sys, warnings
for module in {loaded!r}:
    __import__(module)
from helpers.notebook.setup import install
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    try:
        returned, error = install({requirements!r}), None
    except Exception as raised:
        returned, error = None, f"{{type(raised).__name__}}: {{raised}}"
importable = []
for module in {expected!r}:
    __import__(module)
    importable.append(module)
print("\\n" + json.dumps(dict(returned=returned, error=error, importable=importable,
                            warnings=[str(warning.message) for warning in caught])))
"""


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = (), module: str = "") -> Path:
    module, info = module or name, f"{name}-{version}.dist-info"
    files = {
        f"{module}/__init__.py": f'__version__ = "{version}"\n',
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
        + "".join(f"Requires-Dist: {line}\n" for line in requires),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, content in files.items():
            archive.writestr(path, content)
    return wheel


class Environment:
    """A virtual environment with `packaging`, pip, and an index of local wheels in place of the network."""

    def __init__(self, folder: Path, pip: bool = True):
        venv.create(folder / "venv", with_pip=False, symlinks=True)
        self.python = folder / "venv/bin/python"
        self.site_packages = next((folder / "venv").glob("lib/python*/site-packages"))
        self.index = folder / "index"
        self.index.mkdir()
        for name in ["packaging"] + ["pip"] * pip:
            (self.site_packages / name).symlink_to(Path(util.find_spec(name).origin).parent)

    def offer(self, name: str, version: str, requires: tuple[str, ...] = ()) -> None:
        write_wheel(self.index, name, version, requires)

    def preinstall(self, name: str, version: str, module: str = "") -> None:
        zipfile.ZipFile(write_wheel(self.index, name, version, module=module)).extractall(self.site_packages)

    def install(self, requirements: str, *, loaded: tuple[str, ...] = (), expected: tuple[str, ...] = ()) -> dict:
        code = INSTALL.format(requirements=requirements, loaded=loaded, expected=expected)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        environment |= {"PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        answered = finished(self.python, "-c", code, env=environment)
        assert answered.returncode == 0, answered.stderr
        return json.loads(answered.stdout.splitlines()[-1])

    def version(self, name: str) -> str | None:
        found = list(metadata.distributions(name=name, path=[str(self.site_packages)]))
        assert len(found) <= 1
        return found[0].version if found else None


@pytest.fixture
def environment(tmp_path):
    return Environment(tmp_path)


def test_nothing_missing_runs_no_pip(tmp_path):
    without_pip = Environment(tmp_path, pip=False)
    without_pip.preinstall("small", "1.5")
    without_pip.preinstall("torch", "2.11.0+cu128")
    outcome = without_pip.install("# a comment\n\nsmall>=1.4,<2  # in range\ntorch>=2.9,<2.14")
    assert outcome == {"returned": [], "error": None, "importable": [], "warnings": []}


def test_missing_and_too_old_packages_are_installed_and_importable_at_once(environment):
    environment.offer("small", "1.5")
    environment.offer("small", "2.0")
    environment.offer("other", "3.0")
    environment.preinstall("other", "2.0")
    environment.preinstall("kept", "1.0")
    environment.offer("kept", "1.1")
    outcome = environment.install("small>=1.4,<2\nother>=3\nkept>=1", expected=("small", "other"))
    assert outcome["error"] is None
    assert outcome["returned"] == ["small==1.5", "other==3.0"]
    assert outcome["importable"] == ["small", "other"]
    assert environment.version("kept") == "1.0"


def test_a_package_that_wants_a_newer_runtime_fails_and_moves_nothing(environment):
    held = ["torch", "torchvision", "torchaudio", "torch_xla", "numpy"]
    for name in held:
        environment.preinstall(name, "2.11.0+cu128")
        environment.offer(name, "3.0")
        environment.offer(f"greedy_{name}", "1.0", requires=(f"{name}>=3",))
        outcome = environment.install(f"greedy_{name}>=1")
        assert outcome["error"].startswith(f"RuntimeError: pip could not install greedy_{name}>=1")
        assert f"{name}==2.11.0+cu128" in outcome["error"]
    assert {environment.version(name) for name in held} == {"2.11.0+cu128"}


def test_moving_a_loaded_package_asks_for_a_restart_and_the_next_run_is_satisfied(environment):
    environment.preinstall("Loaded", "1.0", module="loaded")  # the same distribution: names are normalised
    environment.offer("loaded", "2.0")
    environment.offer("dragger", "1.0", requires=("loaded>=2",))
    outcome = environment.install("dragger", loaded=("loaded",))
    assert "Loaded 1.0 to 2.0" in outcome["error"]
    assert "restart the runtime" in outcome["error"]
    assert environment.install("dragger")["returned"] == []


@pytest.mark.parametrize("name", ["torch", "torch_xla"])
def test_torch_out_of_range_is_kept_with_a_warning(environment, name):
    environment.preinstall(name, "2.8.0+cpu")
    environment.offer(name, "2.9.0")
    outcome = environment.install(f"{name}>=2.9,<2.14")
    assert outcome["returned"] == []
    (warning,) = outcome["warnings"]
    assert "2.8.0+cpu" in warning
    assert "<2.14,>=2.9" in warning
    assert environment.version(name) == "2.8.0+cpu"


def test_absent_torch_is_installed_with_its_torch_xla(environment):
    environment.offer("torch", "2.9.1")
    environment.offer("torch_xla", "2.9.0")
    outcome = environment.install("torch>=2.9,<2.10\ntorch_xla>=2.9,<2.10", expected=("torch", "torch_xla"))
    assert outcome["returned"] == ["torch==2.9.1", "torch_xla==2.9.0"]


def test_torch_xla_is_left_out_beside_a_torch_that_it_is_not_built_for(environment):
    environment.preinstall("torch", "2.11.0+cu128")
    environment.offer("torch_xla", "2.9.0")
    outcome = environment.install("torch_xla>=2.9,<2.10")
    assert outcome["returned"] == []
    assert "torch_xla is not installed" in outcome["warnings"][0]
    assert environment.version("torch_xla") is None
