"""The shown file: SIGReg against the integral that it discretises, the loss against its formula, stock losses and one process."""

import contextlib
import datetime
import os
import random

import pytest
import torch
import torch.distributed as dist

from helpers.lejepa.loss import DIRECTIONS, LeJEPALoss, SIGReg, crop, views

pytestmark = pytest.mark.once

K, T = 24, 6
INPUTS = {
    "Gaussian": lambda N, K: torch.randn(N, K),
    "shrunken": lambda N, K: 0.1 * torch.randn(N, K),
    "wide": lambda N, K: 3 * torch.randn(N, K),
    "exponential": lambda N, K: -torch.rand(N, K).clamp(min=1e-6).log(),
    "constant": lambda N, K: torch.full((N, K), 0.7),
}

# V views · N texts · K embedding · M slices


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# ---- SIGReg


def integral(embeddings, slices_MK):
    """N int |psi_N(t) - psi(t)|^2 psi(t) dt from -3 to 3 by the trapezoidal rule, in complex fp64, mean over slices and views."""
    projection = embeddings.double() @ slices_MK.double().T
    t_T = torch.linspace(-3, 3, 33, dtype=torch.float64)
    normal_T = torch.exp(-(t_T**2) / 2)
    empirical = torch.exp(1j * projection[..., None] * t_T).mean(-3)
    distance = (empirical - normal_T).abs().square() * normal_T
    return (projection.shape[-2] * torch.trapezoid(distance, t_T)).mean()


def value_and_gradient(call, embeddings):
    leaf = embeddings.detach().clone().requires_grad_()
    value = call(leaf)
    value.backward()
    return value.item(), leaf.grad


def error(found, expected) -> float:
    """The larger of the value's relative error and the gradient's, relative to its largest entry."""
    (value, gradient), (true_value, true_gradient) = found, expected
    off = (gradient.double().cpu() - true_gradient.double()).abs().max() / true_gradient.abs().max()
    return max(abs(value / true_value - 1), off.item())


@pytest.mark.parametrize("N", [1, 3, 64, 1024, 8192])
@pytest.mark.parametrize("name", INPUTS)
def test_value_and_gradient_equal_the_integral_in_fp64(name, N):
    module, embeddings_NK = SIGReg(16), INPUTS[name](N, K)
    expected = value_and_gradient(lambda z: integral(z, module.slices(K, 5)), embeddings_NK.double())
    assert error(value_and_gradient(lambda z: module(z[None], 5), embeddings_NK), expected) < 1e-5


def test_slices_are_unit_rows_given_by_seed_and_step_alone():
    before = torch.get_rng_state()
    slices_MK = SIGReg(16, seed=3).slices(K, 4)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(SIGReg(16, seed=3).slices(K, 4), slices_MK)
    for seed, step in ((3, 5), (4, 4), (4, 3)):
        assert (SIGReg(16, seed=seed).slices(K, step) - slices_MK).abs().max() > 0.1
    torch.testing.assert_close(slices_MK.norm(dim=1), torch.ones(16))


def test_the_means_of_bf16_embeddings_do_not_stall_in_large_batches():
    embeddings_NK, module = torch.randn(65_536, 8).bfloat16(), SIGReg(16)
    value, gradient = value_and_gradient(lambda z: module(z[None], 0), embeddings_NK)
    projection_NM = (embeddings_NK @ module.slices(8, 0).bfloat16().T).float()
    assert value == pytest.approx(float(integral(projection_NM, torch.eye(16))), rel=1e-4)
    assert gradient.dtype == torch.bfloat16


# ---- views


def test_a_passage_without_a_heading_gives_a_crop_of_half_of_it_at_most():
    body = " ".join(f"word{number}" for number in range(30))
    for seed in range(50):
        short, whole = views("", [body], random.Random(seed))
        assert whole == body and short in body and 6 <= len(short.split()) <= 15
    assert views("A heading", [body], random.Random(0)) == ("A heading", body)
    assert {views("A question", [body, "another one"], random.Random(seed))[1] for seed in range(9)} == {
        body,
        "another one",
    }
    assert crop("one", random.Random(0)) == "one"
    assert (
        1 <= len(crop("日本語の文章です", random.Random(1))) <= 4
    )  # words of a script without spaces are its characters


# ---- the whole loss


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
            self.bert = BertModel(BertConfig(vocab_size=40, **sizes, **dropout), add_pooling_layer=False)

        def forward(self, features):
            # No mask, as no row is padded: transformers would look at its values on the host.
            return features | {"token_embeddings": self.bert(features["input_ids"]).last_hidden_state}

    torch.manual_seed(0)
    return SentenceTransformer(modules=[Bert(), Pooling(K)], device="cpu").train()


def batch(V=2, N=12, seed=0):
    ids_VNT = torch.randint(1, 40, (V, N, T), generator=torch.Generator().manual_seed(seed))
    return [{"input_ids": ids_NT, "attention_mask": torch.ones_like(ids_NT)} for ids_NT in ids_VNT]


def lejepa(model=None, **options):
    return LeJEPALoss(model or build(), **{"sigreg_weight": 0.3, "contrastive_weight": 0.0} | options)


def embed(model, features):
    return torch.stack([model(dict(view))["sentence_embedding"] for view in features])


def total(value):
    """The loss, of which a batch at once gives the terms."""
    return sum(value.values()) if isinstance(value, dict) else value


def loss_and_gradient(loss, features):
    loss.zero_grad()
    value = total(loss([dict(column) for column in features]))
    value.backward()
    gradient = torch.cat([weight.grad.flatten() for weight in loss.parameters() if weight.grad is not None])
    return value.item(), gradient


def test_the_terms_are_weighed_as_the_formula_says():
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    loss, features = lejepa(contrastive_weight=2.0), batch()
    views_VNK = embed(loss.model, features)
    invariance = (views_VNK - views_VNK.mean(0)).square().mean()
    ranking = MultipleNegativesRankingLoss(loss.model, directions=DIRECTIONS)(features, None)
    expected = 0.7 * invariance + 0.3 * integral(views_VNK, loss.sigreg.slices(K, 0)) + 2 * ranking
    assert total(loss(features)).item() == pytest.approx(expected.item(), rel=1e-5)


def test_slices_change_with_every_training_batch_and_not_in_evaluation():
    loss, features = lejepa(sigreg_weight=1.0), batch()
    views_VNK = embed(loss.model, features)
    for step in range(3):
        torch.testing.assert_close(total(loss(features)), loss.sigreg(views_VNK, step))
    loss.eval()
    torch.testing.assert_close(total(loss(features)), loss.sigreg(views_VNK, 0))
    assert loss.step == 3


@pytest.mark.parametrize("part", [16, 5, 1, 64, 100])
def test_parts_of_a_batch_have_the_value_and_gradient_of_the_whole(part):
    features = batch(V=3, N=64)
    whole = loss_and_gradient(lejepa(contrastive_weight=0.5), features)
    cached = loss_and_gradient(lejepa(contrastive_weight=0.5, mini_batch_size=part), features)
    assert error(cached, whole) < 1e-5


def test_a_model_that_ends_in_normalize_is_refused():
    from sentence_transformers.sentence_transformer.modules import Normalize

    model = build()
    model.append(Normalize())
    with pytest.raises(ValueError, match="unit vectors look collapsed to SIGReg: put a linear head after it"):
        lejepa(model)


# ---- two processes


@contextlib.contextmanager
def one_of_two(rank, folder):
    """Both processes leave after both are done, without destructors: the reducer's can deadlock with gloo's threads."""
    torch.set_num_threads(1)
    meeting, patience = f"file://{folder}/meeting", datetime.timedelta(seconds=60)
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=patience)
    yield
    dist.barrier()
    os._exit(0)


SHARES = [(8, 8), (4, 12)]


def train_on_one_of_two(rank, folder):
    with one_of_two(rank, folder):
        for case, shares in enumerate(SHARES):
            loss, begin = lejepa(sigreg_weight=1.0, mini_batch_size=4), sum(shares[:rank])
            options = {"broadcast_buffers": False, "find_unused_parameters": True}
            loss.model = torch.nn.parallel.DistributedDataParallel(loss.model, **options)
            features = [{k: v[begin : begin + shares[rank]] for k, v in column.items()} for column in batch(N=16)]
            torch.save(loss_and_gradient(loss, features), f"{folder}/{case}-{rank}.pt")


def test_two_processes_have_the_sigreg_and_gradient_of_the_whole_batch(tmp_path):
    torch.multiprocessing.spawn(train_on_one_of_two, args=(str(tmp_path),), nprocs=2)
    expected = loss_and_gradient(lejepa(sigreg_weight=1.0), batch(N=16))
    for case in range(len(SHARES)):
        for rank in range(2):
            assert error(torch.load(tmp_path / f"{case}-{rank}.pt"), expected) < 1e-4
