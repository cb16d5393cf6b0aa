"""Search over embeddings: the index against a slow loop and torch on every device; saved indexes and their damage."""

import json
import math
import os

import faiss
import numpy as np
import pytest
import torch
from sentence_transformers.util import cos_sim, dot_score, semantic_search

from helpers.lejepa.retrieval import METRICS, TextIndex

from .xla_process import answers_on_xla

SCORES = {"cosine": cos_sim, "dot": dot_score}

# Q queries · N documents · K embedding


def embeddings(N=300, K=24, seed=0):
    return np.random.default_rng(seed).normal(size=(N, K)).astype(np.float32)


def names(N):
    return [f"d{row}" for row in range(N)]


def index_of(documents_NK, metric):
    index = TextIndex(documents_NK.shape[1], metric=metric)
    index.add(names(len(documents_NK)), [f"text {row} ü" for row in range(len(documents_NK))], documents_NK)
    return index


def slow_search(queries_QK, documents_NK, k, metric):
    """One pair at a time in Python floats."""
    rows, scores = [], []
    for query in queries_QK.tolist():
        pairs = []
        for row, document in enumerate(documents_NK.tolist()):
            dot = math.fsum(a * b for a, b in zip(query, document, strict=True))
            if metric == "cosine":
                dot /= math.hypot(*query) * math.hypot(*document)
            pairs.append((-dot, row))
        pairs.sort()
        rows.append([row for _, row in pairs[:k]])
        scores.append([-score for score, _ in pairs[:k]])
    return np.array(rows), np.array(scores)


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


# ---- hits


@pytest.mark.parametrize("metric", METRICS)
def test_hits_and_scores_are_those_of_a_slow_loop(metric):
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    rows_Qk, scores_Qk = slow_search(queries_QK, documents_NK, 10, metric)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 10)
    assert ids == [[f"d{row}" for row in rows] for rows in rows_Qk]
    np.testing.assert_allclose(scores, scores_Qk, rtol=0, atol=1e-5)


def as_index(hits):
    """What `semantic_search` returned, in the form of `TextIndex.search`."""
    ids = [[f"d{hit['corpus_id']}" for hit in row] for row in hits]
    return ids, np.array([[hit["score"] for hit in row] for row in hits])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("metric", METRICS)
def test_semantic_search_on_a_device_finds_what_the_index_finds(metric, device):
    documents_NK, queries_QK = embeddings(1000, 48), embeddings(130, 48, seed=1)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 20)
    on_device = (torch.from_numpy(each).to(device) for each in (queries_QK, documents_NK))
    found = as_index(semantic_search(*on_device, top_k=20, score_function=SCORES[metric], corpus_chunk_size=384))
    assert found[0] == ids
    np.testing.assert_allclose(found[1], scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_hits_agree_with_faiss_itself_and_torch_topk(metric):
    documents_NK, queries_QK = embeddings(), embeddings(30, seed=1)
    if metric == "cosine":
        documents_NK, queries_QK = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (documents_NK, queries_QK))
    plain = faiss.IndexFlatIP(documents_NK.shape[1])
    plain.add(documents_NK)
    faiss_scores, faiss_rows = plain.search(queries_QK, 10)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 10)
    assert ids == [[f"d{row}" for row in rows] for rows in faiss_rows]
    np.testing.assert_allclose(scores, faiss_scores, rtol=1e-5, atol=1e-5)
    top = torch.from_numpy(queries_QK @ documents_NK.T).topk(10)
    assert top.indices.tolist() == faiss_rows.tolist()
    np.testing.assert_allclose(scores, top.values, atol=1e-5)


def test_cosine_does_not_depend_on_lengths():
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    lengths_N1 = np.random.default_rng(2).uniform(0.01, 100, (len(documents_NK), 1)).astype(np.float32)
    ids, scores = index_of(documents_NK, "cosine").search(queries_QK, 5)
    scaled_ids, scaled_scores = index_of(lengths_N1 * documents_NK, "cosine").search(7 * queries_QK, 5)
    assert scaled_ids == ids
    np.testing.assert_allclose(scaled_scores, scores, atol=1e-6)


def test_fewer_documents_than_k_are_all_returned():
    documents_NK = embeddings(4)
    ids, scores = index_of(documents_NK, "dot").search(embeddings(2, seed=1), 10)
    assert [sorted(row) for row in ids] == [names(4)] * 2
    assert scores.shape == (2, 4)


def test_no_queries_give_no_hits():
    ids, scores = index_of(embeddings(), "dot").search(np.zeros((0, 24), np.float32), 3)
    assert ids == []
    assert scores.shape == (0, 3)


def test_documents_added_later_are_found():
    documents_NK = embeddings()
    index = TextIndex(documents_NK.shape[1], metric="dot")
    index.add(names(300)[:100], names(300)[:100], documents_NK[:100])
    index.add(names(300)[100:], names(300)[100:], torch.from_numpy(documents_NK[100:]))
    assert len(index) == 300
    queries_QK = embeddings(9, seed=1)
    assert index.search(queries_QK, 10)[0] == index_of(documents_NK, "dot").search(queries_QK, 10)[0]


ON_XLA = """
import json
import numpy as np
import torch
from sentence_transformers.util import semantic_search
from helpers import xla
from tests.test_retrieval import METRICS, SCORES, as_index, embeddings, index_of

device, answers = xla.start(), {}
for metric in METRICS:
    documents_NK, queries_QK = embeddings(1000, 48), embeddings(128, 48, seed=1)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 20)
    on_device = (torch.from_numpy(each).to(device) for each in (queries_QK, documents_NK))
    found, there = as_index(semantic_search(*on_device, top_k=20, score_function=SCORES[metric], corpus_chunk_size=250))
    answers[metric] = [found == ids, float(np.abs(there - scores).max())]
print("ANSWERS " + json.dumps(answers))
"""


def test_semantic_search_on_xla_finds_what_the_index_finds():
    for metric, (same, difference) in answers_on_xla(ON_XLA).items():
        assert same, metric
        assert difference < 1e-5, metric


# ---- saved indexes


@pytest.mark.parametrize("metric", METRICS)
def test_a_loaded_index_answers_as_the_saved_one(tmp_path, metric):
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    index = index_of(documents_NK, metric)
    loaded = TextIndex.load(index.save(tmp_path / "index"))
    assert (loaded.ids, loaded.texts, loaded.metric, loaded.dimension) == (index.ids, index.texts, metric, 24)
    before, after = index.search(queries_QK, 7), loaded.search(queries_QK, 7)
    assert before[0] == after[0]
    assert np.array_equal(before[1], after[1])
    loaded.add(["new"], ["a new one"], queries_QK[:1])
    assert loaded.search(queries_QK[:1], 1)[0] == [["new"]] or metric == "dot"


def test_a_saved_index_is_one_file_of_faiss_and_one_of_json(tmp_path):
    folder = index_of(embeddings(), "dot").save(tmp_path / "deep" / "index")
    assert sorted(path.name for path in folder.iterdir()) == ["index.faiss", "index.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["index"]
    assert json.loads((folder / "index.json").read_text())["texts"][0] == "text 0 ü"
    np.testing.assert_array_equal(faiss.read_index(str(folder / "index.faiss")).reconstruct_n(0, 300), embeddings())


def test_an_existing_folder_is_not_overwritten(tmp_path):
    index_of(embeddings(), "dot").save(tmp_path / "index")
    before = (tmp_path / "index" / "index.faiss").read_bytes()
    with pytest.raises(ValueError, match="exists: choose another"):
        index_of(embeddings(seed=1), "dot").save(tmp_path / "index")
    assert (tmp_path / "index" / "index.faiss").read_bytes() == before


@pytest.mark.parametrize("place", [0.0, 0.3, 0.7, 0.999])
@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
def test_a_flipped_bit_is_found(tmp_path, name, place):
    folder = index_of(embeddings(), "cosine").save(tmp_path / "index")
    content = bytearray((folder / name).read_bytes())
    content[int(place * len(content))] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=rf"damaged \({name}.*build the index anew"):
        TextIndex.load(folder)


@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
def test_half_a_file_is_found(tmp_path, name):
    folder = index_of(embeddings(), "cosine").save(tmp_path / "index")
    os.truncate(folder / name, (folder / name).stat().st_size // 2)
    with pytest.raises(ValueError, match=rf"damaged \({name}"):
        TextIndex.load(folder)


def test_an_index_edited_to_another_metric_is_refused(tmp_path):
    folder = index_of(embeddings(), "cosine").save(tmp_path / "index")
    text = (folder / "index.json").read_text()
    (folder / "index.json").write_text(text.replace('"cosine"', '"dot"'))
    with pytest.raises(ValueError, match=r"damaged \(index.json"):
        TextIndex.load(folder)


@pytest.mark.parametrize("name", ["index.faiss", "index.json"])
def test_a_missing_file_is_named(tmp_path, name):
    folder = index_of(embeddings(), "cosine").save(tmp_path / "index")
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=name):
        TextIndex.load(folder)


# ---- mistakes


def test_an_id_there_twice_is_refused_and_nothing_is_added():
    index = index_of(embeddings(), "dot")
    with pytest.raises(ValueError, match="'d7' is there twice"):
        index.add(["new", "d7"], ["a", "b"], embeddings(2))
    assert len(index) == len(index.ids) == len(index.texts) == 300


def test_ids_that_are_no_strings_are_refused():
    with pytest.raises(ValueError, match="ids: 0 is no string"):
        TextIndex(24).add([0, 1], ["a", "b"], embeddings(2))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_are_refused(value):
    spoilt = embeddings(6)
    spoilt[4, 2] = value
    with pytest.raises(ValueError, match="embeddings_NK: 1 of 6 rows hold NaN or infinity"):
        TextIndex(24).add(names(6), names(6), spoilt)
    with pytest.raises(ValueError, match="queries: 1 of 6 rows"):
        index_of(embeddings(), "dot").search(spoilt)


def test_wrong_arguments_are_named():
    index = index_of(embeddings(), "dot")
    for message, call in {
        "metric='euclid': choose one of cosine, dot": lambda: TextIndex(24, metric="euclid"),
        "dimension=0": lambda: TextIndex(0),
        "k=0": lambda: index.search(embeddings(1), 0),
        r"queries has shape \[1, 23\]: must be \[rows, 24\]": lambda: index.search(embeddings(1, 23)),
        "pass the model": lambda: index.search(["text"]),
        "must be a list of texts": lambda: index.search("text"),
        "k=10 of 0 documents": lambda: TextIndex(24).search(embeddings(1)),
        "1 ids, 1 texts, 2 embeddings": lambda: index.add(["new"], ["text"], embeddings(2)),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
