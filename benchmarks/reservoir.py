"""Speed of the reservoirs' states, as ratios against a named peer measured in the same run.

    python benchmarks/reservoir.py                  # CPU: against reservoirpy, a Python loop, a transformer's step
    python benchmarks/reservoir.py --device cuda    # a GPU: against its own matrix products, and the same

On a CPU times are processor seconds, which other work on the machine changes little: set OMP_NUM_THREADS=1, or they are the sum over threads.
Prints one line of JSON a comparison and writes all of them, with the machine, to docs/results.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks import report  # before torch, which it gives huge pages

# isort: split
import torch

from benchmarks.timing import seconds_of, taking_turns
from helpers.reservoir import scans
from helpers.reservoir.architecture import Tanh
from helpers.reservoir.model import ReservoirConfig, ReservoirForCausalLM
from helpers.reservoir.parameters import ReservoirParameters
from helpers.reservoir.reservoirs import Reservoirs
from helpers.reservoir.transformer import equal_transformer

# B batch · T tokens · N units · G blocks · V vocabulary

TOKENS = 16  # V, in favour of reservoirpy: it multiplies W_in by a one-hot vector, where we take a row
PROBED_SEQUENCES = 16  # of the batch, to find out which form of the peer is the fastest
GPU_UNITS = 4096
LEAK = 0.5
STEPS_A_TURN = 4  # of training: one alone differs from the next by more than a tenth on a machine that others use


def main() -> None:
    arguments = report.parsed(report.argument_parser(__doc__, repetitions=5), "reservoir_benchmark")
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    machine = report.machine(device.type, ("torch", "reservoirpy", "numpy", "scipy"))
    results = []
    for comparison in COMPARISONS[device.type]:
        for result in comparison(device, arguments.repetitions):
            print(json.dumps(result), flush=True)
            results.append(result)
    report.write(arguments.output, machine, repetitions=arguments.repetitions, comparisons=results)


# ---- states, against reservoirpy


def states(device: torch.device, repetitions: int):
    """Leaky-tanh states of 64 sequences of 128 tokens in fp32, against `reservoirpy.nodes.Reservoir` on the same weights."""
    for N, G in ((1024, 1), (2048, 1), (1024, 8), (1024, 16), (2048, 8), (2048, 16)):
        reservoirs = drawn(N, G)
        ids_BT = torch.randint(TOKENS, (64, 128))
        inputs_BTV = np.eye(TOKENS, dtype=np.float32)[ids_BT.numpy()]
        ours = partial(tanh_states, reservoirs, ids_BT, torch.zeros(len(ids_BT), N))
        options = reservoirpy_options(reservoirs.layers[0][0])
        _, speeds = fastest(options, (inputs_BTV[:PROBED_SEQUENCES],), PROBED_SEQUENCES * ids_BT.shape[1], device)
        best = max(speeds, key=speeds.get)
        # The form that reservoirpy's own initialisers return (csr), and the best that a user could have found.
        usual = max((name for name in speeds if name.startswith("csr" if G > 1 else "dense fp32")), key=speeds.get)
        targets = {usual: 3 if G == 1 else 10}
        for name in dict.fromkeys((usual, best)):
            peer = partial(options[name], inputs_BTV)
            require_equal(ours(), torch.from_numpy(peer()), 1e-5)
            yield {
                "comparison": f"tanh states, {'dense' if G == 1 else f'{G} blocks'}",
                "sizes": {"N": N, "blocks": G, "B": len(ids_BT), "T": ids_BT.shape[1], "V": TOKENS},
                "peer": f"reservoirpy.nodes.Reservoir.run, {name}",
                "peer_options_tokens_per_second": speeds,
                "target_ratio": targets.get(name),
            } | compare(ours, peer, ids_BT.numel(), device, repetitions)


def tanh_states(reservoirs: Reservoirs, ids_BT: torch.Tensor, state_BN: torch.Tensor) -> torch.Tensor:
    return reservoirs(ids_BT, state_BN)[0][0]


def reservoirpy_options(reservoir) -> dict[str, Callable]:
    """Everything that reservoirpy offers for one set of weights: name -> states [B, T, N] of one-hot inputs [B, T, V].

    All run one sequence at a time, in one process: the processor time of several workers would not be seen here. Its state is
    fp64 unless replaced, which with fp32 weights converts W at every token: fp32 is both.
    """
    import scipy.sparse
    from reservoirpy.nodes import Reservoir

    G, M, _ = reservoir.weight.shape
    dense_NN = torch.block_diag(*reservoir.weight).numpy()
    forms = {"dense": dense_NN}
    if G > 1:
        blocks = {f"bsr {size}": scipy.sparse.bsr_array(dense_NN, blocksize=(size, size)) for size in (16, M)}
        forms |= {"csr": scipy.sparse.csr_array(dense_NN)} | blocks
    weights = {f"{name} fp32": (W, np.float32) for name, W in forms.items()} | {"dense fp64": (dense_NN, np.float64)}

    def option(W, dtype):
        win_NV = np.ascontiguousarray(reservoir.input_weight.numpy().T.astype(dtype))
        bias_N = reservoir.bias.numpy().astype(dtype)
        node = Reservoir(W=W.astype(dtype), Win=win_NV, bias=bias_N, lr=LEAK, dtype=dtype)

        def run(inputs_BTV):
            inputs_BTV = inputs_BTV.astype(dtype, copy=False)
            if not node.initialized:
                node.initialize(inputs_BTV)
            node.state = {"out": np.zeros(len(bias_N), dtype)}
            return node.run(inputs_BTV, workers=1)

        return run

    return {name: option(*weight) for name, weight in weights.items()}


# ---- diagonal scan, against a Python loop


def diagonal_scan(device: torch.device, repetitions: int):
    """The complex-diagonal scan over 1,024 tokens in chunks, against a plain loop over time."""
    T = 1024
    for B, N in ((1, 128), (1, 256), (1, 512), (8, 512)):
        radius_N, phase_N = 0.999 * torch.rand(N), torch.pi * torch.rand(N)
        multiplier_2N = torch.stack((radius_N * phase_N.cos(), radius_N * phase_N.sin())).to(device)
        drive_BTN = torch.randn(B, T, N).to(device)
        state_B2N = torch.randn(B, 2, N).to(device)
        ours = partial(scans.linear, drive_BTN, multiplier_2N, state_B2N, scans.chunked)
        numbers = (drive_BTN, torch.complex(*multiplier_2N), torch.complex(*state_B2N.unbind(1)))
        options = {"drive as fp32": loop, "drive as complex64": lambda u, *rest: loop(u.to(torch.complex64), *rest)}
        name, speeds = fastest(options, numbers, B * T, device)
        peer = partial(options[name], *numbers)
        expected = torch.view_as_real(peer()).transpose(2, 3)
        require_equal(ours() / expected.abs().max(), expected / expected.abs().max(), 1e-5)
        yield {
            "comparison": "diagonal scan",
            "sizes": {"N": N, "B": B, "T": T},
            "peer": f"Python loop s = lam * s + u[:, t] in complex64, appended and stacked, {name}",
            "peer_options_tokens_per_second": speeds,
            "target_ratio": 5 if B == 1 else None,
        } | compare(ours, peer, B * T, device, 5 * repetitions)  # milliseconds each


def loop(drive_BTN, multiplier_N, state_BN):
    states = []
    for t in range(drive_BTN.shape[1]):
        state_BN = multiplier_N * state_BN + drive_BTN[:, t]
        states.append(state_BN)
    return torch.stack(states, 1)


# ---- states on a GPU, against the matrix products alone


def states_on_gpu(device: torch.device, repetitions: int):
    """Dense states under bf16 autocast, against nothing but their T products W s: the ratio is the products' share of time."""
    N, T = GPU_UNITS, 128
    reservoirs = drawn(N, 1).to(device)
    weight_NN = reservoirs.layers[0][0].weight[0].T.to(torch.bfloat16).contiguous()
    for B in (64, 512, 1024):
        ids_BT = torch.randint(TOKENS, (B, T)).to(device)
        zero_BN = torch.zeros((B, N), device=device)
        state_BN = torch.rand((B, N), device=device).to(torch.bfloat16)
        ours = partial(in_bf16, tanh_states, reservoirs, ids_BT, zero_BN)
        require_equal(ours()[:8], tanh_states(reservoirs, ids_BT[:8], zero_BN[:8]), 5e-2)
        result = compare(ours, partial(products, state_BN, weight_NN, T), ids_BT.numel(), device, repetitions)
        yield {
            "comparison": "tanh states, dense, bf16 autocast",
            "sizes": {"N": N, "blocks": 1, "B": B, "T": T, "V": TOKENS},
            "peer": "torch.mm of the same shapes in bf16, T times",
            "target_tokens_per_second": 3_000_000 if B >= 512 else None,
            "peer_tflops_per_second": round(2 * N**2 * result["peer_tokens_per_second"] / 1e12, 1),
        } | result


def in_bf16(call: Callable, reservoirs: Reservoirs, ids_BT: torch.Tensor, state_BN: torch.Tensor) -> torch.Tensor:
    with torch.autocast(ids_BT.device.type, dtype=torch.bfloat16):
        return call(reservoirs, ids_BT, state_BN)


def products(state_BN: torch.Tensor, weight_NN: torch.Tensor, count: int) -> None:
    product_BN = torch.empty_like(state_BN)
    for _ in range(count):
        torch.mm(state_BN, weight_NN, out=product_BN)


# ---- a training step, against a transformer's


def training_step(device: torch.device, repetitions: int):
    """Optimizer steps of the notebook's model, 16 blocks of 128 tokens, against a Llama of as many parameters.

    Random weights and tokens: neither changes the work. The vocabulary is that of 2,000 stories in GPT-2's tokens.
    """
    for autocast in (False, True):
        yield _training_step(device, repetitions, autocast)


def _training_step(device: torch.device, repetitions: int, autocast: bool) -> dict:
    V, B, T = 8811, 16, 128
    config = ReservoirConfig(vocab_size=V, eos_token_id=0, **ReservoirParameters.defaults().architecture)
    ours = ReservoirForCausalLM.initialise(config, codes_VC=torch.randn(V, 256))
    trainable = ours.parameter_counts()["trainable"]
    peer = equal_transformer(V, trainable, T, seed=0, eos_token_id=0)
    ids_BT = torch.randint(V, (B, T)).to(device)
    steps = {name: stepping(model.to(device), ids_BT, autocast) for name, model in (("ours", ours), ("peer", peer))}
    return {
        "comparison": f"training step, {'bf16 autocast' if autocast else 'fp32'}",
        "sizes": {"B": B, "T": T, "V": V, "trainable": trainable},
        "peer": f"transformers LlamaForCausalLM, {peer.num_parameters():,} parameters, "
        f"{peer.config.num_hidden_layers} layers, same batch and optimizer",
        "target_ratio": 1,
    } | compare(steps["ours"], steps["peer"], STEPS_A_TURN * B * T, device, 3 * repetitions)


def stepping(model: torch.nn.Module, ids_BT: torch.Tensor, autocast: bool) -> Callable:
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def steps():
        for _ in range(STEPS_A_TURN):
            with torch.autocast(ids_BT.device.type, dtype=torch.bfloat16, enabled=autocast):
                loss = model(input_ids=ids_BT, labels=ids_BT).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()

    return steps


COMPARISONS = {"cpu": (states, diagonal_scan, training_step), "cuda": (states_on_gpu, diagonal_scan, training_step)}


# ---- measuring


def drawn(N: int, G: int) -> Reservoirs:
    reservoirs = Reservoirs(((Tanh(size=N, blocks=G, leak=LEAK),),), TOKENS)
    reservoirs.draw(0)
    return reservoirs


def compare(ours: Callable, peer: Callable, tokens: int, device: torch.device, repetitions: int) -> dict:
    """Tokens/s of both by their median times, after a warm-up of each; they take turns, so that both see a busy machine.

    `ratio_range` is that of the middle half of the turns.
    """
    times = taking_turns({"ours": ours, "peer": peer}, device, repetitions, time.process_time)
    ratios = [theirs / mine for mine, theirs in zip(times["ours"], times["peer"], strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "ratio": round(medians["peer"] / medians["ours"], 2),
        "ratio_range": [round(low, 2), round(high, 2)],
        **{f"{name}_tokens_per_second": round(tokens / median) for name, median in medians.items()},
        **{f"{name}_seconds": [round(seconds, 6) for seconds in sorted(values)] for name, values in times.items()},
    }


def fastest(options: dict[str, Callable], arguments: tuple, tokens: int, device: torch.device) -> tuple[str, dict]:
    """Name of the fastest of a peer's forms, and tokens/s of all: the better of two runs after a warm-up."""
    speeds = {}
    for name, call in options.items():
        seconds = [seconds_of(partial(call, *arguments), device, time.process_time) for _ in range(3)]
        speeds[name] = round(tokens / min(seconds[1:]))
    return max(speeds, key=speeds.get), speeds


def require_equal(ours: torch.Tensor, peer: torch.Tensor, tolerance: float) -> None:
    difference = float((ours - peer).abs().max())
    if not difference <= tolerance:
        raise SystemExit(
            f"no ratio reported: states differ from the peer's by {difference:.1e}, allowed {tolerance:.0e}"
        )


if __name__ == "__main__":
    main()
