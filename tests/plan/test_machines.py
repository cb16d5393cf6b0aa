"""helpers.machine.hardware, machines and prices of the planner: names of machines, what each figure rests on, and what an hour costs."""

import re

import pytest

from helpers.plan.machines import FREE, NAMES, PRICES, machine, runtime_of, split_names, usd_per_hour

pytestmark = pytest.mark.once

ISSUE = (
    "T4",
    "V100",
    "A10",
    "A100 40GB",
    "A100 80GB",
    "L4",
    "H100",
    "H200",
    "RTX 3050",
    "RTX 3060",
    "RTX 3090",
    "RTX 4090",
)
TPUS = {"v2-8": 8, "v3-8": 8, "v5e-1": 1, "v5e-8": 8, "v6e-1": 1}


def test_every_gpu_is_known_and_so_is_two_of_it():
    for name in ISSUE:
        one, two = machine(name), machine(f"2x{name}")
        assert (one.kind, one.count, one.accelerator.name) == ("cuda", 1, name)
        assert (two.count, two.accelerator, two.name) == (2, one.accelerator, f"2x{name}")


@pytest.mark.parametrize(("name", "devices"), TPUS.items())
def test_a_tpu_slice_has_the_devices_that_torch_xla_counts(name, devices):
    found = machine(name)
    assert (found.kind, found.count) == ("xla", devices)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("A100 80GB", ["a100-80gb", "A100_80gb", " a100 80 ", "1xA100 80GB", "NVIDIA A100-SXM4-80GB"]),
        ("A100 40GB", ["A100"]),
        ("T4", ["Tesla T4"]),
        ("2xT4", ["2x Tesla T4"]),
        ("v5e-8", ["TPU v5e-8"]),
    ],
)
def test_a_machine_may_be_called_as_its_driver_calls_it_and_as_people_write(name, others):
    assert all(machine(other) == machine(name) for other in others)


def test_a_datasheet_by_hand_is_a_card_of_its_own():
    assert split_names("T4, A6000:48GB,768GB/s,155TFLOPS,L4") == ["T4", " A6000:48GB,768GB/s,155TFLOPS", "L4"]
    card = machine("A6000:48 GB, 768 GB/s, 155 TFLOPS").accelerator
    assert (card.memory, card.bandwidth, card.peak_for("bf16")) == (48e9, 768e9, 155e12)


@pytest.mark.parametrize("name", ["T5", "", "2xv5e-8", "v5e-3", "2xCPU", "RTX 3050 Ti", "0xT4", "-1xT4", "99xT4"])
def test_an_unknown_name_lists_the_known_ones(name):
    with pytest.raises(ValueError, match=r"unknown") as caught:
        machine(name)
    assert all(known in str(caught.value) for known in NAMES)


@pytest.mark.parametrize("name", ["T4", "V100"])
def test_what_is_older_than_ampere_has_neither_bf16_nor_tf32(name):
    found = machine(name)
    assert not {"bf16", "tf32"} & set(found.accelerator.teraflops) and runtime_of(found).precision == "fp16"


@pytest.mark.parametrize(
    ("name", "tera", "gigabytes", "bandwidth", "rounding"),
    [("v2-8", 180, 64, 2800, 0.03), ("v3-8", 492, 128, 3600, 0.03), ("v5e-8", 8 * 197, 128, 8 * 819, 1e-12)],
)
def test_a_slice_of_a_tpu_has_the_figures_of_its_chips(name, tera, gigabytes, bandwidth, rounding):
    # Google's figures: 45 (rounded from 46), 123 and 197 TFLOP/s, 16, 32 and 16 GB, 700, 900 and 819 GB/s a chip; four, four and eight chips.
    found = machine(name)
    assert found.count * found.accelerator.peak_for("bf16") == pytest.approx(tera * 1e12, rel=rounding)
    assert found.count * found.accelerator.memory == gigabytes * 10**9
    assert found.count * found.accelerator.bandwidth == bandwidth * 10**9


@pytest.mark.parametrize(
    ("name", "cores", "gigahertz"),
    [("RTX 3050", 2560, 1.777), ("RTX 3060", 3584, 1.777), ("RTX 3090", 10496, 1.695), ("RTX 4090", 16384, 2.52)],
)
def test_a_geforce_peak_is_two_operations_a_core_and_clock(name, cores, gigahertz):
    peak = machine(name).accelerator.teraflops
    assert peak["fp32"] == pytest.approx(2 * cores * gigahertz * 1e-3, rel=0.01)
    assert peak["bf16"] == pytest.approx(2 * peak["fp32"], rel=0.01)  # tensor cores, fp32 accumulation


# -- prices --


def test_a_price_says_where_it_is_from_and_in_which_month():
    for name, about in PRICES.items():
        assert about["usd_per_hour"] > 0 and about["source"], name
        assert re.fullmatch(r"20\d\d-\d\d", about["as_of"]), name


def test_devices_multiply_the_price_and_colab_sells_no_pair():
    assert usd_per_hour(machine("2xH100")) == pytest.approx(2 * PRICES["H100"]["usd_per_hour"])
    assert usd_per_hour(machine("v6e-8")) == pytest.approx(8 * PRICES["TPU v6e"]["usd_per_hour"])
    assert (
        usd_per_hour(machine("T4")) and usd_per_hour(machine("2xT4")) is None and usd_per_hour(machine("CPU")) is None
    )
    assert set(FREE) == {"T4", "P100", "2xT4", "v5e-1", "v5e-8"}
