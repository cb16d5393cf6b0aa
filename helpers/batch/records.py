"""The record in the folder of each run: the notebook, parameters and data that it is a run of, and how it ended."""

import contextlib
import glob
import hashlib
import json
import logging
import math
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from helpers.data.files import RUN_FILE, list_files
from helpers.parameters import LENGTH, SAMPLE, Parameters, extra
from helpers.run import disk
from helpers.run.run_folder import RESULTS_FILE

# Parameters for which a run that is done is not made again.
WATCHING = {name for name, field in Parameters.model_fields.items() if not extra(field)["identity"]}
FORMULA = "=+-@\t\r\n＝＋－＠"  # a spreadsheet takes a text that begins so for a formula
NOT_RUN = {"status": "not run", "seconds": "", "error": "", "notebook": "", "output_dir": ""}
logger = logging.getLogger("helpers.batch")


def identify(
    notebook: Path, parameters: Mapping[str, Any], varied: Collection[str], digest: Callable[[Path], str]
) -> dict[str, Any]:
    """What a run is made of: digest of the code, parameters, and digests of the files and folders that they name."""
    identity: dict[str, Any] = {"notebook": code_digest(notebook)}
    for name, value in parameters.items():
        if name in varied or name not in WATCHING:
            identity[name] = value
            if isinstance(value, str) and value != SAMPLE:
                # Unlike those of Path, these functions take any text.
                path = os.path.expanduser(value)  # noqa: PTH111
                if os.path.exists(path):  # noqa: PTH110
                    identity[f"content of {name}"] = digest(Path(path))
    return identity


def code_digest(notebook: Path) -> str:
    """sha256 of a notebook's code."""
    import nbformat

    cells = nbformat.read(notebook, as_version=4).cells
    return _digest([cell.source for cell in cells if cell.cell_type == "code"])


def content_digest(path: Path) -> str:
    """sha256 of a file, or of the names and contents of a folder's files."""
    files = [path]
    if not path.is_file():
        kinds = {file.suffix.lower() for file in path.rglob("*")}
        files = list_files(path, kinds, str(path))[0]
    digests = {}
    for file in files:
        with contextlib.suppress(OSError), file.open("rb") as content:
            digests[os.path.relpath(file, path)] = hashlib.file_digest(content, "sha256").hexdigest()
    return _digest(digests)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()


def choose_folder(folder: Path, identity: Mapping) -> Path:
    """The folder in which a run is, goes on or begins: `folder`, unless that holds another run. Only its length may differ."""
    for other in run_folders(folder.parent):
        if read(other)["identity"] == identity:
            return other
    if not (folder / RUN_FILE).exists():
        return folder
    before = read(folder).get("identity", {})
    changed = [name for name in before | identity if before.get(name) != identity.get(name) and name not in LENGTH]
    if not changed:
        return folder
    digest = _digest([identity.get(name) for name in changed])
    other_folder = folder.with_name(f"{folder.name}-{digest[:8]}")
    changes = " and ".join(changed)
    logger.info(
        "%s: %s changed since the earlier run: a new run is made in %s", folder.name, changes, other_folder.name
    )
    return other_folder


def run_folders(batch: Path) -> list[Path]:
    """The folders of all runs of a batch. A run whose notebook a person ran there has a record without an identity."""
    folders = [file.parent for file in sorted(batch.glob(f"*/{RUN_FILE}"))]
    return [folder for folder in folders if "identity" in read(folder)]


def read(folder: Path, name: str = RUN_FILE) -> dict[str, Any]:
    """The record of a run, or another file of its folder; empty if there is none, or none that can be read."""
    with contextlib.suppress(OSError):
        value = disk.read_json(folder / name)
        if isinstance(value, dict):
            return value
    return {}


def output_of(folder: Path) -> Path:
    """Where the notebook of a run wrote: beside its `output_dir` if a person had edited the method's cell."""
    output = Path(read(folder)["parameters"]["output_dir"])
    for edited in output.parent.glob(f"{glob.escape(output.name)}-edited-*"):
        return edited
    return output


def read_results(folder: Path) -> tuple[dict[str, Any], str]:
    """What the notebook of a run measured, and what is wrong with it, or ""."""
    output = output_of(folder)
    results = read(output, RESULTS_FILE)
    if not results:
        return {}, f"papermill reports success, but {output / RESULTS_FILE} cannot be read"
    loss = (results.get("train") or {}).get("loss_last")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return results, f"train.loss_last in {output / RESULTS_FILE} is {loss!r}, not a finite number"
    return results, ""


def write_table(batch: Path, outcomes: Mapping[Path, Mapping]) -> tuple[list[dict], Path | None]:
    """Writes one row for each run in the folder of a batch, first those of this command; returns the rows and the file.

    A table that cannot be written (open in a spreadsheet, a full disk) goes beside, under another name.
    """
    import pandas

    others = [folder for folder in run_folders(batch) if folder not in outcomes]
    rows = [_row(folder, outcomes.get(folder, {})) for folder in [*outcomes, *others]]
    table = pandas.DataFrame(rows, dtype=object).rename(columns=_as_text).map(_as_text)
    for file in (batch / "results.csv", batch / f"results-{os.getpid()}.csv"):
        try:
            with disk.replacing(file) as temporary:
                table.to_csv(temporary, index=False)
            return rows, file
        except OSError as error:
            logger.warning("the table cannot be written to %s (%s)", file, error)
    return rows, None


def _row(folder: Path, outcome: Mapping) -> dict[str, Any]:
    import pandas

    record = read(folder)
    row = {"run": folder.name, **record.get("parameters", {}), **NOT_RUN}
    for name, value in {**record, **outcome}.items():
        if name in NOT_RUN:
            row[name] = value
    if record.get("status") == "done":
        for name, values in pandas.json_normalize(read_results(folder)[0]).items():
            if not isinstance(values[0], list):
                row.setdefault(name, values[0])
    return row


def _as_text(value: Any) -> Any:
    if isinstance(value, str) and value.startswith(tuple(FORMULA)):
        return f"'{value}"
    return value
