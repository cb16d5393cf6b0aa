"""LeJEPA: the two views of a text are drawn to their centre, and all texts to an isotropic Gaussian.

    loss = (1 - w) invariance + w SIGReg + c contrastive                      w sigreg_weight · c contrastive_weight

    invariance    mean squared distance of the views of a text to their centre
    SIGReg        how far all embeddings are from N(0, I), by a test on random one-dimensional slices: nothing collapses
    contrastive   cross-entropy of a text's other view among all views of the batch (MultipleNegativesRankingLoss)

Balestriero and LeCun, LeJEPA (arXiv 2511.08544). The paper has the first two terms. From a pretrained search model they alone
lower its quality (docs/lejepa.md), so the third is on by default. SIGReg acts on the embedding that is saved, not on a
projection that is thrown away.

# V views · N texts · K dimensions of an embedding · M slices · P knots above 0
"""

import random

import numpy as np
import torch
import torch.distributed as dist
from sentence_transformers.base.losses import CachedLossMixin
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from torch import nn
from torch.nn.functional import linear, normalize
from torch.utils.checkpoint import checkpoint

from helpers.data.words import spans

LAST_KNOT, KNOTS = 3.0, 17  # as in the paper's code; the paper's text integrates to 5
SCALE = 20.0  # inverse temperature of the cosines, the default of MultipleNegativesRankingLoss
DIRECTIONS = (
    "query_to_doc",
    "query_to_query",
    "doc_to_query",
    "doc_to_doc",
)  # a view is told from every other text of the batch
CROP_WORDS = (6, 24)  # of a view that stands in for a heading or a question


# ---- views


def views(question: str, texts: list[str], draw: random.Random) -> tuple[str, str]:
    """Two views of a text: the question or heading that it answers and one of its wordings; without a question a crop of it.

    texts: the passage; of an answer that has several past questions also the other ones.
    """
    text = draw.choice(texts)
    return question or crop(text, draw), text


def crop(text: str, draw: random.Random) -> str:
    """A random span of `CROP_WORDS` words of `text`, white space within it as it was; at most half of the text."""
    places = spans(text)
    if not places:
        return text
    longest = min(CROP_WORDS[1], max(1, len(places) // 2))
    length = draw.randint(min(CROP_WORDS[0], longest), longest)
    first = draw.randint(0, len(places) - length)
    begin, _ = places[first]
    _, end = places[first + length - 1]
    return text[begin:end]


# ---- SIGReg
#
# For each slice a, a random unit vector, and u_n = <z_n, a>, the Epps-Pulley statistic (Biometrika 70, 1983) compares the
# characteristic function of the u_n with that of N(0, 1), exp(-t^2 / 2), at knots t_k from 0 to LAST_KNOT:
#
#     C_k = mean_n cos(t_k u_n)   S_k = mean_n sin(t_k u_n)   phi_k = exp(-t_k^2 / 2)   w_k: weights of the trapezoid rule
#     T   = 2 N sum_k w_k phi_k [(C_k - phi_k)^2 + S_k^2]


class SIGReg(nn.Module):
    """Mean Epps-Pulley statistic over random directions that are drawn anew from (seed, step).

    Samples of N(0, I) have 1.0525 on average, whatever N is (`floor`); a full collapse has 0.402 N.
    256 slices give the value to 3 %. Every process must have the same seed.
    """

    def __init__(self, slices: int = 256, seed: int = 0):
        super().__init__()
        self.number, self.seed = slices, seed
        knots_P = torch.linspace(0, LAST_KNOT, KNOTS, dtype=torch.float64)[1:]  # at 0 C = 1 and S = 0 whatever the data
        phi_P = torch.exp(-(knots_P**2) / 2)
        weights_P = 2 * knots_P[0] * phi_P
        weights_P[-1] /= 2
        self.knots_P, self.phi_P, self.weights_P = knots_P, phi_P, weights_P
        self.floor = float((weights_P * (1 - phi_P**2)).sum())  # E |psi_N - psi|^2 = (1 - |psi|^2) / N

    def slices(self, dimensions: int, step: int) -> torch.Tensor:
        """Unit rows [M, K] in fp32 on the CPU: the generator of a device would draw others on each kind of device."""
        (seed,) = np.random.SeedSequence((self.seed, step)).generate_state(1)
        generator = torch.Generator().manual_seed(int(seed))
        return normalize(torch.randn(self.number, dimensions, generator=generator), dim=1)

    def forward(self, embeddings_VNK: torch.Tensor, step: int) -> torch.Tensor:
        """SIGReg of each view's texts by themselves, averaged over the views; a scalar in fp32, or fp64 for fp64 embeddings.

        The projection may be in bf16, all that follows is not: cosines averaged in bf16 are 18 % off at N = 65,536.
        """
        slices_MK = self.slices(embeddings_VNK.shape[-1], step)
        u_VNM = linear(embeddings_VNK, move(slices_MK, embeddings_VNK))
        dtype = torch.promote_types(u_VNM.dtype, torch.float32)
        with torch.autocast(u_VNM.device.type, enabled=False):
            return self.epps_pulley(u_VNM.to(dtype))

    def epps_pulley(self, u_VNM: torch.Tensor) -> torch.Tensor:
        """T above, averaged over views and slices. Over several processes it is that of the batch that they share."""
        N = over_processes(u_VNM.new_full((), u_VNM.shape[1]))
        sums_2PVM = recompute(sums_at_knots, u_VNM, move(self.knots_P, u_VNM))
        cos_PVM, sin_PVM = over_processes(sums_2PVM) / N
        phi_P11 = move(self.phi_P, u_VNM)[:, None, None]
        distance_PVM = (cos_PVM - phi_P11).square() + sin_PVM.square()
        weights_P = move(self.weights_P, u_VNM)
        return N * (weights_P * distance_PVM.mean((1, 2))).sum()


def sums_at_knots(u_VNM: torch.Tensor, knots_P: torch.Tensor) -> torch.Tensor:
    """Sums over the texts of cos(t u) and sin(t u) [2, P, V, M]."""
    angles_PVNM = knots_P[:, None, None, None] * u_VNM
    return torch.stack((angles_PVNM.cos().sum(2), angles_PVNM.sin().sum(2)))


# ---- devices


def over_processes(sums: torch.Tensor) -> torch.Tensor:
    """The sum over all processes that hold rows of the batch. Its gradient is multiplied by their number, and DDP's mean divides by it.

    A tensor on XLA is the whole batch already.
    """
    if sums.device.type == "xla" or not dist.is_initialized():
        return sums
    from torch.distributed.nn.functional import all_reduce

    return all_reduce(sums)


def move(tensor: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """The tensor with the device and dtype of another. A copy out of memory that is not pinned would wait for a GPU."""
    if other.is_cuda:
        tensor = tensor.pin_memory()
    return tensor.to(other.device, other.dtype, non_blocking=other.is_cuda)


def recompute(function, *inputs) -> torch.Tensor:
    """`function(*inputs)`, whose inner tensors are not kept until the backward pass but computed again there; XLA decides by itself."""
    if inputs[0].device.type == "xla":
        return function(*inputs)
    return checkpoint(function, *inputs, use_reentrant=False, preserve_rng_state=False)


# ---- the whole loss


class LeJEPALoss(CachedLossMixin, nn.Module):
    """The loss above for a SentenceTransformer that does not normalise its embeddings.

        loss = LeJEPALoss(model, sigreg_weight=0.05, contrastive_weight=1.0)
        SentenceTransformerTrainer(model, train_dataset=pairs, loss=loss)

    A batch has columns of texts: the views. With `mini_batch_size` above 0 it is embedded in parts of that many texts and
    loss and gradient stay those of the whole batch (gradient caching, Gao et al., arXiv 2101.06983).
    """

    def __init__(
        self, model, *, sigreg_weight: float, contrastive_weight: float, seed: int = 0, mini_batch_size: int = 0
    ):
        super().__init__()
        if type(model[-1]).__name__ == "Normalize":
            raise ValueError(
                "the model ends in Normalize, and unit vectors look collapsed to SIGReg: put a linear head after it"
            )
        self.model, self.mini_batch_size, self.step = model, mini_batch_size, 0
        self.sigreg_weight, self.contrastive_weight = sigreg_weight, contrastive_weight
        self.sigreg = SIGReg(seed=seed)
        self.ranking = MultipleNegativesRankingLoss(
            model, scale=SCALE, directions=DIRECTIONS, gather_across_devices=dist.is_initialized()
        )

    def terms(self, embeddings_VNK: torch.Tensor) -> dict[str, torch.Tensor]:
        """Each term with its weight. In evaluation SIGReg has the slices of step 0."""
        step = 0
        if self.training:
            step = self.step
            self.step += 1
        with torch.autocast(embeddings_VNK.device.type, enabled=False):
            z_VNK = embeddings_VNK.float()
            invariance = (z_VNK - z_VNK.mean(0)).square().mean()
            terms = {
                "invariance": (1 - self.sigreg_weight) * invariance,
                "sigreg": self.sigreg_weight * self.sigreg(z_VNK, step),
            }
            if self.contrastive_weight:
                contrastive = self.ranking.compute_loss_from_embeddings([*z_VNK], None)
                terms["contrastive"] = self.contrastive_weight * contrastive
        return terms

    def forward(self, sentence_features, labels=None):
        """The terms, which the trainer adds up and logs. Of a batch in parts, and on XLA, where a log would wait, their sum."""
        columns = list(sentence_features)
        if self.mini_batch_size:
            return self.forward_cached(columns)
        embeddings_VNK = torch.stack([self.model(column)["sentence_embedding"] for column in columns])
        terms = self.terms(embeddings_VNK)
        if embeddings_VNK.device.type == "xla":
            return sum(terms.values())
        return terms

    def calculate_loss(self, reps, labels=None, *, with_backward=False):
        """The loss from embeddings: for each view a list of parts [n, K]. with_backward: as CachedLossMixin asks for."""
        loss = sum(self.terms(torch.stack([torch.cat(parts) for parts in reps])).values())
        if with_backward:
            loss.backward()
            loss = loss.detach()
        return loss
