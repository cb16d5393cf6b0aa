"""The output folder of one run: claimed once, never overwritten by another run, results written whole.

`run.json` says whose folder it is. The same parameters come back to the same run; others are refused.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import __version__, checkpoint

RUN_FILE = "run.json"
RESULTS_FILE = "results.json"
_NO_CONTENT = (".ipynb_checkpoints", f".{RUN_FILE}.")  # a frontend's folder; what a claim that was killed left
SCHEMA = 1


def claim(output_dir: str | Path, notebook: str, identity: Mapping[str, Any], *, resume: bool) -> Path:
    """Creates the folder for a new run, or takes it back for the same one.

    Args:
        output_dir: the folder.
        notebook: which notebook runs.
        identity: the parameters that define the run (`parameters.identity`).
        resume: go on where the same run stopped.

    Raises:
        ValueError: the folder holds another run, files that are no run of ours, or this run while `resume` is False.
        PermissionError: it cannot be written.
    """
    path = Path(output_dir).expanduser()
    ours = {"schema": SCHEMA, "notebook": notebook, "parameters": dict(identity)}
    elsewhere = f"set output_dir to a new folder (now {str(output_dir)!r})"
    try:
        path.mkdir(parents=True, exist_ok=True)
        entries = {entry.name for entry in path.iterdir() if not entry.name.startswith(_NO_CONTENT)}
        if not entries:
            write_json(path / RUN_FILE, ours)
            return path
        if not os.access(path, os.W_OK):
            raise PermissionError("no write permission")
    except OSError as error:
        raise PermissionError(f"output_dir={str(output_dir)!r} cannot be written ({error}); {elsewhere}") from error
    if RUN_FILE not in entries:
        raise ValueError(
            f"output_dir={str(output_dir)!r} holds files that are no run of this suite ({', '.join(sorted(entries)[:4])}"
            f"{', ...' if len(entries) > 4 else ''}); nothing was touched: {elsewhere}"
        )
    try:
        theirs = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        differences = _differences(theirs, ours)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f"output_dir={str(output_dir)!r} holds a {RUN_FILE} that cannot be read ({error}); nothing was touched: "
            f"{elsewhere}"
        ) from error
    if differences:
        raise ValueError(
            f"output_dir={str(output_dir)!r} belongs to another run ({'; '.join(differences)}); nothing was touched: "
            f"{elsewhere}, or set the parameters back to resume that run"
        )
    if not resume and (checkpoint.listed(path) or (path / RESULTS_FILE).exists()):
        raise ValueError(
            f"resume=False, but output_dir={str(output_dir)!r} already holds this run; nothing was touched: "
            f"set resume=True to go on with it, or {elsewhere}"
        )
    return path


def same_data(output_dir: str | Path, source: str) -> None:
    """Notes in `run.json` what data a run trains on, `source` with a digest of it; a run with checkpoints must find the same.

    The same parameters can name other data: a file that was edited, a dataset without a pinned revision, the sources of
    another Python. Going on with it would be a wrong resume that nobody sees.

    Raises ValueError: the folder holds checkpoints of a run on other data.
    """
    path = Path(output_dir)
    run = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
    before = run.get("data")
    if before == source:
        return
    if before is not None and checkpoint.listed(path):
        raise ValueError(
            f"data_source: the data has changed since the run in output_dir={str(output_dir)!r} began ({before} there, "
            f"{source} here), and its checkpoints are for the former; nothing was touched: put the data back, or set "
            "output_dir to a new folder"
        )
    write_json(path / RUN_FILE, run | {"data": source})


def write_results(output_dir: str | Path, results: Mapping[str, Any]) -> Path:
    """Writes `results.json` (see docs/architecture.md for its keys); NaN and infinities become null."""
    path = Path(output_dir) / RESULTS_FILE
    write_json(path, {"schema": SCHEMA, "helpers_version": __version__, **_finite(results)})
    return path


def write_json(path: Path, value: Any) -> None:
    """Writes JSON through a temporary name, so that the file is whole or the old one."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(json.dumps(value, indent=2, allow_nan=False) + "\n", encoding="utf-8")
    temporary.replace(path)


def _differences(theirs: Mapping, ours: Mapping) -> list[str]:
    if theirs.get("notebook") != ours["notebook"]:
        return [f"notebook {theirs.get('notebook')!r} there, {ours['notebook']!r} here"]
    before, now = theirs.get("parameters", {}), ours["parameters"]
    return [
        f"{name}={before.get(name)!r} there, {now.get(name)!r} here"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    if hasattr(value, "tolist"):  # numpy and torch; before the check, which np.float32 would pass by
        return _finite(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
