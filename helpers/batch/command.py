"""Run a notebook over a grid of parameters with papermill: strict names and types, resumable, one table out.

    python -m helpers.batch NOTEBOOK --output-dir DIR name=value [name=v1,v2,v3 ...] [--kernel NAME]
        [--jobs N | --ray ADDRESS [--cpus N] [--gpus N]] [--grace SECONDS]

Each combination has its own folder `DIR/<run name>/` with the executed notebook and, in `output/`, what the notebook
wrote. The same command again skips runs that are done and resumes the others. SIGTERM and Ctrl-C are passed on to the
kernels, which have `grace` seconds to save a checkpoint.
"""

import argparse
import contextlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, wait
from pathlib import Path
from typing import Any

from helpers.show import tables

from .execution import POLL, Ended, LocalRuns, finished, logger, show_output
from .grid import Run, inspect, parse, plan
from .ray_runs import RayRuns

PRINTED = ("train.loss_last", "train.examples_per_second", "eval.after.")
COLUMNS = 9  # of the printed table
GRACE = 60.0  # seconds between SIGTERM and SIGKILL: a long step and a checkpoint


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
        "stopped" or "not run"), `seconds`, `error`, `notebook`, `output_dir`, and every scalar of results.json under its
        dotted name.

    Raises:
        ValueError: before anything runs: a name that the notebook does not have, a value of another type, or a
            kernel that is not installed.
        FileNotFoundError: there is no such notebook, or `data_source` is a path without a file.
        Stopped: SIGTERM or SIGINT came (to the main thread), all kernels have ended, and the table is written.
    """
    runs = _checked(notebook, output_dir, grid or {}, fixed or {}, kernel_name)
    return _run(runs, place or LocalRuns(), kernel_name, grace)


def _checked(notebook, output_dir, grid, fixed, kernel_name: str) -> list[tuple[Run, Ended | None]]:
    """Every run, and what it gave if it is done. Raises as `run`."""
    from jupyter_client.kernelspec import KernelSpecManager

    installed = KernelSpecManager().find_kernel_specs()
    if kernel_name not in installed:
        there = ", ".join(sorted(installed)) or "none"
        raise ValueError(f"kernel={kernel_name!r} is not installed; there are: {there}")
    return [(each, finished(each)) for each in plan(notebook, output_dir, grid, fixed)]


def _run(
    runs: Sequence[tuple[Run, Ended | None]], place: LocalRuns | RayRuns, kernel_name: str, grace: float
) -> list[dict[str, Any]]:
    table = _Table([each for each, _ in runs])
    for each, before in runs:
        if before:
            table.book(each, *before)
    with _signals() as arrived:
        try:
            futures = {place.submit(each, kernel_name): each for each, before in runs if not before}
            waiting, deadline = {*futures}, math.inf
            while waiting:
                ended, waiting = wait(waiting, POLL, FIRST_COMPLETED)
                for future in ended:
                    table.book(futures[future], *future.result())
                if arrived and deadline == math.inf:
                    deadline = time.monotonic() + grace
                    place.stop()
                    logger.info("waiting up to %g s for the checkpoints of the running notebooks", grace)
                if time.monotonic() > deadline or arrived.count(signal.SIGINT) > 1:
                    place.kill()
        finally:
            place.kill()
    rows = [*table.rows.values()]
    if arrived:
        raise Stopped(arrived[0], rows)
    return rows


class _Table:
    """The rows of all runs, in the order of the grid, and their file, which is written whenever a run has ended."""

    def __init__(self, runs: Sequence[Run]):
        start = {"status": "not run", "seconds": "", "error": ""}
        self.rows = {each.name: {"run": each.name, **each.varied, **start} for each in runs}

    def book(self, each: Run, outcome: Mapping, results: Mapping) -> None:
        import pandas

        row = self.rows[each.name]
        row |= {**outcome, "notebook": str(each.executed), "output_dir": str(each.output_dir)}
        for name, value in pandas.json_normalize(results).to_dict("records")[0].items() if results else ():
            if not isinstance(value, list):
                row.setdefault(name, value)
        logger.info("%s %s %s", each.name, row["status"], row["error"])
        if row["status"] != "not run":
            each.executed.parent.parent.mkdir(parents=True, exist_ok=True)
            pandas.DataFrame([*self.rows.values()], dtype=object).to_csv(
                each.executed.parent.parent / "results.csv", index=False
            )


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


def text_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Run, status and seconds, with loss, throughput and the first of `eval.after` in the results; the CSV file has all."""
    names = ("run", "status", "seconds", *(name for row in rows for name in row if name.startswith(PRINTED)))
    return tables.text([{name: row.get(name) for name in [*dict.fromkeys(names)][:COLUMNS]} for row in rows])


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
        runs = _checked(options.notebook, options.output_dir, grid, fixed, options.kernel)
        place = _place(options)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    try:
        rows, code = _run(runs, place, options.kernel, options.grace), 0
    except Stopped as stopped:
        rows, code = stopped.rows, stopped.code
    print(text_table(rows))
    for row in (row for row in rows if row["status"] != "not run"):
        lines = (f"{row['run']} {row['status']}: {row['output_dir']}", row["error"], row.get("caveats"))
        print("", *filter(None, lines), sep="\n")
    print(f"\ntable {options.output_dir.expanduser().resolve() / 'results.csv'}")
    if code:
        number = signal.Signals(code - 128).name
        print(f"stopped by {number}: the same command again resumes what was stopped, and runs the rest")
    return code or int(any(row["status"] == "failed" for row in rows))


def _place(options: argparse.Namespace) -> LocalRuns | RayRuns:
    if options.ray:
        return RayRuns(options.ray, options.cpus, options.gpus)
    if (options.cpus, options.gpus) != (None, None):
        raise ValueError(
            f"cpus={options.cpus}, gpus={options.gpus}: these need --ray; without it a run sees the whole machine"
        )
    return LocalRuns(options.jobs)
