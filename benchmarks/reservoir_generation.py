"""What the next token costs after many: the reservoirs' state of fixed size beside a transformer's cache of all that was read.

    python benchmarks/reservoir_generation.py

Processor seconds a token and bytes carried from token to token, one text at a time, for the notebook's model and a Llama
of as many trained weights: with every earlier token in its cache, and with a window of the last 128, which is what it was
trained on. Weights and tokens are random: neither changes the work, nor does what a cache holds. Says nothing of quality.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from transformers import DynamicCache, LlamaForCausalLM

from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.parameters import ReservoirParameters
from helpers.reservoir.transformer import equal_transformer

V = 8811  # of 2,000 stories in GPT-2's tokens
WINDOW = 128
READ = (128, 1_024, 8_192, 32_768, 100_000)  # tokens before the ones that are timed
TIMED = 50  # tokens a turn
PIECE = 4_096  # tokens that are read at once


def main() -> None:
    arguments = report.parsed(report.argument_parser(__doc__, repetitions=5, devices=("cpu",)), "reservoir_generation")
    torch.manual_seed(0)
    machine = report.machine("cpu", ("torch", "transformers"))
    sizes = {name: field.default for name, field in ReservoirParameters.model_fields.items()}
    reservoir = ReservoirForCausalLM.initialise(
        ReservoirConfig(vocab_size=V, **ReservoirParameters(**sizes).architecture | {"input_codes": 0}),
        codes_VC=torch.randn(V, sizes["input_codes"]),
    )
    llama = equal_transformer(V, reservoir.parameter_counts()["trainable"], WINDOW, seed=0, eos_token_id=0)
    streams = {
        "reservoirs": lambda read: of_reservoirs(reservoir, read),
        "Llama, every token": lambda read: of_llama(llama, read),
        "Llama, window of 128": lambda read: of_llama(llama, min(read, WINDOW - 1), window=True),
    }
    rows = []
    for read in READ:
        made = {name: make(read) for name, make in streams.items()}
        seconds = taking_turns({name: stream for name, (stream, _) in made.items()}, arguments.repetitions)
        for name, (_, carried) in made.items():
            rows.append({"model": name, "read": read, "cpu_seconds_a_token": seconds[name], "carried_bytes": carried})
            print(json.dumps(rows[-1]), flush=True)
    report.write(
        arguments.output,
        machine,
        trained={"reservoirs": reservoir.parameter_counts()["trainable"], "Llama": llama.num_parameters()},
        timed_tokens=TIMED,
        rows=rows,
    )


@torch.no_grad()
def of_reservoirs(model: ReservoirForCausalLM, read: int) -> tuple[Iterator, int]:
    """Endless next tokens after `read` ones, and the bytes that each hands to the next."""
    model.eval()
    state = model.initial_state(1)
    for begin in range(0, read, PIECE):
        _, state = model.features(torch.randint(V, (1, min(PIECE, read - begin))), state)

    def stream():
        nonlocal state
        while True:
            state = model(input_ids=torch.randint(V, (1, 1)), state=state).state
            yield

    return stream(), state.numel() * state.element_size()


@torch.no_grad()
def of_llama(model: LlamaForCausalLM, read: int, window: bool = False) -> tuple[Iterator, int]:
    """The same with a cache of random keys and values; `window`: that does not grow."""
    model.eval()
    cache, shape = DynamicCache(), (1, model.config.num_key_value_heads, read, model.config.head_dim)
    layers = range(model.config.num_hidden_layers)
    for layer in layers:
        cache.update(torch.randn(shape), torch.randn(shape), layer)

    def stream():
        while True:
            model(input_ids=torch.randint(V, (1, 1)), past_key_values=cache)
            if window:
                cache.crop(-1)  # the newest in place of the oldest: the same work
            yield

    return stream(), 2 * len(layers) * 4 * shape[1] * shape[2] * shape[3]


@torch.no_grad()
def taking_turns(streams: dict[str, Iterator], repetitions: int) -> dict[str, float]:
    """Median processor seconds of a token over turns, after a warm-up of each."""
    found: dict[str, list[float]] = {name: [] for name in streams}
    for turn in range(repetitions + 1):
        for name, stream in streams.items():
            begin = time.process_time()
            for _ in range(TIMED):
                next(stream)
            if turn:
                found[name].append((time.process_time() - begin) / TIMED)
    return {name: round(statistics.median(seconds), 6) for name, seconds in found.items()}


if __name__ == "__main__":
    main()
