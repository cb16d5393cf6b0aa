"""A notebook over a grid of parameters: names and types are checked first, what is done is not run again, one table comes out.

    python -m helpers.batch NOTEBOOK --output-dir DIR name=value [name=v1,v2,v3 ...]

docs/batch.md describes the folders of the runs, the table and the signals.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import signal
import sys
import time
import zlib
from functools import partial
from glob import glob
from pathlib import Path
from urllib.parse import quote

import pandas
import psutil
from filelock import SoftFileLease, Timeout
from papermill import PapermillExecutionError, execute_notebook, inspect_notebook
from papermill.iorw import load_notebook_node
from pydantic import TypeAdapter

from helpers.data.files import RUN_FILE
from helpers.run import disk
from helpers.show.tracking import say

WATCHING = {"max_hours", "report_to", "resume", "keep_in"}  # with other values of these it is the same run

signals: list[int] = []  # that came to this process


def parse(declared: dict, assignments: list) -> dict:
    """Command-line `name=value` and `name=v1,v2` as the values of each name, in the types that the notebook declares.

    Values are parted as in a line of CSV: a text with commas stands in double quotes.

    Raises ValueError for an unknown name, one that is given twice, and a value that is not of the type.
    """
    values: dict[str, list] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or name not in declared or name in (*values, "output_dir"):
            raise ValueError(
                f"{assignment}: write name=value once, for one of {', '.join(declared)}, but not for output_dir"
            )
        kind = declared[name]["inferred_type_name"]
        try:
            values[name] = TypeAdapter(f"list[{kind}]").validate_python(next(csv.reader([text])) or [""])  # type: ignore[arg-type]
        except ValueError as error:
            raise ValueError(f"{assignment} is not of type {kind}: {error}") from error
    return values


def plan(notebook, batch: Path, assignments: list) -> list:
    """Every combination of the values: the parameters of a run, and its row in the table as long as it has not run.

    The order is that of itertools.product: the last name varies fastest.

    notebook: as `papermill` loads it. batch: the folder of all runs. assignments: name=value of each parameter that does not keep its
    default.

    Raises ValueError for a mistake in names, types or values.
    """
    values = parse(inspect_notebook(notebook), assignments)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    runs = []
    for combination in itertools.product(*values.values()):
        parameters = dict(zip(values, combination, strict=True))
        names, files = [], []
        for name in sorted(parameters.keys() - WATCHING):
            value = str(parameters[name])
            names.append(f"{name}={quote(value, safe='')}")
            if os.path.isfile(value):  # noqa: PTH113  # unlike Path, it takes any text
                files += [os.path.getsize(value), os.path.getmtime(value)]  # noqa: PTH202, PTH204
        name = ",".join(names) or "run"
        digest = zlib.crc32(repr([code, name, files]).encode())
        if len(name) > 150 or recorded(batch / name).get("digest", digest) != digest:  # file systems allow 255 bytes
            name = f"{name[:150]}-{digest:x}"
        parameters["output_dir"] = str(batch / name)
        row = {"run": name, **parameters, "status": "not run", "seconds": None, "error": "", "digest": digest}
        runs.append((parameters, row))
    return runs


def recorded(folder) -> dict:
    """The row of a run that has ended; empty if it has not."""
    return disk.read_json(Path(f"{folder}.batch.json")) or {}


def execute(notebook, patience: float, run: tuple) -> bool:
    """Makes a run that is not done; nothing begins once a signal has come.

    Returns False if another command works on it for `patience` seconds (-1: however long it does).
    """
    signal.signal(signal.SIGINT, forward)  # in a task of Ray, where `ray.cancel` calls it
    parameters, row = run
    folder = parameters["output_dir"]
    try:
        with SoftFileLease(f"{folder}.lock").acquire(timeout=patience, cancel_check=lambda: bool(signals)):
            if not signals and recorded(folder).get("status") != "done":
                say(f"{row['run']} starts")
                began = time.monotonic()
                row |= _execute(notebook, parameters) | {"run": row["run"]}
                row["seconds"] = round(time.monotonic() - began, 1)
                disk.write_json(Path(f"{folder}.batch.json"), row)
                say(f"{row['run']}: {row['status']} {row['error']}")
            return True
    except Timeout:
        say(f"{row['run']}: another command works on it")
        return False


def _execute(notebook, parameters: dict) -> dict:
    """Executes the notebook in a kernel of its own; returns status and error, or status and results."""
    folder = parameters["output_dir"]
    try:
        execute_notebook(
            notebook,
            f"{folder}.ipynb",
            parameters,
            kernel_name="python3",
            progress_bar=False,
            stdout_file=sys.stdout,
            stderr_file=sys.stderr,
            start_timeout=600,  # on a busy machine a kernel takes longer than papermill's minute
            on_cell_start=_refuse,
        )
        *_, results = [f"{folder}/results.json", *glob(f"{folder}-edited-*/results.json")]  # noqa: PTH207
        return json.loads(Path(results).read_text()) | {"status": "done"}
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue} (In [{failure.exec_count}])"
    except Exception as failure:  # no results, a full disk, the kernel died: the other runs go on
        error = f"{type(failure).__name__}: {failure}"
    if error.startswith("Stopped"):  # by a signal, or by max_hours
        return {"status": "stopped", "error": error}
    if signals:
        return {"status": "stopped"}
    return {"status": "failed", "error": error}


def _refuse(**cell) -> None:
    if signals:  # one that came before there was a kernel
        raise InterruptedError


def forward(number: int, frame) -> None:
    """Handles a signal: kernels that train save a checkpoint and raise `Stopped`; a second one kills kernels and what they started."""
    signals.append(number)
    is_first = len(signals) == 1
    for process in psutil.Process().children(recursive=not is_first):
        process.send_signal(signal.SIGTERM if is_first else signal.SIGKILL)


def connect(address: str, cpus: int):
    """A `map` over a Ray cluster; each call has `cpus` CPUs, and one GPU if the cluster has any. `auto` is the cluster of this machine.

    Raises ImportError if ray is not installed, and ConnectionError if no cluster answers.
    """
    import ray

    ray.init(address, runtime_env={"py_modules": [str(Path(__file__).parents[1])]})
    gpus = min(1, ray.cluster_resources().get("GPU", 0))

    def map_on_ray(function, runs):
        call = ray.remote(num_cpus=cpus, num_gpus=gpus)(lambda run: function(run))
        tasks = [call.remote(run) for run in runs]
        forwarded = 0
        for task in tasks:
            while not ray.wait([task], timeout=1)[0]:
                if len(signals) > forwarded:
                    forwarded = len(signals)
                    for other in tasks:
                        ray.cancel(other)
            try:
                yield ray.get(task)
            except ray.exceptions.RayError as error:  # it was cancelled, or a node lacks a library
                yield say(str(error))

    return map_on_ray


def main(arguments=None) -> int:
    """The command line. Returns 1 if a run failed, 128 + its number after a signal; wrong arguments exit with 2 at once."""
    parser = argparse.ArgumentParser("python -m helpers.batch")
    parser.add_argument("notebook")
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("parameters", nargs="*")
    parser.add_argument("--ray", help="address of a Ray cluster, or auto")
    parser.add_argument("--cpus", type=int, default=1)
    options = parser.parse_intermixed_args(arguments)
    batch = options.output_dir.resolve()
    try:
        notebook = load_notebook_node(options.notebook)
        waiting = runs = plan(notebook, batch, options.parameters)
        place = connect(options.ray, options.cpus) if options.ray else map
    except (ValueError, OSError, ImportError) as error:
        parser.error(str(error))
    batch.mkdir(parents=True, exist_ok=True)
    (batch / RUN_FILE).touch()  # so that nobody reads this folder as data
    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)
    for patience in (3, -1):  # seconds: a run that another command works on is looked at again at the end
        passed_over = []
        for run, is_over in zip(waiting, place(partial(execute, notebook, patience), waiting), strict=True):
            rows = [row | recorded(row["output_dir"]) for _, row in runs]
            table = pandas.json_normalize(rows).convert_dtypes()
            table.to_csv(batch / "results.csv", index=False)
            if not is_over:
                passed_over.append(run)
        waiting = passed_over
    print(table[["run", "status", "error"]].to_string(index=False))
    if signals:
        return 128 + signals[0]
    return int(not {*table["status"]} <= {"done", "stopped"})
