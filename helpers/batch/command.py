"""Run a notebook over a grid of parameters with papermill: strict names and types, resumable, one table out.

    python -m helpers.batch NOTEBOOK --output-dir DIR name=value [name=v1,v2,v3 ...]

docs/batch.md describes the folders of the runs, the table and the signals.
"""

import argparse
import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from . import records
from .execution import POLL, LocalRuns, Outcome, show_output
from .grid import Run, parse, plan
from .ray_runs import RayRuns
from .records import logger


def run(runs: Sequence[Run], place: LocalRuns | RayRuns | None = None) -> tuple[list[dict], int]:
    """Executes the runs of a grid (`grid.plan`) that are not done, and writes `results.csv` beside their folders.

    place: where the runs are made; by default one after another on this machine.

    Returns one flat dict for each run, as in the table: `run`, its parameters, `status`, `seconds`, `error`, `notebook`,
    `output_dir`, and every scalar of results.json under its dotted name. Then the number of the signal that ended
    them all, or 0. The first signal lets each run save its checkpoint, the second one kills it.
    """
    place = place or LocalRuns()
    batch = runs[0].folder.parent
    outcomes: dict[Path, Outcome] = {run.folder: {} for run in runs}
    arrived: list[int] = []
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    for number in handlers:
        signal.signal(number, lambda number, frame: arrived.append(number))
    try:
        futures = {place.submit(run): run.folder for run in runs}
        waiting, handled = set(futures), 0
        while waiting:
            ended, waiting = wait(waiting, POLL, FIRST_COMPLETED)
            for future in ended:
                folder = futures[future]
                outcomes[folder] = outcome = _outcome(future, folder, bool(arrived))
                logger.info("%s: %s %s", folder.name, outcome.get("status", "not run"), outcome.get("error", ""))
            if ended:
                rows, file = records.write_table(batch, outcomes)
            if len(arrived) > handled:
                handled = len(arrived)
                ending = signal.SIGTERM if handled == 1 else signal.SIGKILL
                place.send(ending)
                logger.info("waiting for the checkpoints of the running notebooks; a second signal kills them")
    finally:
        place.send(signal.SIGKILL)
        for number, handler in handlers.items():
            signal.signal(number, handler)
    logger.info("table: %s", file)
    return rows[: len(runs)], next(iter(arrived), 0)


def _outcome(future: Future, folder: Path, stopped: bool) -> Outcome:
    try:
        return future.result()
    except Exception as failure:  # such as a full disk, or too many nodes that died: the other runs go on
        if not stopped:
            return {"status": "failed", "error": f"{type(failure).__name__}: {failure}"}
        if records.read(folder).get("status") == "unfinished":
            return {"status": "stopped"}
        return {}


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line. Returns 1 if a run failed, 128 + its number after a signal; wrong arguments exit with 2 at once."""
    parser = argparse.ArgumentParser(prog="python -m helpers.batch", description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="name=v1,v2 runs every combination")
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--jobs", type=int, default=1, help="runs at once on this machine, each on its own GPU")
    where.add_argument("--ray", metavar="ADDRESS", help="send the runs to this Ray cluster; auto: that of this machine")
    parser.add_argument("--cpus", type=int, default=1, help="CPUs of one run on Ray (1)")
    options = parser.parse_intermixed_args(arguments)
    show_output(options.jobs)
    try:
        runs = plan(options.notebook, options.output_dir, parse(options.parameters))
        place = RayRuns(options.ray, options.cpus) if options.ray else LocalRuns(options.jobs)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    rows, number = run(runs, place)
    if number:
        name = signal.Signals(number).name
        print(f"stopped by {name}: give the same command again to finish the other runs")
        return 128 + number
    return int(any(row["status"] == "failed" for row in rows))
