"""Embeddings of entities and relations alone, as baselines: TransE, DistMult and RotatE. They read no name and no source.

    TransE    -||h + r - t||       Bordes et al., NeurIPS 2013
    DistMult  <h, r, t>            Yang et al., arXiv 1412.6575; symmetric
    RotatE    -||h ∘ r - t||       Sun et al., arXiv 1902.10197; h, t complex, |r_i| = 1; norm over all components

Each is a distance or a product between a vector of what is given and one of the candidate, so that a matrix product scores
all candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import nn

from helpers.graphmer.knowledge_graph import Triple

# B triples · Q queries · X candidates · U negatives · N entities seen in training · D width

MODELS = ("transe", "distmult", "rotate")


class Embeddings(nn.Module):
    """Scores of one model for numbered entities and relations."""

    def __init__(self, model: str, entities: int, relations: int, width: int):
        super().__init__()
        if model not in MODELS:
            raise ValueError(f"model={model!r}: must be one of {', '.join(MODELS)}")
        if width < 2 or width % 2:
            raise ValueError(f"width={width}: must be even and at least 2; RotatE's numbers are complex")
        self.model = model
        self.entities = nn.Parameter(torch.randn(entities, width) / width**0.5)
        if model == "rotate":
            self.relations = nn.Parameter((2 * torch.rand(relations, width // 2) - 1) * torch.pi)
        else:
            self.relations = nn.Parameter(torch.randn(relations, width) / (width**0.5 if model == "transe" else 1))

    def given(self, entity_BD: torch.Tensor, relation_B: torch.Tensor, direction: str) -> torch.Tensor:
        """Where the other end should be, [B, D]: from the head on (direction "tail"), or back from the tail ("head")."""
        relation_BD = self.relations[relation_B]
        if self.model == "transe":
            return entity_BD + relation_BD if direction == "tail" else entity_BD - relation_BD
        if self.model == "distmult":
            return entity_BD * relation_BD
        turn = relation_BD if direction == "tail" else -relation_BD
        entity = torch.view_as_complex(entity_BD.reshape(len(entity_BD), -1, 2))
        return torch.view_as_real(entity * torch.polar(torch.ones_like(turn), turn)).flatten(1)

    def scores(self, given_BD: torch.Tensor, candidates_XD: torch.Tensor) -> torch.Tensor:
        """[B, X]."""
        if self.model == "distmult":
            return given_BD @ candidates_XD.T
        squared = given_BD.square().sum(1)[:, None] + candidates_XD.square().sum(1) - 2 * given_BD @ candidates_XD.T
        return -squared.clamp_min(1e-9).sqrt()

    def pair_scores(self, given_BD: torch.Tensor, other_BD: torch.Tensor) -> torch.Tensor:
        """[B], one score a row."""
        if self.model == "distmult":
            return (given_BD * other_BD).sum(1)
        return -(given_BD - other_BD).square().sum(1).clamp_min(1e-9).sqrt()


class KnowledgeGraphEmbeddings:
    """A trained model as a scorer of `ranking.evaluate`.

    An entity that training has not seen gets the mean of the embeddings: all such candidates score the same, and a query
    by one is answered as by the average entity. A relation that it has not seen scores 0.

    losses: mean cross-entropy of each epoch.
    """

    def __init__(
        self, embeddings: Embeddings, entities: dict[str, int], relations: dict[str, int], losses: list[float]
    ):
        self.embeddings, self.losses = embeddings, losses
        self._entities, self._relations = entities, relations
        with torch.no_grad():
            mean_1D = embeddings.entities.mean(0, keepdim=True)
            self._rows_ND = torch.cat((embeddings.entities, mean_1D)).detach().cpu()

    def tails(self, heads: list[str], relation: str, candidates: list[str]) -> np.ndarray:
        return self._scores(heads, relation, candidates, "tail")

    def heads(self, tails: list[str], relation: str, candidates: list[str]) -> np.ndarray:
        return self._scores(tails, relation, candidates, "head")

    @torch.no_grad()
    def _scores(self, queries: list[str], relation: str, candidates: list[str], direction: str) -> np.ndarray:
        if relation not in self._relations:
            return np.zeros((len(queries), len(candidates)), np.float32)
        model = self.embeddings.cpu()
        relation_Q = torch.full((len(queries),), self._relations[relation])
        # Each vector once: equal ones in different columns of a product need not give equal scores.
        rows_X, columns_X = self._numbers(candidates).unique(return_inverse=True)
        given_QD = model.given(self._rows_ND[self._numbers(queries)], relation_Q, direction)
        return model.scores(given_QD, self._rows_ND[rows_X])[:, columns_X].numpy()

    def _numbers(self, names: list[str]) -> torch.Tensor:
        unseen = len(self._entities)
        return torch.tensor([self._entities.get(name, unseen) for name in names])


def train_embeddings(
    train: Sequence[Triple],
    *,
    model: str,
    width: int = 128,
    epochs: int = 30,
    batch_size: int = 1024,
    negatives: int = 512,
    learning_rate: float = 0.01,
    scale: float = 10.0,
    seed: int = 0,
    device: str = "cpu",
) -> KnowledgeGraphEmbeddings:
    """Embeddings for which the true end of a triple scores above wrong ones, in both directions; Adam, fp32.

    The loss is the cross-entropy of the true entity among itself and `negatives` others, drawn anew for each batch and
    shared by it.

    model: "transe", "distmult" or "rotate".
    negatives: wrong entities a batch; 0 takes all entities (1-vs-all).
    scale: distances are multiplied by it before the softmax. DistMult's products have a scale of their own.

    Raises ValueError: no triples, an unknown model, an odd width, a number that is not positive.
    """
    if not train:
        raise ValueError("train: no triples to train on")
    for name, value in (("epochs", epochs), ("batch_size", batch_size), ("learning_rate", learning_rate)):
        if value <= 0:
            raise ValueError(f"{name}={value}: must be above 0")
    if negatives < 0:
        raise ValueError(f"negatives={negatives}: must be 0 (all entities) or more")
    entities = {name: number for number, name in enumerate(sorted({end for triple in train for end in triple[::2]}))}
    relations = {name: number for number, name in enumerate(sorted({triple.relation for triple in train}))}
    triples_N3 = torch.tensor([(entities[head], relations[name], entities[tail]) for head, name, tail in train])
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        embeddings = Embeddings(model, len(entities), len(relations), width).to(device)
    optimizer = torch.optim.Adam(embeddings.parameters(), lr=learning_rate)
    losses = []
    for _ in range(epochs):
        total = 0.0
        for batch_B3 in triples_N3[torch.randperm(len(triples_N3), generator=generator)].split(batch_size):
            drawn_U = torch.randint(len(entities), (negatives,), generator=generator).to(device)
            loss = _loss(embeddings, batch_B3.to(device), drawn_U, 1.0 if model == "distmult" else scale)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += float(loss.detach()) * len(batch_B3)
        losses.append(total / len(triples_N3))
    return KnowledgeGraphEmbeddings(embeddings, entities, relations, losses)


def _loss(embeddings: Embeddings, batch_B3: torch.Tensor, drawn_U: torch.Tensor, scale: float) -> torch.Tensor:
    loss = 0.0
    for direction, known, asked in (("tail", 0, 2), ("head", 2, 0)):
        given_BD = embeddings.given(embeddings.entities[batch_B3[:, known]], batch_B3[:, 1], direction)
        answers_B = batch_B3[:, asked]
        if len(drawn_U):
            # Drawn evenly, not from the batch's answers: those would teach that frequent entities are wrong.
            own_B1 = embeddings.pair_scores(given_BD, embeddings.entities[answers_B])[:, None]
            wrong_BU = embeddings.scores(given_BD, embeddings.entities[drawn_U])
            wrong_BU = wrong_BU.masked_fill(answers_B[:, None] == drawn_U, -torch.inf)
            logits_BX, labels_B = torch.cat((own_B1, wrong_BU), 1), torch.zeros_like(answers_B)
        else:
            logits_BX, labels_B = embeddings.scores(given_BD, embeddings.entities), answers_B
        loss = loss + nn.functional.cross_entropy(scale * logits_BX, labels_B) / 2
    return loss
