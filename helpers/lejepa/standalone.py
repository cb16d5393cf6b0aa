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

HERE = Path(__file__).resolve().parent


def search(question, k=10):
    """(score, document, passage) of the k best documents, each by its best passage."""
    saved, model, vectors, bm25 = opened()
    words = bm25.get_tokens_ids(terms(question, saved["stem"]))
    lexical, vector = bm25.get_scores_from_ids(words)[None], model.encode_query([question])
    [scores] = hybrid(vector, vectors, lexical, saved["bm25_weight"], saved["feedback"], saved["feedback_weight"])
    found = {}
    for row in np.argsort(-scores, kind="stable"):
        document = saved["documents"][row]
        found.setdefault(document, (float(scores[row]), document, saved["texts"][row]))
        if len(found) == k:
            break
    return list(found.values())


@functools.cache
def opened():
    os.environ.setdefault("JAX_PLATFORMS", "cpu")  # bm25s calls JAX, which would take the memory of a GPU
    import bm25s
    import faiss
    from sentence_transformers import SentenceTransformer

    saved = json.loads((HERE / "search.json").read_text(encoding="utf-8"))
    index = faiss.read_index(str(HERE / "index.faiss"))
    model = SentenceTransformer(str(HERE / "model"), device="cpu")
    return saved, model, index.reconstruct_n(0, index.ntotal), bm25s.BM25.load(str(HERE / "bm25"))


def terms(text, stem):
    """The words of a text, in small letters and cut to their first letters, which is a stemmer for every language."""
    return [word[:stem] for word in re.findall(r"\w+", text.lower())]


def hybrid(questions, passages, lexical, bm25_weight, feedback, feedback_weight):
    """Scores [Q, N] from embeddings [Q, K] and [N, K] and BM25 [Q, N]; feedback: how many best passages are added."""
    questions, passages, lexical = unit(questions), unit(passages), bm25_weight * standardised(lexical)
    scores = standardised(questions @ passages.T) + lexical
    if feedback:
        best = np.argsort(-scores, axis=1, kind="stable")[:, :feedback]
        nearer = unit(questions + feedback_weight * passages[best].mean(1))
        scores = standardised(nearer @ passages.T) + lexical
    return scores


def unit(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=-1, keepdims=True), 1e-12)


def standardised(scores):
    centred = scores - scores.mean(-1, keepdims=True)
    return centred / np.maximum(centred.std(-1, keepdims=True), 1e-9)


if __name__ == "__main__":
    for score, document, passage in search(" ".join(sys.argv[1:])):
        print(f"{score:6.2f}  {document}  {' '.join(passage.split())[:160]}")
