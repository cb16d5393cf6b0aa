"""Parts of the models on a GPU by themselves: attention over packed segments, SIGReg, the reservoirs' recurrences."""

from __future__ import annotations

import copy
import functools
import inspect
import statistics
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT)]

from benchmarks.gpu_parts import Here  # noqa: E402
from helpers.machine import runtime  # noqa: E402  before transformers, which it tells whether there is a TPU

HERE = runtime.detect(False)

import torch  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402
from torch.nn.functional import linear  # noqa: E402

from benchmarks.timing import taking_turns  # noqa: E402

# B blocks · T tokens · H heads · G heads of keys and values · D size of a head · N texts or units · K embedding · M slices

REPETITIONS = 9
HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}

Call = Callable[[], "tuple[torch.Tensor, ...]"]


def compared(sides: dict[str, Call], reference: tuple, here: Here, tolerance: float) -> dict:
    """Time, memory and distance from `reference` of each side that works; of the others the error.

    The distance is the largest difference of a result, as a share of its largest value; `equal` where it is at most `tolerance`.
    """
    device, found, works = torch.device(here.kind), {}, {}
    for name, call in sides.items():
        try:
            call()  # compiles
            difference = max(_distance(*pair) for pair in zip(call(), reference, strict=True))
            found[name] = {
                "difference": difference,
                "equal": difference <= tolerance,
                "extra_bytes": _extra(call, device),
            }
            works[name] = call
        except Exception as error:  # one that this torch or this GPU has not is a row of its own
            found[name] = {"error": f"{type(error).__name__}: {error}"[:300]}
    for name, seconds in taking_turns(works, device, REPETITIONS).items():
        found[name] |= {
            "milliseconds": round(1000 * statistics.median(seconds), 4),
            "milliseconds_range": [round(1000 * each, 4) for each in (min(seconds), max(seconds))],
        }
    return found


def _distance(found: torch.Tensor, expected: torch.Tensor) -> float:
    expected = expected.float()
    return float((found.float() - expected).abs().max() / expected.abs().max())


def _extra(call: Callable, device: torch.device) -> int | None:
    """Bytes at the fullest moment of a call beyond those before it."""
    if device.type != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    call()
    return torch.cuda.max_memory_allocated() - before


def with_gradients(function: Callable, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Value and gradients for the gradient of its sum of squares."""
    for each in inputs:
        each.grad = None
    value = function(*inputs)
    value.float().square().sum().backward()
    return value.detach(), *(each.grad for each in inputs)


# ---- attention


def attention(here: Here) -> dict:
    """Attention over packed segments, forward and backward: fused kernels against the mask, in this GPU's half precision."""
    from datasets import Dataset
    from transformers.integrations.sdpa_attention import sdpa_attention_forward
    from trl import pack_dataset

    from helpers.legal.packing import FixedBlocks, _segmentwise, mask_of

    B, T, H, G, D = (2, 64, 4, 2, 16) if here.small else (8, 1024, 14, 2, 64)
    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(T // 10, T, (4 * B,), generator=generator).tolist()
    tokens = [
        torch.randint(5, 1_000 if not here.small else 200, (size,), generator=generator).tolist() for size in lengths
    ]
    rows = pack_dataset(Dataset.from_list([{"input_ids": ids, "labels": ids} for ids in tokens]), T, "bfd")
    batch = FixedBlocks(T, 0)([rows[number] for number in range(B)])
    first = torch.nonzero(batch["position_ids"].flatten() == 0).flatten()
    batch["segment_starts"] = torch.cat([first, torch.tensor([B * T])]).to(torch.int32)
    batch = {name: tensor.to(here.kind) for name, tensor in batch.items()}
    segments_BT, starts = batch["segment_ids"], batch["segment_starts"]
    mask, module = mask_of(segments_BT, "sdpa"), SimpleNamespace(num_key_value_groups=H // G, is_causal=True)
    # Padding has no gradient: no loss reads it, and every kernel fills it in its own way.
    real_BT11 = (segments_BT > 0)[..., None, None]
    dtype = HALF.get(HERE.precision, torch.bfloat16)
    drawn = [torch.randn(B, heads, T, D, generator=generator).to(here.kind) for heads in (H, G, G)]
    exact = [each.clone().requires_grad_() for each in drawn]
    half = [each.to(dtype).requires_grad_() for each in drawn]

    def masked(*qkv):
        return real_BT11 * sdpa_attention_forward(module, *qkv, mask)[0]

    def one_by_one(*qkv):
        flat = [each.transpose(1, 2).flatten(0, 1).transpose(0, 1)[None] for each in qkv]
        return real_BT11 * _segmentwise(module, *flat, None, cu_seq_lens_q=starts)[0][0].unflatten(0, (B, T))

    def by_starts(kernel, **options):
        def call(*qkv):
            flat = [each.transpose(1, 2).flatten(0, 1) for each in qkv]
            if kernel.__name__ == "varlen_attn" and "enable_gqa" not in options:
                flat[1:] = [each.repeat_interleave(H // G, dim=1) for each in flat[1:]]
            return real_BT11 * kernel(*flat, starts, starts, T, T, **options).unflatten(0, (B, T))

        return call

    sides = {"mask": masked, "one segment after the other": one_by_one}
    missing = {}
    if here.kind == "cuda":
        sides["flex_attention, compiled"] = _flex(segments_BT, real_BT11)
        try:
            from torch.nn.attention.varlen import varlen_attn

            sides["torch varlen_attn"] = by_starts(varlen_attn, **_causal(varlen_attn))
        except ImportError as error:  # before torch 2.10
            missing["torch varlen_attn"] = {"error": str(error)}
        try:
            from flash_attn import flash_attn_varlen_func

            sides["flash-attn"] = by_starts(flash_attn_varlen_func, causal=True)
        except ImportError as error:
            missing["flash-attn"] = {"error": str(error)}
    with sdpa_kernel(SDPBackend.MATH):
        reference = with_gradients(masked, *exact)
    calls = {name: partial(with_gradients, side, *half) for name, side in sides.items()}
    tolerance = 2 * max(_distance(*pair) for pair in zip(calls["mask"](), reference, strict=True))
    found = {
        "sizes": {"B": B, "T": T, "H": H, "G": G, "D": D, "segments": len(starts) - 1, "dtype": str(dtype)},
        "tolerance": f"{tolerance:.1e}: twice the distance of the mask in half precision from the mask in fp32",
        "operator": compared(calls, reference, here, tolerance) | missing,
    }
    here.keep(found)
    return found | {"model": _in_a_model(batch, dtype, here)}


def _causal(varlen_attn: Callable) -> dict:
    """How this torch's `varlen_attn` is told that no token sees a later one, and that heads share keys."""
    known = inspect.signature(varlen_attn).parameters
    causal = {"window_size": (-1, 0)} if "window_size" in known else {"is_causal": True}
    return causal | ({"enable_gqa": True} if "enable_gqa" in known else {})


def _flex(segments_BT: torch.Tensor, real_BT11: torch.Tensor) -> Callable:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    def seen(b, h, q, k):
        return (segments_BT[b, q] == segments_BT[b, k]) & (q >= k)

    B, T = segments_BT.shape
    blocks = functools.cache(
        lambda: create_block_mask(seen, B, None, T, T, device="cuda")
    )  # of a batch, for all layers
    compiled = torch.compile(flex_attention)
    return lambda *qkv: real_BT11 * compiled(*qkv, block_mask=blocks(), enable_gqa=True).transpose(1, 2)


def _in_a_model(batch: dict[str, torch.Tensor], dtype: torch.dtype, here: Here) -> dict:
    """Loss and gradient of four layers of Qwen2.5-0.5B, by the mask and by the attention that the notebook chooses here."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    from helpers.legal.loss import tiled_loss
    from helpers.legal.packing import choose_attention, mask_of
    from helpers.legal.workload import QWEN_HALF_B

    tiny = {"hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "vocab_size": 200}
    torch.manual_seed(0)
    config = Qwen2Config(**QWEN_HALF_B | {"num_hidden_layers": 4} | (tiny if here.small else {}))
    exact = Qwen2ForCausalLM(config).to(here.kind)

    def step(model, varlen: bool) -> tuple[torch.Tensor, ...]:
        named = {name: batch[name] for name in ("input_ids", "position_ids", "labels")}
        if varlen:  # as TRL gives it: one row
            starts, longest = batch["segment_starts"], batch["input_ids"].shape[1]
            named = {name: tensor.flatten()[None] for name, tensor in named.items()}
            attended = {
                "cu_seq_lens_q": starts,
                "cu_seq_lens_k": starts,
                "max_length_q": longest,
                "max_length_k": longest,
            }
        else:
            attended = {"attention_mask": mask_of(batch["segment_ids"], model.config._attn_implementation)}
        model.zero_grad()
        loss = tiled_loss(model, named.pop("labels"), **named, **attended)
        loss.backward()
        return loss.detach(), model.model.layers[0].self_attn.q_proj.weight.grad

    reference = tuple(each.clone() for each in step(exact, varlen=False))
    models = {"mask": _in_dtype(exact, dtype)}
    tolerance = 2 * max(_distance(*pair) for pair in zip(step(models["mask"], False), reference, strict=True))
    other = _in_dtype(exact, dtype)
    name, reason = choose_attention(other, HERE, batch["input_ids"].shape[1])
    if name != "sdpa":
        models[name] = other
    calls = {name: partial(step, model, name != "mask") for name, model in models.items()}
    return {"chosen": name, "why": reason, **compared(calls, reference, here, tolerance)}


def _in_dtype(model, dtype: torch.dtype):
    """A copy with its weights in `dtype`; rotary frequencies stay fp32, as in a model that is loaded."""
    copied = copy.deepcopy(model)
    for weight in copied.parameters():
        weight.data = weight.data.to(dtype)
    return copied


# ---- SIGReg


def sigreg(here: Here) -> dict:
    """SIGReg's value and gradient in fp32, eager and compiled; the aim is 2 ms. The slices' drawing on the host stands apart."""
    from helpers.lejepa.loss import KNOTS, SIGReg, _EppsPulley, plain_sigreg

    N, K, M = (64, 16, 8) if here.small else (2048, 384, 512)
    torch.manual_seed(0)
    statistic = SIGReg(M).to(here.kind)
    slices_MK = statistic.slices(K, 0).to(here.kind)
    embeddings_NK = torch.randn(N, K, device=here.kind, requires_grad=True)

    def closed_form(embeddings_NK):
        return _EppsPulley.apply(linear(embeddings_NK, slices_MK)[None], statistic)

    def autograd(embeddings_NK):
        return plain_sigreg(embeddings_NK, slices_MK)

    on_cuda = here.kind == "cuda"
    compiled = partial(torch.compile, backend="inductor" if on_cuda else "aot_eager")  # a CPU has perhaps no compiler
    losses = {
        "whole call, eager": lambda embeddings_NK: statistic(embeddings_NK[None], 0),
        "closed form, eager": closed_form,
        "closed form, compiled": compiled(closed_form),
        "autograd, eager": autograd,
        "autograd, compiled": compiled(autograd),
    }
    if on_cuda:
        losses["closed form, CUDA graph"] = torch.compile(closed_form, mode="reduce-overhead")
        losses["autograd, CUDA graph"] = torch.compile(autograd, mode="reduce-overhead")

    def trained(loss) -> tuple[torch.Tensor, torch.Tensor]:
        embeddings_NK.grad = None
        value = loss(embeddings_NK)
        value.backward()
        return value.detach().clone(), embeddings_NK.grad.clone()

    exact_NK = embeddings_NK.detach().double().requires_grad_()
    value = plain_sigreg(exact_NK, slices_MK.double())
    value.backward()
    drawing = taking_turns({"": lambda: statistic.slices(K, 0)}, torch.device("cpu"), REPETITIONS)
    return {
        "sizes": {"N": N, "K": K, "M": M, "knots": KNOTS},
        "aim_milliseconds": 2,
        "backend": "inductor" if on_cuda else "aot_eager",
        "drawing_slices_on_the_host_milliseconds": round(1000 * statistics.median(drawing[""]), 4),
        "sides": compared(
            {name: partial(trained, loss) for name, loss in losses.items()}, (value.detach(), exact_NK.grad), here, 1e-4
        ),
    }


# ---- the reservoir's recurrence


def recurrence(here: Here) -> dict:
    """States of 8,192 tokens: the plain loop over time, and as the model runs it (one CUDA graph on a GPU)."""
    from helpers.reservoir.model import Reservoir, ReservoirConfig, over_time

    B, T = (2, 16) if here.small else (64, 128)
    torch.manual_seed(0)
    found = {"sizes": {"B": B, "T": T}, "tanh": {}}
    for N, blocks in ((16, 2), (16, 1)) if here.small else ((3072, 24), (1024, 1), (4096, 1)):
        config = ReservoirConfig(vocab_size=64, units=N, unit_blocks=blocks, input_codes=8)
        reservoir = Reservoir(config)
        reservoir.draw(torch.randn(64, 8))
        reservoir = reservoir.to(here.kind)
        ids_BT = torch.randint(64, (B, T), device=here.kind)
        state_BN, one_BT = torch.zeros(B, N, device=here.kind), torch.ones_like(ids_BT)
        drive_TBN = (reservoir.codes[ids_BT].float() @ reservoir.input_map + reservoir.bias).transpose(0, 1)
        one_TB1 = one_BT.float().T[..., None]
        given = (reservoir.weight, state_BN, drive_TBN, one_TB1, config.leak * one_TB1)
        sides = {
            "loop": lambda given=given: (over_time(*given).transpose(0, 1),),
            "model": lambda r=reservoir, i=ids_BT, s=state_BN, o=one_BT: (r(i, s, o, o, i < 0),),
        }
        found["tanh"][f"{N} units, {blocks} blocks"] = compared(sides, sides["loop"](), here, 1e-4)
        here.keep(found)
    return found
