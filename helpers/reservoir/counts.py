"""Counts of short phrases, to be mixed with a trained model: interpolated modified Kneser-Ney smoothing with a cache.

    P(c | context) = (count(context c) - D) / count(context) + weight(context) P(c | shorter context)

down to 1 / V (Chen and Goodman, Computer Speech and Language 13, 1999, section 3). The longest phrases
are counted as often as they occur, and a shorter phrase once for each different token before it. The cache is the share of a
token in the present text (Kuhn and De Mori 1990). A further text is learned by counting it, in under a second.

# V vocabulary · P tokens of a stream · C weights of the cache · R rows · L tokens of a row
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file
from transformers.utils import cached_file

COUNTS_FILE = "counts.safetensors"
LONGEST = 5  # tokens of a phrase, where a phrase fits 63 bits
MOST_TOKENS = 20_000_000  # bounds time (a sort) and memory (under 2 GB)
MOST_LEARNED = 100_000  # tokens at a time: under a second


class Phrases:
    """The distinct phrases of one length, as sorted codes (context times V plus token), and how often each was counted."""

    def __init__(self, codes: np.ndarray, counts: np.ndarray):
        self.codes, self.counts, self.discounts = codes, counts, _discounts(counts)
        # Sums over all phrases before a place: a context's phrases lie side by side.
        self.count_sums, self.discount_sums = (
            np.append(0.0, np.cumsum(each)) for each in (counts, self.discounts[np.minimum(counts, 3)])
        )

    def add(self, codes: np.ndarray, counts: np.ndarray) -> tuple[Phrases, np.ndarray]:
        """These and further sorted phrases together, and the codes of those that were not there before."""
        place = np.searchsorted(self.codes, codes)
        known = np.append(self.codes, -1)[place] == codes  # -1 is no phrase
        added = self.counts.copy()
        added[place[known]] += counts[known]
        place, codes, counts = (each[~known] for each in (place, codes, counts))
        return Phrases(np.insert(self.codes, place, codes), np.insert(added, place, counts)), codes


def _discounts(counts: np.ndarray) -> np.ndarray:
    """(0, D1, D2, D3+) from how many phrases occur once to four times (Chen and Goodman 1999, equation 17).

    Where a small text does not give them, n1 / (n1 + 2 n2) for every count (Ney, Essen and Kneser 1994), or else 1/2.
    """
    n1, n2, n3, n4 = np.bincount(np.minimum(counts, 5), minlength=5)[1:5].tolist()
    single = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    several = (2 - 3 * single * n3 / n2, 3 - 4 * single * n4 / n3) if n1 and n2 and n3 and n4 else (0, 0)
    return np.array([0, single, *(several if min(several) > 0 else (single, single))])


class Counts:
    """Phrases of one to `order` tokens. A text begins as if after the token that ends texts, and no phrase crosses its end."""

    def __init__(self, vocab_size: int, end: int, levels: list[Phrases]):
        self.vocab_size, self.end, self.levels = vocab_size, end, levels

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, end: int, order: int = LONGEST) -> Counts:
        """Counts a stream of texts, each followed by the token `end`: at most its first 20 million tokens.

        A vocabulary whose phrases of `order` tokens do not fit 63 bits takes shorter ones.
        """
        while vocab_size**order >= 2**63:
            order -= 1
        nothing = np.zeros(0, dtype=np.int64)
        empty = cls(vocab_size, end, [Phrases(nothing, nothing) for _ in range(order)])
        return empty._counted(tokens[:MOST_TOKENS])

    def learn(self, tokens: np.ndarray) -> None:
        """Adds a stream of texts, as if it had been counted together with all others. The old texts are not needed.

        Raises ValueError for no tokens, more than 100,000, or ids outside the vocabulary.
        """
        tokens = np.asarray(tokens).ravel()
        outside = int(((tokens < 0) | (tokens >= self.vocab_size)).sum())
        if outside or not 0 < len(tokens) <= MOST_LEARNED:
            raise ValueError(
                f"tokens: {len(tokens)} were given, {outside} of them outside the vocabulary; "
                f"learn 1 to {MOST_LEARNED:,} at a time, each in [0, {self.vocab_size})"
            )
        self.levels = self._counted(tokens).levels

    def _counted(self, tokens: np.ndarray) -> Counts:
        codes, counts = np.unique(self._contexts(tokens) * self.vocab_size + tokens, return_counts=True)
        levels = []
        for length in range(len(self.levels), 0, -1):
            phrases, new = self.levels[length - 1].add(codes, counts)
            levels.insert(0, phrases)
            # A shorter phrase counts once for each different token before it: for each new longer phrase.
            codes, counts = np.unique(new % self.vocab_size ** (length - 1), return_counts=True)
        return Counts(self.vocab_size, self.end, levels)

    def _contexts(self, tokens: np.ndarray) -> np.ndarray:
        """The code of the tokens before each token of a stream that a longest phrase holds [P]; before a text there is `end` only."""
        begins_P = np.append(True, tokens[:-1] == self.end)
        before_P, codes_P = tokens.astype(np.int64), np.zeros(len(tokens), dtype=np.int64)
        for back in range(len(self.levels) - 1):
            before_P = np.where(begins_P, self.end, np.append(self.end, before_P[:-1]))
            codes_P += before_P * self.vocab_size**back
        return codes_P

    def _texts(self, tokens: np.ndarray) -> list[np.ndarray]:
        """The texts of a stream; the last one has not ended, and may be empty."""
        return np.split(tokens, np.flatnonzero(tokens == self.end) + 1)

    def _after(self, context_P: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """P of each token after its context, or after the only context, without the cache [P]."""
        V = self.vocab_size
        found_P = np.full(len(tokens), 1 / V)
        for length, phrases in enumerate(self.levels):
            shorter_P = context_P % V**length
            first_P, last_P = (np.searchsorted(phrases.codes, (shorter_P + more) * V) for more in (0, 1))
            total_P, freed_P = (sums[last_P] - sums[first_P] for sums in (phrases.count_sums, phrases.discount_sums))
            codes_P = shorter_P * V + tokens
            place_P = np.searchsorted(phrases.codes, codes_P).clip(max=len(phrases.codes) - 1)
            counts_P = phrases.counts[place_P] * (phrases.codes[place_P] == codes_P)
            share_P = (counts_P - phrases.discounts[np.minimum(counts_P, 3)]) / np.maximum(total_P, 1)
            # An unknown context leaves everything to the shorter one.
            found_P = share_P + np.where(total_P > 0, freed_P / np.maximum(total_P, 1), 1.0) * found_P
        return found_P

    def with_cache(self, tokens: np.ndarray, cache_weight) -> np.ndarray:
        """P of each token of a stream of texts after those of its text before it [P].

        cache_weight: how much of P belongs to the cache, from a text's second token on. Weights [C, 1] give [C, P].
        """
        shares = []
        for text in self._texts(tokens):
            seen = Counter()
            for place, token in enumerate(text.tolist()):
                shares.append(seen[token] / max(place, 1))
                seen[token] += 1
        cached_P = cache_weight * np.append(False, tokens[:-1] != self.end)
        return (1 - cached_P) * self._after(self._contexts(tokens), tokens) + cached_P * shares

    def distribution(self, tokens: np.ndarray, cache_weight: float) -> np.ndarray:
        """P of every token after a stream, of whose last text the cache is [V]."""
        V, text = self.vocab_size, self._texts(tokens)[-1]
        found_V = self._after(self._contexts(np.append(text, self.end))[-1:], np.arange(V))
        if len(text):
            found_V = (1 - cache_weight) * found_V + cache_weight * np.bincount(text, minlength=V) / len(text)
        return found_V

    def save(self, path: Path) -> None:
        tensors = {"vocab_size_and_end": np.array([self.vocab_size, self.end])}
        for length, phrases in enumerate(self.levels, start=1):
            tensors |= {f"codes_{length}": phrases.codes, f"counts_{length}": phrases.counts}
        save_file(tensors, path)

    @classmethod
    def load(cls, path: Path) -> Counts:
        tensors = load_file(path)
        vocab_size, end = tensors.pop("vocab_size_and_end").tolist()
        lengths = range(1, len(tensors) // 2 + 1)
        return cls(vocab_size, end, [Phrases(tensors[f"codes_{n}"], tensors[f"counts_{n}"]) for n in lengths])


class WithCounts:
    """What a causal language model of transformers gains by `counts`: generation, learning on, and a saved copy of both."""

    counts: Counts | None = None

    def generate(self, *args, logits_processor=None, **kwargs):
        """As in transformers, with the counts mixed in at the weights that the configuration holds."""
        processors = [*(logits_processor or []), *([self.mix_in_counts] if self.counts else [])]
        return super().generate(*args, logits_processor=processors, **kwargs)

    def mix_in_counts(self, input_ids, scores):
        """A logits processor: scores of (1 - w) P_model + w P_counts, from the scores of the model."""
        # Padding on the left is the token that ends texts, too.
        rows = [self.counts.distribution(row_L, self.config.cache_weight) for row_L in input_ids.cpu().numpy()]
        counted_RV, w = torch.from_numpy(np.stack(rows)).to(scores), self.config.counts_weight
        return ((1 - w) * scores.softmax(-1) + w * counted_RV).log()

    def learn(self, input_ids) -> None:
        """Learns a text [1, T] or [T] by adding it to the counts. Raises ValueError as `Counts.learn` does, or without counts."""
        if self.counts is None:
            raise ValueError("learn: this model has no counts; set model.counts = Counts.fit(tokens, vocab_size, end)")
        self.counts.learn(np.asarray(input_ids))

    def save_pretrained(self, save_directory, **kwargs):
        """As in transformers; the folder also holds the counts and the code, for `trust_remote_code=True`."""
        folder = Path(save_directory)
        self.config.auto_map = {
            "AutoConfig": "model.ReservoirConfig",
            "AutoModelForCausalLM": "model.ReservoirForCausalLM",
        }
        super().save_pretrained(folder, **kwargs)
        here, method = Path(__file__), Path(sys.modules[type(self).__module__].__file__)  # which may have been edited
        for source in (method, here, here.with_name("scan.py")):
            (folder / source.name).write_bytes(source.read_bytes())
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
