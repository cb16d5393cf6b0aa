"""What the folder of a run records: of which notebook, parameters and data it is a run, and how that ended.

The folder of a batch holds one folder for each run, with its record in `run.json`. A run of another notebook, other
parameters or other data never takes the folder of an earlier one. The table is gathered from all records.
"""

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.data.listing import RUN_FILE, list_files
from helpers.parameters import SAMPLE, Parameters, extra
from helpers.run import disk
from helpers.run.run_folder import RESULTS_FILE

from .grid import Run

# Parameters that may change when a run goes on, such as its time limit.
WATCHING = [name for name, field in Parameters.model_fields.items() if not extra(field)["identity"]]
FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\t",
    "\r",
    "\n",
    "＝",
    "＋",
    "－",
    "＠",
)  # the first character of a spreadsheet's formula
logger = logging.getLogger("helpers.batch")


def identify(run: Run) -> dict[str, Any]:
    """What decides whether two runs are the same: the code, the parameters, and the content of the files that they name."""
    import nbformat

    cells = nbformat.read(run.notebook, as_version=4).cells
    code = [cell.source for cell in cells if cell.cell_type == "code"]
    identity = {"notebook": _digest(code), "parameters": {"output_dir": run.parameters.get("output_dir")}, "data": {}}
    for name, value in {**run.defaults, **run.parameters}.items():
        if name not in WATCHING:
            identity["parameters"][name] = value
            if _is_path(value):
                identity["data"][name] = _content_digest(Path(value).expanduser())
    return identity


def _is_path(value: Any) -> bool:
    # Unlike Path.exists, this takes any text.
    return isinstance(value, str) and value not in ("", SAMPLE) and os.path.exists(os.path.expanduser(value))  # noqa: PTH110, PTH111


def _content_digest(path: Path) -> str:
    """sha256 of a file, or of the names and contents of a folder's files."""
    files = [path] if path.is_file() else list_files(path, None, source=str(path)).files
    digests = {}
    for file in files:
        with contextlib.suppress(OSError), file.open("rb") as content:
            digests[os.path.relpath(file, path)] = hashlib.file_digest(content, "sha256").hexdigest()
    return _digest(digests)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def find(batch: Path, identity: Mapping) -> Path | None:
    """The folder that records this run, whichever command made it."""
    return next((folder for folder in folders(batch) if read(folder)["identity"] == identity), None)


def new_folder(run: Run, identity: Mapping) -> Path:
    """A folder of the run's name, or one beside that if it holds another run."""
    folder = run.batch / run.name
    if not (folder / RUN_FILE).exists():
        return folder
    earlier = read(folder).get("identity", {})
    changed = " and ".join(part for part in identity if earlier.get(part) != identity[part])
    beside = folder.with_name(f"{run.name}-{_digest(identity)[:8]}")
    logger.info("%s: not the same %s as before, so it is made again in %s", run.name, changed, beside.name)
    return beside


def folders(batch: Path) -> list[Path]:
    """The folders of all runs of a batch; a run whose notebook a person ran there has a record without an identity."""
    records = sorted(batch.glob(f"*/{RUN_FILE}"))
    return [record.parent for record in records if "identity" in read(record.parent)]


def read(folder: Path) -> dict[str, Any]:
    """The record of a run's folder; empty if there is none, or none that can be read."""
    return _read(folder / RUN_FILE)


def _read(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        value = disk.read_json(file)
        if isinstance(value, dict):
            return value
    return {}


def note(folder: Path, **changes: Any) -> None:
    """Adds to the record of a run."""
    disk.write_json(folder / RUN_FILE, read(folder) | changes)


def results(folder: Path) -> tuple[dict[str, Any], str]:
    """What the notebook of a run measured, and what is wrong with it, or ""."""
    file = Path(read(folder).get("output_dir", folder)) / RESULTS_FILE
    measured = _read(file)
    if not measured:
        return {}, f"papermill reports success, but {file} cannot be read"
    loss = (measured.get("train") or {}).get("loss_last")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return measured, f"train.loss_last in {file} is {loss!r}, not a finite number"
    return measured, ""


def write_table(batch: Path, outcomes: Sequence[Mapping]) -> tuple[list[dict], Path | None]:
    """Writes one row for each run in the folder of a batch, first those of this command; returns the rows and the file.

    A table that cannot be written (open in a spreadsheet, a full disk) goes beside, under another name.
    """
    import pandas

    own = [outcome.get("folder") for outcome in outcomes]
    others = [{"folder": folder} for folder in folders(batch) if folder not in own]
    rows = [_row(outcome) for outcome in [*outcomes, *others]]
    table = pandas.DataFrame(rows, dtype=object).rename(columns=_as_text).map(_as_text)
    temporary = batch / f".results.{os.getpid()}"
    for file in (batch / "results.csv", batch / f"results-{os.getpid()}.csv"):
        try:
            table.to_csv(temporary, index=False)
            temporary.replace(file)
            return rows, file
        except OSError as error:
            logger.warning("the table cannot be written to %s (%s)", file, error)
            temporary.unlink(missing_ok=True)
    return rows, None


def _row(outcome: Mapping) -> dict[str, Any]:
    """The row of a run: how it ended, what it was given and what it measured."""
    import pandas

    folder = outcome.get("folder")
    record = read(folder) if folder else {}
    columns = {"status": "", "seconds": "", "error": "", "notebook": "", "output_dir": ""} | record | outcome
    row = {"run": folder.name if folder else outcome["run"], **record.get("parameters", {})}
    row |= {name: columns[name] for name in ("status", "seconds", "error", "notebook", "output_dir")}
    if record.get("status") == "done":
        for name, values in pandas.json_normalize(results(folder)[0]).items():
            if not isinstance(values[0], list):
                row.setdefault(name, values[0])
    return row


def _as_text(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
