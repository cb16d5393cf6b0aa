"""The one-file model against a slow loop, and what a user of transformers expects of it."""

import copy

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from helpers.reservoir.counts import Counts
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

from .slow_model import END, TRAIN, V, slow_logits

SIZES = {
    "vocab_size": V,
    "units": 24,
    "unit_blocks": 3,
    "embedding_size": 8,
    "readout_size": 12,
    "window": 10,
    "eos_token_id": END,
    "bos_token_id": END,
    "pad_token_id": END,
}


def made(**changes) -> ReservoirForCausalLM:
    """A small model with counts, all of whose parts matter, in eval mode."""
    generator = torch.Generator().manual_seed(3)
    config = ReservoirConfig(**{**SIZES, **changes})
    codes = torch.randn(config.vocab_size, 6, generator=generator)
    model = ReservoirForCausalLM.initialise(config, codes, seed=1)
    with torch.no_grad():
        for module in (model.out, model.boost, model.scale, model.head):
            for weight in module.parameters():
                if weight is not model.embedding.weight:
                    weight.normal_(std=0.3, generator=generator)
    model.counts = Counts.fit(TRAIN, V, END)
    return model.eval()


def texts(rows: int = 3, length: int = 30) -> torch.Tensor:
    """Ids with repeats, and ends of texts in the middle."""
    ids = torch.randint(1, 9, (3, 30), generator=torch.Generator().manual_seed(5))
    ids[0, 11] = ids[1, 3] = ids[1, 20] = END
    return ids[:rows, :length]


def test_logits_are_those_of_the_slow_loop():
    model, ids = made(), texts()
    expected = torch.stack([slow_logits(model, row.tolist()) for row in ids])
    assert_close(model(ids).logits.double(), expected, atol=1e-4, rtol=1e-4)


def test_loss_and_gradients_are_those_of_the_slow_loop():
    model, ids = made(), texts(2, 16)
    model(ids, labels=ids).loss.backward()
    ours = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    logits = torch.stack([slow_logits(model, row.tolist())[:-1] for row in ids]).flatten(0, 1)
    loss = F.cross_entropy(logits, ids[:, 1:].flatten())
    loss.backward()
    assert_close(model(ids, labels=ids).loss.double(), loss.detach(), atol=1e-5, rtol=1e-5)
    assert_close(ours, {name: weight.grad for name, weight in model.named_parameters()}, atol=2e-5, rtol=2e-4)


def test_the_loss_counts_labels_alone_and_divides_by_the_given_number():
    model, ids = made(), texts()
    labels = ids.masked_fill(torch.arange(30) < 12, -100)
    each = F.cross_entropy(model(ids).logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(3, 29)
    assert model(ids, labels=labels).loss.item() == pytest.approx(each[:, 11:].mean().item(), rel=1e-4)
    given = model(ids, labels=labels, num_items_in_batch=torch.tensor(100)).loss
    assert given.item() == pytest.approx(each[:, 11:].sum().item() / 100, rel=1e-4)


def assert_same_state(state, expected):
    assert_close(state[0], expected[0], atol=1e-6, rtol=1e-5)
    assert torch.equal(state[1], expected[1])


def test_a_text_read_in_pieces_is_the_text_read_at_once():
    model, ids = made(), texts()
    whole, state, pieces = model(ids), None, []
    for piece in ids.split([1, 4, 13, 12], dim=1):
        found = model(piece, state=state)
        state = found.state
        pieces.append(found.logits)
    assert_close(torch.cat(pieces, 1), whole.logits, atol=1e-5, rtol=1e-5)
    assert_same_state(state, whole.state)


def test_padding_on_either_side_changes_no_logit_and_no_state():
    model, ids = made(), texts()
    whole, pad = model(ids), torch.full((3, 5), END)
    real, none = torch.ones_like(ids), torch.zeros_like(pad)
    left = model(torch.cat((pad, ids), 1), attention_mask=torch.cat((none, real), 1))
    right = model(torch.cat((ids, pad), 1), attention_mask=torch.cat((real, none), 1))
    assert_close(left.logits[:, 5:], whole.logits, atol=1e-5, rtol=1e-5)
    assert_close(right.logits[:, :30], whole.logits, atol=1e-5, rtol=1e-5)
    for found in (left, right):
        assert_same_state(found.state, whole.state)


def test_generation_refuses_padding_on_the_right():
    model, ids = made(), texts()
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    with pytest.raises(ValueError, match="attention_mask: padding on the right"):
        model.generate(ids, attention_mask=mask, max_new_tokens=2)


@pytest.mark.parametrize("length", [1600, 4096])
def test_a_long_call_and_its_gradients_hold_no_nan(length):
    model = made(window=128)
    ids = torch.randint(1, V, (1, length), generator=torch.Generator().manual_seed(0))
    found = model(ids, labels=ids)
    found.loss.backward()
    assert found.logits.isfinite().all()
    assert all(weight.grad.isfinite().all() for weight in model.parameters())


def test_an_optimizer_step_moves_every_parameter_and_no_reservoir():
    model, ids = made().train(), texts()
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(ids, labels=ids).loss.backward()
    optimizer.step()
    frozen = {f"memory.{name}" for name, _ in model.memory.named_buffers()}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]) == (name in frozen), name


def test_under_bf16_autocast_states_stay_fp32():
    model, ids = made(), texts()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        states, _, state = model.read(ids)
    assert states.dtype == state[0].dtype == torch.float32
    assert_close(states, model.read(ids)[0], atol=1e-5, rtol=1e-5)


def test_under_bf16_autocast_the_loss_is_near_that_of_fp32():
    model, ids = made(), texts()
    exact = model(ids, labels=ids).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        near = model(ids, labels=ids)
    assert near.logits.dtype == torch.float32
    assert_close(near.loss, exact, atol=0, rtol=3e-2)


def test_the_spectral_radius_of_every_block_is_the_one_asked_for():
    weight = made(spectral_radius=0.7).memory.weight.double()
    radius = torch.linalg.eigvals(weight).abs().amax(-1)
    assert_close(radius, torch.full_like(radius, 0.7), atol=1e-5, rtol=0)


def test_a_reservoir_is_drawn_from_its_seed_alone():
    torch.manual_seed(0)
    one = made(reservoir_seed=4).memory
    torch.manual_seed(1)
    other = made(reservoir_seed=4).memory
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))
    assert not torch.equal(one.weight, made(reservoir_seed=5).memory.weight)


def test_units_that_the_blocks_do_not_divide_are_refused():
    with pytest.raises(ValueError, match="units=25: must be a multiple of unit_blocks=3"):
        ReservoirConfig(units=25, unit_blocks=3)


def test_beams_carry_their_own_states():
    model, ids = made(), texts(2, 6)
    found = model.generate(ids, max_new_tokens=6, num_beams=3, do_sample=False, min_new_tokens=6)
    scores = [_log_probability(model, row, 6) for row in found]
    greedy = model.generate(ids, max_new_tokens=6, do_sample=False, min_new_tokens=6)
    assert all(beam >= _log_probability(model, row, 6) - 1e-4 for beam, row in zip(scores, greedy, strict=True))


def _log_probability(model, row, begin: int) -> float:
    logs = model(row[None]).logits[0].log_softmax(-1)
    return float(logs[begin - 1 : -1].gather(-1, row[begin:, None]).sum())


def test_sampling_step_by_step_is_sampling_from_whole_texts():
    model, ids = made(), texts(2, 6)
    greedy = model.generate(ids, max_new_tokens=8, do_sample=False, min_new_tokens=8)
    for _ in range(8):
        logits = model(ids).logits[:, -1]
        logits[:, END] = -torch.inf
        ids = torch.cat((ids, logits.argmax(-1, keepdim=True)), 1)
    assert torch.equal(greedy, ids)


def test_no_tokens_are_refused_with_the_remedy():
    with pytest.raises(ValueError, match="input_ids: no tokens; a text begins after the token that ends texts"):
        made()(torch.zeros(1, 0, dtype=torch.long))
