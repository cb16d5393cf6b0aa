"""Recall: kernels against a slow loop over the definitions, streaming, masks, and what it adds to the logits."""

import pytest
import torch

from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.recall import HALF_LIVES, KERNELS, MATCHES, Recall, extend_line, proposals
from helpers.reservoir.scans import since_begin

B, T, W, V = 3, 17, 6, 5


def tokens(length=T, seed=0):
    return torch.randint(0, V, (B, length), generator=torch.Generator().manual_seed(seed))


def slowly(history, ids, mask):
    """Weights [K][T][S] of one row; `history` are W ids or None, oldest first."""
    text = history + [token if seen else None for token, seen in zip(ids, mask, strict=True)]
    weights = torch.zeros(KERNELS, len(ids), len(text))
    for t in range(len(ids)):
        now = len(history) + t
        window = [s for s in range(len(text)) if 0 <= now - s < len(history) and text[s] is not None]
        for k, half_life in enumerate(HALF_LIVES):
            for s in window:
                weights[k, t, s] = 2 ** (-(now - s) / half_life)
        for k, n in enumerate(MATCHES, start=len(HALF_LIVES)):
            alike = [
                s
                for s in window
                if now - s + n < len(history)
                and all(text[s - i] is not None and text[s - i] == text[now - i + 1] for i in range(1, n + 1))
            ]
            for s in alike:
                weights[k, t, s] = 1 / len(alike)
    return weights


@pytest.mark.parametrize("masked", [False, True])
def test_kernels_equal_a_slow_loop_over_their_definitions(masked):
    ids, mask = tokens(), torch.ones(B, T, dtype=torch.int64)
    if masked:
        mask[0, :4] = mask[1, 5] = 0
    line = torch.randint(0, V + 1, (B, W), generator=torch.Generator().manual_seed(1)).float()
    proposed, weights = proposals(line, ids, mask if masked else None)
    for row in range(B):
        history = [int(code) - 1 if code else None for code in line[row]]
        expected = slowly(history, ids[row].tolist(), mask[row].tolist())
        assert torch.allclose(weights[row], expected.transpose(0, 1), atol=1e-6)
    assert weights[:, :, len(HALF_LIVES) :].max() > 0
    assert (proposed[:, W:] == ids)[mask.bool()].all()


def test_kernels_of_a_text_that_began_within_the_call_are_those_of_the_text_alone():
    ids, ends = tokens(), torch.zeros(B, T, dtype=torch.bool)
    ends[0, 4] = ends[0, 12] = ends[1, 16] = True
    line = torch.randint(1, V + 1, (B, W), generator=torch.Generator().manual_seed(1)).float()
    _, weights = proposals(line, ids, since_BU=since_begin(ends))
    _, last = extend_line(line, ids, since_BU=since_begin(ends))
    for row, begins in enumerate(([0, 5, 13], [0], [0])):
        for begin, end in zip(begins, [*begins[1:], T], strict=True):
            history = [int(code) - 1 for code in line[row]] if begin == 0 else [None] * W
            expected = slowly(history, ids[row, begin:end].tolist(), [1] * (end - begin))
            found = weights[row, begin:end]
            assert torch.allclose(found[..., begin : W + end], expected.transpose(0, 1), atol=1e-6)
            assert not found[..., :begin].any()
    assert last[0].tolist() == [0.0, 0.0, *(ids[0, 13:] + 1).tolist()]
    assert not last[1].any() and last[2].equal(ids[2, -W:] + 1.0)


def test_streaming_sees_what_the_whole_text_sees():
    ids, line = tokens(), torch.zeros(B, W)
    _, last = extend_line(line, ids)
    _, carried = extend_line(line, ids[:, :9])
    _, end = extend_line(carried, ids[:, 9:])
    whole, first, second = (proposals(*each)[1] for each in ((line, ids), (line, ids[:, :9]), (carried, ids[:, 9:])))
    assert end.equal(last)
    assert torch.allclose(first, whole[:, :9, :, : W + 9], atol=1e-6)
    assert torch.allclose(second, whole[:, 9:, :, 9:], atol=1e-6)


def test_the_boost_is_the_trusted_sum_of_kernels_at_the_proposed_tokens():
    torch.manual_seed(0)
    recall, x, logits = Recall(4), torch.randn(B, T, 4), torch.randn(B, T, V)
    torch.nn.init.normal_(recall.weight)
    torch.nn.init.normal_(recall.bias)
    proposed, weights = proposals(torch.zeros(B, W), tokens())
    expected = logits.clone()
    for b in range(B):
        for t in range(T):
            trust = recall.weight @ x[b, t] + recall.bias
            for s in range(W + T):
                expected[b, t, proposed[b, s]] += trust @ weights[b, t, :, s]
    assert torch.allclose(recall(logits.flatten(0, 1), x, proposed, weights).view(B, T, V), expected, atol=1e-5)


def model(**settings):
    config = ReservoirConfig(
        vocab_size=V, reservoirs="tanh:8", embedding_size=8, readout_blocks=1, readout_size=8, **settings
    )
    return ReservoirForCausalLM.initialise(config, seed=0).eval()


def test_an_untrained_model_recalls_nothing_and_a_trained_one_does():
    without, with_recall = model(recall_tokens=0), model(recall_tokens=W)
    with_recall.load_state_dict(without.state_dict(), strict=False)
    assert with_recall(tokens()).logits.equal(without(tokens()).logits)
    torch.nn.init.ones_(with_recall.recall.bias)
    assert not torch.allclose(with_recall(tokens()).logits, without(tokens()).logits)


def test_the_gradient_reaches_the_trust_and_stops_at_the_kernels():
    trained = model(recall_tokens=W).train()
    trained(tokens(), labels=tokens()).loss.backward()
    assert trained.recall.weight.grad.abs().max() > 0
    assert not proposals(torch.zeros(B, W, requires_grad=True), tokens())[1].requires_grad


def test_a_text_that_repeats_itself_is_learned_by_trust_alone():
    repeating = model(recall_tokens=12)
    for parameter in repeating.parameters():
        parameter.requires_grad_(False)
    trust = [repeating.recall.weight.requires_grad_(), repeating.recall.bias.requires_grad_()]
    optimizer = torch.optim.Adam(trust, lr=0.3)
    for seed in range(60):
        text = tokens(4, seed).repeat(1, 4)
        loss = repeating(text, labels=text).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    text = tokens(4, seed=999).repeat(1, 4)
    logits = repeating(text).logits[:, 7:-1]
    assert torch.nn.functional.cross_entropy(logits.flatten(0, 1), text[:, 8:].flatten()) < 0.7 < 1.6  # log 5 = 1.6


def test_the_state_carries_as_many_tokens_as_recall_needs():
    assert model(recall_tokens=W).initial_state(2).shape == (2, 8 + W)
    assert model(recall_tokens=0)(tokens()).state.shape == (B, 8)
    with pytest.raises(ValueError, match="recall_tokens=-1: must be at least 0"):
        ReservoirConfig(vocab_size=V, reservoirs="tanh:8", recall_tokens=-1)


def trusting(**settings):
    trusting = model(recall_tokens=W, eos_token_id=0, bos_token_id=0, pad_token_id=0, **settings)
    torch.manual_seed(1)
    torch.nn.init.normal_(trusting.recall.weight, std=2.0)
    torch.nn.init.normal_(trusting.recall.bias, std=2.0)
    return trusting


def test_a_text_in_two_pieces_has_the_logits_of_the_whole():
    whole = trusting()(tokens())
    first = trusting()(tokens()[:, :9])
    second = trusting()(tokens()[:, 9:], state=first.state)
    assert torch.allclose(second.logits, whole.logits[:, 9:], atol=1e-5)
    assert torch.allclose(second.state, whole.state, atol=1e-6)


def test_generation_takes_what_the_whole_text_would_give():
    generating, text = trusting(), tokens(5) % (V - 1) + 1
    generated = generating.generate(text, max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    for _ in range(12):
        text = torch.cat((text, generating(text).logits[:, -1:].argmax(-1)), dim=1)
    assert generated.equal(text)


def test_padding_on_the_left_is_not_recalled():
    padding = torch.zeros(B, 4, dtype=torch.int64)
    mask = torch.cat((padding, torch.ones(B, T, dtype=torch.int64)), dim=1)
    padded = trusting()(torch.cat((padding, tokens()), dim=1), attention_mask=mask).logits[:, 4:]
    assert torch.allclose(padded, trusting()(tokens()).logits, atol=1e-5)


def test_a_saved_model_recalls_what_it_did(tmp_path):
    saved = trusting()
    saved.save_pretrained(tmp_path)
    assert ReservoirForCausalLM.from_pretrained(tmp_path)(tokens()).logits.equal(saved(tokens()).logits)


@pytest.mark.parametrize("load", ["bfloat16", "half", "from_pretrained"])
def test_a_model_in_16_bits_recalls_the_same_tokens_with_the_logits_of_its_original(load, tmp_path):
    """Of 50,257 tokens bf16 tells 8 bits apart, fp16 11 and none above 65,504."""
    many = 50257
    config = ReservoirConfig(
        vocab_size=many, reservoirs="tanh:8", embedding_size=8, readout_blocks=1, readout_size=8, recall_tokens=W
    )
    exact = ReservoirForCausalLM.initialise(config, seed=0).eval()
    torch.nn.init.normal_(exact.recall.bias, std=2.0)
    exact.save_pretrained(tmp_path)
    cast = ReservoirForCausalLM.from_pretrained(tmp_path, dtype=torch.bfloat16 if load == "from_pretrained" else None)
    cast = getattr(cast, load)() if load != "from_pretrained" else cast
    assert cast.head.weight.dtype in (torch.bfloat16, torch.float16)
    ids = many - 1 - tokens()  # bf16 holds none of them
    states = [exact.initial_state(B), cast.initial_state(B)]
    for piece in ids.split(5, dim=1):
        lines = [state[:, -W:] for state in states]
        (proposed, weights), (found, alike) = (proposals(line, piece) for line in lines)
        assert found.equal(proposed) and alike.equal(weights)
        expected, output = (m(piece, state=state) for m, state in zip((exact, cast), states, strict=True))
        assert (output.logits - expected.logits).abs().max() < 0.02 * expected.logits.abs().max()
        states = [expected.state, output.state]
    assert (states[1][:, -W:] - 1).equal(ids[:, -W:].float())
