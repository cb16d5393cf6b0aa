"""Reservoirs: what their settings do, measured; states against slow loops and closed forms; the notation and its errors."""

import itertools
import math

import numpy as np
import pytest
import scipy.linalg
import torch

from helpers.reservoir import reservoirs
from helpers.reservoir.architecture import Linear, parse
from helpers.reservoir.reservoirs import Reservoirs

from .xla_process import answers_on_xla

KINDS = {
    "tanh": "tanh:24 leak:0.4",
    "blocks": "tanh:24 blocks:4 density:0.5",
    "linear": "linear:12 spectral_radius:0.9",
    "delay": "delay:5 delays:4 quadratic:30",
    "deep": "delay:6 delays:3 quadratic:8 + tanh:12 blocks:3 + linear:5 | delay:3 delays:1 + tanh:8 leak:1 | linear:7",
}
FADING = [name for name in KINDS if name != "delay"]
V, B, T = 11, 3, 20

# B batch · T tokens · V vocabulary · F features · S state floats · N units


@pytest.fixture(params=KINDS)
def drawn(request):
    return draw(KINDS[request.param])


def draw(text, seed=0, vocabulary=V, dtype=torch.float64):
    model = Reservoirs(parse(text), vocabulary)
    model.draw(seed)
    return model.to(dtype)


def single(text, **options):
    """The only reservoir of a notation."""
    return draw(text, **options).layers[0][0]


def tokens(batch=B, length=T, seed=0):
    return torch.from_numpy(np.random.default_rng(seed).integers(0, V, (batch, length)))


def state(model, scale=0.0, batch=B, seed=0):
    random_BS = np.random.default_rng(seed).normal(size=(batch, model.state_size))
    return torch.from_numpy(scale * random_BS).to(next(model.buffers()).dtype)


def run(model, ids_BT=None, state_BS=None, mask_BT=None):
    """Features of all layers side by side [B, T, F] and the last state [B, S]."""
    ids_BT = tokens() if ids_BT is None else ids_BT
    state_BS = state(model, batch=len(ids_BT)) if state_BS is None else state_BS
    features, last_BS = model(ids_BT, state_BS, mask_BT)
    return torch.cat(features, dim=-1), last_BS


def off(found, expected) -> float:
    return float((torch.as_tensor(found) - torch.as_tensor(expected)).abs().max())


def buffers(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def same(one, other) -> bool:
    return one.keys() == other.keys() and all(torch.equal(tensor, other[name]) for name, tensor in one.items())


# ---- states


def test_deep_states_equal_a_slow_loop_over_the_formulas():
    text = "tanh:6 blocks:2 leak:0.3 + linear:4 + delay:2 delays:3 quadratic:5 | tanh:5 leak:1"
    model, ids_BT = draw(text), tokens()
    (tanh, linear, delay), (top,) = model.layers
    multiplier_N = torch.complex(*linear.multiplier).numpy()
    weights = [scipy.linalg.block_diag(*reservoir.weight.numpy()) for reservoir in (tanh, top)]
    expected = [np.zeros((B, T, 6 + 8 + 11)), np.zeros((B, T, 5))]
    for row in range(B):
        low, slow, line, high = np.zeros(6), np.zeros(4, complex), [np.zeros(2)] * 3, np.zeros(5)
        for t, token in enumerate(ids_BT[row].tolist()):
            pre = weights[0] @ low + tanh.input_weight[token].numpy() + tanh.bias.numpy()
            low = 0.7 * low + 0.3 * np.tanh(pre)
            slow = multiplier_N * slow + linear.input_weight[token].numpy()
            line = [delay.input_weight[token].numpy(), *line[:2]]
            codes = np.concatenate(line)
            products = [codes[i] * codes[j] for i, j in delay.pairs.T.tolist()]
            expected[0][row, t] = np.concatenate((low, slow.real, slow.imag, codes, products))
            pre = weights[1] @ high + expected[0][row, t] @ top.input_weight.numpy() + top.bias.numpy()
            high = expected[1][row, t] = np.tanh(pre)
    features, _ = model(ids_BT, state(model))
    assert off(features[0], expected[0]) < 1e-12
    assert off(features[1], expected[1]) < 1e-12


@pytest.mark.parametrize("first", [1, 2, 7, T - 1])
def test_streaming_equals_one_call(drawn, first):
    ids_BT, start_BS = tokens(), state(drawn, 0.5)
    whole_BTF, end_BS = run(drawn, ids_BT, start_BS)
    head_BTF, middle_BS = run(drawn, ids_BT[:, :first], start_BS)
    tail_BTF, last_BS = run(drawn, ids_BT[:, first:], middle_BS)
    assert off(torch.cat((head_BTF, tail_BTF), dim=1), whole_BTF) < 1e-12
    assert off(last_BS, end_BS) < 1e-12


def test_token_by_token_equals_one_call(drawn):
    ids_BT, state_BS = tokens(), state(drawn, 0.5)
    whole_BTF, _ = run(drawn, ids_BT, state_BS)
    for t in range(T):
        features_BTF, state_BS = run(drawn, ids_BT[:, t : t + 1], state_BS)
        assert off(features_BTF[:, 0], whole_BTF[:, t]) < 1e-12


@pytest.mark.parametrize("kind", FADING)
def test_two_random_initial_states_converge(kind):
    model, ids_BT = draw(KINDS[kind]), tokens(length=1200)
    (one_BTF, one_BS), (other_BTF, other_BS) = (run(model, ids_BT, state(model, 0.5, seed=seed)) for seed in (1, 2))
    assert off(one_BTF[:, 0], other_BTF[:, 0]) > 0.1
    assert off(one_BTF[:, 1000:], other_BTF[:, 1000:]) < 1e-4
    assert off(one_BS, other_BS) < 1e-4


def test_a_linear_state_is_forgotten_as_powers_of_lambda():
    model = draw(KINDS["linear"])
    reservoir, start_BS = model.layers[0][0], state(model, 1.0)
    difference_BTF = run(model, None, start_BS)[0] - run(model)[0]
    powers_TN = torch.complex(*reservoir.multiplier) ** torch.arange(1, T + 1)[:, None]
    expected_BTN = powers_TN * torch.complex(*start_BS.unflatten(1, (2, -1)).unbind(1))[:, None]
    assert off(difference_BTF, torch.cat((expected_BTN.real, expected_BTN.imag), dim=-1)) < 1e-12


@pytest.mark.parametrize("delays", [1, 2, 5])
def test_a_delay_line_forgets_exactly_after_as_many_tokens_as_it_holds(delays):
    model = draw(f"delay:3 delays:{delays} quadratic:3")
    (one_BTF, one_BS), (other_BTF, other_BS) = (run(model, None, state(model, 1.0, seed=seed)) for seed in (1, 2))
    different = [t for t in range(T) if not torch.equal(one_BTF[:, t], other_BTF[:, t])]
    assert different == list(range(delays - 1))
    assert torch.equal(one_BS, other_BS)


def test_rows_of_a_batch_do_not_see_each_other(drawn):
    ids_BT, start_BS = tokens(), state(drawn, 0.5)
    features_BTF, last_BS = run(drawn, ids_BT, start_BS)
    for row in range(B):
        alone_BTF, alone_BS = run(drawn, ids_BT[row : row + 1], start_BS[row : row + 1])
        assert off(alone_BTF[0], features_BTF[row]) < 1e-12
        assert off(alone_BS[0], last_BS[row]) < 1e-12


def test_a_permutation_of_the_rows_permutes_features_and_states(drawn):
    ids_BT, start_BS, order = tokens(), state(drawn, 0.5), [2, 0, 1]
    features_BTF, last_BS = run(drawn, ids_BT, start_BS)
    permuted_BTF, permuted_BS = run(drawn, ids_BT[order], start_BS[order])
    assert off(permuted_BTF, features_BTF[order]) < 1e-12
    assert off(permuted_BS, last_BS[order]) < 1e-12


def test_features_do_not_see_later_tokens(drawn):
    ids_BT = tokens()
    changed_BT = ids_BT.clone()
    changed_BT[:, 9] = (changed_BT[:, 9] + 1) % V
    one_BTF, other_BTF = run(drawn, ids_BT)[0], run(drawn, changed_BT)[0]
    assert torch.equal(one_BTF[:, :9], other_BTF[:, :9])
    assert not torch.equal(one_BTF[:, 9], other_BTF[:, 9])


def test_padding_leaves_the_zero_state_zero(drawn):
    features_BTF, last_BS = run(drawn, mask_BT=torch.zeros(B, T))
    assert not features_BTF.any()
    assert not last_BS.any()


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64])
def test_padding_on_the_left_changes_nothing_after_it(drawn, dtype):
    ids_BT, mask_BT = tokens(), torch.ones(B, T, dtype=dtype)
    mask_BT[1, :6] = 0
    padded_BTF, padded_BS = run(drawn, ids_BT, mask_BT=mask_BT)
    alone_BTF, alone_BS = run(drawn, ids_BT[1:2, 6:])
    assert off(padded_BTF[1, 6:], alone_BTF[0]) < 1e-12
    assert off(padded_BS[1], alone_BS[0]) < 1e-12


@pytest.mark.parametrize("kind", [name for name in KINDS if name != "deep"])
def test_a_token_drives_as_its_one_hot_vector_does(kind):
    model, ids_BT = draw(KINDS[kind]), tokens()
    one_hot_BTV = torch.nn.functional.one_hot(ids_BT, V).double()
    by_token, by_vector = (model.layers[0][0](inputs, state(model)) for inputs in (ids_BT, one_hot_BTV))
    assert off(by_token[0], by_vector[0]) < 1e-12
    assert off(by_token[1], by_vector[1]) < 1e-12


def test_features_and_state_have_the_sizes_announced(drawn):
    features, last_BS = drawn(tokens(), state(drawn))
    assert [layer_BTF.shape for layer_BTF in features] == [(B, T, size) for size in drawn.features]
    assert last_BS.shape == (B, drawn.state_size)


# ---- delay line


def test_a_delay_feature_is_the_code_of_the_token_so_many_back():
    model, ids_BT = draw("delay:3 delays:4"), tokens()
    features_BTF, code_VN = run(model, ids_BT)[0], model.layers[0][0].input_weight
    for k in range(4):
        assert torch.equal(features_BTF[:, k:, 3 * k : 3 * k + 3], code_VN[ids_BT[:, : T - k]])
        assert not features_BTF[:, :k, 3 * k : 3 * k + 3].any()


@pytest.mark.parametrize("quadratic", [1, 7, 15])  # 15 are all pairs of 2 x 3 features
def test_quadratic_terms_are_as_many_products_of_distinct_pairs_as_asked(quadratic):
    features_BTF, _ = run(draw(f"delay:2 delays:3 quadratic:{quadratic}"))
    assert features_BTF.shape[-1] == 6 + quadratic
    found = set()
    for term_BT in features_BTF[..., 6:].unbind(-1):
        found |= {
            (i, j)
            for i, j in itertools.combinations(range(6), 2)
            if torch.equal(term_BT, features_BTF[..., i] * features_BTF[..., j])
        }
    assert len(found) == quadratic


def test_all_pairs_of_a_line_can_be_drawn():
    left, right = single("delay:32 delays:8 quadratic:32640").pairs.tolist()
    assert set(zip(left, right, strict=True)) == set(itertools.combinations(range(256), 2))


# ---- settings


@pytest.mark.parametrize("radius", [0.5, 0.9, 1.3])
@pytest.mark.parametrize(
    "shape", ["tanh:60", "tanh:60 blocks:4", "tanh:200 density:0.1", "tanh:200 blocks:2 density:0.1"]
)
def test_every_block_has_the_spectral_radius_asked_for(shape, radius):
    weight_GMM = single(f"{shape} spectral_radius:{radius}", dtype=torch.float32).weight.numpy()
    for weight_MM in weight_GMM:
        assert np.abs(np.linalg.eigvals(weight_MM)).max() == pytest.approx(radius, rel=1e-2)


def test_no_two_blocks_are_alike():
    blocks = single("tanh:40 blocks:5").weight.unbind(0)
    assert not [pair for pair in itertools.combinations(blocks, 2) if torch.equal(*pair)]


@pytest.mark.parametrize("size", [1, 3, 40])
@pytest.mark.parametrize("radius", [0.05, 0.5, 0.98, 0.999])
def test_the_slowest_linear_unit_has_the_spectral_radius_asked_for(radius, size):
    multiplier_2N = single(f"linear:{size} spectral_radius:{radius}", dtype=torch.float32).multiplier.double()
    assert float(multiplier_2N.norm(dim=0).max()) == pytest.approx(radius, rel=1e-6)


def test_linear_time_constants_are_log_uniform_and_phases_uniform():
    multiplier_N = torch.complex(*single("linear:4000 spectral_radius:0.99").multiplier)
    time_N, longest = -1 / multiplier_N.abs().log(), -1 / math.log(0.99)
    for share in (0.25, 0.5, 0.75):
        # Quantiles of 4,000 draws are within 4 standard errors of those of the distribution.
        error = 4 * math.sqrt(share * (1 - share) / 4000)
        assert float((time_N < longest**share).double().mean()) == pytest.approx(share, abs=error)
        assert float((multiplier_N.angle() < math.pi * share).double().mean()) == pytest.approx(share, abs=error)


def test_slow_and_fast_linear_units_have_the_same_variance():
    vocabulary, length = 400, 600
    model = draw("linear:6 spectral_radius:0.98 input_scaling:0.5", vocabulary=vocabulary)
    ids_BT = torch.arange(vocabulary)[:, None].expand(-1, length)
    impulse_BT = (torch.arange(length) == 0).expand(vocabulary, -1)
    features_BTF, _ = run(model, ids_BT, mask_BT=impulse_BT)
    # White input: a state's variance is the energy of its impulse response, and uniform +-0.5 has 0.5^2 / 3.
    energy_N = features_BTF.pow(2).sum(1).unflatten(1, (2, -1)).sum(1).mean(0)
    assert energy_N.tolist() == pytest.approx([0.25 / 3] * 6, rel=4 * math.sqrt(0.8 / vocabulary))


@pytest.mark.parametrize(("shape", "count"), [("tanh:100", 100**2), ("tanh:100 blocks:4", 4 * 25**2)])
@pytest.mark.parametrize("density", [0.2, 0.6, 1.0])
def test_density_is_the_share_of_weights_that_are_not_zero(shape, count, density):
    weight_GMM = single(f"{shape} density:{density}").weight
    share = float((weight_GMM != 0).double().mean())
    assert weight_GMM.numel() == count
    assert share == pytest.approx(density, abs=4 * math.sqrt(density * (1 - density) / count))


@pytest.mark.parametrize("scaling", [0.1, 3.0])
@pytest.mark.parametrize("kind", ["tanh", "delay"])
def test_input_weights_are_uniform_between_plus_and_minus_input_scaling(kind, scaling):
    weight = single(f"{kind}:50 input_scaling:{scaling}", vocabulary=80).input_weight
    assert 0.99 * scaling < float(weight.max()) <= scaling
    assert -scaling <= float(weight.min()) < -0.99 * scaling
    assert float(weight.var()) == pytest.approx(scaling**2 / 3, rel=0.06)


def test_the_bias_is_uniform_between_plus_and_minus_bias_scaling():
    bias_N = single("tanh:1000 blocks:10 bias_scaling:0.3").bias
    assert 0.29 < float(bias_N.max()) <= 0.3
    assert float(bias_N.var()) == pytest.approx(0.3**2 / 3, rel=0.12)
    assert not single("tanh:10 bias_scaling:0").bias.any()


def test_the_drive_of_a_higher_layer_does_not_grow_with_the_features_below():
    scale = [
        float(draw(f"delay:{below} delays:1 | tanh:400 blocks:50").layers[1][0].input_weight.abs().max())
        for below in (4, 100)
    ]
    assert scale == pytest.approx([4**-0.5, 100**-0.5], rel=1e-2)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("tanh:8", "tanh:8 input_scaling:0.9"),
        ("tanh:8", "tanh:8 bias_scaling:0.2"),
        ("tanh:8", "tanh:8 leak:0.6"),
        ("tanh:8", "tanh:8 spectral_radius:0.8"),
        ("tanh:8", "tanh:8 density:0.7"),
        ("tanh:8", "tanh:8 blocks:2"),
        ("linear:8", "linear:8 input_scaling:0.9"),
        ("linear:8", "linear:8 spectral_radius:0.9"),
        ("delay:8", "delay:8 input_scaling:0.9"),
    ],
)
def test_a_setting_changes_the_states(one, other):
    assert off(run(draw(one))[0], run(draw(other))[0]) > 1e-3


def test_a_smaller_leak_makes_slower_states():
    steps = [float(run(draw(f"tanh:50 leak:{leak}"))[0].diff(dim=1).abs().mean()) for leak in (0.1, 0.5, 1.0)]
    assert steps == sorted(steps)
    assert steps[0] < 0.3 * steps[2]


# ---- codes


def with_codes(text, codes_VC, seed=0):
    model = Reservoirs(parse(text), *codes_VC.shape)
    model.draw(seed, codes_VC)
    return model


def test_codes_reach_a_reservoir_through_a_linear_map_of_the_usual_variance():
    codes_VC = torch.randn(200, 16, generator=torch.Generator().manual_seed(0))
    codes_VC /= codes_VC.square().mean().sqrt()
    weight_VN = with_codes("delay:2000 delays:1 input_scaling:0.5", codes_VC).layers[0][0].input_weight
    assert float(weight_VN.var()) == pytest.approx(0.5**2 / 3, rel=0.04)
    map_CN = torch.linalg.lstsq(codes_VC.half().float(), weight_VN).solution  # they are kept in 16 bits
    assert off(codes_VC.half().float() @ map_CN, weight_VN) < 1e-5


def test_codes_are_seen_by_the_first_layer_only():
    text = "tanh:8 + linear:4 | tanh:8"
    bare, coded = draw(text, dtype=torch.float32), with_codes(text, torch.eye(V))
    assert same(buffers(bare.layers[1]), buffers(coded.layers[1]))
    for one, other in zip(bare.layers[0], coded.layers[0], strict=True):
        assert not torch.equal(one.input_weight, other.input_weight)


# ---- drawing


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_draws_the_same_bits(kind):
    torch.manual_seed(1)
    one = buffers(draw(KINDS[kind], seed=3))
    torch.manual_seed(2)
    assert same(one, buffers(draw(KINDS[kind], seed=3)))


@pytest.mark.parametrize("kind", KINDS)
def test_another_seed_draws_every_buffer_anew(kind):
    one, other = (buffers(draw(KINDS[kind], seed=seed)) for seed in (3, 4))
    assert not [name for name, tensor in one.items() if tensor.numel() and torch.equal(tensor, other[name])]


def test_equal_reservoirs_in_one_model_are_drawn_apart():
    layers = draw("tanh:8 + tanh:8 | tanh:8 + tanh:8", vocabulary=16).layers  # each of them has 16 inputs
    weights = [reservoir.weight for layer in layers for reservoir in layer]
    assert not [pair for pair in itertools.combinations(weights, 2) if torch.equal(*pair)]


def test_one_more_reservoir_or_layer_changes_no_buffer_of_the_others():
    fewer = buffers(draw("tanh:8 + delay:3 quadratic:4"))
    for more in ("tanh:8 + delay:3 quadratic:4 + linear:5", "tanh:8 + delay:3 quadratic:4 | tanh:6"):
        found = buffers(draw(more))
        assert len(found) > len(fewer)
        assert same(fewer, {name: found[name] for name in fewer})


@pytest.mark.parametrize("kind", KINDS)
def test_drawing_leaves_the_global_generators_alone(kind):
    torch.manual_seed(0)
    np.random.seed(0)
    before = torch.get_rng_state(), np.random.get_state()[1].copy()
    draw(KINDS[kind])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert np.array_equal(np.random.get_state()[1], before[1])


def test_a_block_that_is_too_sparse_to_have_a_cycle_is_refused():
    with pytest.raises(ValueError, match=r"density=0\.02, size=16, blocks=2: .* no cycle.*raise density or size"):
        draw("tanh:16 blocks:2 density:0.02")


# ---- frozen


def test_nothing_is_a_parameter_and_no_graph_is_kept(drawn):
    assert not list(drawn.parameters())
    features_BTF, last_BS = run(drawn, None, state(drawn, 0.5).requires_grad_())
    assert not features_BTF.requires_grad
    assert not last_BS.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_saved_buffers_give_the_same_features_in_a_fresh_module(kind, tmp_path):
    model = draw(KINDS[kind], dtype=torch.float32)
    torch.save(model.state_dict(), tmp_path / "reservoirs.pt")
    fresh = Reservoirs(parse(KINDS[kind]), V)
    assert not run(fresh)[0].any()
    fresh.load_state_dict(torch.load(tmp_path / "reservoirs.pt", weights_only=True))
    assert torch.equal(run(fresh)[0], run(model)[0])


def test_every_buffer_is_saved_once():
    model = draw(KINDS["deep"])
    saved = model.state_dict()
    assert saved.keys() == {name for name, _ in model.named_buffers()}
    assert len({tensor.data_ptr() for tensor in saved.values()}) == len(saved)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_in_fewer_digits_is_its_fp32_original(kind, dtype):
    (original_BTF, last_BS), (copy_BTF, copied_BS) = (run(draw(KINDS[kind], dtype=d)) for d in (torch.float32, dtype))
    assert torch.equal(copy_BTF, original_BTF)
    assert torch.equal(copied_BS, last_BS)


def test_autocast_keeps_the_carried_state_in_fp32(drawn):
    model = drawn.to(torch.float32)
    expected_BTF, expected_BS = run(model)
    with torch.autocast("cpu", torch.bfloat16):
        features_BTF, last_BS = run(model)
    assert last_BS.dtype == torch.float32
    assert off(features_BTF.float(), expected_BTF) < 5e-2
    assert off(last_BS, expected_BS) < 5e-2


def test_building_makes_the_module_of_a_specification_with_zero_weights():
    module = reservoirs.build(Linear(size=3), inputs=5)
    assert module.input_weight.shape == (5, 3)
    assert not any(tensor.any() for tensor in module.buffers())


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers import xla
from tests.test_reservoirs import KINDS, draw, off, run, state, tokens

device = xla.start()
answers = {"error": {}, "compiles": []}
mask_BT = torch.ones(8, 20)
mask_BT[3, :6] = 0
for kind, text in KINDS.items():
    model = draw(text, dtype=torch.float32)
    expected = run(model, tokens(8), state(model, 0.5, 8), mask_BT)
    start_BS = state(model, 0.5, 8).to(device)
    found = run(model.to(device), tokens(8).to(device), start_BS, mask_BT.to(device))
    answers["error"][kind] = max(off(a.cpu(), b) for a, b in zip(found, expected))
for seed in range(4):  # streaming: the last state is the next first one
    before = xla.counters()["compiles"]
    features_BTF, start_BS = run(model, tokens(8, seed=seed).to(device), start_BS)
    features_BTF.cpu(), start_BS.cpu()
    answers["compiles"].append(xla.counters()["compiles"] - before)
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla():
    return answers_on_xla(ON_XLA)


def test_features_and_states_on_eight_xla_devices_equal_the_cpus(on_xla):
    assert on_xla["error"].keys() == KINDS.keys()
    assert max(on_xla["error"].values()) < 1e-4, on_xla["error"]


def test_streaming_on_xla_compiles_nothing_after_the_second_call(on_xla):
    assert on_xla["compiles"][0] > 0
    assert on_xla["compiles"][2:] == [0, 0]
