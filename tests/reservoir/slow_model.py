"""The reservoir language model by the definition, token by token and unit by unit of recall, in fp64: what model.py is held against."""

from __future__ import annotations

import numpy as np
import torch

from helpers.reservoir.counts import _discounts

HALF_LIVES, MATCHES = (8.0, 64.0), (1, 2, 3)


def slow_logits(model, ids: list[int], seen: list[int] | None = None) -> torch.Tensor:
    """Logits after each token of one row [T, V], without dropout, from the model's weights and counts alone."""
    config = model.config
    weights = {name: weight.double() for name, weight in model.state_dict(keep_vars=True).items()}
    seen = [1] * len(ids) if seen is None else seen
    leak = weights["memory.leak"].flatten().repeat_interleave(config.units // config.unit_blocks)
    dense = torch.block_diag(*weights["memory.weight"])
    state, text, rows = torch.zeros(config.units, dtype=torch.float64), [], []
    for token, visible in zip(ids, seen, strict=True):
        if visible:
            wanted = torch.tanh(dense @ state + weights["memory.table"][token])
            state = (1 - leak) * state + leak * wanted
            text.append(token)
        if visible and token == config.eos_token_id:
            state, text = torch.zeros_like(state), []
        x = _vector(weights, token, state)
        head = weights["head.weight"] @ x + weights["head.bias"]
        rows.append(head + _recalled(weights, config, x, text) + _counted(model, weights, x, text))
    return torch.stack(rows)


def _vector(weights, token, state):
    x = _rms(weights["embedding.weight"][token])
    normal = (state - state.mean()) / torch.sqrt(state.var(unbiased=False) + 1e-5)
    x = x + weights["projection.weight"] @ normal
    inner = weights["block.up.weight"] @ (_rms(x, 1e-6) * weights["block.norm.weight"])
    value, switch = inner.chunk(2)
    update = weights["block.down.weight"] @ (value * switch * torch.sigmoid(switch))
    gate = torch.sigmoid(weights["block.gate.weight"] @ x + weights["block.gate.bias"])
    x = gate * update + (1 - gate) * x
    return weights["out.weight"] @ (_rms(x, 1e-6) * weights["norm.weight"])


def _counted(model, weights, x, text):
    """(1 + scale) log P of counts and cache, and what the scale sees of how often the contexts were counted."""
    config = model.config
    phrases = model.counts.levels()
    context = ([config.eos_token_id] * len(phrases) + text)[-len(phrases) + 1 :]
    totals = []
    for length in range(len(phrases) - 1, 0, -1):
        code = sum(token * config.vocab_size**back for back, token in enumerate(reversed(context[-length:])))
        codes, counts = phrases[length]
        totals.append(float(counts[codes // config.vocab_size == code].sum()))
    totals += [0.0] * (config.context_lengths - len(totals))
    probability = (1 - config.cache_weight) * torch.from_numpy(dictionary_distribution(model.counts, text))
    recent = text[-config.window :]
    ages = [0.5 ** (age / 64) for age in range(len(recent))][::-1]
    for token, share in zip(recent, ages, strict=True):
        probability[token] += config.cache_weight * share / sum(ages)
    seen = torch.log1p(torch.tensor(totals, dtype=torch.float64))
    scale = 1 + weights["scale.weight"] @ torch.cat((x, 0.2 * seen)) + weights["scale.bias"]
    return scale * probability.log()


def dictionary_distribution(counts, text: list[int]):
    """P of every token after a text (Chen and Goodman 1999, section 3), phrase by phrase."""
    V, end = counts.vocab_size, counts.end
    probability = np.full(V, 1 / V)
    before = [end] * counts.order + list(text)
    for length, (codes, level) in enumerate(counts.levels()):
        code = sum(token * V**back for back, token in enumerate(reversed(before[len(before) - length :])))
        here = codes // V == code if length else np.ones(len(codes), dtype=bool)
        total = level[here].sum()
        if total:
            discounts = _discounts(level)[here]
            probability = probability * discounts.sum() / total
            probability[codes[here] % V] += (level[here] - discounts) / total
    return probability


def _rms(x, eps: float = torch.finfo(torch.float32).eps):
    return x / torch.sqrt((x**2).mean() + eps)


def _recalled(weights, config, x, text):
    """Every earlier token of the text that is young enough is proposed again, with the trained weight of each kernel."""
    trust = weights["boost.weight"] @ x + weights["boost.bias"]
    now, boost = len(text) - 1, torch.zeros(config.vocab_size, dtype=torch.float64)
    young = [place for place in range(now + 1) if now - place < config.window]
    for kernel, half_life in enumerate(HALF_LIVES):
        for place in young:
            boost[text[place]] = boost[text[place]] + trust[kernel] * 0.5 ** ((now - place) / half_life)
    for kernel, n in enumerate(MATCHES, start=len(HALF_LIVES)):
        alike = [place for place in young if _alike(text, place, now, n, config.window)]
        for place in alike:
            boost[text[place]] = boost[text[place]] + trust[kernel] / len(alike)
    return boost


def _alike(text, place: int, now: int, n: int, most: int) -> bool:
    """Whether the n tokens before `place` are the last n of the text, all of them in the line."""
    pairs = [(place - back, now + 1 - back) for back in range(1, n + 1)]
    inside = all(before >= 0 and now - before < most for before, _ in pairs)
    return inside and all(text[before] == text[last] for before, last in pairs)
