"""Sixty small bugs, and which of them the quick tests notice. `make planted` writes docs/results/planted_bugs.json.

    python tests/planted.py                      the bugs without a result, and those that no test noticed
    python tests/planted.py frozen_half jaccard  these

A bug of tests/planted_bugs.toml is planted in a copy of the repository, and the tests that its entry names run there until one fails, which
has to pass without the bug. Each result is written when it is known; `caught_at_first` is that of the first run.
"""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.machine import xla  # noqa: E402
from helpers.run import disk, provenance  # noqa: E402
from tests import harness  # noqa: E402

BUGS = tomllib.loads((ROOT / "tests/planted_bugs.toml").read_text(encoding="utf-8"))
RESULTS, PAGE = ROOT / "docs/results/planted_bugs.json", ROOT / "CONTRIBUTING.md"
SENTENCE = re.compile(r"(?<=<!-- planted -->\n).*(?=\n  <!-- end -->)")
LIMIT = 1500  # seconds of the tests of a bug


def plant(bug: dict, text: str) -> str:
    """The text of its file with the bug. Raises ValueError where it no longer applies."""
    times = text.count(bug["before"])
    if times != 1:
        raise ValueError(f"{bug['file']} has {bug['before']!r} {times} times; it must be there once")
    return text.replace(bug["before"], bug["after"])


def sentence(bugs: dict) -> str:
    """The figures, for CONTRIBUTING.md."""
    first = sum(bug["caught_at_first"] for bug in bugs.values())
    now = sum(bool(bug["caught_by"]) for bug in bugs.values())
    return f"  Of {len(bugs)} bugs the tests noticed {first} when they were first planted. They notice {now} now."


def failures(folder: Path, *arguments: str) -> list[str]:
    """The tests that fail in a copy of the repository."""
    options = ("-p", "no:cacheprovider", "-q", "-m", "not slow")
    try:
        pytest = harness.python("-m", "pytest", *options, *arguments, cwd=folder, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return [f"more than {LIMIT} s"]
    failed = re.findall(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", pytest.stdout, re.MULTILINE)
    if pytest.returncode and not failed:
        raise RuntimeError(f"pytest has not run: {pytest.stdout[-2000:]}{pytest.stderr[-2000:]}")
    return failed


def try_bug(bug: dict, copy: Path) -> str:
    """The test that notices the bug, "" if none does. Raises RuntimeError for one that fails without the bug, too."""
    file = copy / bug["file"]
    text = file.read_text(encoding="utf-8")
    written = file.stat().st_mtime
    file.write_text(plant(bug, text), encoding="utf-8")
    test = "".join(failures(copy, "-x", *bug["tests"])[:1])
    file.write_text(text, encoding="utf-8")
    os.utime(file, (written, written))  # as its bytecode was made from
    if "::" in test and failures(copy, test):
        raise RuntimeError(f"{test} fails without a bug, too")
    return test


def main() -> None:
    results = json.loads(RESULTS.read_text(encoding="utf-8"))["bugs"] if RESULTS.exists() else {}
    with tempfile.TemporaryDirectory() as folder:
        copy = shutil.copytree(ROOT, Path(folder, "copy"), ignore=shutil.ignore_patterns(".*", "outputs"))
        here = [name for name, bug in BUGS.items() if bug.get("on", "gpu") == ("tpu" if xla.installed() else "gpu")]
        for name in sys.argv[1:] or [name for name in here if not results.get(name, {}).get("caught_by")]:
            bug, began = BUGS[name], time.monotonic()
            test = try_bug(bug, copy)
            seconds = round(time.monotonic() - began)
            at_first = results.get(name, {}).get("caught_at_first", bool(test))
            result = {"caught_at_first": at_first, "caught_by": test, "seconds": seconds}
            results[name] = {"file": bug["file"], "why": bug["why"]} | result
            write(results)
            print(f"{name:24s} {seconds:5d} s  {test or 'NOT CAUGHT'}", flush=True)


def write(results: dict) -> None:
    """The results, in the order of the bugs, and the sentence."""
    kept = {name: results[name] for name in BUGS if name in results}
    about = {"schema": 2, "code": provenance.code(), "versions": provenance.versions()}
    disk.write_json(RESULTS, about | {"bugs": kept})
    PAGE.write_text(SENTENCE.sub(sentence(kept), PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
