"""From a file of texts to blocks of tokens: reading, splitting, tokens, the tokens' codes, and the state before each block.

# V vocabulary · C floats of a code · B blocks · T tokens of a block · R rows that are read at once · S state floats
"""

from __future__ import annotations

import hashlib
import itertools
import random
import re
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from helpers.data import data_files, hub
from helpers.data.data_source import DataSource, located
from helpers.parameters import SAMPLE, source_path
from helpers.reservoir.parameters import HUB_TEXTS, MIN_TEXTS
from helpers.reservoir.sample import sample_stories
from helpers.run import disk

REVISIONS = {"roneneldan/TinyStories": "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"}
END_OF_TEXT = "<|endoftext|>"
COLUMNS = ("text", "story")
SUFFIXES = (".txt", ".jsonl", ".parquet")
LEAST_HELD_OUT, MOST_HELD_OUT, HELD_OUT_SHARE = 5, 1000, 0.05  # texts of dev, and as many of test
LONGEST_TEXT = 20_000  # characters; a longer text is split, and a separator has to leave shorter texts on average
PIECE = 4_000  # characters that a piece of a long text has at least
TOKENIZER_TEXTS = 50_000  # merges hardly change with more
WINDOW_WEIGHTS = (1.0, 0.5, 1 / 3)  # of a neighbour in the codes, by distance
CONTEXT_POWER = 0.75  # flattens the contexts' frequencies (Levy, Goldberg and Dagan 2015, section 3.1)
CODED_TOKENS = 20_000_000  # bounds time and memory
ROWS = 64  # of a stream, read side by side, at most


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
    num_texts: how many in all; 0 takes every text, but 150,000 of a hub id.

    Raises ValueError (too few texts, no such column, a damaged file), FileNotFoundError, and ConnectionError for a hub that
    cannot be reached.
    """
    data_source = located(data_source)
    path = source_path("data_source", data_source)
    name, revision = path.name if path else data_source, None
    if data_source == SAMPLE:
        found, how = sample_stories(), "the stories of the sample"
    elif path and path.is_file() and path.suffix == ".txt":
        found, how = _separated(path)
    elif path and path.is_file():
        found, how = map(_text, data_files.rows("data_source", path, SUFFIXES)), "the rows of the file"
    else:
        if not path:
            num_texts, revision = num_texts or HUB_TEXTS, REVISIONS.get(data_source)
        rows = hub.splits(data_source, revision=revision)["train"]
        if num_texts:
            rows = rows.shuffle(seed=seed).select(range(min(num_texts, len(rows))))
        rows = data_files.numbered(f"data_source={data_source!r}", rows.to_list())
        found, how = map(_text, rows), "the rows of the data set"
    whole = [text.strip() for text in found]
    pieces = [piece for text in whole for piece in _pieces(text) if piece]
    kept = [*{" ".join(piece.split()): piece for piece in pieces}.values()]
    random.Random(seed).shuffle(kept)
    said = {
        "repeated texts left out": len(pieces) - len(kept),
        "long texts split": sum(len(text) > LONGEST_TEXT for text in whole),
    }
    kept = kept[: num_texts or None]
    if len(kept) < MIN_TEXTS:
        raise ValueError(
            f"data_source={data_source!r}: {len(kept)} different texts ({how}); at least {MIN_TEXTS} are needed, "
            f"so add {MIN_TEXTS - len(kept)}: {LEAST_HELD_OUT} choose settings, {LEAST_HELD_OUT} measure, the others train"
        )
    held = min(max(LEAST_HELD_OUT, int(HELD_OUT_SHARE * len(kept))), MOST_HELD_OUT)
    return Texts(
        train=kept[2 * held :],
        dev=kept[:held],
        test=kept[held : 2 * held],
        how="; ".join([how, *(f"{what}: {number:,}" for what, number in said.items() if number)]),
        name=name,
        sha256=hashlib.sha256("\0".join(kept).encode()).hexdigest(),
        revision=revision,
        draw=f"{num_texts or 'all'} texts, seed {seed}",
    )


def _separated(path: Path) -> tuple[list[str], str]:
    try:
        return separated(path.read_text(encoding="utf-8-sig"))
    except UnicodeDecodeError as error:
        raise ValueError(f"data_source={str(path)!r}: not UTF-8 ({error}); save the file as UTF-8") from error


def separated(text: str) -> tuple[list[str], str]:
    """The texts of a file, and what separates them: the first of marker, blank line and line end that most of it uses.

    A separator is used by most of the file if it leaves 30 texts or more, and fewer than 20,000 characters a text on
    average; where none does, blank lines separate. Line ends do so only where there is no blank line. A marker that is no
    separator is left out of the text.
    """
    text, markers = text.strip(), text.count(END_OF_TEXT)
    least = max(MIN_TEXTS, len(text) / LONGEST_TEXT)
    if markers + 1 >= least:
        return text.split(END_OF_TEXT), f"separated by `{END_OF_TEXT}`"
    pattern, how = r"\n\s*\n", "separated by blank lines"
    if not re.search(pattern, text) and text.count("\n") + 1 >= least:
        pattern, how = r"\n", "separated by line ends"
    if markers:
        how += f", not by the {markers} `{END_OF_TEXT}`, which are left out"
    return re.split(pattern, text.replace(END_OF_TEXT, "\n\n")), how


def _text(row: data_files.Row) -> str:
    """The text of a row: its column `text` or `story`."""
    for column in COLUMNS:
        if column in row.values:
            return data_files.text(row, column)
    raise ValueError(f"{row.where}: no column `text` or `story`; columns found: {', '.join(row.values)}")


def _pieces(text: str) -> Iterator[str]:
    """The text, or pieces of it of at most 20,000 characters, split between paragraphs, lines, sentences or words."""
    while len(text) > LONGEST_TEXT:
        places = (text.find(mark, PIECE, LONGEST_TEXT) for mark in ("\n\n", "\n", ". ", "。", " "))
        place = next((place for place in places if place > 0), LONGEST_TEXT - 2) + 1
        yield text[:place].strip()
        text = text[place:].strip()
    yield text


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
    """UTF-8 bytes that each token stands for, int64 [V]; special tokens stand for 0. A byte-level BPE writes one character for each byte."""
    lengths = np.zeros(len(tokenizer), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        lengths[index] = 0 if token in tokenizer.all_special_tokens else len(token)
    return lengths


def tokens_of(texts: Sequence[str], tokenizer) -> np.ndarray:
    """The tokens of all texts in one stream, int32, with the end-of-text token after each text.

    Where a text spells that token out, its letters are ordinary tokens.
    """
    found = []
    for start in range(0, len(texts), 1000):
        rows = tokenizer(
            texts[start : start + 1000],
            add_special_tokens=False,
            return_attention_mask=False,
            split_special_tokens=True,
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
    """The distinct pairs of a token and a context, as numbers token * 2V + context, and the weights of the pairs.

    The token after another one is a context in [0, V), the token before it a context in [V, 2V).
    """
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
    """Blocks of T tokens that predict every token of a stream of texts once, and the state of a model before each block.

    The stream is cut into rows of about equal length, which begin where a text begins. A row is cut into blocks, each of
    which begins with the last token of the block before. The last block of a row is filled up, and what fills it is not
    predicted (label -100), so that no token of the stream is dropped. Labels are the inputs, since models shift them.

    multiple_of: the first blocks come once more at the end, until the number of blocks is a multiple of this.
    most: how many blocks a run reads. Where they are fewer than there are, the first blocks of every row are kept.
    states_BS: set by `read_states`; each block then comes with its state.
    """

    def __init__(self, tokens: np.ndarray, end: int, length: int, multiple_of: int = 1, most: int = 10**9) -> None:
        self.length = length
        wanted = np.linspace(0, len(tokens), min(ROWS, 1 + len(tokens) // (8 * length)), endpoint=False)
        begins = np.concatenate(([0], np.flatnonzero(tokens == end) + 1, [len(tokens)]))
        borders = np.unique([*begins[np.searchsorted(begins, wanted)], len(tokens)])
        most_of_row = max(1, -(-most // (len(borders) - 1)))
        starts = [np.arange(*row, length - 1)[:most_of_row] for row in itertools.pairwise(borders)]
        self.starts, self.rows = np.concatenate(starts), np.repeat(np.arange(len(starts)), [*map(len, starts)])
        self.sizes = np.minimum(length, 1 + borders[self.rows + 1] - self.starts)
        # A row begins with a text, and before a text there is `end`.
        padded = np.concatenate(([end], tokens, [end] * length)).astype(np.int32)
        self.ids_BT = np.lib.stride_tricks.sliding_window_view(padded, length)[self.starts]
        self.ids_BT[np.arange(length) >= self.sizes[:, None]] = end
        self.count = -(-len(self.starts) // multiple_of) * multiple_of
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
        """Has the model read the stream, all rows side by side, and keeps its state [S] before each block on disk.

        A reservoir is never trained, so its states are the same in every epoch, and blocks can be shuffled. The model is
        left in eval mode.
        """
        _, first_R, length_R = np.unique(self.rows, return_index=True, return_counts=True)
        state_RS = torch.zeros_like(model.read(self._ids(first_R, model.device)[:, :1])[-1])
        shape = len(self.rows), state_RS.shape[1]
        with tempfile.TemporaryFile() as file:  # it is on the disk until the array is gone
            disk.reserve(
                file, 4 * shape[0] * shape[1], "the network's states before each block (TMPDIR names the folder)"
            )
            self.states_BS = np.memmap(file, np.float32, "r+", shape=shape)
        model.eval()
        for step in range(length_R.max()):
            going_R = step < length_R
            place_R = first_R + np.minimum(step, length_R - 1)
            self.states_BS[place_R[going_R]] = state_RS.float().cpu().numpy()[going_R]
            state_RS = model.read(self._ids(place_R, model.device)[:, :-1], state_RS)[-1]
        return self

    def _ids(self, places: np.ndarray, device) -> torch.Tensor:
        return torch.from_numpy(self.ids_BT[places].astype(np.int64)).to(device)
