"""The reservoir language model, held against a slow fp64 loop, hand arithmetic, torch's own loss and itself reloaded."""

import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from helpers import xla
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM, reservoir_weights
from helpers.reservoir.parameters import model_size

# B batch · T tokens · N reservoir units · R readout units · V vocabulary
ROOT = Path(__file__).resolve().parents[1]
V, N, R, END = 40, 24, 10, 0
READOUT = ["head.bias", "head.weight", "hidden.bias", "hidden.weight", "norm.bias", "norm.weight"]
RESERVOIR = ["bias", "input_weight", "weight"]


def config(**changes) -> ReservoirConfig:
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    sizes = {"vocab_size": V, "reservoir_size": N, "readout_size": R, "density": 0.5}
    return ReservoirConfig(**{**sizes, **ends, **changes})


def new_model(**changes) -> ReservoirForCausalLM:
    """A model in evaluation mode whose logits differ enough for its choices to be clear."""
    model = ReservoirForCausalLM.initialise(config(**changes), seed=1).eval()
    with torch.no_grad():
        model.head.weight.mul_(4)
        model.head.bias.copy_(torch.linspace(-1, 1, model.config.vocab_size))
    return model


def tokens(B: int, T: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, V, (B, T), generator=torch.Generator().manual_seed(seed))


def frozen(model) -> dict[str, torch.Tensor]:
    return {name: model.get_buffer(name).clone() for name in RESERVOIR}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def slow_states(model, ids_BT, state_BN=None) -> np.ndarray:
    """The equation of the module's docstring, one number at a time along time and batch, in fp64."""
    weight, drive, bias = (model.get_buffer(name).double().numpy() for name in ("weight", "input_weight", "bias"))
    a = model.config.leak
    states = np.zeros((*ids_BT.shape, len(bias)))
    for row, ids in enumerate(ids_BT.tolist()):
        state = np.zeros(len(bias)) if state_BN is None else state_BN[row].double().numpy()
        for t, token in enumerate(ids):
            state = (1 - a) * state + a * np.tanh(weight @ state + drive[token] + bias)
            states[row, t] = state
    return states


def slow_loss(logits_BTV, labels_BT) -> float:
    """Sum over positions whose next label is not -100 of -log softmax, in fp64; and how many there are."""
    total, count = 0.0, 0
    for logits, labels in zip(logits_BTV.detach().double().numpy(), labels_BT.tolist(), strict=True):
        for row, label in zip(logits[:-1], labels[1:], strict=True):
            if label != -100:
                total += math.log(np.exp(row - row.max()).sum()) + row.max() - row[label]
                count += 1
    return total, count


# ---- states


@pytest.mark.parametrize(
    "changes",
    [{}, {"leak": 1.0}, {"leak": 0.05}, {"spectral_radius": 0.0}, {"spectral_radius": 3.0}, {"reservoir_size": 7}],
    ids=str,
)
def test_states_equal_a_slow_loop_in_fp64(changes):
    model = new_model(**changes)
    states = model.states(tokens(3, 50))
    assert states.shape == (3, 50, model.config.reservoir_size) and states.dtype == torch.float32
    assert np.abs(states.numpy() - slow_states(model, tokens(3, 50))).max() < 1e-5


def test_states_from_a_given_state_equal_the_slow_loop():
    model, start = new_model(), torch.rand(3, N, generator=torch.Generator().manual_seed(0))
    given = start.clone()
    states = model.states(tokens(3, 20), start)
    assert np.abs(states.numpy() - slow_states(model, tokens(3, 20), given)).max() < 1e-5
    assert torch.equal(start, given)


def test_state_of_the_output_is_that_after_the_last_token():
    model = new_model()
    assert torch.equal(model(tokens(3, 20)).state, model.states(tokens(3, 20))[:, -1])


def test_second_half_from_the_state_of_the_first_equals_the_whole():
    model, ids = new_model(), tokens(4, 30)
    whole = model(ids)
    first = model(ids[:, :13])
    second = model(ids[:, 13:], state=first.state)
    assert torch.allclose(torch.cat([first.logits, second.logits], 1), whole.logits, atol=1e-5)
    assert torch.allclose(second.state, whole.state, atol=1e-6)


def test_rows_of_a_batch_do_not_touch_each_other():
    model, ids = new_model(), tokens(4, 20)
    changed = ids.clone()
    changed[[0, 2, 3]] = tokens(3, 20, seed=1)
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0], after[0], atol=0.1)


def test_a_position_sees_nothing_of_the_tokens_after_it():
    model, ids = new_model(), tokens(2, 20)
    changed = ids.clone()
    changed[:, 12:] = tokens(2, 8, seed=1)
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[:, :12], after[:, :12])
    assert not torch.allclose(before[:, 12:], after[:, 12:], atol=0.1)


def distance_of_two_starts(T: int, **changes) -> float:
    model = new_model(reservoir_size=64, **changes)
    generator = torch.Generator().manual_seed(0)
    starts = [torch.rand(2, 64, generator=generator) * 2 - 1 for _ in range(2)]
    one, other = (model(tokens(2, T), state=start).state for start in starts)
    return float((one - other).abs().max())


def test_echo_states_forget_where_they_started():
    assert distance_of_two_starts(1, spectral_radius=0.9) > 0.1
    assert distance_of_two_starts(300, spectral_radius=0.9) < 1e-5


def test_a_chaotic_reservoir_does_not_forget():
    assert distance_of_two_starts(300, spectral_radius=4.0, input_scaling=0.01) > 0.1


# ---- what the hyperparameters do


@pytest.mark.parametrize("size", [16, 100])
@pytest.mark.parametrize(("radius", "density"), [(0.5, 1.0), (0.9, 0.3), (0.95, 0.1), (1.7, 0.5)])
def test_measured_spectral_radius_is_the_one_asked_for(size, radius, density):
    weight = reservoir_weights(config(reservoir_size=size, spectral_radius=radius, density=density))[0]
    assert np.abs(np.linalg.eigvals(weight.numpy())).max() == pytest.approx(radius, abs=1e-3)


@pytest.mark.parametrize("density", [0.02, 0.1, 0.5, 1.0])
def test_density_is_the_share_of_nonzero_weights(density):
    weight = reservoir_weights(config(reservoir_size=300, density=density))[0]
    spread = math.sqrt(density * (1 - density) / 300**2)
    assert abs(float((weight != 0).double().mean()) - density) <= 4 * spread


@pytest.mark.parametrize("scaling", [0.1, 1.0, 2.5])
def test_input_and_bias_weights_fill_their_ranges(scaling):
    _, input_VN, bias_N = reservoir_weights(config(reservoir_size=400, input_scaling=scaling, bias_scaling=scaling / 2))
    for weights, bound in ((input_VN, scaling), (bias_N, scaling / 2)):
        assert 0.97 * bound < weights.max() <= bound
        assert -0.97 * bound > weights.min() >= -bound
        assert float(weights.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)  # of the uniform distribution


def test_reservoir_is_a_function_of_its_seed_alone():
    torch.manual_seed(1)
    first = reservoir_weights(config(reservoir_seed=5))
    torch.manual_seed(2)
    again, other = reservoir_weights(config(reservoir_seed=5)), reservoir_weights(config(reservoir_seed=6))
    for index in range(3):
        assert torch.equal(first[index], again[index])
        assert not torch.allclose(first[index], other[index])


def test_seed_of_the_readout_leaves_the_reservoir_alone():
    one, other = (ReservoirForCausalLM.initialise(config(), seed=seed) for seed in (1, 2))
    assert same(frozen(one), frozen(other))
    assert not torch.allclose(one.head.weight, other.head.weight)


def test_the_same_seeds_give_the_same_model():
    one, other = (ReservoirForCausalLM.initialise(config(), seed=3).state_dict() for _ in range(2))
    assert same(one, other)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 0),
        ("reservoir_size", 0),
        ("readout_size", -1),
        ("leak", 0.0),
        ("leak", 1.1),
        ("leak", math.nan),
        ("density", 0.0),
        ("density", 1.5),
        ("spectral_radius", -0.1),
        ("spectral_radius", math.nan),
        ("spectral_radius", math.inf),
        ("input_scaling", math.nan),
        ("input_scaling", -1.0),
        ("bias_scaling", math.inf),
        ("dropout", 1.0),
        ("dropout", -0.1),
    ],
)
def test_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"{name}={re.escape(str(value))}: must"):
        config(**{name: value})


def test_reservoir_without_a_cycle_cannot_have_the_spectral_radius_asked_for():
    with pytest.raises(ValueError, match=r"density=0\.1.*reservoir_size=1.*spectral radius"):
        reservoir_weights(config(reservoir_size=1, density=0.1))


# ---- what is trained


def test_parameter_counts_equal_hand_arithmetic():
    # norm 2·24, hidden 24·10+10, head 10·40+40; W 24², W_in 40·24, b 24
    assert new_model().parameter_counts() == {"trainable": 738, "frozen": 1560}


@pytest.mark.parametrize("sizes", [(40, 24, 10), (300, 64, 33), (7, 1, 1)])
def test_planned_model_size_agrees_with_the_model(sizes):
    vocab_size, reservoir_size, readout_size = sizes
    planned = model_size(vocab_size, reservoir_size, readout_size)
    model = new_model(vocab_size=vocab_size, reservoir_size=reservoir_size, readout_size=readout_size, density=1.0)
    assert model.parameter_counts() == {"trainable": planned.trainable, "frozen": planned.frozen}
    assert planned.vocab_size == vocab_size


def test_an_optimizer_step_moves_the_readout_and_nothing_else():
    model = new_model().train()
    reservoir, readout = frozen(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model(tokens(4, 20), labels=tokens(4, 20)).loss.backward()
    optimizer.step()
    assert sorted(readout) == READOUT
    assert not [name for name, p in model.named_parameters() if torch.equal(p, readout[name])]
    assert same(frozen(model), reservoir)


def test_gradient_reaches_the_readout_only():
    model = new_model()
    start = torch.zeros(4, N, requires_grad=True)
    model(tokens(4, 20), labels=tokens(4, 20), state=start).loss.backward()
    assert sorted(name for name, p in model.named_parameters() if p.grad.abs().max() > 0) == READOUT
    assert start.grad is None
    assert not any(buffer.requires_grad for buffer in model.buffers())
    assert not model.states(tokens(4, 20), start).requires_grad


def test_initialising_weights_again_leaves_the_reservoir_alone():
    model = new_model()
    reservoir = frozen(model)
    for module in (model.norm, model.hidden, model.head):
        model._init_weights(module)
    model.post_init()
    assert same(frozen(model), reservoir)


def test_a_model_made_from_its_configuration_has_its_reservoir():
    model = AutoModelForCausalLM.from_config(config(reservoir_seed=4))
    expected = dict(zip(("weight", "input_weight", "bias"), reservoir_weights(config(reservoir_seed=4)), strict=True))
    assert same(frozen(model), expected)


def test_dropout_acts_in_training_only():
    model, ids = new_model(dropout=0.5), tokens(2, 10)
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)


# ---- loss


def test_loss_is_cross_entropy_of_the_next_token():
    model, ids = new_model(), tokens(3, 12)
    output = model(ids, labels=ids)
    total, count = slow_loss(output.logits, ids)
    assert count == 3 * 11
    assert output.loss.item() == pytest.approx(total / count, rel=1e-6)


def test_labels_of_minus_100_count_for_nothing():
    model, ids = new_model(), tokens(3, 12)
    labels = ids.clone()
    labels[0] = -100
    labels[1, 5:] = -100
    output = model(ids, labels=labels)
    total, count = slow_loss(output.logits, labels)
    assert count == 4 + 11
    assert output.loss.item() == pytest.approx(total / count, rel=1e-6)


def test_loss_of_a_micro_batch_is_its_share_of_the_whole_batch():
    model, ids = new_model(), tokens(6, 12)
    parts = sum(model(p, labels=p, num_items_in_batch=torch.tensor(6 * 11)).loss for p in (ids[:2], ids[2:]))
    assert parts.item() == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-6)


def test_no_labels_no_loss():
    assert new_model()(tokens(1, 3)).loss is None


# ---- precision


def test_states_stay_fp32_under_autocast():
    model, ids = new_model(), tokens(2, 40)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, states = model(ids), model.states(ids)
    assert output.logits.dtype == torch.bfloat16  # autocast was on
    assert output.state.dtype == states.dtype == torch.float32
    assert torch.equal(states, model.states(ids))


def test_a_model_loaded_in_bf16_runs_with_fp32_states(tmp_path):
    model, ids = new_model(), tokens(2, 40)
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    output = half(ids)
    assert output.logits.dtype == half.head.weight.dtype == torch.bfloat16
    assert output.state.dtype == torch.float32
    assert np.abs(output.state.numpy() - slow_states(half, ids)[:, -1]).max() < 1e-5
    assert torch.allclose(output.logits.float(), model(ids).logits, atol=0.2)


# ---- saved and loaded


def test_saved_model_loads_bit_for_bit_from_safetensors_alone(tmp_path):
    model, ids = new_model(), tokens(2, 20)
    with torch.no_grad():
        model.weight.add_(0.01)  # not what the seed gives: loading must not draw again
    model.save_pretrained(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
    }
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ReservoirForCausalLM
    assert same(loaded.state_dict(), model.state_dict())
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    given = json.loads((tmp_path / "config.json").read_text())
    assert {name: given[name] for name in ("leak", "density", "reservoir_seed")} == {
        "leak": model.config.leak,
        "density": model.config.density,
        "reservoir_seed": model.config.reservoir_seed,
    }


# ---- text


def slow_greedy(model, ids: list[int], count: int) -> list[int]:
    """The most probable next token, `count` times, the whole prefix computed anew each time; stops after the end."""
    new: list[int] = []
    while len(new) < count and END not in new:
        new.append(int(model(torch.tensor([[*ids, *new]])).logits[0, -1].argmax()))
    return new


def greedy(model, **inputs) -> torch.Tensor:
    return model.generate(**inputs, do_sample=False, max_new_tokens=24)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_greedy_text_equals_argmax_with_the_whole_prefix_recomputed(seed):
    model, ids = new_model(spectral_radius=1.5), tokens(1, 6, seed)
    assert len(set(slow_greedy(model, ids[0].tolist(), 24))) > 5
    assert greedy(model, input_ids=ids)[0, 6:].tolist() == slow_greedy(model, ids[0].tolist(), 24)


def test_what_a_tokenizer_returns_can_be_given_to_generate():
    model, ids = new_model(), tokens(1, 6)
    expected = greedy(model, input_ids=ids)
    assert torch.equal(greedy(model, input_ids=ids, attention_mask=torch.ones_like(ids)), expected)


def test_padding_on_the_left_changes_no_text():
    model, ids = new_model(spectral_radius=1.5), tokens(2, 9)
    padded, mask = ids.clone(), torch.ones_like(ids)
    padded[0, :4], mask[0, :4] = END, 0
    together = greedy(model, input_ids=padded, attention_mask=mask)[:, 9:].tolist()
    for row, prompt in enumerate((ids[0, 4:], ids[1])):
        expected = slow_greedy(model, prompt.tolist(), 24)
        assert together[row][: len(expected)] == expected


def test_text_goes_on_from_a_given_state_with_all_tokens_of_the_prompt():
    model, ids = new_model(spectral_radius=1.5), tokens(1, 12)
    whole = greedy(model, input_ids=ids)[0, 12:]
    state = model(ids[:, :7]).state
    assert torch.equal(greedy(model, input_ids=ids[:, 7:], state=state)[0, 5:], whole)


def test_scores_of_beam_search_are_those_of_its_sequences():
    model, ids = new_model(spectral_radius=1.5), tokens(2, 5)
    with torch.no_grad():
        model.head.bias[END] = -100.0  # every beam has the full length
    options = {"num_beams": 4, "do_sample": False, "max_new_tokens": 8, "length_penalty": 0.0}
    output = model.generate(ids, **options, output_scores=True, return_dict_in_generate=True)
    assert output.sequences.shape == (2, 13)
    log_probability = model(output.sequences).logits.log_softmax(-1)[:, 4:-1]
    sums = log_probability.gather(-1, output.sequences[:, 5:, None]).sum((1, 2))
    assert torch.allclose(output.sequences_scores, sums, atol=1e-4)


def test_sampled_text_is_reproducible_by_seed():
    model, ids = new_model(), tokens(2, 4)

    def sampled(seed: int) -> list:
        torch.manual_seed(seed)
        return model.generate(ids, do_sample=True, max_new_tokens=20, top_k=0).tolist()

    assert sampled(1) == sampled(1) != sampled(2)


def test_text_stops_at_the_end_token():
    model = new_model()
    with torch.no_grad():
        model.head.bias[END] = 4.0
    torch.manual_seed(0)
    rows = model.generate(tokens(16, 4), do_sample=True, max_new_tokens=200)[:, 4:].tolist()
    lengths = [row.index(END) for row in rows]
    assert len(set(lengths)) > 1
    assert max(lengths) + 1 == len(rows[0]) < 200
    assert all(set(row[length:]) == {END} for row, length in zip(rows, lengths, strict=True))


# ---- XLA: 8 virtual devices in one process of their own, which takes seconds to start

ON_XLA = """
import copy, json, os
os.environ.update(PJRT_DEVICE="CPU", CPU_NUM_DEVICES="8", TF_CPP_MIN_LOG_LEVEL="3")
import torch
torch.set_num_threads(1)
from helpers import xla
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
device = xla.start()

def pair(**changes):
    sizes = {"vocab_size": 40, "reservoir_size": 32, "readout_size": 16, "density": 0.5}
    model = ReservoirForCausalLM.initialise(ReservoirConfig(**{**sizes, **changes}), seed=1).eval()
    twin = copy.deepcopy(model).to(device)
    xla.replicate(twin)
    xla.sync()
    return model, twin

def tokens(B, T):
    return torch.randint(0, 40, (B, T), generator=torch.Generator().manual_seed(0))

def put(ids):
    return xla.shard_batch(ids.to(device)) if len(ids) % 8 == 0 else ids.to(device)

def difference(model, twin, ids):
    return float((twin.states(put(ids)).cpu() - model.states(ids)).abs().max())

model, twin = pair()
answers = {"compiles": {}, "states": {}, "sharded": {}}
for T in (16, 256):
    before = xla.counters()["compiles"]
    states = twin.states(put(tokens(8, T)))
    xla.sync()
    answers["compiles"][T] = xla.counters()["compiles"] - before
    answers["sharded"][f"states of {T} tokens"] = xla.is_batch_sharded(states)
    answers["states"][f"{T} tokens"] = float((states.cpu() - model.states(tokens(8, T))).abs().max())
before = xla.counters()["compiles"]
twin.states(put(tokens(8, 256)))
xla.sync()
answers["compiles"]["again"] = xla.counters()["compiles"] - before

answers["states"]["3 rows on 8 devices"] = difference(model, twin, tokens(3, 16))
answers["states"]["another leak"] = difference(*pair(leak=0.2), tokens(8, 16))
answers["states"]["another size"] = difference(*pair(reservoir_size=48, leak=1.0), tokens(16, 16))
with torch.autocast("xla", dtype=torch.bfloat16):
    answers["states"]["under autocast"] = difference(model, twin, tokens(8, 16))
    answers["logits under autocast"] = str(twin(put(tokens(8, 16))).logits.dtype)

ids = tokens(8, 16)
first = twin(put(ids[:, :8]))
second = twin(put(ids[:, 8:]), state=first.state)
answers["states"]["streamed"] = float((second.state.cpu() - model(ids).state).abs().max())

reservoir = {name: buffer.cpu().clone() for name, buffer in twin.named_buffers()}
optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1, weight_decay=0.5)
output = twin(put(ids), labels=put(ids))
output.loss.backward()
optimizer.step()
xla.sync()
answers["sharded"] |= {"logits": xla.is_batch_sharded(output.logits), "state": xla.is_batch_sharded(output.state)}
answers["a weight is sharded"] = xla.is_batch_sharded(twin.head.weight)
answers["loss"] = float((output.loss.cpu() - model(ids, labels=ids).loss).abs())
answers["reservoir unchanged"] = all(torch.equal(b.cpu(), reservoir[name]) for name, b in twin.named_buffers())
answers["moved"] = sorted(n for n, p in twin.named_parameters() if not torch.equal(p.cpu(), model.get_parameter(n)))
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla() -> dict:
    if not xla.installed():
        pytest.skip("torch_xla is not installed")
    clean = {name: value for name, value in os.environ.items() if name != "USE_TORCH_XLA"}
    process = subprocess.run(
        [sys.executable, "-c", ON_XLA], cwd=ROOT, env=clean, capture_output=True, text=True, timeout=300
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(process.stdout.rsplit("ANSWERS ", 1)[1])


def test_states_on_eight_xla_devices_equal_the_cpus(on_xla):
    assert len(on_xla["states"]) == 7
    assert max(on_xla["states"].values()) < 1e-5, on_xla["states"]


def test_one_compilation_serves_any_number_of_tokens(on_xla):
    assert on_xla["compiles"] == {"16": 1, "256": 1, "again": 0}


def test_states_and_logits_are_split_over_the_devices_and_weights_are_not(on_xla):
    assert on_xla["sharded"] == dict.fromkeys(on_xla["sharded"], True)
    assert len(on_xla["sharded"]) == 4
    assert on_xla["a weight is sharded"] is False


def test_loss_on_xla_is_the_cpus(on_xla):
    assert on_xla["loss"] < 1e-5


def test_a_step_on_xla_moves_the_readout_and_nothing_else(on_xla):
    assert on_xla["reservoir unchanged"] is True
    assert on_xla["moved"] == READOUT


def test_states_on_xla_stay_fp32_under_autocast(on_xla):
    assert on_xla["logits under autocast"] == "torch.bfloat16"
    assert on_xla["states"]["under autocast"] < 1e-5
