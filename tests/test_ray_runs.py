"""A grid on Ray's own cluster of two nodes on this machine; one of them dies in the middle of a run."""

import json
import signal
import sys

import pytest

from helpers.batch import ray_runs
from tests import batch_training
from tests.batch_training import alive, command, losses, said, table, wait_for

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    from ray.cluster_utils import Cluster

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))  # where Ray writes a token
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        patch.setenv("OMP_NUM_THREADS", "1")
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        yield started
        started.shutdown()


@pytest.fixture
def notebook(tmp_path):
    return batch_training.write(tmp_path / "tiny.ipynb")


def kernel(folder, run):
    return json.loads((folder / run / "output" / "kernel.json").read_text())["process"]


# Before the first test with a cluster, which `auto` would find.
@pytest.mark.parametrize("address", ["auto", "127.0.0.1:1", "somewhere:here"])
def test_no_cluster_is_said_before_anything_runs(notebook, tmp_path, address):
    refused = command(notebook, tmp_path / "grid", "--ray", address)
    assert refused.wait(60) == 2
    assert f"ray={address!r}: no Ray cluster answers" in said(tmp_path / "grid")
    assert not (tmp_path / "grid").exists()


@pytest.mark.slow
def test_a_run_whose_node_dies_goes_on_elsewhere_and_the_table_is_the_local_one(notebook, tmp_path, cluster):
    here, there = tmp_path / "here", tmp_path / "there"
    assert command(notebook, here, "seed=0,1", "--jobs", "2").wait(180) == 0, said(here)

    node = cluster.add_node(num_cpus=1)
    batch_training.pause(notebook, 6)
    running = command(notebook, there, "seed=0,1", "--ray", cluster.address)
    for run in ("seed=0", "seed=1"):
        wait_for((there / run / "output" / "checkpoint-4").is_dir, running, there)
    lost = {run: kernel(there, run) for run in ("seed=0", "seed=1")}
    batch_training.pause(notebook, 0)
    cluster.remove_node(node, allow_graceful=False)
    assert running.wait(240) == 0, said(there)

    rows = table(there)
    assert [row["status"] for row in rows] == ["done", "done"]
    # One of them was started again; its first kernel went with its node.
    again = [row["run"] for row in rows if row["train.resumed_from_step"]]
    assert len(again) == 1
    assert kernel(there, again[0]) != lost[again[0]] and not alive(lost[again[0]])
    assert losses(there) == losses(here)
    assert table(there)[0].keys() == table(here)[0].keys()


def test_sigterm_reaches_the_kernels_on_the_nodes_and_what_waits_is_not_run(notebook, tmp_path, cluster):
    folder = tmp_path / "grid"
    batch_training.pause(
        notebook, 35
    )  # seconds an evaluation, in which the signal must come; on a busy machine Ray has taken more than 20
    running = command(notebook, folder, "seed=0,1", "--ray", cluster.address)
    wait_for((folder / "seed=0" / "output" / "checkpoint-4").is_dir, running, folder)
    running.send_signal(signal.SIGTERM)
    assert running.wait(120) == 128 + signal.SIGTERM, said(folder)
    assert [row["status"] for row in table(folder)] == ["stopped", "not run"]
    assert table(folder)[0]["error"].startswith("Stopped: SIGTERM at step")


def test_missing_ray_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ValueError, match=r"ray='auto': Ray is not installed here: pip install \"ray>="):
        ray_runs.RayRuns("auto")


def test_the_version_that_is_asked_for_is_the_one_that_is_tested():
    assert ray_runs.REQUIREMENT in (batch_training.ROOT / "tests/requirements.txt").read_text()
