"""What the model writes.

# B batch · L tokens of prompt and answer
"""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch.nn.utils.rnn import pad_sequence

from helpers.machine.decoding import write

BATCH = 8  # prompts that are written at a time; on XLA a multiple of the devices


@dataclass(frozen=True)
class Generated:
    """What a model wrote after one prompt."""

    text: str  # without special tokens, up to the stop token
    stopped: bool  # the model ended it; False: max_new_tokens did


def generate(model, template, prompts: Sequence[str], *, max_new_tokens: int) -> list[Generated]:
    """What `model` writes after each prompt, in their order: the likeliest token at every step.

    Sampling, penalties and filters of the model's generation_config do not count: before and after training are compared.
    The model is in eval mode afterwards.
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
    encodings = [torch.tensor(template.encode(prompt)) for prompt in prompts]
    outcomes = []
    model.eval()  # which a training step undoes
    for start in range(0, len(prompts), BATCH):
        batch = encodings[start : start + BATCH]
        ids_BL = pad_sequence(batch, True, pad, padding_side="left")
        masks = [torch.ones_like(ids) for ids in batch]
        real_BL = pad_sequence(masks, True, 0, padding_side="left")
        for output in write(model, ids_BL, real_BL, greedy, BATCH).tolist():
            tokens = [*itertools.takewhile(lambda token: token not in stops, output)]
            text = template.tokenizer.decode(tokens, skip_special_tokens=True)
            outcomes.append(Generated(text, stopped=len(tokens) < len(output)))
    return outcomes
