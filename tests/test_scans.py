"""Recurrences over time against reservoirpy, a Python loop in complex fp64 and the eigenvectors of a dense matrix."""

import itertools

import numpy as np
import pytest
import reservoirpy.nodes
import scipy.linalg
import torch

from helpers.reservoir import scans

from .xla_process import answers_on_xla

B, T, N, I = 2, 200, 300, 16  # noqa: E741
METHODS = [scans.chunked, scans.doubling]

# B batch · T tokens · N units · I inputs · G blocks of M units


def echo_state_network(blocks=1, tokens=T, units=N, seed=0):
    """fp64 arrays: inputs [B, T, I], W [G, M, M] of spectral radius 0.9 a block, W_in [N, I], bias [N], state [B, N]."""
    rng = np.random.default_rng(seed)
    weight_GMM = rng.normal(size=(blocks, units // blocks, units // blocks))
    weight_GMM *= 0.9 / np.abs(np.linalg.eigvals(weight_GMM)).max(-1)[:, None, None]
    input_weight_NI, bias_N = rng.uniform(-0.5, 0.5, (units, I)), rng.uniform(-0.1, 0.1, units)
    return rng.normal(size=(B, tokens, I)), weight_GMM, input_weight_NI, bias_N, rng.uniform(-1, 1, (B, units))


def by_reservoirpy(network, leak):
    inputs_BTI, weight_GMM, input_weight_NI, bias_N, state_BN = network
    node = reservoirpy.nodes.Reservoir(
        W=scipy.linalg.block_diag(*weight_GMM), Win=input_weight_NI, bias=bias_N, lr=leak
    )
    states = []
    for inputs_TI, state_N in zip(inputs_BTI, state_BN, strict=True):
        node.initialize(inputs_TI)
        node.state = {"out": state_N}
        states.append(node.run(inputs_TI))
    return np.stack(states)


def by_scan(network, leak, dtype=torch.float64, device="cpu", **options):
    inputs_BTI, weight_GMM, input_weight_NI, bias_N, state_BN = network
    drive_BTN = torch.from_numpy(inputs_BTI @ input_weight_NI.T + bias_N).to(device, dtype)
    weight_GMM, state_BN = (torch.from_numpy(array).to(device, dtype) for array in (weight_GMM, state_BN))
    return scans.leaky_tanh(drive_BTN, weight_GMM, leak, state_BN, **options)


def off(found, expected) -> float:
    return float(np.abs(found.double().cpu().numpy() - expected).max())


# ---- leaky tanh


@pytest.mark.parametrize("blocks", [1, 4, N])
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float64, 1e-12), (torch.float32, 1e-5), (torch.bfloat16, 5e-2)])
def test_states_equal_reservoirpy(blocks, dtype, bound):
    network = echo_state_network(blocks)
    states_BTN, last_BN = by_scan(network, 0.3, dtype)
    assert states_BTN.dtype == last_BN.dtype == dtype
    assert off(states_BTN, by_reservoirpy(network, 0.3)) < bound
    assert torch.equal(last_BN, states_BTN[:, -1])


@pytest.mark.parametrize("blocks", [1, 4])
def test_states_without_leak_equal_reservoirpy(blocks):
    network = echo_state_network(blocks)
    assert off(by_scan(network, 1.0)[0], by_reservoirpy(network, 1.0)) < 1e-12


@pytest.mark.parametrize("blocks", [1, 4])
def test_states_under_bf16_autocast_equal_reservoirpy_and_what_is_carried_stays_fp32(blocks):
    network = echo_state_network(blocks)
    with torch.autocast("cpu", torch.bfloat16):
        states_BTN, last_BN = by_scan(network, 0.3, torch.float32)
    assert (states_BTN.dtype, last_BN.dtype) == (torch.bfloat16, torch.float32)
    assert off(states_BTN, by_reservoirpy(network, 0.3)) < 5e-2
    assert not torch.equal(last_BN, last_BN.bfloat16().float())


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_slow_leak_does_not_stall_under_bf16_autocast(blocks):
    # A step of 1e-4 is below half a bf16 digit of 1, so that a bf16 carry would never move.
    drive_BTN, weight_GMM = torch.full((1, 1000, 8), -9.0), torch.zeros(blocks, 8 // blocks, 8 // blocks)
    with torch.autocast("cpu", torch.bfloat16):
        _, last_BN = scans.leaky_tanh(drive_BTN, weight_GMM, 1e-4, torch.ones(1, 8))
    assert off(last_BN, 2 * (1 - 1e-4) ** 1000 - 1) < 1e-3


@pytest.mark.parametrize("blocks", [1, 4])
def test_the_drive_and_the_initial_state_are_left_as_they_were(blocks):
    drive_BTN, weight_GMM, state_BN = (
        torch.randn(2, 5, 8),
        torch.randn(blocks, 8 // blocks, 8 // blocks),
        torch.ones(2, 8),
    )
    before = drive_BTN.clone()
    scans.leaky_tanh(drive_BTN, weight_GMM, 0.5, state_BN)
    assert torch.equal(drive_BTN, before)
    assert torch.equal(state_BN, torch.ones(2, 8))


@pytest.mark.parametrize("scan", ["leaky_tanh", *METHODS])
def test_no_graph_is_kept_of_inputs_that_require_gradients(scan):
    drive_BTN = torch.randn(2, 40, 8, requires_grad=True)
    if scan == "leaky_tanh":
        states, last = scans.leaky_tanh(drive_BTN, torch.randn(1, 8, 8, requires_grad=True), 0.5, torch.zeros(2, 8))
        assert not last.requires_grad
    else:
        states = scans.linear(drive_BTN, torch.full((2, 8), 0.5, requires_grad=True), torch.zeros(2, 2, 8), scan)
    assert not states.requires_grad


# ---- linear


def recurrence(tokens, radii=(0.01, 0.5, 0.9, 0.99, 0.999), batch=2, digits=torch.float32):
    """fp64 inputs [B, T, N], complex multipliers [N] (eight phases a radius) and states [B, N] that `digits` holds exactly."""
    rng = np.random.default_rng(0)
    multiplier_N = (np.array(radii)[:, None] * np.exp(1j * np.linspace(0, np.pi, 8))).flatten()
    multiplier_N = rounded(multiplier_N, digits)
    multiplier_N = multiplier_N[np.abs(multiplier_N) < 1]  # bf16 makes 1 and more of some of 0.999
    drive_BTN = rng.normal(size=(batch, tokens, len(multiplier_N)))
    state_BN = rng.normal(size=(batch, len(multiplier_N))) + 1j * rng.normal(size=(batch, len(multiplier_N)))
    return rounded(drive_BTN, digits).real, multiplier_N, rounded(state_BN, digits)


def rounded(array, dtype):
    parts = torch.tensor(np.stack((array.real, array.imag))).to(dtype).double().numpy()
    return parts[0] + 1j * parts[1]


def loop(drive_BTN, multiplier_N, state_BN):
    states_BTN = np.empty(drive_BTN.shape, complex)
    for t in range(drive_BTN.shape[1]):
        state_BN = states_BTN[:, t] = multiplier_N * state_BN + drive_BTN[:, t]
    return states_BTN


def by_linear(drive_BTN, multiplier_N, state_BN, method, dtype=torch.float32, device="cpu", **options):
    """Complex states [B, T, N] of `scans.linear`."""
    arrays = (
        drive_BTN,
        np.stack((multiplier_N.real, multiplier_N.imag)),
        np.stack((state_BN.real, state_BN.imag), axis=1),
    )
    states_BT2N = scans.linear(*(torch.from_numpy(array).to(device, dtype) for array in arrays), method, **options)
    assert states_BT2N.dtype == dtype
    states_BT2N = states_BT2N.double().cpu().numpy()
    return states_BT2N[:, :, 0] + 1j * states_BT2N[:, :, 1]


def relative(found, expected) -> float:
    """Largest error of any unit, relative to that unit's largest state."""
    return float((np.abs(found - expected).max((0, 1)) / np.abs(expected).max((0, 1))).max())


@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 33, 77, 1024])
@pytest.mark.parametrize("method", METHODS)
def test_linear_states_equal_a_loop_in_fp64(method, tokens):
    inputs = recurrence(tokens)
    assert relative(by_linear(*inputs, method), loop(*inputs)) < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_linear_states_in_fp64_have_fp64_digits(method):
    inputs = recurrence(300)
    assert relative(by_linear(*inputs, method, torch.float64), loop(*inputs)) < 1e-12


@pytest.mark.parametrize("method", METHODS)
def test_linear_states_of_bf16_arrays_are_rounded_once(method):
    inputs = recurrence(300, digits=torch.bfloat16)
    assert relative(by_linear(*inputs, method, torch.bfloat16), loop(*inputs)) < 2**-8


@pytest.mark.parametrize("method", METHODS)
def test_autocast_does_not_lower_the_precision_of_linear_states(method):
    inputs = recurrence(64)
    with torch.autocast("cpu", torch.bfloat16):
        under_autocast = by_linear(*inputs, method)
    assert np.array_equal(under_autocast, by_linear(*inputs, method))


@pytest.mark.parametrize("method", METHODS)
def test_a_fast_forgetting_unit_neither_overflows_nor_vanishes_after_2000_tokens(method):
    inputs = recurrence(2000, radii=(0.01,))  # lambda^-2000 is 1e4000
    states_BTN = by_linear(*inputs, method)
    assert np.isfinite(states_BTN).all()
    assert relative(states_BTN[:, -100:], loop(*inputs)[:, -100:]) < 1e-5


@pytest.mark.parametrize("method", METHODS)
def test_a_dense_linear_recurrence_equals_its_diagonal_form(method):
    rng = np.random.default_rng(0)
    weight_NN = rng.normal(size=(20, 20)) * 0.95 / np.sqrt(20)
    drive_TN, state_N = rng.normal(size=(50, 20)), rng.normal(size=20)
    expected_TN, state = np.empty((50, 20)), state_N
    for t in range(50):
        state = expected_TN[t] = weight_NN @ state + drive_TN[t]
    multiplier_N, vectors_NN = np.linalg.eig(weight_NN)
    inverse_NN = np.linalg.inv(vectors_NN)
    modes_TN = drive_TN @ inverse_NN.T
    # The drive of an eigenmode is complex: real and imaginary part run beside each other.
    drive_BTN = np.stack((modes_TN.real, modes_TN.imag))
    state_BN = np.stack((inverse_NN @ state_N, np.zeros(20)))
    real, imaginary = by_linear(drive_BTN, multiplier_N, state_BN, method, torch.float64)
    assert np.abs((real + 1j * imaginary) @ vectors_NN.T - expected_TN).max() < 1e-10


# ---- texts that begin within a call


def texts(tokens, share=0.1):
    """Whether each of two rows of tokens ends a text, and since when the text of each and of the next token is read."""
    ends_BT = np.random.default_rng(1).random((2, tokens)) < share
    since_BU = np.full((2, tokens + 1), scans.LONG_AGO)
    for row, ends_T in enumerate(ends_BT):
        for t in np.flatnonzero(ends_T):
            since_BU[row, t + 1 :] = np.arange(tokens - t)
    return ends_BT, since_BU


@pytest.mark.parametrize("tokens", [1, 2, 31, 32, 200])
@pytest.mark.parametrize("share", [0.0, 0.1, 1.0])
def test_tokens_since_a_text_began_are_counted(tokens, share):
    ends_BT, since_BU = texts(tokens, share)
    assert np.array_equal(scans.since_begin(torch.from_numpy(ends_BT)).numpy(), since_BU)


@pytest.mark.parametrize("tokens", [1, 31, 33, 77, 200])
@pytest.mark.parametrize("method", METHODS)
def test_linear_states_begin_anew_with_a_text(method, tokens):
    (drive_BTN, multiplier_N, state_BN), (_, since_BU) = recurrence(tokens), texts(tokens)
    expected, state = np.empty(drive_BTN.shape, complex), state_BN
    for t in range(tokens):
        state = expected[:, t] = multiplier_N * state * (since_BU[:, t, None] > 0) + drive_BTN[:, t]
    found = by_linear(drive_BTN, multiplier_N, state_BN, method, since_BT=torch.from_numpy(since_BU[:, :-1]))
    assert relative(found, expected) < 1e-5


@pytest.mark.parametrize("blocks", [1, 4])
def test_tanh_states_begin_anew_with_a_text(blocks):
    network, (_, since_BU) = echo_state_network(blocks), texts(T)
    found = by_scan(network, 0.3, since_BT=torch.from_numpy(since_BU[:, :-1]))[0].numpy()
    for row in range(B):
        edges = [0, *np.flatnonzero(since_BU[row, :T] == 0), T]
        for begin, end in itertools.pairwise(edges):
            inputs_BTI, weight_GMM, input_weight_NI, bias_N, state_BN = network
            state_BN = state_BN if begin == 0 else 0 * state_BN
            text = inputs_BTI[:, begin:end], weight_GMM, input_weight_NI, bias_N, state_BN
            assert np.abs(found[row, begin:end] - by_reservoirpy(text, 0.3)[row]).max() < 1e-12


# ---- CUDA


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("blocks", [1, 4])
def test_states_on_cuda_equal_reservoirpy(blocks):
    network = echo_state_network(blocks)
    assert off(by_scan(network, 0.3, device="cuda")[0], by_reservoirpy(network, 0.3)) < 1e-12


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("method", METHODS)
def test_linear_states_on_cuda_equal_a_loop_in_fp64(method):
    inputs = recurrence(77)
    assert relative(by_linear(*inputs, method, device="cuda"), loop(*inputs)) < 1e-5


# ---- XLA

ON_XLA = """
import json
import numpy as np
import torch
torch.set_num_threads(1)
import torch_xla
from helpers import xla
from tests import test_scans as tests

device = xla.start()
tests.B = 8
answers = {"error": {}, "graph": {}, "compiles": {}}
for blocks in (1, 4):
    network = tests.echo_state_network(blocks, units=48)
    for name, found, expected in zip(("states", "last"), *(
        tests.by_scan(network, 0.3, torch.float32, where) for where in (device, "cpu")
    )):
        answers["error"][f"{blocks} blocks, {name}"] = tests.off(found, expected.numpy())
with torch.autocast("xla", torch.bfloat16):
    states, last = tests.by_scan(network, 0.3, torch.float32, device)
answers["dtypes"] = [str(states.dtype), str(last.dtype)]
answers["error under bf16"] = tests.off(states, tests.by_reservoirpy(network, 0.3))
for tokens in (1, 77, 256):
    inputs = tests.recurrence(tokens, batch=8)
    found, expected = (tests.by_linear(*inputs, tests.scans.doubling, device=where) for where in (device, "cpu"))
    answers["error"][f"linear, {tokens} tokens"] = tests.relative(found, expected)


def lines(tokens, blocks):
    states, last = tests.by_scan(tests.echo_state_network(blocks, tokens, 48), 0.3, torch.float32, device)
    text = torch_xla._XLAC._get_xla_tensors_hlo([states, last])
    assert "while" in text
    return len(text.splitlines())


for blocks in (1, 4):
    answers["graph"][str(blocks)] = [lines(tokens, blocks) for tokens in (32, 256)]
for seed in (1, 2, 3):
    before = xla.counters()["compiles"]
    tests.by_scan(tests.echo_state_network(4, 64, 48, seed), 0.3, torch.float32, device)[0].cpu()
    answers["compiles"][str(seed)] = xla.counters()["compiles"] - before
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla():
    return answers_on_xla(ON_XLA)


def test_fp32_states_on_eight_xla_devices_equal_the_cpus(on_xla):
    assert len(on_xla["error"]) == 7
    assert all(error < 1e-4 for error in on_xla["error"].values()), on_xla["error"]


def test_states_under_bf16_autocast_on_xla_equal_reservoirpy_and_what_is_carried_stays_fp32(on_xla):
    assert on_xla["dtypes"] == ["torch.bfloat16", "torch.float32"]
    assert on_xla["error under bf16"] < 5e-2


def test_the_xla_graph_of_the_tanh_scan_does_not_grow_with_time(on_xla):
    for short, long in on_xla["graph"].values():
        assert long <= 1.5 * short


def test_the_tanh_scan_compiles_once_for_one_shape(on_xla):
    assert on_xla["compiles"]["1"] > 0
    assert on_xla["compiles"]["2"] == on_xla["compiles"]["3"] == 0
