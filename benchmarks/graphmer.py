"""Speed of GraphMER's compact layout, against 1,024 slots and a Python loop per triple in the same run.

    python benchmarks/graphmer.py                  # CPU, about 3 minutes
    python benchmarks/graphmer.py --device cuda    # a GPU

Both sides take the forward and backward pass of the same weights on the same triples, with masked tokens and leaves to predict:
ours with 128 roots and 10 leaves in slots of their own (198 tokens), the peer as the paper lays it out, a leaf of 7 slots at every
root, with shortest paths, a decay matrix a layer, fusion triple after triple, and logits at every position. Prints one line of
JSON a comparison and writes all of them, with the machine, to docs/results.
"""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch

from benchmarks.timing import taking_turns
from helpers.graphmer.modeling_graphmer.configuration_graphmer import GraphMERConfig
from helpers.graphmer.modeling_graphmer.modeling_graphmer import GraphMERForPreTraining

# B batch · S roots · G leaves · L leaf tokens · N tokens · D width · A heads

S, G, L, H = 128, 10, 7, 8
PAD, MASK, END = 0, 1, 2
TOLERANCE = 1e-4  # relative, of two fp32 losses


def main() -> None:
    parser = report.argument_parser(__doc__, repetitions=5)
    parser.add_argument("--batch", type=int, default=4, help="sequences")
    parser.add_argument("--layers", type=int, default=12, help="of the 768-wide model")
    arguments = report.parsed(parser, "graphmer_benchmark")
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    machine = report.machine(device.type, ("torch", "transformers"))
    # The paper's model: no positions, no vector a relation, no bias in attention. All of these change nothing about the work.
    config = GraphMERConfig(
        num_hidden_layers=arguments.layers,
        dropout=0.0,
        relation_dropout=0.0,
        positional_encoding="none",
        leaf_positions=False,
        hgat_relation_bias=False,
        relation_attention_bias=False,
    )
    model = GraphMERForPreTraining(config).to(device).train()
    batch = {name: tensor.to(device) for name, tensor in random_batch(arguments.batch, config).items()}
    results = [
        layouts(model, batch, device, arguments.repetitions),
        fusion(model, batch, device, arguments.repetitions),
    ]
    for result in results:
        print(json.dumps(result), flush=True)
    report.write(arguments.output, machine, repetitions=arguments.repetitions, comparisons=results)


def random_batch(B: int, config: GraphMERConfig) -> dict[str, torch.Tensor]:
    """One document of 128 roots a row with 10 triples at different roots, a fifth of them masked, and 15 % of the roots."""
    draw = torch.Generator().manual_seed(0)
    V, M = config.vocab_size, round(0.15 * S)
    starts = torch.stack([torch.randperm(S - H, generator=draw)[:G] for _ in range(B)])
    lengths = torch.randint(2, L + 1, (B, G, 1), generator=draw)
    slots = torch.arange(L)
    tails = torch.randint(3, V, (B, G, L), generator=draw).masked_fill(slots == lengths - 1, END)
    tails = tails.masked_fill(slots >= lengths, PAD)
    masked = (torch.arange(G) % 5 == 0)[:, None].expand(B, G, L)
    places = torch.stack([torch.randperm(S, generator=draw)[:M] for _ in range(B)])
    roots = torch.randint(3, V, (B, S), generator=draw)
    return {
        "root_ids": roots.scatter(1, places, MASK),
        "root_segments": torch.ones(B, S, dtype=torch.long),
        "root_positions": torch.arange(S).expand(B, S).contiguous(),
        "leaf_ids": torch.where(masked, MASK, tails),
        "leaf_segments": torch.ones(B, G, dtype=torch.long),
        "relation_ids": torch.randint(1, config.num_relations + 1, (B, G), generator=draw),
        "head_start": starts,
        "head_length": torch.randint(1, H + 1, (B, G), generator=draw),
        "mlm_positions": places,
        "mlm_labels": roots.gather(1, places),
        "mnm_labels": torch.where(masked & (tails != PAD), tails, -100),
    }


# ---- ours and the peer


def layouts(model, batch: dict, device: torch.device, repetitions: int) -> dict:
    """Sequences/s are told by positions that hold a token: the same number on both sides."""
    peer = FullLayout(model)
    full = full_batch(batch)
    sides = {"ours": lambda: model(**batch).loss, "peer": lambda: peer.loss(full)}
    losses = {name: float(call().detach()) for name, call in sides.items()}
    if not abs(losses["ours"] / losses["peer"] - 1) < TOLERANCE:
        raise SystemExit(f"no ratio reported: the losses differ, allowed {TOLERANCE:.0e}: {losses}")
    filled = int((batch["root_segments"] > 0).sum() + (batch["leaf_ids"] != PAD).sum())
    times = taking_turns({name: stepping(model, call) for name, call in sides.items()}, device, repetitions)
    medians = {name: statistics.median(values) for name, values in times.items()}
    ratios = [theirs / mine for mine, theirs in zip(times["ours"], times["peer"], strict=True)]
    return {
        "comparison": "forward and backward, fp32, compact layout",
        "sizes": sizes(model, batch)
        | {"positions": S + G * L, "peer_positions": S * (1 + L), "filled_positions": filled},
        "peer": "128 roots x (1 + 7) slots, H-GAT by a Python loop, decay in every layer, logits everywhere; same weights",
        "losses": losses,
        "target_ratio": 5,
        "ratio": round(medians["peer"] / medians["ours"], 2),
        "ratio_range": [round(min(ratios), 2), round(max(ratios), 2)],
        **{f"{name}_filled_positions_per_second": round(filled / value, 1) for name, value in medians.items()},
        **{f"{name}_sequences_per_second": round(len(batch["root_ids"]) / value, 2) for name, value in medians.items()},
        **{f"{name}_seconds": [round(value, 4) for value in sorted(values)] for name, values in times.items()},
    }


def fusion(model, batch: dict, device: torch.device, repetitions: int) -> dict:
    """Time of H-GAT alone, forward and backward with all it reads and writes, as a share of the whole."""
    encoder = model.encoder

    def fuse() -> torch.Tensor:
        roots = encoder.embedding(batch["root_ids"])
        leaves = encoder._leaves(
            batch["leaf_ids"], roots, batch["relation_ids"], batch["head_start"], batch["head_length"]
        )
        return leaves.square().mean()

    sides = {"hgat": stepping(model, fuse), "step": stepping(model, lambda: model(**batch).loss)}
    times = taking_turns(sides, device, repetitions)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "comparison": "share of H-GAT in forward and backward",
        "sizes": sizes(model, batch),
        "share": round(medians["hgat"] / medians["step"], 4),
        "target_share": 0.1,
        **{f"{name}_seconds": [round(value, 4) for value in sorted(values)] for name, values in times.items()},
    }


def sizes(model, batch: dict) -> dict:
    config = model.config
    return {
        "B": len(batch["root_ids"]),
        "D": config.hidden_size,
        "layers": config.num_hidden_layers,
        "parameters": model.num_parameters(),
    }


def stepping(model, call: Callable) -> Callable:
    def step():
        model.zero_grad(set_to_none=True)
        call().backward()

    return step


def full_batch(batch: dict) -> dict[str, torch.Tensor]:
    """Ids and labels [B, 1024]: roots, then the leaf of each root; triples as lists, as the loop reads them."""
    B = len(batch["root_ids"])
    rows = torch.arange(B, device=batch["root_ids"].device)[:, None]
    ids, labels = (batch["root_ids"].new_full((B, S * (1 + L)), value) for value in (PAD, -100))
    ids[:, :S] = batch["root_ids"]
    labels[rows, batch["mlm_positions"]] = batch["mlm_labels"]
    for slot in range(L):
        places = S + batch["head_start"] * L + slot
        ids[rows, places], labels[rows, places] = batch["leaf_ids"][..., slot], batch["mnm_labels"][..., slot]
    names = ("relation_ids", "head_start", "head_length")
    columns = [batch[name].tolist() for name in names]
    triples = [(b, *(column[b][g] for column in columns)) for b in range(B) for g in range(G)]
    return {"ids": ids, "labels": labels, "triples": triples}


class FullLayout:
    """The peer: the formulas of GraphMERT (arXiv 2510.09580) on the weights of our model, laid out as in the paper."""

    def __init__(self, model: GraphMERForPreTraining):
        self.model, self.encoder = model, model.encoder
        self.distance_NN = shortest_paths().to(model.device)

    def loss(self, batch: dict) -> torch.Tensor:
        encoder, ids, labels = self.encoder, batch["ids"], batch["labels"]
        x = encoder.embedding(ids)
        x = encoder.embedding_norm(self.fused(x, batch["triples"]))
        masked = torch.where(ids != PAD, 0.0, float("-inf"))[:, None, None]
        for layer in encoder.layers:
            x = x + self.attention(layer.attention, layer.attention_norm(x), masked)
            x = x + layer.feed_forward(layer.feed_forward_norm(x))
        logits = self.model.token_logits(encoder.norm(x))
        loss = torch.nn.functional.cross_entropy
        V = logits.shape[-1]
        return loss(logits[:, :S].reshape(-1, V), labels[:, :S].flatten()) + loss(
            logits[:, S:].reshape(-1, V), labels[:, S:].flatten()
        )

    def fused(self, x: torch.Tensor, triples: list[tuple[int, int, int, int]]) -> torch.Tensor:
        hgat, fused = self.encoder.hgat, x.clone()
        for b, relation, start, length in triples:
            weight, attention = hgat.weight[relation - 1], hgat.attention[relation - 1].flatten()
            heads = x[b, start : start + length] @ weight.T
            for slot in range(S + start * L, S + (start + 1) * L):
                tail = (weight @ x[b, slot]).expand_as(heads)
                score = torch.nn.functional.leaky_relu(torch.cat((tail, heads), dim=1) @ attention, 0.01)
                fused[b, slot] = x[b, slot] + torch.softmax(score, dim=0) @ heads
        return fused

    def attention(self, attention, x: torch.Tensor, masked: torch.Tensor) -> torch.Tensor:
        B, N, D = x.shape
        query, key, value = attention.inward(x).view(B, N, 3, attention.heads, -1).permute(2, 0, 3, 1, 4)
        offset = self.encoder.decay.offset[:, None, None]
        decay = self.encoder.decay.base ** torch.nn.functional.gelu(torch.sqrt(self.distance_NN + 1) - offset)
        logits = query @ key.transpose(-1, -2) / (D // attention.heads) ** 0.5 * decay
        mixed = torch.softmax(logits + masked, dim=-1) @ value
        return attention.outward(mixed.transpose(1, 2).reshape(B, N, D))


def shortest_paths() -> torch.Tensor:
    """Between all 1,024 positions: the row of roots, each root to its own 7 slots, each slot to the next."""
    from scipy.sparse import coo_array
    from scipy.sparse.csgraph import shortest_path

    edges = [(i, i + 1) for i in range(S - 1)]
    for root in range(S):
        slots = [S + root * L + slot for slot in range(L)]
        edges += [(root, slot) for slot in slots] + list(itertools.pairwise(slots))
    one, other = zip(*edges, strict=True)
    graph = coo_array(([1.0] * len(edges), (one, other)), shape=(S * (1 + L),) * 2)
    return torch.from_numpy(shortest_path(graph.tocsr(), directed=False, unweighted=True)).float()


if __name__ == "__main__":
    main()
