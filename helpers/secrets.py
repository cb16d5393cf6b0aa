"""Tokens from where they are kept: Colab's or Kaggle's vault, then the environment, then none. Never printed."""

from __future__ import annotations

import os


def provide(name: str) -> bool:
    """Puts a secret from the platform's vault into this process's environment; True if it is there afterwards.

    Args:
        name: HF_TOKEN or WANDB_API_KEY.
    """
    if not os.environ.get(name) and (value := _from_colab(name) or _from_kaggle(name)):
        os.environ[name] = value
    return bool(os.environ.get(name))


def _from_colab(name: str) -> str | None:
    try:
        from google.colab import userdata
    except ImportError:
        return None
    try:
        return userdata.get(name)
    except Exception:  # missing, not granted, or not in the browser: the classes differ by frontend, each means none
        return None


def _from_kaggle(name: str) -> str | None:
    try:
        from kaggle_secrets import UserSecretsClient
    except ImportError:
        return None
    try:
        return UserSecretsClient().get_secret(name)
    except Exception:  # BackendError or a network error of its own: no such secret here
        return None
