"""What the processes of a run tell each other, in real ones over gloo."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from helpers.machine import ranks

ROOT = Path(__file__).resolve().parents[1]


def tell(folder: str) -> None:
    """What `torchrun -m helpers.batch.processes tests.test_ranks:tell` runs in each process."""
    told = {"gathered": ranks.gather(ranks.rank() * 10), "broadcast": ranks.broadcast({"from": ranks.rank()})}
    with ranks.main_process_first():
        told["there"] = sorted(path.name for path in Path(folder).iterdir())
        (Path(folder) / f"{ranks.rank()}.json").write_text(json.dumps(told))


def test_processes_gather_broadcast_and_go_after_the_first(tmp_path):
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    command = [*torchrun, "-m", "helpers.batch.processes", "tests.test_ranks:tell", "-p", "folder", str(tmp_path)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2))
    assert first["gathered"] == second["gathered"] == [0, 10]
    assert first["broadcast"] == second["broadcast"] == {"from": 0}
    assert (first["there"], second["there"]) == ([], ["0.json"])


def test_alone_each_gives_back_what_it_got():
    assert (ranks.count(), ranks.rank(), ranks.is_main()) == (1, 0, True)
    assert (ranks.gather(7), ranks.broadcast(7)) == ([7], 7)
    with ranks.main_process_first():
        pass
