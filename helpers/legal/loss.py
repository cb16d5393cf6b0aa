"""The loss over a large vocabulary in tiles of tokens: the logits of a whole batch never exist at once.

# B blocks · T tokens · D hidden size · V vocabulary · G groups of blocks, one a device · M tokens of a tile in a group
"""

from __future__ import annotations

import torch

from helpers.legal.layout import IGNORED

TILE_TOKENS = 2048  # a device; more fill no matrix unit better, and 2,048 fp32 logits of 151,936 entries are 1.2 GB
LOGIT_CHANGES = (  # what models do to logits after their head; the plain loss is used for these
    "final_logit_softcapping",
    "logit_scale",
    "logits_scaling",
    "lm_head_multiplier",
    "output_multiplier",
)


def tiled_loss(model, labels_BT: torch.Tensor, **inputs: torch.Tensor) -> torch.Tensor:
    """The summed negative log-likelihood of the labels that a transformers causal language model gives to `inputs`.

    model: may be within PEFT's. `base_of(model).batch_groups`, where it is set, are the devices that a batch is split over
        along its first axis, in this process (SPMD).
    """
    model = base_of(model)
    config, head = model.config.get_text_config(), model.get_output_embeddings()
    # The label of a position is the token after it.
    target_BT = torch.cat([labels_BT[:, 1:], torch.full_like(labels_BT[:, :1], IGNORED)], dim=1)
    changed = [name for name in LOGIT_CHANGES if getattr(config, name, None) not in (None, 1, 1.0)]
    if changed or getattr(head, "bias", None) is not None:
        logits_BTV = type(model).forward(model, use_cache=False, **inputs).logits
        return torch.nn.functional.cross_entropy(
            logits_BTV.float().flatten(0, 1), target_BT.flatten(), ignore_index=IGNORED, reduction="sum"
        )
    hidden_BTD = model.base_model(use_cache=False, **inputs).last_hidden_state
    return tiled_nll(hidden_BTD, head.weight, target_BT, groups=getattr(model, "batch_groups", 1))


def base_of(model):
    """The transformers model within PEFT's, or the model itself."""
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def tiled_nll(
    hidden_BTD: torch.Tensor,
    weight_VD: torch.Tensor,
    target_BT: torch.Tensor,
    *,
    tile_tokens: int = TILE_TOKENS,
    groups: int = 1,
) -> torch.Tensor:
    """Summed cross entropy of `hidden @ weight.T` against targets that are not -100: fp32 scalar.

    Gradients are computed tile by tile in the forward pass, where the logits are, so that nothing is computed twice and
    one tile of logits is alive at a time. Products are in autocast's dtype, softmax and sums in fp32. Tiles cut the
    tokens of all blocks, so that each device works on its own part of every tile.

    tile_tokens: tokens of a tile on one device.
    groups: devices that share B in this process; each sums its gradient of the weight until the end.
    """
    kind = hidden_BTD.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        hidden_BTD, weight_VD = hidden_BTD.to(dtype), weight_VD.to(dtype)
    hidden_BTD = hidden_BTD.to(weight_VD.dtype)
    blocks, length = target_BT.shape
    groups = groups if blocks % groups == 0 else 1
    tile = min(length, max(1, tile_tokens * groups // blocks))
    return _TiledNLL.apply(hidden_BTD, weight_VD, target_BT, tile, groups)


class _TiledNLL(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_BTD, weight_VD, target_BT, tile, groups):
        wants_hidden, wants_weight = ctx.needs_input_grad[:2]
        blocks, length, _ = hidden_BTD.shape
        nll = torch.zeros((), device=hidden_BTD.device)
        grads_hidden, grad_weight_GVD = [], None
        with torch.autocast(hidden_BTD.device.type, enabled=False):
            for start in range(0, length, tile):
                stop = min(start + tile, length)
                hidden_GMD = hidden_BTD[:, start:stop].reshape(groups, -1, hidden_BTD.shape[-1])
                target_GM = target_BT[:, start:stop].reshape(groups, -1)
                labelled_GM = target_GM != IGNORED
                target_GM = target_GM.clamp(min=0)
                log_p_GMV = torch.log_softmax(hidden_GMD @ weight_VD.T, dim=-1, dtype=torch.float32)
                log_p_GM, hit_GMV = _at_target(log_p_GMV, target_GM)
                nll = nll - torch.where(labelled_GM, log_p_GM, 0.0).sum()
                if not (wants_hidden or wants_weight):
                    continue
                grad_GMV = _minus_one_at_target(log_p_GMV.exp_(), target_GM, hit_GMV)
                grad_GMV = (grad_GMV.mul_(labelled_GM[..., None])).to(weight_VD.dtype)
                if wants_hidden:
                    grads_hidden.append((grad_GMV @ weight_VD).float().reshape(blocks, stop - start, -1))
                if wants_weight:
                    part_GVD = (grad_GMV.transpose(1, 2) @ hidden_GMD).float()
                    grad_weight_GVD = part_GVD if grad_weight_GVD is None else grad_weight_GVD.add_(part_GVD)
            ctx.save_for_backward(
                torch.cat(grads_hidden, dim=1) if wants_hidden else None,
                grad_weight_GVD.sum(dim=0) if wants_weight else None,
            )
        ctx.dtypes = hidden_BTD.dtype, weight_VD.dtype
        return nll

    @staticmethod
    def backward(ctx, grad_nll):
        gradients = [
            None if gradient is None else (gradient * grad_nll).to(dtype)
            for gradient, dtype in zip(ctx.saved_tensors, ctx.dtypes, strict=True)
        ]
        return *gradients, None, None, None


def _at_target(log_p_GMV, target_GM):
    """Log-probability of each target, and on XLA where the targets are.

    XLA compares with all entries instead of indexing: that fuses, and a gather would bring the rows of all devices together.
    """
    if log_p_GMV.device.type != "xla":
        return log_p_GMV.gather(-1, target_GM[..., None])[..., 0], None
    hit_GMV = target_GM[..., None] == torch.arange(log_p_GMV.shape[-1], device=log_p_GMV.device)
    return torch.where(hit_GMV, log_p_GMV, 0.0).sum(dim=-1), hit_GMV


def _minus_one_at_target(p_GMV, target_GM, hit_GMV):
    if hit_GMV is not None:
        return p_GMV - hit_GMV.float()
    return p_GMV.scatter_add_(-1, target_GM[..., None], -torch.ones_like(p_GMV[..., :1]).expand(*target_GM.shape, 1))
