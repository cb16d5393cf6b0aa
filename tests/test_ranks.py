"""What the processes of a run tell each other, in real ones over gloo."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from helpers import ranks

ROOT = Path(__file__).resolve().parents[1]
SAYS = """
import json, sys
from helpers import ranks
told = [ranks.rank(), ranks.is_main(), ranks.gather(ranks.rank() * 10), ranks.broadcast({"from": ranks.rank()})]
told += [ranks.gather(ranks.rank() == 1)]
with ranks.main_process_first():
    with open(sys.argv[1], "a+") as file:
        told.append(file.seek(0) or file.read())
        file.write(str(ranks.rank()))
try:
    with ranks.main_process_first():
        open(sys.argv[1] + ".gone")
except Exception as error:
    told.append(str(error))
print(json.dumps(told))
"""


def start(count: int, program: str, *arguments: str) -> list[subprocess.Popen]:
    """As many processes as a launcher would start, which find each other on loopback."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
    together = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "USE_TORCH_XLA": "0"}
    return [
        subprocess.Popen(
            [sys.executable, "-c", program, *arguments],
            cwd=ROOT,
            env={**os.environ, **together, "RANK": str(rank), "LOCAL_RANK": str(rank), "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(count)
    ]


@pytest.mark.once
def test_processes_gather_broadcast_agree_and_go_after_the_first(tmp_path):
    said = [process.communicate(timeout=120)[0] for process in start(2, SAYS, str(tmp_path / "file"))]
    (first, *one), (second, *two) = (json.loads(each.splitlines()[-1]) for each in said)
    assert (first, second) == (0, 1)
    assert (one[0], two[0]) == (True, False)
    assert one[1:4] == two[1:4] == [[0, 10], {"from": 0}, [False, True]]
    assert (one[4], two[4]) == ("", "0")
    assert "No such file" in one[5] and "the first process failed: FileNotFoundError" in two[5]


def test_alone_each_gives_back_what_it_got():
    assert (ranks.count(), ranks.rank(), ranks.is_main()) == (1, 0, True)
    assert (ranks.gather(7), ranks.broadcast(7)) == ([7], 7)
    with ranks.main_process_first():
        pass
