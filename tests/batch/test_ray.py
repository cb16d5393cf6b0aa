"""A grid on Ray's own cluster of two nodes on this machine."""

import signal

import pytest

from . import notebook as small
from .notebook import columns, command, wait_for

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_a_grid_on_two_nodes_of_ray_is_stopped_and_goes_on(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray writes a token
    for name, value in (("AUTH_MODE", "disabled"), ("USAGE_STATS_ENABLED", "0"), ("raylet_start_wait_time_s", "300")):
        monkeypatch.setenv(f"RAY_{name}", value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    notebook, hold, folder = small.write(tmp_path / "tiny.ipynb"), tmp_path / "hold", tmp_path / "grid"
    hold.touch()
    values = ("ending=train", f"hold=file:{hold}", "seed=0,1,2", "--ray", cluster.address)
    process = command(notebook, folder, *values)
    wait_for(lambda: len([*folder.glob("*/held")]) == 2, process)
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert columns(folder, "status") == [["stopped"], ["stopped"], ["not run"]]
    hold.unlink()
    assert command(notebook, folder, *values).wait() == 0
    assert columns(folder, "status", "train.steps") == [["done", "12"]] * 3
    cluster.shutdown()
