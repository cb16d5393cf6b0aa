"""Diagnostics of reservoirs, held against closed forms of delay lines, single units and known matrices."""

import dataclasses
import math

import numpy as np
import pytest
import torch

from helpers.reservoir.architecture import Delay, Linear, Tanh
from helpers.reservoir.diagnostics import memory_capacity, plot_diagnostics, spectrum, washout
from helpers.reservoir.reservoirs import Reservoirs, build

pytestmark = pytest.mark.once

V = 6


def drawn(spec, vocab_size=V):
    reservoirs = Reservoirs(((spec,),), vocab_size)
    reservoirs.draw(0)
    return reservoirs.layers[0][0]


def tanh(weight_GMM, leak=1.0, input_weight=None):
    """A tanh reservoir with these recurrent weights and no bias; without input weights it sees nothing."""
    weight_GMM = torch.tensor(np.array(weight_GMM))
    G, M, _ = weight_GMM.shape
    reservoir = build(Tanh(size=G * M, blocks=G, leak=leak), V)
    reservoir.weight.copy_(weight_GMM)
    if input_weight is not None:
        reservoir.input_weight.copy_(input_weight)
    return reservoir


def linear(multiplier, vocab_size=V):
    """One complex unit with this multiplier, driven by numbers from -1 to 1, one a token."""
    reservoir = build(Linear(size=1), vocab_size)
    reservoir.multiplier.copy_(torch.tensor([[multiplier.real], [multiplier.imag]]))
    reservoir.input_weight.copy_(torch.linspace(-1, 1, vocab_size)[:, None])
    return reservoir


def tokens(T, B=3, seed=0):
    return torch.randint(V, (B, T), generator=torch.Generator().manual_seed(seed))


# -- spectrum --


def test_spectrum_of_scaled_rotations_has_their_eigenvalues_their_scale_and_the_effective_radius():
    angles, scale, leak = (0.3, 2.0), 0.8, 0.4
    found = spectrum(
        tanh([scale * np.array([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]]) for a in angles], leak)
    )
    expected = [scale * np.exp(sign * 1j * angle) for angle in angles for sign in (1, -1)]
    np.testing.assert_allclose(np.sort_complex(found.eigenvalues), np.sort_complex(expected), atol=1e-7)
    assert found.spectral_radius == pytest.approx(scale, abs=1e-7)
    assert found.singular_value == pytest.approx(scale, abs=1e-7)
    assert found.effective_radius == pytest.approx(max(abs(1 - leak + leak * value) for value in expected), abs=1e-7)


def test_a_matrix_far_from_normal_has_a_singular_value_far_above_its_radius():
    found = spectrum(tanh([[[0.0, 4.0], [0.01, 0.0]]]))
    assert found.spectral_radius == pytest.approx(0.2, rel=1e-6)
    assert found.singular_value == pytest.approx(4, rel=1e-6)


def test_spectrum_of_a_linear_reservoir_is_its_multipliers():
    reservoir = drawn(Linear(size=50, spectral_radius=0.95))
    found = spectrum(reservoir)
    np.testing.assert_array_equal(found.eigenvalues.real, reservoir.multiplier[0])
    np.testing.assert_array_equal(found.eigenvalues.imag, reservoir.multiplier[1])
    assert found.spectral_radius == found.singular_value == found.effective_radius == pytest.approx(0.95, rel=1e-6)


@pytest.mark.parametrize("blocks", [1, 4])
def test_a_drawn_reservoir_has_the_radius_asked_for_in_every_block(blocks):
    found = spectrum(drawn(Tanh(size=64, blocks=blocks, spectral_radius=0.7, density=0.5)))
    radii = np.abs(found.eigenvalues.reshape(blocks, -1)).max(1)
    np.testing.assert_allclose(radii, 0.7, rtol=1e-5)


# -- washout --


@pytest.mark.parametrize("multiplier", [0.5 + 0j, 0.6 - 0.6j])
def test_a_linear_unit_forgets_as_its_multiplier_to_the_power_of_the_tokens_seen(multiplier):
    found = washout(linear(multiplier).double(), tokens(80), seed=1)
    radius = abs(complex(np.complex64(multiplier)))  # as it is stored
    np.testing.assert_allclose(found.distance_T, radius ** np.arange(81), rtol=1e-6, atol=1e-15)
    assert found.tokens == math.ceil(math.log(1e-4) / math.log(radius))


def test_units_that_only_leak_forget_as_the_rest_of_the_leak_to_the_power_of_the_tokens_seen():
    found = washout(tanh(np.zeros((2, 3, 3)), leak=0.3), tokens(20), seed=1)
    np.testing.assert_allclose(found.distance_T, 0.7 ** np.arange(21), rtol=1e-5)


def test_a_delay_line_forgets_after_its_delays():
    found = washout(drawn(Delay(size=3, delays=5)), tokens(10), seed=1)
    assert found.tokens == 5
    assert (found.distance_T[1:5] > 0.1).all() and not found.distance_T[5:].any()


def test_units_with_two_stable_states_never_forget():
    found = washout(tanh(np.full((16, 1, 1), 3.0)), tokens(50), seed=1)
    assert found.tokens is None
    assert found.distance_T[-1] > 1


def test_the_same_units_forget_once_the_input_is_strong():
    found = washout(tanh(np.full((16, 1, 1), 3.0), input_weight=torch.full((V, 16), 5.0)), tokens(50), seed=1)
    assert found.tokens < 10


def test_one_row_that_does_not_forget_is_enough():
    strong = torch.zeros(V, 16)
    strong[1] = 5
    ids_BT = torch.ones((4, 50), dtype=torch.int64)
    assert washout(tanh(np.full((16, 1, 1), 3.0), input_weight=strong), ids_BT, seed=1).tokens < 10
    ids_BT[2] = 0
    assert washout(tanh(np.full((16, 1, 1), 3.0), input_weight=strong), ids_BT, seed=1).distance_T[-1] > 1


def test_too_few_tokens_to_forget_are_reported_as_none():
    assert washout(linear(0.5 + 0j), tokens(13), seed=1).tokens is None
    assert washout(linear(0.5 + 0j), tokens(14), seed=1).tokens == 14


# -- memory --


@pytest.mark.parametrize("vocab_size", [2, 5])
def test_a_delay_line_recalls_exactly_its_delays(vocab_size):
    delays = 4
    found = memory_capacity(drawn(Delay(size=5, delays=delays)), vocab_size, max_lag=12, seed=0, ridge=1e-6)
    np.testing.assert_allclose(found.r2_K[: delays - 1], 1, atol=1e-6)  # the current token is not memory
    assert found.r2_K[delays - 1 :].max() < 12 * found.floor
    assert found.total == pytest.approx(delays - 1, abs=12 * 4 * found.floor)


def test_the_floor_is_the_mean_score_of_lags_out_of_reach():
    found = memory_capacity(drawn(Delay(size=2, delays=1)), 2, max_lag=200, seed=0, length=256)
    assert found.floor == 1 / (8 * (256 - 200) - 1)
    assert found.r2_K.mean() == pytest.approx(found.floor, rel=0.3)


def test_memory_of_one_linear_unit_fades_as_in_closed_form():
    # s = sum_k m^k u(t-k) is correlated with u(t-k) by m^k / sqrt(sum m^2k); the sum from lag 0 on is 1, the units.
    multiplier = 0.8
    found = memory_capacity(linear(multiplier + 0j, vocab_size=2), 2, max_lag=20, seed=0, length=8192)
    expected = (1 - multiplier**2) * multiplier ** (2 * np.arange(1, 21))
    np.testing.assert_allclose(found.r2_K, expected, atol=0.01)
    assert found.total == pytest.approx(multiplier**2, abs=0.02)


def test_more_tokens_than_features_cannot_be_recalled():
    # Codes of V tokens are a random direction of V; features span F of them, and a constant.
    found = memory_capacity(drawn(Delay(size=20, delays=2), vocab_size=200), 200, max_lag=1, seed=0, length=4096)
    assert 0.02 < found.r2_K[0] < 0.3


# -- all of them --

ALL = {
    "washout": lambda reservoir, seed: washout(reservoir, tokens(12), seed),
    "memory": lambda reservoir, seed: memory_capacity(reservoir, 3, 8, seed, length=64),
}
KINDS = {
    "tanh": Tanh(size=12),
    "blocks": Tanh(size=12, blocks=3),
    "linear": Linear(size=6),
    "delay": Delay(size=4, delays=3, quadratic=5),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ALL)
def test_a_seed_fixes_the_result_and_another_changes_it(name, kind):
    reservoir = drawn(KINDS[kind])
    first, again, other = (dataclasses.astuple(ALL[name](reservoir, seed))[0] for seed in (3, 3, 4))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


@pytest.mark.parametrize("name", ALL)
def test_results_are_finite_fp64_arrays_and_leave_the_global_generator_alone(name):
    state = torch.get_rng_state()
    for value in dataclasses.astuple(ALL[name](drawn(Tanh(size=12)), 0)):
        assert type(value) in (np.ndarray, float, int, type(None))
        assert value is None or np.isfinite(value).all()
    assert dataclasses.astuple(ALL[name](drawn(Tanh(size=12)), 0))[0].dtype == np.float64
    assert torch.equal(torch.get_rng_state(), state)


# -- the plot --


@pytest.fixture
def figure(tmp_path):
    matplotlib = pytest.importorskip("matplotlib")
    matplotlib.use("Agg")

    parts = {"echo": drawn(Tanh(size=24, spectral_radius=0.6)), "slow": drawn(Linear(size=6, spectral_radius=0.9))}
    results = (
        {name: spectrum(part) for name, part in parts.items()},
        {"echo": washout(parts["echo"], tokens(40), seed=0)},
        {name: memory_capacity(part, 2, 8, seed=0, length=64) for name, part in parts.items()},
    )
    drawing = plot_diagnostics(*results, tmp_path / "plots/diagnostics.png", title="Before training")
    yield drawing, results
    matplotlib.pyplot.close(drawing)


def test_the_picture_is_written_as_png_with_its_folder(figure, tmp_path):
    assert (tmp_path / "plots/diagnostics.png").read_bytes()[:8] == b"\x89PNG\r\n\x1a\n"


def test_every_panel_says_what_it_shows_and_in_which_unit(figure):
    drawing, _ = figure
    assert drawing.get_suptitle() == "Before training"
    assert [(axes.get_xlabel(), axes.get_ylabel()) for axes in drawing.axes] == [
        ("real part", "imaginary part"),
        ("tokens seen", "distance / initial distance"),
        ("lag (tokens)", "$r^2$ of the recalled token"),
    ]
    assert drawing.axes[1].get_yscale() == "log"


def test_the_panels_show_the_results(figure):
    drawing, (spectra, washouts, memories) = figure
    plane, forgetting, recall = drawing.axes
    points = plane.collections[0].get_offsets()
    np.testing.assert_allclose(points[:, 0] + 1j * points[:, 1], spectra["echo"].eigenvalues)
    np.testing.assert_allclose(forgetting.get_lines()[0].get_ydata(), np.maximum(washouts["echo"].distance_T, 1e-8))
    np.testing.assert_allclose(recall.get_lines()[0].get_ydata(), memories["echo"].r2_K)
    np.testing.assert_array_equal(recall.get_lines()[0].get_xdata(), np.arange(1, 9))


def test_the_circles_are_those_of_radius_one_and_of_the_spectral_radii(figure):
    radii = [np.hypot(*line.get_xydata().T) for line in figure[0].axes[0].get_lines()]
    np.testing.assert_allclose([radius.mean() for radius in radii], [1, 0.6, 0.9])


def test_a_name_has_one_colour_in_all_panels(figure):
    plane, _, recall = figure[0].axes
    from matplotlib.colors import to_hex

    assert to_hex(recall.get_lines()[2].get_color()) == to_hex(plane.collections[1].get_facecolor()[0])
