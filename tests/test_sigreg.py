"""SIGReg against the integral that it discretises, in complex fp64 with autograd; its constants against simulation."""

import contextlib
import datetime
import math
import os

import pytest
import torch
import torch.distributed as dist

from helpers.lejepa.sigreg import SIGReg, gaussian_floor

from .xla_process import answers_on_xla

K = 24
INPUTS = {
    "Gaussian": lambda N, K: torch.randn(N, K),
    "shrunken": lambda N, K: 0.1 * torch.randn(N, K),
    "wide": lambda N, K: 3 * torch.randn(N, K),
    "exponential": lambda N, K: -torch.rand(N, K).clamp(min=1e-6).log(),
    "constant": lambda N, K: torch.full((N, K), 0.7),
}

# V views · N texts · K embedding · M slices


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def sigreg(num_slices=16, **options):
    return SIGReg(**{"t_max": 3.0, "n_points": 17} | options, num_slices=num_slices)


def integral(embeddings, slices_MK, t_max=3.0, n_points=17):
    """N int |psi_N(t) - psi(t)|^2 psi(t) dt from -t_max to t_max by the trapezoidal rule, mean over slices and views."""
    return statistics(embeddings.double() @ slices_MK.double().T, t_max, n_points).mean()


def statistics(projection, t_max, n_points):
    """Of each column, [..., N, M] -> [..., M]."""
    t_T = torch.linspace(-t_max, t_max, 2 * n_points - 1, dtype=projection.dtype)
    normal_T = torch.exp(-(t_T**2) / 2)
    empirical = torch.exp(1j * projection[..., None] * t_T).mean(-3)
    distance = (empirical - normal_T).abs().square() * normal_T
    return projection.shape[-2] * torch.trapezoid(distance, t_T)


def value_and_gradient(call, embeddings):
    leaf = embeddings.detach().clone().requires_grad_()
    value = call(leaf)
    value.backward()
    return value.item(), leaf.grad


def error(found, expected) -> float:
    """The larger of the value's relative error and the gradient's, relative to its largest entry."""
    (value, gradient), (true_value, true_gradient) = found, expected
    off = (gradient.double().cpu() - true_gradient).abs().max() / true_gradient.abs().max()
    return max(abs(value - true_value) / true_value, off.item())


# ---- value and gradient


@pytest.mark.once
@pytest.mark.parametrize("N", [1, 3, 64, 1024, 8192])
@pytest.mark.parametrize("name", INPUTS)
def test_value_and_gradient_equal_the_integral_in_fp64(name, N):
    module, embeddings_NK = sigreg(), INPUTS[name](N, K)
    expected = value_and_gradient(lambda z: integral(z, module.slices(K, 5)), embeddings_NK.double())
    assert error(value_and_gradient(lambda z: module(z, 5), embeddings_NK), expected) < 1e-5


@pytest.mark.parametrize(("t_max", "n_points"), [(1.0, 3), (5.0, 17), (5.0, 41)])
def test_other_knots_equal_the_integral_too(t_max, n_points):
    module, embeddings_NK = sigreg(t_max=t_max, n_points=n_points), torch.randn(64, K)
    reference = lambda z: integral(z, module.slices(K, 0), t_max, n_points)  # noqa: E731
    found = value_and_gradient(lambda z: module(z, 0), embeddings_NK)
    assert error(found, value_and_gradient(reference, embeddings_NK.double())) < 1e-5


def test_views_are_tested_separately_and_averaged():
    module, embeddings_VNK = sigreg(), torch.randn(3, 50, K) * torch.tensor([0.5, 1.0, 2.0])[:, None, None]
    reference = lambda z: sum(integral(view, module.slices(K, 0)) for view in z) / 3  # noqa: E731
    expected = value_and_gradient(reference, embeddings_VNK.double())
    assert error(value_and_gradient(lambda z: module(z, 0), embeddings_VNK), expected) < 1e-5


def test_the_gradient_in_fp64_equals_finite_differences():
    module = sigreg(6)
    embeddings_VNK = torch.randn(2, 5, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda z: 3 * module(z, 0), embeddings_VNK)


def test_no_tensor_with_a_knot_axis_is_kept_for_the_backward_pass():
    N, M, n_points = 200, 16, 17
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor) or tensor, lambda tensor: tensor):
        sigreg(M, n_points=n_points)(torch.randn(N, K, requires_grad=True), 0)
    projections = [tensor for tensor in saved if tensor.numel() >= N * M]
    assert [tensor.shape for tensor in projections] == [(1, N, M)] * 2  # cos and sin of one knot
    assert sum(tensor.numel() for tensor in saved) <= 2 * N * M + 2 * n_points * M + (N + M) * K


# ---- constants


@pytest.mark.once
@pytest.mark.parametrize(
    ("t_max", "n_points", "floor"), [(3, 17, 1.05246), (5, 17, 1.05942), (5, 41, 1.05942), (3, 5, 1.04968)]
)
def test_the_floor_is_the_mean_over_simulated_gaussians_whatever_their_number(t_max, n_points, floor):
    assert gaussian_floor(t_max, n_points) == pytest.approx(floor, abs=1e-5)
    for N in (2, 50):
        samples_NR = torch.randn(N, 12_000)  # 12,000 samples of a statistic whose standard deviation is about 1
        found = torch.cat([statistics(part_NR, t_max, n_points) for part_NR in samples_NR.split(1000, 1)]).mean()
        assert found.item() == pytest.approx(floor, abs=0.04)


def collapse_slope(t_max, n_points):
    """Statistic of N zeros, divided by N: sum_k w_k (1 - phi_k)^2 over the knots from -t_max to t_max."""
    return statistics(torch.zeros(1, 1, dtype=torch.float64), t_max, n_points).item()


@pytest.mark.parametrize(("t_max", "slope"), [(3, 0.40205), (5, 0.40892)])
def test_full_collapse_gives_the_collapse_slope_times_n(t_max, slope):
    assert collapse_slope(t_max, 17) == pytest.approx(slope, abs=1e-5)
    assert float(sigreg(t_max=t_max)(torch.zeros(1024, K), 0)) == pytest.approx(1024 * slope, rel=2e-5)


def test_unit_vectors_look_collapsed_until_scaled_by_the_root_of_the_dimension():
    unit_NK = torch.nn.functional.normalize(torch.randn(1024, 512), dim=1)
    assert float(sigreg(256)(unit_NK, 0)) == pytest.approx(408.6, rel=1e-3)
    assert float(sigreg(256)(512**0.5 * unit_NK, 0)) == pytest.approx(1.05, abs=0.15)


@pytest.mark.parametrize(("N", "value"), [(256, 1.16), (1024, 1.60), (4096, 2.93)])
def test_half_the_rank_missing_shows_only_in_large_batches(N, value):
    basis_KR, _ = torch.linalg.qr(torch.randn(512, 256))
    embeddings_NK = 2**0.5 * torch.randn(N, 256) @ basis_KR.T
    assert float(sigreg(256)(embeddings_NK, 0)) == pytest.approx(value, abs=0.15 * value)


def test_a_collapsed_point_has_almost_no_gradient():
    size = {
        scale: value_and_gradient(lambda z: sigreg(256)(z, 0), scale * torch.randn(256, 512))[1].norm().item()
        for scale in (1e-3, 1e-2, 0.4)
    }
    assert size[1e-2] == pytest.approx(10 * size[1e-3], rel=0.02)
    assert size[0.4] > 15 * size[1e-2]


# ---- slices


def test_slices_are_unit_rows_given_by_seed_and_step_alone():
    torch.manual_seed(1)
    before = torch.get_rng_state()
    slices_MK = sigreg(seed=3).slices(K, 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(sigreg(seed=3).slices(K, 4), slices_MK)
    for seed, step in ((3, 5), (4, 4), (4, 3)):
        assert (sigreg(seed=seed).slices(K, step) - slices_MK).abs().max() > 0.1
    torch.testing.assert_close(slices_MK.norm(dim=1), torch.ones(16))


# ---- precision


def test_under_bf16_autocast_only_the_projection_is_rounded():
    module, embeddings_NK = sigreg(256), torch.randn(2048, K)
    exact = value_and_gradient(lambda z: module(z, 0), embeddings_NK)
    with torch.autocast("cpu", torch.bfloat16):
        value, gradient = value_and_gradient(lambda z: module(z, 0), embeddings_NK)
        assert module(embeddings_NK, 0).dtype == gradient.dtype == torch.float32
    assert 0 < abs(value / exact[0] - 1) < 0.02
    assert torch.nn.functional.cosine_similarity(gradient.flatten(), exact[1].flatten(), dim=0) > 0.99


@pytest.mark.once
def test_the_means_of_bf16_embeddings_do_not_stall_in_large_batches():
    embeddings_NK = torch.randn(65_536, 8).bfloat16()
    module = sigreg(16)
    value, gradient = value_and_gradient(lambda z: module(z, 0), embeddings_NK)
    projection_NM = (embeddings_NK @ module.slices(8, 0).bfloat16().T).float()
    assert value == pytest.approx(float(integral(projection_NM, torch.eye(16))), rel=1e-4)
    assert gradient.dtype == torch.bfloat16


# ---- what a user can do wrong


@pytest.mark.parametrize("N", [1, 3, 64, 1024, 8192])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_column_that_is_not_finite_is_refused_on_a_cpu(bad, N):
    embeddings_NK = torch.randn(N, K)
    embeddings_NK[:, 2] = bad
    with pytest.raises(ValueError, match=f"{N} of {N} rows here hold NaN or infinity; lower the learning rate"):
        sigreg()(embeddings_NK, 0)


@pytest.mark.parametrize("shape", [(K,), (0, K), (1, 2, 3, K)])
def test_embeddings_of_another_shape_are_refused(shape):
    with pytest.raises(ValueError, match=r"must be \[V, N, K\] or \[N, K\] with N > 0"):
        sigreg()(torch.zeros(shape), 0)


# ---- two processes

ROWS_OF_PROCESSES = [(32, 32), (24, 40)]


@contextlib.contextmanager
def one_of_two(rank, folder):
    """Both processes leave after both are done, without destructors: the reducer's can deadlock with gloo's threads."""
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    yield
    dist.barrier()
    os._exit(0)


def train_on_one_of_two(rank, folder):
    with one_of_two(rank, folder):
        for case, rows in enumerate(ROWS_OF_PROCESSES):
            encoder = torch.nn.parallel.DistributedDataParallel(linear_encoder())
            value = 0.5 * sigreg()(encoder(shared_batch(rows).split(rows)[rank]), 3)
            value.backward()
            torch.save((value.item(), encoder.module.weight.grad), f"{folder}/{case}-{rank}.pt")


def linear_encoder():
    torch.manual_seed(1)
    return torch.nn.Linear(10, K)


def shared_batch(rows):
    return 1.5 * torch.randn(sum(rows), 10, generator=torch.Generator().manual_seed(2))


@pytest.mark.once
def test_two_processes_under_ddp_have_value_and_gradient_of_the_batch_together(tmp_path):
    torch.multiprocessing.spawn(train_on_one_of_two, args=(str(tmp_path),), nprocs=2)
    for case, rows in enumerate(ROWS_OF_PROCESSES):
        encoder = linear_encoder().double()
        expected = 0.5 * integral(encoder(shared_batch(rows).double()), sigreg().slices(K, 3))
        expected.backward()
        for rank in range(2):
            found = torch.load(tmp_path / f"{case}-{rank}.pt")
            assert error(found, (expected.item(), encoder.weight.grad)) < 1e-5


# ---- CUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("N", [1, 64, 1024])
def test_value_and_gradient_on_cuda_equal_the_integral(N):
    module, embeddings_NK = sigreg().cuda(), torch.randn(N, K)
    expected = value_and_gradient(lambda z: integral(z, module.slices(K, 5)), embeddings_NK.double())
    assert error(value_and_gradient(lambda z: module(z, 5), embeddings_NK.cuda()), expected) < 1e-5


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers.machine import xla
from tests.test_sigreg import INPUTS, K, error, integral, sigreg, value_and_gradient

device = xla.start()
answers = {"error": {}, "sharded": [], "compiles": [], "syncs": []}
module = sigreg().to(device)
for step, (name, draw) in enumerate(INPUTS.items()):
    torch.manual_seed(step)
    embeddings_NK = draw(64, K)
    leaf = xla.shard_batch(embeddings_NK.to(device)).requires_grad_()
    xla.sync()
    before = xla.counters()
    value = module(leaf, step)
    value.backward()
    xla.sync()
    after = xla.counters()
    answers["sharded"].append(xla.is_batch_sharded(leaf))
    answers["compiles"].append(after["compiles"] - before["compiles"])
    answers["syncs"].append(sum(after[name] - before[name] for name in ("host_transfers", "item_calls")))
    expected = value_and_gradient(lambda z: integral(z, module.slices(K, step)), embeddings_NK.double())
    answers["error"][name] = error((value.item(), leaf.grad), expected)
embeddings_NK[3] = float("nan")
answers["value of NaN"] = str(module(embeddings_NK.to(device), 0).item())
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla():
    return answers_on_xla(ON_XLA)


def test_eight_devices_have_value_and_gradient_of_the_batch_together(on_xla):
    assert all(on_xla["sharded"])
    assert set(on_xla["error"]) == set(INPUTS)
    assert all(found < 1e-5 for found in on_xla["error"].values()), on_xla["error"]


def test_new_slices_compile_nothing_and_nothing_waits_for_the_device(on_xla):
    assert on_xla["compiles"][0] > 0
    assert on_xla["compiles"][1:] == [0] * 4
    assert on_xla["syncs"] == [0] * 5


def test_nan_on_an_xla_device_is_a_nan_value_for_the_trainers_guard(on_xla):
    assert on_xla["value of NaN"] == "nan"
