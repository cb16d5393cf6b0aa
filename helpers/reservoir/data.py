"""From a file of texts to blocks of tokens: reading, splitting, tokens, the tokens' codes, and the state before each block.

# V vocabulary · C floats of a code · B blocks · T tokens of a block · R rows that are read at once · S state floats
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from helpers.data import data_files, hub
from helpers.data.data_source import DataSource, located
from helpers.parameters import SAMPLE, source_path
from helpers.reservoir.parameters import MIN_TEXTS
from helpers.reservoir.sample import sample_stories

TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
END_OF_TEXT = "<|endoftext|>"
COLUMNS = ("text", "story")
SUFFIXES = (".txt", ".jsonl", ".parquet")
LEAST_HELD_OUT, MOST_HELD_OUT, HELD_OUT_SHARE = 5, 1000, 0.05  # dev and test have the share each
LONGEST_TEXT = 20_000  # characters; a longer text is split, and a separator that leaves longer ones on average is none
PIECE = 4_000  # characters of a piece of a long text, about
TOKENIZER_TEXTS = 50_000  # merges hardly change with more
WINDOW_WEIGHTS = (1.0, 0.5, 1 / 3)  # of a neighbour by distance, in the codes
CONTEXT_POWER = 0.75  # flattens the contexts' frequencies (Levy, Goldberg and Dagan 2015, section 3.1)
CODED_TOKENS = 20_000_000  # bounds time and memory
ROWS = 64  # at most


@dataclass(frozen=True)
class Texts(DataSource):
    """Texts to train on, to choose by (dev) and to report on once (test). No text is in two of them."""

    train: list[str]
    dev: list[str]
    test: list[str]
    how: str  # what separated the texts, how many were repeated or split


def load_texts(data_source: str, *, num_texts: int, seed: int) -> Texts:
    """Texts from `data_source`, without repeats, drawn with `seed`.

    data_source: "sample", a local .txt, .jsonl or .parquet (column `text` or `story`), a hub id, or a folder in hub layout.
    num_texts: how many in all; 0 takes every text.

    Raises ValueError (too few texts, no such column, a damaged file), FileNotFoundError, and ConnectionError for a hub that
    cannot be reached.
    """
    data_source = located(data_source)
    path = source_path("data_source", data_source)
    name, revision = path.name if path else data_source, None
    if data_source == SAMPLE:
        found, how = sample_stories(), "the stories of the sample"
    elif path and path.is_file():
        found, how = _read_file(path)
    else:
        revision = TINYSTORIES_REVISION if data_source == TINYSTORIES and not path else None
        found, how = _from_hub(data_source, revision, num_texts, seed), "the rows of the data set"
    pieces, long = _without_long(text.strip() for text in found if text and text.strip())
    kept = [*{" ".join(piece.split()): piece for piece in pieces}.values()]
    repeats = len(pieces) - len(kept)
    random.Random(seed).shuffle(kept)
    kept = kept[: num_texts or None]
    if len(kept) < MIN_TEXTS:
        raise ValueError(
            f"data_source={data_source!r}: {len(kept)} different texts ({how}); at least {MIN_TEXTS} are needed, "
            f"{MIN_TEXTS - len(kept)} more: {LEAST_HELD_OUT} choose settings, {LEAST_HELD_OUT} measure, the others train"
        )
    held = min(max(LEAST_HELD_OUT, int(HELD_OUT_SHARE * len(kept))), MOST_HELD_OUT)
    said = [how, f"{repeats:,} repeated ones left out" if repeats else "", f"{long:,} long ones split" if long else ""]
    return Texts(
        train=kept[2 * held :],
        dev=kept[:held],
        test=kept[held : 2 * held],
        how="; ".join(filter(None, said)),
        name=name,
        sha256=hashlib.sha256("\0".join(kept).encode()).hexdigest(),
        revision=revision,
        draw=f"{num_texts or 'all'} texts, seed {seed}",
    )


def _read_file(path: Path) -> tuple[Iterable[str], str]:
    if path.suffix != ".txt":
        return list(_column(str(path), data_files.rows("data_source", path, SUFFIXES))), "the rows of the file"
    try:
        return separated(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"data_source={str(path)!r}: not UTF-8 ({error}); save the file as UTF-8") from error


def separated(text: str) -> tuple[list[str], str]:
    """The texts of a file, and what separates them: the first of marker, blank line and line end that most of it uses.

    A separator is used by most of the file if it leaves fewer than 20,000 characters a text on average, and 30 texts or more;
    where none does, blank lines separate. Line ends do so only where there is no blank line. A marker that is no separator is left out of the text.
    """
    markers = text.count(END_OF_TEXT)
    ways = {f"`{END_OF_TEXT}`": re.escape(END_OF_TEXT), "blank lines": r"\n\s*\n", "line ends": r"\n"}
    counts = {way: len(re.findall(pattern, text.strip())) for way, pattern in ways.items()}
    if counts["blank lines"]:
        del counts["line ends"]
    chosen = next(
        (way for way, n in counts.items() if n + 1 >= max(MIN_TEXTS, len(text) / LONGEST_TEXT)), "blank lines"
    )
    how = f"separated by {chosen}"
    if markers and END_OF_TEXT not in chosen:
        how += f", not by the {markers} `{END_OF_TEXT}`, which are left out"
        text = text.replace(END_OF_TEXT, "\n\n")
    return re.split(ways[chosen], text), how


def _column(data_source: str, rows: Iterable[data_files.Row]) -> Iterator[str]:
    column = None
    for row in rows:
        column = column or _text_column(data_source, list(row.values))
        if column not in row.values:
            raise ValueError(f"{row.where} has no field {column!r}; its fields: {list(row.values)}")
        yield data_files.text(row, column)


def _text_column(data_source: str, found: Sequence[str]) -> str:
    for column in COLUMNS:
        if column in found:
            return column
    raise ValueError(f"data_source={data_source!r}: no column `text` or `story`; columns found: {', '.join(found)}")


def _from_hub(data_source: str, revision: str | None, num_texts: int, seed: int) -> list[str]:
    train = hub.splits(data_source, revision=revision)["train"]
    column = _text_column(data_source, train.column_names)
    if getattr(train.features[column], "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"data_source={data_source!r}: column {column!r} is {train.features[column]}, not text")
    if num_texts:
        train = train.shuffle(seed=seed).select(range(min(num_texts, len(train))))
    return train[column][:]


def _without_long(texts: Iterable[str]) -> tuple[list[str], int]:
    """Texts of at most 20,000 characters: longer ones are split between paragraphs, lines or sentences; and how many were."""
    found, long = [], 0
    for text in texts:
        if len(text) <= LONGEST_TEXT:
            found.append(text)
            continue
        long += 1
        while len(text) > LONGEST_TEXT:
            places = [text.find(mark, PIECE, LONGEST_TEXT) for mark in ("\n\n", "\n", ". ", "。", " ")]
            place = next((place for place in places if place > 0), LONGEST_TEXT - 2) + 1
            found.append(text[:place].strip())
            text = text[place:].strip()
        found.append(text)
    return [text for text in found if text], long


# ---- tokens


def train_tokenizer(texts: Sequence[str], vocab_size: int = 0):
    """A byte-level BPE tokeniser of the texts, and the reason for its size.

    vocab_size: 0 takes 1.6 times the square root of the bytes of the texts, from 512 to 16,384: about as many entries as
        occur often enough to be learned.
    """
    from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

    size = sum(len(text.encode()) for text in texts)
    wanted = vocab_size or min(max(512, round(1.6 * size**0.5) // 128 * 128), 16_384)
    empty = GPT2TokenizerFast(vocab={}, merges=[], pad_token=END_OF_TEXT)
    trained = empty.train_new_from_iterator(texts[:TOKENIZER_TEXTS], wanted, show_progress=False)
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END_OF_TEXT)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained.backend_tokenizer, clean_up_tokenization_spaces=False, padding_side="left", **ends
    )
    return tokenizer, f"{len(tokenizer):,} entries of byte-level BPE for {size:,} bytes of text"


def token_bytes(tokenizer) -> np.ndarray:
    """UTF-8 bytes that each token stands for, int64 [V]; special tokens stand for 0. A byte-level BPE writes one character a byte."""
    lengths = np.zeros(len(tokenizer), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        lengths[index] = 0 if token in tokenizer.all_special_tokens else len(token)
    return lengths


def tokens_of(texts: Sequence[str], tokenizer) -> np.ndarray:
    """The tokens of `texts`, each text and then the end-of-text token, int32. A text that spells that token out keeps its letters."""
    found = []
    for start in range(0, len(texts), 1000):
        rows = tokenizer(
            texts[start : start + 1000],
            add_special_tokens=False,
            return_attention_mask=False,
            split_special_tokens=True,
            verbose=False,
        )["input_ids"]
        found += [np.array([*row, tokenizer.eos_token_id], dtype=np.int32) for row in rows]
    return np.concatenate(found)


# ---- codes: what the frozen network sees of a token


def cooccurrence_codes(tokens: np.ndarray, vocab_size: int, size: int, seed: int) -> torch.Tensor:
    """Codes [V, C] of unit mean square, in which tokens with similar neighbours are near each other.

    The SVD of positive pointwise mutual information with the next and the last tokens (Levy and Goldberg 2014; singular values
    to the power 1/2 as in Levy, Goldberg and Dagan 2015). A token that never occurs has the code 0.

    size: C, below V.
    seed: of the randomised SVD (Halko et al. 2011); the caller's generator stays as it was.
    """
    tokens = np.asarray(tokens[:CODED_TOKENS], dtype=np.int64)
    pairs, weights = _neighbours(tokens, vocab_size)
    token_P, context_P = pairs // (2 * vocab_size), pairs % (2 * vocab_size)
    token_V = np.bincount(token_P, weights, vocab_size)
    context_2V = np.bincount(context_P, weights, 2 * vocab_size) ** CONTEXT_POWER
    information_P = np.log(weights * context_2V.sum() / (token_V[token_P] * context_2V[context_P]))
    kept = information_P > 0
    with torch.random.fork_rng(devices=[]), torch.sparse.check_sparse_tensor_invariants():
        matrix = torch.sparse_coo_tensor(
            torch.from_numpy(np.stack((token_P[kept], context_P[kept]))),
            torch.from_numpy(information_P[kept]).float(),
            (vocab_size, 2 * vocab_size),
        ).coalesce()
        torch.default_generator.manual_seed(seed)
        left_VC, singular_C, _ = torch.svd_lowrank(matrix, q=min(size + 16, vocab_size), niter=4)
    codes_VC = left_VC[:, :size] * singular_C[:size].sqrt()
    seen_V1 = torch.from_numpy(token_V > 0)[:, None]
    codes_VC = torch.where(seen_V1, codes_VC - codes_VC[seen_V1[:, 0]].mean(0), 0.0)
    return torch.nn.functional.normalize(codes_VC, dim=1) * size**0.5


def _neighbours(tokens: np.ndarray, vocab_size: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes token * 2V + context of the distinct pairs, contexts to the right in [0, V), to the left in [V, 2V); weights."""
    all_pairs, all_weights = [], []
    for distance, weight in enumerate(WINDOW_WEIGHTS, start=1):
        earlier, later = tokens[:-distance], tokens[distance:]
        for pairs in (earlier * 2 * vocab_size + later, later * 2 * vocab_size + vocab_size + earlier):
            distinct, counts = np.unique(pairs, return_counts=True)
            all_pairs.append(distinct)
            all_weights.append(counts * weight)
    distinct, place = np.unique(np.concatenate(all_pairs), return_inverse=True)
    return distinct, np.bincount(place, np.concatenate(all_weights))


# ---- blocks


class TokenBlocks(torch.utils.data.Dataset):
    """Blocks of T tokens that predict every token of a stream of texts once, and the state of a model before each.

    The stream is cut into rows of about equal length, each from the beginning of a text on, and a row into blocks, each of which
    begins with the last token of the one before. What a last block lacks is filled up and not predicted (label -100), so
    nothing is dropped. Labels are the inputs: models shift.

    multiple_of: the first blocks come once more at the end, until their number is a multiple of it.
    most: blocks that a run reads, where it ends within the first pass: the first ones of every row.
    states_BS: set by `read_states`; each block then comes with its state.
    """

    def __init__(self, tokens: np.ndarray, end: int, length: int, multiple_of: int = 1, most: int = 10**9) -> None:
        self.length = length
        wanted = np.linspace(0, len(tokens), min(ROWS, 1 + len(tokens) // (8 * length)), endpoint=False)
        begins = np.concatenate(([0], np.flatnonzero(tokens == end) + 1, [len(tokens)]))
        borders = np.unique(np.concatenate((begins[np.searchsorted(begins, wanted)], [len(tokens)])))
        blocks, self.starts, self.rows = [], [], []
        for row, (first, last) in enumerate(itertools.pairwise(borders)):
            stream = np.concatenate(([end], tokens[first:last]))
            places = range(0, len(stream) - 1, length - 1)[: max(1, -(-most // (len(borders) - 1)))]
            blocks += [stream[place : place + length] for place in places]
            self.starts += [first + place for place in places]
            self.rows += [row] * len(places)
        self.sizes = np.array([len(block) for block in blocks])
        self.ids_BT = np.full((len(blocks), length), end, dtype=np.int32)
        for place, block in enumerate(blocks):
            self.ids_BT[place, : len(block)] = block
        self.count = -(-len(blocks) // multiple_of) * multiple_of
        self.states_BS: np.ndarray | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        index %= len(self.ids_BT)
        ids_T = torch.from_numpy(self.ids_BT[index].astype(np.int64))
        labels_T = ids_T.masked_fill(torch.arange(self.length) >= self.sizes[index], -100)
        carried = {} if self.states_BS is None else {"state": torch.from_numpy(np.array(self.states_BS[index]))}
        return {"input_ids": ids_T, "labels": labels_T, **carried}

    @torch.no_grad()
    def read_states(self, model) -> TokenBlocks:
        """Has the model read the stream, all rows side by side, and keeps its state [S] before each block, on disk.

        A reservoir is never trained, so these states are those of every epoch, and blocks can still be shuffled.
        """
        rows = np.array(self.rows)
        first_R = np.searchsorted(rows, np.arange(rows[-1] + 1))
        length_R = np.bincount(rows)
        state_RS = torch.zeros_like(model.read(self._ids(first_R, model.device)[:, :1])[-1])
        with tempfile.TemporaryFile() as file:  # it is on the disk until the array is gone
            self.states_BS = np.memmap(file, np.float32, "w+", shape=(len(rows), state_RS.shape[1]))
        was_training = model.training
        model.eval()
        for step in range(length_R.max()):
            going_R = step < length_R
            place_R = first_R + np.minimum(step, length_R - 1)
            self.states_BS[place_R[going_R]] = state_RS.float().cpu().numpy()[going_R]
            state_RS = model.read(self._ids(place_R, model.device)[:, :-1], state_RS)[-1]
        model.train(was_training)
        return self

    def _ids(self, places: np.ndarray, device) -> torch.Tensor:
        return torch.from_numpy(self.ids_BT[places].astype(np.int64)).to(device)
