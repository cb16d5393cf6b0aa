"""Functions, methods and classes of a repository, found by a question in words.

BM25 over names and over sources, by words of identifiers and of prose, fused with the cosine of a sentence encoder where one is
given. The encoder is any SentenceTransformer; `search_training.py` tunes one on docstrings.

# Q questions · N definitions · D embedding
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from helpers.data.bm25 import Bm25
from helpers.data.words import code_words

from .graph.extraction import cached_graph
from .graph.knowledge_graph import DEFINED, cache_folder, keep
from .text import Documents

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

KINDS = ("function", "method", "test", "class", "interface", "exception", "enum")
CODE_TOKENS = 64  # of a definition that the encoder reads: its name, its signature and the first lines
ENDING = re.compile(r"(?<=\w{3})(?:at)?(?:ions?|ings?|ors?|ers?|ed|es|ly|s|e)$")
# Weights of the z-scores, which the docstrings of three development packages chose (benchmarks/code_search.py; two of three seeds).
NAME_WEIGHT, DENSE_WEIGHT = 0.5, 6.0


class Found(NamedTuple):
    name: str
    kind: str
    score: float
    defined: str  # file:line


def words(text: str) -> list[str]:
    """Words of identifiers and of prose, in lower case, without common English endings: `parseHTTPHeaders` is pars, http, head."""
    return code_words(text, lambda word: ENDING.sub("", word))


def index_texts(texts: Sequence[str]) -> Bm25:
    return Bm25([words(text) for text in texts], k1=1.2)


def standardised(scores_N: np.ndarray) -> np.ndarray:
    """Mean 0 and standard deviation 1 over the definitions; 0 where all are equal."""
    deviation = scores_N.std()
    return (scores_N - scores_N.mean()) / deviation if deviation > 0 else np.zeros_like(scores_N)


def embedded(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray:
    """Unit vectors [N, D] of the first `CODE_TOKENS` tokens of each text; of a model on XLA a copy on the CPU reads them."""
    from helpers.machine.engine import cpu_copy

    model = cpu_copy(model, model.model_card_data) if model.device.type == "xla" else model
    model.max_seq_length = min(CODE_TOKENS, model.max_seq_length or CODE_TOKENS)
    return model.encode(list(texts), normalize_embeddings=True, show_progress_bar=False, batch_size=64)


class CodeSearch:
    """Definitions to be found, by name and by text.

    texts: of each definition, its source.
    model, vectors_ND: a sentence encoder, and what it makes of the texts; without them the ranking is by BM25 alone.
    """

    def __init__(
        self,
        names: Sequence[str],
        texts: Sequence[str],
        model: SentenceTransformer | None = None,
        vectors_ND: np.ndarray | None = None,
    ):
        self.by_name, self.by_text = index_texts(names), index_texts(texts)
        self.model, self.vectors_ND = model, vectors_ND

    def scores(self, question: str) -> np.ndarray:
        """[N]: the z-scores of both BM25 and of the cosine, weighed and added up."""
        by_text_N, by_name_N = (standardised(index.scores(words(question))) for index in (self.by_text, self.by_name))
        lexical_N = by_text_N + NAME_WEIGHT * by_name_N
        if self.model is None:
            return lexical_N
        question_D = embedded(self.model, [question])[0]
        return lexical_N + DENSE_WEIGHT * standardised(self.vectors_ND @ question_D)


def search(
    repository: str | Path,
    question: str,
    *,
    model: str | Path | None = None,
    most: int = 5,
) -> list[Found]:
    """The definitions of a repository in Python or Java that fit a question best, at most `most`.

    model: folder of a saved SentenceTransformer, such as `search_model` in the output folder of a run.

    Raises what `load_graph` does, and ValueError: a question without words, a repository without definitions.
    """
    if not words(question):
        raise ValueError(f"question={question!r}: has no word to search for; ask in words")
    graph = cached_graph(repository)
    documents = Documents(graph, repository)
    found = [one for one in graph.entities.values() if one.type in KINDS and one.status == DEFINED and one.line]
    if not found:
        raise ValueError(f"repository={str(repository)!r}: defines no function and no class")
    texts = [documents.text(one.id) for one in found]
    encoder = None if model is None else _loaded(model)
    vectors_ND = None if encoder is None else _kept_vectors(encoder, texts)
    scores_N = CodeSearch([one.id for one in found], texts, encoder, vectors_ND).scores(question)
    best = np.argsort(-scores_N, kind="stable")[:most].tolist()
    return [Found(found[n].id, found[n].type, float(scores_N[n]), graph.place(found[n])) for n in best]


def _loaded(folder: str | Path) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    path = Path(folder).expanduser()
    if not (path / "modules.json").is_file():
        raise FileNotFoundError(f"model={str(folder)!r}: no saved SentenceTransformer; give `search_model` of a run")
    return SentenceTransformer(str(path), device="cpu", local_files_only=True)


def _kept_vectors(model: SentenceTransformer, texts: Sequence[str]) -> np.ndarray:
    """Vectors of these texts by this model, kept beside the graphs: a second question costs no encoding."""
    digest = hashlib.sha256("\0".join(texts).encode())
    for name, weight in model.state_dict().items():
        digest.update(name.encode() + weight.detach().cpu().numpy().tobytes())
    file = cache_folder() / f"{digest.hexdigest()[:32]}.vectors"
    if file.is_file():
        return np.frombuffer(file.read_bytes(), np.float32).reshape(len(texts), -1)
    vectors_ND = embedded(model, texts)
    keep(file, vectors_ND.tobytes())
    return vectors_ND
