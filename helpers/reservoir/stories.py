"""Where the stories come from."""

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.data import data_files, hub
from helpers.data.data_source import DataSource, located
from helpers.parameters import SAMPLE, source_path
from helpers.reservoir.sample import sample_stories

TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
END_OF_TEXT = "<|endoftext|>"
COLUMNS = ("text", "story")
SAMPLE_STORIES = 4000
MIN_STORIES = 20
VALIDATION_SHARE, MAX_VALIDATION_STORIES = 0.05, 2000


@dataclass(frozen=True)
class StorySplits(DataSource):
    """Stories to train and to validate on; no text is in both."""

    train: list[str]
    validation: list[str]
    duplicates_removed: int  # of hub data only validation stories seen before


def load_stories(data_source: str, *, num_stories: int, seed: int) -> StorySplits:
    """Stories from `data_source`, without duplicates between the two splits.

    data_source: "sample" (4,000 stories when num_stories is 0), a local .txt (stories parted by `<|endoftext|>`, or where
        there is none by blank lines), .jsonl or .parquet (column `text` or `story`), a hub id, or a folder in hub layout.
    num_stories: 0 takes all. Local and sample data: how many in all, 5 % of them (1 to 2,000) for validation. Hub data:
        how many training stories; the validation split is kept whole, and where there is none 5 % are split off.

    Raises ValueError (too few stories, no such column, a damaged file), FileNotFoundError
    and ConnectionError (hub not reachable and nothing cached).
    """
    data_source = located(data_source)
    path = source_path("data_source", data_source)
    name, revision = path.name if path else data_source, None
    if data_source == SAMPLE:
        found = _split(sample_stories(num_stories or SAMPLE_STORIES, seed), name, num_stories, seed)
    elif path and path.is_file():
        found = _split(_read_file(path), name, num_stories, seed)
    else:
        revision = TINYSTORIES_REVISION if data_source == TINYSTORIES and not path else None
        found = _from_splits(hub.splits(data_source, revision=revision), name, num_stories, seed)
    train, validation, digests, removed = found
    sha256, draw = hashlib.sha256(b"".join(digests)).hexdigest(), f"{num_stories or 'all'} stories, seed {seed}"
    return StorySplits(train, validation, removed, name=name, sha256=sha256, revision=revision, draw=draw)


def batches(stories: Sequence[str], size: int = 1000) -> Iterator[Sequence[str]]:
    """`stories` in pieces of `size`."""
    for start in range(0, len(stories), size):
        yield stories[start : start + size]


def _read_file(path: Path) -> Iterable[str]:
    file = f"data_source={str(path)!r}"
    if read := {".jsonl": data_files.jsonl, ".parquet": data_files.parquet}.get(path.suffix):
        return _told(str(path), read(file, path))
    if path.suffix != ".txt":
        raise ValueError(f"{file}: cannot read {path.suffix or 'no suffix'}; use .txt, .jsonl, .parquet")
    try:
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{file}: not UTF-8 ({error}); save the file as UTF-8") from error
    return text.split(END_OF_TEXT) if END_OF_TEXT in text else re.split(r"\n\s*\n", text)


def _told(data_source: str, rows: Iterable[data_files.Row]) -> Iterator[str]:
    column = None
    for where, _, values in rows:
        column = column or _text_column(data_source, list(values))
        if not isinstance(values.get(column, 0), str | None):
            raise ValueError(f"{where} has no text in field {column!r}; its fields: {list(values)}")
        yield values[column]


def _text_column(data_source: str, found: Sequence[str]) -> str:
    for column in COLUMNS:
        if column in found:
            return column
    raise ValueError(f"data_source={data_source!r}: no column `text` or `story`; columns found: {', '.join(found)}")


def _split(stories: Iterable[str], name: str, num_stories: int, seed: int):
    """Stories to train and to validate on, digests and the number of repeats: shuffled, `num_stories` taken, 5 % held out."""
    unique, repeats = _unique(stories)
    kept = list(unique.values())
    random.Random(seed).shuffle(kept)
    kept = kept[: num_stories or None]
    _check_enough(len(kept), name)
    held_out = _held_out(len(kept))
    return kept[held_out:], kept[:held_out], map(_digest, kept), repeats


def _from_splits(splits: Any, name: str, num_stories: int, seed: int):
    """The same of a `datasets.DatasetDict`, in which validation stories that are trained on are the repeats."""
    train = splits["train"]
    column = _text_column(name, train.column_names)
    if getattr(train.features[column], "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"data_source={name!r}: column {column!r} is {train.features[column]}, not text")
    _check_enough(len(train), name)
    if "validation" in splits:
        held_out = splits["validation"]
    else:
        train, held_out = train.train_test_split(test_size=_held_out(len(train)), seed=seed).values()
    if num_stories:
        train = train.shuffle(seed=seed).select(range(min(num_stories, len(train))))
    stories = [story for story in train[column][:] if story and story.strip()]
    _check_enough(len(stories), name)
    unique, repeats = _unique(held_out[_text_column(name, held_out.column_names)][:])
    digests = list(map(_digest, stories))
    trained = set(digests)
    validation = [story for digest, story in unique.items() if digest not in trained]
    if not validation:
        raise ValueError(f"data_source={name!r}: every validation story is also a training story")
    return stories, validation, [*unique, *digests], repeats + len(unique) - len(validation)


def _unique(stories: Iterable[str | None]) -> tuple[dict[bytes, str], int]:
    """Stories by digest, blank ones and repeats left out, and how many repeats there were."""
    told = [story.strip() for story in stories if story and story.strip()]
    unique: dict[bytes, str] = {}
    for story in told:
        unique.setdefault(_digest(story), story)
    return unique, len(told) - len(unique)


def _digest(story: str) -> bytes:
    return hashlib.blake2b(" ".join(story.split()).encode(), digest_size=16).digest()


def _held_out(count: int) -> int:
    return min(max(1, int(VALIDATION_SHARE * count)), MAX_VALIDATION_STORIES)


def _check_enough(count: int, data_source: str) -> None:
    if count < MIN_STORIES:
        raise ValueError(f"data_source={data_source!r}: {count} different stories; at least {MIN_STORIES} are needed")
