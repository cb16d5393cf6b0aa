"""The Hugging Face hub: whether it is there, and what to say where a data set cannot be read from it."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from typing import Any


def answers(timeout: float = 5.0) -> bool:
    """True where the hub answers within so many seconds; False at once in offline mode.

    `from_pretrained` takes most of a minute of retries to find out that it does not.
    """
    import huggingface_hub.constants as hub

    if hub.HF_HUB_OFFLINE:
        return False
    try:
        with urllib.request.urlopen(urllib.request.Request(hub.ENDPOINT, method="HEAD"), timeout=timeout):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False


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
