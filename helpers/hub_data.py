"""Data sets of the Hugging Face hub: the split to train on, and what to do where there is none."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any


@contextlib.contextmanager
def reading(data_source: str) -> Iterator[None]:
    """Turns what `datasets` raises inside into a ConnectionError or FileNotFoundError that names `data_source`."""
    import huggingface_hub.errors

    try:
        yield
    except (ConnectionError, huggingface_hub.errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f"data_source={data_source!r}: the Hugging Face hub cannot be reached ({error}). "
            'Use data_source="sample" or a path to a local file'
        ) from error
    except FileNotFoundError as error:  # also what datasets raises for an id that is not on the hub
        raise FileNotFoundError(f"data_source={data_source!r}: cannot be read ({error})") from error


def train_split(data_source: str, splits: Mapping[str, Any]):
    """The split `train`. Raises ValueError where there is none."""
    if "train" not in splits:
        raise ValueError(f"data_source={data_source!r}: no split `train`; splits found: {', '.join(splits)}")
    return splits["train"]
