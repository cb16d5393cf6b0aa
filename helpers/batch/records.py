"""What the folder of a run records: of which notebook, parameters and data it is a run, and how that ended.

The folder of a batch holds one folder for each run, with its record in `run.json`. A run of another notebook, other
parameters or other data never takes the folder of an earlier one. The table is gathered from all records.
"""

import contextlib
import functools
import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.data.listing import RUN_FILE, list_files
from helpers.parameters import SAMPLE, UPLOAD, Parameters, extra
from helpers.run.run_folder import RESULTS_FILE, write_json

from .grid import Run

TABLE = "results.csv"
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
    parameters, data = {"output_dir": run.parameters.get("output_dir")}, {}
    for name, value in {**run.defaults, **run.parameters}.items():
        if name not in WATCHING:
            parameters[name] = value
            path = _local_path(value)
            if path:
                data[name] = _content_digest(path)
    digest = hashlib.sha256(json.dumps(code).encode())
    return {"notebook": digest.hexdigest(), "parameters": parameters, "data": data}


def _local_path(value: Any) -> Path | None:
    with contextlib.suppress(OSError, ValueError, RuntimeError):  # a text that can be no path
        if isinstance(value, str) and value.strip() and value not in (SAMPLE, UPLOAD):
            path = Path(value).expanduser()
            return path if path.exists() else None
    return None


def _content_digest(path: Path) -> str:
    """sha256 of a file, or of the names and contents of a folder's files."""
    files = [path]
    if path.is_dir():
        files = list_files(path, None, source=str(path)).files
    digest = hashlib.sha256()
    for file in files:
        digest.update(os.fsencode(os.path.relpath(file, path)))
        try:
            with file.open("rb") as content:
                digest.update(hashlib.file_digest(content, "sha256").digest())
        except OSError:
            digest.update(b"cannot be read")
    return digest.hexdigest()


def find(batch: Path, identity: Mapping) -> Path | None:
    """The folder that records this run, whichever command made it."""
    for folder in folders(batch):
        if read(folder)["identity"] == identity:
            return folder
    return None


def new_folder(run: Run, identity: Mapping) -> Path:
    """A folder of the run's name, or one beside that if it holds another run."""
    folder = run.batch / run.name
    if not (folder / RUN_FILE).exists():
        return folder
    earlier = read(folder).get("identity", {})
    changed = [part for part in identity if earlier.get(part) != identity[part]]
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()
    beside = folder.with_name(f"{run.name}-{digest[:8]}")
    logger.info(
        "%s: not the same %s as before, so it is made again in %s", run.name, " and ".join(changed), beside.name
    )
    return beside


def folders(batch: Path) -> list[Path]:
    """The folders of all runs of a batch; a run whose notebook a person ran there has a record without an identity."""
    records = sorted(batch.glob(f"*/{RUN_FILE}"))
    return [record.parent for record in records if "identity" in read(record.parent)]


def read(folder: Path) -> dict[str, Any]:
    """The record of a run's folder; empty if there is none, or none that can be read."""
    try:
        record = json.loads((folder / RUN_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def note(folder: Path, **changes: Any) -> None:
    """Adds to the record of a run."""
    write_json(folder / RUN_FILE, read(folder) | changes)


def results(folder: Path) -> tuple[dict[str, Any], str]:
    """What the notebook of a run measured, and what is wrong with it, or ""."""
    file = Path(read(folder).get("output_dir", folder)) / RESULTS_FILE
    try:
        measured = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        return {}, f"papermill reports success, but {file} cannot be read: {error}"
    loss = (measured.get("train") or {}).get("loss_last")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return measured, f"train.loss_last in {file} is {loss!r}, not a finite number"
    return measured, ""


def write_table(batch: Path, outcomes: Sequence[Mapping]) -> tuple[list[dict], Path | None]:
    """Writes one row for each run in the folder of a batch, first those of this command.

    A table that cannot be written (open in a spreadsheet, a full disk) goes beside, under another name.
    Returns the rows, and the file that was written, if any could be.
    """
    import pandas

    own = [outcome.get("folder") for outcome in outcomes]
    others = [{"folder": folder} for folder in folders(batch) if folder not in own]
    rows = [_row(outcome) for outcome in [*outcomes, *others]]
    table = pandas.DataFrame(rows, dtype=object).rename(columns=_as_text).map(_as_text)
    for name in (TABLE, f"results-{os.getpid()}.csv"):
        file, temporary = batch / name, batch / f".{name}.{os.getpid()}"
        try:
            if file.exists() and not os.access(file, os.W_OK):
                raise PermissionError("it is read-only")
            table.to_csv(temporary, index=False)
            temporary.replace(file)
            return rows, file
        except OSError as error:
            _warn_once(f"the table cannot be written to {file} ({error}); the runs go on")
            temporary.unlink(missing_ok=True)
    return rows, None


def _row(outcome: Mapping) -> dict[str, Any]:
    """The row of a run: how it ended, what it was given and what it measured."""
    import pandas

    folder = outcome.get("folder")
    if folder is None:
        return {"seconds": "", "error": "", **outcome}
    record = read(folder)
    ended = record | outcome
    row = {"run": folder.name, **record.get("parameters", {})}
    for name in ("status", "seconds", "error", "notebook", "output_dir"):
        row[name] = ended.get(name, "")
    if record.get("status") == "done":
        for name, values in pandas.json_normalize(results(folder)[0]).items():
            if not isinstance(values[0], list):
                row.setdefault(name, values[0])
    return row


def _as_text(value: Any) -> Any:
    """A value that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


@functools.cache
def _warn_once(message: str) -> None:
    logger.warning(message)
