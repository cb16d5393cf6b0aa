"""A grid on Ray's own cluster of two nodes on this machine."""

import signal

import pytest

from . import notebook as small
from .notebook import columns, command, wait_for

pytestmark = [pytest.mark.once, pytest.mark.slow]


def test_a_grid_on_ray_is_stopped_and_goes_on_where_a_node_dies(tmp_path, monkeypatch):
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("HOME", str(tmp_path))  # where Ray writes a token
    for name, value in (("AUTH_MODE", "disabled"), ("USAGE_STATS_ENABLED", "0"), ("raylet_start_wait_time_s", "300")):
        monkeypatch.setenv(f"RAY_{name}", value)
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    node = cluster.add_node(num_cpus=1)
    notebook, hold = small.write(tmp_path / "tiny.ipynb"), tmp_path / "hold"
    hold.touch()

    def start(folder):
        values = ("ending=train", f"hold=file:{hold}", "seed=0,1,2", "--ray", cluster.address)
        process = command(notebook, folder, *values)
        wait_for(lambda: len([*folder.glob("*/held")]) == 2, process)
        return process

    process = start(tmp_path / "stopped")
    process.send_signal(signal.SIGTERM)
    assert process.wait() == 128 + signal.SIGTERM
    assert columns(tmp_path / "stopped", "status") == [["stopped"], ["stopped"], ["not run"]]
    process = start(tmp_path / "moved")
    cluster.remove_node(node, allow_graceful=False)
    hold.unlink()
    assert process.wait() == 0
    assert columns(tmp_path / "moved", "status", "train.steps") == [["done", "12"]] * 3
    cluster.shutdown()
