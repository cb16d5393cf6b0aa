"""Text of a graph's entities, and its tokens: byte-level BPE that is cut at the boundaries inside identifiers.

# V vocabulary
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from .graph.knowledge_graph import Entity, KnowledgeGraph

SPECIAL_TOKENS = ("[PAD]", "[MASK]", "[SEP]")
PAD, MASK, SEP = range(3)  # their ids
CHUNK = 2000  # texts that are encoded at a time
LONGEST_TOKEN = 20  # bytes; rulers of dashes would else be entries of their own
NAMES_ONLY = frozenset({"parameter", "variable", "field"})  # their lines are part of what they belong to

# A newline · the indentation of a line · a word of an identifier with the underscores before it: `HTTPServer2` is HTTP, Server, 2 and
# `__read_only` is __read, _only · underscores at the end · anything else. ` name` and `.name` hold the same token.
_WORD = r"_*(?:\p{Lu}+(?=\p{Lu}\p{Ll})|\p{Lu}?[\p{Ll}\p{Lo}\p{Lm}\p{M}]+|\p{Lu}+|\p{N}{1,3})"
_PIECES = rf"\n|^[ \t]+|{_WORD}|_+|[^\n_\p{{L}}\p{{M}}\p{{N}}]+"


# ---- documents


def shown_name(entity_id: str) -> str:
    """`a.f.g` of `a.f.<locals>.g`: what is inside a function is owned by it."""
    return entity_id.replace(".<locals>", "")


def entity_text(entity: Entity) -> str:
    """What an entity is without its source: `method json.encoder.JSONEncoder.default`."""
    return f"{entity.type} {shown_name(entity.id)}"


def leaf_text(entity: Entity) -> str:
    """The name of an entity as a tail: its last two parts, `JSONEncoder.default`."""
    name = shown_name(entity.id).rpartition("/")[2]
    return ".".join(name.split(".")[-2:])


class Documents:
    """The text of every entity of a graph: its name, and the source lines that define it where there are some."""

    def __init__(self, graph: KnowledgeGraph):
        self.graph = graph
        self._lines = {module: text.split("\n") for module, text in graph.texts.items()}

    def text(self, entity_id: str) -> str:
        """The qualified name, a newline and the source lines, dedented; only the name where there are none."""
        entity = self.graph.entities[entity_id]
        if not entity.line or entity.module not in self._lines or entity.type in NAMES_ONLY:
            return shown_name(entity_id)
        return definition_text(entity_id, self._lines[entity.module][entity.line - 1 : entity.end_line])


def definition_text(name: str, lines: Sequence[str]) -> str:
    """The qualified name, a newline and source lines, dedented."""
    source = "\n".join(lines)
    indentation = len(source) - len(source.lstrip(" \t"))
    if indentation:
        source = re.sub(rf"(?m)^[ \t]{{1,{indentation}}}", "", source)
    return f"{shown_name(name)}\n{source}"


# ---- tokens


def train_tokenizer(texts: Iterable[str], vocab_size: int):
    """A PreTrainedTokenizerFast: byte-level BPE of at most `vocab_size` entries, the same for the same texts; [PAD], [MASK], [SEP] are 0, 1, 2.

    No token crosses a boundary of identifier, camelCase or snake_case word, number, line or indentation. Decoding gives the text
    back.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(_PIECES), behavior="isolated")
    bytes_ = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=LONGEST_TOKEN,
        show_progress=False,
    )
    backend.train_from_iterator(texts, trainer)
    pad, mask, sep = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token=pad,
        mask_token=mask,
        sep_token=sep,
        clean_up_tokenization_spaces=False,
        split_special_tokens=True,  # a source that spells out [MASK] is the text it is
    )


def encodings(tokenizer, texts: Iterable[str]) -> Iterator:
    """Tokens of each text and the characters that they stand for; none is added, cut or padded."""
    backend, remaining = tokenizer.backend_tokenizer, iter(texts)
    backend.no_padding()
    backend.no_truncation()
    backend.encode_special_tokens = True
    while chunk := list(itertools.islice(remaining, CHUNK)):
        yield from backend.encode_batch(chunk, add_special_tokens=False)


def identifier_tokens(tokenizer):
    """Which tokens are part of an identifier or number, bool [V]; neighbours of this kind are of one identifier."""
    words_V = np.zeros(len(tokenizer), dtype=bool)
    for token in range(len(SPECIAL_TOKENS), len(tokenizer)):
        first = tokenizer.decode([token])[0]  # what is no ASCII is a letter, or a byte of one
        words_V[token] = first.isalnum() or first == "_" or not first.isascii()
    return words_V
