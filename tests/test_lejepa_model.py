"""The Gaussian head against closed forms on tiny, real backbones; freezing, learning rates, saving and gated models."""

import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Normalize, Pooling, Transformer

from helpers.lejepa.head import fit_head
from helpers.lejepa.model import (
    GEMMA_PROMPTS,
    REVISIONS,
    GaussianEmbeddingGemma,
    _train_tokenizer,
    column_prompts,
    freeze,
)

ROOT = Path(__file__).parents[1]
TEXTS = [f"The {a} {b} of number {i} {c}." for i in range(12) for a in ("red", "old", "tall")
         for b in ("house", "river", "poet") for c in ("sleeps", "runs away")]  # fmt: skip
D = 16
SIZES = {"hidden_size": D, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32}


def backbone(folder, kind="bert", full_rank=False):
    """A random backbone of one architecture as a folder that SentenceTransformer loads."""
    from transformers import BertConfig, BertModel, Gemma3TextConfig, Gemma3TextModel, MPNetConfig, MPNetModel

    tokenizer = _train_tokenizer(TEXTS)
    sizes = SIZES | {"vocab_size": len(tokenizer), "pad_token_id": 0, "max_position_embeddings": 66}
    torch.manual_seed(0)
    network = {
        "bert": lambda: BertModel(BertConfig(**sizes)),
        "mpnet": lambda: MPNetModel(MPNetConfig(**sizes)),
        "gemma": lambda: Gemma3TextModel(Gemma3TextConfig(**sizes, head_dim=8, num_key_value_heads=1)),
    }[kind]()
    network.save_pretrained(folder / "network")
    tokenizer.save_pretrained(folder / "network")
    modules = [Transformer(str(folder / "network"), max_seq_length=32), Pooling(D)]
    if kind == "gemma":
        modules += [Dense(D, 24, bias=False, activation_function=torch.nn.Identity()), Dense(24, D, bias=False)]
    if full_rank:  # a last layer norm takes the mean out, and one direction of the covariance with it
        modules += [Dense(D, D)]
    modules += [Normalize()]
    SentenceTransformer(modules=modules, device="cpu").save(str(folder / kind))
    return str(folder / kind)


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return backbone(tmp_path_factory.mktemp("bert"))


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    return backbone(tmp_path_factory.mktemp("full"), full_rank=True)


@pytest.fixture(scope="module")
def gemma(tmp_path_factory):
    return backbone(tmp_path_factory.mktemp("gemma"), "gemma")


@pytest.fixture(scope="module")
def mpnet(tmp_path_factory):
    return backbone(tmp_path_factory.mktemp("mpnet"), "mpnet")


def build(path, output_dim=D, **options):
    return GaussianEmbeddingGemma(path, output_dim, **options)


def fitted(path, output_dim=D, **options):
    model = build(path, output_dim)
    return model, fit_head(model, TEXTS, **options)


def embed(model, texts=TEXTS):
    return np.asarray(model.encode(texts, show_progress_bar=False), dtype=np.float64)


def before_head(path):
    return embed(SentenceTransformer(modules=list(build(path))[:-1], device="cpu"))


# ---- building


def test_normalisation_is_removed_and_the_head_is_last(bert):
    model = build(bert, 8)
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", "Dense"]
    assert isinstance(model[-1].activation_function, torch.nn.Identity)
    assert model.get_embedding_dimension() == 8
    assert np.ptp(np.linalg.norm(embed(fitted(bert, 8)[0]), axis=1)) > 0.1


def test_gemma_keeps_its_own_dense_layers_and_gets_its_prompts(gemma):
    model = build(gemma, 8)
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", "Dense", "Dense", "Dense"]
    assert isinstance(model[3].activation_function, torch.nn.Tanh)
    assert {name: model.prompts[name] for name in GEMMA_PROMPTS} == GEMMA_PROMPTS
    assert column_prompts(model, ["anchor", "positive", "view_1"]) == {
        "anchor": GEMMA_PROMPTS["query"], "positive": GEMMA_PROMPTS["document"], "view_1": GEMMA_PROMPTS["document"],
    }  # fmt: skip


def test_without_prompts_no_column_has_one(bert):
    assert column_prompts(build(bert), ["anchor", "positive"]) == {}


SAMPLE_DIGEST = """
import hashlib
from helpers.lejepa.model import GaussianEmbeddingGemma
texts = [f"text {i} of {i % 7} cats" for i in range(99)]
model = GaussianEmbeddingGemma("sample", 8, seed=3, texts=texts)
vocabulary = str(sorted(model.tokenizer.get_vocab().items()))
weights = b"".join(parameter.detach().numpy().tobytes() for parameter in model.parameters())
digest = hashlib.sha256(weights + vocabulary.encode()).hexdigest()
"""


@pytest.mark.once
def test_sample_is_the_same_model_in_another_process():
    here = {}
    exec(SAMPLE_DIGEST, here)
    code = [sys.executable, "-c", SAMPLE_DIGEST + "print(digest)"]
    there = subprocess.run(
        code, cwd=ROOT, capture_output=True, text=True, check=True, env=os.environ | {"PYTHONHASHSEED": "7"}
    )
    assert there.stdout.strip() == here["digest"]


def test_every_named_model_is_pinned_to_a_commit():
    assert all(len(revision) == 40 and int(revision, 16) for revision in REVISIONS.values())


def test_an_output_above_the_backbones_dimensions_is_those_and_that_is_said(bert, capsys):
    build(bert, D)
    assert capsys.readouterr().out == ""
    assert build(bert, 20).get_embedding_dimension() == D
    assert f"output_dim=20 is above the {D} dimensions" in capsys.readouterr().out


@pytest.mark.parametrize(("tokens", "right"), [(12, True), (66, True), (67, False)])
def test_the_length_is_set_or_refused(bert, tokens, right):
    if right:
        assert build(bert, max_seq_length=tokens).max_seq_length == tokens
    else:
        with pytest.raises(ValueError, match=f"max_seq_length={tokens}"):
            build(bert, max_seq_length=tokens)


def test_bad_bases_are_refused(tmp_path):
    with pytest.raises(ValueError, match="texts is empty"):
        GaussianEmbeddingGemma("sample", 8)
    with pytest.raises(FileNotFoundError, match=r"base_model='\./nowhere'"):
        GaussianEmbeddingGemma("./nowhere", 8)
    with pytest.raises(FileNotFoundError, match=r"base_model=.*no config\.json"):
        GaussianEmbeddingGemma(str(tmp_path), 8)


GATED_THEN_UNREACHABLE = """
import http.server, os, sys, threading

class Gated(http.server.BaseHTTPRequestHandler):  # answers as the hub does where a licence has not been accepted
    def do_GET(self):
        self.send_response(403)
        self.send_header("X-Error-Code", "GatedRepo")
        self.send_header("Content-Length", "0")
        self.end_headers()
    do_HEAD = do_POST = do_GET
    log_message = lambda *_: None

server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Gated)
os.environ["HF_ENDPOINT"] = f"http://127.0.0.1:{server.server_address[1]}"
threading.Thread(target=server.serve_forever, daemon=True).start()
from helpers.lejepa.model import GaussianEmbeddingGemma
for _ in range(2):
    try:
        GaussianEmbeddingGemma("google/embeddinggemma-300m", 8)
    except (ValueError, OSError) as error:
        print(type(error).__name__, *str(error).split())
    server.shutdown()
    server.server_close()
"""


@pytest.mark.once
def test_a_gated_and_an_unreachable_hub_are_told_apart(tmp_path):
    environment = {key: value for key, value in os.environ.items() if "PROXY" not in key.upper() and key != "HF_TOKEN"}
    run = subprocess.run(
        [sys.executable, "-c", GATED_THEN_UNREACHABLE], cwd=ROOT, capture_output=True, text=True, check=True,
        env=environment | {"HF_HOME": str(tmp_path), "HF_HUB_OFFLINE": "0"},
    )  # fmt: skip
    gated, unreachable = run.stdout.splitlines()
    assert re.match("PermissionError .*google/embeddinggemma-300m.*is gated. Accept its licence.*HF_TOKEN", gated)
    assert re.match("ConnectionError .*google/embeddinggemma-300m.*cannot be reached", unreachable)


# ---- head


def test_a_full_head_whitens_along_the_principal_axes_largest_first(full):
    model, report = fitted(full, shrinkage=0.0)
    x = before_head(full)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    expected = (vectors * values**-0.5).T[::-1]
    weight = model[-1].linear.weight.detach().numpy().copy()
    weight *= np.sign((weight * expected).sum(1, keepdims=True))  # an axis has no sign
    np.testing.assert_allclose(weight, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max())
    z = embed(model)
    np.testing.assert_allclose(np.cov(z.T), np.eye(D), atol=2e-2)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-2)
    assert report.kept_variance == pytest.approx(1)
    assert report.effective_rank == pytest.approx(D, rel=1e-6)


def test_a_narrow_head_keeps_the_largest_directions(full):
    model, report = fitted(full, 4, shrinkage=0.0)
    x = before_head(full)
    values, vectors = np.linalg.eigh(np.cov(x.T))
    np.testing.assert_allclose(np.cov(embed(model).T), np.eye(4), atol=2e-2)
    rows = np.linalg.qr(model[-1].linear.weight.detach().numpy().T.astype(np.float64))[0]
    np.testing.assert_allclose(rows @ rows.T, vectors[:, -4:] @ vectors[:, -4:].T, atol=1e-4)
    assert report.kept_variance == pytest.approx(values[-4:].sum() / values.sum(), rel=1e-5)


def test_power_zero_keeps_distances_up_to_one_factor(full):
    model, report = fitted(full, power=0.0)
    x, z = before_head(full)[:40], embed(model)[:40]
    distances = [np.linalg.norm(y[:, None] - y[None], axis=-1) for y in (x, z)]
    np.testing.assert_allclose(distances[1], report.scale * distances[0], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(("power", "shrinkage", "dim"), [(0.0, 0.1, 4), (0.5, 0.01, 16), (1.0, 0.3, 10)])
def test_the_mean_variance_is_one_whatever_the_form(full, power, shrinkage, dim):
    z = embed(fitted(full, dim, power=power, shrinkage=shrinkage)[0])
    assert z.var(0, ddof=1).mean() == pytest.approx(1, rel=1e-2)
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-2)


def test_fitting_is_deterministic_and_leaves_mode_and_gradients_alone(bert):
    models = [build(bert, 24, seed=seed).train() for seed in (0, 1)]
    for model in models:
        fit_head(model, TEXTS)
        assert model.training
    assert torch.equal(models[0][-1].linear.weight, models[1][-1].linear.weight)
    features = models[0].tokenize(TEXTS[:2])
    models[0](features)["sentence_embedding"].square().sum().backward()
    assert all(next(iter(module.parameters())).grad.abs().sum() > 0 for module in (models[0][0], models[0][-1]))


def test_each_column_is_embedded_with_its_prompt(gemma):
    model = build(gemma)
    fit_head(model, {"anchor": TEXTS[:100], "positive": TEXTS[100:]}, shrinkage=0.0)
    z = np.concatenate([
        model.encode(part, prompt_name=name, show_progress_bar=False)
        for part, name in ((TEXTS[:100], "query"), (TEXTS[100:], "document"))
    ])  # fmt: skip
    np.testing.assert_allclose(z.mean(0), 0, atol=1e-2)
    assert abs(embed(model, TEXTS[:100]).mean(0)).max() > 0.05


@pytest.mark.parametrize(
    ("texts", "options", "message"),
    [
        (["the same"] * 9, {}, "all the same"),
        (TEXTS[:5], {"shrinkage": 0.0}, r"12 of 16 directions have no variance.*shrinkage=0.01"),
        (TEXTS, {"shrinkage": 0.0}, r" 1 of 16 directions have no variance"),
    ],
)
def test_heads_that_cannot_be_fitted_are_refused(bert, texts, options, message):
    with pytest.raises(ValueError, match=message):
        fit_head(build(bert), texts, **options)


def views(seed=0):
    """Two columns of as many texts: each text, and the same with another last word."""
    return {"anchor": TEXTS, "positive": [text.rsplit(" ", 1)[0] + " always." for text in TEXTS]}


def differences(model, columns):
    first, second = (embed(model, list(column)) for column in columns.values())
    return np.cov((first - second).T) / 2


def test_within_one_makes_views_differ_as_much_in_every_direction(full):
    model = build(full)
    fit_head(model, views(), within=1.0, power=0.0, shrinkage=0.0)
    spread = np.linalg.eigvalsh(differences(model, views()))
    assert spread[-1] / spread[0] == pytest.approx(1, abs=1e-3)
    plain = build(full)
    fit_head(plain, views(), power=0.0, shrinkage=0.0)
    uneven = np.linalg.eigvalsh(differences(plain, views()))
    assert uneven[-1] / uneven[0] > 10


def test_within_and_power_are_the_two_closed_forms_one_after_the_other(full):
    model = build(full)
    fit_head(model, views(), within=0.5, power=0.4, shrinkage=0.1)
    first, second = (before_head_of(full, list(column)) for column in views().values())
    off = (first - first.mean(0)) - (second - second.mean(0))
    against = damped_power(off.T @ off / 2 / len(off), 0.5)
    mapped = np.concatenate([first, second]) @ against
    expected = (mapped - mapped.mean(0)) @ damped_power(np.cov(mapped.T), 0.4)
    expected /= np.sqrt(expected.var(axis=0, ddof=1).mean())
    found = np.concatenate([embed(model, list(column)) for column in views().values()])
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=2e-3)  # but for a rotation
    assert (np.diff(found.var(0)) < 0).all()


def before_head_of(path, texts):
    return embed(SentenceTransformer(modules=list(build(path))[:-1], device="cpu"), texts)


def damped_power(covariance, power, shrinkage=0.1):
    values, vectors = np.linalg.eigh(covariance)
    return vectors * (values / values.mean() + shrinkage) ** (-power / 2) @ vectors.T


# ---- freezing and learning rates


@pytest.mark.parametrize("kind", ["bert", "mpnet", "gemma"])
def test_the_first_layers_are_frozen_and_the_others_learn(kind, request):
    model = build(request.getfixturevalue(kind), 8).train()
    freeze(model, 2)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    assert any(not parameter.requires_grad for parameter in model.parameters())
    optimizer = torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], 1e-2)
    model(model.tokenize(TEXTS[:6]))["sentence_embedding"].square().sum().backward()
    optimizer.step()
    moved = {name for name, parameter in model.named_parameters() if not torch.equal(parameter, before[name])}
    layer = "layers" if kind == "gemma" else "layer"
    assert not {n for n in moved if "embed" in n or f"{layer}.0." in n or f"{layer}.1." in n or "attention_bias" in n}
    assert {n for n in moved if f"{layer}.2." in n}
    assert {n for n in moved if n.startswith(f"{len(list(model)) - 1}.")}


def test_freezing_all_leaves_the_head_and_is_undone_by_zero(gemma):
    model = build(gemma, 8)
    names, last = [name for name, _ in model.named_parameters()], f"{len(list(model)) - 1}."
    freeze(model, -1)
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained == [name for name in names if name.startswith(last)] != []
    freeze(model, 0)
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize("layers", [4, -2])
def test_layers_that_are_not_there_are_refused(bert, layers):
    with pytest.raises(ValueError, match=f"freeze_layers={layers}: give -1"):
        freeze(build(bert), layers)


def test_a_backbone_without_layers_cannot_be_frozen_by_layer():
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    static = StaticEmbedding(_train_tokenizer(TEXTS).backend_tokenizer, embedding_dim=4)
    with pytest.raises(ValueError, match="no list of transformer layers"):
        freeze(SentenceTransformer(modules=[static, Dense(4, 4)], device="cpu"), 1)


# ---- saving


@pytest.mark.parametrize("kind", ["bert", "gemma"])
def test_a_saved_model_gives_equal_embeddings_and_prompts_and_is_safetensors(tmp_path, kind, request):
    model, _ = fitted(request.getfixturevalue(kind), 8)
    model.save(str(tmp_path / "model"))
    loaded = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    np.testing.assert_array_equal(embed(loaded), embed(model))
    assert loaded.prompts == model.prompts
    np.testing.assert_array_equal(loaded.encode_query(TEXTS[:3]), model.encode_query(TEXTS[:3]))
    assert not [p for p in (tmp_path / "model").rglob("*") if p.suffix in (".bin", ".pt", ".pkl", ".pth")]
    assert len(list((tmp_path / "model").rglob("*.safetensors"))) == sum(
        isinstance(module, Transformer | Dense) for module in model
    )


def test_a_saved_model_can_be_cut_to_its_first_numbers_which_vary_most(tmp_path, bert):
    model, _ = fitted(bert, 8, power=0.0)
    model.save(str(tmp_path / "model"))
    short = embed(SentenceTransformer(str(tmp_path / "model"), device="cpu", truncate_dim=3))
    np.testing.assert_array_equal(short, embed(model)[:, :3])
    assert short.var(0).min() > embed(model)[:, 3:].var(0).max()


def test_the_sample_saves_and_loads(tmp_path):
    model = build("sample", 8, texts=TEXTS)
    fit_head(model, TEXTS)
    model.save(str(tmp_path / "model"))
    np.testing.assert_array_equal(embed(SentenceTransformer(str(tmp_path / "model"), device="cpu")), embed(model))
