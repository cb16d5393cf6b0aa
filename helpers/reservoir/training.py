"""What a step learns from: single tokens, drawn from everywhere.

A frozen memory is the same in every epoch. So a stretch of text is read once, in many rows at the same time, and the tokens of a
step are drawn from it one by one: neighbours say much the same, and no token needs its neighbours for a gradient. The host
reads, counts and draws while a device trains. All draws follow from the seed and the epoch.

# S tokens of a stream · R rows that are read side by side · T tokens of a row that are read at once · P drawn tokens · W tokens of a window
"""

import copy
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from transformers import Trainer

from helpers.machine.runtime import Runtime
from helpers.plan import settings
from helpers.plan.settings import Plan
from helpers.train.trainer import TrainerMixin

from .counts import Counts, Smoothed
from .parameters import recipe

ROWS, STRETCH = 64, 127
EASY = 0.5  # a token with a higher P in the counts of other texts is read once in EASY_TURNS epochs, and weighs as much more
EASY_TURNS = 4


def make_plan(model, train_tokens: int, runtime: Runtime, **by_user) -> Plan:
    """Settings of a run on a text of this many tokens. by_user: as `plan` takes them. Raises as `plan` does."""
    return settings.plan(
        recipe(train_tokens),
        model,
        lambda model, inputs: model(**inputs).loss,
        lambda examples: blank_batch(model.config, examples),
        runtime,
        **by_user,
    )


def blank_batch(config, examples: int) -> dict[str, torch.Tensor]:
    """What a step reads of so many drawn tokens, with numbers that mean nothing."""
    widths = {"counted": config.vocab_size, "totals": config.context_lengths, "states": config.units}
    ids = torch.zeros(examples, dtype=torch.long)
    inputs = {name: torch.ones(examples, width) for name, width in widths.items()}
    return inputs | {"input_ids": ids, "labels": ids, "windows": ids.new_zeros(examples, config.window)}


def begin_rows(inputs_S: np.ndarray, end: int) -> np.ndarray:
    """Where the rows of a stream begin that are read side by side: where texts begin, about equally far from each other."""
    texts = np.flatnonzero(inputs_S == end)
    rows = min(ROWS, 1 + len(inputs_S) // (8 * STRETCH))
    places = np.linspace(0, len(inputs_S), rows, endpoint=False)
    nearest = np.searchsorted(texts, places).clip(max=len(texts) - 1)
    return np.unique(texts[nearest])


class Stream(torch.utils.data.Dataset):
    """A stream of texts, and for each of its tokens what the counts and the text before it say.

    trained: whether a text is learned from; the counts of a token are then those of other texts.
    """

    def __init__(self, tokens: np.ndarray, counts: Counts, window: int, trained: bool):
        end = counts.end
        self.counts, self.window, self.trained = counts, window, trained
        self.tokens_S = tokens.astype(np.int64)
        self.inputs_S = np.append(end, self.tokens_S[:-1])  # the token before
        ends = np.flatnonzero(self.inputs_S == end)
        lengths = np.diff(np.append(ends, len(tokens)))
        self.begins_S = np.repeat(ends + 1, lengths)  # where a text has its first input
        if trained:
            self.smoothed, self.fold_S = Smoothed.without_folds(self.tokens_S, counts.vocab_size, end)
        else:
            self.smoothed = counts.smoothed()
            self.fold_S = np.zeros_like(self.tokens_S)

    def windows(self, places: np.ndarray) -> np.ndarray:
        """The last tokens of the text before each place [P, W], -1 where the text has not begun."""
        index = places[:, None] - np.arange(self.window - 1, -1, -1)
        begun = index >= self.begins_S[places, None]
        return np.where(begun, self.inputs_S[index.clip(0)], -1)

    def examples(self, places: np.ndarray) -> dict[str, torch.Tensor]:
        """What a batch holds of these places, whatever their shape."""
        flat = places.ravel()
        windows = self.windows(flat)
        contexts = self.counts.contexts_of(windows)
        counted, totals = self.smoothed.distributions(contexts, self.fold_S[flat])
        batch = {
            "input_ids": self.inputs_S[flat],
            "windows": windows,
            "counted": counted,
            "totals": totals,
            "labels": self.tokens_S[flat],
        }
        return {name: torch.from_numpy(values).unflatten(0, places.shape) for name, values in batch.items()}


class DrawnTokens(Stream):
    """Single tokens, and the state of a frozen memory before each of them.

    trained: an epoch draws its tokens; otherwise it has every token, in the order in which it is read.
    multiple_of: an epoch has a multiple of so many tokens; its last ones come twice.
    """

    def __init__(self, tokens: np.ndarray, model, *, multiple_of: int, trained: bool, seed: int = 0):
        super().__init__(tokens, model.counts, model.config.window, trained)
        self.memory = copy.deepcopy(model.memory).cpu()
        self.seed = seed
        self.starts_R = begin_rows(self.inputs_S, self.counts.end)
        places_S = np.arange(len(tokens))
        self.row_S = np.searchsorted(self.starts_R, places_S, side="right") - 1
        offset_S = places_S - self.starts_R[self.row_S]
        self.stretch_S, self.step_S = np.divmod(offset_S, STRETCH)
        self.reading_order = np.argsort(self.stretch_S, kind="stable")
        self.easy_S = np.zeros(len(tokens), dtype=bool)
        if trained:
            contexts_S = self.counts.contexts(self.tokens_S)
            self.easy_S = self.smoothed.of(self.tokens_S, contexts_S, self.fold_S) > EASY
        self.weights_S = np.where(self.easy_S, EASY_TURNS, 1).astype(np.float32)
        easy = int(self.easy_S.sum())
        drawn = len(tokens) - easy + -(-easy // EASY_TURNS)
        self.weights_S *= drawn / len(tokens)  # so that the mean loss of an epoch is that of the text
        self.length = -(-int(drawn) // multiple_of) * multiple_of
        self._stretch = len(tokens)  # later than any, so that the first one that is read begins again

    def __len__(self) -> int:
        return self.length

    def order(self, epoch: int) -> np.ndarray:
        """The places of an epoch: stretch by stretch, drawn in each, all but some of the easy ones."""
        places = self.reading_order
        if self.trained:
            random = np.random.default_rng((self.seed, epoch))
            mixed = random.permutation(len(places))
            easy = mixed[self.easy_S[mixed]][::EASY_TURNS]
            mixed = np.concatenate((mixed[~self.easy_S[mixed]], easy))
            random.shuffle(mixed)
            places = mixed[np.argsort(self.stretch_S[mixed], kind="stable")]
        return np.pad(places, (0, self.length - len(places)), mode="symmetric")

    def __getitems__(self, indices: Sequence[int]) -> dict[str, torch.Tensor]:
        places = np.asarray(indices)
        states_PN = torch.empty(len(places), self.memory.width)
        for stretch in np.unique(self.stretch_S[places]):
            inside = self.stretch_S[places] == stretch
            tokens = places[inside]
            states_RTN = self._read(stretch)
            states_PN[inside] = states_RTN[self.row_S[tokens], self.step_S[tokens]]
        weights = torch.from_numpy(self.weights_S[places])
        return self.examples(places) | {"states": states_PN, "weights": weights}

    @torch.no_grad()
    def _read(self, stretch: int) -> torch.Tensor:
        """States after each token of a stretch [R, T, N]. Stretches are read in order; an earlier one begins again."""
        if stretch < self._stretch:
            self._stretch = -1
            self._after_RN = torch.zeros(len(self.starts_R), self.memory.width)
        while self._stretch < stretch:
            self._stretch += 1
            begin_R = self.starts_R + self._stretch * STRETCH
            index = begin_R[:, None] + np.arange(STRETCH)
            index = index.clip(max=len(self.inputs_S) - 1)
            ids_RT = torch.from_numpy(self.inputs_S[index])
            kept_RT = ids_RT != self.counts.end
            self._states_RTN = self.memory(ids_RT, self._after_RN, torch.ones_like(ids_RT), kept_RT)
            self._after_RN = self._states_RTN[:, -1]
        return self._states_RTN


class EpochOrder(torch.utils.data.Sampler):
    """The places of a data set in the order of an epoch."""

    def __init__(self, dataset: DrawnTokens):
        self.dataset, self.epoch = dataset, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.dataset)

    def __iter__(self) -> Iterator[int]:
        return iter(self.dataset.order(self.epoch).tolist())


class LanguageModelTrainer(TrainerMixin, Trainer):
    """transformers' Trainer with this suite's reliability."""

    def _get_train_sampler(self, dataset=None):
        return EpochOrder(self.train_dataset)

    def _get_eval_sampler(self, dataset):
        return EpochOrder(dataset)
