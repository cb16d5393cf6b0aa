"""Counts of short phrases beside a trained model: interpolated modified Kneser-Ney with a cache, which learns on in a second.

    P(c | context) = (count(context c) - D) / count(context) + weight(context) P(c | shorter context)

down to 1 / V (Chen and Goodman, Computer Speech and Language 13, 1999, section 3). The counts of all but the longest phrases are
numbers of different tokens seen before them. The cache is the share of a token in the present text (Kuhn and De Mori 1990).

# V vocabulary · P tokens of a stream · R rows · L tokens of a row
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers import LogitsProcessor
from transformers.utils import cached_file

COUNTS_FILE = "counts.safetensors"
LONGEST = 5  # tokens of a phrase, where a phrase fits 63 bits
MOST_TOKENS = 20_000_000  # bounds time (a sort) and memory (under 2 GB)
MOST_LEARNED = 100_000  # tokens at a time: under a second


class Phrases:
    """The distinct phrases of one length, as sorted codes (context times V plus token), and how often each was counted."""

    def __init__(self, codes: np.ndarray, counts: np.ndarray):
        self.codes, self.counts = codes, counts
        self.discounts = _discounts(counts)
        before = np.zeros(len(codes) + 1)
        self.count_before, self.discount_before = before.copy(), before
        np.cumsum(counts, out=self.count_before[1:])
        np.cumsum(self.discounts[np.minimum(counts, 3)], out=self.discount_before[1:])

    def add(self, codes: np.ndarray, counts: np.ndarray) -> tuple[Phrases, np.ndarray]:
        """These and further sorted phrases together, and the codes of those that were not there before."""
        place = np.searchsorted(self.codes, codes)
        known = np.zeros(len(codes), dtype=bool)
        inside = place < len(self.codes)
        known[inside] = self.codes[place[inside]] == codes[inside]
        added = self.counts.copy()
        added[place[known]] += counts[known]
        new = ~known
        return Phrases(np.insert(self.codes, place[new], codes[new]), np.insert(added, place[new], counts[new])), codes[
            new
        ]

    def within(self, contexts, vocab_size: int):
        """First and last place of the phrases that begin with each context."""
        return np.searchsorted(self.codes, contexts * vocab_size), np.searchsorted(
            self.codes, (contexts + 1) * vocab_size
        )

    def back_off(self, first, last):
        """The count of a context, and the weight of the shorter one: 1 where the context is unknown."""
        total = self.count_before[last] - self.count_before[first]
        freed = self.discount_before[last] - self.discount_before[first]
        return total, np.where(total > 0, freed / np.maximum(total, 1), 1.0)


def _discounts(counts: np.ndarray) -> np.ndarray:
    """(0, D1, D2, D3+) from how many phrases occur once to four times (Chen and Goodman 1999, equation 17).

    Where a small text does not give them, n1 / (n1 + 2 n2) for every count (Ney, Essen and Kneser 1994), or else 1/2.
    """
    n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=5)[1:5].tolist()
    single = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    if n1 and n2 and n3 and n4:
        discounts = np.array([0.0, single, 2 - 3 * single * n3 / n2, 3 - 4 * single * n4 / n3])
        if (discounts[1:] > 0).all():
            return discounts
    return np.array([0.0, single, single, single])


class Counts:
    """Phrases of one to `order` tokens. A text begins as if after the token that ends texts, and no phrase crosses its end."""

    def __init__(self, vocab_size: int, end: int, levels: list[Phrases]):
        self.vocab_size, self.end, self.levels = vocab_size, end, levels

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, end: int, order: int = LONGEST) -> Counts:
        """Of a stream of texts, each followed by the token `end`. At most the first 20 million tokens are counted.

        A vocabulary whose phrases of `order` tokens do not fit 63 bits takes shorter ones.
        """
        while vocab_size**order >= 2**63:
            order -= 1
        nothing = np.zeros(0, dtype=np.int64)
        empty = cls(vocab_size, end, [Phrases(nothing, nothing) for _ in range(order)])
        return empty._counted(tokens[:MOST_TOKENS])

    def learn(self, tokens: np.ndarray) -> None:
        """Adds a stream of texts, as if it had been counted with all others. No old text is needed.

        Raises ValueError for no tokens, more than 100,000, or ids outside the vocabulary.
        """
        tokens = np.asarray(tokens).ravel()
        if not 0 < len(tokens) <= MOST_LEARNED:
            raise ValueError(f"tokens: {len(tokens)} were given; learn 1 to {MOST_LEARNED:,} at a time")
        if tokens.min() < 0 or tokens.max() >= self.vocab_size:
            raise ValueError(
                f"tokens: ids from {tokens.min()} to {tokens.max()}; they must be in [0, {self.vocab_size})"
            )
        self.levels = self._counted(tokens).levels

    def _counted(self, tokens: np.ndarray) -> Counts:
        codes = self._contexts(tokens, len(self.levels) - 1) * self.vocab_size + tokens.astype(np.int64)
        codes, counts = np.unique(codes, return_counts=True)
        levels = []
        for length in range(len(self.levels), 0, -1):
            phrases, new = self.levels[length - 1].add(codes, counts)
            levels.insert(0, phrases)
            # A shorter phrase counts once for each different token before it: for each new longer phrase.
            codes, counts = np.unique(new % self.vocab_size ** (length - 1), return_counts=True)
        return Counts(self.vocab_size, self.end, levels)

    def _contexts(self, tokens: np.ndarray, length: int) -> np.ndarray:
        """The code of the `length` tokens before each token of a stream; before a text there is `end` only."""
        tokens = tokens.astype(np.int64)
        place_P = np.arange(len(tokens))
        begin_P = np.maximum.accumulate(np.where(np.append(True, tokens[:-1] == self.end), place_P, 0))
        codes_P = np.zeros(len(tokens), dtype=np.int64)
        for back in range(length, 0, -1):
            there = place_P - back >= begin_P
            before_P = np.where(there, tokens[np.maximum(place_P - back, 0)], self.end)
            codes_P = codes_P * self.vocab_size + before_P
        return codes_P

    def probability(self, tokens: np.ndarray) -> np.ndarray:
        """P of each token of a stream of texts after those before it, without the cache [P]."""
        context_P = self._contexts(tokens, len(self.levels) - 1)
        found_P = np.full(len(tokens), 1 / self.vocab_size)
        for length, phrases in enumerate(self.levels):
            codes_P = context_P % self.vocab_size**length
            total_P, weight_P = phrases.back_off(*phrases.within(codes_P, self.vocab_size))
            codes_P = codes_P * self.vocab_size + tokens.astype(np.int64)
            place_P = np.searchsorted(phrases.codes, codes_P).clip(max=len(phrases.codes) - 1)
            counts_P = np.where(phrases.codes[place_P] == codes_P, phrases.counts[place_P], 0)
            share_P = (counts_P - phrases.discounts[np.minimum(counts_P, 3)]) / np.maximum(total_P, 1)
            found_P = share_P + weight_P * found_P
        return found_P

    def in_cache(self, tokens: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The share of each token of a stream among those of its text before it [P], and whether there are any [P]."""
        ended_P = np.concatenate(([0], np.cumsum(tokens[:-1] == self.end)))
        place_P = np.arange(len(tokens))
        seen_P = place_P - np.searchsorted(ended_P, ended_P)
        order = np.lexsort((place_P, tokens, ended_P))
        key = ended_P[order] * self.vocab_size + tokens[order].astype(np.int64)
        earlier_P = np.empty(len(tokens), dtype=np.int64)
        earlier_P[order] = place_P - np.searchsorted(key, key)
        return earlier_P / np.maximum(seen_P, 1), seen_P > 0

    def with_cache(self, tokens: np.ndarray, cache_weight: float) -> np.ndarray:
        """P of each token of a stream of texts, of which `cache_weight` belongs to the cache [P]."""
        share_P, any_P = self.in_cache(tokens)
        cached_P = cache_weight * any_P
        return (1 - cached_P) * self.probability(tokens) + cached_P * share_P

    def distribution(self, text: np.ndarray, cache_weight: float) -> np.ndarray:
        """P of every token after `text`, the tokens of one text so far [V]."""
        V, longest = self.vocab_size, len(self.levels) - 1
        before = np.concatenate((np.full(longest, self.end), text.astype(np.int64)))
        found_V, code = np.full(V, 1 / V), 0
        for length, phrases in enumerate(self.levels):
            if length:
                code += int(before[-length]) * V ** (length - 1)
            first, last = phrases.within(code, V)
            total, weight = phrases.back_off(first, last)
            found_V *= weight
            counts = phrases.counts[first:last]
            found_V[phrases.codes[first:last] - code * V] += (counts - phrases.discounts[np.minimum(counts, 3)]) / max(
                total, 1
            )
        if len(text) and cache_weight:
            found_V = (1 - cache_weight) * found_V + cache_weight * np.bincount(text, minlength=V) / len(text)
        return found_V

    def save(self, path: Path) -> None:
        tensors = {"end": np.array([self.end]), "vocab_size": np.array([self.vocab_size])}
        for length, phrases in enumerate(self.levels, start=1):
            tensors |= {f"codes_{length}": phrases.codes, f"counts_{length}": phrases.counts}
        save_file(tensors, path)

    @classmethod
    def load(cls, path: Path) -> Counts:
        tensors = load_file(path)
        order = sum(name.startswith("codes_") for name in tensors)
        levels = [Phrases(tensors[f"codes_{n}"], tensors[f"counts_{n}"]) for n in range(1, order + 1)]
        return cls(int(tensors["vocab_size"][0]), int(tensors["end"][0]), levels)


class MixInCounts(LogitsProcessor):
    """Scores of (1 - weight) P_model + weight P_counts, from the scores of the model."""

    def __init__(self, counts: Counts, weight: float, cache_weight: float):
        self.counts, self.weight, self.cache_weight = counts, weight, cache_weight

    def __call__(self, input_ids, scores):
        rows_RL = input_ids.cpu().numpy()
        counted_RV = np.stack(
            [self.counts.distribution(self._present_text(row_L), self.cache_weight) for row_L in rows_RL]
        )
        counted_RV = torch.from_numpy(counted_RV).to(scores)
        return ((1 - self.weight) * scores.softmax(-1) + self.weight * counted_RV).log()

    def _present_text(self, row_L: np.ndarray) -> np.ndarray:
        """The tokens after the last one that ends a text; padding on the left is such a token too."""
        ends = np.flatnonzero(row_L == self.counts.end)
        return row_L[ends[-1] + 1 :] if len(ends) else row_L


class WithCounts:
    """What a causal language model of transformers gains by `counts`: generation, learning on, and a saved copy of both."""

    counts: Counts | None = None

    def generate(self, *args, logits_processor=None, **kwargs):
        """As in transformers, with the counts mixed in at the weights that the configuration holds."""
        processors = [*(logits_processor or [])]
        if self.counts is not None and self.config.counts_weight:
            processors.append(MixInCounts(self.counts, self.config.counts_weight, self.config.cache_weight))
        return super().generate(*args, logits_processor=processors, **kwargs)

    def learn(self, input_ids) -> None:
        """Learns a text [1, T] or [T] by adding it to the counts. Raises ValueError as `Counts.learn`, and without counts."""
        if self.counts is None:
            raise ValueError("learn: this model has no counts; set model.counts = Counts.fit(tokens, vocab_size, end)")
        self.counts.learn(np.asarray(input_ids))

    def save_pretrained(self, save_directory, **kwargs):
        """As in transformers; the folder also holds the counts and the code, for `trust_remote_code=True`."""
        folder, name = Path(save_directory), type(self).__name__
        auto_classes = {"AutoConfig": type(self.config).__name__, "AutoModelForCausalLM": name}
        self.config.auto_map = {auto: f"model.{found}" for auto, found in auto_classes.items()}
        super().save_pretrained(folder, **kwargs)
        ours = Path(sys.modules[type(self).__module__].__file__), Path(__file__), Path(__file__).with_name("scan.py")
        for source, name in zip(ours, ("model.py", "counts.py", "scan.py"), strict=True):
            if source.resolve() != (folder / name).resolve():
                shutil.copyfile(source, folder / name)
        if self.counts is not None:
            self.counts.save(folder / COUNTS_FILE)

    @classmethod
    def from_pretrained(cls, name_or_path, *args, **kwargs):
        """As in transformers, counts included."""
        hub = {key: kwargs[key] for key in ("cache_dir", "revision", "subfolder", "token") if kwargs.get(key)}
        found = super().from_pretrained(name_or_path, *args, **kwargs)
        path = cached_file(name_or_path, COUNTS_FILE, _raise_exceptions_for_missing_entries=False, **hub)
        model = found[0] if isinstance(found, tuple) else found
        model.counts = Counts.load(path) if path else None
        return found
