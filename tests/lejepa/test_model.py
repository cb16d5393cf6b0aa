"""The closed-form heads against numpy on tiny, real backbones; loading, saving and what is refused."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from helpers.lejepa.model import (
    REVISIONS,
    GaussianEmbeddingGemma,
    encode,
    load_backbone,
    principal_head,
)
from helpers.lejepa.parameters import AUTO, EMBEDDING_GEMMA, MINILM, MPNET, chosen

pytestmark = pytest.mark.once

TEXTS = [f"The {a} {b} of number {i} {c}." for i in range(12) for a in ("red", "old", "tall")
         for b in ("house", "river", "poet") for c in ("sleeps", "runs away")]  # fmt: skip


@pytest.fixture(scope="module")
def backbone():
    model = load_backbone("sample", texts=TEXTS)
    model.append(Normalize())  # as the stock models end
    return model


@pytest.fixture(scope="module")
def x_ND(backbone):
    return encode(backbone, TEXTS, "document").astype(float)


def cosines(x):
    x = x / np.linalg.norm(x, axis=1, keepdims=True)
    return x @ x.T


def test_the_untrained_head_ranks_as_the_backbone_does(backbone, x_ND):
    z_NK = encode(GaussianEmbeddingGemma(backbone, *principal_head(x_ND)), TEXTS, "document")
    assert cosines(z_NK) == pytest.approx(cosines(x_ND), abs=1e-5)
    assert (z_NK**2).mean() == pytest.approx(1, rel=1e-4)


def test_a_shorter_head_is_the_truncated_singular_value_decomposition(backbone, x_ND):
    z_NK = encode(GaussianEmbeddingGemma(backbone, *principal_head(x_ND, 8)), TEXTS, "document").astype(float)
    U, s, _ = np.linalg.svd(x_ND, full_matrices=False)
    expected = U[:, :8] * s[:8]
    assert z_NK.shape == (len(TEXTS), 8)
    assert z_NK @ z_NK.T / (z_NK**2).sum() == pytest.approx(expected @ expected.T / (expected**2).sum(), abs=1e-6)
    spread_K = (z_NK**2).mean(0)
    assert (np.diff(spread_K) < 1e-6).all()  # the largest axis first, for truncate_dim


def test_whitening_gives_the_identity_and_centring_a_mean_of_zero(backbone, x_ND):
    head = principal_head(x_ND, 8, centred=True, power=1.0, shrinkage=0.0)
    z_NK = encode(GaussianEmbeddingGemma(backbone, *head), TEXTS, "document").astype(float)
    assert z_NK.mean(0) == pytest.approx(np.zeros(8), abs=1e-3)
    assert z_NK.T @ z_NK / len(z_NK) == pytest.approx(np.eye(8), abs=1e-2)


def test_an_output_dim_above_the_backbones_is_the_backbones_and_that_is_said(x_ND, capsys):
    weight_KD, _ = principal_head(x_ND, 512)
    assert weight_KD.shape == (64, 64)
    assert "output_dim=512: the backbone has 64 dimensions" in capsys.readouterr().out


def test_a_saved_model_loads_by_sentence_transformers_alone(backbone, x_ND, tmp_path):
    backbone.save(str(tmp_path / "backbone"))
    again = load_backbone(str(tmp_path / "backbone"), max_seq_length=32)
    model = GaussianEmbeddingGemma(again, *principal_head(x_ND, 16))
    model.save(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert again.max_seq_length == 32 and again.get_embedding_dimension() == 16
    assert np.array_equal(encode(again, TEXTS, "query"), encode(model, TEXTS, "query"))


def test_the_sample_model_is_the_same_in_every_process():
    script = (
        "from helpers.lejepa.model import load_backbone, encode; import hashlib\n"
        "model = load_backbone('sample', texts=['one two three', 'two three four', 'naïve 日本'])\n"
        "print(hashlib.sha256(encode(model, ['two five'], 'query').tobytes()).hexdigest())"
    )
    found = {
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout.split()[-1]
        for _ in range(2)
    }
    assert len(found) == 1


def test_auto_is_minilm_on_a_cpu_and_mpnet_elsewhere_and_all_revisions_are_pinned():
    assert [chosen(AUTO, kind) for kind in ("cpu", "cuda", "xla")] == [MINILM, MPNET, MPNET]
    assert chosen("sample", "cuda") == "sample"
    assert set(REVISIONS) == {EMBEDDING_GEMMA, MINILM, MPNET}
    assert all(len(revision) == 40 for revision in REVISIONS.values())


def test_a_length_that_the_model_has_not_and_a_folder_without_a_model_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"max_seq_length=1000: must be 0 \(the model's own\) to 512 tokens"):
        load_backbone("sample", texts=TEXTS, max_seq_length=1000)
    with pytest.raises((ValueError, FileNotFoundError), match=f"base_model='{tmp_path}'.*config.json"):
        load_backbone(str(tmp_path))


def test_code_that_comes_with_a_model_is_not_run(backbone, tmp_path):
    backbone.save(str(tmp_path))
    (tmp_path / "own.py").write_text("raise SystemExit('own code was run')")
    listed = (tmp_path / "modules.json").read_text()
    (tmp_path / "modules.json").write_text(listed.replace("sentence_transformers.base.modules", "own"))
    changed = (tmp_path / "modules.json").read_text()
    if changed == listed:
        first = listed.index('"type": "') + 9
        (tmp_path / "modules.json").write_text(listed[:first] + "own.Module" + listed[listed.index('"', first) :])
    with pytest.raises(ValueError, match="cannot be read"):
        load_backbone(str(tmp_path))


def test_encoding_leaves_a_model_in_training_as_it_was(backbone):
    backbone.train()
    torch.manual_seed(0)
    first = encode(backbone, TEXTS[:4], "query")
    assert backbone.training and np.array_equal(first, encode(backbone, TEXTS[:4], "query"))
    backbone.eval()
