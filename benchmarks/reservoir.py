"""Bits per byte for processor seconds: the reservoir, what is trained through time, a transformer, and counting.

    python benchmarks/reservoir.py --data tinystories=a.txt,b.txt --seconds 60            # one budget: trials, then three seeds
    python benchmarks/reservoir.py --data german=manpages-de.deb --models reservoir --settings-of tinystories

Every model has as many trained weights, the same tokens, codes (where its embedding begins), recall, counts, dropout search and number
of trials. The budget is processor time of one thread from the raw texts to the finished model: tokeniser, codes, counts, states,
training, and the choice of the counts' weight on dev. The learning rate falls to zero as the budget runs out. Trials are run with
seed 0; dev chooses learning rate and dropout. The test texts are read once by each run, when it is over. A run is a file in `--folder`: a
call goes on where the last one was cut off, and ends after `--minutes`. `--write` puts all runs that are there into docs/results.

# B batch · T tokens · D width · V vocabulary · P tokens of a stream
"""

from __future__ import annotations

import argparse
import dataclasses
import gzip
import hashlib
import itertools
import json
import math
import random
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from helpers.reservoir import data, evaluation
from helpers.reservoir.model import (
    GatedBlock,
    Predictor,
    ReservoirConfig,
    ReservoirForCausalLM,
    begin_at_codes,
    recall,
)
from helpers.run import provenance

ROOT = Path(__file__).resolve().parents[1]
OUTPUT = ROOT / "docs/results/reservoir_cpu.json"
TRAIN, HELD_OUT = 2_000, 200  # texts to train on, and of dev and test each, at most
DEV_TOKENS = 25_000  # of dev choose the weight of the counts within the budget
BLOCK, BATCH, LINE = 128, 16, 128  # tokens, blocks, recalled tokens
SIZES = {"input_codes": 192, "embedding_size": 192, "readout_blocks": 2, "readout_size": 512}
CODES = SIZES["input_codes"]
WARM_UP = 0.05
VOCABULARIES = (0, 1024, 2048, 4096, 6000)  # of counting alone; 0 is the size by rule
SEEDS = (0, 1, 2)
RATES = {  # the first is what an earlier study of 250 steps chose on its dev stories
    "reservoir": (6e-3, 3e-3, 1.2e-2),
    "RWKV": (6e-3, 3e-3, 1.2e-2),
    "Llama": (1.5e-3, 3e-3, 6e-3),
    "reservoir trained through time": (6e-3, 3e-3, 1.2e-2),
    "GRU": (1.2e-2, 6e-3, 3e-3),
}
DROPOUTS = (0.1, 0.0)  # the first with every rate, then the other with the best rate


# ---- texts


@dataclasses.dataclass(frozen=True)
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
        if file.suffix == ".deb":
            texts += manual_pages(file)
        else:
            found = data.load_texts(str(file), num_texts=0, seed=0)
            texts += [*found.train, *found.dev, *found.test]
    texts = list(dict.fromkeys(texts))
    random.Random(0).shuffle(texts)
    held = min(HELD_OUT, len(texts) // 6)
    digests = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in files}
    return Texts(name, texts[2 * held :][:TRAIN], texts[held : 2 * held], texts[:held], digests)


def manual_pages(package: Path) -> list[str]:
    """The sections of the manual pages of a Debian package as plain text, without the formatter's commands."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["dpkg-deb", "-x", package, folder], check=True)
        pages = sorted(Path(folder).rglob("man?/*.gz"))
        chinese = [page for page in pages if "zh_CN" in page.parts]
        read_pages = [gzip.decompress(page.read_bytes()).decode("utf-8", "replace") for page in chinese or pages]
    sections = []
    for page in read_pages:
        for section in re.split(r"^\.S[Hh].*$", page, flags=re.MULTILINE)[2:]:
            lines = [line for line in section.splitlines() if not line.startswith((".\\", "'"))]
            text = "\n".join(re.sub(r"^\.\w+ ?", "", line) for line in lines)
            text = re.sub(r"\\f(\[\w*\]|\(..|.)|\\[&%,/|]", "", text).replace("\\-", "-").replace("\\e", "\\")
            text = re.sub(r"\n\s*\n+", "\n", text).strip()
            if len(text) >= 200:
                sections.append(text[:3000])
    return sections


# ---- models: each maps a batch of blocks to (loss, state to go on from)


class Frozen(nn.Module):
    """The notebook's model. Its states before all blocks are read once, in the budget, so that blocks can be shuffled."""

    shuffled, device = True, torch.device("cpu")

    def __init__(self, V, width, codes_VC, end, dropout, seed):
        super().__init__()
        config = ReservoirConfig(vocab_size=V, eos_token_id=end, dropout=dropout, **SIZES)
        config.reservoir_seed = seed
        if not dropout:
            config.token_dropout = 0.0
        self.model = ReservoirForCausalLM.initialise(config, codes_VC, seed)
        self.state_size = config.units + config.recall_tokens

    def read(self, ids_BT, state_BS):
        return self.model.read(ids_BT, state_BS)

    def forward(self, ids_BT, labels_BT, state_BS):
        return self.model(input_ids=ids_BT, labels=labels_BT, state=state_BS).loss, None

    def logits(self, ids_BT, state_BS):
        found = self.model(input_ids=ids_BT, state=state_BS)
        return found.logits, found.state


class Rival(nn.Module):
    """An embedding, a body that is trained through the time of a block, the same head and recall.

    A recurrent body carries its state from block to block, rows of the text side by side; attention sees its block.
    """

    shuffled = False

    def __init__(self, V, width, codes_VC, end, dropout, seed):
        super().__init__()
        torch.manual_seed(seed)
        self.end, self.width = end, width
        self.embedding = nn.Embedding(V, width)
        self.body = self.make_body(width, dropout)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.predictor = Predictor(width, V)
        nn.init.normal_(self.embedding.weight, std=0.02)
        begin_at_codes(self.embedding.weight, codes_VC)
        self.predictor.head.weight = self.embedding.weight
        for tensor in (self.predictor.head.bias, self.predictor.trust.weight, self.predictor.trust.bias):
            nn.init.zeros_(tensor)
        self.dropout = nn.Dropout(dropout)

    def vectors(self, ids_BT, state):
        line_BW, carried = (torch.zeros(len(ids_BT), LINE), None) if state is None else state
        x_BTD = self.dropout(F.rms_norm(self.embedding(ids_BT), (self.width,)))
        x_BTD, carried = self.run(x_BTD, carried)
        tokens_BS, kernels_BTKS, line_BW = recall(ids_BT, line_BW, torch.ones_like(ids_BT), ids_BT == self.end)
        return self.dropout(self.norm(x_BTD)), tokens_BS, kernels_BTKS, (line_BW, carried)

    def forward(self, ids_BT, labels_BT, state):
        x_BTD, tokens_BS, kernels_BTKS, state = self.vectors(ids_BT, state)
        return self.predictor(x_BTD, tokens_BS, kernels_BTKS, labels_BT)[0], state

    def logits(self, ids_BT, state):
        x_BTD, tokens_BS, kernels_BTKS, state = self.vectors(ids_BT, state)
        return self.predictor(x_BTD, tokens_BS, kernels_BTKS)[1], state


class Gru(Rival):
    """Two layers (Cho et al. 2014)."""

    def make_body(self, width, dropout):
        return nn.GRU(width, width, num_layers=2, batch_first=True, dropout=dropout)

    def run(self, x_BTD, carried):
        x_BTD, carried = self.body(x_BTD, carried)
        return x_BTD, carried.detach()


class Layers:
    """One part of RWKV's state by layer. Written in place, as transformers' tensor is, it would have no gradient."""

    def __init__(self, of: list[torch.Tensor]):
        self.of = of

    def __getitem__(self, place):
        return self.of[place[2]]

    def __setitem__(self, place, value):
        self.of[place[2]] = value


class Rwkv(Rival):
    """Three layers of RWKV-4 (Peng et al., arXiv 2305.13048), transformers' implementation."""

    LAYERS = 3

    def make_body(self, width, dropout):
        from transformers import RwkvConfig, RwkvModel

        sizes = {"hidden_size": width, "attention_hidden_size": width, "intermediate_size": 2 * width}
        return RwkvModel(
            RwkvConfig(
                vocab_size=1,
                bos_token_id=0,
                eos_token_id=0,
                num_hidden_layers=self.LAYERS,
                context_length=BLOCK,
                **sizes,
            )
        )

    def run(self, x_BTD, carried):
        if carried is None:
            zero_BD = torch.zeros(len(x_BTD), self.width)
            carried = [Layers([zero_BD - 1e30 * (part == 4)] * self.LAYERS) for part in range(5)]
        found = self.body(inputs_embeds=x_BTD, state=carried, use_cache=True)
        return found.last_hidden_state, [Layers([each.detach() for each in part.of]) for part in found.state]


class Llama(Rival):
    """Llama layers as the notebook's comparison has them; a block sees itself and, by recall, the tokens before it."""

    shuffled, device = True, torch.device("cpu")
    state_size = LINE

    def make_body(self, width, dropout):
        from transformers import LlamaConfig, LlamaModel

        sizes = {
            "hidden_size": width,
            "intermediate_size": round(8 * width / 3),
            "num_attention_heads": next(heads for heads in (4, 3, 2, 1) if width % (2 * heads) == 0),
            "bos_token_id": None,
            "eos_token_id": None,
        }
        return LlamaModel(
            LlamaConfig(vocab_size=1, num_hidden_layers=2, attention_dropout=dropout, use_cache=False, **sizes)
        )

    def run(self, x_BTD, carried):
        return self.body(inputs_embeds=x_BTD).last_hidden_state, None

    def read(self, ids_BT, line_BW):
        return (recall(ids_BT, line_BW, torch.ones_like(ids_BT), ids_BT == self.end)[-1],)

    def forward(self, ids_BT, labels_BT, state):
        return super().forward(ids_BT, labels_BT, (state, None))

    def logits(self, ids_BT, state):
        return super().logits(ids_BT, (state, None))


class Echo(Rival):
    """The notebook's network and readout with every weight of the network trained through the time of a block."""

    UNITS, BLOCKS = 768, 6

    def make_body(self, width, dropout):
        config = ReservoirConfig(vocab_size=1, units=self.UNITS, unit_blocks=self.BLOCKS, input_codes=width)
        M = self.UNITS // self.BLOCKS
        body = nn.Module()
        weight_GMM = torch.randn(self.BLOCKS, M, M)
        radius_G = torch.linalg.eigvals(weight_GMM).abs().amax(-1)
        body.weight = nn.Parameter(weight_GMM * (config.spectral_radius / radius_G)[:, None, None])
        body.input_map = nn.Parameter(torch.randn(width, self.UNITS) * (3 * width) ** -0.5)
        body.bias = nn.Parameter((torch.rand(self.UNITS) * 2 - 1) * config.bias_scaling)
        body.projection = nn.Linear(self.UNITS, width, bias=False)
        body.readout = nn.ModuleList(
            GatedBlock(width, SIZES["readout_size"] // 2, dropout) for _ in range(SIZES["readout_blocks"])
        )
        body.leak = config.leak
        return body

    def run(self, x_BTD, carried):
        body = self.body
        G, M, _ = body.weight.shape
        drive_TGBM = (x_BTD @ body.input_map + body.bias).unflatten(-1, (G, M)).permute(1, 2, 0, 3)
        state_GBM = torch.zeros(G, len(x_BTD), M) if carried is None else carried
        states = []
        for drive_GBM in drive_TGBM.unbind():
            state_GBM = torch.lerp(state_GBM, torch.baddbmm(drive_GBM, state_GBM, body.weight.mT).tanh(), body.leak)
            states.append(state_GBM)
        states_BTN = torch.stack(states).permute(2, 0, 1, 3).flatten(2)
        x_BTD = x_BTD + body.projection(self.dropout(F.layer_norm(states_BTN, (G * M,))))
        for block in body.readout:
            x_BTD = block(x_BTD)
        return x_BTD, state_GBM.detach()


RIVALS = {"reservoir trained through time": Echo, "RWKV": Rwkv, "GRU": Gru, "Llama": Llama}


def trained_weights(model: nn.Module) -> int:
    return sum(weight.numel() for weight in model.parameters() if weight.requires_grad)


def new_model(name: str, V: int, codes_VC: torch.Tensor, end: int, dropout: float, seed: int, width: int) -> nn.Module:
    return (RIVALS | {"reservoir": Frozen})[name](V, width, codes_VC, end, dropout, seed)


def width_of(name: str, V: int) -> int:
    """The width, a multiple of 16, that gives a rival about as many trained weights as the reservoir has."""
    codes_VC = torch.ones(V, CODES)
    wanted = trained_weights(new_model("reservoir", V, codes_VC, 0, 0.1, 0, 0))
    if name == "reservoir":
        return 0
    low, high = 32, 512
    while high - low > 16:
        middle = (low + high) // 32 * 16
        enough = trained_weights(new_model(name, V, codes_VC, 0, 0.1, 0, middle)) >= wanted
        low, high = (low, middle) if enough else (middle, high)
    return low


# ---- one run


@dataclasses.dataclass(frozen=True)
class Run:
    data: str
    model: str
    seconds: int
    seed: int
    rate: float
    dropout: float

    @property
    def file(self) -> str:
        return f"{self.data}-{self.model}-{self.seconds}s-seed{self.seed}-{self.rate:g}-{self.dropout:g}.json".replace(
            " ", "_"
        )


def spend(run: Run, texts: Texts, width: int) -> dict:
    """From texts to a finished model within the budget, then the test, which the clock does not see."""
    begin = time.process_time()
    tokenizer, _ = data.train_tokenizer(texts.train)
    V, end, bytes_V = len(tokenizer), tokenizer.eos_token_id, data.token_bytes(tokenizer)
    train, dev = data.tokens_of(texts.train, tokenizer), data.tokens_of(texts.dev, tokenizer)
    dev = dev[: max(DEV_TOKENS, int(np.argmax(dev == end)) + 1)]
    counts, _ = evaluation.fit_counts(train, dev, V, end)
    codes_VC = data.cooccurrence_codes(train, V, CODES, run.seed)
    model = new_model(run.model, V, codes_VC, end, run.dropout, run.seed, width)
    steps = batches(model, train, end, run.seed)
    prepared = time.process_time() - begin
    deadline = begin + run.seconds - seconds_to_read(model, dev, end)
    count, loss = learn(model, steps, run.rate, deadline)
    dev_P = probabilities(model, dev, end)
    weight, cache, nats = evaluation.best_mixture(dev_P, counts, dev)
    spent = time.process_time() - begin
    test = data.tokens_of(texts.test, tokenizer)
    test_P, counted_P = probabilities(model, test, end), counts.with_cache(test, cache)
    best_cache = evaluation.best_mixture(np.ones(len(dev)), counts, dev, weights=(1.0,))[1]
    streams = {
        "mixture": (1 - weight) * test_P + weight * counted_P,
        "alone": test_P,
        "counts": counts.with_cache(test, best_cache),
    }
    scores = {name: evaluation.Score.of(each_P, test, bytes_V, end) for name, each_P in streams.items()}
    return dataclasses.asdict(run) | {
        "dev": nats / math.log(2) / int(bytes_V[dev].sum()),
        "test": {name: round(score.bits_per_byte, 5) for name, score in scores.items()},
        "text_nats": {name: [round(nats, 3) for nats in score.nats_S.tolist()] for name, score in scores.items()},
        "text_bytes": scores["mixture"].bytes_S.tolist(),
        "weight": weight,
        "cache": cache,
        "order": len(counts.levels),
        "vocab_size": V,
        "trained": trained_weights(model),
        "steps": count,
        "last_loss": loss,
        "prepared_seconds": round(prepared, 1),
        "spent_seconds": round(spent, 1),
        "commit": provenance.code()["commit"],
    }


def counted(texts: Texts) -> dict:
    """Counting alone with the vocabulary that dev prefers: it has no readout that a large one would slow down."""
    begin, tried = time.process_time(), []
    for size in VOCABULARIES:
        tokenizer, _ = data.train_tokenizer(texts.train, size)
        V, end, bytes_V = len(tokenizer), tokenizer.eos_token_id, data.token_bytes(tokenizer)
        train, dev = data.tokens_of(texts.train, tokenizer), data.tokens_of(texts.dev, tokenizer)
        counts, cache = evaluation.fit_counts(train, dev, V, end)
        scored = evaluation.Score.of(counts.with_cache(dev, cache), dev, bytes_V, end)
        tried.append((scored.bits_per_byte, V, counts, cache, tokenizer))
    _, V, counts, cache, tokenizer = min(tried, key=lambda each: each[0])
    spent, test = time.process_time() - begin, data.tokens_of(texts.test, tokenizer)
    score = evaluation.Score.of(
        counts.with_cache(test, cache), test, data.token_bytes(tokenizer), tokenizer.eos_token_id
    )
    return {
        "vocab_size": V,
        "order": len(counts.levels),
        "cache": cache,
        "dev": {str(size): round(dev, 4) for dev, size, *_ in tried},
        "test": round(score.bits_per_byte, 5),
        "text_nats": [round(nats, 3) for nats in score.nats_S.tolist()],
        "spent_seconds": round(spent, 1),
    }


def batches(model: nn.Module, tokens: np.ndarray, end: int, seed: int):
    """Blocks [B, T], labels and the state before them, without end."""
    if model.shuffled:
        yield from with_states(model, data.TokenBlocks(tokens, end, BLOCK), np.random.default_rng(seed))
    length = len(tokens) // BATCH
    rows_BL = torch.from_numpy(tokens[: BATCH * length].reshape(BATCH, length).astype(np.int64))
    while True:
        for place in range(0, length - BLOCK, BLOCK - 1):
            ids_BT = rows_BL[:, place : place + BLOCK]
            yield ids_BT, ids_BT, "carry" if place else None


def with_states(model: nn.Module, blocks: data.TokenBlocks, random_state: np.random.Generator):
    """Batches of blocks with the clean state before each. A block of every row is read at a time, when it is needed."""
    rows = np.array(blocks.rows)
    first_R, length_R = np.searchsorted(rows, np.arange(rows[-1] + 1)), np.bincount(rows)
    while True:
        state_RS = torch.zeros(len(first_R), model.state_size)
        for step in range(length_R.max()):
            place_R = first_R + np.minimum(step, length_R - 1)
            order = random_state.permutation(np.flatnonzero(step < length_R))
            for at in range(0, len(order) - BATCH + 1, BATCH):
                some = [blocks[place_R[row]] for row in order[at : at + BATCH]]
                ids_BT, labels_BT = (torch.stack([each[key] for each in some]) for key in ("input_ids", "labels"))
                yield ids_BT, labels_BT, state_RS[order[at : at + BATCH]]
            model.eval()
            ids_RT = torch.from_numpy(blocks.ids_BT[place_R, :-1].astype(np.int64))
            with torch.no_grad():
                state_RS = model.read(ids_RT, state_RS)[-1]
            model.train()


def learn(model: nn.Module, steps, rate: float, deadline: float) -> tuple[int, float]:
    """AdamW until the deadline, at a rate that rises over 5 % of the time and then falls to zero with it."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    model.train()
    first, carried, count, losses = time.process_time(), None, 0, []
    for ids_BT, labels_BT, state in steps:
        done = (time.process_time() - first) / max(deadline - first, 1e-9)
        if done >= 1:
            break
        for group in optimizer.param_groups:
            group["lr"] = rate * min(done / WARM_UP, (1 - done) / (1 - WARM_UP)) if count else rate * WARM_UP
        loss, carried = model(ids_BT, labels_BT, carried if isinstance(state, str) else state)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        count += 1
        losses.append(loss.item())
    return count, sum(losses[-10:]) / max(1, len(losses[-10:]))


@torch.no_grad()
def probabilities(model: nn.Module, tokens: np.ndarray, end: int, most: int = 10**9) -> np.ndarray:
    """P of each token of a stream of texts after those before it [P]: states are carried, attention sees half a block or more."""
    model.eval()
    blocks = (in_windows if isinstance(model, Llama) else side_by_side)(model, tokens, end)
    found_P = np.zeros(len(tokens))
    for places, counts, ids_BT, logits_BTV, first in itertools.islice(blocks, most):
        p_BT = logits_BTV.log_softmax(-1).gather(-1, ids_BT[:, 1:, None]).squeeze(-1).exp().numpy()
        for place, count, p_T in zip(places, counts, p_BT, strict=True):
            found_P[place + first : place + count] = p_T[first:count]
    return found_P


def side_by_side(model: nn.Module, tokens: np.ndarray, end: int):
    """Rows of the stream from the beginning of a text on, block by block; the state is carried."""
    blocks = data.TokenBlocks(tokens, end, BLOCK)
    rows, carried = np.array(blocks.rows), None
    first_R, length_R = np.searchsorted(rows, np.arange(rows[-1] + 1)), np.bincount(rows)

    for step in range(length_R.max()):
        place_R = first_R + np.minimum(step, length_R - 1)
        counts_R = np.where(step < length_R, blocks.sizes[place_R] - 1, 0)  # a row that is over predicts nothing
        ids_RT = torch.from_numpy(blocks.ids_BT[place_R].astype(np.int64))
        logits_RTV, carried = model.logits(ids_RT[:, :-1], carried)
        yield np.array(blocks.starts)[place_R], counts_R, ids_RT, logits_RTV, 0


def in_windows(model: Llama, tokens: np.ndarray, end: int):
    """Windows that overlap by half, of which the second half counts, and of the first window all."""
    stream = np.concatenate((np.full(LINE, end), [end], tokens)).astype(np.int64)
    half = (BLOCK - 1) // 2
    starts = [*range(0, len(tokens) - half, half)]
    stream = np.concatenate((stream, np.full(BLOCK, end)))
    for at in range(0, len(starts), BATCH):
        some = starts[at : at + BATCH]
        windows_BS = torch.from_numpy(np.stack([stream[place : place + LINE + BLOCK] for place in some]))
        before_BW, ids_BT = windows_BS[:, :LINE], windows_BS[:, LINE:]
        line_BW = model.read(before_BW, torch.zeros(len(some), LINE))[0]
        logits_BTV = model.logits(ids_BT[:, :-1], line_BW)[0]
        counts = [min(BLOCK - 1, len(tokens) - place) for place in some]
        if at == 0:
            yield some[:1], counts[:1], ids_BT[:1], logits_BTV[:1], 0
        yield some[at == 0 :], counts[at == 0 :], ids_BT[at == 0 :], logits_BTV[at == 0 :], half


def seconds_to_read(model: nn.Module, tokens: np.ndarray, end: int) -> float:
    """What `probabilities` of all tokens will take, from its second step."""
    probabilities(model, tokens, end, most=1)
    begin = time.process_time()
    probabilities(model, tokens, end, most=1)
    each = time.process_time() - begin
    if isinstance(model, Llama):
        return each * len(tokens) / (BATCH * BLOCK // 2)
    return each * np.bincount(data.TokenBlocks(tokens, end, BLOCK).rows).max()


# ---- all runs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", default="", help="NAME=FILE[,FILE]: .txt, .jsonl, .parquet, or a .deb of manual pages"
    )
    parser.add_argument("--seconds", type=int, nargs="+", default=[60], help="budgets")
    parser.add_argument("--models", nargs="+", choices=RATES, default=[*RATES])
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--settings-of", default="", help="the name whose trials at 60 s chose; default: this data")
    parser.add_argument("--folder", type=Path, default=ROOT / "outputs/reservoir_benchmark")
    parser.add_argument("--minutes", type=float, default=1e9, help="no run begins after so many")
    parser.add_argument(
        "--write", action="store_true", help="write docs/results from all runs of the folder, and run none"
    )
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    if arguments.write:
        write(arguments.folder)
        return
    torch.set_num_threads(1)
    name, _, files = arguments.data.partition("=")
    texts = read(name, [Path(file) for file in files.split(",")])
    (arguments.folder / f"{name}.data").write_text(
        json.dumps(
            {"files": texts.files, "texts": {part: len(getattr(texts, part)) for part in ("train", "dev", "test")}}
        )
    )
    counting = arguments.folder / f"{name}.counting"
    if not counting.exists():
        counting.write_text(json.dumps(counted(texts)))
    V = len(data.train_tokenizer(texts.train)[0])
    until = time.monotonic() + 60 * arguments.minutes
    for run in planned(arguments, name):
        file = arguments.folder / run.file
        if file.exists():
            continue
        if time.monotonic() > until:
            return
        claim = file.with_suffix(".claim")
        try:
            claim.touch(exist_ok=False)  # a second process may do other runs
        except FileExistsError:
            continue
        try:
            found = spend(run, texts, width_of(run.model, V))
            file.write_text(json.dumps(found))
            print(
                f"{run.file}: {found['test']} dev {found['dev']:.4f}, {found['steps']} steps, w {found['weight']}",
                flush=True,
            )
        finally:
            claim.unlink()


def planned(arguments: argparse.Namespace, name: str):
    """Runs in order of worth: all seeds at the first rate, trials on seed 0, then all seeds with what dev chose."""
    chosen_from = arguments.settings_of or name
    if not arguments.settings_of:
        for seed in SEEDS[: arguments.seeds]:
            for model in arguments.models:
                yield Run(name, model, 60, seed, RATES[model][0], DROPOUTS[0])
        for model in arguments.models:
            for rate in RATES[model][1:]:
                yield Run(name, model, 60, 0, rate, DROPOUTS[0])
            rate, _ = chosen(arguments.folder, chosen_from, model)
            yield Run(name, model, 60, 0, rate, DROPOUTS[1])
    for seconds in arguments.seconds:
        for seed in SEEDS[: arguments.seeds]:
            for model in arguments.models:
                yield Run(name, model, seconds, seed, *chosen(arguments.folder, chosen_from, model))


def chosen(folder: Path, name: str, model: str) -> tuple[float, float]:
    """Learning rate and dropout that dev prefers among the trials: seed 0 and 60 seconds."""
    runs = [json.loads(path.read_text()) for path in folder.glob(f"{name}-{model.replace(' ', '_')}-60s-seed0-*.json")]
    if not runs:
        raise SystemExit(f"--settings-of {name}: no trial of {model} in {folder}; run that data first")
    best = min(runs, key=lambda run: run["dev"])
    return best["rate"], best["dropout"]


def write(folder: Path) -> None:
    """All runs, and for each data, budget and model what it has on the test beside the reservoir, paired over texts."""
    runs = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    found = {}
    for path in sorted(folder.glob("*.data")):
        name = path.stem
        own = [run for run in runs if run["data"] == name]
        settings = {model: chosen(folder, name, model) for model in {run["model"] for run in own}}
        kept = [run for run in own if (run["rate"], run["dropout"]) == settings[run["model"]]]
        rows = [
            row(some, kept) for _, some in itertools.groupby(sorted(kept, key=place), key=lambda run: place(run)[:2])
        ]
        best = json.loads(path.with_suffix(".counting").read_text())
        mean_S = np.mean([run["text_nats"]["mixture"] for run in by_seed(kept, 60).values()], axis=0)
        best["above_reservoir"] = above(np.array(best.pop("text_nats")), mean_S)
        found[name] = json.loads(path.read_text()) | {"rows": rows, "counting": best, "trials": trials(own)}
    report.write(
        OUTPUT, report.machine("cpu", ("torch", "transformers")), train=TRAIN, block=BLOCK, batch=BATCH, data=found
    )


def place(run: dict) -> tuple:
    return run["seconds"], run["model"], run["seed"]


def row(some, kept: list[dict]) -> dict:
    """Mean and seeds of one model at one budget, and how many bits it has more than the reservoir's mixture, with 95 %."""
    runs = list(some)
    first = by_seed(kept, runs[0]["seconds"])
    found = {key: runs[0][key] for key in ("model", "seconds", "rate", "dropout", "trained", "vocab_size", "order")}
    found |= {
        key: [run[key] for run in runs]
        for key in ("seed", "steps", "spent_seconds", "prepared_seconds", "weight", "dev")
    }
    found["commits"] = sorted({run.get("commit", "before runs kept it") for run in runs})
    found["test"] = {part: [run["test"][part] for run in runs] for part in runs[0]["test"]}
    for part in ("mixture", "alone", "counts"):
        pairs = [(run, first[run["seed"]]) for run in runs if run["seed"] in first]
        if pairs:
            found[f"{part}_above_reservoir"] = above(
                np.mean([run["text_nats"][part] for run, _ in pairs], axis=0),
                np.mean([ours["text_nats"]["mixture"] for _, ours in pairs], axis=0),
            )
    return found


def by_seed(kept: list[dict], seconds: int) -> dict[int, dict]:
    """The reservoir's run of each seed at this budget."""
    return {run["seed"]: run for run in kept if (run["model"], run["seconds"]) == ("reservoir", seconds)}


def above(theirs_S: np.ndarray, ours_S: np.ndarray) -> list[float]:
    """By what share theirs are higher, and a 95 % interval: bootstrap over the test texts, mean over the seeds."""
    drawn = np.random.default_rng(0).integers(0, len(ours_S), size=(2000, len(ours_S)))
    low, high = np.percentile(theirs_S[drawn].sum(1) / ours_S[drawn].sum(1) - 1, (2.5, 97.5))
    return [round(float(each), 5) for each in (theirs_S.sum() / ours_S.sum() - 1, low, high)]


def trials(own: list[dict]) -> dict[str, dict[str, float]]:
    """Bits per byte on dev of each setting that was tried with seed 0."""
    found = {}
    for run in own:
        if run["seed"] == 0 and run["seconds"] == 60:
            found.setdefault(run["model"], {})[f"rate {run['rate']:g}, dropout {run['dropout']:g}"] = round(
                run["dev"], 4
            )
    return found


if __name__ == "__main__":
    main()
