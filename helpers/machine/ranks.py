"""The processes of one run, numbered by rank: exchanging values and waiting for each other.

A process that is alone gets back what it gave. Values go over the CPU (gloo), even if gradients go over NCCL, so that an
exchange at every step does not make a GPU wait.
"""

import os
from typing import Any


def count() -> int:
    """The number of processes; WORLD_SIZE counts only if a launcher has set LOCAL_RANK as well."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def rank() -> int:
    """The number of this process, from 0."""
    return int(os.environ.get("RANK", "0")) if count() > 1 else 0


def local() -> int:
    """Which of the GPUs that this process sees is its own."""
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    """Whether this process is the one that writes, prints and draws."""
    return rank() == 0


def gather(value: Any) -> list[Any]:
    """What each process gave, by rank. All processes must call this and the next function."""
    values = [value] * count()
    if len(values) > 1:
        import torch

        # One group for both kinds of exchange: objects over gloo, CUDA tensors over NCCL. Joined before accelerate would join.
        if not torch.distributed.is_initialized():
            backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
            torch.distributed.init_process_group(backend)
        torch.distributed.all_gather_object(values, value)
    return values


def broadcast(value: Any) -> Any:
    """What process 0 gave."""
    return gather(value if is_main() else None)[0]
