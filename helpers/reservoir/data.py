"""From files to texts, tokens, and codes of the tokens.

# V vocabulary · C floats of a code · P pairs of neighbours
"""

import hashlib
import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from helpers.data import hub, rows
from helpers.data.data_source import DataSource, Place, locate, read_splits
from helpers.data.files import list_files, read_text

from .parameters import HUB_TEXTS

REVISIONS = {"roneneldan/TinyStories": "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"}
SAMPLE = Path(__file__).with_name("sample_stories.json")  # 211 short stories, written for this project
END_OF_TEXT = "<|endoftext|>"
COLUMNS = ("text", "story")
TEXT_SUFFIXES = (".txt", ".md")
SEPARATORS = (re.escape(END_OF_TEXT), r"\n\s*\n", r"\n")  # the first that there is
MIN_TEXTS = 20
LEAST_HELD_OUT, MOST_HELD_OUT, HELD_OUT_SHARE = 5, 1000, 0.05  # texts of dev, and as many of test
WANTED = 20  # texts of test, from which on there is an interval, where they are a tenth of all
LONGEST_TEXT = 20_000  # characters; a longer text is split, into pieces of at least 4,000
PIECES = re.compile(
    "|".join(rf"(?s:.{{4000,19990}}?{mark})" for mark in (r"\n\n", r"\n", r"\. ", "。", " ")) + r"|(?s:.{1,19990})"
)
TOKENIZER_TEXTS = 50_000  # merges hardly change with more
WINDOW_WEIGHTS = (1.0, 0.5, 1 / 3)  # of a neighbour in the codes, by distance
CONTEXT_POWER = 0.75  # flattens the contexts' frequencies (Levy, Goldberg and Dagan 2015, section 3.1)
CODED_TOKENS = 2_000_000  # bounds time and memory


@dataclass(frozen=True)
class Texts(DataSource):
    """Texts to train on, to choose by (dev) and to report on once (test). No text is in two of them."""

    train: list[str]
    dev: list[str]
    test: list[str]
    repeated: int  # texts that were left out


def load_texts(data_source: str, *, num_texts: int, seed: int) -> Texts:
    """Texts from `data_source`, without repeats, drawn with `seed`; a text of more than 20,000 characters is split.

    data_source: "sample"; a text (.txt, .md), a file of rows with a column `text` or `story`, or a folder of such files; a hub id.
    num_texts: how many in all; 0 takes every text, but 10,000 of a hub id.

    Raises ValueError (too few texts, no such column, a damaged file, a hub set that cannot be read) and FileNotFoundError.
    """
    place = locate(data_source)
    revision = REVISIONS.get(place.name)
    pieces = []
    for text in _read_texts(place, revision, num_texts, seed):
        parts = [text]
        if len(text) > LONGEST_TEXT:
            parts = PIECES.findall(text)
        pieces += [part.strip() for part in parts if part.strip()]
    distinct = list({" ".join(piece.split()): piece for piece in pieces}.values())
    repeated = len(pieces) - len(distinct)
    random.Random(seed).shuffle(distinct)
    if num_texts:
        del distinct[num_texts:]
    count = len(distinct)
    if count < MIN_TEXTS:
        raise ValueError(
            f"{place.source}: {count} different texts; at least {MIN_TEXTS} are needed, so add {MIN_TEXTS - count}. Texts are separated "
            f"by {END_OF_TEXT}, or in a file without it by blank lines, or in a file without those by line ends"
        )
    share = max(int(HELD_OUT_SHARE * count), min(WANTED, count // 10))
    held_out = min(max(LEAST_HELD_OUT, share), MOST_HELD_OUT)
    digest = hashlib.sha256("\0".join(distinct).encode())
    return Texts(
        train=distinct[2 * held_out :],
        dev=distinct[:held_out],
        test=distinct[held_out : 2 * held_out],
        repeated=repeated,
        name=place.name,
        sha256=digest.hexdigest(),
        revision=revision,
        draw=f"{num_texts or 'all'} texts, seed {seed}",
    )


def _read_texts(place: Place, revision: str | None, num_texts: int, seed: int) -> list[str]:
    """The texts as they are in the source."""
    path = place.path
    if place.is_sample:
        return json.loads(SAMPLE.read_text(encoding="utf-8"))
    if path and path.suffix.lower() in TEXT_SUFFIXES:
        try:
            return separate(read_text(path))
        except ValueError as error:
            raise ValueError(f"{place.source} {error}") from error
    if path and path.is_dir():
        texts = _read_folder(path, place.source)
        if texts:
            return texts
    if path:
        read = read_splits(place, (*rows.SUFFIXES, *TEXT_SUFFIXES))["train"]
    else:  # which may be far larger
        import datasets

        with hub.reading(name="data_source", source=place.value):
            hub_rows = datasets.load_dataset(place.value, split="train", revision=revision).shuffle(seed=seed)
        drawn = hub_rows.select(range(min(num_texts or HUB_TEXTS, len(hub_rows))))
        read = [*rows.number_rows(drawn)]
    set_aside = rows.SetAside(place.source)
    texts = list(set_aside.convert(read, lambda row: row.text(row.column(COLUMNS, "name the column of the texts so"))))
    set_aside.check()
    return texts


def _read_folder(folder: Path, source: str) -> list[str]:
    """Each text file of a folder; none of a folder of tables."""
    paths, passed_over = list_files(folder, (*TEXT_SUFFIXES, *rows.SUFFIXES), source)
    print(f"{len(paths):,} files; passed over: {dict(passed_over)}")
    texts = []
    for file in paths:
        if file.suffix.lower() in TEXT_SUFFIXES:
            try:
                texts.append(read_text(file))
            except ValueError as error:
                print(f"not read: {file.name} {error}")
    return texts


def separate(text: str) -> list[str]:
    """The texts of a file: between the markers if there are any, else between blank lines, else line by line."""
    texts: list[str] = []
    for separator in SEPARATORS:
        if len(texts) < 2:
            texts = list(filter(str.strip, re.split(separator, text)))
    return texts


# ---- tokens


def train_tokenizer(texts: Sequence[str], vocab_size: int = 0):
    """A byte-level BPE tokeniser of the texts, and the reason for its size.

    vocab_size: 0 takes 1.6 times the square root of the bytes of the texts, from 512 to 16,384: about as many entries as
        occur often enough to be learned.
    """
    from transformers import GPT2TokenizerFast, PreTrainedTokenizerFast

    size = sum(len(text.encode()) for text in texts)
    by_rule = round(1.6 * size**0.5) // 128 * 128
    entries = vocab_size or min(max(512, by_rule), 16_384)
    empty = GPT2TokenizerFast(vocab={}, merges=[], pad_token=END_OF_TEXT)
    trained = empty.train_new_from_iterator(texts[:TOKENIZER_TEXTS], entries, show_progress=False)
    ends = dict.fromkeys(("bos_token", "eos_token", "pad_token", "unk_token"), END_OF_TEXT)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=trained.backend_tokenizer, clean_up_tokenization_spaces=False, padding_side="left", **ends
    )
    return tokenizer, f"{len(tokenizer):,} entries of byte-level BPE for {size:,} bytes of text"


def token_bytes(tokenizer) -> np.ndarray:
    """UTF-8 bytes that each token stands for, int64 [V]; special tokens stand for 0. A byte-level BPE writes one character for each byte."""
    lengths = np.zeros(len(tokenizer), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        if token not in tokenizer.all_special_tokens:
            lengths[index] = len(token)
    return lengths


def tokens_of(texts: Sequence[str], tokenizer) -> np.ndarray:
    """The tokens of all texts in one stream, int32, with the end-of-text token after each text.

    Where a text spells that token out, its letters are ordinary tokens.
    """
    streams = []
    for start in range(0, len(texts), 1000):
        encodings = tokenizer(
            texts[start : start + 1000],
            add_special_tokens=False,
            return_attention_mask=False,
            split_special_tokens=True,
        )["input_ids"]
        for ids in encodings:
            streams.append(np.array([*ids, tokenizer.eos_token_id], dtype=np.int32))
    return np.concatenate(streams)


# ---- codes: what the frozen network sees of a token


def cooccurrence_codes(tokens: np.ndarray, vocab_size: int, size: int, seed: int) -> torch.Tensor:
    """Codes [V, C] of unit mean square, in which tokens with similar neighbours are near each other.

    The SVD of positive pointwise mutual information with the next and the last tokens (Levy and Goldberg 2014; singular values
    to the power 1/2 as in Levy, Goldberg and Dagan 2015). A token that never occurs has the code 0.

    size: C, below V.
    seed: of the randomised SVD (Halko et al. 2011); the caller's generator stays as it was.
    """
    stream = torch.from_numpy(tokens[:CODED_TOKENS].astype(np.int64))
    V = vocab_size
    pairs, weights = [], []
    for distance, weight in enumerate(WINDOW_WEIGHTS, start=1):
        earlier, later = stream[:-distance], stream[distance:]
        # The token after another one is a context in [0, V), the token before it a context in [V, 2V).
        pairs.append(torch.stack((earlier, later)))
        pairs.append(torch.stack((later, earlier + V)))
        weights.append(torch.full((2 * len(later),), weight))
    with torch.random.fork_rng(devices=[]), torch.sparse.check_sparse_tensor_invariants():
        size_of_all = (V, 2 * V)
        counts = torch.sparse_coo_tensor(torch.cat(pairs, 1), torch.cat(weights), size_of_all).coalesce()
        (token_P, context_P), weight_P = counts.indices(), counts.values()
        token_V = torch.bincount(token_P, weight_P, V)
        context_2V = torch.bincount(context_P, weight_P, 2 * V) ** CONTEXT_POWER
        apart_P = token_V[token_P] * context_2V[context_P]
        information_P = torch.log(weight_P * context_2V.sum() / apart_P)
        positive = information_P > 0
        indices = counts.indices()[:, positive]
        matrix = torch.sparse_coo_tensor(indices, information_P[positive], size_of_all).coalesce()
        torch.default_generator.manual_seed(seed)
        left_VC, singular_C, _ = torch.svd_lowrank(matrix, q=min(size + 16, V), niter=4)
    codes_VC = left_VC[:, :size] * singular_C[:size].sqrt()
    seen_V1 = (token_V > 0)[:, None]
    mean_C = codes_VC[seen_V1[:, 0]].mean(0)
    codes_VC = torch.where(seen_V1, codes_VC - mean_C, 0.0)
    return torch.nn.functional.normalize(codes_VC, dim=1) * size**0.5
