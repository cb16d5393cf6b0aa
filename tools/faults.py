"""The fault table: every way to disturb a run, in real processes. `make faults` writes docs/results/faults.json.

    python tools/faults.py                              the cells that are missing in docs/results/faults.json
    python tools/faults.py --only 'script/*' --again

A cell trains a small model (tests/training_run.py), which stands still at a moment until the fault has come; then it starts the
same again and compares the last checkpoint and the losses with those of an undisturbed run, bit for bit. Each cell is written
as soon as it is known, so that a second call goes on where the first one ended.

where    a script, helpers.batch, a notebook kernel; a Colab runtime that is taken away with its disk, and a new one with the Drive;
         cells of one kernel, run again in it
when     in a step, while a checkpoint is saved
how      SIGTERM, SIGINT, SIGKILL. Of a kernel these are Jupyter's shutdown, the Stop button and a shutdown without patience

On XLA the script is disturbed. The faults of disks, files and numbers come to the script in a step.
"""

from __future__ import annotations

import argparse
import contextlib
import fnmatch
import itertools
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
from helpers.run import checkpoint, provenance  # noqa: E402
from tests import colab, harness  # noqa: E402
from tests.batch import notebook  # noqa: E402

RESULTS = ROOT / "docs/results/faults.json"
PYTHONS = {"cpu": ROOT / ".venv-gpu/bin/python", "xla": ROOT / ".venv-tpu/bin/python"}
LIMIT = 600.0  # seconds after which a run counts as hung
LAST = 12
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
OPTIONS = {"width": 16}  # what the small notebook of the batch tests trains with
SIGNALS = ("SIGTERM", "SIGINT", "SIGKILL")
ENDS = ("SIGTERM", "SIGKILL")
TELLING = re.compile(
    r"(keep_in: |not whole|resuming from |\b[A-Z]\w+Error: |\bStopped: |NonFinite|Checkpoint[NU]\w+: |FolderTaken).*"
)


class Cell(NamedTuple):
    where: str
    when: str
    how: str
    kind: str = "cpu"

    @property
    def name(self) -> str:
        return "/".join(self)


class Bad(Exception):
    """A cell that is not as it should be."""


# ---- where a run goes on


class Script:
    """The run as a command in a process of its own, which gets the signal."""

    before: tuple[str, ...] = ()

    def __init__(self, work: Path, kind: str, **options):
        self.work, self.kind, self.options = work, kind, OPTIONS | {"kind": kind} | options
        self.output, self.log = work / "run", work / "log.txt"
        self.output.parent.mkdir(parents=True, exist_ok=True)
        self.start()

    def command(self) -> list:
        return ["-m", "tests.training_run", self.output, json.dumps(self.options)]

    def start(self) -> None:
        with self.log.open("w") as log:
            command = map(str, [*self.before, python(self.kind), *self.command()])
            pipes = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            self.process = psutil.Popen([*command], cwd=ROOT, env=ENVIRONMENT, start_new_session=True, **pipes)

    def goes_on(self) -> bool:
        return self.process.poll() is None

    def strike(self, how: str) -> None:
        """The fault; returns when all that the run consists of is gone."""
        family = [self.process, *self.process.children(recursive=True)]
        self.target().send_signal(getattr(signal, how))
        _, alive = psutil.wait_procs(family, timeout=LIMIT)
        expect(not alive, f"hung: {len(alive)} processes go on after {LIMIT:.0f} s")

    def target(self) -> psutil.Process:
        return self.process

    def finish(self) -> str:
        """Runs to its end; what it said. Raises Bad if that is not a good one."""
        self.process.wait(LIMIT)
        expect(self.process.returncode == 0, self.said())
        return self.said()

    def said(self) -> str:
        return self.log.read_text(errors="replace")

    def close(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            for process in [*self.process.children(recursive=True), self.process]:
                process.kill()


class Batch(Script):
    """Where it stands still is a parameter, and with another one it would be another run."""

    def command(self):
        when = self.work / "when"
        if "hold" in self.options:
            when.write_text(self.options["hold_when"])
        defaults = {"ending": "train", "hold": f"file:{self.work / 'hold'}", "hold_when": when.read_text()}
        made = notebook.write(self.work / "tiny.ipynb", **defaults)
        return ["-m", "helpers.batch", made, "--output-dir", self.work]


class Kernel(Script):
    """A notebook's cell in a kernel of which this process is the Jupyter server."""

    def start(self):
        from jupyter_client import KernelManager

        self.manager = KernelManager(
            kernel_name="python3", shutdown_wait_time=LIMIT
        )  # a busy machine may need more than 5 s
        self.manager.kernel_spec.argv = [python(self.kind), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        with self.log.open("w") as log:
            self.manager.start_kernel(env=ENVIRONMENT, cwd=str(ROOT), stdout=log, stderr=log)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=LIMIT)
        self.process = psutil.Process(self.manager.provisioner.pid)
        self.execute()

    def execute(self) -> None:
        self.reply = {}
        code = "from tests import training_run as run\nrun.main({!r}, run.DEFAULTS | {!r})"
        self.asked = self.client.execute(code.format(str(self.output), self.options))

    def goes_on(self):
        with contextlib.suppress(Exception):  # queue.Empty: no reply yet
            message = self.client.get_shell_msg(timeout=0.05)
            if message["parent_header"].get("msg_id") == self.asked:
                self.reply = message["content"]
        return not self.reply and self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE

    def strike(self, how):
        if how == "SIGINT":  # the cell ends, the kernel stays
            self.manager.interrupt_kernel()
        else:
            self.manager.shutdown_kernel(now=how == "SIGKILL")
        wait_for(lambda: not self.goes_on(), "hung")

    def finish(self):
        wait_for(lambda: not self.goes_on(), "hung")
        expect(self.reply.get("status") == "ok", self.said())
        return self.said()

    def said(self):
        return f"{self.reply['ename']}: {self.reply['evalue']}" if self.reply.get("status") == "error" else ""

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class Cells(Kernel):
    """Cells of one live kernel: what was stopped is run again in the same process."""

    def go_on(self):
        expect(self.process.is_running(), "the kernel is gone")
        self.options = without_hold(self.options)
        self.execute()
        self.finish()


class NewMachine(Script):
    """A Colab runtime with `keep_in`, which is taken away with its disk; the next one has the Drive alone."""

    before = ("unshare", "--mount")

    def __init__(self, work: Path, kind: str, **options):
        self.drive = colab.Drive(work / "drive")
        super().__init__(work, kind, keep_in="drive", drive=str(self.drive.folder), **options)

    def strike(self, how):
        self.wait_for_copy()
        self.drive.upload()
        super().strike(how)
        self.replace()

    def wait_for_copy(self):
        copies = self.drive.mounted / "MyDrive/kept_runs" / self.output.name
        wait_for((copies / "checkpoint-4" / checkpoint.SEAL).exists, "no copy")

    def replace(self):
        self.drive.new_machine()
        shutil.rmtree(self.output)


PLACES = {
    "script": Script,
    "new machine": NewMachine,
    "cells of one kernel": Cells,
    "helpers.batch": Batch,
    "notebook kernel": Kernel,
}


def python(kind: str) -> str:
    """The interpreter of the Makefile's environment, or this one where that is not there."""
    return str(PYTHONS[kind] if PYTHONS[kind].exists() else sys.executable)


def without_hold(options: dict) -> dict:
    return {name: value for name, value in options.items() if not name.startswith("hold")}


def expect(condition: object, said: str) -> None:
    if not condition:
        raise Bad(last_words(said))


def wait_for(condition: Callable[[], object], otherwise: str) -> None:
    deadline = time.monotonic() + LIMIT
    while not condition():
        expect(time.monotonic() < deadline, otherwise)
        time.sleep(0.05)


def last_words(said: str) -> str:
    """Why a run ended, of what it printed."""
    lines = [line for line in said.splitlines() if not line.startswith("RESULT ")]
    found = [match[0] for line in lines if (match := TELLING.search(line))]
    last = (found or lines or [""])[-1]
    for folder, parameter in (("kept/run", "keep_in"), ("run", "output_dir")):
        last = re.sub(rf"/[^ ']*/{folder}", parameter, last)
    return last[:300]


def running(place: type[Script], work: Path, kind: str = "cpu", **options):
    return contextlib.closing(place(work, kind, **options))


def finish(place: type[Script], work: Path, kind: str = "cpu", **options) -> str:
    with running(place, work, kind, **options) as run:
        return run.finish()


@contextlib.contextmanager
def standing(place: type[Script], work: Path, when: str, kind: str = "cpu", **options):
    """A run that has come to a moment and stands still there."""
    hold = work / "hold"
    work.mkdir(parents=True, exist_ok=True)
    hold.touch()
    with running(place, work, kind, hold=str(hold), hold_when=when, **options) as run:
        wait_for(lambda: (run.output / "held").exists() or not run.goes_on(), "never came to the moment")
        expect(run.goes_on(), run.said())
        yield run
    hold.unlink(missing_ok=True)


# ---- faults of disks, files and numbers: each leaves a run that was disturbed, and returns what it said


def fails(work: Path, expected: str, **options) -> str:
    with running(Script, work, **options) as run:
        run.process.wait(LIMIT)
        expect(run.process.returncode == 1 and expected in run.said(), run.said())
        return run.said()


def without_seal(work: Path) -> str:
    """The newest checkpoint has no seal, as after a SIGKILL in a save, and the one before it counts."""
    with running(Script, work, kill_step=9) as run:
        expect(run.process.wait(LIMIT) == -signal.SIGKILL, run.said())
    (work / "run/checkpoint-8" / checkpoint.SEAL).unlink()
    said = finish(Script, work)
    expect("resuming from checkpoint-4" in said, said)
    return next(line for line in said.splitlines() if line.startswith("not whole, and passed over: checkpoint-8"))


@contextlib.contextmanager
def disk_in_memory(output: Path, size: str):
    """A file system in memory in the place of the run's folder; needs root."""
    output.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", str(output)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(output)], check=True)


def full_disk(work: Path) -> str:
    """All room is taken when the run has begun."""
    output, whole = work / "run", work / "copy"
    with disk_in_memory(output, "3m"):
        with standing(Script, work, "step") as run:
            with contextlib.suppress(OSError), (output / "filler").open("wb") as file:
                while True:
                    file.write(bytes(4096))
            (work / "hold").unlink()
            run.process.wait(LIMIT)
            said = run.said()
        expect("CheckpointNotWritten: checkpoint-8 was not written" in said and "No space left" in said, said)
        (output / "filler").unlink()
        shutil.copytree(output, whole)
    shutil.copytree(whole, output, dirs_exist_ok=True)
    return said


def two_owners(work: Path) -> str:
    """What a second run says that wants the folder of a living one, which then ends."""
    with standing(Script, work, "step") as living:
        options = json.dumps(without_hold(living.options))
        script = [python(living.kind), "-m", "tests.training_run", living.output, options]
        second = harness.finished(*script, env=ENVIRONMENT)
        expect(second.returncode == 1 and "FolderTaken: " in second.stderr, second.stdout + second.stderr)
        (work / "hold").unlink()
        living.finish()
    return second.stderr


def drive_answers(state: str) -> Callable[[Path], str]:
    """Training ends whatever the Drive does; what it lacks is said, and copied when it answers again."""

    def fault(work: Path) -> str:
        with standing(NewMachine, work, "step") as run:
            run.drive.answer(state)
            (work / "hold").unlink()
            wait_for((run.output / f"checkpoint-{LAST}" / checkpoint.SEAL).exists, "training waits for the Drive")
            if state == "late":
                run.drive.answer("")
            said = run.finish()
            copied = "everything is copied" if state == "late" else "ATTENTION: keep_in: not everything is copied"
            expect(copied in said, said)
            run.drive.answer("")
        again = finish(NewMachine, work)
        expect("everything is copied" in again, again)
        return next(line for line in said.splitlines() if "copied" in line and ("not " in line or state == "late"))

    return fault


def lost_minute(work: Path) -> str:
    """The Drive lost a part of what was copied in the last minute: whatever is left, the run ends as it would have."""
    with standing(NewMachine, work, "evaluation") as run:
        run.wait_for_copy()
        run.process.kill()
        run.process.wait()
        run.drive.upload(random.Random(3))
        run.replace()
    return finish(NewMachine, work)


FAULTS: dict[str, Callable[[Path], str]] = {
    "full disk": full_disk,
    "NaN loss": lambda work: fails(work, "NonFiniteLoss: the loss", nan_step=6),
    "max_hours is over": lambda work: fails(work, "Stopped: max_hours", max_hours=1e-6),
    "checkpoint without its seal": without_seal,
    "two owners": two_owners,
    "Drive drops": drive_answers("gone"),
    "Drive fills up": drive_answers("full"),
    "Drive does not answer": drive_answers("late"),
    "Drive loses the last minute": lost_minute,
}


# ---- all of them


def cells() -> list[Cell]:
    """All cells, in the order in which they run."""
    parts = (  # where, when, how, on what
        (["script", "helpers.batch", "notebook kernel"], ["step"], SIGNALS, ["cpu"]),
        (["script"], ["step"], ENDS, ["xla"]),
        (["script"], ["saving"], ["SIGKILL"], ["cpu", "xla"]),
        (["cells of one kernel"], ["step"], ["SIGINT"], ["cpu"]),
        (["new machine"], ["step"], ["SIGKILL"], ["cpu", "xla"]),
        (["single fault"], [""], FAULTS, ["cpu"]),
    )
    return [Cell(*names) for part in parts for names in itertools.product(*part)]


def ending(output: Path) -> dict:
    """Digests of what training would continue from, and all losses, at the last step of a finished run."""
    last, skipped = checkpoint.newest(output)
    expect(last and checkpoint.step_of(last) == LAST and not skipped, f"ends with {last and last.name}, {skipped}")
    history = json.loads((last / "trainer_state.json").read_text())["log_history"]
    timed = ("runtime", "per_second", "seconds")
    return harness.fingerprint(output, LAST) | {
        "losses": [{k: v for k, v in entry.items() if not k.endswith(timed)} for entry in history]
    }


def reference(kind: str) -> dict:
    """The end of an undisturbed run, made once for each version of the helpers and kept in a temporary folder."""
    known = Path(tempfile.gettempdir()) / f"fault-reference-{harness.digest_of_helpers()[:12]}-{kind}"
    if not (known / "whole").exists():
        shutil.rmtree(known, ignore_errors=True)
        finish(Script, known, kind)
        (known / "whole").touch()
    return ending(known / "run")


def outcome(cell: Cell, work: Path) -> dict:
    """What is to be said of a cell: how it ended, what the run said, and the step that it had saved."""
    place = PLACES.get(cell.where, Script)
    if cell.where == "single fault":
        said, saved = FAULTS[cell.how](work), None
    else:
        with standing(place, work, cell.when, cell.kind) as run:
            run.strike(cell.how)
            said = run.said()
            newest, _ = checkpoint.newest(work / "run")
            saved = newest and checkpoint.step_of(newest)
            expect(saved != LAST, "the run took no notice")
            if isinstance(run, Cells):
                run.go_on()
    finish(place, work, cell.kind)
    got, expected = ending(work / "run"), reference(cell.kind)
    differs = [name for name in expected if got.get(name) != expected[name]]
    return {"outcome": "lost" if differs else "identical", "said": last_words(said), "saved": saved, "differs": differs}


def run(cell: Cell) -> dict:
    with tempfile.TemporaryDirectory(prefix="fault-", ignore_cleanup_errors=True) as folder:
        try:
            return outcome(cell, Path(folder))
        except Exception as error:
            return {"outcome": "failed", "said": str(error) if isinstance(error, Bad) else repr(error), "saved": None}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", default=["*"], metavar="PATTERN", help="of where/when/how/kind")
    parser.add_argument("--again", action="store_true", help="also the cells that are there with a good outcome")
    options = parser.parse_args()
    every = {cell.name: cell for cell in cells()}
    chosen = [name for name in every if any(fnmatch.fnmatch(name, pattern) for pattern in options.only)]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # or a run would inherit that nohup ignores it
    found = json.loads(RESULTS.read_text())["cells"] if RESULTS.exists() else {}
    code = provenance.code()
    for name in chosen:
        if options.again or found.get(name, {}).get("outcome") != "identical":
            found[name] = every[name]._asdict() | run(every[name]) | {"payload": harness.digest_of_helpers()[:12]}
            kept = {each: found[each] for each in every if each in found}
            written = {"schema": 2, "code": code, "versions": provenance.versions(), "cells": kept}
            RESULTS.write_text(json.dumps(written, indent=1) + "\n", encoding="utf-8")
            print(f"{found[name]['outcome']:<10}{name}  {found[name]['said'][:100]}", flush=True)
    bad = [name for name in chosen if found[name]["outcome"] != "identical"]
    print(f"{len(chosen) - len(bad)} of {len(chosen)} are good")
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
