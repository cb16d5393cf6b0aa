"""The Hugging Face hub: whether it answers, and what to say if something cannot be read from it."""

import contextlib
import urllib.error
import urllib.request
from collections.abc import Iterator

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


def answers() -> bool:
    """Whether the hub answers within five seconds; the libraries would try for minutes."""
    import huggingface_hub.constants as hub

    try:
        request = urllib.request.Request(hub.ENDPOINT, method="HEAD")
        urllib.request.urlopen(request, timeout=5).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


@contextlib.contextmanager
def reading(*, name: str, source: str) -> Iterator[None]:
    """Turns what a library raises inside the block into a ValueError that names the parameter and says what to do.

    Where the hub does not answer, what is cached may be enough, and the libraries do not try again.
    """
    import huggingface_hub.constants as hub

    was_offline = hub.HF_HUB_OFFLINE
    hub.HF_HUB_OFFLINE = was_offline or not (source_path(name, source) or answers())
    try:
        yield
    except Exception as error:
        raise ValueError(
            f"{name}={source!r} cannot be read ({error}). Check the name. A gated repository needs its licence accepted on "
            "https://huggingface.co and a token in the secret HF_TOKEN. Without a network set data_source='sample' and, where the "
            "notebook has it, base_model='sample', too; or give local paths"
        ) from error
    finally:
        hub.HF_HUB_OFFLINE = was_offline
