"""One run of a notebook: executed by papermill in a kernel of its own, and judged by what it wrote.

papermill reports success after `sys.exit` half way and for a NaN loss; here both are failures.
"""

import itertools
import json
import logging
import math
import time
from ast import literal_eval
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.batch.grid import inspect, literal_path
from helpers.batch.kernels import Kernels
from helpers.parameters import LENGTH, Parameters, extra

PAPERMILL_CHATTER = ("Executing ", "Ending Cell", "Input Notebook", "Output Notebook")
Ended = tuple[dict[str, Any], dict[str, Any]]  # columns of the table; results.json
logger = logging.getLogger("helpers.batch")


@dataclass(frozen=True)
class Run:
    """One combination: its name, what varies, all parameters passed to the notebook, its path and that of the executed copy."""

    name: str
    varied: dict[str, Any]
    parameters: dict[str, Any]
    notebook: Path
    executed: Path

    @property
    def output_dir(self) -> Path:
        return Path(self.parameters["output_dir"])


def show_output(jobs: int = 1) -> None:
    """Logs to stderr what runs and what the notebooks print; with several jobs each line begins with its run."""
    handler = logging.StreamHandler()
    handler.setFormatter(_Marked() if jobs > 1 else logging.Formatter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING)
    logger.setLevel(logging.INFO)
    notebook_output = logging.getLogger("papermill")
    notebook_output.setLevel(logging.INFO)
    notebook_output.addFilter(lambda record: not record.getMessage().startswith(PAPERMILL_CHATTER))


class _Marked(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        run = "" if record.threadName == "MainThread" else f"{record.threadName}: "
        return "\n".join(run + line for line in super().format(record).splitlines())


def _effective(notebook: Path, passed: Mapping[str, Any]) -> dict[str, Any]:
    """Parameters that tell runs apart: what is passed, and the notebook's defaults for the others."""
    watched = {name for name, field in Parameters.model_fields.items() if not extra(field)["identity"]}

    def value(text: str) -> Any:
        try:
            return literal_eval(text)
        except (ValueError, SyntaxError):  # papermill cuts a default at its first #: compare the rest as text
            return text

    defaults = {name: value(parameter["default"]) for name, parameter in inspect(notebook).items()}
    return {name: v for name, v in {**defaults, **passed}.items() if name not in watched}


def finished(each: Run) -> Ended | None:
    """(outcome, results) of a run that is done; None for one that must be executed.

    Raises:
        ValueError: the run's folder holds another run, or a notebook that is cut short.
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
    another = [name for name in changed if name not in LENGTH]
    if another and each.output_dir.is_dir() and any(each.output_dir.iterdir()):
        values = ", ".join(f"{name}={before.get(name)!r} there, {now.get(name)!r} now" for name in another)
        raise ValueError(f"{each.executed.parent} holds another run ({values}): choose another --output-dir")
    error, results = _outcome(executed, each.output_dir)
    if error or changed:
        return None
    seconds = round(executed.metadata.papermill.duration, 1)
    return {"status": "done before", "seconds": seconds, "error": "", "failed_cell": ""}, results


def execute(each: Run, kernel_name: str, kernels: Kernels, environment: Mapping[str, str] | None = None) -> Ended:
    """Runs the notebook, in any thread; the status is "done", "failed", or "stopped" after `kernels.stop()`.

    Args:
        kernels: registers its kernel.
        environment: variables for its kernel, besides those of this process.
    """
    import nbformat
    from papermill import PapermillExecutionError, execute_notebook

    logger.info("%s starts", each.name)
    each.executed.parent.mkdir(parents=True, exist_ok=True)
    if each.executed.exists():  # unfinished: its traceback is evidence
        attempts = (each.executed.with_suffix(f".attempt{n}.ipynb") for n in itertools.count(1))
        each.executed.rename(next(path for path in attempts if not path.exists()))
    written = _written(each.output_dir)
    error, results, start = "", {}, time.perf_counter()
    paths = literal_path(each.notebook), literal_path(each.executed)
    options = {"kernel_name": kernel_name, "progress_bar": False, "log_output": True}
    try:
        with kernels.manager(environment or {}) as manager:
            execute_notebook(*paths, each.parameters, kernel_manager_class=manager, **options)
    except PapermillExecutionError as failure:
        error = f"{failure.ename}: {failure.evalue}"
    # A full disk; nbclient's DeadKernelError (killed, out of memory) and a kernel that never starts.
    except (OSError, RuntimeError) as failure:
        error = f"{type(failure).__name__}: {failure}"
    seconds = round(time.perf_counter() - start, 1)
    executed = nbformat.read(each.executed, as_version=4) if each.executed.exists() else nbformat.v4.new_notebook()
    # Counted, since a kernel that dies may not have reported its cell; the last one when all cells ran.
    started = sum(cell.metadata.papermill.start_time is not None for cell in _code_cells(executed))
    if not error:
        error, results = _outcome(executed, each.output_dir)
    if not error and _written(each.output_dir) == written:
        error, results = f"{each.output_dir / 'results.json'} is from an earlier run, this one did not write it", {}
    status = ("stopped" if kernels.stopping else "failed") if error else "done"
    failed_cell = started if error else ""
    return {"status": status, "seconds": seconds, "error": error, "failed_cell": failed_cell}, results


def _code_cells(executed: Any) -> list[Any]:
    return [cell for cell in executed.cells if cell.cell_type == "code" and cell.source.strip()]


def _outcome(executed: Any, output_dir: Path) -> tuple[str, dict[str, Any]]:
    """What is wrong with an executed notebook ("" for nothing) although papermill reports success, and its results."""
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
