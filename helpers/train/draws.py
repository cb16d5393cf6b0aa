"""Random draws of the data pipeline that depend only on the place in the run, so that a resume repeats them.

A loader fetches ahead, in worker processes, and skips what was trained on before a resume, so seeding at each step would
reach the wrong batch. Therefore every batch is seeded from its own place, just before it is fetched and
collated; a collator may draw from `random`, numpy and torch.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from accelerate.data_loader import SeedableRandomSampler
from torch.utils.data import Dataset, RandomSampler, Sampler


def seed_generators(*entropy: int) -> int:
    """Seeds `random`, numpy and torch on the CPU from these numbers, and returns the seed."""
    value = int(np.random.SeedSequence(entropy).generate_state(1)[0])
    random.seed(value)
    np.random.seed(value)
    torch.default_generator.manual_seed(value)
    return value


class Place(NamedTuple):
    """An example's index in the data set, and its place in the run: the epoch and the position in it."""

    index: int
    epoch: int
    position: int


class PlaceSampler(Sampler):
    """The indices of another sampler as `Place`s; a `RandomSampler` shuffles every epoch from `seed` and its number."""

    def __init__(self, sampler: Sampler, seed: int):
        if isinstance(sampler, RandomSampler):  # as accelerate would replace it
            sampler = SeedableRandomSampler(sampler.data_source, num_samples=sampler.num_samples, data_seed=seed)
        self.sampler, self.seed, self.epoch = sampler, seed, 0

    def __len__(self) -> int:
        return len(self.sampler)

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch
        if hasattr(self.sampler, "set_epoch"):
            self.sampler.set_epoch(epoch)

    def __iter__(self) -> Iterator[Place]:
        seed_generators(self.seed, self.epoch)  # for a sampler without a generator of its own
        for position, index in enumerate(self.sampler):
            yield Place(index, self.epoch, position)


class SeededByPlace(Dataset):
    """A data set read by `Place`s; the generators are seeded from the first of a batch before it is fetched."""

    def __init__(self, dataset: Dataset, seed: int):
        self.dataset, self.seed = dataset, seed

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitems__(self, places: Sequence[Place]) -> list:
        seed_generators(self.seed, *places[0][1:])
        indices = [place.index for place in places]
        fetch = getattr(self.dataset, "__getitems__", None)
        return fetch(indices) if fetch else [self.dataset[index] for index in indices]
