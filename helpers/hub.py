"""Whether the Hugging Face hub is there."""

from __future__ import annotations

import urllib.error
import urllib.request


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
