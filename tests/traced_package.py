"""What the tests of a small package call, by the tracer of the benchmarks."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def traced(package: Path, output: Path) -> list[list]:
    """The rows of `benchmarks/call_trace.py` for the tests in `package / "tests"`, run as if the package were installed."""
    command = [sys.executable, ROOT / "benchmarks/call_trace.py", f"{package}/", output, "60", package / "tests"]
    path = {"PYTHONPATH": str(package.parent)}
    run = subprocess.run(
        command, env=os.environ | path, cwd=package.parent, capture_output=True, text=True, check=False
    )
    assert output.is_file(), run.stdout + run.stderr
    return json.loads(output.read_text())
