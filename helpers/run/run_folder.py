"""The output folder of one run, which no other run overwrites.

`run.json` holds the parameters of the run; a run with others is refused. `sessions.json` records the machine and the
code of each part of the run.
"""

from __future__ import annotations

import datetime
import json
import os
from collections.abc import Mapping
from os.path import realpath
from pathlib import Path
from typing import Any

import pydantic_core

from helpers.machine import ranks
from helpers.machine.runtime import Runtime
from helpers.parameters import Parameters, identity
from helpers.train import checkpoint

from . import folder_lock, provenance

RUN_FILE = "run.json"
RESULTS_FILE = "results.json"
SESSIONS_FILE = "sessions.json"
# If one of these differs, a resumed run is not bit for bit the same.
COMPARED = ("kind", "device", "devices", "precision", "payload", *provenance.LIBRARIES)
# A frontend's folder, and what a claim that was killed leaves.
_NO_CONTENT = (".ipynb_checkpoints", f".{RUN_FILE}.", folder_lock.LOCK_FILE)
RUN_SCHEMA, RESULTS_SCHEMA = 1, 2


def begun(output_dir: str) -> dict[str, Any]:
    """Parameters that the run in this folder began with; {} if they cannot be read."""
    try:
        return dict(json.loads((Path(output_dir).expanduser() / RUN_FILE).read_text(encoding="utf-8"))["parameters"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def claim(notebook: str, params: Parameters) -> Path:
    """Creates `params.output_dir` for a new run, or takes it for the same run again, which has the same `identity`.

    Raises:
        ValueError: the folder holds another run, files that are no run of ours, or a link out of it; or it holds this
            run, and `resume` is False.
        PermissionError: the folder cannot be written.
        FolderTaken: another process owns the folder.
    """
    output_dir = params.output_dir
    path = Path(output_dir).expanduser()
    ours = {"schema": RUN_SCHEMA, "notebook": notebook, "parameters": identity(params)}
    elsewhere = f"set output_dir to a new folder (now {str(output_dir)!r})"
    try:
        path.mkdir(parents=True, exist_ok=True)
        entries = {entry.name for entry in path.iterdir() if not entry.name.startswith(_NO_CONTENT)}
        if not entries:
            folder_lock.own(path)
            write_json(path / RUN_FILE, ours)
            return path
        if not os.access(path, os.W_OK):
            raise PermissionError("no write permission")
    except OSError as error:
        raise PermissionError(f"output_dir={str(output_dir)!r} cannot be written ({error}); {elsewhere}") from error
    links = (each for each in path.rglob("*") if each.is_symlink())
    if link := next((each for each in links if not Path(realpath(each)).is_relative_to(path.resolve())), None):
        raise ValueError(f"output_dir={str(output_dir)!r}: {link} leads out of it; remove this link, or {elsewhere}")
    if RUN_FILE not in entries:
        raise ValueError(
            f"output_dir={str(output_dir)!r} holds files that are no run of this suite ({', '.join(sorted(entries)[:4])}"
            f"{', ...' if len(entries) > 4 else ''}); nothing was touched: {elsewhere}"
        )
    try:
        theirs = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
        differences = _differences(theirs, ours, set(type(params).model_fields))
    except (OSError, ValueError, AttributeError, TypeError, RecursionError) as error:
        raise ValueError(
            f"output_dir={str(output_dir)!r} holds a {RUN_FILE} that cannot be read ({error}); nothing was touched: "
            f"{elsewhere}"
        ) from error
    if differences:
        raise ValueError(
            f"output_dir={str(output_dir)!r} belongs to another run ({'; '.join(differences)}); nothing was touched: "
            f"{elsewhere}, or set the parameters back to resume that run"
        )
    if not params.resume and (checkpoint.listed(path) or (path / RESULTS_FILE).exists()):
        raise ValueError(
            f"resume=False, but output_dir={str(output_dir)!r} already holds this run; nothing was touched: "
            f"set resume=True to continue it, or {elsewhere}"
        )
    folder_lock.own(path)
    return path


def same_data(output_dir: str | Path, source: str) -> None:
    """Notes the data of a run (`source`, with a digest) in `run.json`; a run with checkpoints must find the same data.

    The same parameters can mean other data: a file that was edited, a data set without a pinned revision.

    Raises ValueError: the folder holds checkpoints of a run on other data, or the processes see different data.
    """
    path = Path(output_dir)
    if len(seen := set(ranks.gather(source))) > 1:
        raise ValueError(f"data_source: the processes of this run do not see the same data ({', '.join(sorted(seen))})")
    run = json.loads((path / RUN_FILE).read_text(encoding="utf-8"))
    before = run.get("data")
    if before == source:
        return
    if before is not None and checkpoint.listed(path):
        raise ValueError(
            f"data_source: the data has changed since the run in output_dir={str(output_dir)!r} began ({before} there, "
            f"{source} here), and its checkpoints are for the former; nothing was touched: restore the data, or set "
            "output_dir to a new folder"
        )
    write_json(path / RUN_FILE, run | {"data": source})


def sessions(output_dir: str | Path) -> list[dict[str, Any]]:
    """The sessions of a run so far, oldest first."""
    path = Path(output_dir) / SESSIONS_FILE
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []


def begin_session(
    output_dir: str | Path, runtime: Runtime, precision: str, first_step: int, batch_size: int = 0
) -> str:
    """Notes that a session begins at `first_step`; returns a line about what differs from the one before, or "".

    Raises ValueError if `batch_size`, the examples in a step, differs: the data would not continue at the same place.
    """
    known = [each for each in sessions(output_dir) if each["first_step"] <= first_step and first_step]
    session = {
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "kind": runtime.kind,
        "device": runtime.device_name,
        "devices": runtime.device_count,
        "precision": precision,
        "batch_size": batch_size,
        "payload": provenance.payload(),
        **provenance.versions(),
        "first_step": first_step,
        "last_step": first_step,
    }
    before = known[-1] if known else session
    if before.get("batch_size", batch_size) != batch_size:
        raise ValueError(
            f"batch_size={batch_size} examples a step on {runtime.device_count} device(s), but this run began with "
            f"{before['batch_size']} on {before['devices']}; set that number again, or set output_dir to a new folder"
        )
    path = Path(output_dir) / SESSIONS_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, [*known, session])
    changed = [
        f"{name} {str(before.get(name))[:40]}, now {str(session.get(name))[:40]}"
        for name in COMPARED
        if before.get(name) != session.get(name)
    ]
    if not changed:
        return ""
    return f"ATTENTION: this run goes on under other conditions ({'; '.join(changed)}): not bit for bit the run of one session"


def note_step(output_dir: str | Path, step: int) -> None:
    """Notes the last step of the present session."""
    if known := sessions(output_dir):
        write_json(Path(output_dir) / SESSIONS_FILE, [*known[:-1], known[-1] | {"last_step": step}])


def write_results(notebook: str, params: Parameters, runtime: Runtime, **parts: Any) -> Path:
    """Writes `results.json` (docs/architecture.md lists its keys) into `params.output_dir`.

    parts: `data` with source, revision and sha256, `eval`, `artifacts` and whatever else the notebook measured.
    """
    folder_lock.check(params.output_dir)
    path = Path(params.output_dir) / RESULTS_FILE
    results = {
        "schema": RESULTS_SCHEMA,
        "notebook": notebook,
        "seed": params.seed,
        "parameters": params.model_dump(),
        "code": provenance.code(),
        "versions": provenance.versions(),
        "sessions": sessions(params.output_dir),
        "runtime": runtime.results(),
        **parts,
    }
    write_json(path, results)
    return path


def write_json(path: Path, value: Any) -> None:
    """Writes JSON under a temporary name and renames it, so that no reader finds half a file.

    Arrays and tensors become lists or numbers; NaN and infinities become null.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    text = pydantic_core.to_json(value, indent=2, inf_nan_mode="null", fallback=lambda array: array.tolist())
    temporary.write_bytes(text + b"\n")
    temporary.replace(path)


def saved(figure, path: str | Path):
    """The figure, which is also written to `path`."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    return figure


def _differences(theirs: Mapping, ours: Mapping, known: set[str]) -> list[str]:
    if theirs.get("notebook") != ours["notebook"]:
        return [f"notebook {theirs.get('notebook')!r} there, {ours['notebook']!r} here"]
    before, now = theirs.get("parameters", {}), ours["parameters"]
    return [
        f"{name}={before.get(name)!r} there, {now.get(name)!r} here"
        for name in sorted({*now, *(before.keys() - known)})
        if before.get(name) != now.get(name)
    ]
