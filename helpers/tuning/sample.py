"""What runs with no network: docstrings of the installed Python, labelled by package, and a tiny random BERT."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# Packages that every installed Python has; which of them a docstring is from is its label.
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def sample_rows() -> Iterator[tuple[str, str, str]]:
    """Split, docstring and package."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        for file in sorted((library / package).rglob("*.py")):
            if "test" in file.parts:
                continue
            for node in ast.walk(ast.parse(file.read_bytes())):
                text = isinstance(node, DOCUMENTED) and ast.get_docstring(node)
                if text:
                    yield "train", text, package


def sample_classifier(texts: Iterable[str], seed: int, config: dict):
    """(model, tokeniser): the tiny random encoder of the suite, which knows the most frequent words of the texts."""
    from transformers import AutoModelForSequenceClassification

    from helpers.train.sentence_encoder import load_sentence_encoder

    encoder = load_sentence_encoder("sample", max_seq_length=0, seed=seed, texts=texts)
    shape = encoder.transformers_model.config
    for name, value in config.items():
        setattr(shape, name, value)
    tokenizer = encoder.tokenizer
    tokenizer.model_max_length = shape.max_position_embeddings
    return AutoModelForSequenceClassification.from_config(shape), tokenizer
