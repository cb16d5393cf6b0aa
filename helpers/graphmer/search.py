"""Functions, methods and classes of a repository, found by a question in words of any script.

BM25 over names and over sources, by words of identifiers and of prose, fused with the cosine of a sentence encoder where one is
given. The encoder is any SentenceTransformer; `search_training.py` tunes one on docstrings.

# Q questions · N definitions · D embedding
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from helpers.data.bm25 import Bm25
from helpers.data.words import code_words

from .graph.index import Index
from .text import definition_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

MOST = 5  # hits
KINDS = ("function", "method", "class")
CODE_TOKENS = 64  # of a definition that the encoder reads: its name, its signature and the first lines
ENDING = re.compile(r"(?<=\w{3})(?:at)?(?:ions?|ings?|ors?|ers?|ed|es|ly|s|e)$")
# Weights of the z-scores, which the docstrings of three development packages chose (benchmarks/code_search.py; two of three seeds).
NAME_WEIGHT, DENSE_WEIGHT = 0.5, 6.0


class Hit(NamedTuple):
    name: str
    kind: str
    score: float
    defined: str  # file:line


def words(text: str) -> list[str]:
    """Words of identifiers and of prose, in lower case, without common English endings: `parseHTTPHeaders` is pars, http, head."""
    return code_words(text, stem)


@functools.lru_cache(maxsize=100_000)
def stem(word: str) -> str:
    return ENDING.sub("", word)


def index_texts(texts: Sequence[str]) -> Bm25:
    return Bm25([words(text) for text in texts], k1=1.2)


def standardise(scores_N):
    """Mean 0 and standard deviation 1 over the definitions; 0 where all are equal."""
    return (scores_N - scores_N.mean()) / (scores_N.std() or 1.0)


def embed(model: SentenceTransformer, texts: Sequence[str]):
    """Unit vectors [N, D] of the first `CODE_TOKENS` tokens of each text."""
    from helpers.train.sentence_encoder import encode

    model.max_seq_length = min(CODE_TOKENS, model.max_seq_length or CODE_TOKENS)
    vectors_ND = encode(model, texts)
    return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


class CodeSearch:
    """Ranks definitions, of which there are names and texts, for a question by BM25."""

    def __init__(self, names, texts):
        self.by_name, self.by_text = index_texts(names), index_texts(texts)

    def scores(self, question: str) -> tuple[np.ndarray, np.ndarray]:
        """[N]: the z-scores of BM25 over sources and over names, weighed and added up. [N]: whether a word of the question is there."""
        words_of_question = words(question)
        text_N = self.by_text.scores(words_of_question)
        name_N = self.by_name.scores(words_of_question)
        return standardise(text_N) + NAME_WEIGHT * standardise(name_N), text_N + name_N > 0


def fuse(lexical_N, cosine_N):
    """[N]: scores of BM25 with the cosine of question and definition."""
    return lexical_N + DENSE_WEIGHT * standardise(cosine_N)


def search(index: Index, question: str, *, model: str | Path | None = None) -> list[Hit]:
    """The five definitions outside of tests that fit a question best; none if no word fits.

    model: folder of a saved SentenceTransformer, such as `search_model` in the output folder of a run.

    Raises FileNotFoundError (no model in the folder), ValueError (a repository without definitions).
    """
    definitions = [one for one in index.definitions.values() if one.kind in KINDS and not one.source.is_test]
    if not definitions:
        raise ValueError("the repository defines no function and no class outside of its tests")
    names = [one.id for one in definitions]
    texts = [definition_text(one.id, one.source.lines[one.line - 1 : one.end_line]) for one in definitions]
    scores_N, matches_N = CodeSearch(names, texts).scores(question)
    if model is not None:
        encoder = _load(model)
        [question_D] = embed(encoder, [question])
        scores_N = fuse(scores_N, embed(encoder, texts) @ question_D)
        matches_N[:] = bool(words(question))
    order = np.argsort(-scores_N, kind="stable")
    hits = []
    for place in order[matches_N[order]][:MOST]:
        definition, score = definitions[place], round(float(scores_N[place]), 2)
        hits.append(Hit(definition.id, definition.kind, score, definition.source.line(definition.line)))
    return hits


def _load(folder):
    from sentence_transformers import SentenceTransformer

    path = Path(folder).expanduser()
    if not (path / "modules.json").is_file():
        raise FileNotFoundError(f"model={str(folder)!r}: no saved SentenceTransformer; give `search_model` of a run")
    return SentenceTransformer(str(path), device="cpu", local_files_only=True)
