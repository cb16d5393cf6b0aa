"""Short sequences first, longer ones later: which length belongs to which step, in few lengths that all compile once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from helpers.graphmer.chains import LeafyChains

MAX_LENGTHS = 4  # each one compiles anew on XLA


@dataclass(frozen=True)
class Curriculum:
    """From optimizer step `steps[i]` on a sequence has `roots[i]` roots.

    Raises ValueError: a schedule that does not begin at step 0 or does not go up in steps, more than four lengths, or one
    with no room for roots.
    """

    steps: tuple[int, ...]
    roots: tuple[int, ...]  # S

    def __post_init__(self):
        shown = f"schedule={list(zip(self.steps, self.roots, strict=True))}"
        if not self.steps or self.steps[0] != 0:
            raise ValueError(f"{shown}: must begin at step 0")
        if any(one >= other for one, other in pairwise(self.steps)):
            raise ValueError(f"{shown}: steps must go up")
        if len(set(self.roots)) > MAX_LENGTHS:
            raise ValueError(f"{shown}: at most {MAX_LENGTHS} lengths, each compiles anew on a TPU")
        if min(self.roots) < 1:
            raise ValueError(f"{shown}: the leaves leave no room for roots; give longer sequences or fewer leaves")

    @classmethod
    def read(
        cls, schedule: Sequence[tuple[int, int]], *, leaves: int, leaf_tokens: int, layout: str = "compact"
    ) -> Curriculum:
        """Of pairs (first step, tokens of a sequence with its leaf slots), as a configuration's `stages()` gives.

        Compact: what `leaves` leaves of `leaf_tokens` slots leave. Full: as many roots as fit with a leaf each.
        """
        full = layout == "full"
        roots = [length // (1 + leaf_tokens) if full else length - leaves * leaf_tokens for _, length in schedule]
        return cls(tuple(begin for begin, _ in schedule), tuple(roots))

    def phase_at(self, step: int) -> int:
        """Phase of optimizer step `step`, both from 0."""
        return sum(begin <= step for begin in self.steps) - 1

    def roots_at(self, step: int) -> int:
        return self.roots[self.phase_at(step)]

    def phase_steps(self, steps: int) -> tuple[int, ...]:
        """Optimizer steps in each phase of a run of `steps`; 0 in one that it does not reach."""
        ends = (*self.steps[1:], max(steps, self.steps[-1]))
        return tuple(max(0, min(end, steps) - min(begin, steps)) for begin, end in zip(self.steps, ends, strict=True))

    def examples(self, steps: int, examples_per_step: int) -> tuple[int, ...]:
        """Sequences in each phase. A step takes `examples_per_step`, accumulation and all devices counted."""
        return tuple(count * examples_per_step for count in self.phase_steps(steps))


class CurriculumChains:
    """All sequences of a run of `steps`, in order: those of the first length, then those of the next.

    Give it to a trainer without shuffling (the order is drawn already) and for one epoch: sequence i is the same after a
    resume, and no batch has two lengths.

    chains: its documents are encoded for the longest roots at least; what it has is in every phase.
    examples_per_step: sequences of an optimizer step, accumulation and all devices counted.
    """

    def __init__(self, chains: LeafyChains, curriculum: Curriculum, *, steps: int, examples_per_step: int):
        if steps < 1 or examples_per_step < 1:
            raise ValueError(f"steps={steps}, examples_per_step={examples_per_step}: must be at least 1")
        self.counts = curriculum.examples(steps, examples_per_step)
        by_roots = {roots: chains.with_roots(roots) for roots in set(curriculum.roots)}
        self.phases = [by_roots[roots] for roots in curriculum.roots]

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
