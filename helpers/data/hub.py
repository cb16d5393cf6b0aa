"""The Hugging Face hub: whether it answers, and what to say if something cannot be read from it."""

from __future__ import annotations

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

from helpers.parameters import source_path

BERT = "google-bert/bert-base-uncased"
EMBEDDING_GEMMA = "google/embeddinggemma-300m"
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
MPNET = "sentence-transformers/all-mpnet-base-v2"
REVISIONS = {  # of encoders that more than one room starts from; of other models the newest is read
    BERT: "86b5e0934494bd15c9632b12f734a8a67f723594",
    EMBEDDING_GEMMA: "64614b0b8b64f0c6c1e52b07e4e9a4e8fe4d2da2",  # the one of MTEB's published results
    MINILM: "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
    MPNET: "e8c3b32edf5434bc2275fc9bab85f82640a19130",
}
OFFLINE = 'Without a network set data_source="sample" and, where the notebook has it, base_model="sample", too; or give local paths'


def answers(timeout: float = 5.0) -> bool:
    """Whether the hub answers within `timeout` seconds; False at once in offline mode."""
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
def reading(*, name: str, source: str) -> Iterator[None]:
    """Turns what a library raises inside the block into an error that names the parameter.

    Where the hub does not answer, what is cached may be enough; the libraries would try again for most of a minute.

    The error is a PermissionError for a gated repository, else a ConnectionError, a FileNotFoundError or a ValueError.
    """
    import datasets.config
    import huggingface_hub.constants
    from huggingface_hub.errors import GatedRepoError, LocalEntryNotFoundError, RepositoryNotFoundError

    # huggingface_hub tries for 23 s each time, so the 20 times of datasets would take ten minutes.
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    was_offline = huggingface_hub.constants.HF_HUB_OFFLINE
    if source_path(name, source) is None:
        huggingface_hub.constants.HF_HUB_OFFLINE = not answers()
    beginning = f"{name}={source!r}"
    try:
        yield
    except Exception as error:
        causes = _causes(error)
        if _is_one_of(causes, GatedRepoError):
            raise PermissionError(
                f"{beginning} is gated. Accept its licence on https://huggingface.co/{source}, and put a token that may read it into "
                f"the secret HF_TOKEN ({error})"
            ) from error
        if _is_one_of(causes, ConnectionError, LocalEntryNotFoundError):
            raise ConnectionError(
                f"{beginning}: the Hugging Face hub cannot be reached. {OFFLINE} ({error})"
            ) from error
        if _is_one_of(causes, RepositoryNotFoundError, FileNotFoundError):  # the latter by datasets, for an unknown id
            raise FileNotFoundError(f"{beginning} cannot be read or is not there; check the name ({error})") from error
        if beginning in str(error):
            raise ValueError(str(error)) from error
        raise ValueError(f"{beginning} cannot be read ({error.__cause__ or error!r})") from error
    finally:
        huggingface_hub.constants.HF_HUB_OFFLINE = was_offline


def _causes(error: BaseException) -> list[BaseException]:
    """An error and, since transformers raises OSError for all, what caused it."""
    causes = [error]
    while isinstance(error, OSError) and (cause := causes[-1].__cause__ or causes[-1].__context__):
        causes.append(cause)
    return causes


def _is_one_of(causes: list[BaseException], *kinds: type[BaseException]) -> bool:
    return any(isinstance(cause, kinds) for cause in causes)


def splits(data_source: str, **options: Any):
    """The splits of a hub set. Raises as `reading`, and ValueError if none is `train`."""
    import datasets

    with reading(name="data_source", source=data_source):
        parts = datasets.load_dataset(data_source, **options)
    if "train" not in parts:
        raise ValueError(f"data_source={data_source!r}: no split `train`; its splits: {', '.join(parts)}")
    return parts
