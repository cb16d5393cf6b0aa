"""The embedding model: a pretrained backbone as it came, and one linear head after it.

    backbone = load_sentence_encoder("sentence-transformers/all-MiniLM-L6-v2")
    model = GaussianEmbeddingGemma(backbone, principal_head(encode(backbone, texts, "document"), 256))

With the head in closed form the model ranks as the backbone does; LeJEPA's training goes on from there. What is built is a
SentenceTransformer of stock modules: it saves, loads and trains as any other.
"""

import copy

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense

from helpers.lejepa.documents import Spans
from helpers.train.sentence_encoder import encoder_on_cpu

# N texts · D dimensions of the backbone · K of an embedding, at most D


def token_spans(model: SentenceTransformer) -> tuple[Spans, int]:
    """Where the tokens of a text are, and how many of them the model reads of a document beside its prompt and special tokens."""
    tokenizer = model.tokenizer

    def spans(text: str) -> list[tuple[int, int]]:
        return tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]

    extra = tokenizer.num_special_tokens_to_add() + len(spans(model.prompts["document"]))
    return spans, model.max_seq_length - extra


def principal_head(x_ND: np.ndarray, output_dim: int = 0) -> torch.Tensor:
    """Weight [K, D] that turns embeddings to their principal axes, largest first, with a mean square of 1; angles stay up to K < D.

    An output_dim of 0 is D, and so is one above D: a linear head cannot add dimensions.
    """
    x_ND = torch.from_numpy(np.asarray(x_ND)).double()
    N, D = x_ND.shape
    K = min(output_dim or D, D)
    moments_DD = x_ND.T @ x_ND / N
    values_D, vectors_DD = torch.linalg.eigh(moments_DD)  # ascending
    axes_KD = vectors_DD.T.flip(0)[:K]
    scale = (K / values_D.flip(0)[:K].sum()).sqrt()
    return (axes_KD * scale).float()


def GaussianEmbeddingGemma(backbone: SentenceTransformer, weight_KD: torch.Tensor) -> SentenceTransformer:
    """The model that LeJEPA trains: a copy of the backbone with a linear head, such as `principal_head` fits to documents."""
    K, D = weight_KD.shape
    head = Dense(D, K, activation_function=torch.nn.Identity(), init_weight=weight_KD, init_bias=torch.zeros(K))
    modules = [*copy.deepcopy(encoder_on_cpu(backbone)), head]
    return SentenceTransformer(modules=modules, prompts=backbone.prompts, device="cpu")
