"""Texts one after the other in a stream: each is read as it is alone, however the stream is cut into calls."""

import json

import pytest
import torch

from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.recall import proposals
from helpers.reservoir.scans import since_begin

from .xla_process import answers_on_xla

# B rows · T tokens of a stream · V vocabulary

V, END, W = 12, 0, 9  # few tokens, so that much is recalled
LENGTHS = ((13, 5, 30, 12), (20, 1, 9, 30), (3, 17, 33, 7))  # of the texts of each row, their ends included
CUTS = ((60,), (13, 1, 40, 6), (24, 36))  # the first cut of the second follows an end
MIX = "delay:4 delays:5 quadratic:6 + tanh:24 blocks:3 leak:0.3 + linear:8 spectral_radius:0.98"
KINDS = {
    "dense tanh": "tanh:16 leak:0.2",
    "tanh in blocks": "tanh:24 blocks:4 leak:0.2",
    "linear": "linear:12 spectral_radius:0.99",
    "delay": "delay:5 delays:6 quadratic:10",
    "mix": MIX,
    "deep": f"{MIX} | delay:4 delays:3 + tanh:10 leak:0.3 | linear:7",
}


def new_model(kind: str, recall_tokens: int = W, **changes) -> ReservoirForCausalLM:
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), END)
    sizes = {"embedding_size": 12, "readout_blocks": 2, "readout_size": 16, "recall_tokens": recall_tokens}
    config = ReservoirConfig(vocab_size=V, reservoirs=KINDS[kind], **{**ends, **sizes, **changes})
    model = ReservoirForCausalLM.initialise(config, seed=1).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (2.0 if "recall" in name else 0.3))
    return model


def texts(seed: int = 0) -> list[list[torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    draw = [[torch.randint(1, V, (1, length), generator=generator) for length in row] for row in LENGTHS]
    for text in (text for row in draw for text in row):
        text[:, -1] = END
    return draw


def stream(rows: list[list[torch.Tensor]]) -> torch.Tensor:
    return torch.cat([torch.cat(row, dim=1) for row in rows])


@torch.no_grad()
def alone(model, rows) -> torch.Tensor:
    """Logits [B, T, V] of each text read by itself."""
    return torch.cat([torch.cat([model(text).logits for text in row], dim=1) for row in rows])


@torch.no_grad()
def in_pieces(model, ids_BT, cut, device="cpu"):
    """Logits [B, T, V] of the stream, and the state after it."""
    logits, state = [], None
    for piece in ids_BT.split(cut, dim=1):
        output = model(piece.to(device), state=state)
        state = output.state
        logits.append(output.logits.float().cpu())
    return torch.cat(logits, dim=1), state.cpu()


def off(found, expected) -> float:
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("recall_tokens", [0, W])
@pytest.mark.parametrize("kind", KINDS)
def test_a_text_in_a_stream_has_the_logits_that_it_has_alone(kind, recall_tokens):
    model, rows = new_model(kind, recall_tokens), texts()
    expected = alone(model, rows)
    for cut in CUTS:
        found, state = in_pieces(model, stream(rows), cut)
        assert off(found, expected) < 1e-5
        assert not state.any()  # every row ends with the end of a text


@pytest.mark.parametrize("recall_tokens", [0, W])
@pytest.mark.parametrize("kind", KINDS)
def test_without_resets_a_text_is_read_with_what_came_before(kind, recall_tokens):
    model, rows = new_model(kind, recall_tokens, reset_at_end=False), texts()
    expected = alone(model, rows)
    assert min(off(in_pieces(model, stream(rows), cut)[0], expected) for cut in CUTS) > 1e-2


@pytest.mark.parametrize("changes", [{"reset_at_end": False}, {"eos_token_id": None}])
def test_where_no_end_was_read_nothing_is_reset(changes):
    ids = stream(texts()) % (V - 1) + 1
    found, expected = (in_pieces(new_model("deep", **each), ids, CUTS[1]) for each in ({}, changes))
    assert off(found[0], expected[0]) < 1e-6 and off(found[1], expected[1]) < 1e-6


def test_features_are_those_of_the_text_alone():
    model, rows = new_model("deep"), texts()
    found, state = model.features(stream(rows))
    for layer, features_BTF in enumerate(found):
        expected = torch.cat([torch.cat([model.features(text)[0][layer] for text in row], dim=1) for row in rows])
        assert off(features_BTF, expected) < 1e-5
    assert not state.any()


def test_the_state_within_a_text_is_that_of_its_tokens_alone():
    model, rows = new_model("deep"), texts()
    for length in (12, 13, 14, 25, 50):
        ids = stream(rows)[:, :length]
        state, (_, advanced) = model(ids).state, model.features(ids)
        assert advanced.equal(state)
        for row in range(len(rows)):
            ends = (ids[row] == END).nonzero().flatten().tolist()
            begun = ids[row : row + 1, ends[-1] + 1 if ends else 0 :]
            expected = model(begun).state if begun.shape[1] else model.initial_state(1)
            assert torch.allclose(state[row : row + 1], expected, atol=1e-6)


def test_recall_proposes_no_token_of_another_text():
    ids = stream(texts())
    weights_BTKS = proposals(torch.zeros(len(ids), W), ids, since_BU=since_begin(ids == END))[1]
    for row, lengths in enumerate(LENGTHS):
        begin = 0
        for length in lengths:
            of_text = weights_BTKS[row, begin : begin + length]
            assert not of_text[..., : W + begin].any() and (length < 3 or of_text.any())
            begin += length


def test_a_masked_end_resets_nothing():
    model = new_model("deep")
    ids = stream(texts())[:, :20]
    masked, mask = ids.clone(), torch.ones_like(ids)
    masked[:, 10], mask[:, 10] = END, 0
    other = masked.clone()
    other[:, 10] = 5
    after = slice(11, None)  # a masked token is not read; at its own place the readout sees it
    found, expected = (model(each, attention_mask=mask).logits[:, after] for each in (masked, other))
    assert found.equal(expected)


def test_padding_on_the_left_with_the_end_token_changes_nothing():
    model, ids = new_model("deep"), stream(texts())
    padding = torch.full((len(ids), 7), END)
    mask = torch.cat((torch.zeros_like(padding), torch.ones_like(ids)), dim=1)
    with torch.no_grad():
        padded = model(torch.cat((padding, ids), dim=1), attention_mask=mask).logits[:, 7:]
        assert off(padded, model(ids).logits) < 1e-5


def test_a_batch_of_prompts_padded_on_the_left_tells_the_texts_that_each_tells_alone():
    model = new_model("mix")
    with torch.no_grad():
        model.head.bias[END] = -100.0
    prompts = [text[:, :length] for text, length in zip(texts()[0], (9, 4, 6), strict=False)]
    ids, mask = torch.full((3, 9), END), torch.zeros(3, 9, dtype=torch.int64)
    for row, prompt in enumerate(prompts):
        ids[row, 9 - prompt.shape[1] :] = prompt
        mask[row, 9 - prompt.shape[1] :] = 1
    options = {"max_new_tokens": 15, "do_sample": False}
    together = model.generate(ids, attention_mask=mask, **options)[:, 9:]
    for row, prompt in enumerate(prompts):
        assert together[row].equal(model.generate(prompt, **options)[0, prompt.shape[1] :])


def test_a_prompt_after_an_end_is_continued_as_it_is_alone():
    model, ids = new_model("mix"), texts()[0][2][:, :8]
    stale = torch.cat((texts()[1][0], ids), dim=1)
    options = {"max_new_tokens": 10, "do_sample": False}
    found, expected = model.generate(stale, **options), model.generate(ids, **options)
    assert found[:, stale.shape[1] :].equal(expected[:, ids.shape[1] :])


def test_token_dropout_hides_no_end():
    """Under a dropout that hides nearly every token, two states are one after an end, and not before."""
    model = new_model("deep", token_dropout=0.99).train()
    ids = torch.full((2, 12), 3)
    ids[:, 5] = END
    found = []
    for scale in (0.5, 1.0):
        torch.manual_seed(0)
        found.append(torch.cat(model.features(ids, torch.full((2, model.reservoirs.state_size), scale))[0], dim=-1))
    assert found[0][:, 6:].equal(found[1][:, 6:])
    assert not torch.isclose(found[0][:, 5], found[1][:, 5]).all(dim=-1).any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_stream_in_16_bits_carries_and_recalls_what_it_does_in_32(dtype):
    ids = stream(texts())
    (exact, exact_state), (found, state) = (
        in_pieces(new_model("deep").to(each), ids[:, :50], (13, 37)) for each in (torch.float32, dtype)
    )
    assert state.equal(exact_state) and state[:, -W:].any()
    assert off(found, exact) < 0.05


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers import xla
from tests import test_streams_model as tests

device = xla.start()
answers = {"error": {}, "compiles": [], "state": []}
rows = tests.texts()
for kind in tests.KINDS:
    for recall_tokens, cut in zip((0, tests.W), tests.CUTS):
        model = tests.new_model(kind, recall_tokens)
        expected = tests.alone(model, rows)
        model.to(device).tie_weights()
        found, state = tests.in_pieces(model, tests.stream(rows), cut, device)
        answers["error"][f"{kind}, recall {recall_tokens}, {cut}"] = tests.off(found, expected)
        answers["state"].append(bool(state.any()))
xla.replicate(model)
xla.sync()
for seed in range(3):  # other ends, the same graph
    order = torch.randperm(60, generator=torch.Generator().manual_seed(seed))
    ids = xla.shard_batch(tests.stream(rows)[:, order].repeat(3, 1)[:8].to(device))
    before = xla.counters()
    with torch.no_grad():
        output = model(ids)
    xla.sync()
    after = xla.counters()
    answers["compiles"].append([after[name] - before[name] for name in ("compiles", "host_transfers", "item_calls")])
    answers["sharded"] = xla.is_batch_sharded(output.logits) and xla.is_batch_sharded(output.state)
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla() -> dict:
    return answers_on_xla(ON_XLA)


def test_a_text_in_a_stream_on_xla_has_the_logits_that_it_has_alone(on_xla):
    assert len(on_xla["error"]) == 2 * len(KINDS)
    assert max(on_xla["error"].values()) < 1e-3, json.dumps(on_xla["error"], indent=1)
    assert not any(on_xla["state"])


def test_where_texts_end_is_no_part_of_the_graph_and_nothing_asks_the_device(on_xla):
    assert on_xla["compiles"][0][0] == 1 and on_xla["compiles"][1:] == [[0, 0, 0], [0, 0, 0]]
    assert on_xla["sharded"] is True
