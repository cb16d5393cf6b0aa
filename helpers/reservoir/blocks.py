"""Fixed-length blocks of the tokens of a text, and the bytes of text that they stand for.

# V vocabulary · B blocks · T tokens in a block
"""

import math
from collections.abc import Iterator

import numpy as np
import torch


class TokenBlocks(torch.utils.data.Dataset):
    """Consecutive blocks of T tokens that do not overlap; the tail is dropped. Labels are the inputs: models shift.

    max_blocks: the first ones only. multiple_of: as many as make whole batches. states_BS: where it is set, each block comes
    with the state of the model before it (`states.py`). Raises ValueError where no block is left.
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

    def arrays(self, rows: int = 1024) -> Iterator[np.ndarray]:
        """All blocks in order, int64 [<= rows, T]."""
        for start in range(0, len(self), rows):
            yield self.ids_BT[start : start + rows].astype(np.int64)


def scored_bytes(blocks: TokenBlocks, token_bytes: np.ndarray) -> int:
    """UTF-8 bytes of the tokens that are predicted: all but the first of each block."""
    return sum(int(token_bytes[ids_BT[:, 1:]].sum()) for ids_BT in blocks.arrays())


def bits_per_byte(mean_nats_per_token: float, blocks: TokenBlocks, token_bytes: np.ndarray) -> float:
    """Cross-entropy per byte of text, which unlike nats per token compares models of different tokenisers."""
    predicted = len(blocks) * (blocks.sequence_length - 1)
    return mean_nats_per_token * predicted / math.log(2) / scored_bytes(blocks, token_bytes)
