"""LeJEPALoss on a real, tiny SentenceTransformer: against the formulas, sentence-transformers' own loss and one process."""

import pytest
import torch

from helpers.lejepa import gradient_cache
from helpers.lejepa.loss import LeJEPALoss
from helpers.lejepa.model import freeze
from helpers.lejepa.parameters import EmbeddingParameters
from helpers.lejepa.sigreg import SIGReg, gaussian_floor
from helpers.machine import xla
from helpers.machine.attention import checkpoint_activations
from helpers.plan.counting import LiveBytes

from .test_sigreg import one_of_two
from .xla_process import answers_on_xla

K, T = 8, 6
WORDS = [f"word{index}" for index in range(40)]

# V views · N texts · K embedding · T tokens


def build():
    """One layer of BERT with mean pooling, without dropout."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers import BertConfig, BertModel

    class Bert(torch.nn.Module):
        def __init__(self):
            super().__init__()
            sizes = {"hidden_size": K, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
            dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
            self.bert = BertModel(BertConfig(vocab_size=len(WORDS), **sizes, **dropout), add_pooling_layer=False)

        def forward(self, features):
            # No mask, as no row is padded: transformers would look at its values on the host.
            return features | {"token_embeddings": self.bert(features["input_ids"]).last_hidden_state}

        def tokenize(self, texts, **kwargs):
            return column([[WORDS.index(word) for word in text.split()] for text in texts])

    torch.manual_seed(0)
    return SentenceTransformer(modules=[Bert(), Pooling(K)], device="cpu").train()


def column(ids):
    ids_NT = torch.tensor(ids)
    return {"input_ids": ids_NT, "attention_mask": torch.ones_like(ids_NT)}


def batch(V=2, N=12, seed=0):
    ids_VNT = torch.randint(1, len(WORDS), (V, N, T), generator=torch.Generator().manual_seed(seed))
    return [column(ids_NT.tolist()) for ids_NT in ids_VNT]


def sigreg():
    return SIGReg(t_max=3, n_points=17, num_slices=16)


def lejepa(model=None, sigreg_weight=0.3, **options):
    return LeJEPALoss(model or build(), sigreg(), sigreg_weight=sigreg_weight, **options)


def embed(model, features):
    return torch.stack([model(dict(view))["sentence_embedding"] for view in features])


def gradients(model):
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])


def rows(features, chosen):
    return [{name: tensor[chosen] for name, tensor in view.items()} for view in features]


# ---- the formulas


def test_invariance_and_sigreg_are_weighed_as_documented():
    loss, features = lejepa(), batch(V=3)
    views_VNK = embed(loss.model, features).detach()
    distances = [(view - sum(views_VNK) / 3).square().mean() for view in views_VNK]
    expected = 0.7 * sum(distances) / 3 + 0.3 * sum(sigreg()(view, 0) for view in views_VNK) / 3
    torch.testing.assert_close(loss(features), expected)


def test_the_gradient_reaches_every_weight_of_the_encoder():
    loss = lejepa()
    loss(batch()).backward()
    silent = [name for name, weight in loss.model.named_parameters() if weight.grad is None or not weight.grad.any()]
    # A key's bias adds the same to all scores of a query; only token type 0 occurs.
    assert {name.split(".")[-2] for name in silent} <= {"key"}


def test_slices_change_with_every_training_batch():
    loss, features = lejepa(sigreg_weight=1.0), batch()
    views_VNK = embed(loss.model, features)
    for step in range(3):
        torch.testing.assert_close(loss(features), sigreg()(views_VNK, step))


def test_under_bf16_autocast_the_loss_is_fp32_and_near_the_fp32_one():
    loss, features = lejepa(contrastive_weight=0.1), batch()
    exact = loss.eval()(features)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = loss(features)
    assert rounded.dtype == torch.float32
    assert 0 < abs(rounded / exact - 1) < 0.05


# ---- contrastive term


def contrastive(features, **options):
    loss = lejepa(contrastive_weight=1.0, **options)
    without = lejepa(loss.model, **options)
    return loss, loss(features) - without(features)


def test_with_distinct_texts_the_contrastive_term_is_multiple_negatives_ranking():
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    features = batch()
    loss, found = contrastive(features)
    torch.testing.assert_close(found, MultipleNegativesRankingLoss(loss.model)(features, None))


def test_further_columns_are_ranked_by_themselves_and_averaged():
    features = batch(V=3)
    loss, found = contrastive(features, contrastive_scale=7.0)
    anchors_NK, *others = torch.nn.functional.normalize(embed(loss.model, features), dim=-1)
    expected = [-torch.log_softmax(7 * anchors_NK @ other_NK.T, 1).diagonal().mean() for other_NK in others]
    torch.testing.assert_close(found, sum(expected) / 2)


def test_a_duplicate_of_the_anchor_or_of_the_positive_is_no_negative():
    features = batch(N=6)
    features[0]["input_ids"][3] = features[0]["input_ids"][1]  # rows 1 and 3 ask the same
    features[1]["input_ids"][5] = features[1]["input_ids"][2]  # rows 2 and 5 have the same answer
    loss, found = contrastive(features)
    anchors_NK, others_NK = torch.nn.functional.normalize(embed(loss.model, features), dim=-1)
    no_negative = {(1, 3), (3, 1), (2, 5), (5, 2)}
    total = 0.0
    for i in range(6):
        scores = [20 * anchors_NK[i] @ others_NK[j] for j in range(6) if (i, j) not in no_negative]
        total += torch.logsumexp(torch.stack(scores), 0) - 20 * anchors_NK[i] @ others_NK[i]
    torch.testing.assert_close(found, total / 6)


def test_hard_negatives_are_candidates_as_in_multiple_negatives_ranking_and_no_views():
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    features = batch(V=3)
    loss, found = contrastive(features, negatives=1)
    torch.testing.assert_close(found, MultipleNegativesRankingLoss(loss.model)(features, None))
    views_VNK = embed(loss.model, features)
    expected = (views_VNK[:2] - views_VNK[:2].mean(0)).square().mean().detach()
    torch.testing.assert_close(loss.read_terms()["invariance"], float(expected))


def test_a_hard_negative_that_is_the_answer_of_a_row_is_no_candidate_of_it():
    features = batch(V=3, N=6)
    features[2]["input_ids"][4] = features[1]["input_ids"][1]
    loss, found = contrastive(features, negatives=1)
    anchors_NK, *others = torch.nn.functional.normalize(embed(loss.model, features), dim=-1)
    scores_NC = 20 * anchors_NK @ torch.cat(others).T
    scores_NC[1, 6 + 4] = -torch.inf
    expected = -torch.log_softmax(scores_NC, 1).diagonal().mean()
    torch.testing.assert_close(found, expected)


def test_shorter_dimensions_have_the_contrastive_term_of_matryoshka():
    from sentence_transformers.sentence_transformer.losses import MatryoshkaLoss, MultipleNegativesRankingLoss

    features, sizes = batch(V=3), [K, 4, 2]
    loss, found = contrastive(features, negatives=1, dimensions=sizes[1:])
    stock = MatryoshkaLoss(loss.model, MultipleNegativesRankingLoss(loss.model), sizes)
    torch.testing.assert_close(found, stock(features, None) / len(sizes))


# ---- gradient caching


def value_and_gradient(loss, features):
    loss.model.zero_grad()
    value = loss([dict(column) for column in features], None)
    value.backward()
    return value.detach(), gradients(loss.model)


def error(found, expected) -> float:
    """Of the value, relative, and of the gradient, relative to its largest entry."""
    (value, gradient), (true_value, true_gradient) = found, expected
    off = (gradient - true_gradient).abs().max() / true_gradient.abs().max()
    return max(float(abs(value / true_value - 1)), float(off))


@pytest.mark.parametrize("chunk", [16, 5, 1, 64, 100])
def test_chunks_of_a_batch_have_the_value_and_the_gradient_of_the_batch_at_once(chunk):
    features, options = batch(V=3, N=64), {"contrastive_weight": 0.5, "negatives": 1, "dimensions": (4,)}
    whole = value_and_gradient(lejepa(**options), features)
    chunked = value_and_gradient(lejepa(chunk=chunk, **options), features)
    assert error(chunked, whole) < 1e-6


@pytest.fixture
def with_dropout(tmp_path):
    """BERT as transformers has it, with dropout, and two columns of 64 padded texts."""
    from .lejepa_run import build_model, sentences

    model = build_model(tmp_path, dropout=0.1).train()
    return model, [model.preprocess(sentences(64, seed)) for seed in range(2)]


def test_dropout_draws_the_same_when_a_chunk_is_embedded_again(with_dropout, monkeypatch):
    model, features = with_dropout
    loss = lejepa(model, chunk=16, contrastive_weight=0.5)
    drawn = []
    # What the head gets: nothing after that is kept, so that the second time stops there.
    model[-1].register_forward_pre_hook(lambda head, args: drawn.append(args[0]["sentence_embedding"].detach()))
    torch.manual_seed(0)
    replayed = value_and_gradient(loss, features)
    first, again = drawn[:8], drawn[8:]
    assert len(again) == 8 and not torch.equal(first[0], first[1])
    assert all(torch.equal(one, two) for one, two in zip(first, reversed(again), strict=True))
    monkeypatch.setattr(
        gradient_cache, "checkpoint", lambda embed, *values, **options: embed(*values)
    )  # the graph is kept
    loss.step = 0
    torch.manual_seed(0)
    assert error(replayed, value_and_gradient(loss, features)) < 1e-6


def test_memory_follows_the_chunk_and_not_the_batch(with_dropout):
    model, features = with_dropout
    weights = list(model.parameters())

    def peak(chunk: int, texts: int) -> int:
        with LiveBytes(weights) as live:
            lejepa(model, chunk=chunk)(rows(features, slice(texts))).backward()
        model.zero_grad()
        return live.peak - sum(weight.nbytes for weight in weights)

    assert peak(16, 64) < 0.3 * peak(0, 64)
    assert peak(16, 64) < 1.2 * peak(16, 32)
    assert peak(4, 64) < 0.4 * peak(16, 64)


def test_the_baseline_in_chunks_is_multiple_negatives_ranking_of_the_whole_batch(with_dropout):
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    from helpers.lejepa.experiment import RankingLoss

    model, features = with_dropout
    model.eval().double()  # these gradients nearly cancel: fp32 rounds them to 6e-6
    baseline = RankingLoss(model)
    baseline.chunk = 16
    expected = value_and_gradient(MultipleNegativesRankingLoss(model), features)
    assert error(value_and_gradient(baseline, features), expected) < 1e-6


def test_chunks_and_checkpointed_layers_go_together(with_dropout):
    model, features = with_dropout
    loss = lejepa(model, chunk=16)
    torch.manual_seed(0)
    expected = value_and_gradient(loss, features)
    checkpoint_activations(model.transformers_model, "cpu")
    loss.step = 0
    torch.manual_seed(0)
    assert error(value_and_gradient(loss, features), expected) < 1e-6


def test_in_half_precision_the_gradients_of_chunks_add_up_in_fp32(with_dropout):
    model, features = with_dropout
    model.eval()  # no dropout, the same slices
    weight = model.transformers_model.encoder.layer[0].intermediate.dense.weight

    def gradient(chunk: int, half: bool):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = lejepa(model, chunk=chunk)(features)
        value.backward()
        return weight.grad.clone()

    exact = gradient(0, half=False)
    at_once, in_chunks = ((gradient(chunk, half=True) - exact).norm() / exact.norm() for chunk in (0, 1))
    assert 0 < in_chunks < 1.5 * at_once


def test_a_backbone_that_is_not_trained_is_embedded_once_and_keeps_nothing(with_dropout):
    model, features = with_dropout
    freeze(model, -1)
    calls = []
    model[0].register_forward_hook(lambda *args: calls.append(1))
    value_and_gradient(lejepa(model, chunk=16), features)
    assert len(calls) == 2 * 4


def test_evaluation_remembers_nothing_and_repeats_exactly():
    loss = lejepa(chunk=4)
    loss(batch())
    before = {name: tensor.clone() for name, tensor in loss.state_dict().items()}
    terms = loss.read_terms()
    loss.model.eval()
    assert torch.equal(loss(batch(seed=1)), loss(batch(seed=1)))
    assert all(torch.equal(tensor, before[name]) for name, tensor in loss.state_dict().items())
    assert terms
    assert loss.read_terms() == {}


def test_a_restored_loss_goes_on_as_the_saved_one_would_have():
    options = {"contrastive_weight": 0.2}
    loss = lejepa(**options)
    for seed in range(3):
        loss(batch(seed=seed))
    restored = lejepa(**options)
    restored.load_state_dict(loss.state_dict())
    restored.step = loss.step
    assert torch.equal(restored(batch(seed=9)), loss(batch(seed=9)))


# ---- logging


def test_terms_are_read_unweighted_as_means_since_the_last_reading():
    loss = lejepa(sigreg_weight=0.3, contrastive_weight=2.0)
    losses = [loss(batch(seed=seed)).item() for seed in range(3)]
    terms = loss.read_terms()
    weighted = 0.7 * terms["invariance"] + 0.3 * terms["sigreg"] + 2 * terms["contrastive"]
    assert weighted == pytest.approx(sum(losses) / 3, rel=1e-5)
    assert terms["sigreg_excess"] == pytest.approx(terms["sigreg"] - gaussian_floor(3, 17))
    assert loss.read_terms() == {}
    loss(batch(seed=7))
    assert set(loss.read_terms()) == {"invariance", "sigreg", "sigreg_excess", "contrastive"}


# ---- what a user can do wrong


@pytest.mark.once
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("sigreg_weight", 1.2),
        ("sigreg_weight", -0.1),
        ("num_slices", 0),
        ("t_max", 0.0),
        ("t_max", float("inf")),
        ("n_points", 1),
        ("n_points", 16),
        ("contrastive_weight", -1.0),
        ("contrastive_scale", 0.0),
        ("head_within", 1.5),
        ("head_power", 1.5),
        ("head_shrinkage", -1.0),
        ("output_dim", 1),
        ("output_dim", 4097),
        ("num_samples", 3),
        ("num_samples", -1),
        ("crop_min_share", 0.9),
        ("seed", -1),
    ],
)
def test_a_setting_out_of_range_is_refused(name, value):
    with pytest.raises(ValueError, match=rf"{name}={value!r}|crop_max_share=0.3.*{value}"):
        EmbeddingParameters(**{name: value})


def test_a_model_that_normalises_is_refused():
    from sentence_transformers.sentence_transformer.modules import Normalize

    model = build()
    model.append(Normalize())
    with pytest.raises(ValueError, match="unit vectors look collapsed to SIGReg: remove its Normalize module"):
        lejepa(model)


@pytest.mark.parametrize(("V", "N"), [(1, 4), (2, 1), (0, 0)])
def test_a_batch_below_two_views_of_two_texts_is_refused(V, N):
    with pytest.raises(ValueError, match=f"the batch has {V} columns of {N} texts: LeJEPA compares at least 2 views"):
        lejepa()(batch(V, N))


# ---- two processes


ROWS_OF_PROCESSES = [(8, 8), (4, 12)]


def train_on_one_of_two(rank, folder):
    with one_of_two(rank, folder):
        for case, shares in enumerate(ROWS_OF_PROCESSES):
            loss = lejepa(sigreg_weight=1.0, chunk=4)
            options = {"broadcast_buffers": False, "find_unused_parameters": True}  # as the trainer has it
            loss.model = torch.nn.parallel.DistributedDataParallel(loss.model, **options)
            for seed in range(2):
                loss.zero_grad()
                begin = sum(shares[:rank])
                loss(rows(batch(N=16, seed=seed), slice(begin, begin + shares[rank]))).backward()
            torch.save(gradients(loss.model), f"{folder}/{case}-{rank}.pt")


@pytest.mark.once
def test_two_processes_with_chunks_of_uneven_shares_have_sigregs_gradient_of_the_whole_batch(tmp_path):
    torch.multiprocessing.spawn(train_on_one_of_two, args=(str(tmp_path),), nprocs=2)
    loss = lejepa(sigreg_weight=1.0)
    for seed in range(2):
        value_and_gradient(loss, batch(N=16, seed=seed))
    for case in range(len(ROWS_OF_PROCESSES)):
        for rank in range(2):
            found = torch.load(tmp_path / f"{case}-{rank}.pt")
            torch.testing.assert_close(found, gradients(loss.model), rtol=1e-4, atol=1e-6)


# ---- the trainer


@pytest.mark.skipif(xla.installed(), reason="the stock trainer would take an XLA device in this process")
def test_the_stock_trainer_trains_the_encoder(tmp_path):
    from datasets import Dataset
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    texts = [" ".join(WORDS[(7 * row + shift) % 39 + 1] for shift in range(T)) for row in range(16)]
    data = Dataset.from_dict({"text": texts, "crop": texts[1:] + texts[:1]})
    loss = lejepa(chunk=4)
    before = {name: weight.detach().clone() for name, weight in loss.named_parameters()}
    arguments = SentenceTransformerTrainingArguments(
        str(tmp_path), max_steps=2, per_device_train_batch_size=8, learning_rate=1e-2, use_cpu=True, save_strategy="no"
    )
    SentenceTransformerTrainer(loss.model, arguments, train_dataset=data, loss=loss).train()
    moved = {name for name, weight in loss.named_parameters() if not torch.equal(weight, before[name])}
    assert any("layer.0" in name for name in moved)
    assert loss.step == 2


# ---- XLA

ON_XLA = """
import json
import torch
torch.set_num_threads(1)
from helpers.machine import xla
from tests.test_lejepa_loss import batch, build, lejepa

device = xla.start()


def train(device, chunk=0):
    options = {"contrastive_weight": 0.2, "chunk": chunk, "negatives": 1, "dimensions": (4,)}
    loss = lejepa(build().to(device), **options).to(device)
    optimizer = torch.optim.SGD(loss.parameters(), 0.05)
    on_xla = device.type == "xla"
    if on_xla:
        xla.replicate(loss.model)
    losses, compiles, syncs = [], [], []
    for step in range(6):
        features = [
            {name: tensor.to(device) for name, tensor in view.items()} for view in batch(V=3, N=16, seed=step)
        ]
        if on_xla:
            for view in features:
                for tensor in view.values():
                    xla.shard_batch(tensor)
            xla.sync()
            before = xla.counters()
        optimizer.zero_grad()
        value = loss(features)
        value.backward()
        optimizer.step()
        losses.append(value.detach())
        if on_xla:
            xla.sync()
            after = xla.counters()
            compiles.append(after["compiles"] - before["compiles"])
            syncs.append(sum(after[name] - before[name] for name in ("host_transfers", "item_calls")))
    return [float(value) for value in losses], compiles, syncs, loss.read_terms()


answers = {"cpu": train(torch.device("cpu")), "at once": train(device), "in chunks": train(device, 8)}
print("ANSWERS " + json.dumps(answers))
"""


@pytest.fixture(scope="module")
def on_xla():
    return answers_on_xla(ON_XLA)


@pytest.mark.parametrize("embedded", ["at once", "in chunks"])
def test_losses_and_terms_on_eight_devices_equal_the_cpus(embedded, on_xla):
    assert on_xla[embedded][0] == pytest.approx(on_xla["cpu"][0], rel=1e-4)
    assert on_xla[embedded][3] == pytest.approx(on_xla["cpu"][3], rel=1e-4)


@pytest.mark.parametrize("embedded", ["at once", "in chunks"])
def test_after_two_steps_nothing_compiles_and_nothing_waits_for_the_devices(embedded, on_xla):
    _, compiles, syncs, _ = on_xla[embedded]
    assert compiles[0] > 0
    assert compiles[2:] == [0] * 4
    assert syncs == [0] * 6
