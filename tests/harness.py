"""A notebook, a training or a piece of code in a process of its own: where this suite is, where it is not, and on XLA.

run("-m", "tests.legal_run", "folder", '{"steps": 12}')   # as subprocess.run([sys.executable, "-m", ...], capture_output=True, text=True)
run("-c", "print(1 + 1)", xla=True, PJRT_DEVICE="CPU")
run_notebook("graphmer_se", folder, {"max_steps": 4})

What `run` starts are children of a server that has imported torch already, so that they do not import it each anew. A child is a process of its own: it dies of its signals, starts its own XLA client and ends as any interpreter does. It is
not for what an interpreter does first: environment variables that a library reads on import, the order of imports, the
seed of hashes (a child has the server's), the peak of memory.
"""

import functools
import gc
import hashlib
import importlib
import json
import math
import os
import runpy
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
XLA_SWITCH = "USE_TORCH_XLA"  # transformers and accelerate read it on import: CPU and XLA have a server each
MODULES = ("torch", "transformers.trainer", "accelerate", "datasets", "peft", "sentence_transformers")
COMMON = {"TOKENIZERS_PARALLELISM": "false"}
NOTEBOOKS = ROOT / "notebooks"
LIMIT = 900  # seconds that a process may take
START = 600  # seconds that a kernel may take to start on a busy machine, instead of 60


def run(*arguments: object, xla: bool = False, fresh: bool = False, **environment: str) -> subprocess.CompletedProcess:
    """Runs a module after "-m" or code after "-c" with arguments in the root folder to its end, and returns what it printed.

    Args:
        xla: whether transformers and accelerate take XLA in it, where torch_xla is installed.
        fresh: an interpreter of its own, whose hashes have another seed: nothing may hang on the order of a set.
    """
    if fresh:
        return python(*arguments, env=os.environ | COMMON | environment)
    request = {"arguments": [*map(str, arguments)], "environment": _environment(xla) | environment}
    ours, theirs = socket.socketpair()
    with ours, tempfile.TemporaryFile("w+") as stdout, tempfile.TemporaryFile("w+") as stderr:
        with theirs, Path(os.devnull).open("r+b") as nothing:
            files = [file.fileno() for file in (nothing, stdout, stderr, theirs)]
            socket.send_fds(_server(xla), [json.dumps(request).encode()], files)
        status = int(ours.makefile().read())
        for file in (stdout, stderr):
            file.seek(0)
        return subprocess.CompletedProcess(arguments, status, stdout.read(), stderr.read())


def finished(*command: object, **options) -> subprocess.CompletedProcess:
    """A command that ran to its end in the root folder, and what it printed."""
    options = {"cwd": ROOT, "timeout": LIMIT, "capture_output": True, "text": True} | options
    return subprocess.run([*map(str, command)], **options)


def python(*arguments: object, **options) -> subprocess.CompletedProcess:
    """An interpreter of its own, with nothing of this suite."""
    return finished(sys.executable, *arguments, **options)


def printed(*arguments: object, **options) -> str:
    """What `python` printed. Fails the test with the end of its messages if it fails."""
    done = python(*arguments, **options)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]
    return done.stdout


def _environment(xla: bool) -> dict[str, str]:
    return os.environ | COMMON | {XLA_SWITCH: str(int(xla))}


@functools.cache
def _server(xla: bool) -> socket.socket:
    """Where requests go. The server ends when this process has ended, however it did."""
    ours, theirs = socket.socketpair(type=socket.SOCK_SEQPACKET)
    environment = _environment(xla) | {"OMP_NUM_THREADS": "1"}  # no thread of numpy may be there at a fork
    command = [sys.executable, __file__, str(theirs.fileno())]
    subprocess.Popen(command, cwd=ROOT, env=environment, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL)
    theirs.close()
    return ours


def _serve(requests: socket.socket) -> dict:
    """Forks for every request, forever. Returns it in the child."""
    gc.disable()  # halves the time of the imports
    sys.path.insert(0, str(ROOT))
    importlib.import_module("helpers")  # what it keeps quiet; a child imports it itself
    del sys.path[0], sys.modules["helpers"]
    for name in MODULES:
        importlib.import_module(name)
    import torch

    assert not torch.cuda.is_initialized()  # a child could not use it
    gc.enable()
    gc.freeze()  # a collection writes into every object it looks at, and all memory would be copied
    keepers: list[int] = []
    while True:
        message, files, _, _ = socket.recv_fds(requests, 2**20, 4)
        if not message:
            os._exit(0)
        keepers = [each for each in keepers if os.waitpid(each, os.WNOHANG)[0] == 0]
        keepers.append(os.fork())
        if keepers[-1] == 0:
            requests.close()
            _keep(files)
            return json.loads(message)
        for file in files:
            os.close(file)


def _keep(files: list[int]) -> None:
    """Forks the process that is asked for and returns in it; stays behind to tell how it ended."""
    *streams, answers = files
    child = os.fork()
    if child:
        for file in range(3):
            os.close(file)
        for file in streams:
            os.close(file)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os.write(answers, str(status).encode())
        os._exit(0)
    signal.alarm(LIMIT)  # which ends it
    for number, file in enumerate(streams):
        os.dup2(file, number)
        os.close(file)
    os.close(answers)


def write(folder: Path, files: dict[str, str | bytes | list]) -> Path:
    """Writes files below a folder: texts without their common indentation, and rows as lines of JSON."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, list):
            content = "\n".join(map(json.dumps, content))
        path.write_bytes(content if isinstance(content, bytes) else textwrap.dedent(content).encode())
    return folder


def digest_of_helpers() -> str:
    """sha256 of all modules of this checkout."""
    digest = hashlib.sha256()
    for path in sorted((ROOT / "helpers").rglob("*.py")):
        digest.update(f"{path.relative_to(ROOT)}".encode() + path.read_bytes())
    return digest.hexdigest()


def read_json(path: Path | str):
    return json.loads(Path(path).read_text())


def namespaces(*kinds: str) -> list[str]:
    """The beginning of a command in Linux namespaces of its own. Skips where this kernel allows none."""
    import pytest

    command = ["unshare", *kinds]
    if finished(*command, "true").returncode:
        pytest.skip("this kernel allows no new namespaces")
    return command


# ---- XLA: the choice between XLA and the CPU is made once a process, and takes seconds


def cpu_here():
    """The CPU, to train on in this process. Skips where torch_xla is installed: accelerate would take XLA here.

    What needs it is run by the other half of the tests, with requirements-gpu.txt.
    """
    import pytest

    from helpers.machine import runtime, xla

    if xla.installed():
        pytest.skip("accelerate would take XLA in this process; the tests with requirements-gpu.txt run it")
    return runtime.detect(use_tpu=False)


@functools.cache
def answers_on_xla(script: str) -> dict:
    """What `script` prints after "ANSWERS ", as JSON, from a process with eight virtual XLA devices; it runs once.

    Skips the test without torch_xla; fails it with the end of the script's messages if the script fails.
    """
    import pytest

    from helpers.machine import xla

    if not xla.installed():
        pytest.skip("torch_xla is not installed")
    environment = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": "8", "TF_CPP_MIN_LOG_LEVEL": "3"}
    process = run("-c", script, xla=True, **environment)
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.rsplit("ANSWERS ", 1)[1])


def counters() -> dict[str, float]:
    """What this process has compiled, brought to the host and read as a number."""
    from torch_xla.debug import metrics

    transfers = metrics.metric_data("TransferFromDeviceTime") or [0]
    return {
        "compiles": metrics.counter_value("UncachedCompile") or 0,
        "host_transfers": transfers[0],
        "item_calls": metrics.counter_value("aten::_local_scalar_dense") or 0,
    }


# ---- trainings in a process of their own: killed, resumed, compared


def train_all(driver: str, runs: Sequence[tuple[Path, dict]], fresh: bool = False) -> subprocess.CompletedProcess:
    """Runs a driver (tests/driver.py), which is named as a module, for folders and their options, all in one process."""
    arguments = [part for folder, options in runs for part in (folder, json.dumps(options))]
    on_xla = any(options.get("kind") == "xla" for _, options in runs)
    return run("-m", driver, *arguments, xla=on_xla, fresh=fresh)


def train(driver: str, folder: Path, fresh: bool = False, **options) -> subprocess.CompletedProcess:
    return train_all(driver, [(folder, options)], fresh)


def results(process: subprocess.CompletedProcess) -> list[dict]:
    """What the runs of a driver returned."""
    assert process.returncode == 0, process.stderr[-3000:]
    return [json.JSONDecoder().raw_decode(text)[0] for text in process.stdout.split("RESULT ")[1:]]


def result(process: subprocess.CompletedProcess) -> dict:
    (outcome,) = results(process)
    return outcome


def fingerprint(folder: Path, step: int) -> dict[str, str]:
    """Digests of everything that training continues from after a step: weights, optimizer, schedule, loss scale."""
    from helpers.run import checkpoint

    last = folder / f"checkpoint-{step}"
    assert checkpoint.is_whole(last)
    files = [*last.rglob("*.safetensors"), last / "optimizer.pt", last / "scheduler.pt", *last.glob("scaler.pt")]
    return {str(file.relative_to(last)): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


def assert_killed_run_ends_as(
    whole: tuple[Path, dict], run, folder: Path, kill_step: int, resumed_from: int, *, fresh: bool = False, **options
) -> dict:
    """Results of a run that is killed inside a step and resumed: losses and last checkpoint of the whole one, bit for bit."""
    killed = run(folder, **options, kill_step=kill_step)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    resumed = result(run(folder, fresh=fresh, **options))
    assert resumed["train"]["resumed_from_step"] == resumed_from
    assert resumed["losses"] == whole[1]["losses"]
    last = resumed["train"]["steps"]
    assert fingerprint(folder, last) == fingerprint(whole[0], last)
    return resumed


# ---- where this suite is not


def isolated(script: str, *arguments: object, folder: Path) -> str:
    """What a script prints in an empty folder, without this package, a home, programs or a way to a hub."""
    environment = {"HF_HOME": str(folder / "home"), "HOME": str(folder), "HF_HUB_OFFLINE": "1", "PATH": ""}
    environment |= {XLA_SWITCH: "0", "OMP_NUM_THREADS": "1"}
    empty = folder / "empty"
    empty.mkdir()
    return printed("-I", "-c", script, *arguments, cwd=empty, env=environment)


# ---- notebooks as users run them: copied alone into an empty folder, headless, without a token or a way to a hub


def run_notebook(name: str, folder: Path, parameters: dict, notebooks: Path = NOTEBOOKS) -> tuple:
    """Copies one notebook into `folder`, runs all of it there, and returns what was executed and its results."""
    import papermill

    shutil.copy(notebooks / f"{name}.ipynb", folder)
    output = folder / "out"
    executed = papermill.execute_notebook(
        f"{name}.ipynb",
        "executed.ipynb",
        {"output_dir": str(output), **parameters},
        progress_bar=False,
        start_timeout=START,
    )
    results = json.loads((output / "results.json").read_text())
    # What the run was bound to before training, so that a changed file is not trained on from these checkpoints.
    assert json.loads((output / "run.json").read_text())["data"].items() <= results["data"].items()
    assert {"source", "revision", "sha256"} <= results["data"].keys()
    shown = [part for cell in executed.cells for part in cell.get("outputs", []) if "image/png" in part.get("data", {})]
    assert len(shown) >= len([*output.glob("figures/*.png")])  # what is drawn is also seen
    assert results["schema"] == 3 and math.isfinite(results["train"]["loss_last"])
    assert all(cell.execution_count for cell in executed.cells if cell.cell_type == "code" and cell.source.strip())
    kept = [file for suffix in ("bin", "pt", "pkl") for file in output.glob(f"[ms]*/**/*.{suffix}")]
    assert all("checkpoint-" in str(file) for file in kept)  # what a person takes away is safetensors alone
    if results["runtime"]["kind"] == "xla":
        assert results["runtime"]["device_count"] == 8
    if not name.endswith("_tpu"):  # XLA writes to stderr itself
        printed = [part for cell in executed.cells for part in cell.get("outputs", []) if part.get("name") == "stderr"]
        assert not printed, printed  # nothing that a reader cannot act on; what is ours goes to stdout
    return executed, results


def refused(name: str, folder: Path, parameters: dict) -> str:
    """What a notebook says that refuses to run."""
    import papermill
    import pytest

    with pytest.raises(papermill.PapermillExecutionError) as caught:
        run_notebook(name, folder, parameters)
    return caught.value.evalue


def text_of(executed) -> str:
    """All that a notebook printed and displayed, as text."""
    outputs = [output for cell in executed.cells for output in cell.get("outputs", [])]
    return "\n".join(output.get("text", "") or output.get("data", {}).get("text/plain", "") for output in outputs)


if __name__ == "__main__":
    request = _serve(socket.socket(fileno=int(sys.argv[1])))
    os.environ.clear()
    os.environ.update(request["environment"])
    import numpy

    numpy.random.seed()  # from the system, as a new interpreter's; Python's own is after a fork
    kind, code, *sys.argv[1:] = request["arguments"]
    sys.path[0] = str(ROOT)
    if kind == "-c":
        exec(compile(code, "<string>", "exec", dont_inherit=True), {"__name__": "__main__"})
    else:
        runpy.run_module(code, run_name="__main__")
