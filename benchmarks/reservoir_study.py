"""What the reservoir language model owes to each of its parts, beside other models of as many trained weights.

    python benchmarks/reservoir_study.py --data stories.txt                      # all rows, three seeds: hours on 2 cores
    python benchmarks/reservoir_study.py --data stories.txt --only 'Llama*'      # some rows; a second process may do others
    python benchmarks/reservoir_study.py --data stories.txt --size full
    python benchmarks/reservoir_study.py --data a.txt b.txt --stories 3400 --steps 1000 --only 'reservoirs,RWKV,Llama' \
        --rates-from docs/results/reservoir_study_cpu.json --output docs/results/reservoir_study_long_cpu.json

Stories are drawn once, whatever the seed: so many to train on, 300 of dev and 300 of test. Every row has the same tokens and
steps. A row with several learning rates tries them with seed 0; dev chooses one, the checkpoint and nothing else. Then
the seeds 1 and 2 run with it. `--rates-from` takes the rates that a shorter study chose, and tries no others. The test stories are read
once, when a run is over. Each run is a file in `--folder`, with its model beside it: what was cut off goes on there, and the results are
written to docs/results whenever a run ends.

Every model predicts every token of the test text but the first. Reservoirs carry their state, or begin each block from
nothing; attention and RWKV see windows that overlap by half, of which the second half counts. Intervals are of 95 %, from
1,000 bootstrap samples of the test stories, paired with the first row and taken as the mean over the seeds.
"""

from __future__ import annotations

import argparse
import dataclasses
import fnmatch
import json
import math
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel, RwkvConfig, RwkvForCausalLM
from transformers.modeling_outputs import CausalLMOutput

from helpers import plan as planner
from helpers import runtime as runtimes
from helpers.reservoir import experiment
from helpers.reservoir.baselines import KneserNey
from helpers.reservoir.blocks import TokenBlocks, states_before
from helpers.reservoir.codes import cooccurrence_codes
from helpers.reservoir.model import EMBEDDING_STD, ReservoirForCausalLM, begin_at_codes
from helpers.reservoir.parameters import ReservoirParameters, recipe
from helpers.reservoir.ridge import fit_readout
from helpers.reservoir.stories import END_OF_TEXT, load_stories
from helpers.reservoir.tokens import load_tokenizer, token_bytes, tokens_of
from helpers.reservoir.transformer import equal_transformer
from helpers.reservoir.workload import workload

# N blocks · T tokens of a block · V vocabulary · C numbers of a code · P predicted tokens · S stories

ROOT = Path(__file__).resolve().parents[1]
HELD_OUT = 300  # stories of dev, and of test
SEEDS = (0, 1, 2)
BOOTSTRAP = 1_000
POSITIONS = (0, 16, 32, 64, 128, 256)  # tokens of the story that were seen
BLOCK, LONG_BLOCK, STEP_TOKENS = 128, 512, 2048
RATES, OTHER_RATES = (3e-3, 6e-3, 1.2e-2), (0.75e-3, 1.5e-3, 3e-3)  # three each
RIDGES = (1.0, 10.0, 100.0, 1_000.0, 10_000.0)
CACHE_SHARES = (0.0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3)
SIZES = {
    "small": {"vocab_size": 2048, "input_codes": 192, "embedding_size": 192, "readout_blocks": 2, "readout_size": 512},
    "full": {"vocab_size": 8192},
}
STEPS = {"small": 250, "full": 1000}
FIRST = "reservoirs"  # the notebook's default, which all others are compared with


@dataclasses.dataclass(frozen=True)
class Row:
    """One model: what differs from the notebook's defaults, and how it is trained and read."""

    kind: str = "reservoir"  # or llama, gru, rwkv, ridge, counts
    changes: dict = dataclasses.field(default_factory=dict)  # of ReservoirParameters
    rates: tuple[float, ...] = ()  # empty: that of the first row; 0 where nothing is trained
    carry: bool = True  # the state over the border of a block, in training and in test
    train_carry: bool = True
    codes: bool = True  # an embedding that begins at the codes
    block: int = BLOCK


ROWS = {
    FIRST: Row(rates=RATES),
    "each block from nothing": Row(carry=False),
    "trained from nothing, tested with the state": Row(train_carry=False),
    "no reset at the end of a text": Row(changes={"reset_at_end": False}),
    "delay line, tanh and linear": Row(
        changes={"reservoirs": "delay:128 delays:8 + tanh:1024 blocks:8 leak:0.5 + linear:512"}
    ),
    "linear alone": Row(changes={"reservoirs": "linear:1536"}),
    "delay line alone": Row(changes={"reservoirs": "delay:128 delays:24"}),
    "delay line with products": Row(changes={"reservoirs": "delay:128 delays:8 quadratic:2048"}),
    "two layers of tanh": Row(changes={"reservoirs": "tanh:1536 blocks:12 leak:0.5 | tanh:1536 blocks:12 leak:0.5"}),
    "attention readout": Row(changes={"attention_heads": 2}),
    "without recall": Row(changes={"recall_tokens": 0}),
    "without codes": Row(changes={"input_codes": 0}, codes=False),
    "Llama": Row("llama", rates=OTHER_RATES),
    "Llama, blocks of 512": Row("llama", rates=OTHER_RATES, block=LONG_BLOCK),
    "Llama without codes": Row("llama", rates=OTHER_RATES, codes=False),
    "GRU": Row("gru", rates=RATES),
    "RWKV": Row("rwkv", rates=RATES),
    "ridge readout, all tokens": Row("ridge", rates=(0.0,)),
    "Kneser-Ney with a cache": Row("counts", rates=(0.0,)),
}


@dataclasses.dataclass(frozen=True)
class Texts:
    """The tokens of the three parts, and the bytes of each token."""

    corpus: experiment.Corpus  # its validation is dev
    test: np.ndarray
    bytes_V: np.ndarray


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", required=True, nargs="+", help="files of stories, each as the notebook's `data_source`"
    )
    parser.add_argument("--stories", type=int, default=2_000, help="to train on")
    parser.add_argument("--size", choices=SIZES, default="small")
    parser.add_argument("--steps", type=int, help=f"of a run; default {STEPS}, by size")
    parser.add_argument("--only", default="*", help="rows, as patterns with commas between them")
    parser.add_argument("--rates-from", type=Path, help="results of another study, whose learning rates are taken")
    parser.add_argument("--seeds", type=int, default=len(SEEDS), help="how many")
    parser.add_argument("--folder", type=Path, help="of the runs; default outputs/reservoir_study_SIZE_STORIES_STEPS")
    parser.add_argument("--output", type=Path, default=ROOT / "docs/results/reservoir_study_cpu.json")
    arguments = parser.parse_args()
    arguments.steps = arguments.steps or STEPS[arguments.size]
    names = [name for name in ROWS if any(fnmatch.fnmatch(name, each) for each in arguments.only.split(","))]
    if not names:
        parser.error(f"--only {arguments.only!r}: no such row; there are {', '.join(ROWS)}")
    folder = arguments.folder or run_folder(arguments)
    known = json.loads(arguments.rates_from.read_text())["rows"] if arguments.rates_from else {}
    texts = read(joined(arguments.data, folder), arguments.stories, SIZES[arguments.size]["vocab_size"])
    machine = report.machine("cpu", ("torch", "transformers"))
    for seed in SEEDS[: arguments.seeds]:
        for name in names:
            row = ROWS[name]
            if row.kind == "counts" and seed:
                continue  # nothing is drawn
            if known:
                rates = (known[name]["rate"] or 0.0,)
            elif row.rates and seed == 0:
                rates = row.rates
            else:
                rates = (chosen_rate(folder, name if row.rates else FIRST),)
            for rate in rates:
                path = run_path(folder, name, seed, rate)
                if not path.exists():
                    found = run(row, texts, arguments, seed, rate, path.with_suffix(""))
                    partial = path.with_suffix(".partial")
                    partial.parent.mkdir(parents=True, exist_ok=True)
                    partial.write_text(json.dumps(found))
                    partial.replace(path)
                    shutil.rmtree(path.with_suffix(""), ignore_errors=True)  # its checkpoints
                    print(f"{name}, seed {seed}, rate {rate:g}: dev {found['dev']:.4f}", flush=True)
                summarise(folder, texts, arguments, machine)


def run_folder(arguments: argparse.Namespace) -> Path:
    return ROOT / f"outputs/reservoir_study_{arguments.size}_{arguments.stories}_{arguments.steps}"


def run_path(folder: Path, name: str, seed: int, rate: float) -> Path:
    return folder / "runs" / f"{name.replace(' ', '_')}-seed{seed}-rate{rate:g}.json"


def tried(folder: Path, name: str, seed: int) -> dict[float, dict]:
    """The finished runs of a row and seed, by learning rate."""
    rates = ROWS[name].rates or ROWS[FIRST].rates
    paths = {rate: run_path(folder, name, seed, rate) for rate in rates}
    return {rate: json.loads(path.read_text()) for rate, path in paths.items() if path.exists()}


def chosen_rate(folder: Path, name: str) -> float:
    """The learning rate that dev prefers with seed 0."""
    found = tried(folder, name, 0)
    if len(found) < len(ROWS[name].rates):
        raise SystemExit(f"{name}: run its seed 0 first (--only {name!r}); the rate is chosen there")
    return min(found, key=lambda rate: found[rate]["dev"])


def joined(files: list[str], folder: Path) -> str:
    """One file of the stories of all."""
    if len(files) == 1:
        return files[0]
    parts = [load_stories(file, num_stories=0, seed=0) for file in files]
    path = folder / "data" / "stories.txt"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(END_OF_TEXT.join(story for part in parts for story in (*part.train, *part.validation)), "utf-8")
    return str(path)


def read(data: str, stories: int, vocab_size: int) -> Texts:
    splits = load_stories(data, num_stories=0, seed=0)
    shuffled = [*splits.train, *splits.validation]
    if len(shuffled) < stories + 2 * HELD_OUT:
        raise SystemExit(
            f"--stories {stories}: {data} has {len(shuffled)} different ones, dev and test take {HELD_OUT} each"
        )
    test, dev, train = (shuffled[:HELD_OUT], shuffled[HELD_OUT : 2 * HELD_OUT], shuffled[2 * HELD_OUT :][:stories])
    tokenizer, _ = load_tokenizer("train", train, vocab_size)
    train, dev, test = (tokens_of(part, tokenizer) for part in (train, dev, test))
    return Texts(experiment.Corpus(train, dev, tokenizer), test, token_bytes(tokenizer))


# ---- one run


def run(row: Row, texts: Texts, arguments: argparse.Namespace, seed: int, rate: float, folder: Path) -> dict:
    """Trains, chooses by dev, keeps the model, and reads the test stories once."""
    begin = time.process_time()
    if row.kind == "counts":
        dev, test = counted(texts, texts.corpus.validation), None
        share = min(dev, key=lambda share: dev[share].mean())
        test = counted(texts, texts.test)[share]
        return {"dev": bits_per_byte(dev[share], texts.corpus.validation, texts.bytes_V), "share": share} | tested(
            test, texts
        )
    changes = SIZES[arguments.size] | row.changes | {"learning_rate": rate, "seed": seed}
    reset = changes.pop("reset_at_end", True)
    defaults = {name: field.default for name, field in ReservoirParameters.model_fields.items()}
    fixed = {
        "data_source": "sample",
        "output_dir": str(folder),
        "max_steps": arguments.steps,
        "eval_steps": max(1, arguments.steps // 5),
        "save_steps": min(50, arguments.steps),
        "patience": 0,
        "report_to": "none",
    }
    params = ReservoirParameters(**defaults | fixed | changes)
    corpus = texts.corpus
    model = experiment.new_model(params, corpus)
    model.config.reset_at_end = reset
    trainable = model.parameter_counts()["trainable"]
    if row.kind == "ridge":
        return closed_form(model, texts, begin)
    if row.kind != "reservoir":
        model = other_model(row, corpus, trainable, seed, params.input_codes)
    machine = runtimes.detect(False, "fp32")
    plan = planner.plan(
        recipe(row.block, len(corpus.train)),
        workload(model, row.kind, row.block),
        machine,
        batch_size=STEP_TOKENS // row.block,
        learning_rate=rate,
        max_steps=params.max_steps,
    )
    trainer = experiment.new_trainer(model, corpus, params, plan, machine, folder)
    trainer.pop_callback(experiment.StoryAtEvaluation)
    if row.kind == "reservoir" and not (row.carry and row.train_carry):
        trainer.train_dataset.states_BS = None
        if not row.carry:
            trainer.eval_dataset.states_BS = None
    prepared = time.process_time()
    trainer.train(resume_from_checkpoint=True)
    trained = time.process_time()
    trainer.model.save_pretrained(folder.parents[1] / "models" / folder.name)
    dev = bits_per_byte(nats(trainer.model, row, corpus.validation), corpus.validation, texts.bytes_V)
    curve = [
        {"step": entry["step"], "seconds": entry["training_seconds"], "loss": entry["eval_loss"]}
        for entry in trainer.state.log_history
        if "eval_loss" in entry
    ]
    return {
        "dev": dev,
        "trainable": sum(p.numel() for p in trainer.model.parameters() if p.requires_grad),
        "best_step": trainer.state.best_global_step,
        "preparing_cpu_seconds": round(prepared - begin, 1),
        "training_cpu_seconds": round(trained - prepared, 1),
        "curve": curve,
    } | tested(nats(trainer.model, row, texts.test), texts)


def other_model(row: Row, corpus: experiment.Corpus, trainable: int, seed: int, code_size: int) -> PreTrainedModel:
    """A Llama, RWKV or GRU of about as many trained weights, its embedding begun at the same codes."""
    V, end = len(corpus.tokenizer), corpus.tokenizer.eos_token_id
    if row.kind == "llama":
        model = equal_transformer(V, trainable, row.block, seed=seed, eos_token_id=end)
    else:
        torch.manual_seed(seed)
        model = equal_rwkv(V, trainable, end) if row.kind == "rwkv" else GRU(GRUConfig(V, equal_width(V, trainable)))
    if row.codes:
        codes_VC = cooccurrence_codes(corpus.train, V, code_size, seed)
        begin_at_codes(model.get_input_embeddings().weight, codes_VC, torch.Generator().manual_seed(seed))
    return model


class GRUConfig(PretrainedConfig):
    model_type = "study_gru"

    def __init__(self, vocab_size: int = 2048, width: int = 192, **kwargs):
        self.vocab_size, self.width = vocab_size, width
        super().__init__(**{"tie_word_embeddings": True} | kwargs)


class GRU(PreTrainedModel):
    """Two layers of a gated recurrent unit (Cho et al. 2014), trained through the time of a block; tied embedding."""

    config_class = GRUConfig
    _tied_weights_keys = {"head.weight": "embedding.weight"}  # noqa: RUF012  as transformers names it

    def __init__(self, config: GRUConfig):
        super().__init__(config)
        self.embedding = nn.Embedding(config.vocab_size, config.width)
        self.recurrent = nn.GRU(config.width, config.width, num_layers=2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embedding

    def get_output_embeddings(self) -> nn.Linear:
        return self.head

    def forward(self, input_ids, labels=None, num_items_in_batch=None, **kwargs) -> CausalLMOutput:
        x_BTD = nn.functional.rms_norm(self.embedding(input_ids), (self.config.width,))
        logits_BTV = self.head(self.recurrent(x_BTD)[0])
        loss = None
        if labels is not None:
            loss = self.loss_function(
                logits_BTV, labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
        return CausalLMOutput(loss=loss, logits=logits_BTV)


def equal_width(vocab_size: int, trainable: int) -> int:
    """D of a GRU with V (D + 1) + 12 D² + 12 D weights, about `trainable`."""
    linear = vocab_size + 12
    return round((math.sqrt(linear**2 + 48 * (trainable - vocab_size)) - linear) / 24)


def equal_rwkv(vocab_size: int, trainable: int, end: int) -> RwkvForCausalLM:
    """Three layers of RWKV-4 (Peng et al., arXiv 2305.13048) with tied embeddings, in width steps of 4."""

    def config(width: int) -> RwkvConfig:
        shape = {"hidden_size": width, "attention_hidden_size": width, "intermediate_size": 2 * width}
        ends = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end}
        size = {"vocab_size": vocab_size, "num_hidden_layers": 3, "context_length": BLOCK}
        return RwkvConfig(**shape, **ends, **size, tie_word_embeddings=True, use_cache=False)

    def weights(width: int) -> int:
        with torch.device("meta"):
            return RwkvForCausalLM(config(width)).num_parameters()

    return RwkvForCausalLM(config(min(range(32, 1024, 4), key=lambda width: abs(weights(width) - trainable))))


# ---- bits per byte of every token but the first


def usable(tokens: np.ndarray) -> int:
    """P, the predicted tokens: whole blocks of any length that a row has."""
    return (len(tokens) - 1) // LONG_BLOCK * LONG_BLOCK


@torch.no_grad()
def nats(model: PreTrainedModel, row: Row, tokens: np.ndarray) -> np.ndarray:
    """Nats of the tokens 1, 2, ... of a text [P]."""
    model.eval()
    T, count, found = row.block, usable(tokens), []
    stride = T // 2 if row.kind in ("llama", "rwkv") else T
    blocks = TokenBlocks(tokens[:count], T)
    states_NS = states_before(model, blocks) if row.kind == "reservoir" and row.carry else None
    starts = range(0, count - T + 1, stride)
    for first in range(0, len(starts), 16):
        places = starts[first : first + 16]
        ids_BT = torch.from_numpy(np.stack([tokens[p : p + T + 1] for p in places]).astype(np.int64))
        carried = {}
        if states_NS is not None:
            carried["state"] = torch.from_numpy(np.array(states_NS[first : first + 16]))
        logits_BTV = model(input_ids=ids_BT[:, :-1], **carried).logits.float()
        each_BT = nn.functional.cross_entropy(logits_BTV.transpose(1, 2), ids_BT[:, 1:], reduction="none").numpy()
        found += [each if place == 0 else each[T - stride :] for place, each in zip(places, each_BT, strict=True)]
    found = np.concatenate(found)
    assert len(found) == count
    return found


def bits_per_byte(nats_P: np.ndarray, tokens: np.ndarray, bytes_V: np.ndarray) -> float:
    return float(nats_P.sum() / math.log(2) / bytes_V[tokens[1 : len(nats_P) + 1]].sum())


def tested(nats_P: np.ndarray, texts: Texts) -> dict:
    """Bits per byte of the test, sums a story [nats, bytes], and sums by tokens of the story seen before."""
    targets_P = texts.test[1 : len(nats_P) + 1].astype(np.int64)
    before_P = texts.test[: len(nats_P)] == texts.corpus.tokenizer.eos_token_id  # the next token begins a story
    story_P = np.cumsum(before_P)
    begin_P = np.maximum.accumulate(np.where(before_P, np.arange(len(nats_P)), -1))
    seen_P = np.arange(len(nats_P)) - begin_P
    bytes_P = texts.bytes_V[targets_P]
    place_P = np.searchsorted(POSITIONS, seen_P, side="right") - 1
    sums = lambda index: np.stack([np.bincount(index, nats_P), np.bincount(index, bytes_P)], axis=1).tolist()  # noqa: E731
    return {
        "test": bits_per_byte(nats_P, texts.test, texts.bytes_V),
        "stories": sums(story_P),
        "positions": dict(zip(map(str, POSITIONS), sums(place_P), strict=False)),
    }


# ---- without gradients


def counted(texts: Texts, tokens: np.ndarray) -> dict[float, np.ndarray]:
    """Kneser-Ney 5-grams (4-grams where V^5 overflows) mixed with the counts of the story so far, by the share of those."""
    V, end = len(texts.corpus.tokenizer), texts.corpus.tokenizer.eos_token_id
    order = 5 if V**5 < 2**63 else 4
    model = KneserNey.fit(texts.corpus.train.astype(np.int64), V, order)
    count, tokens = usable(tokens), tokens.astype(np.int64)
    probability_P = model.of_next(tokens[None, : count + 1])[0]
    cache_P, counts_V, seen = np.zeros(count), np.zeros(V), 0
    for place in range(count):
        counts_V[tokens[place]] += 1
        seen += 1
        if tokens[place] == end:
            counts_V[:], seen = 0, 0
        cache_P[place] = counts_V[tokens[place + 1]] / seen if seen else 0.0
    known_P = cache_P.cumsum() >= 0
    return {
        share: -np.log(np.where(known_P, (1 - share) * probability_P + share * cache_P, 1)) for share in CACHE_SHARES
    }


@torch.no_grad()
def closed_form(model: ReservoirForCausalLM, texts: Texts, begin: float) -> dict:
    """The ridge readout on the features of every training token; what is held out of them chooses λ."""
    model.eval()

    def batches(tokens: np.ndarray) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        blocks = TokenBlocks(tokens, BLOCK)
        states_NS = states_before(model, blocks)
        for first in range(0, len(blocks), 32):
            ids_BT = torch.from_numpy(blocks.ids_BT[first : first + 32].astype(np.int64))
            yield model.features(ids_BT, torch.from_numpy(np.array(states_NS[first : first + 32])))[0][-1], ids_BT

    readout = fit_readout(
        batches(texts.corpus.train), model.reservoirs.features[-1], len(texts.corpus.tokenizer), RIDGES
    )

    def scored(tokens: np.ndarray) -> np.ndarray:
        count, found = usable(tokens), []
        for place, (features_BTF, _) in enumerate(batches(tokens[:count])):
            first = place * 32 * BLOCK
            targets = torch.from_numpy(tokens[first + 1 : first + 1 + features_BTF[..., 0].numel()].astype(np.int64))
            found.append(nn.functional.cross_entropy(readout(features_BTF.flatten(0, 1)), targets, reduction="none"))
        return torch.cat(found).numpy()

    dev = bits_per_byte(scored(texts.corpus.validation), texts.corpus.validation, texts.bytes_V)
    return {
        "dev": dev,
        "ridge": readout.ridge,
        "trainable": readout.weight_FV.numel() + readout.bias_V.numel(),
        "training_cpu_seconds": round(time.process_time() - begin, 1),
    } | tested(scored(texts.test), texts)


# ---- all runs together


def summarise(folder: Path, texts: Texts, arguments: argparse.Namespace, machine: dict) -> None:
    rows = {}
    for name, row in ROWS.items():
        trials = tried(folder, name, 0)
        if not trials or len(trials) < (1 if arguments.rates_from else len(row.rates)):
            continue
        rate = min(trials, key=lambda rate: trials[rate]["dev"])
        runs = [found for seed in SEEDS if (found := tried(folder, name, seed).get(rate))]
        kept = ("trainable", "best_step", "preparing_cpu_seconds", "training_cpu_seconds", "share", "ridge", "curve")
        rows[name] = {
            "rate": rate if "curve" in runs[0] else None,
            "dev_by_rate": {f"{tried_rate:g}": found["dev"] for tried_rate, found in trials.items()},
            "dev": [found["dev"] for found in runs],
            "test": [found["test"] for found in runs],
            "positions": mean_positions(runs),
            "story_sums": [found["stories"] for found in runs],
            **{key: runs[0][key] for key in kept if key in runs[0]},
        }
    for name, found in rows.items():
        if FIRST in rows:
            found["above_first"], found["interval"] = compared(found["story_sums"], rows[FIRST]["story_sums"], name)
    for found in rows.values():
        del found["story_sums"]
    study = {
        "size": arguments.size,
        "steps": arguments.steps,
        "step_tokens": STEP_TOKENS,
        "stories": {"train": arguments.stories, "dev": HELD_OUT, "test": HELD_OUT},
        "tokens": {"train": len(texts.corpus.train), "test_predicted": usable(texts.test)},
        "vocab_size": len(texts.corpus.tokenizer),
        "seeds": arguments.seeds,
    }
    rows = elsewhere(arguments.output, study) | rows
    report.write(arguments.output, machine, **study, rows={name: rows[name] for name in ROWS if name in rows})


def elsewhere(output: Path, study: dict) -> dict[str, dict]:
    """The rows of the same study that are in the results already: this folder may hold the runs of some rows only."""
    known = json.loads(output.read_text()) if output.exists() else {}
    if study != {name: known.get(name) for name in study}:
        return {}
    return {name: {"code": known["code"]} | row for name, row in known["rows"].items()}


def mean_positions(runs: list[dict]) -> dict[str, float]:
    """Bits per byte by tokens of the story seen before, of all seeds together."""
    found = {}
    for place in runs[0]["positions"]:
        total, size = np.sum([run["positions"][place] for run in runs], axis=0)
        found[place] = round(total / size / math.log(2), 4)
    return found


def compared(runs: list, first: list, name: str) -> tuple[float, tuple[float, float]]:
    """How much higher the bits per byte are than the first row's, as a share, and its interval over the stories."""
    seeds = min(len(runs), len(first))
    ours_S2, first_S2 = (np.mean([np.array(each) for each in found[:seeds]], axis=0) for found in (runs, first))
    random = np.random.default_rng(0)
    drawn = random.integers(0, len(ours_S2), size=(BOOTSTRAP, len(ours_S2)))
    ratios = ours_S2[drawn, 0].sum(1) / first_S2[drawn, 0].sum(1) - 1
    low, high = np.percentile(ratios, (2.5, 97.5))
    return float(ours_S2[:, 0].sum() / first_S2[:, 0].sum() - 1), (float(low), float(high))


if __name__ == "__main__":
    main()
