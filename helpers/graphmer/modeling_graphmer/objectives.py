"""Terms of the loss: masked tokens, masked leaves, true against false triples, and what the ontology forbids.

Everything has a static shape and stays on the device: what does not count is multiplied by 0, never indexed away.
"""

from __future__ import annotations

import torch
from torch import nn

# B batch · G leaves · P = B G · L leaf tokens · U negatives · V vocabulary · E entity embedding · X candidates

IGNORED = -100
EXCLUDED = -1e4  # as a logit of a candidate that is none


def mean_where(values: torch.Tensor, counted: torch.Tensor) -> torch.Tensor:
    """Mean of the values that count, 0 where none does."""
    counted = counted.to(values.dtype)
    return (values * counted).sum() / counted.sum().clamp(min=1)


def unit(x: torch.Tensor) -> torch.Tensor:
    """x / |x| over the last axis, in fp32 at least; 0 for 0."""
    return nn.functional.normalize(x.to(torch.promote_types(x.dtype, torch.float32)), dim=-1)


def token_loss(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Mean cross-entropy in nats of logits [..., V] where labels [...] are not -100."""
    return mean_where(-log_likelihood(logits, labels), labels != IGNORED)


def log_likelihood(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """log p of tokens [...] under logits [..., V], in fp32; of a negative token, of token 0."""
    chosen = logits.gather(-1, tokens.clamp(min=0)[..., None]).squeeze(-1)
    return chosen.float() - torch.logsumexp(logits.float(), dim=-1)


def triple_loss(logits_BG: torch.Tensor, labels_BG: torch.Tensor) -> torch.Tensor:
    """Binary cross-entropy where labels are 0 or 1, not -100."""
    target_BG = labels_BG.float().clamp(0, 1)
    loss_BG = nn.functional.binary_cross_entropy_with_logits(logits_BG.float(), target_BG, reduction="none")
    return mean_where(loss_BG, labels_BG >= 0)


def contrastive_loss(
    queries_BGE: torch.Tensor,
    tails_BGE: torch.Tensor,
    negatives_BGUE: torch.Tensor | None,
    negative_mask_BGU: torch.Tensor | None,
    entities_BG: torch.Tensor,
    known_BGX: torch.Tensor,
    counted_BG: torch.Tensor,
    temperature: float,
    match_PP: torch.Tensor | float = 0.0,
    match_BGU: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """InfoNCE of queries against the tails of the whole batch and their own negatives.

    match_PP, match_BGU: what token by token agreement adds to the scores of both.

    No candidates: tails without an entity, other copies of the true tail, and tails that are known to be true as well.
    """
    scores_PX = candidate_scores(queries_BGE, tails_BGE, entities_BG, known_BGX, temperature, match_PP)
    true_P = scores_PX.diagonal()
    if negatives_BGUE is not None:
        negative_BGU = (negatives_BGUE @ queries_BGE[..., None]).squeeze(-1).float() / temperature + match_BGU
        negative_PU = negative_BGU.flatten(0, 1).masked_fill(~negative_mask_BGU.flatten(0, 1), EXCLUDED)
        scores_PX = torch.cat((scores_PX, negative_PU), dim=1)
    loss_P = torch.logsumexp(scores_PX, dim=1) - true_P
    return mean_where(loss_P, (counted_BG & (entities_BG >= 0)).flatten())


def candidate_scores(
    queries_BGE: torch.Tensor,
    tails_BGE: torch.Tensor,
    entities_BG: torch.Tensor,
    known_BGX: torch.Tensor,
    temperature: float,
    match_PP: torch.Tensor | float = 0.0,
) -> torch.Tensor:
    """[P, P] cosine / temperature + match of every query and tail of the batch; a query's own tail is on the diagonal."""
    entities_P = entities_BG.flatten()
    scores_PP = (queries_BGE.flatten(0, 1) @ tails_BGE.flatten(0, 1).T).float() / temperature + match_PP
    own_PP = torch.eye(len(entities_P), dtype=torch.bool, device=entities_P.device)
    excluded_PP = (entities_P < 0) | (entities_P[:, None] == entities_P) | known_BGX.flatten(0, 1)
    return scores_PP.masked_fill(excluded_PP & ~own_PP, EXCLUDED)


def cycle_loss(scores: list[torch.Tensor], margin: float, counted: torch.Tensor) -> torch.Tensor:
    """Hinge on the mean score of the triples of a forbidden cycle: they cannot all hold.

    scores: of each triple of the cycle, [P] each; two for antisymmetry and 2-cycles, three for 3-cycles.
    """
    return mean_where((torch.stack(scores).float().mean(0) - margin).clamp(min=0), counted)
