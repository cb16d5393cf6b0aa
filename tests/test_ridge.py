"""Ridge regression against reservoirpy, numpy and scipy; its next-token distribution against loops and closed forms."""

import itertools
import math

import numpy as np
import pytest
import reservoirpy.nodes
import scipy.optimize
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.readout import RidgeReadout
from helpers.reservoir.ridge import SMOOTHING, RidgeAccumulator, fit_readout, readout_nats

from .xla_process import answers_on_xla

RIDGE = 1e-3
B, F, Y, V = 200, 7, 3, 11

# B rows · F features · Y targets · V vocabulary · T tokens of a sequence


def regression(rows=B, seed=0):
    """Correlated features of unequal scale and mean, and noisy linear targets."""
    rng = np.random.default_rng(seed)
    features_BF = rng.normal(size=(rows, F)) @ rng.normal(size=(F, F)) + rng.normal(size=F)
    return features_BF, features_BF @ rng.normal(size=(F, Y)) + rng.normal(size=(rows, Y)) + 5


def closed_form(features_BF, targets_BY, ridge=RIDGE):
    """The penalised least-squares problem with a column of ones whose weight is free, by numpy."""
    ones_BF = np.hstack([features_BF, np.ones((len(features_BF), 1))])
    penalty = ridge * np.diag([1.0] * features_BF.shape[1] + [0.0])
    solution = np.linalg.solve(ones_BF.T @ ones_BF + penalty, ones_BF.T @ targets_BY)
    return solution[:-1], solution[-1]


def solved(*chunks, ridge=RIDGE):
    """Weight and bias after adding chunks of numpy (features, targets); integer targets are tokens."""
    tokens = chunks[0][1].ndim == 1
    sums = RidgeAccumulator(chunks[0][0].shape[1], V if tokens else Y)
    for features_BF, targets in chunks:
        (sums.add_tokens if tokens else sums.add)(torch.from_numpy(features_BF), torch.from_numpy(targets))
    return [part.numpy() for part in sums.solve(ridge)]


def off(found, expected) -> float:
    return max(float(np.abs(a - b).max()) for a, b in zip(found, expected, strict=True))


def by_reservoirpy(*arguments, **options):
    node = reservoirpy.nodes.Ridge(ridge=RIDGE).fit(*arguments, **options)
    return node.Wout, node.bias


def random_text(batches=12, sequences=4, T=20, seed=0):
    """Batches of tokens of a skewed unigram, drawn independently."""
    rng = np.random.default_rng(seed)
    frequency = 1 / np.arange(1, V + 1)
    draws = rng.choice(V, size=(batches, sequences, T), p=frequency / frequency.sum())
    return [torch.from_numpy(ids_BT) for ids_BT in draws]


def successor_text(batches=12, sequences=4, T=20, seed=0):
    """Batches in which a token is followed by the next one of the vocabulary, three times in four."""
    rng = np.random.default_rng(seed)
    steps = np.where(rng.random((batches, sequences, T)) < 0.75, 1, rng.integers(0, V, (batches, sequences, T)))
    return [torch.from_numpy(ids_BT) for ids_BT in steps.cumsum(-1) % V]


def one_hot(ids_BT):
    return torch.nn.functional.one_hot(ids_BT, V).float()


# ---- regression


def test_one_sequence_equals_reservoirpy():
    assert off(solved(regression()), by_reservoirpy(*regression())) < 1e-8


def test_sequences_of_different_lengths_equal_reservoirpy_which_pools_them():
    sequences = [regression(rows, seed) for seed, rows in enumerate((40, 90, 25))]
    expected = by_reservoirpy([x for x, _ in sequences], [y for _, y in sequences])
    assert off(solved(*sequences), expected) < 1e-8


def test_rows_left_out_of_every_sequence_are_the_warmup_of_reservoirpy():
    sequences = [regression(rows, seed) for seed, rows in enumerate((40, 90))]
    expected = by_reservoirpy([x for x, _ in sequences], [y for _, y in sequences], warmup=10)
    assert off(solved(*[(x[10:], y[10:]) for x, y in sequences]), expected) < 1e-8
    assert off(solved(*sequences), expected) > 1e-4


def test_collinear_states_of_a_reservoir_equal_reservoirpy():
    series = np.sin(np.arange(3000) ** 1.2 / 20)[:, None]
    states_BF = reservoirpy.nodes.Reservoir(100, lr=0.3, sr=0.9, seed=1).run(series[:-1])[100:]
    gram_FF = (len(states_BF) - 1) * np.cov(states_BF.T) + RIDGE * np.eye(100)
    assert np.linalg.cond(gram_FF) > 1e6
    sums = RidgeAccumulator(100, 1)
    for chunk in range(0, len(states_BF), 500):
        sums.add(*(torch.from_numpy(rows[chunk : chunk + 500]) for rows in (states_BF, series[101:])))
    found, expected = sums.solve(RIDGE), by_reservoirpy(states_BF, series[101:])
    assert off([part.numpy() for part in found], expected) < 1e-8 * np.abs(expected[0]).max()


def test_sums_over_many_rows_keep_all_digits():
    # Added row after row these would be off by 7e-15, and weights of collinear states by a million times that.
    states_BF = torch.from_numpy(np.random.default_rng(0).normal(size=(20_000, 64)))
    sums = RidgeAccumulator(64, 1)
    sums.add(states_BF, states_BF[:, :1])
    for feature in range(8):
        squares = states_BF[:, feature] ** 2
        assert float(sums.gram_GG[feature, feature]) == pytest.approx(math.fsum(squares), rel=1e-15)


@pytest.mark.parametrize("ridge", [0.0, 1e-3, 1.0, 1e4])
def test_solution_is_that_of_least_squares_with_a_penalty_on_all_but_the_bias(ridge):
    assert off(solved(regression(), ridge=ridge), closed_form(*regression(), ridge)) < 1e-8


def test_a_huge_ridge_leaves_the_mean_of_the_targets():
    weight_FY, bias_Y = solved(regression(), ridge=1e15)
    assert np.abs(weight_FY).max() < 1e-9
    assert bias_Y == pytest.approx(regression()[1].mean(0), abs=1e-9)


@pytest.mark.parametrize("size", [1, 3, 64, B])
def test_chunks_of_any_size_equal_one_shot(size):
    features_BF, targets_BY = regression()
    chunks = [(features_BF[i : i + size], targets_BY[i : i + size]) for i in range(0, B, size)]
    empty = (features_BF[:0], targets_BY[:0])
    assert off(solved(empty, *chunks, empty), closed_form(features_BF, targets_BY)) < 1e-10


def test_rows_can_be_added_after_a_solution_and_another_ridge_tried():
    features_BF, targets_BY = map(torch.from_numpy, regression())
    sums = RidgeAccumulator(F, Y)
    sums.add(features_BF[:50], targets_BY[:50])
    sums.solve(RIDGE)
    sums.add(features_BF[50:], targets_BY[50:])
    sums.solve(10.0)
    assert off([part.numpy() for part in sums.solve(RIDGE)], closed_form(*regression())) < 1e-10


@pytest.mark.parametrize("size", [1, B])
def test_a_mean_a_hundred_times_the_spread_leaves_ten_digits(size):
    # States lie in [-1, 1] or near it; reservoirpy's sums are about zero, too.
    rng = np.random.default_rng(0)
    far_BF = np.round(rng.normal(size=(B, F)), 12) + 100
    near_BF = far_BF - 100  # exact
    targets_BY = near_BF @ rng.normal(size=(F, Y)) + rng.normal(size=(B, Y))
    expected = closed_form(near_BF, targets_BY)[0]
    chunks = [(far_BF[i : i + size], targets_BY[i : i + size] + 100) for i in range(0, B, size)]
    assert np.abs(solved(*chunks)[0] - expected).max() < 1e-10


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_features_are_summed_in_fp64(dtype):
    features_BF = torch.from_numpy(regression()[0]).to(dtype).requires_grad_()
    targets_BY = torch.from_numpy(regression()[1])
    sums = RidgeAccumulator(F, Y)
    sums.add(features_BF, targets_BY)
    weight_FY, bias_Y = sums.solve(RIDGE)
    assert weight_FY.dtype == bias_Y.dtype == torch.float64
    assert not weight_FY.requires_grad
    expected = closed_form(features_BF.detach().double().numpy(), targets_BY.numpy())
    assert off([weight_FY.numpy(), bias_Y.numpy()], expected) < 1e-10


def test_inputs_are_left_as_they_were():
    features_BF, targets_BY = map(torch.from_numpy, regression())
    RidgeAccumulator(F, Y).add(features_BF, targets_BY)
    assert off([features_BF.numpy(), targets_BY.numpy()], regression()) == 0


# ---- tokens


def token_rows():
    rng = np.random.default_rng(0)
    return regression()[0], rng.integers(0, V - 1, B)  # the last token never occurs


@pytest.mark.parametrize("size", [1, 64, B])
def test_tokens_equal_their_one_hot_targets(size):
    features_BF, tokens_B = token_rows()
    chunks = [(features_BF[i : i + size], tokens_B[i : i + size]) for i in range(0, B, size)]
    assert off(solved(*chunks), closed_form(features_BF, np.eye(V)[tokens_B])) < 1e-10


@pytest.mark.parametrize("ridge", [1e-3, 10.0])
def test_scores_of_tokens_sum_to_one_whatever_the_features(ridge):
    weight_FV, bias_V = solved(token_rows(), ridge=ridge)
    unseen_BF = np.random.default_rng(1).normal(size=(20, F)) * 100
    assert (unseen_BF @ weight_FV + bias_V).sum(1) == pytest.approx(np.ones(20), abs=1e-9)


class Largest(TorchDispatchMode):
    """Number of elements of the largest tensor that any operation returns."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor):
            self.elements = max(self.elements, result.numel())
        return result


def test_no_matrix_of_rows_by_vocabulary_is_built():
    rows, vocabulary = 1000, 2000
    sums = RidgeAccumulator(F, vocabulary)
    with Largest() as largest:
        sums.add_tokens(torch.randn(rows, F), torch.arange(rows))
    assert largest.elements == (F + 1) * vocabulary


# ---- next-token distribution


def test_features_at_t_predict_the_token_at_t_plus_one():
    batches = [(one_hot(ids_BT.roll(-1, 1)), ids_BT) for ids_BT in random_text()]  # features give the answer away
    readout = fit_readout(batches[:10], V, V, [RIDGE])
    assert readout_nats(readout, batches[10:]) < 0.01


def test_scores_after_one_hot_tokens_are_bigram_frequencies():
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text()]
    fitted = [ids_BT.tolist() for _, ids_BT in batches]
    counts_VV = np.zeros((V, V))
    for ids_BT in fitted:
        for ids_T in ids_BT:
            for context, token in itertools.pairwise(ids_T):
                counts_VV[context, token] += 1
    readout = fit_readout(batches, V, V, [1e-4])
    scores_VV = readout.scores(torch.eye(V)).numpy()
    assert np.abs(scores_VV - counts_VV / counts_VV.sum(1, keepdims=True)).max() < 1e-4


def test_nats_equal_a_slow_loop_over_the_formula():
    train = [
        (torch.randn(4, 20, F, generator=torch.Generator().manual_seed(i)), x) for i, x in enumerate(random_text())
    ]
    readout = fit_readout(train[:8], F, V, [RIDGE])
    calibration = float(readout.calibration)
    counts = SMOOTHING + np.bincount(np.concatenate([x[:, 1:].flatten() for _, x in train[:8]]))
    features = [(x[:, :-1].flatten(0, 1).double().numpy(), ids[:, 1:].flatten()) for x, ids in train[:8]]
    weight_FV, bias_V = solved(*[(x, ids.numpy()) for x, ids in features])
    nats = []
    for features_BTF, ids_BT in train[8:]:
        for x_TF, ids_T in zip(features_BTF.double().numpy(), ids_BT.tolist(), strict=True):
            for x_F, token in zip(x_TF[:-1], ids_T[1:], strict=True):
                scores, unigram = x_F @ weight_FV + bias_V, counts / counts.sum()
                weights = np.maximum(scores, calibration * unigram)
                nats.append(-math.log(weights[token] / weights.sum()))
    assert readout_nats(readout, train[8:]) == pytest.approx(math.fsum(nats) / len(nats), abs=1e-5)


def test_calibration_is_the_best_for_the_second_of_every_ten_batches():
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text()]
    chosen = float(fit_readout(batches, V, V, [RIDGE]).calibration)
    held_out = [batches.pop(11), batches.pop(1)]
    readout = in_fp64(*[(x[None], ids[None]) for batch in batches for x, ids in zip(*batch, strict=True)]).float()
    readout.calibration.fill_(chosen)
    at_chosen = readout_nats(readout, held_out)

    def nats(log_calibration):
        readout.calibration.fill_(math.exp(log_calibration))
        return readout_nats(readout, held_out)

    best = scipy.optimize.minimize_scalar(nats, bounds=(math.log(1e-3), math.log(16)), method="bounded")
    assert chosen == pytest.approx(math.exp(best.x), rel=0.1)
    assert best.fun - 1e-6 <= at_chosen < best.fun + 2e-3
    assert nats(math.log(2.0)) > best.fun + 0.2  # it matters


def test_the_readout_reaches_the_entropy_of_a_source_whose_bigrams_it_sees():
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text(batches=60, T=200)]
    other = 0.25 / V
    entropy = -(0.75 + other) * math.log(0.75 + other) - (V - 1) * other * math.log(other)
    assert readout_nats(fit_readout(batches[:40], V, V, [RIDGE]), batches[40:]) == pytest.approx(entropy, abs=0.04)


def test_features_that_say_nothing_cost_little_beside_the_unigram():
    generator = torch.Generator().manual_seed(0)
    batches = [(torch.randn(4, 20, F, generator=generator), ids_BT) for ids_BT in random_text(batches=40)]
    readout = fit_readout(batches[:30], F, V, [RIDGE])
    tokens = torch.cat([ids_BT[:, 1:].flatten() for _, ids_BT in batches[30:]])
    unigram = -float((readout.counts_V / readout.counts_V.sum()).log()[tokens].mean())
    assert readout_nats(readout, batches[30:]) == pytest.approx(unigram, abs=0.02)


def test_logits_are_finite_for_a_token_that_never_occurs():
    batches = [(one_hot(ids_BT % 5), ids_BT % 5) for ids_BT in successor_text()]
    logits_V = fit_readout(batches, V, V, [RIDGE])(torch.eye(V)[0])
    assert logits_V.isfinite().all()
    assert logits_V[5:].max() < logits_V[:5].min()


def test_an_iterator_of_int32_tokens_that_can_be_read_once_is_enough():
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text()]
    once = ((features, ids_BT.int()) for features, ids_BT in batches)
    from_list, from_iterator = fit_readout(batches, V, V, [RIDGE]), fit_readout(once, V, V, [RIDGE])
    assert all(torch.equal(tensor, from_iterator.state_dict()[name]) for name, tensor in from_list.state_dict().items())


def test_slices_of_a_long_batch_lose_no_token(monkeypatch):
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text()]
    whole = fit_readout(batches, V, V, [RIDGE])
    monkeypatch.setattr("helpers.reservoir.ridge.ROWS", 7)
    sliced = fit_readout(batches, V, V, [RIDGE])
    torch.testing.assert_close(sliced.weight_FV, whole.weight_FV, atol=1e-6, rtol=0)
    assert readout_nats(sliced, batches) == pytest.approx(readout_nats(whole, batches), abs=1e-5)


# ---- learning on


def text(rows: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [1, rows, F] of unequal scale and mean, and ids."""
    ids_T = np.random.default_rng(seed).integers(0, V, (1, rows))
    return torch.from_numpy(regression(rows, seed)[0])[None], torch.from_numpy(ids_T)


def learned(readout, features_BTF, ids_BT, **options):
    readout.learn(features_BTF[0, :-1], ids_BT[0, 1:], **options)
    return readout


def added(*texts) -> RidgeAccumulator:
    sums = RidgeAccumulator(texts[0][0].shape[-1], V)
    for features_BTF, ids_BT in texts:
        sums.add_tokens(features_BTF[0, :-1], ids_BT[0, 1:])
    return sums


def in_fp64(*texts) -> RidgeReadout:
    """The closed form of these texts before it is rounded."""
    sums = added(*texts)
    readout = RidgeReadout(len(sums.gram_GG) - 1, V).double()
    for kept, value in zip((readout.weight_FV, readout.bias_V), sums.solve(RIDGE), strict=True):
        kept.copy_(value)
    readout.counts_V.copy_(sums.cross_YG[:, -1] + SMOOTHING)
    readout.gram_GG.copy_(sums.penalised_gram(RIDGE))
    return readout


def refitted(*texts):
    """The closed form of all texts by numpy."""
    return solved(*[(x[0, :-1].numpy(), ids[0, 1:].numpy()) for x, ids in texts])


def test_learning_on_equals_a_fit_on_all_tokens():
    first, second, own = text(300, 0), text(250, 1), text(120, 2)
    readout = learned(in_fp64(first, second), *own)
    assert off([readout.weight_FV.numpy(), readout.bias_V.numpy()], refitted(first, second, own)) < 1e-10
    expected = in_fp64(first, second, own)
    torch.testing.assert_close(readout.gram_GG, expected.gram_GG, rtol=1e-12, atol=0)
    torch.testing.assert_close(readout.counts_V, expected.counts_V, rtol=0, atol=1e-9)


def test_ten_thousand_tokens_learned_one_text_after_the_other_are_not_worn_off():
    first, *own = (text(500, seed) for seed in range(20))
    readout = fit_readout([first, first], F, V, [RIDGE])
    for each in own:
        learned(readout, *each)
    weight_FV, _ = refitted(first, first, *own)
    np.testing.assert_allclose(readout.weight_FV.numpy(), weight_FV, rtol=0, atol=1e-6 * np.abs(weight_FV).max())


def test_a_text_that_counts_three_times_equals_the_same_text_three_times():
    first, own = text(300, 0), text(80, 1)
    weighed = learned(in_fp64(first), *own, times=3.0)
    assert off([weighed.weight_FV.numpy(), weighed.bias_V.numpy()], refitted(first, own, own, own)) < 1e-10


def test_a_model_learns_on_from_a_text_as_if_it_had_been_fitted_on_it():
    config = ReservoirConfig(
        vocab_size=V, reservoirs="tanh:24 blocks:3", eos_token_id=0, embedding_size=8, readout_size=8, token_dropout=0.5
    )
    model = ReservoirForCausalLM.initialise(config).eval()
    ids_BT, own_BT = (torch.from_numpy(np.random.default_rng(s).integers(1, V, (6, 50))) for s in (0, 1))

    def fit(*texts):
        return model.with_ridge_readout(fit_readout([(model.features(x)[0][-1], x) for x in texts], 24, V, [RIDGE]))

    with torch.no_grad():
        found, expected = fit(ids_BT, ids_BT), fit(ids_BT, ids_BT, own_BT)
        found.train().learn(own_BT)  # no token is dropped
        torch.testing.assert_close(found.ridge.weight_FV, expected.ridge.weight_FV, rtol=0, atol=1e-6)
        loss = [fit(ids_BT, ids_BT)(own_BT, labels=own_BT).loss, found(own_BT, labels=own_BT).loss]
    assert loss[1] < loss[0]
    with pytest.raises(ValueError, match=r"learn: .*ridge_readout=True"):
        model.learn(own_BT)


# ---- devices


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_a_readout_of_cuda_features_equals_the_cpus():
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text()]
    on_cuda = [(features.cuda(), ids.cuda()) for features, ids in batches]
    readout, twin = fit_readout(batches, V, V, [RIDGE]), fit_readout(on_cuda, V, V, [RIDGE])
    assert torch.equal(readout.weight_FV, twin.weight_FV)
    assert readout_nats(twin.cuda(), on_cuda) == pytest.approx(readout_nats(readout, batches), abs=1e-5)


ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers import xla
from tests.test_ridge import RIDGE, V, fit_readout, one_hot, readout_nats, successor_text
device = xla.start()
batches = [(one_hot(ids).bfloat16(), ids) for ids in successor_text()]
on_xla = [(features.to(device), ids.to(device)) for features, ids in batches]
readout, twin = fit_readout(batches, V, V, [RIDGE]), fit_readout(on_xla, V, V, [RIDGE])
answers = {"same weights": torch.equal(readout.weight_FV, twin.weight_FV)}
answers["nats"] = [readout_nats(readout, batches), readout_nats(twin.to(device), on_xla)]
print("ANSWERS " + json.dumps(answers))
"""


def test_a_readout_of_xla_features_equals_the_cpus():
    answers = answers_on_xla(ON_XLA, devices=1)
    assert answers["same weights"]
    assert answers["nats"][1] == pytest.approx(answers["nats"][0], abs=1e-4)


# ---- bad input


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_rows_that_are_not_finite_are_refused_and_leave_the_sums_alone(value):
    features_BF, targets_BY = map(torch.from_numpy, regression())
    broken_BF, broken_BY = features_BF.clone(), targets_BY.clone()
    broken_BF[3, 2] = broken_BY[5, 1] = value
    sums = RidgeAccumulator(F, Y)
    sums.add(features_BF, targets_BY)
    with pytest.raises(ValueError, match=r"features_BF is not finite in 1 of 200 rows, the first is row 3"):
        sums.add(broken_BF, targets_BY)
    with pytest.raises(ValueError, match=r"targets_BY is not finite .* row 5"):
        sums.add(features_BF, broken_BY)
    with pytest.raises(ValueError, match="features_BF is not finite"):
        RidgeAccumulator(F, V).add_tokens(broken_BF, torch.zeros(B, dtype=torch.long))
    assert off([part.numpy() for part in sums.solve(RIDGE)], closed_form(*regression())) < 1e-10


def test_features_that_are_all_constant_need_a_positive_ridge():
    sums = RidgeAccumulator(F, Y)
    sums.add(torch.ones(B, F), torch.ones(B, Y))
    with pytest.raises(torch.linalg.LinAlgError, match="not positive-definite"):
        sums.solve(0.0)
    assert float(sums.solve(1.0)[0].abs().max()) < 1e-12


def test_no_rows_and_too_few_batches_are_refused():
    batches = [(one_hot(ids_BT), ids_BT) for ids_BT in successor_text(batches=1)]
    with pytest.raises(ValueError, match="no rows"):
        RidgeAccumulator(F, Y).solve(RIDGE)
    with pytest.raises(ValueError, match="fewer than two"):
        fit_readout(batches, V, V, [RIDGE])
