"""Fixed-length blocks of the tokens of a text, the bytes that they stand for, and the state of the model before each.

A reservoir is never trained, so the state before a block is the same in every epoch, and is computed once. With it a block is
read as if all of the text before it had been, and blocks can still be shuffled.
"""

from __future__ import annotations

import math
import tempfile
from typing import TYPE_CHECKING

import numpy as np
import torch

if TYPE_CHECKING:
    from .model import ReservoirForCausalLM

# V vocabulary · B blocks · T tokens of a block · R rows that are read at once · S state floats

ROWS = 64  # at most
WASHOUT = 1024  # tokens at least, that a row reads before its first block


class TokenBlocks(torch.utils.data.Dataset):
    """Consecutive blocks of T tokens that do not overlap; the tail is dropped. Labels are the inputs: models shift.

    max_blocks: the first ones only. multiple_of: as many as make whole batches. states_BS: where it is set, each block comes
    with the state of the model before it (`states_before`). Raises ValueError where no block is left.
    """

    def __init__(
        self, tokens: np.ndarray, sequence_length: int, max_blocks: int | None = None, multiple_of: int = 1
    ) -> None:
        count = len(tokens) // sequence_length
        count = count if max_blocks is None else min(count, max_blocks)
        whole = count - count % multiple_of
        if whole == 0:
            raise ValueError(
                f"sequence_length={sequence_length}, batch_size={multiple_of}, max_blocks={max_blocks}: "
                f"{len(tokens)} tokens make {count} blocks, not one batch; "
                "use more stories, a smaller sequence_length or a smaller batch_size"
            )
        self.sequence_length = sequence_length
        self.ids_BT = tokens[: whole * sequence_length].reshape(whole, sequence_length)
        self.states_BS: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.ids_BT)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids_T = torch.from_numpy(self.ids_BT[index].astype(np.int64))
        carried = {} if self.states_BS is None else {"state": torch.from_numpy(np.array(self.states_BS[index]))}
        return {"input_ids": ids_T, "labels": ids_T.clone(), **carried}


def bits_per_byte(mean_nats_per_token: float, blocks: TokenBlocks, token_bytes: np.ndarray) -> float:
    """Cross-entropy per byte of text, which unlike nats per token compares models of different tokenisers.

    Predicted are all tokens but the first of each block.
    """
    predicted_BT = blocks.ids_BT[:, 1:]
    return mean_nats_per_token * predicted_BT.size / math.log(2) / int(token_bytes[predicted_BT].sum())


@torch.no_grad()
def states_before(model: ReservoirForCausalLM, blocks: TokenBlocks) -> np.ndarray:
    """States [B, S] in fp32, on disk as long as the array lives: 12 kB a block at the default sizes.

    The text is read in at most 64 rows at once, each from 1,024 tokens or more before its first block: exact where a text
    ended among those (`ReservoirConfig.reset_at_end`), and else within what the reservoirs remember of what came before.
    """
    ids_BT, length = blocks.ids_BT, blocks.sequence_length
    warm = -(-WASHOUT // length)
    # Of a short text few: each row reads the washout beside its own blocks.
    rows = max(1, min(ROWS, len(ids_BT) // (4 * warm)))
    own = -(-len(ids_BT) // rows)
    state_RS = torch.zeros(rows, model.config.units + model.config.recall_tokens, device=model.device)
    with tempfile.TemporaryFile() as file:  # it is on the disk until the array is gone
        states_BS = np.memmap(file, np.float32, "w+", shape=(len(ids_BT), state_RS.shape[1]))
    was_training = model.training
    model.eval()
    for step in range(-warm, own):
        places_R = np.arange(rows) * own + step
        inside_R = (places_R >= 0) & (places_R < len(ids_BT))
        if step >= 0:
            states_BS[places_R[inside_R]] = state_RS.float().cpu().numpy()[inside_R]
        ids_RT = torch.from_numpy(ids_BT[places_R.clip(0, len(ids_BT) - 1)].astype(np.int64)).to(model.device)
        begun_R1 = torch.from_numpy(places_R >= 0)[:, None].to(model.device)  # before the text there is nothing
        state_RS = model.read(ids_RT, state_RS)[-1] * begun_R1
    model.train(was_training)
    return states_BS
