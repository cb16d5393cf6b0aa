"""Which model `base_model="auto"` is: EmbeddingGemma where this account may have it and this machine can train it.

params, reason = chosen(params, machine)
"""

from __future__ import annotations

import os

from helpers import hub, run_folder, secrets
from helpers.runtime import Runtime

from .parameters import AUTO, EMBEDDING_GEMMA, MINILM, MPNET, EmbeddingParameters


def chosen(params: EmbeddingParameters, machine: Runtime) -> tuple[EmbeddingParameters, str]:
    """The parameters with a model's name in the place of "auto", and why it is this one.

    A run that goes on keeps the model that it began with, whatever the hub says now.
    """
    if params.base_model != AUTO:
        return params, "asked for"
    began = run_folder.begun(params.output_dir).get("base_model")
    name, reason = (began, "the run in output_dir began with it") if began else _choice(machine)
    return params.model_copy(update={"base_model": name}), reason


def _choice(machine: Runtime) -> tuple[str, str]:
    free = MINILM if machine.kind == "cpu" else MPNET
    if machine.kind == "cpu":
        why_not = f"{EMBEDDING_GEMMA} takes hours on a CPU"
    elif machine.precision == "fp16":
        why_not = f"{EMBEDDING_GEMMA} overflows in fp16, and {machine.device_name} has no bf16"
    elif _cached(EMBEDDING_GEMMA):
        return EMBEDDING_GEMMA, "it is in the cache"
    elif problem := _refused(EMBEDDING_GEMMA):
        why_not = f"{EMBEDDING_GEMMA} cannot be had: {problem}"
    else:
        return EMBEDDING_GEMMA, "this account may have it"
    if not _cached(free) and not hub.answers():
        free = next((name for name in (MPNET, MINILM) if _cached(name)), free)
    return free, why_not


def _cached(name: str) -> bool:
    from huggingface_hub import try_to_load_from_cache

    from .model import REVISIONS  # not before the device is known: it imports what runs for a TPU or does not

    return isinstance(try_to_load_from_cache(name, "config.json", revision=REVISIONS[name]), str)


def _refused(name: str) -> str:
    """Why the hub would not give this model to this account; "" where it would."""
    from huggingface_hub import auth_check
    from huggingface_hub.errors import HfHubHTTPError

    if not hub.answers():
        return "the hub cannot be reached"
    secrets.provide("HF_TOKEN")
    token = os.environ.get("HF_TOKEN") or None
    try:
        auth_check(name, token=token)
    except (HfHubHTTPError, OSError):
        missing = "this account has not accepted its licence" if token else "there is no HF_TOKEN"
        return f"{missing}; see https://huggingface.co/{name}"
    return ""
