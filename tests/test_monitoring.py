"""Samples of utilisation and memory: how many, what they say, and their plot."""

from __future__ import annotations

import sys
import threading
import time

import pytest
import torch

from helpers.tuning.monitoring import Monitor, Sample

from .xla_process import answers_on_xla, cpu_here

MEGABYTE = 10**6


@pytest.fixture(scope="module")
def cpu():
    return cpu_here()


def wait_for(monitor: Monitor, samples: int) -> None:
    while len(monitor.samples) < samples:
        time.sleep(0.005)


def test_a_run_shorter_than_the_interval_has_one_sample(cpu):
    with Monitor(cpu, interval=60) as monitor:
        pass
    assert len(monitor.samples) == 1
    assert monitor.results()["samples"] == 1


def test_samples_are_never_closer_than_the_interval_and_end_with_the_run(cpu):
    with Monitor(cpu, interval=0.05) as monitor:
        wait_for(monitor, 4)
    *timed, _last = [sample.seconds for sample in monitor.samples]
    assert all(later - earlier >= 0.049 for earlier, later in zip([0.0, *timed], timed, strict=False))
    assert not [thread for thread in threading.enumerate() if thread.name == "monitor"]
    count = len(monitor.samples)
    time.sleep(0.12)
    assert len(monitor.samples) == count


def test_a_reading_runs_nothing_on_the_device_and_opens_no_process(cpu):
    """What keeps it far below 1 % of a step is that it reads two numbers: no torch operator, no subprocess."""
    ran = []
    sys.addaudithook(
        lambda event, _: ran.append(event) if event.startswith(("subprocess", "os.exec", "os.fork")) else None
    )
    monitor = Monitor(cpu)
    with torch.autograd.profiler.profile() as profiler:
        for _ in range(50):
            monitor._take()
    assert not profiler.function_events
    assert not ran
    assert len(monitor.samples) == 50


def test_memory_that_is_held_shows(cpu):
    with Monitor(cpu, interval=0.05) as monitor:
        wait_for(monitor, 1)
        held = torch.ones(400 * MEGABYTE // 4)
        wait_for(monitor, len(monitor.samples) + 2)
    assert monitor.samples[-1].memory - monitor.samples[0].memory > 300 * MEGABYTE
    assert monitor.results()["memory_bytes"] >= 300 * MEGABYTE
    assert held.sum() > 0


def test_a_busy_process_is_busier_than_one_that_sleeps(cpu):
    with Monitor(cpu, interval=60) as idle:
        time.sleep(0.3)
    with Monitor(cpu, interval=60) as busy:
        until = time.process_time() + 0.5
        while time.process_time() < until:
            pass
    assert 0 <= idle.results()["utilisation"] < busy.results()["utilisation"] <= 1


def test_what_is_not_told_is_left_out_of_the_mean(cpu):
    monitor = Monitor(cpu)
    monitor.samples = [Sample(1.0, 1.0, 5), Sample(2.0, 0.0, 7), Sample(3.0, None, None)]
    assert monitor.results() == {
        "utilisation": 0.5,
        "memory_bytes": 7,
        "samples": 3,
        "source": monitor.why,
    }


def test_the_plot_is_written_also_where_nothing_is_told(cpu, tmp_path):
    monitor = Monitor(cpu)
    monitor.samples = [Sample(1.0, None, None), Sample(2.0, None, None)]
    figure = monitor.plot(tmp_path / "figures" / "u.png", title="a run")
    assert (tmp_path / "figures" / "u.png").read_bytes().startswith(b"\x89PNG")
    assert [axes.get_ylabel() for axes in figure.axes] == ["utilisation (%)", "memory (GiB)"]


def test_xla_on_the_cpu_says_what_it_does_not_know():
    found = answers_on_xla(
        "import json\n"
        "from helpers import runtime\n"
        "from helpers.tuning.monitoring import Monitor\n"
        "with Monitor(runtime.detect(use_tpu=True)) as monitor:\n"
        "    sum(range(10**6))\n"
        "print('ANSWERS ' + json.dumps(monitor.results()))"
    )
    assert found["memory_bytes"] is None
    assert 0 <= found["utilisation"] <= 1
    assert "no duty cycle is told here" in found["source"]
