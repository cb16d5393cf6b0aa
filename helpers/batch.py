"""Run a notebook over a grid of parameters with papermill: strict names and types, resumable, one table out.

    python -m helpers.batch NOTEBOOK --output-dir DIR name=value [name=v1,v2,v3 ...] [--kernel NAME] [--stop-on-error]

Each combination has its own folder `DIR/<run name>/` with the executed notebook and, in `output/`, what the notebook
wrote. Called again, runs that finished are skipped and the others are resumed. papermill reports success for things
that are none (a misspelt parameter, `sys.exit` half way, a NaN loss); here each of them is a failure.
"""

import argparse
import csv
import itertools
import json
import logging
import math
import sys
import time
from ast import literal_eval
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers import tables
from helpers.grid import inspect, kind_of, literal_path, parse, run_name
from helpers.parameters import NOT_IDENTITY, one_of, source_path, typed

PRINTED = ("train.loss_last", "train.examples_per_second", "eval.after.")
PAPERMILL_CHATTER = ("Executing ", "Ending Cell", "Input Notebook", "Output Notebook")
logger = logging.getLogger("helpers.batch")


@dataclass(frozen=True)
class Run:
    """One combination: its name, what varies, all that is passed to the notebook, and where things go."""

    name: str
    varied: dict[str, Any]
    parameters: dict[str, Any]
    notebook: Path
    executed: Path

    @property
    def output_dir(self) -> Path:
        return Path(self.parameters["output_dir"])


def run(
    notebook: Path,
    output_dir: Path,
    grid: Mapping[str, Sequence] | None = None,
    fixed: Mapping[str, Any] | None = None,
    kernel_name: str = "python3",
    on_error: str = "continue",
) -> list[dict[str, Any]]:
    """Execute `notebook` once for every combination of `grid` and write `output_dir/results.csv`.

    Args:
        notebook: an .ipynb with a cell tagged `parameters` that assigns annotated literals, `output_dir` among them.
            It runs in the caller's working directory.
        output_dir: one folder a run is made in it, named by what varies (`seed=1,learning_rate=0.001`, or `run`).
        grid: values to try, by parameter; the last name varies fastest.
        fixed: values for all runs. `output_dir` is `<output_dir>/<run name>/output` unless given here for a single run.
        kernel_name: Jupyter kernel. `python3` is the interpreter that runs this.
        on_error: "continue" with the other runs, or "stop".

    Returns:
        One flat dict a run, as in the table: `run`, the varied parameters, `status` ("done", "done before", "failed"
        or "not run"), `seconds`, `error`, `failed_cell` (the n of In [n]), `notebook`, `output_dir`, and every scalar
        of results.json under its dotted name.

    Raises:
        ValueError: before anything runs, for a name the notebook does not have, a value of another type, a kernel that
            is not installed, or a folder that holds a run with other parameters.
        FileNotFoundError: no such notebook, or `data_source` is a path and nothing is there.
    """
    one_of("on_error", on_error, ("continue", "stop"))
    runs = plan(notebook, output_dir, grid or {}, fixed or {}, kernel_name)
    rows = [{"run": each.name, **each.varied, "status": "not run", "seconds": "", "error": ""} for each in runs]
    for number, (each, row) in enumerate(zip(runs, rows, strict=True), start=1):
        logger.info("[%d/%d] %s", number, len(runs), each.name)
        outcome, results = _finished(each) or _execute(each, kernel_name)
        row |= {**outcome, "notebook": str(each.executed), "output_dir": str(each.output_dir)}
        for name, value in _scalars(results):
            row.setdefault(name, value)
        logger.info("[%d/%d] %s %s", number, len(runs), row["status"], row["error"])
        _write_csv(each.executed.parent.parent / "results.csv", rows)
        if row["status"] == "failed" and on_error == "stop":
            break
    return rows


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
            raise ValueError(f"{name}={values!r}: a value is there twice, two runs would share a folder")
    varied = [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]
    if "output_dir" in grid or ("output_dir" in fixed and len(varied) > 1):
        raise ValueError("output_dir: runs cannot share or vary it; leave it out, each run gets a folder of its own")
    _check_kernel(kernel_name)
    runs = [_run(notebook, output_dir, each, fixed) for each in varied]
    for each in runs:
        _finished(each)
    return runs


def _run(notebook: Path, output_dir: Path, varied: dict[str, Any], fixed: dict[str, Any]) -> Run:
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
        raise ValueError(f"kernel {name!r} is not installed: there are {', '.join(sorted(installed)) or 'none'}")


def _effective(notebook: Path, passed: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that tell runs apart: the notebook's defaults under what is passed."""

    def value(text: str) -> Any:
        try:
            return literal_eval(text)
        except (ValueError, SyntaxError):  # papermill cuts a default at its first #; compare what it left as text
            return text

    defaults = {name: value(parameter["default"]) for name, parameter in inspect(notebook).items()}
    return {name: v for name, v in {**defaults, **passed}.items() if name not in NOT_IDENTITY}


def _finished(each: Run) -> tuple[dict, dict] | None:
    """(outcome, results) of a run that finished earlier; None for one that has to be executed.

    Raises:
        ValueError: the run's folder holds another run, which executing this one would mix with.
    """
    import nbformat

    if not each.executed.exists():
        return None
    try:
        executed = nbformat.read(each.executed, as_version=4)
    except nbformat.reader.NotJSONError as error:
        raise ValueError(f"{each.executed} is cut short (its batch was killed): delete it to resume the run") from error
    before = _effective(each.executed, executed.metadata.papermill.parameters)
    now = _effective(each.notebook, each.parameters)
    changed = sorted(name for name in before.keys() | now.keys() if before.get(name) != now.get(name))
    if changed and each.output_dir.is_dir() and any(each.output_dir.iterdir()):
        values = ", ".join(f"{name}={before.get(name)!r} there, {now.get(name)!r} now" for name in changed)
        raise ValueError(f"{each.executed.parent} holds another run ({values}): choose another --output-dir")
    error, results = _outcome(executed, each.output_dir)
    if error or changed:
        return None
    seconds = round(executed.metadata.papermill.duration, 1)
    return {"status": "done before", "seconds": seconds, "error": "", "failed_cell": ""}, results


def _execute(each: Run, kernel_name: str) -> tuple[dict, dict]:
    import nbformat
    from papermill import PapermillExecutionError, execute_notebook

    each.executed.parent.mkdir(parents=True, exist_ok=True)
    if each.executed.exists():  # unfinished: its traceback is evidence
        attempts = (each.executed.with_suffix(f".attempt{n}.ipynb") for n in itertools.count(1))
        each.executed.rename(next(path for path in attempts if not path.exists()))
    written = _written(each.output_dir)
    error, results, start = "", {}, time.perf_counter()
    paths = literal_path(each.notebook), literal_path(each.executed)
    try:
        execute_notebook(*paths, each.parameters, kernel_name=kernel_name, progress_bar=False, log_output=True)
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue}"
    except RuntimeError as failure:  # nbclient's DeadKernelError (killed, out of memory) and a kernel that never starts
        error = f"{type(failure).__name__}: {failure}"
    seconds = round(time.perf_counter() - start, 1)
    executed = nbformat.read(each.executed, as_version=4) if each.executed.exists() else nbformat.v4.new_notebook()
    # Counted, as a kernel that dies may not have said its cell's number. It is the last one when all cells ran.
    started = sum(cell.metadata.papermill.start_time is not None for cell in _code_cells(executed))
    if not error:
        error, results = _outcome(executed, each.output_dir)
    if not error and _written(each.output_dir) == written:
        error, results = f"{each.output_dir / 'results.json'} is from an earlier run, this one did not write it", {}
    status, failed_cell = ("failed", started) if error else ("done", "")
    return {"status": status, "seconds": seconds, "error": error, "failed_cell": failed_cell}, results


def _code_cells(executed: Any) -> list[Any]:
    return [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]


def _outcome(executed: Any, output_dir: Path) -> tuple[str, dict[str, Any]]:
    """What papermill let pass in an executed notebook ("" for nothing), and its results."""
    idle = sum(cell.execution_count is None for cell in _code_cells(executed))
    if idle or executed.metadata.papermill.exception:
        return f"the notebook stopped early (sys.exit?), {idle} code cells never ran", {}
    path = output_dir / "results.json"
    if not path.is_file():
        return f"papermill reports success, but there is no {path}", {}
    try:
        results = json.loads(path.read_text())
    except json.JSONDecodeError as error:
        return f"{path} is not JSON: {error}", {}
    loss = (results.get("train") or {}).get("loss_last")
    if not isinstance(loss, (int, float)) or not math.isfinite(loss):
        return f"train.loss_last in {path} is {loss!r}, not a finite number", results
    return "", results


def _written(output_dir: Path) -> int | None:
    path = output_dir / "results.json"
    return path.stat().st_mtime_ns if path.exists() else None


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
    """Run, status, seconds, and of the results the loss, the throughput and `eval.after`."""
    names = ("run", "status", "seconds", *(name for row in rows for name in row if name.startswith(PRINTED)))
    return tables.text([{name: row.get(name) for name in dict.fromkeys(names)} for row in rows])


def places(row: Mapping[str, Any]) -> list[str]:
    """Where a run's things are, an absolute path a line; what a failed run did not write is left out."""
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
    """The command line; returns 1 if any run failed. Wrong arguments exit with 2 before anything runs."""
    parser = argparse.ArgumentParser(prog="python -m helpers.batch", description=__doc__.partition("\n")[0])
    parser.add_argument("notebook", type=Path)
    parser.add_argument("--output-dir", type=Path, required=True)
    parser.add_argument("parameters", nargs="*", metavar="name=value", help="name=v1,v2 runs every combination")
    parser.add_argument("--kernel", default="python3")
    parser.add_argument("--stop-on-error", action="store_true")
    options = parser.parse_intermixed_args(arguments)
    logging.basicConfig(format="%(message)s", level=logging.WARNING)
    logger.setLevel(logging.INFO)
    notebook_output = logging.getLogger("papermill")
    notebook_output.setLevel(logging.INFO)
    notebook_output.addFilter(lambda record: not record.getMessage().startswith(PAPERMILL_CHATTER))
    try:
        grid, fixed = parse(inspect(options.notebook), options.parameters)
        plan(options.notebook, options.output_dir, grid, fixed, options.kernel)
    except (ValueError, FileNotFoundError) as error:
        parser.error(str(error))
    on_error = "stop" if options.stop_on_error else "continue"
    rows = run(options.notebook, options.output_dir, grid, fixed, options.kernel, on_error)
    print(text_table(rows))
    for row in (row for row in rows if row["status"] != "not run"):
        failure = f": {row['error']} (In [{row['failed_cell']}])" if row["error"] else ""
        print(f"\n{row['run']} {row['status']}{failure}", *places(row), sep="\n")
        if row.get("caveats"):
            print(row["caveats"])
    print(f"\ntable    {options.output_dir.expanduser().resolve() / 'results.csv'}")
    return int(any(row["status"] == "failed" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
