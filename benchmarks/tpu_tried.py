"""Changes to a TPU notebook's step that were tried with Google's TPU compiler, for one chip: bytes, memory, time to compile.

    python benchmarks/tpu_tried.py legal whole           # the step without a change
    python benchmarks/tpu_tried.py legal parts8-again    # queries in eight parts, computed again in the backward pass

The step has fewer layers than the notebook's, which are all alike, so that it compiles in a minute or two.
"""

from __future__ import annotations

import re
import sys
import tempfile
import time
from datetime import date
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import tpu_step as tpu  # noqa: E402
from tpu_compiler import described  # noqa: E402

from helpers.plan.machines import machine, runtime_of  # noqa: E402
from helpers.plan.workloads import Asked, room  # noqa: E402

OUTPUT = ROOT / "docs/results/tpu_tried.json"
CHIP = "v5e-1"
# Layers, micro-batch and length, as the notebooks take them on this chip, and whether gradients are added up.
STEPS = {"legal": (2, 4, 1024, False), "graphmer": (2, 8, 512, True)}


def step_of(name: str, layers: int, folder: Path):
    """The notebook's step with so many layers."""
    from transformers import Qwen2Config

    from helpers.graphmer.configuration import override, to_yaml
    from helpers.graphmer.parameters import GraphParameters
    from helpers.legal.workload import QWEN_HALF_B

    runtime = runtime_of(machine(CHIP))
    if name == "legal":
        Qwen2Config(**QWEN_HALF_B | {"num_hidden_layers": layers}).save_pretrained(folder)
        return room("legal_cot_sft").planned(Asked(model=str(folder)), runtime)[1]
    configuration = GraphParameters.defaults().configuration(runtime)
    file = folder / "configuration.yaml"
    file.write_text(to_yaml(override(configuration, {"model.num_layers": layers})), encoding="utf-8")
    return room("graphmer_se").planned(Asked(model=str(file)), runtime)[1]


# ---- changes


def legal(change: str) -> None:
    import torch
    from transformers.integrations.sdpa_attention import repeat_kv

    from helpers.machine import attention, xla

    def sdpa(query, key, value, mask, scale):
        return torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)

    def wide(query, key, value, mask, scale):
        with torch.autocast("xla", enabled=False):
            logits = (query @ key.transpose(-1, -2)).float() * scale + mask
            return torch.softmax(logits, -1).to(value.dtype) @ value

    def narrow(query, key, value, mask, scale):
        with torch.autocast("xla", enabled=False):
            logits = (query * scale) @ key.transpose(-1, -2) + mask
            return torch.softmax(logits, -1) @ value

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(ctx, query, key, value, mask, scale):
            logits = ((query * scale) @ key.transpose(-1, -2) + mask).float()
            lse = logits.logsumexp(-1, keepdim=True)
            mixed = torch.exp(logits - lse).to(value.dtype) @ value
            ctx.save_for_backward(query, key, value, mask, lse, mixed)
            ctx.scale = scale
            return mixed

        @staticmethod
        def backward(ctx, gradient):
            import torch_xla.core.xla_model as xm

            query, key, value, mask, lse, mixed = ctx.saved_tensors
            gradient = gradient.to(value.dtype)
            xm.optimization_barrier_([query, key, value, mask, lse, mixed, gradient])
            logits = ((query * ctx.scale) @ key.transpose(-1, -2) + mask).float()
            share = torch.exp(logits - lse)
            delta = (gradient.float() * mixed.float()).sum(-1, keepdim=True)
            steep = share * ((gradient @ value.transpose(-1, -2)).float() - delta)
            steep, share = steep.to(value.dtype), share.to(value.dtype)
            shares = share.transpose(-1, -2) @ gradient
            return (steep @ key) * ctx.scale, steep.transpose(-1, -2) @ query * ctx.scale, shares, None, None

    def own(*inputs):
        with torch.autocast("xla", enabled=False):
            return Own.apply(*inputs)

    count = int((re.findall(r"parts(\d+)", change) or [1])[0])
    body = sdpa
    for name, other in (("wide", wide), ("narrow", narrow), ("own", own)):
        if name in change:
            body = other

    def attend(module, query, key, value, mask, scaling=None, **options):
        groups = query.shape[1] // key.shape[1]
        query, key = query.to(value.dtype), key.to(value.dtype)
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        length, mixed = query.shape[2] // count, []
        for end in range(length, query.shape[2] + 1, length):
            asked = slice(end - length, end)
            given = query[:, :, asked], key[:, :, :end], value[:, :, :end], mask[:, :, asked, :end], scaling
            mixed.append(xla.checkpoint_function()(body, *given) if "again" in change else body(*given))
        return torch.cat(mixed, 2).transpose(1, 2), None

    if "head" in change:
        from helpers.legal import packing

        pieces = int(re.findall(r"head(\d+)", change)[0])

        def chunk(hidden, weight, target):
            logits = torch.nn.functional.linear(hidden, weight).float()
            hit = target[..., None] == torch.arange(len(weight), device=target.device)
            return logits.logsumexp(-1), torch.where(hit, logits, 0.0).sum(-1)

        def summed(model, blocks, devices=1, tokens=0):
            base = packing.base_of(model)
            config, head = base.config.get_text_config(), base.get_output_embeddings()
            inputs = {name: blocks[name] for name in ("input_ids", "position_ids")}
            inputs |= {
                "attention_mask": packing.masks_of(blocks["segment_ids"], config, torch.bfloat16),
                "use_cache": False,
            }
            labels_BT = blocks["labels"]
            target_BT = torch.cat([labels_BT[:, 1:], torch.full_like(labels_BT[:, :1], -100)], dim=1)
            hidden_BTD = base.base_model(**inputs).last_hidden_state
            hidden_BTD = hidden_BTD.float()
            found, first = [], 0
            for weight in head.weight.split(pieces):
                found.append(
                    xla.checkpoint_function()(chunk, hidden_BTD, weight, target_BT - first, preserve_rng_state=False)
                )
                first += len(weight)
            sums, hits = zip(*found, strict=False)
            losses = torch.stack(sums).logsumexp(0) - sum(hits)
            return torch.where(target_BT != -100, losses, 0.0).sum()

        packing.summed_loss = summed
        import helpers.legal.training as tr
        import helpers.legal.workload as w

        for module in (w, tr):
            if hasattr(module, "summed_loss"):
                module.summed_loss = summed
    if not change.startswith("whole"):
        attention._sdpa_one_dtype = attend


def graphmer(change: str) -> None:
    import torch
    import torch.nn.functional as F

    from helpers.graphmer import encoder
    from helpers.machine import xla

    count = int((re.findall(r"parts(\d+)", change) or [1])[0])

    def body(query, key, value, decay, bias, dropout):
        with torch.autocast("xla", enabled="auto" in change):
            logits = query @ key.transpose(-1, -2)
            share = torch.softmax(logits.float() * decay.float() + bias.float(), dim=-1).to(value.dtype)
            return F.dropout(share, dropout) @ value

    def forward(self, x_BND, decay_BANN, bias_BANN):
        B, N, D = x_BND.shape
        query, key, value = self.inward(x_BND).view(B, N, 3, self.heads, D // self.heads).permute(2, 0, 3, 1, 4)
        query, length, mixed = query * (D // self.heads) ** -0.5, N // count, []
        for end in range(length, N + 1, length):
            at = slice(end - length, end)
            given = query[:, :, at], key, value, decay_BANN[:, :, at], bias_BANN[:, :, at], self.dropout
            mixed.append(xla.checkpoint_function()(body, *given) if "again" in change else body(*given))
        mixed = torch.cat(mixed, 2)
        return self.outward(mixed.transpose(1, 2).reshape(B, N, D))

    if "bf16" in change:
        decay = encoder.Decay.forward
        encoder.Decay.forward = lambda self, distance: decay(self, distance).bfloat16()
    if change != "whole":
        encoder.Attention.forward = forward


def row_of(name: str, change: str) -> dict:
    layers, examples, length, accumulating = STEPS[name]
    tpu.begin()
    globals()[name](change)
    with tempfile.TemporaryDirectory() as folder:
        step = step_of(name, layers, Path(folder))
    traced = tpu.trace(step, examples, length=length, accumulating=accumulating)
    began = time.perf_counter()
    row = described(tpu.compile_step(traced, CHIP))
    row |= {"seconds": round(time.perf_counter() - began, 1), "date": date.today().isoformat()}
    return row | {"layers": layers, "examples": examples, "length": length, "change": change}


def main(name: str, change: str) -> None:
    row = row_of(name, change)
    print(
        "TRIED",
        name,
        change,
        "moved {:.3f} GiB peak {:.3f} GiB TFLOP {:.3f} {} s".format(
            row["moved"] / 2**30, row["peak"] / 2**30, row["flops"] / 1e12, row["seconds"]
        ),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
