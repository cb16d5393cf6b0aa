"""Search over embeddings: the index against a slow loop, FAISS itself and torch on every device; saved indexes."""

import json
import math

import faiss
import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import semantic_search

from helpers.lejepa.retrieval import WIDTH, TextIndex, side_by_side

from .xla_process import answers_on_xla

# Q queries · N documents · K embedding


class Given(torch.nn.Module):
    """Embeds the text "d7" as row 7 of the documents, "q7" of the queries."""

    def __init__(self, documents_NK, queries_QK):
        super().__init__()
        self.rows = {"d": torch.from_numpy(documents_NK), "q": torch.from_numpy(queries_QK)}

    def tokenize(self, texts, **kwargs):
        return {"given": torch.stack([self.rows[text[0]][int(text[1:])] for text in texts])}

    def forward(self, features):
        return features | {"sentence_embedding": features["given"]}

    def get_embedding_dimension(self):
        return self.rows["d"].shape[1]


def embeddings(N=300, K=24, seed=0):
    return np.random.default_rng(seed).normal(size=(N, K)).astype(np.float32)


def names(letter, count):
    return [f"{letter}{row}" for row in range(count)]


def indexed(documents_NK, queries_QK):
    """The index of the documents, and a function that searches it for the queries: texts and cosines of each."""
    model = SentenceTransformer(modules=[Given(documents_NK, queries_QK)], device="cpu")
    index = TextIndex(model, names("d", len(documents_NK)))

    def search(k):
        found = [index.search(query, k) for query in names("q", len(queries_QK))]
        return [[text for _, text in hits] for hits in found], np.array(
            [[score for score, _ in hits] for hits in found]
        )

    return index, search


def slow_search(queries_QK, documents_NK, k):
    """One pair at a time in Python floats."""
    rows, scores = [], []
    for query in queries_QK.tolist():
        pairs = []
        for row, document in enumerate(documents_NK.tolist()):
            dot = math.fsum(a * b for a, b in zip(query, document, strict=True))
            pairs.append((-dot / (math.hypot(*query) * math.hypot(*document)), row))
        pairs.sort()
        rows.append([f"d{row}" for _, row in pairs[:k]])
        scores.append([-score for score, _ in pairs[:k]])
    return rows, np.array(scores)


def as_index(hits):
    """What `semantic_search` returned, in the form of `indexed`."""
    ids = [[f"d{hit['corpus_id']}" for hit in row] for row in hits]
    return ids, np.array([[hit["score"] for hit in row] for row in hits])


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


# ---- hits


def test_hits_and_scores_are_those_of_a_slow_loop():
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    expected, expected_scores = slow_search(queries_QK, documents_NK, 10)
    ids, scores = indexed(documents_NK, queries_QK)[1](10)
    assert ids == expected
    np.testing.assert_allclose(scores, expected_scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_semantic_search_on_a_device_finds_what_the_index_finds(device):
    documents_NK, queries_QK = embeddings(1000, 48), embeddings(130, 48, seed=1)
    ids, scores = indexed(documents_NK, queries_QK)[1](20)
    on_device = (torch.from_numpy(each).to(device) for each in (queries_QK, documents_NK))
    found = as_index(semantic_search(*on_device, top_k=20, corpus_chunk_size=384))
    assert found[0] == ids
    np.testing.assert_allclose(found[1], scores, rtol=0, atol=1e-5)


def test_cosine_does_not_depend_on_lengths():
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    lengths_N1 = np.random.default_rng(2).uniform(0.01, 100, (len(documents_NK), 1)).astype(np.float32)
    ids, scores = indexed(documents_NK, queries_QK)[1](5)
    scaled_ids, scaled_scores = indexed(lengths_N1 * documents_NK, 7 * queries_QK)[1](5)
    assert scaled_ids == ids
    np.testing.assert_allclose(scaled_scores, scores, atol=1e-6)


def test_fewer_documents_than_k_are_all_returned():
    ids, scores = indexed(embeddings(4), embeddings(2, seed=1))[1](10)
    assert [sorted(row) for row in ids] == [[f"d{row}" for row in range(4)]] * 2
    assert scores.shape == (2, 4)


ON_XLA = """
import json
import numpy as np
import torch
from sentence_transformers.util import semantic_search
from helpers.machine import xla
from tests.test_retrieval import as_index, embeddings, indexed

device = xla.start()
documents_NK, queries_QK = embeddings(1000, 48), embeddings(128, 48, seed=1)
ids, scores = indexed(documents_NK, queries_QK)[1](20)
on_device = (torch.from_numpy(each).to(device) for each in (queries_QK, documents_NK))
found, there = as_index(semantic_search(*on_device, top_k=20, corpus_chunk_size=250))
print("ANSWERS " + json.dumps([found == ids, float(np.abs(there - scores).max())]))
"""


def test_semantic_search_on_xla_finds_what_the_index_finds():
    same, difference = answers_on_xla(ON_XLA)
    assert same
    assert difference < 1e-5


# ---- saved indexes


def test_a_saved_index_is_one_file_of_faiss_and_one_of_json_that_answer_without_us(tmp_path):
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    index, search = indexed(documents_NK, queries_QK)
    index.save(tmp_path / "deep" / "index")
    folder = tmp_path / "deep" / "index"
    assert sorted(path.name for path in folder.iterdir()) == ["index.faiss", "index.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["index"]
    record = json.loads((folder / "index.json").read_text())
    assert (record["metric"], record["texts"]) == ("cosine", names("d", 300))
    loaded = faiss.read_index(str(folder / "index.faiss"))
    scores, rows = loaded.search(queries_QK / np.linalg.norm(queries_QK, axis=1, keepdims=True), 7)
    ids, expected = search(7)
    assert [[record["texts"][row] for row in found] for found in rows] == ids
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_two_indexes_stand_side_by_side_with_texts_on_one_line():
    texts = ["long\n" * 100, "short"]

    def index(cosine):
        rows = {texts[0]: [1.0, 0.0], texts[1]: [0.0, 1.0], "?": [cosine, (1 - cosine**2) ** 0.5]}
        given = Given(np.zeros((1, 2), np.float32), np.zeros((1, 2), np.float32))
        given.tokenize = lambda texts, **kwargs: {"given": torch.tensor([rows[text] for text in texts])}
        return TextIndex(SentenceTransformer(modules=[given], device="cpu"), texts)

    first, second = side_by_side({"before": index(0.6), "after": index(0.8)}, "?")
    assert (first["before"], second["before"][:10]) == ("0.800 short", "0.600 long")
    assert (first["after"][:10], second["after"]) == ("0.800 long", "0.600 short")
    assert len(first["after"]) == WIDTH and "\n" not in first["after"]


def test_saving_again_takes_the_place_of_what_was_there(tmp_path):
    for seed in (0, 1):
        index, _ = indexed(embeddings(seed=seed), embeddings(5))
        index.save(tmp_path / "index")
    expected = embeddings(seed=1) / np.linalg.norm(embeddings(seed=1), axis=1, keepdims=True)
    found = faiss.read_index(str(tmp_path / "index" / "index.faiss")).reconstruct_n(0, 300)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
