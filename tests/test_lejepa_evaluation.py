"""Metrics against hand arithmetic, sklearn, scipy and a slow loop; what evaluation leaves untouched; tables."""

import math

import numpy as np
import pytest
import scipy.stats
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from helpers.lejepa.beir import Benchmark, from_pairs
from helpers.lejepa.encoding import encode, on_cpu
from helpers.lejepa.evaluation import (
    BY_DIMENSION,
    evaluate_retrieval,
    spread,
    table,
)
from helpers.lejepa.evidence import compare, ndcg_by_query, paragraph

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
    gain = (1 / math.log2(3) + 1 / math.log2(5) + 1 / math.log2(7)) / (1 + 1 / math.log2(3) + 1 / math.log2(4))
    assert metrics == pytest.approx(
        {
            "recall@1": (0 + 1) / 2,
            "recall@5": (2 / 3 + 1) / 2,
            "recall@10": 1,
            "recall@100": 1,
            "mrr@10": (1 / 2 + 1) / 2,
            "ndcg@10": (gain + 1) / 2,
            "map@100": ((1 / 2 + 2 / 4 + 3 / 6) / 3 + 1) / 2,
        }
    )


def test_metrics_of_a_random_model_equal_a_slow_loop_and_sklearn(model):
    from sklearn.metrics import ndcg_score

    data = benchmark()
    found = evaluate_retrieval(model, data)
    with torch.no_grad():
        queries_QK = model.encode_query(list(data.queries.values())).astype(float)
        documents_NK = model.encode_document(list(data.corpus.values())).astype(float)
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
        assert found[name] == pytest.approx(total / len(data.queries), abs=1e-9), name


def test_queries_and_documents_get_their_own_prompts(model):
    data = from_pairs([(text, text) for text in texts(20)], "pairs")
    assert not np.allclose(encode(model, ["word1"], task="query"), encode(model, ["word1"], task="document"))
    np.testing.assert_allclose(
        encode(model, ["word1"], task="query"), encode(model, ["ask word1"], task=None), atol=1e-6
    )
    without = build_and_forget_prompts(model)
    assert evaluate_retrieval(without, data)["recall@1"] == 1
    assert evaluate_retrieval(model, data)["recall@1"] < 1


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
from helpers.machine import xla
from helpers.lejepa.encoding import encode, on_cpu
from helpers.lejepa.evaluation import evaluate_retrieval
from tests.test_lejepa_evaluation import benchmark, build_model

model = build_model(tempfile.mkdtemp())
model[0].auto_model.embeddings.word_embeddings.weight.requires_grad_(False)


def measure():
    return [evaluate_retrieval(model, benchmark())]


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


# ---- evidence


@pytest.mark.parametrize("k", [10, 3])
def test_ndcg_of_each_query_is_sklearns_and_its_mean_the_evaluators(model, k):
    from sklearn.metrics import ndcg_score

    data, embeddings = benchmark(), {}
    metrics = evaluate_retrieval(model, data, embeddings=embeddings)
    found = ndcg_by_query(embeddings["query"], embeddings["document"], data, k)
    for query, row_K, value in zip(data.queries, embeddings["query"].astype(float), found, strict=True):
        documents_NK = embeddings["document"].astype(float)
        cosines = documents_NK @ row_K / np.linalg.norm(documents_NK, axis=1) / np.linalg.norm(row_K)
        truth = [name in data.relevant[query] for name in data.corpus]
        assert value == pytest.approx(ndcg_score([truth], [cosines], k=k), abs=1e-9)
    if k == 10:
        assert found.mean() == pytest.approx(metrics["ndcg@10"], abs=1e-9)


def test_an_interval_is_scipys_paired_bootstrap():
    draw = np.random.default_rng(3)
    ours_Q, theirs_Q = draw.random((2, 150))
    verdict = compare("ours", "theirs", {"ours": ours_Q, "theirs": theirs_Q})
    expected = scipy.stats.bootstrap(
        (ours_Q, theirs_Q), lambda x, y, axis: (x - y).mean(axis), paired=True, method="percentile", n_resamples=9999
    ).confidence_interval
    assert (verdict.low, verdict.high) == pytest.approx((expected.low, expected.high), abs=0.01)
    assert verdict.difference == pytest.approx((ours_Q - theirs_Q).mean())


@pytest.mark.parametrize(
    ("shift", "queries", "outcome"),
    [
        (0.1, 200, "better than"),
        (-0.1, 200, "worse than"),
        (0.0, 200, "not told apart from"),
        (0.5, 19, "not told apart from"),
    ],
)
def test_a_difference_is_told_where_its_interval_has_no_zero_and_queries_are_enough(shift, queries, outcome):
    theirs_Q, noise_Q = np.random.default_rng(0).normal(0.5, 0.2, (2, queries))
    verdict = compare("ours", "theirs", {"ours": theirs_Q + shift + (noise_Q - noise_Q.mean()), "theirs": theirs_Q})
    assert verdict.outcome == outcome
    assert ("fewer than 20 queries" in str(verdict)) == (queries < 20)


def test_a_difference_of_nothing_but_noise_is_told_in_one_of_twenty():
    draw, told = np.random.default_rng(1), 0
    for _ in range(300):
        ours_Q, theirs_Q = draw.random((2, 60))
        told += compare("ours", "theirs", {"ours": ours_Q, "theirs": theirs_Q}).outcome != "not told apart from"
    assert 3 <= told <= 30


@pytest.mark.parametrize(
    ("exported", "begins"),
    [
        (
            "start",
            "The exported model is what you started with: nothing that was trained or fitted here was better on the",
        ),
        ("head", "The exported model is head, which was not trained any further: training was not better on the"),
        ("trained", "The exported model, trained, is worse than what you started with, start, and was the best on the"),
        ("rival", "The exported model, rival, is better than what you started with, start, and was the best on the"),
    ],
)
def test_the_paragraph_says_what_is_exported_and_what_it_is_worth(exported, begins):
    means = {"start": 0.5, "head": 0.6, "trained": 0.3, "rival": 0.8}
    ndcg = {name: np.linspace(mean, mean + 0.1, 30) for name, mean in means.items()}
    verdicts = [compare(name, "start", ndcg) for name in means if name != "start"]
    chosen_by = {"start": 0.5, "head": 0.625, "trained": 0.75}
    said = paragraph(exported, "start", ["trained", "rival"], chosen_by, verdicts)
    assert said.startswith(begins)
    assert "start 0.500, head 0.625, trained 0.750" in said and "On 30 test queries, which chose nothing" in said
    assert "trained is worse than start (nDCG@10 -0.200" in said
    assert ("head is better than start (nDCG@10 +0.100" in said) == (exported == "head")


# ---- tables


def test_a_table_by_dimension_has_a_column_for_each_length_that_a_model_has():
    models = {"small": {"ndcg@10": 0.4, "mrr@10": 0.1, "ndcg@10 of 128": 0.3}, "large": {"ndcg@10": 0.45}}
    assert table(models, {}, BY_DIMENSION) == [
        {"model": "small", "ndcg@10": "0.400", "ndcg@10 of 128": "0.300", "seeds": 1},
        {"model": "large", "ndcg@10": "0.450", "seeds": 1},
    ]


def test_spread_is_mean_and_sample_standard_deviation():
    assert spread([0.1, 0.2, 0.6]) == "0.300 ± 0.265"  # sqrt((0.04 + 0.01 + 0.09) / 2)
    assert spread([0.4012]) == "0.401"
    assert spread([300.0, 310.0, 320.0], 1) == "310.0 ± 10.0"


def test_a_table_has_a_row_a_model_and_the_spread_over_seeds():
    untrained = {"backbone": {"ndcg@10": 0.401, "steps": 0}}
    rows = {seed: {"LeJEPA": {"ndcg@10": 0.41 + seed / 100, "mrr@10": 0.8}} for seed in range(3)}
    assert table(untrained, rows) == [
        {"model": "backbone", "ndcg@10": "0.401", "seeds": 1},
        {"model": "LeJEPA", "ndcg@10": "0.420 ± 0.010", "mrr@10": "0.800 ± 0.000", "seeds": 3},
    ]
