"""Tokeniser, and the tokens of all stories in one array."""

import itertools
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers.data import hub
from helpers.reservoir.stories import END_OF_TEXT, batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

# V vocabulary

GPT2 = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
TRAINING_STORIES = 50_000  # merges hardly change with more, and training takes seconds


def load_tokenizer(
    source: str, stories: Sequence[str], vocab_size: int, trim: bool = False
) -> tuple["PreTrainedTokenizerFast", str]:
    """A byte-level BPE tokeniser and the reason for it.

    source: "gpt2" is GPT-2's, or one trained on `stories` where that cannot be had; "train" trains one of `vocab_size`
        entries on the first 50,000 stories, the same each time; anything else is a local path or hub id.
    trim: by `trim_vocabulary`, which raises ValueError for what is not byte-level BPE; so is what has no end-of-text token.
    """
    if source == "train":
        tokenizer = _train(stories, vocab_size)
        return tokenizer, f'tokenizer="train": byte-level BPE of {len(tokenizer)} entries, trained on the stories'
    if source == "gpt2":
        try:
            tokenizer = _pretrained(GPT2, GPT2_REVISION, local_files_only=not hub.answers())
        except OSError as error:
            tokenizer = _train(stories, vocab_size)
            return tokenizer, (
                f"{GPT2} cannot be loaded ({str(error).splitlines()[0]}): "
                f"byte-level BPE of {len(tokenizer)} entries, trained on the stories instead"
            )
        reason = f'tokenizer="gpt2": {GPT2}@{GPT2_REVISION[:7]}, {len(tokenizer)} entries'
    else:
        with hub.reading(source, "tokenizer"):
            tokenizer = _pretrained(source, None, local_files_only=False)
        reason = f"tokenizer={source!r}: {len(tokenizer)} entries"
    if trim:
        tokenizer, trimmed = trim_vocabulary(tokenizer, stories)
        reason = f"{reason}; {trimmed}"
    return tokenizer, reason


def trim_vocabulary(
    tokenizer: "PreTrainedTokenizerFast", stories: Sequence[str]
) -> tuple["PreTrainedTokenizerFast", str]:
    """`tokenizer` without the entries that `stories` never use, and a line on what is left.

    Kept are the tokens used, all that they are merged from, the 256 bytes and the special tokens, in the old order under new
    ids. `stories` become the same tokens as before, other text perhaps smaller pieces.

    Raises ValueError where the tokeniser is not byte-level BPE.
    """
    from tokenizers import Tokenizer
    from tokenizers.pre_tokenizers import ByteLevel
    from transformers import PreTrainedTokenizerFast

    token_bytes(tokenizer)  # raises where it is not byte-level
    definition, alphabet = json.loads(tokenizer.backend_tokenizer.to_str()), set(ByteLevel.alphabet())
    model = definition["model"]
    affixes = model.get("continuing_subword_prefix") or model.get("end_of_word_suffix")
    if model["type"] != "BPE" or affixes or not alphabet <= model["vocab"].keys():
        raise ValueError("tokenizer: only byte-level BPE with a token for each of the 256 bytes can be trimmed")
    used_V = np.zeros(len(tokenizer), dtype=bool)
    for batch in batches(stories):
        used_V[list(itertools.chain.from_iterable(_encode(tokenizer, batch)))] = True
    old_ids = tokenizer.get_vocab()
    kept = {token for token, index in old_ids.items() if used_V[index]}
    kept |= alphabet | {added["content"] for added in definition["added_tokens"] if added["special"]}
    for left, right in reversed(model["merges"]):  # a merge comes after those that make its parts
        if left + right in kept:
            kept |= {left, right}
    ids = {token: index for index, token in enumerate(sorted(kept, key=old_ids.__getitem__))}
    _restrict(definition, ids)
    trimmed = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(definition)),
        extra_special_tokens=tokenizer.extra_special_tokens,
        model_max_length=tokenizer.model_max_length,
        clean_up_tokenization_spaces=False,
        **tokenizer.special_tokens_map,
    )
    assert trimmed.get_vocab() == ids
    return trimmed, f"trimmed to {len(trimmed)} that the stories use"


def _restrict(definition: dict[str, Any], ids: dict[str, int]) -> None:
    """Leaves the tokens of `ids` in a tokeniser's definition, under these ids."""
    model = definition["model"]
    model["vocab"] = {token: index for token, index in ids.items() if token in model["vocab"]}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in ids]
    definition["added_tokens"] = [
        added | {"id": ids[added["content"]]} for added in definition["added_tokens"] if added["content"] in ids
    ]
    # Padding and truncation are of earlier calls. A post-processor adds special tokens, on which no model here is trained.
    definition["truncation"] = definition["padding"] = definition["post_processor"] = None


def _encode(tokenizer: "PreTrainedTokenizerFast", stories: list[str]) -> list[list[int]]:
    """Token ids of each story; one that spells out a special token is the text it is."""
    return tokenizer(
        stories, add_special_tokens=False, return_attention_mask=False, split_special_tokens=True, verbose=False
    )["input_ids"]


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> np.ndarray:
    """UTF-8 bytes that each token stands for, int64 [V]; special tokens stand for 0.

    A byte-level BPE writes each byte as one character; ValueError for any other tokeniser.
    """
    from tokenizers.pre_tokenizers import ByteLevel

    if '"ByteLevel"' not in json.dumps(json.loads(tokenizer.backend_tokenizer.to_str())["decoder"]):
        raise ValueError("tokenizer: bytes per token are known for byte-level BPE only; use one like GPT-2's")
    alphabet = set(ByteLevel.alphabet())
    added = tokenizer.added_tokens_decoder
    lengths = np.zeros(len(tokenizer), dtype=np.int64)
    for token, index in tokenizer.get_vocab().items():
        if index in added:
            lengths[index] = 0 if added[index].special else len(token.encode())
        elif alphabet.issuperset(token):
            lengths[index] = len(token)
        else:
            raise ValueError(f"tokenizer: token {index} ({token!r}) is not written in the byte-level alphabet")
    return lengths


def _train(stories: Sequence[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    from transformers import GPT2TokenizerFast

    empty = GPT2TokenizerFast(vocab={}, merges=[], pad_token=END_OF_TEXT)
    return empty.train_new_from_iterator(stories[:TRAINING_STORIES], vocab_size, show_progress=False)


def _pretrained(name: str, revision: str | None, *, local_files_only: bool) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kept = {"revision": revision} if revision else {}
    tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **kept)
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer={name!r}: must be a fast tokenizer with an end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def tokens_of(stories: Sequence[str], tokenizer: "PreTrainedTokenizerFast") -> np.ndarray:
    """The tokens of `stories`, each story and then the end-of-text token: uint16 or uint32 [tokens]."""
    dtype = np.uint16 if len(tokenizer) <= 65536 else np.uint32
    return np.concatenate(
        [
            np.array([token for row in _encode(tokenizer, batch) for token in (*row, tokenizer.eos_token_id)], dtype)
            for batch in batches(stories)
        ]
    )
