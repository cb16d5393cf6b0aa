"""The Hugging Face hub: whether it answers, and what to say if something cannot be read from it."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


def answers(timeout: float = 5.0) -> bool:
    """Whether the hub answers within `timeout` seconds; False at once in offline mode.

    `from_pretrained` needs most of a minute of retries to find that out.
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
def reading(source: str, name: str = "data_source") -> Iterator[None]:
    """Turns what a library raises inside into a ConnectionError, FileNotFoundError or ValueError with the parameter's name."""
    import datasets.config
    import huggingface_hub.errors
    from datasets.utils.extract import Extractor

    # huggingface_hub tries for 23 s each time, so the 20 times of datasets would take ten minutes.
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    said = f"{name}={source!r}"
    files = Path(source).rglob("*") if name == "data_source" else ()
    if packed := next((file for file in files if file.is_file() and Extractor.infer_extractor_format(file)), None):
        raise ValueError(f"{said}: {packed.name} is compressed; unpack it first")
    try:
        yield
    except (ConnectionError, huggingface_hub.errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f'{said}: the Hugging Face hub cannot be reached ({error}). Use {name}="sample" or a path to a local file'
        ) from error
    except FileNotFoundError as error:  # also what datasets raises for an id that is not on the hub
        raise FileNotFoundError(f"{said}: cannot be read ({error}); check the name") from error
    except Exception as error:
        raise ValueError(
            str(error) if said in str(error) else f"{said}: cannot be read ({error.__cause__ or error!r})"
        ) from error


def train_split(data_source: str, splits: Mapping[str, Any]):
    """The split `train`. Raises ValueError if there is none."""
    if "train" not in splits:
        raise ValueError(f"data_source={data_source!r}: no split `train`; splits found: {', '.join(splits)}")
    return splits["train"]
