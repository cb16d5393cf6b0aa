"""What runs with no network: docstrings of the installed Python, labelled by package, and a tiny random BERT."""

from __future__ import annotations

import ast
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path

# Packages that every installed Python has; which of them a docstring is from is its label.
PACKAGES = ("asyncio", "email", "http", "importlib", "logging", "multiprocessing", "unittest", "xml")
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
VOCABULARY, POSITIONS = 2048, 512


def sample_rows() -> Iterator[tuple[str, str]]:
    """(docstring, package)."""
    library = Path(sysconfig.get_paths()["stdlib"])
    for package in PACKAGES:
        for file in sorted((library / package).rglob("*.py")):
            if "test" in file.parts:
                continue
            for node in ast.walk(ast.parse(file.read_bytes())):
                if isinstance(node, DOCUMENTED):
                    text = ast.get_docstring(node)
                    if text:
                        yield text, package


def sample_classifier(texts: Iterable[str], config: dict):
    """(model, tokeniser) of two layers, and a byte-level BPE of at most 2,048 entries that is learned from `texts`."""
    from tokenizers import ByteLevelBPETokenizer, Tokenizer, processors
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    backend = ByteLevelBPETokenizer(lowercase=True, add_prefix_space=True)
    special = ["[PAD]", "[CLS]", "[SEP]"]
    backend.train_from_iterator(texts, VOCABULARY, min_frequency=0, show_progress=False, special_tokens=special)
    ends = [(name, backend.token_to_id(name)) for name in special[1:]]
    backend.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(backend.to_str()), model_max_length=POSITIONS, pad_token="[PAD]"
    )
    sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 256}
    shape = BertConfig(
        vocab_size=len(tokenizer), max_position_embeddings=POSITIONS, pad_token_id=0, use_cache=False, **sizes, **config
    )
    return BertForSequenceClassification(shape), tokenizer
