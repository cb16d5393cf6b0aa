"""Bits per byte against the number of tokens that were read before: what a longer memory is worth in a stream of stories.

    python benchmarks/reservoir_context.py --data a.txt b.txt --stories 3400 --steps 1000

Reads the models that benchmarks/reservoir_study.py kept for the same arguments. The same 64 pieces of 128 test tokens are predicted after
16, 128, ... 16,384 tokens of the stream before them. Reservoirs and RWKV carry their state, the reservoirs with the reset at the end of a
text that they were trained with, and without it. The Llama reads either everything, up to 2,048 tokens, or for each predicted token the
last 128 only, which is what it was trained on. Intervals are of 95 %, from 1,000 bootstrap samples of the pieces, of the mean over seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, PreTrainedModel

from benchmarks.reservoir_study import BLOCK, BOOTSTRAP, ROOT, SEEDS, SIZES, STEPS, joined, read, run_folder

# R pieces · T tokens of a piece · C tokens before it · V vocabulary

PIECES = 64
CONTEXTS = (16, 128, 512, 2_048, 16_384)
ATTENDED = CONTEXTS[:4]  # attention to everything costs the square of it
READ_AT_ONCE = 512  # tokens


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, nargs="+", help="as the study had it, and so are the next three")
    parser.add_argument("--stories", type=int, default=2_000)
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, default=STEPS["small"])
    parser.add_argument("--folder", type=Path, help="of the study's runs; default as there")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/reservoir_context_cpu.json")
    arguments = parser.parse_args()
    folder = arguments.folder or run_folder(arguments)
    texts = read(joined(arguments.data, folder), arguments.stories, SIZES[arguments.size]["vocab_size"])
    if len(texts.test) < max(CONTEXTS) + PIECES * BLOCK:
        raise SystemExit(f"--data: the test stories have {len(texts.test)} tokens; {max(CONTEXTS)} and more are needed")
    machine = report.machine("cpu", ("torch", "transformers"))
    places_R = np.linspace(max(CONTEXTS), len(texts.test) - BLOCK, PIECES).astype(int)
    targets_RT = np.stack([texts.test[place : place + BLOCK] for place in places_R])
    bytes_R = texts.bytes_V[targets_RT].sum(1)
    rows = {}
    for name, (row, score, contexts) in ROWS.items():
        paths = [found for seed in SEEDS for found in sorted((folder / "models").glob(f"{row}-seed{seed}-rate*"))[:1]]
        if not paths:
            print(f"{name}: no model of {row!r} in {folder / 'models'}; the study with these arguments makes it")
            continue
        nats_CR = {}
        for context in contexts:
            ids_RC = torch.from_numpy(
                np.stack([texts.test[p - context : p + BLOCK] for p in places_R]).astype(np.int64)
            )
            found = [score(AutoModelForCausalLM.from_pretrained(path).eval(), ids_RC) for path in paths]
            nats_CR[context] = np.mean(found, axis=0)
            print(f"{name}, {context} tokens before: {bits(nats_CR[context], bytes_R):.4f}", flush=True)
        rows[name] = {
            "seeds": len(paths),
            "bits_per_byte": {str(context): bits(nats_R, bytes_R) for context, nats_R in nats_CR.items()},
            "above_a_block": {
                str(context): interval(nats_R, nats_CR[BLOCK]) for context, nats_R in nats_CR.items() if context > BLOCK
            },
        }
    report.write(
        arguments.output,
        machine,
        study={"size": arguments.size, "stories": arguments.stories, "steps": arguments.steps},
        predicted_tokens=targets_RT.size,
        rows=rows,
    )


# ---- nats of the last T tokens of each row [R]; the rest is read before


@torch.no_grad()
def carried(model: PreTrainedModel, ids_RC: torch.Tensor) -> np.ndarray:
    """By the state: of the reservoirs without a readout as long as nothing is predicted."""
    before_RC, piece_RT = ids_RC[:, : -BLOCK - 1], ids_RC[:, -BLOCK - 1 :]
    state = None
    for ids_RL in before_RC.split(READ_AT_ONCE, dim=1):
        if hasattr(model, "reservoirs"):
            _, state = model.features(ids_RL, state)
        else:
            state = model.rwkv(ids_RL, state=state, use_cache=True).state
    return nats(model(piece_RT[:, :-1], state=state).logits, piece_RT)


def without_reset(model: PreTrainedModel, ids_RC: torch.Tensor) -> np.ndarray:
    model.config.reset_at_end = False
    return carried(model, ids_RC)


@torch.no_grad()
def attended(model: PreTrainedModel, ids_RC: torch.Tensor) -> np.ndarray:
    """By attention to everything before."""
    return np.concatenate([nats(model(ids_C[None, :-1], logits_to_keep=BLOCK).logits, ids_C[None]) for ids_C in ids_RC])


@torch.no_grad()
def last_tokens(model: PreTrainedModel, ids_RC: torch.Tensor) -> np.ndarray:
    """By attention to the last 128 tokens before each, and to nothing else in any layer."""
    found = []
    for ids_C in ids_RC[:, -2 * BLOCK :]:
        windows_TW = ids_C.unfold(0, BLOCK, 1)[:BLOCK]
        logits_TV = model(windows_TW, logits_to_keep=1).logits[:, 0]
        found.append(float(cross_entropy(logits_TV, ids_C[BLOCK:], reduction="sum")))
    return np.array(found)


def nats(logits_RTV: torch.Tensor, ids_RC: torch.Tensor) -> np.ndarray:
    targets_RT = ids_RC[:, -BLOCK:]
    return cross_entropy(logits_RTV.float().transpose(1, 2), targets_RT, reduction="none").sum(1).numpy()


Score = Callable[[PreTrainedModel, torch.Tensor], np.ndarray]
ROWS: dict[str, tuple[str, Score, tuple[int, ...]]] = {  # a row of the study, how it is read, and after how many tokens
    "reservoirs, reset at the end of a text": ("reservoirs", carried, CONTEXTS),
    "reservoirs, never reset": ("reservoirs", without_reset, CONTEXTS),
    "reservoirs, trained without the reset": ("no_reset_at_the_end_of_a_text", without_reset, CONTEXTS),
    "RWKV, state carried": ("RWKV", carried, CONTEXTS),
    "Llama, every token": ("Llama", attended, ATTENDED),
    "Llama, last 128 tokens": ("Llama", last_tokens, (BLOCK,)),
}


def bits(nats_R: np.ndarray, bytes_R: np.ndarray) -> float:
    return float(nats_R.sum() / math.log(2) / bytes_R.sum())


def interval(nats_R: np.ndarray, block_R: np.ndarray) -> tuple[float, float, float]:
    """How much higher than after one block of tokens, as a share, and its interval over the pieces."""
    drawn = np.random.default_rng(0).integers(0, len(nats_R), size=(BOOTSTRAP, len(nats_R)))
    ratios = nats_R[drawn].sum(1) / block_R[drawn].sum(1) - 1
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(nats_R.sum() / block_R.sum() - 1), float(low), float(high)


if __name__ == "__main__":
    main()
