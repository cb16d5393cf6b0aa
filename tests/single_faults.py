"""The single faults of the fault table: disks, damaged files, clocks, numbers, memory, and services that are gone.

Each takes the cell's folder and kind, disturbs a run of the reservoir trainer there, and returns what was said. Then the same
run starts again without the fault, and its end is compared with that of an undisturbed run.

The system clock is not touched. A jump is made in the process itself (`time.time` of Python, which the helpers and filelock
read) or in the stamps of the files.
"""

from __future__ import annotations

import contextlib
import http.server
import json
import math
import os
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from helpers.run import provenance
from helpers.train import checkpoint
from tests.fault_places import Command, environment, output_of, python
from tests.moments import STEPS

DAY = 86_400.0
DAMAGED = [
    "config.json",
    "generation_config.json",
    "manifest.json",
    "meter.json",
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
]
CLOSE = 1e-5  # of losses, relative, where memory ran out: half the micro-batch adds up in another order
IN_A_STEP = "out of memory in a step"
FAULTS: dict[str, tuple[Callable[[Path, str], str], tuple[str, ...]]] = {}


def fault(name: str, kinds: str = "cpu"):
    def put(function):
        FAULTS[name] = function, tuple(kinds.split())
        return function

    return put


def listed() -> list[tuple[str, str]]:
    """(name, kind) of each cell."""
    return [(name, kind) for kind in ("cpu", "xla") for name, (_, kinds) in FAULTS.items() if kind in kinds]


def outcome(name: str, kind: str, references, work: Path) -> dict:
    """What tests/faults.py writes of a cell."""
    from tests.faults import ending, finish, last_words

    began = time.monotonic()
    said = FAULTS[name][0](work, kind)
    seconds = round(time.monotonic() - began, 1)
    found = {"said": last_words(said), "seconds": seconds}
    if not output_of(work).is_dir():  # it trains nothing
        return {"outcome": "identical", **found}
    if not (output_of(work) / f"checkpoint-{STEPS}").is_dir():
        finish(Command, work, kind)
    got, expected = (
        ending(output_of(work)),
        references.of("reservoir", kind, **(ROOM if name.startswith("out of memory") else {})),
    )
    differs = [each for each in expected if got[each] != expected[each]]
    if differs == ["losses"] or name == IN_A_STEP:  # sums of fewer examples at a time
        close = all(_close(*pair) for pair in zip(got["losses"], expected["losses"], strict=True))
        return {"outcome": "equal" if close else "lost", **found}
    return {"outcome": "lost" if differs else "identical", **found} | ({"differs": differs} if differs else {})


def _close(one: dict, other: dict) -> bool:
    return all(math.isclose(one[name], other[name], rel_tol=CLOSE) for name in one if name.endswith("loss"))


# ---- what the faults are made of


def expect(condition: object, said: str) -> None:
    if not condition:
        from tests.faults import Bad, last_words

        raise Bad("failed", last_words(said))


def run(work: Path, kind: str, limit: float = 200.0, variables: dict | None = None, **options) -> tuple[int, str]:
    """Runs to whatever end; its exit code and what it said."""
    from tests.faults import Bad, last_words

    started = Command(work, kind, "reservoir", options, **(variables or {}))
    try:
        deadline = time.monotonic() + limit
        while started.goes_on():
            if time.monotonic() > deadline:
                raise Bad("hung", f"after {limit:.0f} s: {last_words(started.said())}")
            time.sleep(0.05)
        return started.process.wait(), started.said()
    finally:
        started.close()


@contextlib.contextmanager
def standing(work: Path, kind: str, moment: str, **options) -> Iterator[Command]:
    """A run that has come to a moment and stands still there; inside it the fault happens."""
    (work / "run").mkdir(parents=True, exist_ok=True)
    (work / "run" / "moment").write_text(moment)
    started = Command(work, kind, "reservoir", options)
    try:
        while not (work / "run" / "reached").exists():
            expect(started.goes_on(), started.said())
            time.sleep(0.02)
        yield started
    finally:
        started.close()


def to_its_end(started: Command, limit: float = 60.0) -> str:
    from tests.faults import Bad, last_words

    deadline = time.monotonic() + limit
    while started.goes_on():
        if time.monotonic() > deadline:
            raise Bad("hung", last_words(started.said()))
        time.sleep(0.05)
    return started.said()


def killed_in_a_step(work: Path, kind: str) -> None:
    """A run of which checkpoint-6 and checkpoint-3 are left; made once for each kind, and copied."""
    kept = Path(tempfile.gettempdir()) / f"fault-killed-{provenance.payload()[:12]}-{kind}"
    if not output_of(kept).is_dir():
        partial = Path(tempfile.mkdtemp(prefix="fault-killed-"))
        code, said = run(partial, kind, kill_step=8)
        expect(code == -signal.SIGKILL, said)
        partial.rename(kept)
    shutil.copytree(kept, work, dirs_exist_ok=True)


# ---- disks


@fault("file-size limit", "cpu xla")
def _(work, kind):
    _, said = run(work, kind, file_limit=20_000)
    expect("CheckpointNotWritten: checkpoint at step 3" in said, said)
    return said


@fault("full disk")
def _(work, kind):
    """A file system in memory, of which all but some kB are taken when the run has begun; needs root."""
    output_of(work).mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=3m", "none", str(output_of(work))]
    subprocess.run(mount, check=True)
    whole = work / "copy"
    try:
        with standing(work, kind, "step") as started:
            filler = output_of(work) / "filler"
            with contextlib.suppress(OSError), filler.open("wb") as file:
                while True:
                    file.write(bytes(4096))
            said = to_its_end(started)
        expect("CheckpointNotWritten: checkpoint at step 6" in said and "No space left" in said, said)
        filler.unlink()
        shutil.copytree(output_of(work), whole)
    finally:
        subprocess.run(["umount", str(output_of(work))], check=True)
    shutil.copytree(whole, output_of(work), dirs_exist_ok=True)
    return said


@fault("folder becomes read-only")
def _(work, kind):
    """By its flag `immutable` where this is root, which no mode stops."""
    lock, unlock = (["chattr", "+i"], ["chattr", "-i"]) if os.geteuid() == 0 else (["chmod", "555"], ["chmod", "755"])
    with standing(work, kind, "step") as started:
        subprocess.run([*lock, str(output_of(work))], check=True)
        try:
            said = to_its_end(started)
        finally:
            subprocess.run([*unlock, str(output_of(work))], check=True)
    expect("CheckpointNotWritten: checkpoint at step 6" in said, said)
    return said


# ---- damaged checkpoints


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def missing(path: Path) -> None:
    path.unlink()


def _damage(harm: Callable[[Path], None], name: str, kinds: str) -> None:
    @fault(f"{harm.__name__} {name}", kinds)
    def _(work, kind):
        killed_in_a_step(work, kind)
        harm(output_of(work) / "checkpoint-6" / name)
        code, said = run(work, kind)
        expect(code == 0 and "skipped checkpoint-6: " in said and "resuming from checkpoint-3" in said, said)
        return next(line for line in said.splitlines() if line.startswith("skipped checkpoint-6"))


for _harm in (truncated, flipped, missing):
    for _name in DAMAGED:
        _damage(_harm, _name, "cpu xla" if _name == "optimizer.pt" else "cpu")


# ---- clocks


def _clock(name: str, seconds: float) -> None:
    @fault(f"clock jumps a day {name} in a step")
    def _(work, kind):
        code, said = run(work, kind, clock=seconds)
        expect(code == 0, said)
        return "the run went on"

    @fault(f"a killed run's files are ten years {name}")
    def _(work, kind):
        killed_in_a_step(work, kind)
        then = time.time() + 3650 * seconds
        for path in [output_of(work), *output_of(work).rglob("*")]:
            os.utime(path, (then, then))
        code, said = run(work, kind)
        expect(code == 0 and "resuming from checkpoint-6" in said, said)
        return "resuming from checkpoint-6"


_clock("ahead", DAY)
_clock("behind", -DAY)


# ---- numbers and memory


def _not_finite(name: str, what: str, **options) -> None:
    @fault(name, "cpu xla")
    def _(work, kind):
        code, said = run(work, kind, **options)
        expect(code == 1 and f"NonFiniteLoss: {what} is nan" in said, said)
        expect("The last good checkpoint is checkpoint-3" in said, said)
        newest, skipped = checkpoint.newest_whole(output_of(work))
        expect(newest.name == "checkpoint-3" and not skipped, said)
        return said


_not_finite("NaN loss", "loss", nan_step=5)
_not_finite("NaN gradient", "a weight", nan_gradient_step=6)
_not_finite("NaN in an optimizer moment", "an optimizer state", nan_moment_step=6)

ROOM = {"batch_size": 16, "blocks": 48, "dropout": 0.0}


@fault(IN_A_STEP, "cpu xla")
def _(work, kind):
    code, said = run(work, kind, exhaust_above=8, **ROOM)
    expect(code == 0, said)
    return next(line for line in said.splitlines() if line.startswith("out of memory with micro-batch 16"))


@fault("out of memory in an evaluation", "cpu xla")
def _(work, kind):
    code, said = run(work, kind, exhaust_evaluation_above=8, **ROOM)
    expect(code == 1, said)
    return next(line for line in said.splitlines() if "Lower per_device_eval_batch_size=" in line)


# ---- services


@contextlib.contextmanager
def server(answer: Callable[[http.server.BaseHTTPRequestHandler], None]) -> Iterator[str]:
    """The address of a local HTTP server that answers every request in this way."""

    class Handler(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args):
            pass

        def do(self):
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            with contextlib.suppress(ConnectionError):
                answer(self)

        do_GET = do_HEAD = do_POST = do

    serving = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    serving.daemon_threads = True
    threading.Thread(target=serving.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{serving.server_port}"
    finally:
        serving.shutdown()
        serving.server_close()


def _refuse(request) -> None:
    request.send_response(500)
    request.send_header("Content-Length", "0")
    request.end_headers()


def _wandb(name: str, answer) -> None:
    @fault(name)
    def _(work, kind):
        with server(answer) as address:
            variables = {"WANDB_BASE_URL": address, "WANDB_API_KEY": "0" * 40, "NO_PROXY": "127.0.0.1"}
            code, said = run(work, kind, limit=90, variables=variables, report_to="wandb")
        expect(code == 0, said)
        return next(line for line in said.splitlines() if "W&B cannot be reached, going on without it" in line)


_wandb("W&B refuses", _refuse)
_wandb("W&B never answers", lambda request: time.sleep(600))


# ---- data


TEXTS = "".join(
    json.dumps({"anchor": f"question {n} on {n * 7 % 101}", "positive": f"answer {n} speaks of {n * 13 % 89} " * 4})
    + "\n"
    for n in range(3000)
).encode()
STREAM = """
from helpers.lejepa.data import load_texts
print("READ", load_texts("owner/texts", num_samples=2500, seed=0).source)
"""


def read(work: Path, code: str, limit: float = 60.0, **variables: str) -> str:
    """What a process says that reads data."""
    from tests.faults import Bad

    command = [python("cpu"), "-c", code]
    pipes = {"capture_output": True, "text": True, "timeout": limit}
    try:
        done = subprocess.run(command, cwd=work, env=environment(**variables), **pipes)
    except subprocess.TimeoutExpired as error:
        raise Bad("hung", f"after {limit:.0f} s") from error
    return done.stdout + done.stderr


def digest(said: str) -> str:
    found = [line for line in said.splitlines() if line.startswith("READ ")]
    expect(found, said)
    return found[0]


@fault("hub gone in the middle of streaming")
def _(work, kind):
    """A hub with one data set, which breaks off half way through its file, and comes back."""
    state, commit, about = {"gone": False}, "a" * 40, {"type": "file", "path": "train.jsonl", "oid": "b" * 40}

    def answer(request) -> None:
        path, body, status, more = request.path.partition("?")[0], b"{}", 404, {"X-Error-Code": "EntryNotFound"}
        breaks = False
        if path.endswith("/train.jsonl"):
            first, _, last = request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            body, status = TEXTS[int(first) : int(last or len(TEXTS)) + 1], 206
            breaks = state["gone"] and request.command == "GET"
            more = {"Content-Range": f"bytes {first}-{int(first) + len(body) - 1}/{len(TEXTS)}", "ETag": '"b"'}
        elif path.startswith("/api/datasets/owner/texts/tree") and not path.endswith("/data"):
            body, status, more = json.dumps([about | {"size": len(TEXTS)}]).encode(), 200, {}
        elif path == "/api/datasets/owner/texts" or path.startswith("/api/datasets/owner/texts/revision"):
            files = {"siblings": [{"rfilename": "train.jsonl"}], "sha": commit, "id": "owner/texts", "tags": []}
            body, status, more = json.dumps(files | {"private": False, "downloads": 0, "likes": 0}).encode(), 200, {}
        request.send_response(status)
        for name, value in {"X-Repo-Commit": commit, "Content-Length": str(len(body)), **more}.items():
            request.send_header(name, value)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body[: len(body) // 2] if breaks else body)
        request.close_connection = breaks

    def home(name: str) -> dict[str, str]:
        return {"HF_ENDPOINT": address, "HF_HOME": str(work / name), "NO_PROXY": "127.0.0.1", "HF_HUB_OFFLINE": "0"}

    with server(answer) as address:
        expected = digest(read(work, STREAM, **home("before")))
        state["gone"] = True
        said = read(work, STREAM, limit=90.0, **home("home"))
        expect("data_source='owner/texts'" in said and "READ" not in said, said)
        state["gone"] = False
        expect(digest(read(work, STREAM, **home("home"))) == expected, "other texts when the hub is back")
    return said


# ---- two runs


@fault("two runs on one folder", "cpu xla")
def _(work, kind):
    with standing(work, kind, "step", evaluation_pause=15.0) as living:
        _, said = run(work, kind)
        expect("FolderTaken: " in said and str(living.process.pid) in said, said)
        to_its_end(living)
    return said
