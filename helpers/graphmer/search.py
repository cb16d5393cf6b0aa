"""Functions, methods and classes of a repository, found by a question in words of any script.

BM25 over names and over sources, by words of identifiers and of prose, fused with the cosine of a sentence encoder where one is
given. The encoder is any SentenceTransformer; `search_training.py` tunes one on docstrings.

# Q questions · N definitions · D embedding
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from helpers.data.bm25 import Bm25
from helpers.data.words import code_words

from .graph.index import Definition, Index, keep
from .graph.sources import TEST_FOLDERS
from .text import definition_text

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("function", "method", "class")
TEST_FILE = re.compile(r"(test_.*|.*_test|conftest)\.py")
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


def standardise(scores_N: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1 over the definitions; 0 where all are equal."""
    deviation = scores_N.std()
    if deviation == 0:
        return np.zeros_like(scores_N)
    return (scores_N - scores_N.mean()) / deviation


def embed(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors [N, D] of the first `CODE_TOKENS` tokens of each text."""
    from helpers.train.sentence_encoder import encode

    model.max_seq_length = min(CODE_TOKENS, model.max_seq_length or CODE_TOKENS)
    vectors_ND = encode(model, texts)
    return vectors_ND / np.linalg.norm(vectors_ND, axis=1, keepdims=True)


class CodeSearch:
    """Ranks definitions, of which there are names and texts, for a question by BM25."""

    def __init__(self, names: Sequence[str], texts: Sequence[str]):
        self.by_name, self.by_text = index_texts(names), index_texts(texts)

    def scores(self, question: str) -> np.ndarray:
        """[N]: the z-scores of BM25 over sources and over names, weighed and added up."""
        words_of_question = words(question)
        text_N = self.by_text.scores(words_of_question)
        name_N = self.by_name.scores(words_of_question)
        return standardise(text_N) + NAME_WEIGHT * standardise(name_N)

    def matches(self, question: str) -> np.ndarray:
        """[N]: whether a definition has a word of the question."""
        words_of_question = words(question)
        return self.by_text.scores(words_of_question) + self.by_name.scores(words_of_question) > 0


def fuse(lexical_N: np.ndarray, cosine_N: np.ndarray) -> np.ndarray:
    """[N]: scores of BM25 with the cosine of question and definition."""
    return lexical_N + DENSE_WEIGHT * standardise(cosine_N)


def search(
    index: Index,
    question: str,
    *,
    model: str | Path | None = None,
    most: int = 5,
    tests: bool = False,
    keep_in: Path | None = None,
) -> list[Hit]:
    """The definitions of a repository that fit a question best, at most `most`; none if no word fits.

    model: folder of a saved SentenceTransformer, such as `search_model` in the output folder of a run.
    tests: whether what is defined in files of tests is searched, too.
    keep_in: folder in which the vectors of the definitions are kept.

    Raises FileNotFoundError (no model in the folder), ValueError (a repository without definitions).
    """
    definitions = [one for one in index.definitions.values() if one.kind in KINDS and (tests or not in_tests(one))]
    if not definitions:
        raise ValueError("the repository defines no function and no class outside of its tests")
    texts = []
    lines = {module: source.text.split("\n") for module, source in index.modules.items()}
    for definition in definitions:
        own = lines[definition.source.module][definition.line - 1 : definition.end_line]
        texts.append(definition_text(definition.id, own))
    lexical = CodeSearch([definition.id for definition in definitions], texts)
    scores_N, matches_N = lexical.scores(question), lexical.matches(question)
    if model is not None:
        encoder = _load(model)
        [question_D] = embed(encoder, [question])
        scores_N = fuse(scores_N, _keep_vectors(encoder, texts, keep_in) @ question_D)
        matches_N[:] = bool(words(question))
    hits = []
    order_N = np.argsort(np.where(matches_N, -scores_N, np.inf), kind="stable")
    for place in order_N[: min(most, matches_N.sum())]:
        definition = definitions[place]
        score = round(float(scores_N[place]), 2)
        hits.append(Hit(definition.id, definition.kind, score, definition.source.line(definition.line)))
    return hits


def in_tests(definition: Definition) -> bool:
    """Whether a definition is in a file of tests."""
    path = Path(definition.source.path)
    return bool(TEST_FILE.fullmatch(path.name)) or not TEST_FOLDERS.isdisjoint(path.parts)


def _load(folder: str | Path) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    path = Path(folder).expanduser()
    if not (path / "modules.json").is_file():
        raise FileNotFoundError(f"model={str(folder)!r}: no saved SentenceTransformer; give `search_model` of a run")
    return SentenceTransformer(str(path), device="cpu", local_files_only=True)


def _keep_vectors(model: SentenceTransformer, texts: Sequence[str], keep_in: Path | None) -> np.ndarray:
    """Vectors of these texts by this model, kept in a folder: a second question costs no encoding."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode() + weight.detach().cpu().numpy().tobytes())
    file = keep_in and keep_in / f"{digest.hexdigest()[:32]}.vectors"
    if file and file.is_file():
        return np.frombuffer(file.read_bytes(), np.float32).reshape(len(texts), -1)
    vectors_ND = embed(model, texts)
    if file:
        keep(file, vectors_ND.tobytes())
    return vectors_ND
