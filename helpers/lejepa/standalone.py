"""python search.py "a question"     searches the folder that this file is in, with sentence-transformers, faiss and bm25s.

    score = z(cosine) + bm25_weight z(BM25)      z: less the mean over all passages, divided by the standard deviation

The mean of the best passages by this score is then added to the question, and the score is computed again: Rocchio's
relevance feedback (1971) without a person.
"""

import functools
import json
import os
import re
import sys
from pathlib import Path

import numpy as np


def search(question, k=10):
    """(score, document, passage) of the k best documents, each by its best passage."""
    saved, model, vectors, bm25 = opened(Path(__file__).resolve().parent)
    words = bm25.get_scores_from_ids(bm25.get_tokens_ids(terms(question, saved["stem"])))
    scores, best = hybrid(model.encode_query(question), vectors, words, **saved["fusion"]), {}
    for row in np.argsort(-scores, kind="stable"):
        document = saved["documents"][row]
        best.setdefault(document, (float(scores[row]), document, saved["texts"][row]))
    return list(best.values())[:k]


@functools.cache
def opened(folder):
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s calls JAX, which would take the memory of a GPU
    import bm25s
    import faiss
    from sentence_transformers import SentenceTransformer

    saved = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    vectors = faiss.read_index(str(folder / "index.faiss")).reconstruct_n()
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    return saved, model, vectors, bm25s.BM25.load(str(folder / "bm25"))


def terms(text, stem):
    """The words of a text, in small letters and cut to their first letters, which is a stemmer for every language."""
    return [word[:stem] for word in re.findall(r"\w+", text.lower())]


def hybrid(questions, passages, words, bm25_weight, feedback, feedback_weight):
    """Scores [..., N] from embeddings [..., K] and [N, K] and BM25 [..., N]; feedback: how many best passages are added."""
    near, passages, words = unit(questions), unit(passages), bm25_weight * z(words)
    scores = z(near @ passages.T) + words
    best = np.argsort(-scores, kind="stable")[..., :feedback]
    near = unit(near + feedback_weight * passages[best].mean(-2))
    return z(near @ passages.T) + words


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True).clip(1e-12)


def z(scores):
    return (scores - scores.mean(-1, keepdims=True)) / scores.std(-1, keepdims=True).clip(1e-9)


if __name__ == "__main__":
    for score, document, passage in search(" ".join(sys.argv[1:])):
        print(f"{score:6.2f}  {document}  {' '.join(passage.split())[:160]}")
