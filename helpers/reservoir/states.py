"""The state of the model before each block of a text, computed once.

A reservoir is never trained, so the state before a block is the same in every epoch. With it a block is read as if all of
the text before it had been, and blocks can still be shuffled.
"""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

import numpy as np
import torch

from .blocks import TokenBlocks

if TYPE_CHECKING:
    from .model import ReservoirForCausalLM

# N blocks · R rows that are read at once · T tokens of a block · S state floats

ROWS = 64  # at most
WASHOUT = 1024  # tokens at least, that a row reads before its first block


@torch.no_grad()
def states_before(model: ReservoirForCausalLM, blocks: TokenBlocks) -> np.ndarray:
    """States [N, S] in fp32, on disk as long as the array lives: 12 kB a block at the default sizes.

    The text is read in at most 64 rows at once, each from 1,024 tokens or more before its first block: exact where a text
    ended among those (`ReservoirConfig.reset_at_end`), and else within what the reservoirs remember of what came before.
    """
    ids_NT, length = blocks.ids_BT, blocks.sequence_length
    warm = -(-WASHOUT // length)
    rows = max(
        1, min(ROWS, len(ids_NT) // (4 * warm))
    )  # where it is short, few: each row reads the washout beside its own
    own = -(-len(ids_NT) // rows)
    state_RS = model.initial_state(rows)
    with tempfile.TemporaryFile() as file:  # it is on the disk until the array is gone
        states_NS = np.memmap(file, np.float32, "w+", shape=(len(ids_NT), state_RS.shape[1]))
    was_training = model.training
    model.eval()
    for step in range(-warm, own):
        places_R = np.arange(rows) * own + step
        inside_R = (places_R >= 0) & (places_R < len(ids_NT))
        if step >= 0:
            states_NS[places_R[inside_R]] = state_RS.float().cpu().numpy()[inside_R]
        ids_RT = torch.from_numpy(ids_NT[places_R.clip(0, len(ids_NT) - 1)].astype(np.int64)).to(model.device)
        begun_R1 = torch.from_numpy(places_R >= 0)[:, None].to(model.device)  # before the text there is nothing
        state_RS = model.advance(ids_RT, state_RS) * begun_R1
    model.train(was_training)
    return states_NS
