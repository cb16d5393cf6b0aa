"""Byte-level BPE for code, cut at the boundaries inside identifiers, so that a name has the same tokens wherever it is.

# V vocabulary
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Encoding
    from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ("[PAD]", "[MASK]", "[SEP]")
PAD, MASK, SEP = range(3)  # their ids
MIN_VOCAB_SIZE = len(SPECIAL_TOKENS) + 256
LONGEST_TOKEN = 20  # bytes; rulers of dashes would else be entries of their own

# A newline · the indentation of a line · a word of an identifier, with the underscores before it: `HTTPServer2` is HTTP,
# Server, 2 and `__read_only` is __read, _only · underscores at the end · anything else up to the next of these. A blank
# never belongs to the word after it: ` name` and `.name` hold the same token.
_WORD = r"_*(?:\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{Lu}+|\p{N}{1,3})"
_PIECES = rf"\n|^[ \t]+|{_WORD}|_+|[^\n_\p{{L}}\p{{M}}\p{{N}}]+"


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of at most `vocab_size` entries, the same for the same texts; [PAD], [MASK], [SEP] are 0, 1, 2.

    No token crosses a boundary of identifier, camelCase or snake_case word, number, line or indentation. Decoding gives
    the text back. Raises ValueError where vocab_size < 259 (the special tokens and 256 bytes), or where there is no text.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(f"vocab_size={vocab_size}: must be at least {MIN_VOCAB_SIZE}, 256 bytes and 3 special tokens")
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    texts = filter(None, texts)
    first = next(texts, None)
    if first is None:
        raise ValueError("texts: none to train a tokenizer on; give the sources of the graph")
    backend.train_from_iterator(chain([first], texts), trainer)
    pad, mask, sep = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        mask_token=mask,
        sep_token=sep,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a source that spells out [MASK] is the text it is
    )


def encodings(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[Encoding]:
    """Tokens of each text and the characters that they stand for: none added, cut or padded; one that spells out a special token
    is the text it is."""
    backend = tokenizer.backend_tokenizer
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    return backend.encode_batch(list(texts), add_special_tokens=False)


def encode(tokenizer: PreTrainedTokenizerFast, texts: Sequence[str]) -> list[list[int]]:
    """Token ids of each text, as `encodings` has them."""
    return [encoding.ids for encoding in encodings(tokenizer, texts)]


def identifier_tokens(tokenizer: PreTrainedTokenizerFast) -> np.ndarray:
    """Which tokens are part of an identifier or number, bool [V]; neighbours of this kind are of one identifier.

    A token is of letters, digits and underscores, or has none of them. Bytes above 127 count as letters.
    """
    words_V = np.zeros(len(tokenizer), dtype=bool)
    for token, index in tokenizer.get_vocab().items():
        if index >= len(SPECIAL_TOKENS):
            first = token[0]
            # The alphabet writes the bytes 0-32 and 127 as the characters 256-289, other ASCII as itself.
            ascii_other = first.isascii() and not (first.isalnum() or first == "_")
            words_V[index] = not ascii_other and not 256 <= ord(first) <= 289
    return words_V


def separator_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Tokens at whose end the next part of a qualified name begins: they end in a dot, slash, bracket or blank."""
    ends = (".", "/", "(", "Ġ")  # Ġ: a blank in the byte-level alphabet
    return sorted(index for token, index in tokenizer.get_vocab().items() if token.endswith(ends))


def break_tokens(tokenizer: PreTrainedTokenizerFast) -> list[int]:
    """Tokens that are of no dotted path: all but parts of identifiers and the dot."""
    words_V = identifier_tokens(tokenizer)
    words_V[tokenizer.convert_tokens_to_ids(".")] = True
    return np.flatnonzero(~words_V).tolist()
