"""helpers.notebook.setup in throwaway environments: real pip, against wheels that are built here."""

import os
import venv
import zipfile
from importlib import metadata, util
from pathlib import Path

import pytest

from tests.harness import ROOT, finished

pytestmark = pytest.mark.once

INSTALL = """
import importlib, sys
from helpers.notebook.setup import install
install({requirements!r})
for module in {expected!r}:
    importlib.import_module(module)
"""


def write_wheel(folder: Path, name: str, version: str, requires: tuple[str, ...] = ()) -> Path:
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": f'__version__ = "{version}"\n',
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

    def preinstall(self, name: str, version: str) -> None:
        zipfile.ZipFile(write_wheel(self.index, name, version)).extractall(self.site_packages)

    def install(self, requirements: str, *expected: str) -> str:
        """What it prints, with its error."""
        code = INSTALL.format(requirements=requirements, expected=expected)
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
        environment |= {"PYTHONPATH": str(ROOT), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(self.index)}
        answered = finished(self.python, "-c", code, env=environment)
        return answered.stdout + answered.stderr

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
    assert without_pip.install("small>=1.4,<2\ntorch>=2.9,<2.14") == ""


def test_missing_and_too_old_packages_are_installed_and_importable_at_once(environment):
    for name, version in (("small", "1.5"), ("small", "2.0"), ("other", "3.0"), ("kept", "1.1")):
        environment.offer(name, version)
    environment.preinstall("other", "2.0")
    environment.preinstall("kept", "1.0")
    printed = environment.install("small>=1.4,<2\nother>=3\nkept>=1", "small", "other")
    assert printed == "installing small>=1.4,<2, other>=3\n"
    assert [environment.version(name) for name in ("small", "other", "kept")] == ["1.5", "3.0", "1.0"]


def test_a_package_that_wants_a_newer_runtime_fails_and_moves_nothing(environment):
    held = ["torch", "torchvision", "torchaudio", "torch_xla", "numpy"]
    for name in held:
        environment.preinstall(name, "2.11.0+cu128")
        environment.offer(name, "3.0")
        environment.offer(f"greedy_{name}", "1.0", requires=(f"{name}>=3",))
        printed = environment.install(f"greedy_{name}>=1")
        assert f"RuntimeError: pip could not install greedy_{name}>=1" in printed
        assert f"{name}==2.11.0+cu128" in printed
    assert {environment.version(name) for name in held} == {"2.11.0+cu128"}


@pytest.mark.parametrize("name", ["torch", "torch_xla"])
def test_torch_out_of_range_is_kept_with_a_line(environment, name):
    environment.preinstall(name, "2.8.0+cpu")
    environment.offer(name, "2.9.0")
    printed = environment.install(f"{name}>=2.9,<2.14")
    assert printed == f"{name} 2.8.0+cpu is kept; this notebook was tested with {name}<2.14,>=2.9\n"
    assert environment.version(name) == "2.8.0+cpu"


def test_torch_xla_is_left_out_beside_a_torch_that_it_is_not_built_for(environment):
    environment.preinstall("torch", "2.11.0+cu128")
    environment.offer("torch_xla", "2.9.0")
    assert "torch_xla<2.10,>=2.9 does not fit the installed torch" in environment.install("torch_xla>=2.9,<2.10")
    assert environment.version("torch_xla") is None
