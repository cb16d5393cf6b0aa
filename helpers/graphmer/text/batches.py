"""What a trainer takes: batches of leafy chains with the in-batch tails that are also true, and all sequences of a run in order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from transformers import PreTrainedTokenizerFast

from helpers.graphmer.text.chains import LeafyChains
from helpers.graphmer.text.masking import IGNORED
from helpers.graphmer.text.negatives import Relations
from helpers.graphmer.text.tokenizer import MASK, PAD, SEP
from helpers.graphmer.text.windows import stacked

# B batch · S roots · G leaves · L leaf tokens · M masked roots · U negatives · C tokens of an entity's text

AXES = {
    "root_ids": "BS",
    "root_segments": "BS",
    "root_positions": "BS",
    "leaf_ids": "BGL",
    "leaf_segments": "BG",
    "relation_ids": "BG",
    "head_start": "BG",
    "head_length": "BG",
    "mlm_positions": "BM",
    "mlm_labels": "BM",
    "mnm_labels": "BGL",
    "triple_labels": "BG",
    "tail_text_ids": "BGC",
    "tail_entities": "BG",
    "negative_text_ids": "BGUC",
    "known_BGX": "BGX",
    "head_text_ids": "BGC",
    "head_entities": "BG",
}


class LeafyChainCollator:
    """Stacks examples of `chains` into a batch of int64 tensors (float `triple_labels`, bool `known_BGX`).

    known_BGX [B, G, B·G]: in-batch tail x is also true for the head and relation of this leaf, so it is no wrong answer to
    it; False for the leaf itself, for what is no true leaf, and in its rows.
    """

    def __init__(self, chains: LeafyChains):
        self._known = chains.known

    def __call__(self, examples: Sequence[dict[str, np.ndarray]]) -> dict[str, torch.Tensor]:
        batch = stacked(examples)
        batch["known_BGX"] = self._known_tails(batch["head_entities"], batch["relation_ids"], batch["tail_entities"])
        return batch

    def _known_tails(self, heads_BG: torch.Tensor, relations_BG: torch.Tensor, tails_BG: torch.Tensor) -> torch.Tensor:
        heads, relations, tails = (values.flatten().tolist() for values in (heads_BG, relations_BG, tails_BG))
        places: dict[int, list[int]] = defaultdict(list)
        for x, tail in enumerate(tails):
            if tail >= 0:
                places[tail].append(x)
        known_XX = np.zeros((len(tails), len(tails)), dtype=bool)
        for x, tail in enumerate(tails):
            if tail >= 0:
                for other in places.keys() & self._known.of(heads[x], relations[x]):
                    known_XX[x, places[other]] = True
                known_XX[x, x] = False
        return torch.from_numpy(known_XX).view(*heads_BG.shape, len(tails))


def phase_steps(begins: Sequence[float], steps: int) -> tuple[int, ...]:
    """Optimizer steps in each phase of a run of `steps`, from the step that each begins with; 0 in one that is not reached.

    A begin below 1 is a share of the run.
    """
    begins = [round(begin * steps if begin < 1 else begin) for begin in begins]
    ends = (*begins[1:], max(steps, begins[-1]))
    return tuple(max(0, min(end, steps) - min(begin, steps)) for begin, end in zip(begins, ends, strict=True))


class CurriculumChains:
    """All sequences of a run of `steps`, in order: those of the first length, then those of the next.

    Give it to a trainer without shuffling (the order is drawn already) and for one epoch: sequence i is the same after a
    resume, and no batch has two lengths.

    chains: its documents are encoded for the longest roots at least; what it has is in every phase.
    begins, roots: optimizer step, or share of the run, that each phase begins with, and S in it.
    examples_per_step: sequences of an optimizer step, accumulation and all devices counted.
    """

    def __init__(
        self, chains: LeafyChains, begins: Sequence[float], roots: Sequence[int], *, steps: int, examples_per_step: int
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


class LeafText(NamedTuple):
    """A leaf of an example, to read; `start` is the root that it hangs at."""

    start: int
    head: str
    relation: str
    tail: str
    masked: bool
    truth: str  # "true" or "wrong" where the model is asked for that, else ""


def leaf_texts_of(
    example: dict[str, np.ndarray], tokenizer: PreTrainedTokenizerFast, relations: Relations
) -> list[LeafText]:
    """The leaves of an example without a batch axis."""
    found = []
    for leaf in np.flatnonzero(example["leaf_segments"]):
        start, length = int(example["head_start"][leaf]), int(example["head_length"][leaf])
        head = tokenizer.decode(example["root_ids"][start : start + length].tolist())
        labels_L = example["mnm_labels"][leaf]
        masked = bool((labels_L != IGNORED).any())
        ids_L = labels_L[labels_L != IGNORED] if masked else example["leaf_ids"][leaf]
        tail = tokenizer.decode([one for one in ids_L.tolist() if one not in (PAD, MASK, SEP)])
        truth = {1.0: "true", 0.0: "wrong"}.get(float(example["triple_labels"][leaf]), "")
        relation = relations.names[int(example["relation_ids"][leaf])]
        found.append(LeafText(start, head, relation, tail, masked, truth))
    return found


def chain_text(
    example: dict[str, np.ndarray], tokenizer: PreTrainedTokenizerFast, relations: Relations, *, roots: int = 120
) -> str:
    """The first `roots` roots of an example without a batch axis, then a line for each leaf."""
    lines = ["roots: " + tokenizer.decode(example["root_ids"][:roots].tolist()).replace("\n", "\n       ")]
    for one in leaf_texts_of(example, tokenizer, relations):
        tail = f"{'[MASK] was ' if one.masked else ''}{one.tail}"
        lines.append(f"leaf:  {one.head} --{one.relation}--> {tail}  {one.truth}".rstrip())
    return "\n".join(lines)
