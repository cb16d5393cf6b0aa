"""The fault table: every way that a run can be disturbed, in real processes. `make faults` writes docs/results/faults.json.

    python tests/faults.py                              the cells that are missing in docs/results/faults.json
    python tests/faults.py --only 'papermill/*' --again

A cell trains (tests/moments.py), disturbs the training at a moment, waits for the end, which may take `LIMIT` seconds,
starts the same again, and compares the last checkpoint and the losses with those of an undisturbed run: bit for bit. Each
is written as soon as it is known, so that a second call goes on where the first one ended.

where      bare script, papermill, helpers.batch, kernel shutdown, Stop button, one of two processes, launcher of two
           processes (accelerate's, which is torchrun's agent), Ray node
when       in a step, in an evaluation, while a checkpoint is written, and on XLA while the first step is compiled
how        SIGTERM, SIGINT, SIGKILL

What is not there. The Stop button is SIGINT and nothing else. A kernel shutdown is one request, which Jupyter makes of SIGINT
and SIGTERM, and SIGKILL where it has no patience. Ray's nodes are scaled away (SIGTERM) or break down (SIGKILL); nobody
presses Ctrl-C there. Several processes and Ray's nodes train on CPUs and GPUs, not on XLA.

What is left out, so that the table takes an hour of one core. Every place has the reservoir notebook's trainer. The trainers of
the other four notebooks run as a bare script, and there, as on XLA, SIGINT is left out: one handler serves it and SIGTERM.
On XLA what runs in a kernel is disturbed in a step and while it compiles.

The single faults are in tests/single_faults.py.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import fnmatch
import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from datetime import date
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.run import provenance  # noqa: E402
from helpers.train import checkpoint  # noqa: E402
from tests import fault_places, moments, single_faults  # noqa: E402
from tests.fault_places import PLACES, Command, output_of  # noqa: E402

RESULTS = ROOT / "docs/results/faults.json"
LIMIT = 60.0  # seconds that a run has to end after the fault
PATIENCE = 300.0  # seconds that an undisturbed run has
GOOD = ("identical", "equal", "stopped")
SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL")
FEW = ("SIGTERM", "SIGKILL")
MOMENTS = ("step", "evaluation", "write")
TELLING = re.compile(
    r"(process \d failed: |skipped |resuming from |out of memory|report_to=|data_source=|\b[A-Z]\w+Error: |\bStopped: |NonFinite|CheckpointNot|"
    r"FolderTaken).*"
)
KERNELS = ("papermill", "helpers.batch", "kernel shutdown", "Stop button")


class Cell(NamedTuple):
    """What is disturbed, and how. Of a single fault `when` is empty and `how` its name."""

    where: str
    when: str
    how: str
    model: str = "reservoir"
    kind: str = "cpu"

    @property
    def name(self) -> str:
        return "/".join(self)


def signals_of(where: str) -> tuple[str, ...]:
    if where == "Stop button":
        return ("SIGINT",)
    return FEW if where in ("kernel shutdown", "Ray node") else SIGNALS


def cells() -> list[Cell]:
    """All cells, in the order in which they run."""
    found = [Cell(where, when, how) for where in PLACES for when in MOMENTS for how in signals_of(where)]
    others = [model for model in moments.DRIVERS if model != "reservoir"]
    found += [Cell("bare script", when, how, model) for model in others for when in MOMENTS for how in FEW]
    on_xla = [(model, when) for model in moments.DRIVERS for when in ("compile", *MOMENTS)]
    found += [Cell("bare script", when, how, model, "xla") for model, when in on_xla for how in FEW]
    for where in KERNELS:
        kept = [how for how in signals_of(where) if how != "SIGINT"] or ["SIGINT"]
        found += [Cell(where, when, how, "reservoir", "xla") for when in ("step", "compile") for how in kept]
    return found + [Cell("single fault", "", name, "reservoir", kind) for name, kind in single_faults.listed()]


# ---- one cell


class Bad(Exception):
    """A cell that is not as it should be: the outcome, and what there is to say."""


def ending(output_dir: Path) -> dict:
    """Digests of what training would continue from, and all losses, at the last step of a finished run."""
    last, skipped = checkpoint.newest_whole(output_dir)
    if last is None or checkpoint.step_of(last) != moments.STEPS or skipped:
        raise Bad("failed", f"ends with {last and last.name}, {skipped}")
    files = [*last.rglob("*.safetensors"), last / "optimizer.pt", last / "scheduler.pt"]
    found = {str(path.relative_to(last)): hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(files)}
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    timed = ("runtime", "per_second", "seconds")
    return found | {"losses": [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in history]}


class References:
    """Undisturbed runs, made once for each version of the helpers and kept in a temporary folder."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.gettempdir()) / f"fault-references-{provenance.payload()[:12]}"
        self.lock = threading.Lock()

    def of(self, model: str, kind: str, place: type[Command] = Command, **options) -> dict:
        if not issubclass(place, fault_places.TwoProcesses):
            place = Command
        known = self.folder / f"{model}-{kind}-{place.__name__}-{hashlib.md5(str(options).encode()).hexdigest()[:6]}"
        with self.lock:
            if not (known / "whole").exists():
                shutil.rmtree(known, ignore_errors=True)
                finish(place, known, kind, model, options_of(model) | options)
                (known / "whole").touch()
        return ending(output_of(known))


def options_of(model: str) -> dict:
    """GraphMER reads sources: two packages of the standard library, copied once."""
    if model != "graphmer":
        return {}
    sources = Path(tempfile.gettempdir()) / "fault-sources"
    for name in ("json", "http"):
        package = Path(json.__file__).parents[1] / name
        shutil.copytree(package, sources / name, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    return {"data": str(sources)}


def finish(place: type[Command], work: Path, kind: str, model: str = "reservoir", options: dict | None = None, **more):
    """Runs to the end, which must be a good one; returns what was said."""
    run = place(work, kind, model, options, **more)
    try:
        deadline = time.monotonic() + PATIENCE
        while run.goes_on():
            if time.monotonic() > deadline:
                raise Bad("hung", f"after {PATIENCE:.0f} s without a fault")
            time.sleep(0.05)
        if not run.ended_well():
            raise Bad("failed", last_words(run.said()))
        return run.said()
    finally:
        run.close()


def last_words(said: str) -> str:
    """Why a run ended, of what it printed; nothing where it had no time to say it."""
    found = [match[0] for line in said.splitlines() if (match := TELLING.search(line))]
    return re.sub(r"/[^ ]*/run/output", "output_dir", (found or [""])[-1])[:400]


def disturb(cell: Cell, work: Path) -> dict:
    """The fault: what was said, the steps finished when it came, those of the newest whole checkpoint after it, and how long
    the end took."""
    (work / "run").mkdir(parents=True)
    (work / "run" / "moment").write_text(cell.when)
    run = PLACES[cell.where](work, cell.kind, cell.model, options_of(cell.model))
    try:
        deadline = time.monotonic() + PATIENCE
        while not (work / "run" / "reached").exists():
            if not run.goes_on() or time.monotonic() > deadline:
                raise Bad("missed", f"never came to the moment: {last_words(run.said())}")
            time.sleep(0.02)
        time.sleep(0.2)
        family = run.family()
        began = time.monotonic()
        run.strike(cell.how)
        if (work / "run" / "left").exists() and cell.where not in ("kernel shutdown", "Ray node"):  # they take longer
            raise Bad("missed", "the moment was over")
        if cell.where == "Ray node":  # goes on by itself
            while run.goes_on():
                if time.monotonic() - began > PATIENCE:
                    raise Bad("hung", last_words(run.said()))
                time.sleep(0.1)
        elif not fault_places.all_gone(family, LIMIT):
            raise Bad("hung", last_words(run.said()))
        while run.goes_on():  # a cell that was interrupted: its kernel stays
            if time.monotonic() - began > LIMIT:
                raise Bad("hung", last_words(run.said()))
        newest, _ = checkpoint.newest_whole(output_of(work))
        seconds = round(time.monotonic() - began, 1)
        finished, saved = int((work / "run" / "reached").read_text()), newest and checkpoint.step_of(newest)
        if saved == moments.STEPS and cell.where != "Ray node":
            raise Bad("missed", "the run took no notice")
        return {"said": last_words(run.said()), "finished": finished, "saved": saved, "seconds": seconds}
    finally:
        run.close()


def outcome(cell: Cell, references: References, work: Path) -> dict:
    """Everything that is to be said of a cell."""
    if cell.where == "single fault":
        return single_faults.outcome(cell.how, cell.kind, references, work)
    place = PLACES[cell.where]
    expected = references.of(cell.model, cell.kind, place)
    found = disturb(cell, work)
    if cell.where == "Ray node" and found["saved"] == moments.STEPS:
        found["said"] = "the run went on to its end on another node"
    else:
        finish(place, work, cell.kind, cell.model, options_of(cell.model))
    got = ending(output_of(work))
    differs = [name for name in expected if got.get(name) != expected[name]]
    return {"outcome": "lost" if differs else "identical", **found} | ({"differs": differs} if differs else {})


# ---- all of them


def versions(kind: str) -> dict[str, str]:
    code = "import json; from helpers.run import provenance; print(json.dumps(provenance.versions()))"
    command = [fault_places.python(kind), "-c", code]
    return json.loads(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout)


class Table:
    """docs/results/faults.json, written after each cell."""

    def __init__(self, path: Path):
        self.path, self.lock = path, threading.Lock()
        self.found = json.loads(path.read_text())["cells"] if path.exists() else {}
        self.about = {"code": provenance.code(), "versions": versions("cpu"), "versions_xla": versions("xla")}

    def add(self, cell: Cell, found: dict) -> None:
        with self.lock:
            about = {"on": date.today().isoformat(), "payload": self.about["code"]["payload_sha256"][:12]}
            self.found[cell.name] = cell._asdict() | found | about
            known = {each.name: self.found[each.name] for each in cells() if each.name in self.found}
            written = {"schema": 2, "on": about["on"], **self.about, "cells": known}
            self.path.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")


def run(cell: Cell, references: References, table: Table) -> bool:
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        try:
            found = outcome(cell, references, Path(folder))
        except Exception as error:
            bad = error.args if isinstance(error, Bad) else ("failed", repr(error))
            found = {"outcome": bad[0], "said": bad[1]}
            with contextlib.suppress(OSError):
                shutil.copy(Path(folder) / "log.txt", Path(tempfile.gettempdir()) / "fault-last-bad.log")
    table.add(cell, found)
    print(f"{found['outcome']:<10}{cell.name}  {found['said'][:100]}", flush=True)
    return found["outcome"] in GOOD


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="of where/when/how/model/kind")
    parser.add_argument("--jobs", type=int, default=1, help="cells at once")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--again", action="store_true", help="also the cells that are there with a good outcome")
    parser.add_argument("--list", action="store_true", help="name the cells and run none")
    options = parser.parse_args()
    chosen = [cell for cell in cells() if any(fnmatch.fnmatch(cell.name, pattern) for pattern in options.only)]
    if options.list:
        print(*(cell.name for cell in chosen), sep="\n")
        return 0
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or a run would inherit that nohup ignores it
    table, references = Table(options.out), References()
    done = {name for name, cell in table.found.items() if cell["outcome"] in GOOD and not options.again}
    waiting = [cell for cell in chosen if cell.name not in done]
    on_ray = [cell for cell in waiting if cell.where == "Ray node"]  # a cluster wants the main thread
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        good = [*pool.map(lambda cell: run(cell, references, table), [each for each in waiting if each not in on_ray])]
    good += [run(cell, references, table) for cell in on_ray]
    print(f"{len(done & {cell.name for cell in chosen})} were there, {sum(good)} of {len(waiting)} are good")
    return int(not all(good))


if __name__ == "__main__":
    sys.exit(main())
