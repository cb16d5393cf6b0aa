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

from .graph.knowledge_graph import DEFINED, Entity, KnowledgeGraph
from .graph.repository import Repository, cache_folder, keep
from .graph.sources import TEST_FOLDERS
from .text import Documents

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("function", "method", "test", "class", "interface", "exception", "enum")
TEST_FILE = re.compile(r"(test_.*|.*_test|conftest)\.py|.*Tests?\.java")
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
    repository: str | Path,
    question: str,
    *,
    model: str | Path | None = None,
    most: int = 5,
    tests: bool = False,
) -> list[Hit]:
    """The definitions of a repository in Python or Java that fit a question best, at most `most`; none if no word fits.

    model: folder of a saved SentenceTransformer, such as `search_model` in the output folder of a run.
    tests: whether tests, and what is defined in their files, are searched, too.

    Raises what `load_graph` does, FileNotFoundError (no model in the folder), ValueError (a repository without definitions).
    """
    graph = Repository(repository).graph()
    definitions = find_definitions(graph, tests)
    if not definitions:
        raise ValueError(f"repository={str(repository)!r}: defines no function and no class outside of its tests")
    documents = Documents(graph, repository)
    texts = [documents.text(definition.id) for definition in definitions]
    names = [definition.id for definition in definitions]
    lexical = CodeSearch(names, texts)
    scores_N, matches_N = lexical.scores(question), lexical.matches(question)
    if model is not None:
        encoder = _load(model)
        [question_D] = embed(encoder, [question])
        scores_N = fuse(scores_N, _keep_vectors(encoder, texts) @ question_D)
        matches_N[:] = bool(words(question))
    hits = []
    order_N = np.argsort(np.where(matches_N, -scores_N, np.inf), kind="stable")
    for place in order_N[: min(most, matches_N.sum())]:
        definition = definitions[place]
        score = round(float(scores_N[place]), 2)
        hits.append(Hit(definition.id, definition.type, score, graph.place(definition)))
    return hits


def find_definitions(graph: KnowledgeGraph, tests: bool) -> list[Entity]:
    """Functions, methods and classes that a search looks through."""
    definitions = []
    for entity in graph.entities.values():
        is_searched = entity.type in KINDS and entity.status == DEFINED and entity.line
        if is_searched and (tests or not is_test(entity, graph)):
            definitions.append(entity)
    return definitions


def is_test(entity: Entity, graph: KnowledgeGraph) -> bool:
    """Whether an entity is a test, or is defined in a file of tests."""
    path = Path(graph.place(entity).rpartition(":")[0])
    if entity.type == "test" or TEST_FILE.fullmatch(path.name):
        return True
    return not TEST_FOLDERS.isdisjoint(path.parts)


def _load(folder: str | Path) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    path = Path(folder).expanduser()
    if not (path / "modules.json").is_file():
        raise FileNotFoundError(f"model={str(folder)!r}: no saved SentenceTransformer; give `search_model` of a run")
    return SentenceTransformer(str(path), device="cpu", local_files_only=True)


def _keep_vectors(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray:
    """Vectors of these texts by this model, kept beside the graphs: a second question costs no encoding."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode() + weight.detach().cpu().numpy().tobytes())
    file = cache_folder() / f"{digest.hexdigest()[:32]}.vectors"
    if file.is_file():
        return np.frombuffer(file.read_bytes(), np.float32).reshape(len(texts), -1)
    vectors_ND = embed(model, texts)
    keep(file, vectors_ND.tobytes())
    return vectors_ND
