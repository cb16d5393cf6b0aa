"""Where the stories come from: the embedded grammar, a local file or directory, or a data set on the Hugging Face hub."""

import hashlib
import itertools
import json
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from helpers.reservoir.sample import sample_stories

TINYSTORIES = "roneneldan/TinyStories"
TINYSTORIES_REVISION = "f54c09fd23315a6f9c86f9dc80f725de7d8f9c64"
END_OF_TEXT = "<|endoftext|>"
COLUMNS = ("text", "story")
SAMPLE_STORIES = 4000
MIN_STORIES = 20
VALIDATION_SHARE, MAX_VALIDATION_STORIES = 0.05, 2000
_SUFFIXES = (".txt", ".jsonl", ".parquet")


@dataclass(frozen=True)
class StorySplits:
    """Stories to train and to validate on; no text is in both (white space aside).

    `train` is a list, or for hub data a `datasets` column that reads memory-mapped files as it is indexed.
    """

    train: Sequence[str]
    validation: Sequence[str]
    source: str  # data source, number of stories, seed and a digest of the texts: the same string means the same data
    duplicates_removed: int  # local and sample data: any repeat; hub data: validation stories seen before


def load_stories(
    data_source: str, *, num_stories: int, seed: int, revision: str | None = TINYSTORIES_REVISION
) -> StorySplits:
    """Stories from `data_source`, without duplicates between the two splits.

    data_source: "sample" (embedded grammar; 4,000 stories when num_stories is 0), a local .txt (stories parted by
        `<|endoftext|>`, or where there is none by blank lines), .jsonl or .parquet (column `text` or `story`), or a hub
        id such as "roneneldan/TinyStories". A local directory in hub layout is read like a hub id.
    num_stories: 0 takes all. Local and sample data: how many in all, 5 % of them (1 to 2,000) for validation. Hub data:
        how many training stories, a seeded draw from all of them; the data set's own validation split is kept whole,
        and where it has none 5 % are split off.
    revision: of a hub id. The default is the pinned one of TinyStories and counts for that id only: another id with
        the default is read at its newest revision.

    Local files are read into memory. Raises ValueError (too few stories, no such column, not UTF-8),
    FileNotFoundError (no such path or hub id) and ConnectionError (hub not reachable and nothing cached).
    """
    if num_stories < 0 or 0 < num_stories < MIN_STORIES:
        raise ValueError(f"num_stories={num_stories}: must be 0 (all) or at least {MIN_STORIES}")
    if data_source == "sample":
        return _split(sample_stories(num_stories or SAMPLE_STORIES, seed), data_source, num_stories, seed)
    path = Path(data_source).expanduser()
    if path.is_dir():
        return _from_splits(_load_dataset(data_source, str(path), None), data_source, num_stories, seed)
    if path.is_file():
        return _split(_read_file(path), data_source, num_stories, seed)
    if path.suffix in _SUFFIXES or data_source.count("/") != 1 or data_source.startswith((".", "/", "~")):
        raise FileNotFoundError(
            f'data_source={data_source!r}: no such file. Use "sample", a path to a {", ".join(_SUFFIXES)} file '
            f'or a hub id "owner/name" such as "{TINYSTORIES}"'
        )
    if revision == TINYSTORIES_REVISION and data_source != TINYSTORIES:
        revision = None
    named = f"{data_source}@{revision}" if revision else data_source
    return _from_splits(_load_dataset(data_source, data_source, revision), named, num_stories, seed)


def batches(stories: Iterable[str], size: int = 1000) -> Iterator[list[str]]:
    """`stories` in lists of `size`; a sequence is sliced, which a `datasets` column answers ten times faster."""
    if isinstance(stories, Sequence):
        for start in range(0, len(stories), size):
            yield list(stories[start : start + size])
        return
    iterator = iter(stories)
    while batch := list(itertools.islice(iterator, size)):
        yield batch


# ---- local files


def _read_file(path: Path) -> list[str]:
    if path.suffix == ".txt":
        return list(_read_text(path))
    if path.suffix == ".jsonl":
        return list(_read_jsonl(path))
    if path.suffix == ".parquet":
        return _read_parquet(path)
    raise ValueError(f"data_source={str(path)!r}: cannot read {path.suffix or 'no suffix'}; use {', '.join(_SUFFIXES)}")


def _lines(path: Path) -> Iterator[str]:
    """Lines of a UTF-8 file without their ends; decoded one by one, so that an error can say where it is."""
    position = 0
    with path.open("rb") as file:
        for line in file:
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                raise ValueError(
                    f"data_source={str(path)!r}: not UTF-8 at byte {position + error.start} ({error.reason}); "
                    "save the file as UTF-8"
                ) from error
            yield (text.removeprefix("\ufeff") if position == 0 else text).rstrip("\r\n")
            position += len(line)


def _read_text(path: Path) -> Iterator[str]:
    marked = any(END_OF_TEXT in line for line in _lines(path))
    story: list[str] = []
    for line in _lines(path):
        pieces = line.split(END_OF_TEXT) if marked else [line]
        story.append(pieces[0])
        for piece in pieces[1:]:
            yield "\n".join(story)
            story = [piece]
        if not marked and not line.strip():
            yield "\n".join(story)
            story = []
    yield "\n".join(story)


def _read_jsonl(path: Path) -> Iterator[str]:
    column = None
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"data_source={str(path)!r}: line {number} is not JSON ({error})") from error
        if not isinstance(record, dict):
            raise ValueError(f"data_source={str(path)!r}: line {number} is not a JSON object with a field `text`")
        column = column or _text_column(str(path), list(record))
        if not isinstance(record.get(column), str):
            raise ValueError(
                f"data_source={str(path)!r}: line {number} has no text in field {column!r}; its fields: {list(record)}"
            )
        yield record[column]


def _read_parquet(path: Path) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        column = _text_column(str(path), pyarrow.parquet.read_schema(path).names)
        stories = pyarrow.parquet.read_table(path, columns=[column])[column].to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"data_source={str(path)!r}: not a readable parquet file ({error})") from error
    if not all(isinstance(story, str | None) for story in stories):
        raise ValueError(f"data_source={str(path)!r}: column {column!r} holds no text")
    return [story or "" for story in stories]


def _text_column(data_source: str, found: Sequence[str]) -> str:
    for column in COLUMNS:
        if column in found:
            return column
    raise ValueError(f"data_source={data_source!r}: no column `text` or `story`; columns found: {', '.join(found)}")


def _split(stories: Sequence[str], data_source: str, num_stories: int, seed: int) -> StorySplits:
    """Drop blank stories and repeats, shuffle, take `num_stories`, hold 5 % out."""
    unique: dict[bytes, str] = {}
    blank = 0
    for story in stories:
        if story.strip():
            unique.setdefault(_digest(story), story.strip())
        else:
            blank += 1
    kept = list(unique.values())
    random.Random(seed).shuffle(kept)
    kept = kept[: num_stories or None]
    _check_enough(len(kept), data_source)
    held_out = min(max(1, int(VALIDATION_SHARE * len(kept))), MAX_VALIDATION_STORIES)
    texts = hashlib.sha256(b"".join(map(_digest, kept))).hexdigest()
    return StorySplits(
        train=kept[held_out:],
        validation=kept[:held_out],
        source=_describe(data_source, num_stories, seed, texts),
        duplicates_removed=len(stories) - blank - len(unique),
    )


# ---- hub data


def _load_dataset(data_source: str, name: str, revision: str | None) -> Any:
    import datasets
    import huggingface_hub.errors

    try:
        return datasets.load_dataset(name, revision=revision)
    except (ConnectionError, huggingface_hub.errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f"data_source={data_source!r}: the Hugging Face hub cannot be reached ({error}). "
            'Use data_source="sample" or a path to a local file'
        ) from error
    except FileNotFoundError as error:  # also what datasets raises for an id that is not on the hub
        raise FileNotFoundError(f"data_source={data_source!r}: cannot be read ({error})") from error


def _from_splits(splits: Any, data_source: str, num_stories: int, seed: int) -> StorySplits:
    """Two columns of a `datasets.DatasetDict`; validation stories that are trained on are dropped."""
    if "train" not in splits:
        raise ValueError(f"data_source={data_source!r}: no split `train`; splits found: {', '.join(splits)}")
    train = splits["train"]
    column = _text_column(data_source, train.column_names)
    if getattr(train.features[column], "dtype", None) not in ("string", "large_string"):
        raise ValueError(f"data_source={data_source!r}: column {column!r} is {train.features[column]}, not text")
    if "validation" in splits:
        held_out = splits["validation"]
    else:
        size = min(max(1, int(VALIDATION_SHARE * len(train))), MAX_VALIDATION_STORIES)
        parts = train.train_test_split(test_size=size, seed=seed)
        train, held_out = parts["train"], parts["test"]
    if num_stories:
        train = train.shuffle(seed=seed).select(range(min(num_stories, len(train))))

    validation: dict[bytes, str] = {}
    blank = 0
    for story in held_out[_text_column(data_source, held_out.column_names)]:
        if story and story.strip():
            validation.setdefault(_digest(story), story.strip())
        else:
            blank += 1
    kept: list[int] = []
    texts = hashlib.sha256(b"".join(validation))
    for start, batch in zip(itertools.count(0, 1000), batches(train[column], 1000), strict=False):
        for row, story in enumerate(batch, start):
            if story and story.strip():
                kept.append(row)
                digest = _digest(story)
                validation.pop(digest, None)
                texts.update(digest)
    if len(kept) < len(train):
        train = train.select(kept)
    _check_enough(len(kept), data_source)
    if not validation:
        raise ValueError(f"data_source={data_source!r}: every validation story is also a training story")
    return StorySplits(
        train=train[column],
        validation=list(validation.values()),
        source=_describe(data_source, num_stories, seed, texts.hexdigest()),
        duplicates_removed=len(held_out) - blank - len(validation),
    )


# ---- both


def _digest(story: str) -> bytes:
    return hashlib.blake2b(" ".join(story.split()).encode(), digest_size=16).digest()


def _check_enough(count: int, data_source: str) -> None:
    if count < MIN_STORIES:
        raise ValueError(f"data_source={data_source!r}: {count} different stories; at least {MIN_STORIES} are needed")


def _describe(data_source: str, num_stories: int, seed: int, texts: str) -> str:
    # The name alone of a local file: results are shared, and the digest says which file it was.
    name = Path(data_source).name if Path(data_source).expanduser().exists() else data_source
    return f"{name}, {num_stories or 'all'} stories, seed {seed}, sha256 {texts[:16]}"
