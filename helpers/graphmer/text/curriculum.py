"""Short sequences first, longer ones later: which length belongs to which step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helpers.graphmer.text.chains import LeafyChains


def phase_steps(begins: Sequence[int], steps: int) -> tuple[int, ...]:
    """Optimizer steps in each phase of a run of `steps`, from the step that each begins with; 0 in one that is not reached."""
    ends = (*begins[1:], max(steps, begins[-1]))
    return tuple(max(0, min(end, steps) - min(begin, steps)) for begin, end in zip(begins, ends, strict=True))


class CurriculumChains:
    """All sequences of a run of `steps`, in order: those of the first length, then those of the next.

    Give it to a trainer without shuffling (the order is drawn already) and for one epoch: sequence i is the same after a
    resume, and no batch has two lengths.

    chains: its documents are encoded for the longest roots at least; what it has is in every phase.
    begins, roots: optimizer step that each phase begins with, and S in it.
    examples_per_step: sequences of an optimizer step, accumulation and all devices counted.
    """

    def __init__(
        self, chains: LeafyChains, begins: Sequence[int], roots: Sequence[int], *, steps: int, examples_per_step: int
    ):
        self.counts = [count * examples_per_step for count in phase_steps(begins, steps)]
        by_roots = {each: chains.with_roots(each) for each in set(roots)}
        self.phases = [by_roots[each] for each in roots]

    def __len__(self) -> int:
        return sum(self.counts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        if not 0 <= index < len(self):
            raise IndexError(index)
        for chains, count in zip(self.phases, self.counts, strict=True):
            if index < count:
                return chains[index]
            index -= count
        raise AssertionError
