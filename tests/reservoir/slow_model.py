"""The reservoir language model by the definition, token by token and unit by unit of recall, in fp64: what model.py is held against."""

from __future__ import annotations

import math

import torch

HALF_LIVES, MATCHES = (8.0, 64.0), (1, 2, 3)


def slow_logits(model, ids: list[int], seen: list[int] | None = None) -> torch.Tensor:
    """Logits after each token of one row [T, V], without dropout, from the model's weights alone."""
    config, weights = model.config, {name: each.double() for name, each in model.state_dict(keep_vars=True).items()}
    seen = [1] * len(ids) if seen is None else seen
    dense = torch.block_diag(*weights["reservoir.weight"])
    state, text, rows = torch.zeros(config.units, dtype=torch.float64), [], []
    for token, visible in zip(ids, seen, strict=True):
        if visible:
            code = weights["reservoir.codes"][token]
            wanted = torch.tanh(dense @ state + code @ weights["reservoir.input_map"] + weights["reservoir.bias"])
            state = (1 - config.leak) * state + config.leak * wanted
        text.append(token if visible else None)
        rows.append(_readout(weights, config, token, state) + _recalled(weights, config, token, state, text))
        if visible and token == config.eos_token_id:
            state, text = torch.zeros_like(state), []
    return torch.stack(rows)


def _vector(weights, config, token, state):
    x = _rms(weights["embedding.weight"][token])
    normal = (state - state.mean()) / torch.sqrt(state.var(unbiased=False) + 1e-5)
    x = x + weights["projection.weight"] @ normal
    for block in range(config.readout_blocks):
        part = {name: weights[f"blocks.{block}.{name}"] for name in _parts(weights, block)}
        inner = part["up.weight"] @ (_rms(x, 1e-6) * part["norm.weight"])
        value, switch = inner.chunk(2)
        update = part["down.weight"] @ (value * switch * torch.sigmoid(switch))
        gate = torch.sigmoid(part["gate.weight"] @ x + part["gate.bias"])
        x = gate * update + (1 - gate) * x
    return _rms(x, 1e-6) * weights["norm.weight"]


def _parts(weights, block: int) -> list[str]:
    begin = f"blocks.{block}."
    return [name.removeprefix(begin) for name in weights if name.startswith(begin)]


def _rms(x, eps: float = torch.finfo(torch.float32).eps):
    return x / torch.sqrt((x**2).mean() + eps)


def _readout(weights, config, token, state):
    return weights["predictor.head.weight"] @ _vector(weights, config, token, state) + weights["predictor.head.bias"]


def _recalled(weights, config, token, state, text):
    """Every earlier token of the text that is young enough is proposed again, with the trust of each kernel."""
    x = _vector(weights, config, token, state)
    trust = weights["predictor.trust.weight"] @ x + weights["predictor.trust.bias"]
    now, boost = len(text) - 1, torch.zeros(config.vocab_size, dtype=torch.float64)
    young = [place for place in range(now + 1) if now - place < config.recall_tokens and text[place] is not None]
    for kernel, half in enumerate(HALF_LIVES):
        for place in young:
            boost[text[place]] = boost[text[place]] + trust[kernel] * math.exp(-math.log(2) / half * (now - place))
    for kernel, n in enumerate(MATCHES, start=len(HALF_LIVES)):
        alike = [place for place in young if _alike(text, place, now, n, config.recall_tokens)]
        for place in alike:
            boost[text[place]] = boost[text[place]] + trust[kernel] / len(alike)
    return boost


def _alike(text, place: int, now: int, n: int, most: int) -> bool:
    """Whether the n tokens before `place` are the last n of the text, all of them in the line."""
    pairs = [(place - back, now + 1 - back) for back in range(1, n + 1)]
    inside = all(before >= 0 and now - before < most and text[before] is not None for before, _ in pairs)
    return inside and all(text[before] == text[last] for before, last in pairs)
