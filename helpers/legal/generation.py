"""What the model writes, and the log-probability that it gives to a text.

# B batch · L tokens of prompt and answer · D hidden size · Q questions · C choices · N tokens of a choice · V vocabulary
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from helpers.machine.decoding import CACHE, write
from helpers.machine.engine import cpu_copy

BATCH = 8  # prompts that are written at a time


@dataclass(frozen=True)
class Generated:
    """What a model wrote after one prompt."""

    text: str  # without special tokens
    tokens: tuple[int, ...]  # up to the stop token, which is left out
    stopped: bool  # the model ended it; False: max_new_tokens did


def generate(model, template, records: Sequence, *, max_new_tokens: int, batch_size: int = BATCH) -> list[Generated]:
    """What `model` writes for each record, in their order: the likeliest token at every step.

    Sampling, penalties and filters of the model's generation_config do not count: before and after training are compared.
    The model is in eval mode afterwards. `batch_size` is a multiple of the devices on XLA.
    """
    from transformers import GenerationConfig

    stops, pad = template.stop_token_ids(), template.tokenizer.pad_token_id
    greedy = GenerationConfig(  # a value that is None here would come from the model's own
        max_new_tokens=max_new_tokens,
        min_new_tokens=0,
        eos_token_id=stops,
        pad_token_id=pad,
        do_sample=False,
        num_beams=1,
        repetition_penalty=1.0,
        no_repeat_ngram_size=0,
        use_cache=True,
    )
    prompts = [torch.tensor(template.encode(template.prompt(record))) for record in records]
    outcomes = []
    model.eval()  # which a training step undoes
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        ids_BL = pad_sequence(batch, True, pad, padding_side="left")
        masks = [torch.ones_like(ids) for ids in batch]
        real_BL = pad_sequence(masks, True, 0, padding_side="left")
        for output in write(model, ids_BL, real_BL, greedy, batch_size).tolist():
            tokens = tuple(itertools.takewhile(lambda token: token not in stops, output))
            text = template.tokenizer.decode(tokens, skip_special_tokens=True)
            outcomes.append(Generated(text, tokens, stopped=len(tokens) < len(output)))
    return outcomes


def log_probabilities(model, template, prompts: Sequence[str], choices: Sequence[str]):
    """Log-probability of each choice after each prompt, the end of the turn included: a NumPy array [Q, C].

    A prompt is read once, and its cache shared by the choices. On XLA a copy on the CPU is asked: prompts have many lengths.
    """
    if model.device.type == "xla":
        model = cpu_copy(model)
    model.eval()
    rows = []
    for prompt in prompts:
        ids = template.encode(prompt)
        endings = []
        for choice in choices:
            tokens = template.encode(prompt + choice)[len(ids) :]
            endings.append(torch.tensor([*tokens, template.stop_token_id], device=model.device))
        with torch.no_grad():
            log_p_CN = continued(model, torch.tensor([ids], device=model.device), pad_sequence(endings, True))
        row = []
        for log_p_N, ending_N in zip(log_p_CN, endings, strict=True):
            row.append(float(log_p_N[: len(ending_N)].sum()))
        rows.append(row)
    return torch.tensor(rows).numpy()


def continued(model, prompt_1L: torch.Tensor, ends_CN: torch.Tensor) -> torch.Tensor:
    """Log-probability of each token of several endings after one prompt, which is read once: [C, N]."""
    read = model(input_ids=prompt_1L, use_cache=True, logits_to_keep=1)
    first_V = read.logits[0, -1].float().log_softmax(-1)
    cache = read[CACHE]
    cache.batch_repeat_interleave(len(ends_CN))
    logits_CNV = model(input_ids=ends_CN, use_cache=True, **{CACHE: cache}).logits
    log_p_CNV = logits_CNV[:, :-1].float().log_softmax(-1)
    later_CN = log_p_CNV.gather(-1, ends_CN[:, 1:, None])[..., 0]
    return torch.cat([first_V[ends_CN[:, :1]], later_CN], dim=1)
