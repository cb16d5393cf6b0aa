"""The record in the folder of each run: the notebook, parameters and data that it is a run of, and how it ended."""

import contextlib
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from helpers.data.listing import RUN_FILE, list_files
from helpers.parameters import LENGTH, SAMPLE, Parameters, extra
from helpers.run import disk
from helpers.run.run_folder import RESULTS_FILE

# Parameters for which a run that is done is not made again.
WATCHING = {name for name, field in Parameters.model_fields.items() if not extra(field)["identity"]}
NOTEBOOK, CONTENT = "notebook", "content of "
FORMULA = "=+-@\t\r\n＝＋－＠"  # a spreadsheet takes a text that begins so for a formula
NOT_RUN = {"status": "not run", "seconds": "", "error": "", "notebook": "", "output_dir": ""}
logger = logging.getLogger("helpers.batch")


def identify(notebook: Path, parameters: Mapping[str, Any], digest: Callable[[Path], str]) -> dict[str, Any]:
    """What a run is made of: digest of the code, parameters, and digests of the files and folders that they name."""
    identity = {NOTEBOOK: code_digest(notebook), **parameters}
    for name, value in parameters.items():
        # Unlike those of Path, these functions take any text.
        path = os.path.expanduser(value) if isinstance(value, str) else ""  # noqa: PTH111
        if value != SAMPLE and os.path.exists(path):  # noqa: PTH110
            identity[CONTENT + name] = digest(Path(path))
    return identity


def code_digest(notebook: Path) -> str:
    """sha256 of a notebook's code."""
    import nbformat

    cells = nbformat.read(notebook, as_version=4).cells
    return _digest([cell.source for cell in cells if cell.cell_type == "code"])


def content_digest(path: Path) -> str:
    """sha256 of a file, or of the names and contents of a folder's files."""
    files = [path] if path.is_file() else list_files(path, None, source=str(path)).files
    digests = {}
    for file in files:
        with contextlib.suppress(OSError), file.open("rb") as content:
            digests[os.path.relpath(file, path)] = hashlib.file_digest(content, "sha256").hexdigest()
    return _digest(digests)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def choose_folder(folder: Path, identity: Mapping) -> Path:
    """The folder in which a run is, goes on or begins: `folder`, unless that holds another run."""
    for other in run_folders(folder.parent):
        if read(other)["identity"] == identity:
            return other
    changed = differences(folder, identity)
    if not changed:
        return folder
    values = [(name, identity.get(name)) for name in changed]
    beside = folder.with_name(f"{folder.name}-{_digest(values)[:8]}")
    names = " and ".join(changed)
    logger.info("%s: not the same %s as before, so it is made again in %s", folder.name, names, beside.name)
    return beside


def differences(folder: Path, identity: Mapping) -> list[str]:
    """What a folder records otherwise, but for the parameters that may change when a run goes on."""
    if not (folder / RUN_FILE).exists():
        return []
    record = read(folder)
    before = record.get("identity", {})
    # The notebook itself records which of its parameters define a run.
    own = _read_object(Path(record.get("output_dir", folder)) / RUN_FILE).get("parameters")
    fixed = {NOTEBOOK, *own} if own else {*before, *identity} - {*LENGTH}
    changed = [name for name in before | identity if before.get(name) != identity.get(name)]
    return [name for name in changed if name.removeprefix(CONTENT) in fixed]


def run_folders(batch: Path) -> list[Path]:
    """The folders of all runs of a batch. A run whose notebook a person ran there has a record without an identity."""
    folders = [file.parent for file in sorted(batch.glob(f"*/{RUN_FILE}"))]
    return [folder for folder in folders if "identity" in read(folder)]


def read(folder: Path) -> dict[str, Any]:
    """The record of a run; empty if there is none, or none that can be read."""
    return _read_object(folder / RUN_FILE)


def _read_object(file: Path) -> dict[str, Any]:
    with contextlib.suppress(OSError):
        value = disk.read_json(file)
        if isinstance(value, dict):
            return value
    return {}


def is_done(folder: Path, identity: Mapping) -> bool:
    """Whether a run of exactly this identity is done, and its results are there."""
    record = read(folder)
    return record.get("identity") == identity and record["status"] == "done" and not read_results(folder)[1]


def read_results(folder: Path) -> tuple[dict[str, Any], str]:
    """What the notebook of a run measured, and what is wrong with it, or ""."""
    file = Path(read(folder).get("output_dir", folder)) / RESULTS_FILE
    results = _read_object(file)
    if not results:
        return {}, f"papermill reports success, but {file} cannot be read"
    loss = (results.get("train") or {}).get("loss_last")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return results, f"train.loss_last in {file} is {loss!r}, not a finite number"
    return results, ""


def write_table(batch: Path, outcomes: Mapping[Path, Mapping]) -> tuple[list[dict], Path | None]:
    """Writes one row for each run in the folder of a batch, first those of this command; returns the rows and the file.

    A table that cannot be written (open in a spreadsheet, a full disk) goes beside, under another name.
    """
    import pandas

    others = [folder for folder in run_folders(batch) if folder not in outcomes]
    rows = [_row(folder, outcomes.get(folder, {})) for folder in [*outcomes, *others]]
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


def _row(folder: Path, outcome: Mapping) -> dict[str, Any]:
    import pandas

    record = read(folder)
    row = {"run": folder.name, **record.get("parameters", {}), **NOT_RUN}
    row |= {name: value for name, value in (record | outcome).items() if name in NOT_RUN}
    if record.get("status") == "done":
        for name, values in pandas.json_normalize(read_results(folder)[0]).items():
            if not isinstance(values[0], list):
                row.setdefault(name, values[0])
    return row


def _as_text(value: Any) -> Any:
    is_formula = isinstance(value, str) and value.startswith(tuple(FORMULA))
    return f"'{value}" if is_formula else value
