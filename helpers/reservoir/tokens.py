"""Tokeniser, and the tokens of all stories in one memory-mapped file.

# V vocabulary
"""

import contextlib
import hashlib
import itertools
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from helpers import hub
from helpers.reservoir.stories import END_OF_TEXT, batches

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

GPT2 = "openai-community/gpt2"
GPT2_REVISION = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
TRAINING_STORIES = 50_000  # merges hardly change with more, and training takes seconds
MIN_VOCAB_SIZE = 257  # 256 bytes and END_OF_TEXT


def load_tokenizer(
    source: str, stories: Iterable[str], vocab_size: int, trim: bool = False
) -> tuple["PreTrainedTokenizerFast", str]:
    """A byte-level BPE tokeniser and the reason for it.

    source: "gpt2" is GPT-2's at a pinned revision, or one trained on `stories` where that cannot be had; "train" trains
        one of `vocab_size` entries on the first 50,000 stories, the same each time; anything else is a local path or
        hub id for `AutoTokenizer` (no remote code).
    trim: restrict it to what `stories` use (see `trim`). One trained on them has nothing else.

    Raises ValueError where vocab_size < 257, or where the tokeniser has no end-of-text token or is to be trimmed and is
    not byte-level BPE, and OSError where a path or id cannot be loaded.
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
        tokenizer = _pretrained(source, None, local_files_only=False)
        reason = f"tokenizer={source!r}: {len(tokenizer)} entries"
    if trim:
        tokenizer, trimmed = _trim(tokenizer, stories)
        reason = f"{reason}; {trimmed}"
    return tokenizer, reason


def trim(tokenizer: "PreTrainedTokenizerFast", stories: Iterable[str]) -> tuple["PreTrainedTokenizerFast", str]:
    """`tokenizer` without the entries that `stories` never use, and a line on what is left; one pass over `stories`.

    Kept are the tokens used, all that they are merged from, the 256 bytes and the special tokens, in the old order
    under new ids, and the merges that make them. `stories` become the same tokens as before: every merge on the way is
    still there, and none came before it. Any other text is still encoded, in smaller pieces where a token was dropped.

    Raises ValueError where the tokeniser is not byte-level BPE, and where there is no text.
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
    if not used_V.any():
        raise ValueError("stories: no text to trim the tokenizer to")
    old_ids = tokenizer.get_vocab()
    kept = {token for token, index in old_ids.items() if used_V[index]}
    kept |= alphabet | {added["content"] for added in definition["added_tokens"] if added["special"]}
    kept = _with_ancestors(kept, model["merges"])
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
    return trimmed, f"trimmed to {len(trimmed)}: what the stories use, its merges and the 256 bytes"


_trim = trim  # `load_tokenizer` has a parameter of that name


def _with_ancestors(tokens: set[str], merges: list[list[str]]) -> set[str]:
    """`tokens`, what they are merged from, and so on; all ways to make a token count."""
    parts: dict[str, set[str]] = {}
    for left, right in merges:
        parts.setdefault(left + right, set()).update((left, right))
    known, unvisited = set(tokens), list(tokens)
    while unvisited:
        new = parts.get(unvisited.pop(), set()) - known
        known |= new
        unvisited.extend(new)
    return known


def _restrict(definition: dict[str, Any], ids: dict[str, int]) -> None:
    """Leaves the tokens of `ids` in a tokeniser's definition, under these ids."""
    model = definition["model"]
    model["vocab"] = {token: index for token, index in ids.items() if token in model["vocab"]}
    model["merges"] = [pair for pair in model["merges"] if "".join(pair) in ids]
    definition["added_tokens"] = [
        added | {"id": ids[added["content"]]} for added in definition["added_tokens"] if added["content"] in ids
    ]
    definition["truncation"] = definition["padding"] = None  # of earlier calls; padding holds an old id
    post_processor = definition["post_processor"] or {}
    for part in post_processor.get("processors", [post_processor]):
        for special in part.get("special_tokens", {}).values():
            special["ids"] = [ids[token] for token in special["tokens"]]
        for pair in (part[name] for name in ("cls", "sep") if name in part):
            pair[1] = ids[pair[0]]


def _encode(tokenizer: "PreTrainedTokenizerFast", stories: list[str]) -> list[list[int]]:
    """Token ids of each story; one that spells out a special token is the text it is."""
    return tokenizer(
        stories, add_special_tokens=False, return_attention_mask=False, split_special_tokens=True, verbose=False
    )["input_ids"]


def token_bytes(tokenizer: "PreTrainedTokenizerFast") -> np.ndarray:
    """UTF-8 bytes that each token stands for, int64 [V]; special tokens stand for 0.

    A byte-level BPE writes each byte as one character of a fixed alphabet, so a token's length is its bytes: also for a
    token that is part of a character and decodes to nothing by itself. Raises ValueError for any other tokeniser.
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


def _train(stories: Iterable[str], vocab_size: int) -> "PreTrainedTokenizerFast":
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    if vocab_size < MIN_VOCAB_SIZE:
        raise ValueError(
            f"vocab_size={vocab_size}: must be at least {MIN_VOCAB_SIZE} (256 bytes and {END_OF_TEXT}) to train a tokenizer"
        )
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    backend.train_from_iterator(itertools.islice(stories, TRAINING_STORIES), trainer)
    tokens = dict.fromkeys(("bos_token", "eos_token", "unk_token", "pad_token"), END_OF_TEXT)  # GPT-2's habit
    return PreTrainedTokenizerFast(tokenizer_object=backend, clean_up_tokenization_spaces=False, **tokens)


def _pretrained(name: str, revision: str | None, *, local_files_only: bool) -> "PreTrainedTokenizerFast":
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    kept = {"revision": revision} if revision else {}
    tokenizer = AutoTokenizer.from_pretrained(name, local_files_only=local_files_only, trust_remote_code=False, **kept)
    if not isinstance(tokenizer, PreTrainedTokenizerFast) or tokenizer.eos_token_id is None:
        raise ValueError(f"tokenizer={name!r}: must be a fast tokenizer with an end-of-text token")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


# ---- token file


@dataclass(frozen=True)
class TokenFile:
    """A flat file of token ids: each story, then the end-of-text token. Its facts are in `<path>.json` beside it."""

    path: Path
    tokens: int
    stories: int
    text_bytes: int  # UTF-8 bytes of the stories
    dtype: str  # "uint16" or "uint32"
    tokenizer: str  # sha256 of the tokeniser's definition
    source: str | None  # sha256 of the caller's description of the stories


def write_tokens(
    stories: Iterable[str], tokenizer: "PreTrainedTokenizerFast", path: Path, *, source: str | None = None
) -> TokenFile:
    """Tokenise `stories` into `path`, streaming; skipped when the file is there already, whole and of the same origin.

    source: describes the stories (`StorySplits.source` and the split's name). Without it nothing is ever skipped.

    A story that spells out a special token is tokenised as the text it is. Raises ValueError when there is no story.
    """
    digests = {
        "tokenizer": _tokenizer_digest(tokenizer),
        "source": None if source is None else hashlib.sha256(source.encode()).hexdigest(),
    }
    path = Path(path)
    present = _read_metadata(path)
    if present and source is not None and digests.items() <= asdict(present).items():
        return present
    path.parent.mkdir(parents=True, exist_ok=True)
    dtype = "uint16" if len(tokenizer) <= 65536 else "uint32"
    counts = dict.fromkeys(("tokens", "stories", "text_bytes"), 0)
    with _replacing(path) as partial, partial.open("wb") as file:
        for batch in batches(stories):
            ids = [token for row in _encode(tokenizer, batch) for token in (*row, tokenizer.eos_token_id)]
            np.asarray(ids, dtype=dtype).tofile(file)
            counts["tokens"] += len(ids)
            counts["stories"] += len(batch)
            counts["text_bytes"] += sum(len(story.encode()) for story in batch)
        if not counts["stories"]:
            raise ValueError(f"stories: none to write to {path}")
        file.flush()
        os.fsync(file.fileno())
        # Old facts must not outlive the tokens that they describe.
        _metadata_path(path).unlink(missing_ok=True)
    written = TokenFile(path=path, dtype=dtype, **counts, **digests)
    with _replacing(_metadata_path(path)) as partial:
        partial.write_text(json.dumps(asdict(written) | {"path": path.name}, indent=2) + "\n", encoding="utf-8")
    return written


def open_tokens(path: Path) -> np.memmap:
    """The tokens that `write_tokens` wrote to `path`, memory-mapped read-only, uint16 or uint32 [tokens].

    Raises FileNotFoundError where there is no whole token file.
    """
    token_file = _read_metadata(Path(path))
    if token_file is None:
        raise FileNotFoundError(f"{path}: no whole token file here; run write_tokens again")
    return np.memmap(token_file.path, dtype=token_file.dtype, mode="r", shape=(token_file.tokens,))


def _metadata_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def _read_metadata(path: Path) -> TokenFile | None:
    """Facts of the token file at `path`, or None where it is absent, unreadable or not of the stated size."""
    try:
        facts = json.loads(_metadata_path(path).read_text(encoding="utf-8"))
        token_file = TokenFile(**(facts | {"path": path}))
        whole = token_file.dtype in ("uint16", "uint32") and (
            path.stat().st_size == token_file.tokens * np.dtype(token_file.dtype).itemsize > 0
        )
    except (FileNotFoundError, ValueError, TypeError):
        return None
    return token_file if whole else None


@contextlib.contextmanager
def _replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path` that becomes `path` when the block ends well, and vanishes when it does not."""
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _tokenizer_digest(tokenizer: "PreTrainedTokenizerFast") -> str:
    definition = json.loads(tokenizer.backend_tokenizer.to_str())
    # Left behind by earlier calls of the tokeniser; they do not change the ids written here.
    del definition["truncation"], definition["padding"]
    definition["end_of_text"] = tokenizer.eos_token_id
    return hashlib.sha256(json.dumps(definition, sort_keys=True).encode()).hexdigest()
