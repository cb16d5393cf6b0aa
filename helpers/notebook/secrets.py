"""Tokens from the environment or the secrets of Colab or Kaggle. They are never printed."""

from __future__ import annotations

import os


def provide(name: str) -> bool:
    """Puts a secret (HF_TOKEN, WANDB_API_KEY) into this process's environment; returns whether it is there."""
    if not os.environ.get(name):
        value = _from_colab(name) or _from_kaggle(name)
        if value:
            os.environ[name] = value
    return bool(os.environ.get(name))


def _from_colab(name: str) -> str | None:
    try:
        from google.colab import userdata

        return userdata.get(name)
    except Exception:  # not in Colab, missing or not granted; the classes differ by frontend
        return None


def _from_kaggle(name: str) -> str | None:
    try:
        from kaggle_secrets import UserSecretsClient

        return UserSecretsClient().get_secret(name)
    except Exception:  # not on Kaggle, no such secret, or a network error
        return None
