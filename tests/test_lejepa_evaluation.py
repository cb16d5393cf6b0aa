"""Metrics against hand arithmetic, sklearn, scipy and a slow loop; what evaluation leaves untouched; tables."""

import csv
import json
import math
import tempfile

import numpy as np
import pytest
import scipy.stats
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from helpers.lejepa.beir import Benchmark, from_pairs
from helpers.lejepa.encoding import encode, on_cpu
from helpers.lejepa.evaluation import (
    WIDTH,
    before_after,
    evaluate_retrieval,
    evaluate_similarity,
    spread,
    table,
)
from helpers.lejepa.retrieval import TextIndex

from .xla_process import answers_on_xla

WORDS = [f"word{index}" for index in range(60)]
K = 8


def build_model(folder, *, dropout=0.3, seed=0):
    """One layer of BERT, mean pooling and a head of K, random; with prompts for queries and documents."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "ask", "tell", *WORDS])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokens = PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    tokens.save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    rates = {"hidden_dropout_prob": dropout, "attention_probs_dropout_prob": dropout}
    config = BertConfig(vocab_size=len(vocabulary), max_position_embeddings=64, initializer_range=0.5, **sizes, **rates)
    BertModel(config, add_pooling_layer=False).save_pretrained(folder)
    modules = [Transformer(str(folder), max_seq_length=32), Pooling(16), Dense(16, K, activation_function=None)]
    prompts = {"query": "ask ", "document": "tell "}
    return SentenceTransformer(modules=modules, prompts=prompts, device="cpu")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return build_model(tmp_path_factory.mktemp("model")).eval()


def texts(count, seed=0, words=8):
    rng = np.random.default_rng(seed)
    return [" ".join(rng.choice(WORDS, rng.integers(2, words + 1))) for _ in range(count)]


def benchmark(seed=0, Q=30, N=150):
    rng = np.random.default_rng(seed)
    queries = {f"q{row}": text for row, text in enumerate(texts(Q, seed))}
    corpus = {f"d{row:03}": text for row, text in enumerate(texts(N, seed + 1))}
    relevant = {query: frozenset(rng.choice(list(corpus), rng.integers(1, 15), replace=False)) for query in queries}
    return Benchmark("random", queries, corpus, relevant)


def placed(similarity_of_documents):
    """A model of one word a text: the query is (1, 0), a document at the angle whose cosine is given."""

    class Placed(torch.nn.Module):
        def tokenize(self, texts, **kwargs):
            angles = [math.acos(similarity_of_documents.get(text, 1.0)) for text in texts]
            return {"angles": torch.tensor(angles)}

        def forward(self, features):
            angles = features["angles"]
            return features | {"sentence_embedding": torch.stack((angles.cos(), angles.sin()), 1)}

        def get_embedding_dimension(self):
            return 2

    return SentenceTransformer(modules=[Placed()], device="cpu")


# ---- retrieval


def test_metrics_of_a_ranking_worked_out_by_hand():
    """Documents A to F in this order; relevant to the one query: B, D and F, and to the other: A."""
    ranking = dict(zip("ABCDEF", (0.9, 0.8, 0.7, 0.6, 0.5, 0.4), strict=True))
    toy = Benchmark(
        "toy", {"1": "one", "2": "two"}, {name: name for name in ranking}, {"1": frozenset("BDF"), "2": frozenset("A")}
    )
    metrics = evaluate_retrieval(placed(ranking), toy)
    metrics = {name: value for name, value in metrics.items() if name.startswith("cosine_")}
    gain = (1 / math.log2(3) + 1 / math.log2(5) + 1 / math.log2(7)) / (1 + 1 / math.log2(3) + 1 / math.log2(4))
    assert metrics == pytest.approx(
        {
            "cosine_recall@1": (0 + 1) / 2,
            "cosine_recall@5": (2 / 3 + 1) / 2,
            "cosine_recall@10": 1,
            "cosine_recall@100": 1,
            "cosine_mrr@10": (1 / 2 + 1) / 2,
            "cosine_ndcg@10": (gain + 1) / 2,
            "cosine_map@100": ((1 / 2 + 2 / 4 + 3 / 6) / 3 + 1) / 2,
        }
    )


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_metrics_of_a_random_model_equal_a_slow_loop_and_sklearn(model, similarity):
    from sklearn.metrics import ndcg_score

    data = benchmark()
    found = evaluate_retrieval(model, data)
    with torch.no_grad():
        queries_QK = model.encode_query(list(data.queries.values())).astype(float)
        documents_NK = model.encode_document(list(data.corpus.values())).astype(float)
    if similarity == "cosine":
        queries_QK, documents_NK = (x / np.linalg.norm(x, axis=1, keepdims=True) for x in (queries_QK, documents_NK))
    scores_QN = queries_QK @ documents_NK.T
    names, sums = list(data.corpus), dict.fromkeys(("recall@5", "recall@100", "mrr@10", "ndcg@10", "map@100"), 0.0)
    for query, scores_N in zip(data.queries, scores_QN, strict=True):
        relevant = data.relevant[query]
        ranks = [rank for rank, row in enumerate(np.argsort(-scores_N), 1) if names[row] in relevant]
        sums["recall@5"] += sum(rank <= 5 for rank in ranks) / len(relevant)
        sums["recall@100"] += sum(rank <= 100 for rank in ranks) / len(relevant)
        sums["mrr@10"] += 1 / ranks[0] if ranks[0] <= 10 else 0
        sums["map@100"] += sum(hit / rank for hit, rank in enumerate(ranks, 1) if rank <= 100) / len(relevant)
        sums["ndcg@10"] += ndcg_score([[name in relevant for name in names]], [scores_N], k=10)
    for name, total in sums.items():
        assert found[f"{similarity}_{name}"] == pytest.approx(total / len(data.queries), abs=1e-9), name


def test_metrics_agree_with_the_index(model):
    data = benchmark()
    metrics = evaluate_retrieval(model, data)
    index = TextIndex(model, list(data.corpus), list(data.corpus.values()))
    hits, _ = index.search(model, list(data.queries.values()), 10)
    recalls = [
        len(data.relevant[query] & set(ids)) / len(data.relevant[query])
        for query, ids in zip(data.queries, hits, strict=True)
    ]
    assert metrics["cosine_recall@10"] == pytest.approx(np.mean(recalls))


def test_both_similarities_are_reported_and_can_be_written_as_json(model):
    metrics = evaluate_retrieval(model, benchmark())
    assert len(metrics) == 14
    assert json.loads(json.dumps(metrics)) == metrics
    assert metrics["cosine_ndcg@10"] != metrics["dot_ndcg@10"]


def test_queries_and_documents_get_their_own_prompts(model):
    data = from_pairs([(text, text) for text in texts(20)], "pairs")
    assert not np.allclose(encode(model, ["word1"], task="query"), encode(model, ["word1"], task="document"))
    np.testing.assert_allclose(
        encode(model, ["word1"], task="query"), encode(model, ["ask word1"], task=None), atol=1e-6
    )
    without = build_and_forget_prompts(model)
    assert evaluate_retrieval(without, data)["cosine_recall@1"] == 1
    assert evaluate_retrieval(model, data)["cosine_recall@1"] < 1


def build_and_forget_prompts(model):
    return SentenceTransformer(modules=list(model), device="cpu")


def test_a_model_in_training_is_measured_without_dropout_and_trains_on(tmp_path):
    model = build_model(tmp_path)
    before = evaluate_retrieval(model.eval(), benchmark())
    model.train()
    model[1].eval()
    modes = [module.training for module in model.modules()]
    assert evaluate_retrieval(model, benchmark()) == before
    assert [module.training for module in model.modules()] == modes
    assert not model.model_card_data.eval_results_dict


def test_a_cuda_model_in_bf16_ranks_nearly_the_same(tmp_path):
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    model, data = build_model(tmp_path).eval(), benchmark()
    expected = evaluate_retrieval(model, data)
    model.to("cuda")
    assert evaluate_retrieval(model, data) == pytest.approx(expected, abs=0.02)
    assert evaluate_retrieval(model, data, precision="bf16") == pytest.approx(expected, abs=0.1)
    assert model.device.type == "cuda"


ON_XLA = """
import json, tempfile, warnings
from helpers import xla
from helpers.lejepa.encoding import encode, on_cpu
from helpers.lejepa.evaluation import evaluate_retrieval, evaluate_similarity
from tests.test_lejepa_evaluation import benchmark, build_model, scored, write_csv

model = build_model(tempfile.mkdtemp())
model[0].auto_model.embeddings.word_embeddings.weight.requires_grad_(False)


def measure():
    return [evaluate_retrieval(model, benchmark()), evaluate_similarity(model, write_csv(scored(20)))]


on_host = measure()
model.to(xla.start()).train()
xla.replicate(model)
xla.sync()
before = xla.counters()["compiles"]
on_device = measure()
copied = on_cpu(model)
answers = {
    "cpu": on_host,
    "xla": on_device,
    "compiles": xla.counters()["compiles"] - before,
    "devices": [model.device.type, copied.device.type],
    "training": model.training,
    "frozen": [[p.requires_grad for p in m.parameters()] for m in (model, copied)],
}
print("ANSWERS " + json.dumps(answers))
"""


def test_a_model_on_xla_is_measured_by_a_copy_without_compiling():
    answers = answers_on_xla(ON_XLA)
    for cpu, found in zip(answers["cpu"], answers["xla"], strict=True):
        assert found == pytest.approx(cpu, abs=1e-6)
    assert answers["compiles"] == 0
    assert answers["devices"] == ["xla", "cpu"]
    assert answers["training"]
    assert answers["frozen"][0] == answers["frozen"][1]
    assert answers["frozen"][0].count(False) == 1


def test_a_model_on_the_cpu_is_not_copied(model):
    assert on_cpu(model) is model


# ---- similarity


def scored(count, seed=0):
    rng = np.random.default_rng(seed)
    pairs = zip(texts(count, seed), texts(count, seed + 1), strict=True)
    return [(one, other, float(rng.uniform(0, 5))) for one, other in pairs]


def write_csv(rows, *header):
    with tempfile.NamedTemporaryFile("w", suffix=".csv", newline="", encoding="utf-8", delete=False) as file:
        csv.writer(file).writerows([*header, *rows])
    return file.name


def test_correlations_are_scipys(model):
    rows = scored(40)
    first, second = (model.encode([row[side] for row in rows]).astype(float) for side in (0, 1))
    cosine = (first * second).sum(1) / np.linalg.norm(first, axis=1) / np.linalg.norm(second, axis=1)
    truth = [row[2] for row in rows]
    assert evaluate_similarity(model, write_csv(rows)) == pytest.approx(
        {
            "spearman_cosine": scipy.stats.spearmanr(truth, cosine)[0],
            "pearson_cosine": scipy.stats.pearsonr(truth, cosine)[0],
        },
        abs=1e-6,
    )


def test_a_file_with_and_without_header_is_the_same(model):
    rows = [(f'{one}, "{other}"', other, score) for one, other, score in scored(12)]
    turned = [("x", score, other, one) for one, other, score in rows]
    headed = write_csv(turned, ("id", "score", "sentence2", "sentence1"))
    assert evaluate_similarity(model, headed) == evaluate_similarity(model, write_csv(rows))


def test_wrong_pairs_are_named(model, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"similarity=.*none.csv': no such file"):
        evaluate_similarity(model, tmp_path / "none.csv")
    for content, message in {
        "a,b,1\na,b\n": r"x.csv', line 2 is \['a', 'b'\]: must be sentence1",
        'a,"b"c,1\n': r"x.csv', line 1: not CSV",
        "a,b,1\na,b,high\n": r"line 2 is .*'high'\]: must be .*a number",
        "a,b,1\nc,d,1\n": "scores that are finite and not all the same",
        "a,b,1\nc,d,nan\n": "scores that are finite",
        "": "scores that are finite and not all the same",
    }.items():
        (tmp_path / "x.csv").write_text(content)
        with pytest.raises(ValueError, match=message):
            evaluate_similarity(model, tmp_path / "x.csv")


# ---- side by side


def test_hits_before_and_after_stand_side_by_side_with_those_that_answer():
    before, after = placed({"A": 0.9, "B": 0.5, "C": 0.1}), placed({"A": 0.2, "B": 0.8, "C": 0.4})
    shown = before_after(before, after, {"first": {"b"}, "second": {"c"}}, {"a": "A", "b": "B", "c": "C"}, k=2)
    assert shown == [
        {"query": "first", "before": "0.900 A", "after": "0.800 * B"},
        {"query": "", "before": "0.500 * B", "after": "0.400 C"},
        {"query": "second", "before": "0.900 A", "after": "0.800 B"},
        {"query": "", "before": "0.500 B", "after": "0.400 * C"},
    ]


def test_long_documents_are_cut_to_one_line(model):
    shown = before_after(model, model, {"word3": ()}, {"1": "word1\n" * 100, "2": "word2 " * 100})
    assert len(shown) == 2
    assert all(len(row["after"]) == WIDTH and "\n" not in row["after"] for row in shown)


def test_spread_is_mean_and_sample_standard_deviation():
    assert spread([0.1, 0.2, 0.6]) == "0.300 ± 0.265"  # sqrt((0.04 + 0.01 + 0.09) / 2)
    assert spread([0.4012]) == "0.401"
    assert spread([300.0, 310.0, 320.0], 1) == "310.0 ± 10.0"


def test_a_table_has_a_row_a_model_and_the_spread_over_seeds():
    untrained = {"backbone": {"ndcg@10": 0.401, "effective_rank": 98.0, "steps": 0}}
    rows = {seed: {"LeJEPA": {"ndcg@10": 0.41 + seed / 100, "similarity": 0.8}} for seed in range(3)}
    assert table(untrained, rows) == [
        {"model": "backbone", "ndcg@10": "0.401", "effective rank": "98.0", "seeds": 1},
        {"model": "LeJEPA", "ndcg@10": "0.420 ± 0.010", "similarity": "0.800 ± 0.000", "seeds": 3},
    ]
