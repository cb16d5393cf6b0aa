"""Text from the model: left-padded batches on a CPU or GPU, one compiled decode step on XLA.

# B batch · P padded prompt · N new tokens · L = P + N cache · V vocabulary
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from helpers.machine import xla
from helpers.machine.engine import cpu_copy

from .layout import Layout, round_up
from .records import Record

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Rows = Sequence[Sequence[int]]  # token ids of several texts
LOOK_EVERY = 16  # XLA: tokens between two looks at whether all rows have stopped; a look waits for the device


@dataclass(frozen=True)
class Generated:
    """What a model wrote after one prompt."""

    text: str  # without special tokens
    tokens: tuple[int, ...]  # up to the stop token, which is left out
    stopped: bool  # the model ended it; False: max_new_tokens did

    def __str__(self) -> str:
        return self.text.strip() or "(nothing but white space)"


def generate(
    model: PreTrainedModel,
    layout: Layout,
    asked: Sequence[Record | str],
    *,
    max_new_tokens: int,
    batch_size: int = 8,
    streamer=None,
) -> list[Generated]:
    """What `model` writes for each record or question, in their order: the likeliest token at every step.

    Sampling, penalties and filters of the model's generation_config do not count: before and after training are compared.
    The model is in eval mode afterwards. Mixed precision is the caller's `torch.autocast`. A `streamer` of transformers
    sees the tokens of a single prompt as they come, but not on XLA.

    On XLA three graphs are compiled (prompt, step, whether all have stopped), whatever the number of tokens, prompts and
    calls: lengths are multiples of 128, the last batch is filled up, keys and values are a `StaticCache`, and the place of
    the next token is a tensor. Under SPMD the batch (rounded up to the devices) is split. A model whose cache has other layers
    (sliding window, recurrent) has no step of one shape there: a copy of it on the CPU generates.
    """
    tokenizer, stops, prompts_ids = layout.tokenizer, [*layout.stop_token_ids], layout.prompt_ids(asked)
    pad = stops[0] if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    decode = functools.partial(_generate_batch, streamer=streamer)
    if model.device.type == "xla":
        if static_cache(model, 1) is None:
            model = cpu_copy(model)
        else:
            batch_size = round_up(batch_size, xla.device_count())
            length = round_up(max(map(len, prompts_ids), default=1))
            decode = functools.partial(_generate_on_xla, length=length, batch_size=batch_size)
    longest_first = sorted(range(len(prompts_ids)), key=lambda row: -len(prompts_ids[row]))
    outcomes: dict[int, Generated] = {}
    model.eval()  # which a training step undoes
    with torch.no_grad():
        for start in range(0, len(prompts_ids), batch_size):
            rows = longest_first[start : start + batch_size]
            written = decode(model, [prompts_ids[row] for row in rows], max_new_tokens, stops, pad)
            for row, tokens in zip(rows, written, strict=True):
                kept = tuple(itertools.takewhile(lambda token: token not in stops, tokens))
                text = tokenizer.decode(kept, skip_special_tokens=True)
                outcomes[row] = Generated(text, kept, stopped=len(kept) < len(tokens))
    return [outcomes[row] for row in range(len(prompts_ids))]


def _generate_batch(model, prompts: Rows, max_new_tokens: int, stops: list[int], pad: int, streamer=None) -> Rows:
    """New tokens of each prompt by transformers' own `generate`."""
    from transformers import GenerationConfig

    ids_BP, first_B = _left_padded(prompts, max(map(len, prompts)), pad)
    real_BP = (torch.arange(ids_BP.shape[1]) >= first_B[:, None]).long()
    ends = {"max_new_tokens": max_new_tokens, "min_new_tokens": 0, "eos_token_id": stops, "pad_token_id": pad}
    greedy = {
        "do_sample": False,
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "use_cache": True,
    }
    config = GenerationConfig(**ends, **greedy)  # a value that is None here would come from the model's own
    output = model.generate(
        input_ids=ids_BP.to(model.device),
        attention_mask=real_BP.to(model.device),
        generation_config=config,
        streamer=streamer,
    )
    return output[:, ids_BP.shape[1] :].tolist()


def _left_padded(prompts: Rows, length: int, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """ids [B, length] with each prompt at the end, and the place of its first token [B]."""
    ids_BP = torch.full((len(prompts), length), pad)
    for row, ids in enumerate(prompts):
        ids_BP[row, length - len(ids) :] = torch.tensor(ids)
    return ids_BP, torch.tensor([length - len(ids) for ids in prompts])


# ---- XLA


def static_cache(model: PreTrainedModel, length: int):
    """A cache of `length` tokens whose steps all have one shape, or None where the model's layers have none."""
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    try:
        cache = StaticCache(config=model.config, max_cache_len=length)
    except (KeyError, NotImplementedError, ValueError):  # a layer type without a static cache
        return None
    # Subclasses count in Python: a graph a token.
    return cache if all(type(layer) is StaticLayer for layer in cache.layers) else None


def _generate_on_xla(
    model, prompts: Rows, max_new_tokens: int, stop_ids: list[int], pad: int, *, length: int, batch_size: int
) -> Rows:
    """The same in batches of one shape: a graph for prompts of `length` tokens, one for every further token."""
    rows, prompts = len(prompts), [*prompts, *[prompts[-1]] * (batch_size - len(prompts))]
    P, N = length, round_up(max_new_tokens)

    def split(tensor_B: torch.Tensor) -> torch.Tensor:
        return xla.shard_batch(tensor_B.to(model.device))

    ids_BP, first_B = map(split, _left_padded(prompts, P, pad))
    tokens_BN = split(torch.full((batch_size, N), pad))
    ended_B = split(torch.zeros(batch_size, dtype=torch.bool))
    stops, place = torch.tensor(stop_ids).to(model.device), torch.tensor(P).to(model.device)
    column_L, cache = torch.arange(P + N).to(model.device), static_cache(model, P + N)

    row_P1 = column_L[:P, None]
    # A pad sees itself: the softmax of a row that sees nothing is NaN.
    seen_BTL = (column_L <= row_P1) & (column_L >= first_B[:, None, None]) | (column_L == row_P1)
    ids_BT, position_BT = ids_BP, (column_L[:P] - first_B[:, None]).clamp(min=0)
    for step in range(max_new_tokens):
        if step and step % LOOK_EVERY == 0 and bool(ended_B.all()):
            break
        logits_BV = model(
            input_ids=ids_BT,
            attention_mask=_attention_mask(model, seen_BTL[:, None]),
            position_ids=position_BT,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        here_N = column_L[:N] == place - P
        token_B = torch.where(ended_B, pad, logits_BV.argmax(-1))
        tokens_BN = torch.where(here_N, token_B[:, None], tokens_BN)
        ended_B = ended_B | (token_B[:, None] == stops).any(1)  # isin would wait for the device
        ids_BT, position_BT = token_B[:, None], (place - first_B)[:, None]
        seen_BTL = ((column_L <= place) & (column_L >= first_B[:, None]))[:, None]
        place = place + 1
        for tensor in (ids_BT, position_BT, seen_BTL, tokens_BN, ended_B):
            xla.shard_batch(tensor)
        for layer in cache.layers:
            xla.shard_batch(layer.keys)
            xla.shard_batch(layer.values)
        xla.sync()
    return tokens_BN.cpu()[:rows, :max_new_tokens].tolist()


def _attention_mask(model, seen_B1TL: torch.Tensor) -> torch.Tensor:
    if model.config._attn_implementation != "eager":
        return seen_B1TL
    return torch.where(seen_B1TL, 0.0, torch.finfo(model.dtype).min).to(model.dtype)  # which eager attention adds
