"""Counts of short phrases: interpolated modified Kneser-Ney smoothing.

    P(c | context) = (count(context c) - D) / count(context) + weight(context) P(c | shorter context)

down to 1 / V (Chen and Goodman, Computer Speech and Language 13, 1999, section 3). The longest phrases are counted as
often as they occur, and a shorter phrase once for each different token before it. A further text is learned by counting it.

# V vocabulary · P places in texts · F lengths of a context
"""

from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

LONGEST = 5  # tokens of a phrase, where a phrase and the number of its fold fit 63 bits
FOLDS = 4
MOST_TOKENS = 20_000_000  # bounds time (a sort) and memory (under 2 GB)
MOST_LEARNED = 100_000  # tokens at a time: under a second


def _discounts(counts: np.ndarray) -> np.ndarray:
    """The discount of each phrase: D1, D2 or D3+ from how many phrases occur once to four times (Chen and Goodman 1999, equation 17).

    Where a small text does not give them, n1 / (n1 + 2 n2) for every count (Ney, Essen and Kneser 1994), or else 1/2.
    """
    occurrences = np.bincount(np.minimum(counts, 5), minlength=5)
    n1, n2, n3, n4 = occurrences[1:5].tolist()
    single = n1 / (n1 + 2 * n2) if n1 and n2 else 0.5
    discounts = [0, single, single, single]
    if n1 and n2 and n3 and n4:
        double = 2 - 3 * single * n3 / n2
        triple = 3 - 4 * single * n4 / n3
        if min(double, triple) > 0:
            discounts[2:] = double, triple
    return np.array(discounts)[np.minimum(counts, 3)]


class Counts:
    """How often each longest phrase was counted: its code (context times V plus token), in order, and its count.

    A text begins as if after the token that ends texts, and no phrase crosses its end.
    """

    def __init__(self, vocab_size: int, end: int, order: int, codes: np.ndarray, counts: np.ndarray):
        self.vocab_size, self.end, self.order = vocab_size, end, order
        self.codes, self.counts = codes, counts
        self._smoothed: Smoothed | None = None

    @classmethod
    def fit(cls, tokens: np.ndarray, vocab_size: int, end: int) -> "Counts":
        """Counts a stream of texts, each followed by the token `end`: at most its first 20 million tokens.

        A large vocabulary takes shorter phrases.
        """
        order = LONGEST
        while FOLDS * vocab_size**order >= 2**63:
            order -= 1
        nothing = np.zeros(0, dtype=np.int64)
        counts = cls(vocab_size, end, order, nothing, nothing)
        counts.add(tokens[:MOST_TOKENS])
        return counts

    def learn(self, tokens: np.ndarray) -> None:
        """Adds a stream of texts, as if it had been counted together with all others. The old texts are not needed.

        Raises ValueError for no tokens, more than 100,000, or ids outside the vocabulary.
        """
        outside = int(((tokens < 0) | (tokens >= self.vocab_size)).sum())
        if outside or not 0 < len(tokens) <= MOST_LEARNED:
            raise ValueError(
                f"learn: {len(tokens)} tokens, {outside} of them outside the vocabulary; "
                f"give 1 to {MOST_LEARNED:,} at a time, each in [0, {self.vocab_size})"
            )
        self.add(tokens)

    def add(self, tokens: np.ndarray) -> None:
        new_codes = self.contexts(tokens) * self.vocab_size + tokens
        codes = np.append(self.codes, new_codes)
        counts = np.append(self.counts, np.ones_like(new_codes))
        self.codes, phrase = np.unique(codes, return_inverse=True)
        self.counts = np.bincount(phrase, counts).astype(np.int64)
        self._smoothed = None

    def levels(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """Codes and counts of the phrases of one token, of two, and so on."""
        levels = [(self.codes, self.counts)]
        for length in range(self.order - 1, 0, -1):
            codes, _ = levels[0]
            # A shorter phrase counts once for each different token before it.
            shorter = codes % self.vocab_size**length
            levels.insert(0, np.unique(shorter, return_counts=True))
        return levels

    def contexts(self, tokens: np.ndarray) -> np.ndarray:
        """The code of the tokens before each token of a stream [P]."""
        begins_P = np.append(True, tokens[:-1] == self.end)
        before_P = tokens.astype(np.int64)
        codes_P = np.zeros_like(before_P)
        for back in range(self.order - 1):
            before_P = np.append(self.end, before_P[:-1])
            before_P[begins_P] = self.end
            codes_P += before_P * self.vocab_size**back
        return codes_P

    def contexts_of(self, windows: np.ndarray) -> np.ndarray:
        """The code of the context at the end of each window of tokens [P, W], -1 where the text has not begun."""
        codes_P = np.zeros(len(windows), dtype=np.int64)
        for back in range(self.order - 1):
            token_P = windows[:, -1 - back]
            token_P = np.where(token_P < 0, self.end, token_P)
            codes_P += token_P * self.vocab_size**back
        return codes_P

    def smoothed(self) -> "Smoothed":
        """The probabilities by all counts."""
        if self._smoothed is None:
            self._smoothed = Smoothed([self])
        return self._smoothed

    def save(self, path: Path) -> None:
        about = np.array([self.vocab_size, self.end, self.order])
        save_file({"about": about, "codes": self.codes, "counts": self.counts}, path)

    @classmethod
    def load(cls, path: Path) -> "Counts":
        tensors = load_file(path)
        vocab_size, end, order = tensors["about"].tolist()
        return cls(vocab_size, end, order, tensors["codes"], tensors["counts"])


class Smoothed:
    """Probabilities after contexts, by one of several `Counts`: those of all texts, or of all texts but a fold.

    All counts are one sorted table a length of phrases, with the number of the fold as the leading digit of a code.
    """

    def __init__(self, folds: list[Counts]):
        V = self.vocab_size = folds[0].vocab_size
        levels = [fold.levels() for fold in folds]
        self.tables, base = [], []
        for length in range(folds[0].order):
            columns = []
            for fold, level in enumerate(levels):
                codes, counts = level[length]
                codes = codes + fold * V ** (length + 1)
                columns.append((codes, counts, _discounts(counts)))
            codes, counts, discounts = map(np.concatenate, zip(*columns, strict=True))
            net = (counts - discounts).astype(np.float32)
            self.tables.append((codes, net, _sums(counts), _sums(discounts)))
        for level in levels:  # a single token, after the uniform distribution
            codes, counts = level[0]
            discounts = _discounts(counts)
            uniform = discounts.sum() / counts.sum() / V
            row_V = np.full(V, uniform)
            row_V[codes] += (counts - discounts) / counts.sum()
            base.append(row_V.astype(np.float32))
        self.base = np.stack(base)

    @classmethod
    def without_folds(cls, tokens: np.ndarray, vocab_size: int, end: int) -> tuple["Smoothed", np.ndarray]:
        """For each text of a stream the counts of the texts outside its fold, and the fold of each token [P]."""
        text_P = np.append(0, np.cumsum(tokens[:-1] == end))
        fold_P = text_P % FOLDS
        folds = []
        for fold in range(FOLDS):
            others = tokens[fold_P != fold]
            folds.append(Counts.fit(others, vocab_size, end))
        return cls(folds), fold_P

    def _levels(self, context_P: np.ndarray, fold_P: np.ndarray | int) -> tuple[list[tuple], np.ndarray]:
        """From the longest context to the shortest what was counted after it, and what is left for a single token [P].

        Of each: the codes of its table and the counts less the discounts; the codes of the contexts, where their phrases begin
        in the table and how many they are, their sums, and the share of the probability that a count has [P].
        """
        levels, left_P = [], np.ones(len(context_P))
        for length in range(len(self.tables) - 1, 0, -1):
            codes, net, count_sums, discount_sums = self.tables[length]
            contexts = self.vocab_size**length
            code_P = (fold_P * contexts + context_P % contexts) * self.vocab_size
            first_P = places_of(codes, code_P)
            last_P = places_of(codes, code_P + self.vocab_size)
            total_P = count_sums[last_P] - count_sums[first_P]
            share_P = left_P / np.maximum(total_P, 1)
            freed_P = discount_sums[last_P] - discount_sums[first_P]
            # An unknown context leaves everything to the shorter one.
            left_P = np.where(total_P > 0, share_P * freed_P, left_P)
            share_P = share_P.astype(np.float32)
            levels.append((codes, net, code_P, first_P, last_P - first_P, total_P, share_P))
        return levels, left_P.astype(np.float32)

    def distributions(self, context_P: np.ndarray, fold_P: np.ndarray | int = 0) -> tuple[np.ndarray, np.ndarray]:
        """P of every token after each context [P, V], and log(1 + how often each length of the context was counted) [P, F]."""
        P, V = len(context_P), self.vocab_size
        levels, left_P = self._levels(context_P, fold_P)
        base_PV = np.broadcast_to(self.base[fold_P], (P, V))
        probability_PV = base_PV * left_P[:, None]
        totals_PF = np.zeros((P, LONGEST - 1), dtype=np.float32)
        for length, (codes, net, _, first_P, size_P, total_P, share_P) in enumerate(levels):
            row = np.repeat(np.arange(P), size_P)
            before = np.cumsum(size_P) - size_P
            place = np.arange(len(row)) + (first_P - before)[row]
            index = row * V + codes[place] % V
            probability_PV.reshape(-1)[index] += net[place] * share_P[row]  # no index comes twice
            totals_PF[:, length] = np.log1p(total_P)
        return probability_PV, totals_PF

    def of(self, token_P: np.ndarray, context_P: np.ndarray, fold_P: np.ndarray | int = 0) -> np.ndarray:
        """P of one token after each context [P]."""
        levels, left_P = self._levels(context_P, fold_P)
        probability_P = left_P * self.base[fold_P, token_P]
        for codes, net, code_P, _, _, _, share_P in levels:
            phrase_P = code_P + token_P
            place_P = places_of(codes, phrase_P).clip(max=len(codes) - 1)
            counted_P = codes[place_P] == phrase_P
            probability_P += share_P * net[place_P] * counted_P
        return probability_P


def _sums(values: np.ndarray) -> np.ndarray:
    """Of the values before each place, and of all."""
    return np.append(0.0, np.cumsum(values))


def places_of(codes: np.ndarray, sought: np.ndarray) -> np.ndarray:
    """Where codes stand, or would stand, among sorted ones. In order they are found several times as fast."""
    order = np.argsort(sought)
    place = np.empty_like(order)
    place[order] = np.searchsorted(codes, sought[order])
    return place
