"""Searches the folder that this file is in, with sentence-transformers, faiss and bm25s.

    python search.py "a question"     one answer; most of its seconds are imports
    python search.py                  one start, then a question a line, until the input ends

    from search import search         the same in a program: search("a question", k=10)

The score of a passage is the cosine of its embedding (`meaning`) and BM25 (`words`), each less its mean and divided by its standard
deviation over all passages, and multiplied by its weight in search.json. Questions of your own chose the weights.
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
    content, model, index, bm25 = open_folder()
    passages = content["passages"]
    embedding = unit(np.asarray(model.encode_query(question)))
    indexed_words = [word for word in question_words if word in bm25.vocab_dict]
    word_scores = np.zeros(len(passages))
    if indexed_words:
        word_scores = bm25.get_scores(indexed_words)
    totals = combine(index.reconstruct_n() @ embedding, word_scores, **content["mix"])
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
    content = json.loads((folder / "search.json").read_text(encoding="utf-8"))
    model = SentenceTransformer(str(folder / "model"), device="cpu")
    # Read as bytes: faiss.read_index cannot open every path on Windows.
    index = (folder / "index.faiss").read_bytes()
    index = faiss.deserialize_index(np.frombuffer(index, np.uint8))
    bm25 = bm25s.BM25.load(folder / "bm25")
    return content, model, index, bm25


def terms(text):
    """The words of a text, each cut to its first letters, which serves as a stem; pairs of characters where no spaces are written."""
    return words(text, lambda word: word[:STEM])


def combine(meaning_scores, word_scores, meaning, words):
    """Total scores [..., N]; meaning and words are the weights."""
    return meaning * z(meaning_scores) + words * z(word_scores)


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
    for question in sys.argv[1:] or sys.stdin:
        show(question)
