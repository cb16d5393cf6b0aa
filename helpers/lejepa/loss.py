"""LeJEPA as a sentence-transformers loss: views of one text meet at their centre, all texts are drawn to a Gaussian.

    loss = LeJEPALoss(model, SIGReg(t_max=3, n_points=17, num_slices=1024), sigreg_weight=0.05)
    SentenceTransformerTrainer(model, train_dataset=pairs, loss=loss)

Balestriero and LeCun, LeJEPA (arXiv 2511.08544). SIGReg is on the embedding that ships, not on a head thrown away later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize
from sentence_transformers.util import all_gather as everyones
from torch.distributed.nn.functional import all_gather
from torch.nn.functional import cross_entropy, normalize

from helpers.lejepa.gradient_cache import embed
from helpers.lejepa.parameters import LEAST_BATCH, NOTEBOOK, EmbeddingParameters
from helpers.lejepa.sigreg import SIGReg, spread_over_processes
from helpers.plan.workloads import Workload

# V columns: views, then hard negatives · N texts · K embedding · T tokens · C candidates: the texts of all processes

TERMS = ("invariance", "sigreg", "contrastive")


class LeJEPALoss(torch.nn.Module):
    """(1 - lambda) inv + lambda SIGReg, with an optional contrastive term.

    inv is the mean squared distance of all views to their centre, over views, texts and dimensions.
    SIGReg tests every view's texts by themselves and averages: flattening views into one sample, as stable-pretraining
    does, multiplies it by V and mixes correlated rows, so that its lambda is not ours.
    `step` is the number of steps taken: who resumes a run sets it.

    Args:
        sigreg_weight: lambda; 0.02 to 0.1 are usual.
        chunk: texts of a process (under SPMD of all chips) that are embedded together, 0: all (see `gradient_cache`).
        contrastive_weight: of the cross-entropy of every further column among the batch's, given the first column
            (MultipleNegativesRankingLoss); rows whose text in either column is the same are no negatives of each other.
        contrastive_scale: inverse temperature of the cosine similarities.
        negatives: how many of the last columns are hard negatives: no views of a row's text, but texts of SIGReg's and
            candidates of the contrastive term.
        dimensions: the contrastive term is the mean over these first numbers of an embedding and all, as MatryoshkaLoss
            has it (Kusupati et al., arXiv 2205.13147). Part of an isotropic Gaussian is one, so SIGReg needs no such thing.

    Raises ValueError for a model that normalises.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        sigreg: SIGReg,
        *,
        sigreg_weight: float,
        chunk: int = 0,
        contrastive_weight: float = 0.0,
        contrastive_scale: float = 20.0,
        negatives: int = 0,
        dimensions: Sequence[int] = (),
    ) -> None:
        super().__init__()
        if any(isinstance(module, Normalize) for module in model.modules()):
            raise ValueError(
                "model normalises its embeddings, and unit vectors look collapsed to SIGReg: "
                "remove its Normalize module and compare by cosine similarity afterwards"
            )
        self.model, self.sigreg, self.chunk = model, sigreg, chunk
        self.sigreg_weight = sigreg_weight
        self.contrastive_weight, self.contrastive_scale = contrastive_weight, contrastive_scale
        self.negatives, self.dimensions = negatives, tuple(dimensions)
        self.step = 0  # training batches seen: chooses the slices
        self._totals: torch.Tensor | None = None

    def forward(
        self, sentence_features: Iterable[dict[str, torch.Tensor]], labels: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Loss of a batch whose columns are views of the same texts, then hard negatives; labels are not used.

        In evaluation SIGReg has the slices of step 0, and nothing is counted.

        Raises ValueError for fewer than two columns or texts.
        """
        features = list(sentence_features)
        views = [embed(self.model, column, self.chunk) for column in features]
        V, N = len(views) - self.negatives, len(views[0]) if views else 0
        if V < 2 or N < 2:
            raise ValueError(
                f"the batch has {V} columns of {N} texts: LeJEPA compares at least 2 views of 2 texts each; "
                "add a column (a second crop of the text will do) or raise batch_size"
            )
        embeddings_VNK = torch.stack(views)
        training = self.model.training
        terms = {
            "invariance": self._invariance(embeddings_VNK[:V]),
            "sigreg": self.sigreg(embeddings_VNK, self.step if training else 0),
        }
        loss = (1 - self.sigreg_weight) * terms["invariance"] + self.sigreg_weight * terms["sigreg"]
        if self.contrastive_weight:
            terms["contrastive"] = self._contrastive(embeddings_VNK, features)
            loss = loss + self.contrastive_weight * terms["contrastive"]
        if training:
            self._count(terms)
        return loss

    def read_terms(self) -> dict[str, float]:
        """Means since the last call over this process's training batches, each term unweighted; then starts anew.

        `sigreg_excess` is what lies above the floor that an exact Gaussian has. Reading waits for the device; between
        two calls nothing does. Without a batch since: an empty dict.
        """
        if self._totals is None:
            return {}
        *sums, batches = self._totals.tolist()
        self._totals = torch.zeros_like(self._totals)
        if batches == 0:
            return {}
        means = {name: total / batches for name, total in zip(TERMS, sums, strict=True)}
        if not self.contrastive_weight:
            del means["contrastive"]
        return means | {"sigreg_excess": means["sigreg"] - self.sigreg.floor}

    # -- terms --

    def _invariance(self, embeddings_VNK):
        with torch.autocast(embeddings_VNK.device.type, enabled=False):
            embeddings_VNK = embeddings_VNK.float()
            return (embeddings_VNK - embeddings_VNK.mean(0)).square().mean()

    def _contrastive(self, embeddings_VNK, features):
        N, K = embeddings_VNK.shape[1:]
        views = range(1, len(features) - self.negatives)  # after the anchors
        spread = spread_over_processes(embeddings_VNK)
        with torch.autocast(embeddings_VNK.device.type, enabled=False):
            keys_VN = torch.stack([_text_keys(column) for column in features])
            keys_VC = everyones(keys_VN.T.contiguous()).T if spread else keys_VN
            rows = torch.arange(N, device=keys_VN.device) + (N * dist.get_rank() if spread else 0)
            itself = rows[:, None] == torch.arange(keys_VC.shape[1], device=keys_VN.device)
            same = keys_VN[:, :, None] == keys_VC[:, None]
            losses = []
            for size in (K, *self.dimensions):
                own_VNK = normalize(embeddings_VNK[..., :size].float(), dim=-1)
                all_VCK = torch.cat(all_gather(own_VNK), 1) if spread else own_VNK
                for view in views:
                    candidates = torch.cat((all_VCK[view], *all_VCK[len(views) + 1 :]))
                    answers = [keys_VN[view][:, None] == keys_C for keys_C in keys_VC[len(views) + 1 :]]
                    no_negative = torch.cat(((same[0] | same[view]) & ~itself, *answers), 1)
                    scores = (self.contrastive_scale * own_VNK[0] @ candidates.T).masked_fill(
                        no_negative, float("-inf")
                    )
                    losses.append(cross_entropy(scores, rows))
            return torch.stack(losses).mean()

    def _count(self, terms: dict[str, torch.Tensor]) -> None:
        self.step += 1
        one = torch.ones_like(terms["sigreg"])
        seen = torch.stack([*(terms.get(name, 0 * one).detach() for name in TERMS), one])
        before = torch.zeros(seen.shape).to(seen.device) if self._totals is None else self._totals
        self._totals = before + seen


def _text_keys(column: dict[str, torch.Tensor]) -> torch.Tensor:
    """A number [N] for each text of a column, the same for the same text however it is padded.

    It is a sum over the tokens and their places, each mixed as in splitmix64 (Steele, Lea and Flood 2014).
    """
    mask_NT = column["attention_mask"].long()
    mixed_NT = (column["input_ids"].long() + (mask_NT.cumsum(1) << 32)) * -4658895280553007687
    return ((mixed_NT ^ (mixed_NT >> 27)) * -7723592293110705685 * mask_NT).sum(1)


def new_loss(model: SentenceTransformer, params: EmbeddingParameters, kind: str = "pairs") -> LeJEPALoss:
    """The loss of the notebook's parameters for data of a kind, whose slices follow from the seed."""
    sigreg = SIGReg(t_max=params.t_max, n_points=params.n_points, num_slices=params.num_slices, seed=params.seed)
    return LeJEPALoss(
        model,
        sigreg,
        sigreg_weight=params.sigreg_weight,
        contrastive_weight=params.contrastive_weight,
        contrastive_scale=params.contrastive_scale,
        negatives=int(kind == "triplets"),
        dimensions=params.shorter_dimensions if params.matryoshka else (),
    )


# ---- for the planner


def workload(loss_module, name: str, length: int, views: int) -> Workload:
    """The step of a loss that holds its model (`LeJEPALoss`), over so many views of each text.

    The planner's micro-batch is a chunk of the batch, and its gradient accumulation is gradient caching.
    """
    vocabulary = next(m for m in loss_module.modules() if isinstance(m, torch.nn.Embedding)).num_embeddings

    def batch(examples: int, length: int) -> list[dict[str, Any]]:
        mask = torch.ones(examples, length, dtype=torch.long)
        mask[0, -1] = 0  # as where texts are padded: attention gets a mask
        columns = (torch.randint(0, vocabulary, (examples, length)) for _ in range(views))
        return [{"input_ids": ids, "attention_mask": mask} for ids in columns]

    def loss(loss_module, columns):
        # Gradients are there already: this is one of several chunks.
        is_chunk = any(weight.grad is not None for weight in loss_module.parameters())
        loss_module.chunk = len(columns[0]["input_ids"]) if is_chunk else 0
        return loss_module([dict(column) for column in columns])

    return Workload(
        notebook=NOTEBOOK,
        name=name,
        model=loss_module,
        batch=batch,
        loss=loss,
        length=length,
        views=views,
        least=LEAST_BATCH,
        overflows_fp16=any(_is_gemma3(module) for module in loss_module.modules()),
    )


def _is_gemma3(module) -> bool:
    return str(getattr(getattr(module, "config", None), "model_type", "")).startswith("gemma3")
