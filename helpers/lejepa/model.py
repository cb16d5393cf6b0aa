"""The embedding model: a pretrained backbone as it came, and one linear head after it.

    backbone = load_backbone("sentence-transformers/all-MiniLM-L6-v2")
    model = GaussianEmbeddingGemma(backbone, *principal_head(encode(backbone, texts, "document"), 256))

With the head in closed form the model ranks as the backbone does; LeJEPA's training goes on from there. What is built is a
SentenceTransformer of stock modules: it saves, loads and trains as any other.
"""

from __future__ import annotations

import copy
import math
import re
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, Transformer

from helpers.data import hub
from helpers.lejepa.parameters import EMBEDDING_GEMMA, MINILM, MPNET
from helpers.machine.engine import cpu_copy
from helpers.parameters import SAMPLE, source_path
from helpers.show import tracking

# N texts · D dimensions of the backbone · K of an embedding, at most D

REVISIONS = {
    EMBEDDING_GEMMA: "64614b0b8b64f0c6c1e52b07e4e9a4e8fe4d2da2",  # the one of MTEB's published results
    MINILM: "c9745ed1d9f207416be6d2e6f8de32d1f16199bf",
    MPNET: "e8c3b32edf5434bc2275fc9bab85f82640a19130",
}
SAMPLE_WORDS = 2000


def load_backbone(
    base_model: str, *, max_seq_length: int = 0, seed: int = 0, texts: Iterable[str] = ()
) -> SentenceTransformer:
    """A pretrained embedding model in fp32 on the CPU; no code from a checkpoint is run.

    base_model: a hub id (`REVISIONS` are pinned), a local path, or "sample": a random BERT of four layers.
    max_seq_length: tokens; 0 keeps the model's own.

    Raises ValueError for a max_seq_length beyond the model's positions, and what `hub.reading` raises.
    """
    model = _sample(texts, seed) if base_model == SAMPLE else _pretrained(base_model)
    config = model[0].auto_model.config
    config.use_cache = False  # nothing is generated, and XLA refuses the slice of Gemma's sliding cache
    positions = getattr(config, "max_position_embeddings", None) or math.inf
    if config.model_type in ("mpnet", "roberta", "xlm-roberta", "camembert"):
        positions -= 2  # their first positions are for padding
    if max_seq_length > positions:
        raise ValueError(f"max_seq_length={max_seq_length}: must be 0 (the model's own) to {positions} tokens")
    if max_seq_length:
        model.max_seq_length = max_seq_length
    return model


# ---- closed forms, which cost seconds


def principal_head(
    x_ND: np.ndarray, output_dim: int = 0, *, centred: bool = False, power: float = 0.0, shrinkage: float = 0.01
) -> tuple[torch.Tensor, torch.Tensor]:
    """Weight [K, D] and bias [K] that turn embeddings to their principal axes, largest first, with a mean square of 1.

    centred: the mean of the documents is subtracted. power: 0 keeps all angles (up to K < D), 1 whitens, and a number between
    them whitens partially: axis i is scaled by (l_i + shrinkage mean(l))^(-power / 2) (Kessy, Lewin and Strimmer, arXiv 1512.00809).

    An output_dim of 0 is D. So is one above D, and a line says so: a linear head cannot add dimensions.
    """
    x_ND = torch.from_numpy(np.asarray(x_ND)).double()
    N, D = x_ND.shape
    if output_dim > D:
        tracking.say(
            f"output_dim={output_dim}: the backbone has {D} dimensions, and a linear head cannot add any: {D} are used"
        )
    K = min(output_dim or D, D)
    mean_D = x_ND.mean(0) * centred
    moment_DD = (x_ND - mean_D).T @ (x_ND - mean_D) / N
    values_D, vectors_DD = torch.linalg.eigh(moment_DD)
    values_K, vectors_KD = values_D.flip(0)[:K].clamp(min=0), vectors_DD.T.flip(0)[:K]
    weight_KD = ((values_K + shrinkage * values_D.mean()) ** (-power / 2))[:, None] * vectors_KD
    weight_KD *= (K / torch.einsum("kd,de,ke->", weight_KD, moment_DD, weight_KD)).sqrt()
    return weight_KD.float(), (-weight_KD @ mean_D).float()


def GaussianEmbeddingGemma(
    backbone: SentenceTransformer, weight_KD: torch.Tensor, bias_K: torch.Tensor
) -> SentenceTransformer:
    """The model that LeJEPA trains: a copy of the backbone with a linear head, such as `principal_head` fits to documents."""
    head = Dense(weight_KD.shape[1], weight_KD.shape[0], activation_function=torch.nn.Identity())
    head.linear.load_state_dict({"weight": weight_KD, "bias": bias_K})
    return SentenceTransformer(modules=[*copy.deepcopy(backbone), head], prompts=backbone.prompts, device="cpu")


# ---- embedding


def encode(model: SentenceTransformer, texts: Sequence[str], task: str) -> np.ndarray:
    """Embeddings [N, K] in fp32 of texts that are a "query" or a "document"; a model on XLA is copied to the CPU first."""
    model = on_cpu(model)
    training = model.training
    embeddings_NK = getattr(model, f"encode_{task}")(list(texts), show_progress_bar=False)
    model.train(training)
    return np.asarray(embeddings_NK, np.float32)


def on_cpu(model: SentenceTransformer) -> SentenceTransformer:
    """The model itself, or a copy on the CPU of one on an XLA device, which shares nothing but the model card."""
    return cpu_copy(model, model.model_card_data) if model.device.type == "xla" else model


# ---- loading


def _pretrained(base_model: str) -> SentenceTransformer:
    path = source_path("base_model", base_model)
    with hub.reading(name="base_model", source=base_model):
        return SentenceTransformer(
            str(path or base_model),
            revision=REVISIONS.get(base_model),
            trust_remote_code=False,
            model_kwargs={"dtype": torch.float32, "use_safetensors": True},
            local_files_only=path is None and not hub.answers(),  # what is cached may be enough
            device="cpu",
        )


def _sample(texts: Iterable[str], seed: int) -> SentenceTransformer:
    """A random BERT, 64 wide, that knows the most frequent words of the texts and letters; the same each time."""
    from transformers import BertConfig, BertModel, BertTokenizerFast

    counts = Counter(word for text in texts for word in re.findall(r"[a-z0-9]+", text.lower()))
    letters = "abcdefghijklmnopqrstuvwxyz0123456789.,:;()"
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:SAMPLE_WORDS]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    pieces = dict.fromkeys([*special, *letters, *(f"##{letter}" for letter in letters), *frequent])
    sizes = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 256}
    with tempfile.TemporaryDirectory() as folder:  # Transformer takes a path and nothing else
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            BertModel(BertConfig(vocab_size=len(pieces), **sizes)).save_pretrained(folder)
        BertTokenizerFast(vocab={piece: number for number, piece in enumerate(pieces)}).save_pretrained(folder)
        transformer = Transformer(folder, model_kwargs={"use_safetensors": True})
    transformer.max_seq_length = 128
    return SentenceTransformer(modules=[transformer, Pooling(64)], device="cpu")
