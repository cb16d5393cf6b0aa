"""The reservoir language model, held against a slow fp64 loop, hand arithmetic, torch's own loss and itself reloaded."""

import json
import math
import re

import numpy as np
import pytest
import safetensors.torch
import torch
from torch.utils.flop_counter import FlopCounterMode
from transformers import AutoModelForCausalLM

from helpers.planning.counting import count
from helpers.reservoir.architecture import parse
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.readout import AttentionProjection, GatedBlock
from helpers.reservoir.reservoirs import Reservoirs
from helpers.reservoir.workload import workload

from .test_counting import real_peak
from .xla_process import answers_on_xla

# B batch · T tokens · F features of a layer · D embedding · S state floats · V vocabulary
V, D, END = 40, 12, 0
PARALLEL = "delay:4 delays:3 quadratic:6 + tanh:12 blocks:3 leak:0.4 + linear:5 spectral_radius:0.9"  # 40 features
DEEP = f"{PARALLEL} | tanh:10 leak:1.0 spectral_radius:1.2"
ARCHITECTURES = {
    "linear readout": {"readout_blocks": 0},
    "blocks on two layers": {"readout_blocks": 3},
    "attention": {"attention_heads": 3},
    "attention alone": {"attention_heads": 3, "readout_blocks": 0},
    "one reservoir": {"reservoirs": "tanh:9"},
    "untied head": {"tie_word_embeddings": False},
    "all at once": {"attention_heads": 2, "readout_blocks": 2, "tie_word_embeddings": False},
}


def config(**changes) -> ReservoirConfig:
    ends = {"bos_token_id": END, "eos_token_id": END, "pad_token_id": END}
    sizes = {"vocab_size": V, "reservoirs": DEEP, "embedding_size": D, "readout_blocks": 2, "readout_size": 10}
    sizes["recall_tokens"] = 0  # tests/test_recall.py
    return ReservoirConfig(**{**sizes, **ends, **changes})


def new_model(**changes) -> ReservoirForCausalLM:
    """A model in evaluation mode that makes clear choices by what the reservoirs say, and no weight of which is 0 or 1."""
    model = ReservoirForCausalLM.initialise(config(**changes), seed=1).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.1)
        for projection in model.projections:
            projection.weight.weight.mul_(4)
        model.head.weight.mul_(1.5 / model.head.weight.std())
        model.head.bias[END] -= 10
    return model


def tokens(B: int, T: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(1, V, (B, T), generator=torch.Generator().manual_seed(seed))


def frozen(model) -> dict[str, torch.Tensor]:
    return {name: buffer.clone() for name, buffer in model.named_buffers()}


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def unit(x, epsilon: float):
    return x / np.sqrt((x**2).mean() + epsilon)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def slow_vector(w: dict, config, token: int, features: list[np.ndarray]) -> np.ndarray:
    """The trained vector [D] after one token, by the formulas of the module's docstring."""
    x = unit(w["embedding.weight"][token], np.finfo(float).eps)
    blocks = [name.removesuffix(".gate.weight") for name in w if name.endswith("gate.weight")]
    for layer, r in enumerate(features):
        r = (r - r.mean()) / np.sqrt(r.var() + 1e-5)
        matrix = w[f"projections.{layer}.weight.weight"]
        if config.attention_heads:
            score = w[f"projections.{layer}.attention.weight"] @ r + w[f"projections.{layer}.attention.bias"]
            share = np.exp(score) / np.exp(score).sum()
            matrix = sum(a * part for a, part in zip(share, np.split(matrix, config.attention_heads), strict=True))
        x = x + matrix @ r
        for block in (name for name in blocks if name.startswith(f"blocks.{layer}.")):
            value, switch = np.split(w[f"{block}.up.weight"] @ (unit(x, 1e-6) * w[f"{block}.norm.weight"]), 2)
            update = w[f"{block}.down.weight"] @ (switch * sigmoid(switch) * value)
            gate = sigmoid(w[f"{block}.gate.weight"] @ x + w[f"{block}.gate.bias"])
            x = gate * update + (1 - gate) * x
    return unit(x, 1e-6) * w["norm.weight"]


def slow_logits(model, ids_BT) -> np.ndarray:
    w = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    features, _ = model.features(ids_BT)
    logits = np.zeros((*ids_BT.shape, len(w["head.bias"])))
    for b, row in enumerate(ids_BT.tolist()):
        for t, token in enumerate(row):
            vector = slow_vector(w, model.config, token, [layer[b, t].numpy() for layer in features])
            logits[b, t] = w["head.weight"] @ vector + w["head.bias"]
    return logits


def slow_loss(logits_BTV, labels_BT) -> tuple[float, int]:
    """Sum over positions whose next label is not -100 of -log softmax, in fp64; and how many there are."""
    total, count = 0.0, 0
    for logits, labels in zip(logits_BTV.detach().double().numpy(), labels_BT.tolist(), strict=True):
        for row, label in zip(logits[:-1], labels[1:], strict=True):
            if label != -100:
                total += math.log(np.exp(row - row.max()).sum()) + row.max() - row[label]
                count += 1
    return total, count


# ---- the formulas


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_logits_equal_a_slow_loop_over_the_formulas(changes):
    model = new_model(**changes).double()
    logits = model(tokens(2, 9)).logits.detach()
    assert logits.dtype == torch.float64 and logits.std() > 1
    assert np.abs(logits.numpy() - slow_logits(model, tokens(2, 9))).max() < 1e-11


def test_attention_readout_equals_the_matrix_formed_for_each_state():
    generator = torch.Generator().manual_seed(0)
    readout = AttentionProjection(features=7, width=5, heads=3).double()
    features_BTF = torch.randn(2, 4, 7, generator=generator, dtype=torch.float64)
    matrices_KDF = readout.weight.weight.view(3, 5, 7)
    for found_D, r_F in zip(readout(features_BTF).view(-1, 5), features_BTF.view(-1, 7), strict=True):
        share_K = torch.softmax(readout.attention.weight @ r_F + readout.attention.bias, dim=0)
        attention_DF = sum(share * matrix_DF for share, matrix_DF in zip(share_K, matrices_KDF, strict=True))
        assert torch.allclose(found_D, attention_DF @ r_F, atol=1e-12)


@pytest.mark.parametrize(("bias", "open"), [(-40.0, 0.0), (40.0, 1.0)])
def test_a_shut_gate_passes_the_input_and_an_open_one_the_update(bias, open):
    block = GatedBlock(6, 8, dropout=0.0).double()
    x_BTD = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        block.gate.weight.zero_()
        block.gate.bias.fill_(bias)
    value_BTH, switch_BTH = torch.split(torch.nn.functional.linear(block.norm(x_BTD), block.up.weight), 8, dim=-1)
    update_BTD = (switch_BTH * switch_BTH.sigmoid() * value_BTH) @ block.down.weight.T
    assert torch.allclose(block(x_BTD), open * update_BTD + (1 - open) * x_BTD, atol=1e-12)


@pytest.mark.parametrize(("blocks", "expected"), [(0, [0, 0]), (1, [0, 1]), (2, [1, 1]), (5, [2, 3])])
def test_blocks_are_spread_over_the_layers(blocks, expected):
    assert [len(of_layer) for of_layer in new_model(readout_blocks=blocks).blocks] == expected


# ---- states between calls


def test_a_zero_state_before_the_first_token_is_the_default():
    model = new_model()
    zeros = torch.zeros(3, model.reservoirs.state_size)
    assert torch.equal(model(tokens(3, 5), state=zeros).logits, model(tokens(3, 5)).logits)
    assert not torch.allclose(model(tokens(3, 5), state=zeros + 1).logits, model(tokens(3, 5)).logits, atol=0.1)


def test_a_given_state_is_left_as_it_was():
    model, start = new_model(), torch.rand(3, 40, generator=torch.Generator().manual_seed(0))
    given = start.clone()
    model(tokens(3, 20), state=start)
    assert torch.equal(start, given)


def test_second_half_from_the_state_of_the_first_equals_the_whole():
    model, ids = new_model().double(), tokens(4, 30)
    whole = model(ids)
    first = model(ids[:, :13])
    second = model(ids[:, 13:], state=first.state)
    assert torch.allclose(torch.cat([first.logits, second.logits], 1), whole.logits, atol=1e-11)
    assert torch.allclose(second.state, whole.state, atol=1e-12)


@pytest.mark.parametrize("recall_tokens", [0, 7])
def test_the_state_is_advanced_without_a_readout_to_where_the_model_has_it(recall_tokens):
    model, ids = new_model(recall_tokens=recall_tokens), tokens(3, 12)
    mask = torch.ones_like(ids)
    mask[0, :5] = 0
    _, before = model.features(ids, attention_mask=mask)
    assert torch.equal(before, model(ids, attention_mask=mask).state)
    assert torch.equal(model.features(ids, before)[1], model(ids, state=before).state)


def test_rows_of_a_batch_do_not_touch_each_other():
    model, ids = new_model(), tokens(4, 20)
    changed = ids.clone()
    changed[[0, 2, 3]] = tokens(3, 20, seed=1)
    before, after = model(ids).logits, model(changed).logits
    assert torch.equal(before[1], after[1])
    assert not torch.allclose(before[0], after[0], atol=0.1)


def test_a_position_sees_nothing_of_the_tokens_after_it():
    model, ids = new_model().double(), tokens(2, 20)
    changed = ids.clone()
    changed[:, 12:] = tokens(2, 8, seed=1)
    before, after = model(ids).logits, model(changed).logits
    assert torch.allclose(before[:, :12], after[:, :12], atol=1e-11)
    assert not torch.allclose(before[:, 12:], after[:, 12:], atol=0.1)


# ---- seeds and configuration


def test_reservoirs_are_a_function_of_their_seed_alone():
    torch.manual_seed(1)
    first = frozen(ReservoirForCausalLM(config(reservoir_seed=5)))
    torch.manual_seed(2)
    again, other = (frozen(ReservoirForCausalLM(config(reservoir_seed=seed))) for seed in (5, 6))
    assert same(first, again)
    assert not [name for name in first if torch.equal(first[name], other[name])]


def test_seed_of_the_readout_leaves_the_reservoirs_alone():
    one, other = (ReservoirForCausalLM.initialise(config(), seed=seed) for seed in (1, 2))
    assert same(frozen(one), frozen(other))
    for name, parameter in one.named_parameters():
        assert name.endswith("bias") or "norm" in name or not torch.allclose(parameter, other.get_parameter(name))


def test_the_same_seeds_give_the_same_model():
    one, other = (ReservoirForCausalLM.initialise(config(), seed=3).state_dict() for _ in range(2))
    assert same(one, other)


def test_a_model_made_from_its_configuration_has_its_reservoirs():
    made = AutoModelForCausalLM.from_config(config(reservoir_seed=4))
    assert same(frozen(made), frozen(ReservoirForCausalLM.initialise(config(reservoir_seed=4))))
    assert made.reservoirs.layers[0][1].weight.abs().max() > 0


def test_a_configuration_that_was_written_is_read_as_the_same():
    written = json.loads(config().to_json_string(use_diff=False))
    assert config(**written).to_dict() == config().to_dict()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("vocab_size", 0),
        ("embedding_size", 0),
        ("readout_size", -1),
        ("readout_blocks", -1),
        ("input_codes", -1),
        ("attention_heads", -1),
        ("dropout", 1.0),
        ("dropout", -0.1),
        ("dropout", math.nan),
        ("token_dropout", 1.0),
        ("token_dropout", -0.1),
    ],
)
def test_impossible_value_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=rf"{name}={re.escape(str(value))}: must"):
        config(**{name: value})


@pytest.mark.parametrize(
    ("reservoirs", "message"),
    [
        ("tanh:10 blocks:3", "blocks=3"),
        ("tanh:10 leak:0.0", "leak=0.0"),
        ("tanh:10 spectral_radius:0", "spectral_radius=0.0"),
        ("", "kind:size"),
        ("gru:4", "kind:size"),
    ],
)
def test_impossible_reservoirs_are_refused_by_name(reservoirs, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        config(reservoirs=reservoirs)


# ---- what the reservoirs see of a token

MANY, CODE = 600, 24


def coded(codes_VC, **changes) -> ReservoirForCausalLM:
    sizes = {"vocab_size": MANY, "reservoirs": "tanh:80 input_scaling:0.7 + linear:40 + delay:30 | tanh:20"}
    return ReservoirForCausalLM.initialise(config(**{**sizes, **changes}), seed=1, codes_VC=codes_VC)


def codes() -> torch.Tensor:
    """Of unit mean square; the first ten tokens have one and the same."""
    codes_VC = torch.randn(MANY, CODE, generator=torch.Generator().manual_seed(0))
    codes_VC[:10] = codes_VC[0]
    return torch.nn.functional.normalize(codes_VC, dim=1) * CODE**0.5


def input_scale(reservoir) -> float:
    """Standard deviation of W_in; of a linear reservoir before its g = sqrt(1 - |lambda|^2), which is drawn anew."""
    if not hasattr(reservoir, "multiplier"):
        return float(reservoir.input_weight.std())
    return float((reservoir.input_weight / (1 - reservoir.multiplier.square().sum(0)).sqrt()).std())


def test_codes_leave_the_variance_of_input_weights_as_it_was():
    without, with_codes = coded(None).reservoirs.layers[0], coded(codes()).reservoirs.layers[0]
    for scaling, before, after in zip((0.7, 1.0, 1.0), without, with_codes, strict=True):
        assert input_scale(before) == pytest.approx(scaling / math.sqrt(3), rel=0.02)
        assert input_scale(after) == pytest.approx(scaling / math.sqrt(3), rel=0.06)
        assert abs(float(after.input_weight.mean())) < 0.05


def test_tokens_of_one_code_drive_alike_and_others_do_not():
    for reservoir in coded(codes()).reservoirs.layers[0]:
        weight_VN = reservoir.input_weight
        assert torch.allclose(weight_VN[1:10], weight_VN[:1].expand(9, -1), atol=1e-6)
        assert not torch.allclose(weight_VN[10], weight_VN[0], atol=0.1)


def test_codes_change_only_the_first_layer_and_where_the_embedding_begins():
    without, with_codes = (dict(m.named_buffers()) | dict(m.named_parameters()) for m in (coded(None), coded(codes())))
    changed = {name for name in without if not torch.equal(without[name], with_codes[name])}
    assert {name for name in changed if not name.startswith("reservoirs.layers.0")} == {"embedding.weight"}


@pytest.mark.parametrize("width", [CODE, 40])
def test_the_embedding_begins_with_the_angles_of_the_codes(width):
    codes_VC = codes()
    codes_VC[-1] = 0  # a token that never occurs
    model = coded(codes_VC, embedding_size=width)
    weight_VD = model.embedding.weight.detach()
    assert float(weight_VD.std()) == pytest.approx(float(coded(None).embedding.weight.detach().std()), rel=0.02)
    cosines = [torch.nn.functional.normalize(vectors[:-1]) for vectors in (weight_VD, codes_VC)]
    assert torch.allclose(*(unit @ unit.T for unit in cosines), atol=1e-5)
    assert torch.equal(weight_VD[-1], coded(None, embedding_size=width).embedding.weight[-1])


def test_an_embedding_narrower_than_the_codes_has_their_scale():
    weight_VD, drawn_VD = (coded(of, embedding_size=10).embedding.weight.detach() for of in (codes(), None))
    assert float(weight_VD.std()) == pytest.approx(float(drawn_VD.std()), rel=0.05)


def test_codes_survive_saving_bit_for_bit_and_drive_as_before(tmp_path):
    model = coded(codes())
    model.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert same(loaded.state_dict(), model.state_dict())
    assert same(frozen(loaded), frozen(model))
    assert loaded.reservoirs.layers[0][0].input_weight.any()


def test_a_model_that_takes_the_weights_of_another_takes_its_codes():
    one, other = coded(codes()), coded(codes().flip(0))
    other.load_state_dict(one.state_dict())
    assert same(frozen(other), frozen(one))


def test_codes_are_saved_once_and_no_table_of_the_vocabulary_beside_them():
    saved = coded(codes()).reservoirs.state_dict()
    wide = {name for name, tensor in saved.items() if len(tensor) == MANY}
    assert wide == {"codes"} and saved["codes"].dtype == torch.float16
    first = 24 * (80 + 40 + 30) + 80 * 80 + 80 + 2 * 40 + 2 * 0  # maps, W and bias of tanh, multipliers, no pairs
    deep = (80 + 2 * 40 + 8 * 30) * 20 + 20 * 20 + 20
    assert sum(tensor.numel() for tensor in saved.values()) == MANY * 24 + first + deep
    assert coded(codes()).parameter_counts()["frozen"] == MANY * 24 + first + deep


def test_the_frozen_part_of_the_default_model_takes_at_most_31_mb_with_all_tokens_of_gpt_2():
    with torch.device("meta"):
        saved = Reservoirs(parse(ReservoirConfig().reservoirs), 50257, codes=192).state_dict()
    assert sum(tensor.nbytes for tensor in saved.values()) < 31e6


def test_without_codes_of_a_text_they_are_drawn():
    drawn = [ReservoirForCausalLM(config(input_codes=6, reservoir_seed=seed)) for seed in (0, 0, 1)]
    assert same(frozen(drawn[0]), frozen(drawn[1]))
    assert not torch.equal(drawn[0].reservoirs.codes, drawn[2].reservoirs.codes)
    assert np.linalg.matrix_rank(drawn[0].reservoirs.layers[0][1].input_weight.numpy(), tol=1e-3) == 6


# ---- what is trained


def test_parameter_counts_equal_hand_arithmetic():
    model = new_model(reservoirs="delay:2 delays:3 quadratic:4 + tanh:6 blocks:2 + linear:3 | tanh:5")
    # layer 1 has 2·3+4 + 6 + 2·3 = 22 features, layer 2 has 5.
    delay, tanh, linear, top = 40 * 2 + 2 * 4, 40 * 6 + 2 * 3 * 3 + 6, 40 * 3 + 2 * 3, 22 * 5 + 5 * 5 + 5
    projections, block = 12 * (22 + 5), 12 + 12 * 20 + 10 * 12 + 12 * 12 + 12
    assert model.parameter_counts() == {
        "trainable": 40 * 12 + projections + 2 * block + 12 + 40,
        "frozen": delay + tanh + linear + top,
    }


def test_untied_head_and_attention_are_counted_as_trained():
    before = new_model(reservoirs="tanh:7", readout_blocks=0).parameter_counts()["trainable"]
    untied = new_model(reservoirs="tanh:7", readout_blocks=0, tie_word_embeddings=False)
    heads = new_model(reservoirs="tanh:7", readout_blocks=0, attention_heads=3)
    assert untied.parameter_counts()["trainable"] == before + 40 * 12
    assert heads.parameter_counts()["trainable"] == before + 2 * 7 * 12 + 3 * 7 + 3


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_an_optimizer_step_moves_every_parameter_and_no_reservoir(changes):
    model = new_model(**changes).train()
    reservoirs, readout = frozen(model), {name: p.detach().clone() for name, p in model.named_parameters()}
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.5)
    model(tokens(4, 20), labels=tokens(4, 20)).loss.backward()
    assert all(parameter.grad.abs().max() > 0 for parameter in model.parameters())
    optimizer.step()
    assert not [name for name, p in model.named_parameters() if torch.equal(p, readout[name])]
    assert same(frozen(model), reservoirs)
    assert not [name for name in readout if name.startswith("reservoirs")]


def test_no_gradient_reaches_a_reservoir_or_a_state():
    model = new_model()
    start = torch.zeros(4, model.reservoirs.state_size, requires_grad=True)
    output = model(tokens(4, 20), labels=tokens(4, 20), state=start)
    output.loss.backward()
    assert start.grad is None and not output.state.requires_grad
    assert not any(buffer.requires_grad for buffer in model.buffers())


def kept_for_backward(compute, model) -> int:
    """Bytes that autograd saves during `compute`, each tensor once, weights apart."""
    own = {tensor.untyped_storage().data_ptr() for tensor in (*model.parameters(), *model.buffers())}
    kept = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage  # held, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        alive = compute()
    del alive
    return sum(storage.nbytes() for storage in kept.values())


def test_backward_keeps_nothing_of_the_recurrence():
    model, ids = new_model(), tokens(4, 50)
    assert kept_for_backward(lambda: model.features(ids), model) == 0
    features, state = model.features(ids)
    assert not any(layer.requires_grad or layer.grad_fn for layer in features) and not state.requires_grad


def step_of(**changes):
    model = new_model(**{"vocab_size": 300, "embedding_size": 32, "readout_size": 80, **changes})
    return workload(model, "small", length=64)


def bytes_of_a_step(counted) -> int:
    """Forward and backward, without the optimizer's state."""
    return max(counted.begin_peak, counted.end_peak) - counted.optimizer


RECALLING = {"recall": {"recall_tokens": 32, "token_dropout": 0.1, "dropout": 0.1}}


@pytest.mark.parametrize("changes", (ARCHITECTURES | RECALLING).values(), ids=ARCHITECTURES | RECALLING)
def test_a_step_takes_the_memory_and_the_work_that_the_planner_counts(changes):
    step = step_of(**changes)
    counted = count(step, 8, kind="cpu", precision="fp32")
    assert bytes_of_a_step(counted) == pytest.approx(real_peak(step, 8, 64, "fp32"), rel=0.05)
    with FlopCounterMode(display=False) as counter:
        step.loss(step.model, step.batch(8, 64)).backward()
    assert counted.flops == pytest.approx(counter.get_total_flops(), rel=0.05)


def test_a_dense_reservoir_is_counted_where_a_cpu_multiplies_it_in_a_layout_of_its_own():
    """That of oneDNN, from 256 rows on: 16 tokens of 24 examples. torch's counter has no formula for its products."""
    step = step_of(reservoirs="tanh:64")
    small, large = (count(step, examples, kind="cpu", precision="fp32") for examples in (8, 24))
    assert bytes_of_a_step(large) == pytest.approx(real_peak(step, 24, 64, "fp32"), rel=0.05)
    assert large.flops == 3 * small.flops


def test_initialising_weights_again_leaves_reservoirs_alone_that_were_loaded(tmp_path):
    new_model(reservoir_seed=3).save_pretrained(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    with torch.no_grad():
        model.get_buffer("reservoirs.layers.0.1.weight").mul_(0.5)
    reservoirs = frozen(model)
    for module in model.modules():
        model._init_weights(module)
    assert same(frozen(model), reservoirs)


def test_dropout_acts_in_training_only():
    model, ids = new_model(dropout=0.5), tokens(2, 10)
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert not torch.allclose(model(ids).logits, model(ids).logits)
    assert torch.equal(model(ids).state, model.eval()(ids).state)


def test_token_dropout_hides_its_share_of_the_tokens_from_the_reservoirs_in_training_only():
    model, ids = new_model(reservoirs="delay:6 delays:1", token_dropout=0.3).train(), tokens(40, 100)
    torch.manual_seed(0)
    (seen_BTF,), _ = model.features(ids)
    hidden_BT = ~seen_BTF.any(dim=-1)
    assert abs(float(hidden_BT.float().mean()) - 0.3) < 4 * math.sqrt(0.3 * 0.7 / ids.numel())
    (whole_BTF,), _ = model.eval().features(ids)
    assert torch.equal(seen_BTF, whole_BTF * ~hidden_BT[..., None]) and whole_BTF.any(dim=-1).all()


def test_token_dropout_follows_the_global_seed_and_spares_padding():
    model, ids = new_model(token_dropout=0.5).train(), tokens(2, 30)
    mask = torch.ones_like(ids)
    mask[0, :10] = 0
    drawn = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        drawn.append(torch.cat(model.features(ids, attention_mask=mask)[0], dim=-1))
    assert torch.equal(drawn[0], drawn[1]) and not torch.equal(drawn[0], drawn[2])
    assert not drawn[0][0, :10].any()


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


def test_the_state_stays_fp32_under_autocast():
    model, ids = new_model(), tokens(2, 40)
    exact = model(ids)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = model(ids)
    assert output.logits.dtype == torch.bfloat16  # autocast was on
    assert output.state.dtype == torch.float32
    assert (output.state - exact.state).abs().max() < 0.05
    assert (output.logits - exact.logits).abs().max() < 0.05 * exact.logits.abs().max()


def test_a_model_loaded_in_bf16_keeps_its_reservoirs_and_their_state_in_fp32(tmp_path):
    model, ids = new_model(), tokens(2, 40)
    model.save_pretrained(tmp_path)
    half = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16)
    output, exact = half(ids), model(ids)
    assert output.logits.dtype == half.head.weight.dtype == torch.bfloat16
    assert same(frozen(half), frozen(model))
    assert torch.equal(output.state, exact.state)
    assert (output.logits - exact.logits).abs().max() < 0.05 * exact.logits.abs().max()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_cast_to_fewer_digits_reaches_what_is_trained_and_nothing_else(dtype):
    model, cast, ids = coded(codes()), coded(codes()).to(dtype), tokens(2, 40)
    assert same(frozen(cast), frozen(model))
    assert {parameter.dtype for parameter in cast.parameters()} == {dtype}
    output, exact = cast.eval()(ids), model.eval()(ids)
    assert torch.equal(output.state, exact.state)
    assert (output.logits - exact.logits).abs().max() < 0.05 * exact.logits.abs().max()


def test_a_state_that_was_cast_to_fewer_digits_is_refused():
    model = new_model(recall_tokens=4)
    with pytest.raises(ValueError, match=r"state\.dtype=torch\.bfloat16: must be float32"):
        model(tokens(2, 3), state=model.initial_state(2).bfloat16())


def test_in_fp64_the_fp32_model_is_confirmed():
    model, ids = new_model(), tokens(2, 40)
    exact, double = model(ids), new_model().double()(ids)
    assert double.logits.dtype == double.state.dtype == torch.float64
    assert torch.allclose(exact.logits.double(), double.logits, atol=1e-3)
    assert torch.allclose(exact.state.double(), double.state, atol=1e-5)


# ---- saved and loaded


@pytest.mark.parametrize("changes", ARCHITECTURES.values(), ids=ARCHITECTURES)
def test_saved_model_loads_bit_for_bit_from_safetensors_alone(changes, tmp_path):
    model, ids = new_model(**changes), tokens(2, 20)
    model.save_pretrained(tmp_path)
    assert {path.suffix for path in tmp_path.iterdir()} == {".json", ".safetensors", ".py"}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert type(loaded) is ReservoirForCausalLM
    assert same(loaded.state_dict(), model.state_dict())
    assert torch.equal(loaded(ids).logits, model(ids).logits)
    assert (loaded.head.weight is loaded.embedding.weight) is model.config.tie_word_embeddings
    assert loaded.parameter_counts() == model.parameter_counts()


def test_loading_neither_draws_reservoirs_nor_computes_eigenvalues(tmp_path, monkeypatch):
    model = new_model()
    with torch.no_grad():
        model.get_buffer("reservoirs.layers.0.1.weight").add_(0.01)  # not what the seed gives
    model.save_pretrained(tmp_path)
    monkeypatch.setattr(torch.linalg, "eigvals", None)
    assert same(frozen(AutoModelForCausalLM.from_pretrained(tmp_path)), frozen(model))


def test_every_tensor_is_saved_once(tmp_path):
    model = new_model()
    model.save_pretrained(tmp_path)
    saved = safetensors.torch.load_file(tmp_path / "model.safetensors")
    assert sum(tensor.numel() for tensor in saved.values()) == sum(model.parameter_counts().values())
    assert saved.keys() == {*dict(model.named_parameters()), *dict(model.named_buffers())}


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
@pytest.mark.parametrize("heads", [0, 2])
def test_greedy_text_equals_argmax_with_the_whole_prefix_recomputed(seed, heads):
    model, ids = new_model(attention_heads=heads), tokens(1, 6, seed)
    assert len(set(slow_greedy(model, ids[0].tolist(), 24))) > 3
    assert greedy(model, input_ids=ids)[0, 6:].tolist() == slow_greedy(model, ids[0].tolist(), 24)


def test_what_a_tokenizer_returns_can_be_given_to_generate():
    model, ids = new_model(), tokens(1, 6)
    expected = greedy(model, input_ids=ids)
    assert torch.equal(greedy(model, input_ids=ids, attention_mask=torch.ones_like(ids)), expected)


def test_padding_on_the_left_changes_no_text():
    model, ids = new_model(), tokens(2, 9)
    padded, mask = ids.clone(), torch.ones_like(ids)
    padded[0, :4], mask[0, :4] = END, 0
    together = greedy(model, input_ids=padded, attention_mask=mask)[:, 9:].tolist()
    for row, prompt in enumerate((ids[0, 4:], ids[1])):
        expected = slow_greedy(model, prompt.tolist(), 24)
        assert together[row][: len(expected)] == expected


def test_text_goes_on_from_a_given_state_with_all_tokens_of_the_prompt():
    model, ids = new_model(), tokens(1, 12)
    whole = greedy(model, input_ids=ids)[0, 12:]
    state = model(ids[:, :7]).state
    assert torch.equal(greedy(model, input_ids=ids[:, 7:], state=state)[0, 5:], whole)
    assert not torch.equal(greedy(model, input_ids=ids[:, 7:])[0, 5:], whole)


def test_scores_of_beam_search_are_those_of_its_sequences():
    model, ids = new_model(), tokens(2, 5)
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
        model.head.weight[END].zero_()
        model.head.bias[END] = 9.0
    torch.manual_seed(0)
    rows = model.generate(tokens(16, 4), do_sample=True, max_new_tokens=200)[:, 4:].tolist()
    lengths = [row.index(END) for row in rows]
    assert len(set(lengths)) > 1
    assert max(lengths) + 1 == len(rows[0]) < 200
    assert all(set(row[length:]) == {END} for row, length in zip(rows, lengths, strict=True))


# ---- XLA: 8 virtual devices in one process of their own, which takes seconds to start

ON_XLA = """
import copy, json
import torch
torch.set_num_threads(1)
from helpers import xla
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
device = xla.start()
ALL = "delay:4 delays:3 quadratic:6 + tanh:32 blocks:4 + linear:8 | tanh:12 leak:1.0"

def pair(**changes):
    sizes = {"vocab_size": 40, "reservoirs": ALL, "embedding_size": 16, "readout_blocks": 2, "readout_size": 16}
    model = ReservoirForCausalLM.initialise(ReservoirConfig(**{**sizes, **changes}), seed=1).eval()
    twin = copy.deepcopy(model).to(device)
    twin.tie_weights()
    xla.replicate(twin)
    xla.sync()
    return model, twin

def tokens(B, T):
    return torch.randint(0, 40, (B, T), generator=torch.Generator().manual_seed(0))

def put(ids):
    return xla.shard_batch(ids.to(device)) if len(ids) % 8 == 0 else ids.to(device)

def features(model, ids):
    return torch.cat(model.features(ids)[0], dim=-1)

def difference(model, twin, ids):
    return float((features(twin, put(ids)).cpu() - features(model, ids)).abs().max())

model, twin = pair()
answers = {"compiles": {}, "features": {}, "sharded": {}}
for T in (16, 256, 256):
    before = xla.counters()["compiles"]
    found, last = twin.features(put(tokens(8, T)))
    xla.sync()
    answers["compiles"]["again" if T in answers["compiles"] else T] = xla.counters()["compiles"] - before
    answers["sharded"][f"features of {T} tokens"] = all(map(xla.is_batch_sharded, found))
    answers["sharded"][f"state after {T} tokens"] = xla.is_batch_sharded(last)
    exact = features(model, tokens(8, T))
    answers["features"][f"{T} tokens"] = float((torch.cat(found, -1).cpu() - exact).abs().max())

answers["features"]["3 rows on 8 devices"] = difference(model, twin, tokens(3, 16))
answers["features"]["other settings"] = difference(*pair(reservoirs="tanh:24 leak:0.2 + linear:3"), tokens(16, 16))
with torch.autocast("xla", dtype=torch.bfloat16):
    under = twin(put(tokens(8, 16)))
    answers["under autocast"] = {
        "readout": str(twin.head(twin.embedding.weight).dtype),
        "logits": str(under.logits.dtype),  # to which recall adds
        "state": str(under.state.dtype),
        "difference": float((under.state.cpu() - model(tokens(8, 16)).state).abs().max()),
    }

ids = tokens(8, 16)
first = twin(put(ids[:, :7]))
second = twin(put(ids[:, 7:]), state=first.state)
answers["features"]["streamed"] = float((second.state.cpu() - model(ids).state).abs().max())

frozen = {name: buffer.cpu().clone() for name, buffer in twin.named_buffers()}
trained = {name: parameter.detach().cpu().clone() for name, parameter in twin.named_parameters()}
optimizer = torch.optim.AdamW(twin.parameters(), lr=0.1, weight_decay=0.5)
output = twin(put(ids), labels=put(ids))
answers["logits"] = float((output.logits.detach().cpu() - model(ids).logits).abs().max())
answers["loss"] = float((output.loss.detach().cpu() - model(ids, labels=ids).loss).abs())
output.loss.backward()
optimizer.step()
xla.sync()
answers["sharded"] |= {"logits": xla.is_batch_sharded(output.logits), "state": xla.is_batch_sharded(output.state)}
answers["a weight is sharded"] = xla.is_batch_sharded(twin.head.weight)
answers["reservoirs unchanged"] = all(torch.equal(b.cpu(), frozen[name]) for name, b in twin.named_buffers())
answers["stayed"] = [name for name, p in twin.named_parameters() if torch.equal(p.cpu(), trained[name])]
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla() -> dict:
    return answers_on_xla(ON_XLA)


def test_features_on_eight_xla_devices_equal_the_cpus(on_xla):
    assert len(on_xla["features"]) == 5
    assert max(on_xla["features"].values()) < 1e-5, on_xla["features"]


def test_one_compilation_serves_any_number_of_tokens(on_xla):
    assert on_xla["compiles"] == {"16": 1, "256": 1, "again": 0}


def test_features_and_logits_are_split_over_the_devices_and_weights_are_not(on_xla):
    assert on_xla["sharded"] == dict.fromkeys(on_xla["sharded"], True)
    assert len(on_xla["sharded"]) == 6
    assert on_xla["a weight is sharded"] is False


def test_logits_and_loss_on_xla_are_the_cpus(on_xla):
    assert on_xla["logits"] < 1e-4
    assert on_xla["loss"] < 1e-5


def test_a_step_on_xla_moves_every_parameter_and_no_reservoir(on_xla):
    assert on_xla["reservoirs unchanged"] is True
    assert on_xla["stayed"] == []


def test_the_state_on_xla_stays_fp32_under_autocast(on_xla):
    assert on_xla["under autocast"]["readout"] == "torch.bfloat16"
    assert on_xla["under autocast"]["logits"] == "torch.float32"
    assert on_xla["under autocast"]["state"] == "torch.float32"
    assert on_xla["under autocast"]["difference"] < 0.05
