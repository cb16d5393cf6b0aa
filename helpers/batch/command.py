"""Run a notebook over a grid of parameters with papermill: strict names and types, resumable, one table out.

    python -m helpers.batch NOTEBOOK --output-dir DIR name=value [name=v1,v2,v3 ...] [--kernel NAME]
        [--jobs N | --ray ADDRESS [--cpus N] [--gpus N]] [--grace SECONDS]

Each combination has its own folder `DIR/<run name>/` with the executed notebook and, in `output/`, what the notebook
wrote. The same command again skips runs that are done and resumes the others. SIGTERM and Ctrl-C are passed on to the
kernels, which have `grace` seconds to save a checkpoint.
"""

import argparse
import contextlib
import csv
import itertools
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from helpers.batch.execution import Run, finished, logger, show_output
from helpers.batch.grid import inspect, kind_of, parse, run_name, typed
from helpers.batch.local_runs import LocalRuns
from helpers.batch.ray_runs import RayRuns
from helpers.parameters import source_path
from helpers.show import tables

PRINTED = ("train.loss_last", "train.examples_per_second", "eval.after.")
COLUMNS = 9  # of the printed table
GRACE = 60.0  # seconds between SIGTERM and SIGKILL: a long step and a checkpoint
POLL = 0.5  # seconds


class Stopped(SystemExit):
    """A signal stopped the runs: `rows` is the table, and the process exits with 128 + the signal's number."""

    def __init__(self, number: int, rows: list[dict[str, Any]]):
        super().__init__(128 + number)
        self.rows = rows


def run(
    notebook: Path,
    output_dir: Path,
    grid: Mapping[str, Sequence] | None = None,
    fixed: Mapping[str, Any] | None = None,
    kernel_name: str = "python3",
    place: LocalRuns | RayRuns | None = None,
    grace: float = GRACE,
) -> list[dict[str, Any]]:
    """Execute `notebook` once for every combination of `grid` and write `output_dir/results.csv`.

    Args:
        notebook: an .ipynb with a cell tagged `parameters` that assigns annotated literals, `output_dir` among them.
            It runs in the caller's working directory.
        output_dir: gets one folder for each run, named by what varies (`seed=1,learning_rate=0.001`, or `run`).
        grid: values to try, by parameter; the last name varies fastest.
        fixed: values for all runs. `output_dir` is `<output_dir>/<run name>/output` unless given here for a single run.
        kernel_name: Jupyter kernel. `python3` is the interpreter that runs this.
        place: where the runs are made; by default one after another on this machine.
        grace: seconds between SIGTERM and SIGKILL.

    Returns:
        One flat dict for each run, as in the table: `run`, the varied parameters, `status` ("done", "done before", "failed",
        "stopped" or "not run"), `seconds`, `error`, `failed_cell` (the n of In [n]), `notebook`, `output_dir`, and every scalar
        of results.json under its dotted name.

    Raises:
        ValueError: before anything runs: a name that the notebook does not have, a value of another type, a kernel
            that is not installed, or a folder that holds a run with other parameters.
        FileNotFoundError: there is no such notebook, or `data_source` is a path without a file.
        Stopped: SIGTERM or SIGINT came (to the main thread), all kernels have ended, and the table is written.
    """
    runs = plan(notebook, output_dir, grid or {}, fixed or {}, kernel_name)
    return _run(runs, place or LocalRuns(), kernel_name, grace)


def _run(runs: Sequence[Run], place: LocalRuns | RayRuns, kernel_name: str, grace: float) -> list[dict[str, Any]]:
    rows = {
        each.name: {"run": each.name, **each.varied, "status": "not run", "seconds": "", "error": ""} for each in runs
    }

    def book(each: Run, outcome: Mapping, results: Mapping) -> None:
        row = rows[each.name]
        row |= {**outcome, "notebook": str(each.executed), "output_dir": str(each.output_dir)}
        for name, value in _scalars(results):
            row.setdefault(name, value)
        _write_csv(each.executed.parent.parent / "results.csv", list(rows.values()))
        ended = sum(row["status"] != "not run" for row in rows.values())
        logger.info("[%d/%d] %s %s %s", ended, len(rows), each.name, row["status"], row["error"])

    before = {each.name: finished(each) for each in runs}
    for each in runs:
        if before[each.name]:
            book(each, *before[each.name])
    deadline = math.inf
    with _signals() as arrived:
        place.start([each for each in runs if not before[each.name]], kernel_name)
        try:
            while place.going():
                for each, ended in place.ended(POLL):
                    book(each, *ended)
                if arrived and deadline == math.inf:
                    deadline = time.monotonic() + grace
                    place.stop()
                    if place.going():
                        logger.info("waiting up to %g s for the checkpoints of the running notebooks", grace)
                if time.monotonic() > deadline or arrived.count(signal.SIGINT) > 1:
                    place.kill()
        finally:
            place.kill()
    if arrived:
        raise Stopped(arrived[0], list(rows.values()))
    return list(rows.values())


@contextlib.contextmanager
def _signals() -> Iterator[list[int]]:
    """SIGTERM and SIGINT that arrive inside, in order; only the main thread receives them."""
    arrived, before = [], {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGINT):
            before[number] = signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        yield arrived
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def plan(
    notebook: Path,
    output_dir: Path,
    grid: Mapping[str, Sequence],
    fixed: Mapping[str, Any],
    kernel_name: str = "python3",
) -> list[Run]:
    """Every combination as a `Run`, in the order of itertools.product; runs nothing and raises as `run` does."""
    notebook, output_dir = Path(notebook).expanduser().resolve(), Path(output_dir).expanduser().resolve()
    declared = inspect(notebook)
    for name, values in grid.items():
        if isinstance(values, str) or not values:
            raise ValueError(f"{name}={values!r}: give a list with at least one value")
        if name in fixed:
            raise ValueError(f"{name} is both fixed and varied: give it once")
    grid = {name: [typed(name, value, kind_of(declared, name)) for value in values] for name, values in grid.items()}
    fixed = {name: typed(name, value, kind_of(declared, name)) for name, value in fixed.items()}
    for name, values in grid.items():
        if len(set(values)) < len(values):
            raise ValueError(f"{name}={values!r}: a value is given twice, so two runs would share a folder; remove one")
    varied = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if "output_dir" in grid or ("output_dir" in fixed and len(varied) > 1):
        raise ValueError("output_dir: runs cannot share or vary it; leave it out, each run gets a folder of its own")
    _check_kernel(kernel_name)
    runs = [_one(notebook, output_dir, each, fixed) for each in varied]
    for each in runs:
        finished(each)
    return runs


def _one(notebook: Path, output_dir: Path, varied: dict[str, Any], fixed: dict[str, Any]) -> Run:
    folder = output_dir / run_name(varied)
    parameters = {"output_dir": str(folder / "output"), **fixed, **varied}
    parameters["output_dir"] = str(Path(parameters["output_dir"]).expanduser().resolve())
    if "data_source" in parameters and (path := source_path("data_source", parameters["data_source"])) is not None:
        parameters["data_source"] = str(path.resolve())
    return Run(folder.name, varied, parameters, notebook, folder / notebook.name)


def _check_kernel(name: str) -> None:
    from jupyter_client.kernelspec import KernelSpecManager

    installed = KernelSpecManager().find_kernel_specs()
    if name not in installed:
        raise ValueError(f"kernel={name!r} is not installed; there are: {', '.join(sorted(installed)) or 'none'}")


def _scalars(tree: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{prefix}{name}.")
        elif not isinstance(value, list):
            yield f"{prefix}{name}", value


def _write_csv(path: Path, rows: Sequence[Mapping]) -> None:
    with path.open("w", newline="") as file:
        table = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)))
        table.writeheader()
        table.writerows(rows)


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Run, status and seconds, with loss, throughput and the first of `eval.after` in the results; the CSV file has all."""
    names = ("run", "status", "seconds", *(name for row in rows for name in row if name.startswith(PRINTED)))
    return tables.text([{name: row.get(name) for name in [*dict.fromkeys(names)][:COLUMNS]} for row in rows])


def places(row: Mapping[str, Any]) -> list[str]:
    """Absolute paths of what a run wrote, one in each line."""
    output_dir, model = Path(row["output_dir"]), row.get("artifacts.model")
    paths = {
        "notebook": Path(row["notebook"]),
        "results": output_dir / "results.json",
        "figures": output_dir / "figures",
    }
    if model:
        paths["model"] = output_dir / model if (output_dir / model).exists() else Path(model).resolve()
    return [f"{name:<9}{path}" for name, path in paths.items() if path.exists()]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 1 if a run failed, 128 + its number after a signal; wrong arguments exit with 2 at once."""
    parser = argparse.ArgumentParser(prog="python -m helpers.batch", description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="name=v1,v2 runs every combination")
    parser.add_argument("--kernel", default="python3")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=int, default=1, help="runs at once on this machine, each on its own GPU")
    where.add_argument("--ray", metavar="ADDRESS", help="send the runs to this Ray cluster; auto: that of this machine")
    parser.add_argument("--cpus", type=int, help="CPUs of one run on Ray (1)")
    parser.add_argument("--gpus", type=int, help="GPUs of one run on Ray (1 if the cluster has any)")
    parser.add_argument("--grace", type=float, default=GRACE, help=f"seconds between SIGTERM and SIGKILL ({GRACE:g})")
    options = parser.parse_intermixed_args(arguments)
    show_output(options.jobs)
    try:
        grid, fixed = parse(inspect(options.notebook), options.parameters)
        runs = plan(options.notebook, options.output_dir, grid, fixed, options.kernel)
        if options.ray:
            place = RayRuns(options.ray, options.cpus, options.gpus)
        elif (options.cpus, options.gpus) != (None, None):
            raise ValueError(
                f"cpus={options.cpus}, gpus={options.gpus}: these need --ray; without it a run sees the whole machine"
            )
        else:
            place = LocalRuns(options.jobs)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    try:
        rows = _run(runs, place, options.kernel, options.grace)
        code = int(any(row["status"] == "failed" for row in rows))
    except Stopped as stopped:
        rows, code = stopped.rows, stopped.code
    print(text_table(rows))
    for row in (row for row in rows if row["status"] != "not run"):
        failure = f": {row['error']} (In [{row['failed_cell']}])" if row["error"] else ""
        print(f"\n{row['run']} {row['status']}{failure}", *places(row), sep="\n")
        if row.get("caveats"):
            print(row["caveats"])
    print(f"\ntable    {options.output_dir.expanduser().resolve() / 'results.csv'}")
    if code > 128:
        print(
            f"stopped by {signal.Signals(code - 128).name}: the same command again resumes what was stopped, and runs the rest"
        )
    return code
