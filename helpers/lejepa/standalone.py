"""python search.py "a question"     searches the folder that this file is in, with sentence-transformers, faiss and bm25s.

    score = z(cosine) + bm25_weight z(BM25)      z: less the mean over all passages, divided by the standard deviation

The mean of the best passages by this score is then added to the question, and the score is computed again: Rocchio's
relevance feedback (1971) without a person. The constants are those that were best on the questions of two collections
(docs/lejepa.md of the suite that wrote this file).
"""

import functools
import json
import re
import sys
from pathlib import Path

import numpy as np


def search(question, k=10):
    """(score, document, passage) of the k best documents, each by its best passage."""
    passages, model, index, bm25 = opened()
    words = bm25.get_scores_from_ids(bm25.get_tokens_ids(terms(question)))
    scores, best = hybrid(model.encode_query(question), index.reconstruct_n(), words), {}
    for row in np.argsort(-scores, kind="stable"):
        best.setdefault(passages[row][0], (float(scores[row]), *passages[row]))
    return list(best.values())[:k]


@functools.cache
def opened():
    import bm25s
    import faiss
    from sentence_transformers import SentenceTransformer

    folder = Path(__file__).resolve().parent
    passages = json.loads((folder / "passages.json").read_text(encoding="utf-8"))
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    return passages, model, faiss.read_index(str(folder / "index.faiss")), bm25s.BM25.load(folder / "bm25")


def terms(text):
    """The words of a text, in small letters and cut to their first six, which is a stemmer for every language."""
    return [word[:6] for word in re.findall(r"\w+", text.lower())]


def hybrid(questions, passages, words, bm25_weight=0.3, feedback=2, feedback_weight=1.0):
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
