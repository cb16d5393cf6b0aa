"""The closed-form heads against numpy on tiny, real backbones; loading, saving and what is refused."""

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize

from helpers.lejepa.model import GaussianEmbeddingGemma, principal_head, token_spans
from helpers.train.sentence_encoder import encode
from helpers.train.sentence_encoder import load_sentence_encoder as load_backbone

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


def test_a_shorter_head_is_the_truncated_singular_value_decomposition(backbone, x_ND):
    z_NK = encode(GaussianEmbeddingGemma(backbone, principal_head(x_ND, 8)), TEXTS, "document").astype(float)
    U, s, _ = np.linalg.svd(x_ND, full_matrices=False)
    expected = U[:, :8] * s[:8]
    assert z_NK @ z_NK.T / (z_NK**2).sum() == pytest.approx(expected @ expected.T / (expected**2).sum(), abs=1e-6)
    spread_K = (z_NK**2).mean(0)
    assert spread_K.mean() == pytest.approx(1)
    assert (np.diff(spread_K) < 1e-6).all()  # the largest axis first, for truncate_dim


def test_an_output_dim_above_the_backbones_is_the_backbones(x_ND):
    assert principal_head(x_ND, 512).shape == (64, 64)


def test_a_saved_model_loads_by_sentence_transformers_alone(backbone, x_ND, tmp_path):
    backbone.save(str(tmp_path / "backbone"))
    again = load_backbone(str(tmp_path / "backbone"), max_seq_length=32)
    model = GaussianEmbeddingGemma(again, principal_head(x_ND, 16))
    model.save(str(tmp_path / "model"))
    again = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    assert again.max_seq_length == 32 and again.get_embedding_dimension() == 16
    assert np.array_equal(encode(again, TEXTS, "query"), encode(model, TEXTS, "query"))


def test_a_passage_has_the_tokens_that_the_model_reads_beside_its_prompt(backbone):
    spans, limit = token_spans(backbone)
    text = "red houses, 日本"
    assert [text[begin:end] for begin, end in spans(text)] == ["red", "house", "s", ",", "日", "本"]
    assert limit == backbone.max_seq_length - 2
    read = backbone.preprocess(["red " * limit])["input_ids"]
    assert read.shape[1] == backbone.max_seq_length == len(spans("red " * limit)) + 2
