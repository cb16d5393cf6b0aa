"""Searches the folder that this file is in, with sentence-transformers, faiss and bm25s.

    python search.py "a question"     one answer; most of its seconds are imports
    python search.py                  one start, then a question a line

    from search import search         the same in a program: search("a question", k=10)

The score of a passage is the sum of what mix.json weighs: the cosine of its embedding (`meaning`), BM25 (`words`), and where past
questions are searched the score of a linear classifier for its answer (`classifier`), each less its mean and divided by its standard
deviation over all passages; or the sum of reciprocal ranks (`by_rank`). Questions of your own chose the weights.
"""

import functools
import json
import sys
from pathlib import Path

import numpy as np

from helpers.data.words import words

STEM = 6  # letters


def search(question, k=10):
    """(score, document, passage) of the k best documents, each by its best passage; none if the question has no word."""
    question_words = terms(question)
    if not question_words:
        return []
    passages, mix, model, index, bm25, classifier = open_folder()
    embedding = unit(np.asarray(model.encode_query(question)))
    indexed_words = [word for word in question_words if word in bm25.vocab_dict]
    scores = {
        "meaning": index.reconstruct_n() @ embedding,
        "words": np.zeros(len(passages)),
        "classifier": classify(classifier, embedding),
    }
    if indexed_words:
        scores["words"] = bm25.get_scores(indexed_words)
    totals = combine(scores, mix)
    best = {}
    for row in np.argsort(-totals, kind="stable"):
        document, _, shown = passages[row]
        best.setdefault(document, (float(totals[row]), document, shown))
        if len(best) == k:
            break
    return list(best.values())


@functools.cache
def open_folder():
    import bm25s
    import faiss
    from sentence_transformers import SentenceTransformer

    folder = Path(__file__).resolve().parent
    passages = json.loads((folder / "passages.json").read_text(encoding="utf-8"))
    mix = json.loads((folder / "mix.json").read_text(encoding="utf-8"))
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    # Read as bytes: faiss.read_index cannot open every path on Windows.
    index = faiss.deserialize_index(np.frombuffer((folder / "index.faiss").read_bytes(), np.uint8))
    bm25 = bm25s.BM25.load(folder / "bm25")
    classifier = None
    if mix.get("classifier"):
        classifier = np.load(folder / "classifier.npy", allow_pickle=False)
    return passages, mix, model, index, bm25, classifier


def terms(text):
    """The words of a text, each cut to its first letters, which serves as a stem; pairs of characters where no spaces are written."""
    return words(text, lambda word: word[:STEM])


def classify(weights, embeddings):
    """Scores [..., N] from one row [K + 1] a passage, with a bias at its end; 0 without weights."""
    if weights is None:
        return 0.0
    return embeddings @ weights[:, :-1].T + weights[:, -1]


def combine(scores, mix):
    """Total scores [..., N]."""
    totals = 0
    for name in ("meaning", "words", "classifier"):
        weight = mix.get(name)
        if weight and mix.get("by_rank"):
            order = np.argsort(-scores[name], kind="stable")
            rank = np.argsort(order, kind="stable")
            totals = totals + weight / (61 + rank)
        elif weight:
            totals = totals + weight * z(scores[name])
    return totals


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True).clip(1e-12)


def z(scores):
    deviation = scores.std(-1, keepdims=True).clip(1e-9)
    return (scores - scores.mean(-1, keepdims=True)) / deviation


def show(question):
    results = search(question)
    for score, document, passage in results:
        print(f"{score:6.2f}  {document}  {' '.join(passage.split())[:160]}")
    if not results:
        print("the question has no word to search for")


if __name__ == "__main__":
    if sys.argv[1:]:
        show(" ".join(sys.argv[1:]))
    else:
        open_folder()
        print("a question a line; an empty line ends")
        for line in iter(sys.stdin.readline, ""):
            if not line.strip():
                break
            show(line)
