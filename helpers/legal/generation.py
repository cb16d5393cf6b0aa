"""Text from the model, and what it gives for a text: the likeliest tokens, and the log-probability of given ones.

# B batch · L tokens of prompt and answer · D hidden size · Q questions · C choices · N tokens of a choice · V vocabulary
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from helpers.machine.engine import cpu_copy


@dataclass(frozen=True)
class Generated:
    """What a model wrote after one prompt."""

    text: str  # without special tokens
    tokens: tuple[int, ...]  # up to the stop token, which is left out
    stopped: bool  # the model ended it; False: max_new_tokens did


def autocast(runtime) -> contextlib.AbstractContextManager:
    """The precision of the run for what is not training."""
    half = torch.bfloat16 if runtime.precision == "bf16" else torch.float16
    return torch.autocast(runtime.kind, dtype=half, enabled=runtime.precision != "fp32")


def generate(
    model, template, asked: Sequence, *, max_new_tokens: int, batch_size: int = 8, streamer=None
) -> list[Generated]:
    """What `model` writes for each record, in their order: the likeliest token at every step.

    Sampling, penalties and filters of the model's generation_config do not count: before and after training are compared.
    The model is in eval mode afterwards. A `streamer` of transformers sees the tokens of a single prompt as they come. On XLA
    a copy on the CPU writes: there every length of a text would be a program of its own, and a text of one fixed length would be
    read anew for each token.
    """
    stops, pad = template.stop_token_ids(), template.tokenizer.pad_token_id
    model = cpu_copy(model) if model.device.type == "xla" else model
    prompts = [template.encode(template.prompt(each)) for each in asked]
    longest_first = sorted(range(len(prompts)), key=lambda row: -len(prompts[row]))
    outcomes: dict[int, Generated] = {}
    model.eval()  # which a training step undoes
    for start in range(0, len(prompts), batch_size):
        rows = longest_first[start : start + batch_size]
        batch = [prompts[row] for row in rows]
        with torch.no_grad():
            written = _write(model, batch, max_new_tokens, stops, pad, streamer)
        for row, tokens in zip(rows, written, strict=True):
            kept = tuple(itertools.takewhile(lambda token: token not in stops, tokens))
            text = template.tokenizer.decode(kept, skip_special_tokens=True)
            outcomes[row] = Generated(text, kept, stopped=len(kept) < len(tokens))
    return [outcomes[row] for row in range(len(prompts))]


def _write(
    model, prompts: list[list[int]], max_new_tokens: int, stops: list[int], pad: int, streamer
) -> list[list[int]]:
    """New tokens of each prompt by transformers' own `generate`, from prompts that are padded on the left."""
    from transformers import GenerationConfig

    length = max(map(len, prompts))
    ids_BL = torch.tensor([[pad] * (length - len(ids)) + ids for ids in prompts])
    real_BL = torch.tensor([[0] * (length - len(ids)) + [1] * len(ids) for ids in prompts])
    # A value that is None here would come from the model's own.
    ends = {"max_new_tokens": max_new_tokens, "min_new_tokens": 0, "eos_token_id": stops, "pad_token_id": pad}
    greedy = {
        "do_sample": False,
        "num_beams": 1,
        "repetition_penalty": 1.0,
        "no_repeat_ngram_size": 0,
        "use_cache": True,
    }
    output = model.generate(
        input_ids=ids_BL.to(model.device),
        attention_mask=real_BL.to(model.device),
        generation_config=GenerationConfig(**ends, **greedy),
        streamer=streamer,
    )
    return output[:, length:].tolist()


def log_probabilities(model, template, prompts: Sequence[str], choices: Sequence[str]):
    """Log-probability of each choice after each prompt, the end of the turn included: a NumPy array [Q, C].

    A prompt is read once, and its cache shared by the choices. On XLA a copy on the CPU is asked: prompts have many lengths.
    """
    model = cpu_copy(model) if model.device.type == "xla" else model
    model.eval()
    rows = []
    with torch.no_grad():
        for prompt in prompts:
            ids = template.encode(prompt)
            endings = [[*template.encode(prompt + each)[len(ids) :], template.stop_token_id] for each in choices]
            read = model(input_ids=torch.tensor([ids], device=model.device), use_cache=True, logits_to_keep=1)
            first_V = read.logits[0, -1].float().log_softmax(-1)
            cache, longest = read.past_key_values, max(map(len, endings))
            cache.batch_repeat_interleave(len(choices))
            ends_CN = torch.tensor([each + [each[-1]] * (longest - len(each)) for each in endings], device=model.device)
            logits_CNV = model(input_ids=ends_CN, past_key_values=cache, use_cache=True).logits
            later_CN = logits_CNV[:, :-1].float().log_softmax(-1).gather(-1, ends_CN[:, 1:, None])[..., 0]
            rows.append(
                [float(first_V[each[0]] + later_CN[at, : len(each) - 1].sum()) for at, each in enumerate(endings)]
            )
    return torch.tensor(rows).numpy()
