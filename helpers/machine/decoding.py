"""A language model writes: the likeliest tokens after a batch of prompts, on whatever device it is.

# B texts of a batch · L tokens of the longest prompt · N tokens of an answer · S tokens of both · V vocabulary
"""

import torch
from torch.nn.functional import pad
from transformers.modeling_outputs import CausalLMOutputWithPast

from . import attention, xla

# transformers 5.24 calls it so, and warns of the name before.
CACHE = "cache" if "cache" in CausalLMOutputWithPast.__dataclass_fields__ else "past_key_values"
MULTIPLE = 128  # of lengths: what a TPU's matrix unit and fused attention kernels tile by


def base_of(model):
    """The transformers model within PEFT's and that of several processes, or the model itself."""
    model = getattr(model, "module", model)
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def write(model, ids_BL: torch.Tensor, real_BL: torch.Tensor, greedy, batch_size: int) -> torch.Tensor:
    """The tokens [B, N] after prompts that are padded on the left, by transformers' own `generate`, or on XLA by `_write_on_xla`.

    greedy: a GenerationConfig without sampling. batch_size: the largest B; on XLA a multiple of the devices.
    """
    if model.device.type == "xla":
        return _write_on_xla(model, ids_BL, real_BL, greedy.max_new_tokens, batch_size)
    inputs = {"input_ids": ids_BL.to(model.device), "attention_mask": real_BL.to(model.device)}
    written = model.generate(**inputs, generation_config=greedy)
    return written[:, ids_BL.shape[1] :]


@torch.no_grad()
def _write_on_xla(model, ids_BL, real_BL, N, batch_size) -> torch.Tensor:
    """Two programs for a length of prompts: one reads them, and one writes a token.

    Prompts are padded to a multiple of 128 tokens, and a batch to `batch_size` texts, which the devices share; the cache has one size,
    and all N tokens are written before the host sees one. transformers' own loop would compile a program for each length of a text.
    """
    from transformers import StaticCache

    transformer, missing = base_of(model), -ids_BL.shape[1] % MULTIPLE
    xla.replicate(model)
    attention.use_one_dtype(transformer)
    ids, real = (pad(part.repeat(batch_size, 1)[:batch_size], (missing, 0)) for part in (ids_BL, real_BL))
    parts = ids, pad(real, (0, N), value=1), (real.cumsum(1) - 1).clamp(min=0)
    token, seen, place = (xla.shard_batch(part.to(model.device)) for part in parts)
    cache = StaticCache(transformer.config, max_cache_len=seen.shape[1])
    written: list[torch.Tensor] = []
    while len(written) < N:
        inputs = {"input_ids": token, "attention_mask": seen, "position_ids": place, CACHE: cache}
        with torch.autocast("xla", enabled=False):  # keys and values have the dtype of the weights
            logits_B1V = model(**inputs, logits_to_keep=1).logits
        token, place = logits_B1V.argmax(-1), place[:, -1:] + 1
        written.append(token)
        xla.sync()
    return torch.cat(written, 1).cpu()[: len(ids_BL)]
