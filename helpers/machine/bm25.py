"""The package bm25s, which two rooms search with."""

import sys


def import_bm25s():
    """bm25s without JAX, which it calls while it is imported: that takes a GPU's memory, or a TPU away from torch_xla."""
    if "bm25s" not in sys.modules:
        jax, sys.modules["jax"] = sys.modules.get("jax"), None
        try:
            import bm25s  # noqa: F401
        finally:
            del sys.modules["jax"]
            if jax is not None:
                sys.modules["jax"] = jax
    return sys.modules["bm25s"]
