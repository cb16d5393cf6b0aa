"""The Hugging Face hub: whether it is there, and what to say where a data set cannot be read from it."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path
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
def reading(source: str, name: str = "data_source") -> Iterator[None]:
    """Turns what a library raises inside into a Connection-, FileNotFound- or ValueError that names the parameter."""
    import datasets.config
    import huggingface_hub.errors
    from datasets.utils.extract import Extractor

    # huggingface_hub itself tries for 23 s each time; datasets' 20 times would take ten minutes.
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    said = f"{name}={source!r}"
    files = Path(source).rglob("*") if name == "data_source" else ()
    if packed := next((file for file in files if file.is_file() and Extractor.infer_extractor_format(file)), None):
        raise ValueError(f"{said}: {packed.name} is packed; unpack it, if it is not too large")
    try:
        yield
    except (ConnectionError, huggingface_hub.errors.LocalEntryNotFoundError) as error:
        raise ConnectionError(
            f'{said}: the Hugging Face hub cannot be reached ({error}). Use {name}="sample" or a path to a local file'
        ) from error
    except FileNotFoundError as error:  # also what datasets raises for an id that is not on the hub
        raise FileNotFoundError(f"{said}: cannot be read ({error})") from error
    except Exception as error:
        raise ValueError(
            str(error) if said in str(error) else f"{said}: cannot be read ({error.__cause__ or error!r})"
        ) from error


def train_split(data_source: str, splits: Mapping[str, Any]):
    """The split `train`. Raises ValueError where there is none."""
    if "train" not in splits:
        raise ValueError(f"data_source={data_source!r}: no split `train`; splits found: {', '.join(splits)}")
    return splits["train"]
