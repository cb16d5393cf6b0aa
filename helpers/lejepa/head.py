"""The linear head that LeJEPA starts from, in closed form: centred, evened out, standard deviation 1.

    fit_head(model, {"anchor": anchors, "positive": positives}, within=0.5, power=0.4, shrinkage=0.1)

SIGReg's gradient vanishes on collapsed embeddings, and a pretrained backbone's look collapsed to it; from here they do not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from sentence_transformers import SentenceTransformer

from helpers.lejepa.encoding import encode
from helpers.lejepa.model import column_prompts

# V views · N texts · D backbone · K embedding, at most D


@dataclass(frozen=True)
class HeadFit:
    """What `fit_head` saw and did, on the texts that it was given."""

    texts: int  # N
    kept_variance: float  # share of the backbone's variance in the directions that are kept
    effective_rank: float  # of the output: exp of the entropy of the covariance's normalised eigenvalues
    scale: float  # by which the output was multiplied for a mean variance of 1


def fit_head(
    model: SentenceTransformer,
    texts: Sequence[str] | Mapping[str, Sequence[str]],
    *,
    within: float = 0.0,
    power: float = 1.0,
    shrinkage: float = 0.01,
) -> HeadFit:
    """Sets the head so that these texts have mean 0 and mean variance 1: z = W2 W1 (x - mean), in fp64 on the CPU.

    W1 damps the directions in which views of one text differ, W2 evens out those in which texts do. Both are
    (L + s)^(-a / 2) U^T of a covariance with eigenvalues L and eigenvectors U: W1 of that within texts, with a = within,
    W2 of that of all W1 x, with a = power, of its largest K eigenvalues, and scaled. The coordinates of z are the principal
    axes, largest first, so that its first numbers are the best short embedding. Whitening: Kessy, Lewin and Strimmer
    (arXiv 1512.00809); of the covariance within classes: Hatch, Kajarekar and Stolcke (Interspeech 2006).

    texts: some thousands of documents, or column -> texts, each with its column's prompt; the columns are views of the same
        texts where within is above 0.
    within: 0 leaves W1 out, 1 makes views differ as much in every direction.
    power: 1 whitens, 0 keeps the distances (up to K < D), between is partial.
    shrinkage: s as a share of the mean eigenvalue: directions that hardly vary are not blown up to 1. Of MiniLM and other
        BERTs some never vary, as a layer norm takes the mean out (3 of MiniLM's 384).

    Raises ValueError for embeddings that are all the same or not finite, or directions without variance.
    """
    head, columns = model[-1], _backbone_embeddings(model, texts)
    first_DD = _against_views(columns, within, shrinkage) if within else None
    x_ND = torch.cat(columns) if first_DD is None else torch.cat(columns) @ first_DD
    N, D = x_ND.shape
    mean_D = x_ND.mean(0)
    eigenvalues_D, vectors_DD = torch.linalg.eigh(torch.cov(x_ND.T).reshape(D, D))
    eigenvalues_D = eigenvalues_D.flip(0).clamp(min=0)
    K = head.out_features
    kept_K, vectors_DK = eigenvalues_D[:K], vectors_DD.flip(1)[:, :K]
    if eigenvalues_D[0] <= 1e-20 * mean_D.square().sum().clamp(min=1e-30):
        raise ValueError("texts: their embeddings are all the same; give different texts, or check base_model")
    damped_K = kept_K + shrinkage * eigenvalues_D.mean()
    if power and damped_K[-1] <= 1e-12 * damped_K[0]:
        raise ValueError(
            f"shrinkage={shrinkage}: {int((damped_K <= 1e-12 * damped_K[0]).sum())} of {K} directions have no variance in "
            f"{N} texts and cannot be whitened; give more texts (4 x {D} or so), shrinkage=0.01 or power=0"
        )
    weight_KD = (damped_K ** (-power / 2))[:, None] * vectors_DK.T
    variance_K = kept_K * damped_K**-power
    scale = float((K / variance_K.sum()).sqrt())
    weight_KD = scale * weight_KD
    with torch.no_grad():
        head.linear.bias.copy_(-weight_KD @ mean_D)
        head.linear.weight.copy_(weight_KD if first_DD is None else weight_KD @ first_DD)
    return HeadFit(
        texts=N,
        kept_variance=float(kept_K.sum() / eigenvalues_D.sum()),
        effective_rank=float(torch.special.entr(variance_K / variance_K.sum()).sum().exp()),
        scale=scale,
    )


def _against_views(columns: list[torch.Tensor], within: float, shrinkage: float) -> torch.Tensor:
    """W1 [D, D], symmetric, from views [N, D] of the same N texts; each view's own mean is no difference of texts."""
    views_VND = torch.stack([column - column.mean(0) for column in columns])
    off_VND = views_VND - views_VND.mean(0)
    V, N, _ = off_VND.shape
    covariance_DD = torch.einsum("vnd,vne->de", off_VND, off_VND) / ((V - 1) * N)
    eigenvalues_D, vectors_DD = torch.linalg.eigh(covariance_DD)
    damped_D = eigenvalues_D.clamp(min=0) / eigenvalues_D.mean() + shrinkage
    if not damped_D[0] > 1e-12 * damped_D[-1]:
        raise ValueError(
            f"shrinkage={shrinkage}: the views do not differ in every direction; give shrinkage=0.1 or within=0"
        )
    return vectors_DD * damped_D ** (-within / 2) @ vectors_DD.T


def _backbone_embeddings(model: SentenceTransformer, texts) -> list[torch.Tensor]:
    """What reaches the head, fp64 [N, D] a column, each with its prompt."""
    columns = texts if isinstance(texts, Mapping) else {"document": texts}
    prompts = column_prompts(model, columns)
    # Prompts count into pooling or not as the model says, which only a model's own encode knows.
    backbone = SentenceTransformer(modules=list(model)[:-1], device=str(model.device))
    found = [
        torch.from_numpy(encode(backbone, column, prompt=prompts.get(name), batch_size=64)).double()
        for name, column in columns.items()
    ]
    if bad := sum(int((~torch.isfinite(x_ND).all(1)).sum()) for x_ND in found):
        raise ValueError(f"texts: embeddings of {bad} of {sum(map(len, found))} hold NaN or infinity; check base_model")
    return found
