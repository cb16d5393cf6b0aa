"""The places where a training run of tests/moments.py can go on, and how a signal reaches it there; for tests/faults.py."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import nbformat
import psutil
from nbformat.v4 import new_code_cell, new_notebook

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = {"cpu": ROOT / ".venv-gpu/bin/python", "xla": ROOT / ".venv-tpu/bin/python"}
XLA_FLAGS = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"  # compiles in a sixth of the time


def python(kind: str) -> str:
    """The interpreter of the cells of a kind: the Makefile's environment, or this one where that is not there."""
    there = PYTHONS.get(kind)
    return str(there if there and there.exists() else sys.executable)


def environment(**more: str) -> dict[str, str]:
    fixed = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false", "MPLBACKEND": "Agg"}
    return {**os.environ, "XLA_FLAGS": XLA_FLAGS, "WANDB_SILENT": "true", **fixed, **more}


def alive(process: psutil.Process) -> bool:
    """Whether a process still runs; a dead one may stay in the list until its parent has looked."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def all_gone(processes: list[psutil.Process], seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while (left := any(map(alive, processes))) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not left


def output_of(work: Path) -> Path:
    """The run's folder, where helpers.batch would put it as well."""
    return work / "run" / "output"


class Command:
    """The run as a command in a process of its own, which gets the signal."""

    def __init__(self, work: Path, kind: str, model: str = "reservoir", options: dict | None = None, **variables: str):
        self.work, self.kind, self.model, self.options = work, kind, model, options or {}
        self.variables = variables
        output_of(work).parent.mkdir(parents=True, exist_ok=True)
        self.log = work / "log.txt"
        self.begin()

    def begin(self) -> None:
        self.before = self.log.stat().st_size if self.log.exists() else 0
        with self.log.open("a") as log:
            self.process = psutil.Popen(
                [python(self.kind), "-m", *map(str, self.command())],
                cwd=self.work,
                env=environment(**self.variables),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def command(self) -> list:
        return ["tests.moments", output_of(self.work), self.model, self.kind, json.dumps(self.options)]

    def goes_on(self) -> bool:
        return self.process.poll() is None

    def family(self) -> list[psutil.Process]:
        """All that must be gone once the run has ended."""
        with contextlib.suppress(psutil.NoSuchProcess):
            return [self.process, *self.process.children(recursive=True)]
        return []

    def strike(self, how: str) -> None:
        self.target().send_signal(getattr(signal, how))

    def target(self) -> psutil.Process:
        return self.process

    def ended_well(self) -> bool:
        """Once it has ended: whether it is what it does undisturbed."""
        return self.process.wait() == 0

    def said(self) -> str:
        with self.log.open("rb") as log:
            log.seek(self.before)
            return log.read().decode(errors="replace")

    def close(self) -> None:
        for process in self.family():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def notebook(work: Path, kind: str) -> Path:
    """A notebook that trains the reservoir; the first cell declares where, as helpers.batch and papermill want it."""
    parameters = f'output_dir: str = "{output_of(work)}"'
    cells = [
        new_code_cell(parameters, metadata={"tags": ["parameters"]}),
        new_code_cell(f"from tests import moments\nmoments.train(output_dir, 'reservoir', {kind!r})"),
    ]
    made = new_notebook(cells=cells)
    made.metadata.kernelspec = {"name": "python3", "language": "python", "display_name": "Python 3"}
    path = work / "train.ipynb"
    nbformat.write(made, path)
    return path


class Papermill(Command):
    def command(self):
        return ["papermill", notebook(self.work, self.kind), self.work / "done.ipynb", "-k", "python3"]


class Batch(Command):
    def command(self):
        return ["helpers.batch", notebook(self.work, self.kind), "--output-dir", self.work]


class TwoProcesses(Command):
    """The launcher of two processes gets the signal."""

    def command(self):
        where = ["-p", "folder", output_of(self.work), "-p", "options", json.dumps(self.options)]
        torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2"]
        return [*torchrun, "-m", "helpers.batch.processes", "tests.moments:train", *where]


class OneOfTwo(TwoProcesses):
    """The second of the two processes gets the signal."""

    def target(self):
        return next(each for each in self.process.children() if each.environ().get("RANK") == "1")


class Kernel(Command):
    """A notebook's cell in a kernel of which this process is the Jupyter server."""

    def begin(self) -> None:
        from jupyter_client import KernelManager

        self.manager = KernelManager(kernel_name="python3")
        command = [python(self.kind), "-m", "ipykernel_launcher", "-f", "{connection_file}"]
        self.manager.kernel_spec.argv = command
        with self.log.open("a") as log:
            self.manager.start_kernel(env=environment(), cwd=str(self.work), stdout=log, stderr=log)
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=100)
        self.reply: dict = {}
        code = f"from tests import moments; moments.train({str(output_of(self.work))!r}, 'reservoir', {self.kind!r})"
        self.asked = self.client.execute(code)
        self.kernel = psutil.Process(self.manager.provisioner.pid)

    def goes_on(self) -> bool:
        with contextlib.suppress(Exception):  # queue.Empty: no reply yet
            message = self.client.get_shell_msg(timeout=0.05)
            if message["parent_header"].get("msg_id") == self.asked:
                self.reply = message["content"]
        return not self.reply and alive(self.kernel)

    def family(self):
        return [self.kernel]

    def strike(self, how):
        """SIGTERM stands for Jupyter's shutdown: interrupt, ask, SIGTERM, and SIGKILL after five seconds."""
        self.manager.shutdown_kernel(now=how == "SIGKILL")

    def ended_well(self):
        return self.reply.get("status") == "ok"

    def said(self):
        return f"{self.reply['ename']}: {self.reply['evalue']}" if self.reply.get("status") == "error" else ""

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)


class StopButton(Kernel):
    """The cell ends, the kernel stays."""

    def strike(self, how):
        self.manager.interrupt_kernel()

    def family(self):
        return []


class Ray(Command):
    """helpers.batch hands the run to a cluster of which one node is taken away; Ray starts the run again on another one."""

    def begin(self) -> None:
        from ray.cluster_utils import Cluster

        self.home = tempfile.TemporaryDirectory(prefix="ray-home-")  # where Ray writes a token
        os.environ |= {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0", "HOME": self.home.name}
        os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
        self.cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self.node = self.cluster.add_node(num_cpus=1)
        super().begin()

    def command(self):
        where = notebook(self.work, self.kind)
        return ["helpers.batch", where, "--output-dir", self.work, "--ray", self.cluster.address]

    def family(self):
        return []  # the command goes on

    def strike(self, how):
        """SIGTERM as where a node is scaled away, SIGKILL as where it breaks down."""
        self.cluster.remove_node(self.node, allow_graceful=how == "SIGTERM")
        self.cluster.add_node(num_cpus=1)

    def close(self):
        super().close()
        self.cluster.shutdown()
        self.home.cleanup()


PLACES = {
    "bare script": Command,
    "papermill": Papermill,
    "helpers.batch": Batch,
    "kernel shutdown": Kernel,
    "Stop button": StopButton,
    "one of two processes": OneOfTwo,
    "launcher of two processes": TwoProcesses,
    "Ray node": Ray,
}
