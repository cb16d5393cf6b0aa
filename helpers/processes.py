"""Several processes of one program: how accelerate's launcher starts them, and what each of them does.

    call("package.module:function", {"name": "value"}, 2)    from a notebook's kernel

Only what the first process prints is shown. What they tell each other is in `ranks`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import pkgutil
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from . import ranks, tracking

GRACE = 60  # seconds that a process without its launcher has to write a checkpoint
STARTED = "HELPERS_PROCESSES"  # in the environment of the processes that `start` started
# Words of gloo's errors.
LOST = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe", "Timed out waiting")


def call(function: str, parameters: Mapping[str, str], processes: int) -> None:
    """Calls `package.module:function` in several processes and prints what the first of them prints.

    For a notebook's kernel: a new interpreter starts them, with the GPUs that this process saw at first.

    Raises RuntimeError, with the last line that was printed, if a process fails.
    """
    from . import runtime

    command = [sys.executable, "-m", __name__, str(processes), function, json.dumps(parameters)]
    environment = {**os.environ, "PYTHONPATH": _with_package(), "PYTHONUNBUFFERED": "1"}
    environment.pop("CUDA_VISIBLE_DEVICES", None)
    if (visible := runtime.gpus()[1]) is not None:
        environment["CUDA_VISIBLE_DEVICES"] = visible
    said: deque[str] = deque(maxlen=1)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with subprocess.Popen(command, env=environment, **pipes) as launcher:
        try:
            for line in launcher.stdout:
                tracking.say(line.rstrip("\n"))
                said.append(line.strip())
        except BaseException:  # no process outlives an interrupted cell
            launcher.terminate()  # which ends its workers too
            raise
    if launcher.returncode:
        raise RuntimeError(f"training in {processes} processes failed: {''.join(said)}")


def start(
    module: str, arguments: Sequence[str], processes: int, machines: int = 1, options: Sequence[str | int] = ()
) -> int:
    """Runs `python -m module arguments` in `processes` processes on this machine, one of `machines`.

    options: for accelerate's launcher; with several machines, the rank of this one and the address of the first.

    Returns 0, or 1 if a process failed, which stderr then explains.
    """
    from accelerate.commands.launch import launch_command, launch_command_parser
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError

    # --multi_gpu also starts CPU processes; a configuration file says it in its own way.
    kind = [] if "--config_file" in options else ["--multi_gpu"]
    given = ["--num_processes", processes * machines, "--num_machines", machines, "--main_process_port", 0]
    given += ["--mixed_precision", "no", "--dynamo_backend", "no", *kind, *options]
    os.environ |= {STARTED: "1", "PYTHONPATH": _with_package(), "TOKENIZERS_PARALLELISM": "false"}
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // processes)))
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    try:
        launch_command(launch_command_parser().parse_args([*map(str, given), "--module", module, *arguments]))
    except ChildFailedError as error:
        failures = sorted(error.failures.items(), key=lambda each: (_is_lost(each[1]), each[1].timestamp))
        rank, failure = failures[0]
        told = failure.message if isinstance(failure.message, dict) else {"message": failure.message}
        print(told.get("extraInfo", {}).get("py_callstack", ""), file=sys.stderr)
        where = f"process {failure.local_rank} of this machine" if machines > 1 else f"process {rank}"
        lost = "; a process of another machine is gone: look at that machine's output" if _is_lost(failure) else ""
        print(f"{where} failed: {told['message']}{lost}", file=sys.stderr, flush=True)
        return 1
    return 0


def _is_lost(failure) -> bool:
    return any(words in str(failure.message) for words in LOST)


def _with_package() -> str:
    package = str(Path(__file__).resolve().parents[1])
    return os.pathsep.join(filter(None, (package, os.environ.get("PYTHONPATH"))))


def take_part(task: Callable[[], None], timeout: int = 1800) -> int:
    """Runs `task`, as all of the processes do; returns the exit code.

    Without its launcher the process ends as after SIGTERM. `timeout`: seconds that one process waits for another.
    """
    from torch.distributed.elastic.multiprocessing.errors import record

    os.environ |= {"USE_TORCH_XLA": "0", ranks.TIMEOUT: str(timeout)}  # read when accelerate is imported
    orphan = (os.getppid(), min(GRACE, timeout))
    threading.Thread(target=_end_with, args=orphan, daemon=True).start()
    try:
        record(_among_the_others)(task)
    except Exception:
        if STARTED not in os.environ:
            raise
        return 1  # `start` says why
    return 0


def _among_the_others(task: Callable[[], None]) -> None:
    import torch

    with contextlib.ExitStack() as stack:
        if not ranks.is_main():
            os.environ["TQDM_DISABLE"] = "1"
            stack.enter_context(contextlib.redirect_stdout(stack.enter_context(Path(os.devnull).open("w"))))
        ranks.gather(None)  # all are there
        task()
        ranks.gather(None)
        torch.distributed.destroy_process_group()


def _end_with(parent: int, grace: float) -> None:
    while os.getppid() == parent:
        time.sleep(1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(grace)
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    count, function, parameters = sys.argv[1:]
    if ranks.count() == 1:
        tracking.say(f"training in {count} processes")
        sys.exit(start(__spec__.name, sys.argv[1:], int(count)))
    sys.exit(take_part(lambda: pkgutil.resolve_name(function)(**json.loads(parameters))))
