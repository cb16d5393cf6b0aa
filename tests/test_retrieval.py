"""Search over embeddings: FAISS and matmul against each other and slow loops; saved indexes and their damage."""

import json
import math
import os

import faiss
import numpy as np
import pytest
import torch

from helpers.lejepa.retrieval import TextIndex, search_by_matmul

from .xla_process import answers_on_xla

METRICS = ("cosine", "dot", "l2")

# Q queries · N documents · K embedding


def embeddings(N=300, K=24, seed=0):
    return np.random.default_rng(seed).normal(size=(N, K)).astype(np.float32)


def names(N):
    return [f"d{row}" for row in range(N)]


def index_of(documents_NK, metric, texts=None):
    index = TextIndex(documents_NK.shape[1], metric=metric)
    index.add(names(len(documents_NK)), documents_NK, texts)
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
            pairs.append((math.dist(query, document), row) if metric == "l2" else (-dot, row))
        pairs.sort()
        rows.append([row for _, row in pairs[:k]])
        scores.append([score if metric == "l2" else -score for score, _ in pairs[:k]])
    return np.array(rows), np.array(scores)


DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]


# ---- hits


@pytest.mark.parametrize("metric", METRICS)
def test_hits_and_scores_are_those_of_a_slow_loop(metric):
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    rows_Qk, scores_Qk = slow_search(queries_QK, documents_NK, 10, metric)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 10)
    assert ids == [[f"d{row}" for row in rows] for rows in rows_Qk]
    np.testing.assert_allclose(scores, scores_Qk, rtol=0, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("metric", METRICS)
def test_matmul_finds_what_faiss_finds(metric, device):
    documents_NK, queries_QK = embeddings(1000, 48), embeddings(130, 48, seed=1)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 20)
    rows_Qk, matmul_scores = search_by_matmul(
        queries_QK, torch.from_numpy(documents_NK).to(device), 20, metric=metric, chunk=384
    )
    assert ids == [[f"d{row}" for row in rows] for rows in rows_Qk]
    np.testing.assert_allclose(matmul_scores, scores, rtol=0, atol=1e-5)


@pytest.mark.parametrize("metric", METRICS)
def test_hits_agree_with_faiss_itself_and_torch_topk(metric):
    documents_NK, queries_QK = embeddings(), embeddings(30, seed=1)
    if metric == "cosine":
        documents_NK, queries_QK = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (documents_NK, queries_QK))
    plain = (faiss.IndexFlatL2 if metric == "l2" else faiss.IndexFlatIP)(documents_NK.shape[1])
    plain.add(documents_NK)
    faiss_scores, faiss_rows = plain.search(queries_QK, 10)
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 10)
    assert ids == [[f"d{row}" for row in rows] for rows in faiss_rows]
    np.testing.assert_allclose(scores**2 if metric == "l2" else scores, faiss_scores, rtol=1e-5, atol=1e-5)
    if metric == "l2":
        top = torch.cdist(torch.from_numpy(queries_QK), torch.from_numpy(documents_NK)).topk(10, largest=False)
    else:
        top = torch.from_numpy(queries_QK @ documents_NK.T).topk(10)
    assert top.indices.tolist() == faiss_rows.tolist()
    np.testing.assert_allclose(scores, top.values, atol=1e-5)


def test_l2_scores_are_distances_and_not_their_squares():
    documents_NK = np.array([[0, 0], [3, 4]], np.float32)
    ids, scores = index_of(documents_NK, "l2").search(np.zeros((1, 2), np.float32), 2)
    assert ids == [["d0", "d1"]]
    assert scores.tolist() == [[0, 5]]


def test_the_distance_of_a_long_embedding_to_itself_is_zero():
    documents_NK = 100 * embeddings()  # |q|^2 + |d|^2 - 2 qd in fp32 is off by about 0.2 there
    for scores in (
        index_of(documents_NK, "l2").search(documents_NK[:70], 1)[1],
        search_by_matmul(documents_NK[:70], torch.from_numpy(documents_NK), 1, metric="l2")[1],
    ):
        assert (scores == 0).all()


@pytest.mark.parametrize("metric", METRICS)
def test_equal_documents_come_in_the_order_of_their_rows(metric):
    different_NK = embeddings(20)
    documents_NK = np.concatenate([different_NK] * 100)  # more twins than candidates
    documents_NK = documents_NK[np.random.default_rng(1).permutation(len(documents_NK))]
    queries_QK = embeddings(3, seed=2)
    rows_Qk, _ = slow_search(queries_QK, documents_NK, 50, metric)
    ids, _ = index_of(documents_NK, metric).search(queries_QK, 50)
    assert ids == [[f"d{row}" for row in rows] for rows in rows_Qk]
    matmul_rows, _ = search_by_matmul(queries_QK, torch.from_numpy(documents_NK), 50, metric=metric, chunk=100)
    assert matmul_rows.tolist() == rows_Qk.tolist()


def test_a_ranking_that_fp32_cannot_see_is_right():
    """Every document's product with the query is 1e4 in fp32; the last one is the largest."""
    documents_NK = np.zeros((200, 3), np.float32)
    documents_NK[:, 0], documents_NK[:, 1] = 1e4, np.arange(200) * 1e-6
    query_1K = np.array([[1, 1, 0]], np.float32)
    expected = [[f"d{row}" for row in range(199, 194, -1)]]
    assert index_of(documents_NK, "dot").search(query_1K, 5)[0] == expected
    rows, _ = search_by_matmul(query_1K, torch.from_numpy(documents_NK), 5, metric="dot", chunk=64)
    assert rows.tolist() == [[199, 198, 197, 196, 195]]


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
    assert search_by_matmul(embeddings(2, seed=1), torch.from_numpy(documents_NK), 10)[0].shape == (2, 4)


def test_no_queries_give_no_hits():
    ids, scores = index_of(embeddings(), "dot").search(np.zeros((0, 24), np.float32), 3)
    assert ids == []
    assert scores.shape == (0, 3)


def test_documents_added_later_are_found():
    documents_NK = embeddings()
    index = TextIndex(documents_NK.shape[1], metric="l2")
    index.add(names(300)[:100], documents_NK[:100])
    index.add(names(300)[100:], torch.from_numpy(documents_NK[100:]))
    assert len(index) == 300
    queries_QK = embeddings(9, seed=1)
    assert index.search(queries_QK, 10)[0] == index_of(documents_NK, "l2").search(queries_QK, 10)[0]


def test_products_in_halves_survive_a_device_that_rounds_to_bf16():
    """On a TPU a fp32 matmul takes bf16 inputs; three products of halves are as good as fp32 even so."""
    from helpers.lejepa.retrieval import _halves

    x, y = (torch.from_numpy(embeddings(64, 384, seed)) for seed in (0, 1))
    (x_high, x_low), (y_high, y_low) = _halves(x), _halves(y)
    assert torch.equal(x_high + x_low, x)
    assert torch.equal(x_high.bfloat16().float(), x_high)
    rounded = [a.bfloat16().float() for a in (x_high, x_low, y_high, y_low)]
    product = rounded[0] @ rounded[2].T + (rounded[0] @ rounded[3].T + rounded[1] @ rounded[2].T)
    scale = x.norm(dim=1)[:, None] * y.norm(dim=1)
    assert ((product - (x.double() @ y.double().T)).abs() / scale).max() < 2**-14
    assert ((x.bfloat16().float() @ y.bfloat16().float().T - x @ y.T).abs() / scale).max() > 2**-14


ON_XLA = """
import json
import numpy as np
import torch
from helpers import xla
from helpers.lejepa.retrieval import search_by_matmul
from tests.test_retrieval import METRICS, embeddings, index_of, names

device, answers = xla.start(), {}
for metric in METRICS:
    documents_NK, queries_QK = embeddings(1000, 48), embeddings(128, 48, seed=1)
    documents_NK[500:] = documents_NK[:500]
    ids, scores = index_of(documents_NK, metric).search(queries_QK, 20)
    on_device = torch.from_numpy(documents_NK).to(device)
    rows, found = search_by_matmul(torch.from_numpy(queries_QK).to(device), on_device, 20, metric=metric, chunk=250)
    same = ids == [[f"d{row}" for row in rows] for rows in rows.tolist()]
    answers[metric] = [same, float(np.abs(found - scores).max())]
print("ANSWERS " + json.dumps(answers))
"""


def test_matmul_on_xla_finds_what_faiss_finds():
    for metric, (same, difference) in answers_on_xla(ON_XLA).items():
        assert same, metric
        assert difference < 1e-5, metric


# ---- saved indexes


@pytest.mark.parametrize("metric", METRICS)
def test_a_loaded_index_answers_as_the_saved_one(tmp_path, metric):
    documents_NK, queries_QK = embeddings(), embeddings(5, seed=1)
    index = index_of(documents_NK, metric, texts=[f"text {row} ü" for row in range(300)])
    loaded = TextIndex.load(index.save(tmp_path / "index"))
    assert (loaded.ids, loaded.texts, loaded.metric, loaded.dimension) == (index.ids, index.texts, metric, 24)
    before, after = index.search(queries_QK, 7), loaded.search(queries_QK, 7)
    assert before[0] == after[0]
    assert np.array_equal(before[1], after[1])
    loaded.add(["new"], queries_QK[:1], ["a new one"])
    assert loaded.search(queries_QK[:1], 1)[0] == [["new"]] or metric == "dot"


def test_a_saved_index_is_one_file_of_faiss_and_one_of_json(tmp_path):
    folder = index_of(embeddings(), "dot").save(tmp_path / "deep" / "index")
    assert sorted(path.name for path in folder.iterdir()) == ["index.faiss", "index.json"]
    assert sorted(path.name for path in folder.parent.iterdir()) == ["index"]
    assert json.loads((folder / "index.json").read_text())["texts"] is None
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
    folder = index_of(embeddings(), "cosine", texts=names(300)).save(tmp_path / "index")
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
        index.add(["new", "d7"], embeddings(2))
    assert len(index) == len(index.ids) == 300


def test_ids_that_are_no_strings_are_refused():
    with pytest.raises(ValueError, match="ids: 0 is no string"):
        TextIndex(24).add([0, 1], embeddings(2))


def test_texts_for_some_documents_only_are_refused():
    with pytest.raises(ValueError, match="holds no texts; leave them out"):
        index_of(embeddings(), "dot").add(["new"], embeddings(1), ["text"])
    with pytest.raises(ValueError, match="holds the text of every document; give them"):
        index_of(embeddings(2), "dot", ["one", "two"]).add(["new"], embeddings(1))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_are_refused(value):
    spoilt = embeddings(6)
    spoilt[4, 2] = value
    with pytest.raises(ValueError, match="embeddings_NK: 1 of 6 rows hold NaN or infinity"):
        TextIndex(24).add(names(6), spoilt)
    with pytest.raises(ValueError, match="queries: 1 of 6 rows"):
        index_of(embeddings(), "dot").search(spoilt)
    with pytest.raises(ValueError, match="documents_NK holds NaN"):
        search_by_matmul(embeddings(1), torch.from_numpy(spoilt), 1)


def test_wrong_arguments_are_named():
    index = index_of(embeddings(), "dot")
    documents_NK = torch.from_numpy(embeddings())
    for message, call in {
        "metric='euclid': choose one of cosine, dot, l2": lambda: TextIndex(24, metric="euclid"),
        "dimension=0": lambda: TextIndex(0),
        "k=0": lambda: index.search(embeddings(1), 0),
        r"queries has shape \[1, 23\]: must be \[rows, 24\]": lambda: index.search(embeddings(1, 23)),
        "pass the model": lambda: index.search(["text"]),
        "must be a list of texts": lambda: index.search("text"),
        "no documents": lambda: TextIndex(24).search(embeddings(1)),
        "1 ids, 2 embeddings": lambda: index.add(["new"], embeddings(2)),
        "chunk=0": lambda: search_by_matmul(embeddings(1), documents_NK, 1, chunk=0),
        "must be floats": lambda: search_by_matmul(embeddings(1), documents_NK.long(), 1),
    }.items():
        with pytest.raises(ValueError, match=message):
            call()
