"""The reservoir language model by the definition, token by token and unit by unit of recall, in fp64: what model.py is held against."""

from collections import Counter, defaultdict

import numpy as np
import torch

V, END = 40, 0
HALF_LIVES, MATCHES = (8.0, 64.0), (1, 2, 3)


def stream(seed: int, count: int) -> np.ndarray:
    """Texts of a few tokens, each followed by the end."""
    random = np.random.default_rng(seed)
    rows = [[*random.zipf(1.6, random.integers(3, 20)).clip(max=V - 1), END] for _ in range(count)]
    return np.concatenate(rows)


TRAIN = stream(0, 60)  # what the model has counted


def slow_logits(model, ids: list[int]) -> torch.Tensor:
    """Logits after each token of one row [T, V], without dropout, from the model's weights and counts alone."""
    config = model.config
    weights = {name: weight.double() for name, weight in model.state_dict(keep_vars=True).items()}
    leak = weights["memory.leak"].flatten().repeat_interleave(config.units // config.unit_blocks)
    dense = torch.block_diag(*weights["memory.weight"])
    state, text, rows = torch.zeros(config.units, dtype=torch.float64), [], []
    for token in ids:
        wanted = torch.tanh(dense @ state + weights["memory.table"][token])
        state = (1 - leak) * state + leak * wanted
        text.append(token)
        if token == config.eos_token_id:
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
    probability = (1 - config.cache_weight) * torch.from_numpy(by_the_formulas(TRAIN, text, 5))
    recent = text[-config.window :]
    ages = [0.5 ** (age / 64) for age in range(len(recent))][::-1]
    for token, share in zip(recent, ages, strict=True):
        probability[token] += config.cache_weight * share / sum(ages)
    seen = torch.log1p(torch.tensor(totals, dtype=torch.float64))
    scale = 1 + weights["scale.weight"] @ torch.cat((x, 0.2 * seen)) + weights["scale.bias"]
    return scale * probability.log()


def by_the_formulas(train: np.ndarray, text: list[int], order: int) -> np.ndarray:
    """P of every token after the text (Chen and Goodman 1999, section 3), from sentences in dictionaries."""
    grams = {n: Counter() for n in range(1, order + 1)}
    for sentence in sentences_of(train):
        padded = [END] * (order - 1) + sentence
        for end in range(order, len(padded) + 1):
            grams[order][tuple(padded[end - order : end])] += 1
    for n in range(order - 1, 0, -1):
        for gram in grams[n + 1]:
            grams[n][gram[1:]] += 1
    found, before = np.full(V, 1 / V), [END] * order + text
    for n in range(1, order + 1):
        context = tuple(before[len(before) - n + 1 :]) if n > 1 else ()
        followers = {gram[-1]: count for gram, count in grams[n].items() if gram[:-1] == context}
        total = sum(followers.values())
        if not total:
            continue
        discount = _discounts(grams[n])
        freed = sum(discount[min(count, 3)] for count in followers.values())
        share = np.zeros(V)
        for token, count in followers.items():
            share[token] = (count - discount[min(count, 3)]) / total
        found = share + freed / total * found
    return found


def sentences_of(train: np.ndarray) -> list[list[int]]:
    return [sentence.tolist() for sentence in np.split(train, np.flatnonzero(train == END) + 1)[:-1]]


def _discounts(grams: Counter) -> list[float]:
    of = defaultdict(int)
    for count in grams.values():
        of[count] += 1
    y = of[1] / (of[1] + 2 * of[2]) if of[1] and of[2] else 0.5
    if of[1] and of[2] and of[3] and of[4]:
        three = [1 - 2 * y * of[2] / of[1], 2 - 3 * y * of[3] / of[2], 3 - 4 * y * of[4] / of[3]]
        if min(three) > 0:
            return [0.0, *three]
    return [0.0, y, y, y]


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
