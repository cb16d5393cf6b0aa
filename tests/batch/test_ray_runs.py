"""A grid on Ray's own cluster of two nodes on this machine; one of them dies in the middle of a run."""

import contextlib
import signal
import sys

import pytest

from helpers.batch import ray_runs

from . import notebook as small
from .notebook import ended, held, is_gone, losses, process_of, said, table

pytestmark = pytest.mark.once


def patiently(start):
    """What `start` returns. Ray gives a node 30 seconds to start, however busy the machine is."""
    for _ in range(9):
        with contextlib.suppress(Exception):
            return start()
    return start()


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # where Ray writes a token
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        patch.setenv("RAY_worker_niceness", "0")  # Ray's own is 15: beside other tests a run would hardly get on
        head = {"num_cpus": 1, "include_dashboard": False}
        started = patiently(lambda: Cluster(initialize_head=True, head_node_args=head))
        yield started
        started.shutdown()


# Before the first test with a cluster, which `auto` would find.
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "somewhere:here"])
def test_no_cluster_is_said_before_anything_runs(notebook, tmp_path, address):
    refused = small.command(notebook, tmp_path / "grid", "--ray", address)
    assert ended(refused, tmp_path / "grid") == 2
    assert f"ray={address!r}: no Ray cluster answers" in said(tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


@pytest.mark.slow
def test_a_run_whose_node_dies_goes_on_elsewhere_and_the_table_is_the_local_one(notebook, tmp_path, cluster):
    here, there = tmp_path / "here", tmp_path / "there"
    assert ended(small.command(notebook, here, "ending=train", "seed=0,1", "--jobs", "2"), here) == 0

    node = patiently(lambda: cluster.add_node(num_cpus=1))
    small.hold(notebook, True)
    running = small.command(notebook, there, "ending=train", "seed=0,1", "--ray", cluster.address)
    for run in ("seed=0", "seed=1"):
        held(there, run, running)
    lost = {run: process_of(there, run) for run in ("seed=0", "seed=1")}
    cluster.remove_node(node, allow_graceful=False)
    small.hold(notebook, False)
    assert ended(running, there) == 0

    rows = table(there)
    assert [row["status"] for row in rows] == ["done", "done"]
    # One of them was started again; its first kernel went with its node.
    again = [row["run"] for row in rows if row["train.resumed_from_step"]]
    assert len(again) == 1
    assert process_of(there, again[0]) != lost[again[0]] and is_gone(lost[again[0]])
    assert losses(there) == losses(here)
    assert table(there)[0].keys() == table(here)[0].keys()


@pytest.mark.parametrize("ending", ["train", pytest.param("deaf", marks=pytest.mark.slow)])
def test_sigterm_reaches_the_kernels_on_the_nodes_and_what_waits_is_not_run(notebook, tmp_path, cluster, ending):
    """A kernel that does not listen is killed by a second signal; then Ray's answer may come in the place of the run's own."""
    folder = tmp_path / "grid"
    small.hold(notebook, True)
    running = small.command(notebook, folder, f"ending={ending}", "seed=0,1", "--ray", cluster.address)
    held(folder, "seed=0", running)
    running.send_signal(signal.SIGTERM)
    if ending == "deaf":
        small.wait_for(lambda: "a second signal kills them" in said(folder), running, folder)
        running.send_signal(signal.SIGTERM)
    assert ended(running, folder) == 128 + signal.SIGTERM
    assert [row["status"] for row in table(folder)] == ["stopped", "not run"]
    assert table(folder)[0]["error"].startswith("Stopped: SIGTERM at step 6" if ending == "train" else "")
    assert is_gone(process_of(folder, "seed=0"))
    assert not [*folder.glob(".stop-*")]


def test_missing_ray_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"ray='auto': Ray is not installed here: pip install \"ray>="):
        ray_runs.RayRuns("auto")
