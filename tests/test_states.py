"""The state before each block, against one long text read from its beginning."""

import numpy as np
import pytest
import torch

from helpers.reservoir.blocks import TokenBlocks, states_before
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM

from .xla_process import answers_on_xla

V, T, END = 40, 8, 0
MIX = "delay:4 delays:3 + tanh:12 blocks:2 + linear:6 spectral_radius:0.99"


def model(**changes) -> ReservoirForCausalLM:
    sizes = {"embedding_size": 8, "readout_blocks": 1, "readout_size": 12, "recall_tokens": 10, "eos_token_id": END}
    made = ReservoirForCausalLM.initialise(ReservoirConfig(vocab_size=V, reservoirs=MIX, **sizes | changes), seed=0)
    with torch.no_grad():
        made.recall.bias.fill_(0.5)  # it is 0 in a new model
    return made


def text(blocks: int, ends: int | None = 30) -> np.ndarray:
    """Random tokens, an end of text after every `ends`."""
    tokens = np.random.default_rng(0).integers(1, V, size=blocks * T).astype(np.uint16)
    if ends:
        tokens[ends::ends] = END
    return tokens


@torch.no_grad()
def read_in_one(model: ReservoirForCausalLM, blocks: TokenBlocks) -> torch.Tensor:
    """States [N, S] before each block by the model's own forward, from the first token on, one block after the other."""
    state_1S, found = model.initial_state(1), []
    for ids_T in blocks.ids_BT:
        found.append(state_1S)
        ids_1T = torch.from_numpy(ids_T.astype(np.int64))[None]
        state_1S = model(input_ids=ids_1T, state=state_1S).state
    return torch.cat(found)


@pytest.mark.parametrize("washout", [64, 100])
@pytest.mark.parametrize("blocks", [1, 5, 100, 101, 203])
def test_states_are_those_of_the_whole_text_however_many_rows_read_it(monkeypatch, blocks, washout):
    monkeypatch.setattr("helpers.reservoir.blocks.WASHOUT", washout)  # two to six rows of them; an end of text lies in each washout
    made, cut = model().eval(), TokenBlocks(text(blocks), T)
    torch.testing.assert_close(torch.from_numpy(states_before(made, cut)), read_in_one(made, cut), rtol=1e-5, atol=1e-6)


def test_a_text_without_an_end_is_known_as_far_back_as_the_washout(monkeypatch):
    monkeypatch.setattr("helpers.reservoir.blocks.WASHOUT", 400)
    made, cut = model().eval(), TokenBlocks(text(600, ends=None), T)
    expected, found = read_in_one(made, cut), torch.from_numpy(states_before(made, cut))
    second = 200  # the first block of the second of three rows, which began 400 tokens earlier with nothing
    torch.testing.assert_close(found[:second], expected[:second], rtol=1e-5, atol=1e-6)
    difference = (found[second] - expected[second]).abs().max()
    assert 1e-6 < difference < 5 * 0.99**400  # it is forgotten at the rate of the slowest unit


def test_a_block_with_its_state_is_predicted_as_in_the_whole_text():
    made, cut = model().eval(), TokenBlocks(text(6), T)
    ids_1L = torch.from_numpy(cut.ids_BT.reshape(1, -1).astype(np.int64))
    cut.states_BS = states_before(made, cut)
    batch = torch.utils.data.default_collate([cut[index] for index in range(6)])
    assert batch["state"].dtype == torch.float32
    with torch.no_grad():
        whole = made(input_ids=ids_1L).logits.view(6, T, V)
        found = made(input_ids=batch["input_ids"], state=batch["state"]).logits
        alone = made(input_ids=batch["input_ids"]).logits
    torch.testing.assert_close(found, whole, rtol=1e-4, atol=1e-5)
    assert (alone[1:] - whole[1:]).abs().amax(dim=(1, 2)).min() > 0.01


def test_states_are_without_dropped_tokens_and_leave_the_model_in_training():
    made, cut = model(token_dropout=0.5), TokenBlocks(text(20), T)
    found = states_before(made.train(), cut)
    assert made.training
    np.testing.assert_array_equal(found, states_before(made.eval(), cut))


def test_blocks_come_with_their_states_from_other_processes_too():
    made, cut = model(), TokenBlocks(text(8), T)
    cut.states_BS = states_before(made, cut)
    (here,), (there,) = (torch.utils.data.DataLoader(cut, batch_size=8, num_workers=count) for count in (0, 1))
    assert torch.equal(here["state"], there["state"]) and torch.equal(here["state"], torch.from_numpy(cut.states_BS))


ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers import xla
from helpers.reservoir.blocks import TokenBlocks, states_before
from tests.test_states import T, model, text
device, cut = xla.start(), TokenBlocks(text(60), T)
expected, found = states_before(model(), cut), states_before(model().to(device), cut)
print("ANSWERS " + json.dumps({"difference": float(abs(found - expected).max()), "largest": float(abs(expected).max())}))
"""


def test_states_on_xla_are_the_cpus():
    answers = answers_on_xla(ON_XLA, devices=8)
    assert answers["difference"] < 1e-4 * answers["largest"]
