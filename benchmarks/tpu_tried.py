"""Changes to a TPU notebook's step that were tried with Google's TPU compiler, for one chip: bytes, memory, time to compile.

    python benchmarks/tpu_tried.py legal 1             # the step with attention whole, and then in parts and with changes:
    python benchmarks/tpu_tried.py legal 8 again

The step has fewer layers than the notebook's, which are all alike, so that it compiles in a minute or two. The seconds are those of
the processor.
"""

import functools
import json
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent)]

import tpu_step as tpu  # noqa: E402
from report import machine as this_machine  # noqa: E402
from report import write  # noqa: E402
from tpu_compiler import described  # noqa: E402

from helpers.machine import attention, xla  # noqa: E402
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


def again() -> None:
    """Attention is computed again in the backward pass, and nothing of it is kept."""
    from transformers.integrations import sdpa_attention

    from helpers.graphmer import encoder

    def recomputed(function):
        def call(module, *inputs, **options):
            bound = functools.partial(function, **options)
            return xla.checkpoint_function()(bound, module, *inputs)

        return call

    encoder.Attention.forward = recomputed(encoder.Attention.forward)
    sdpa_attention.sdpa_attention_forward = recomputed(sdpa_attention.sdpa_attention_forward)


def flash() -> None:
    """torch_xla's flash kernel in the place of the attention matrix, with the segments of a packed block."""
    import jax
    import torch
    from jax._src import tpu_custom_call
    from jax.experimental.pallas.ops.tpu import flash_attention  # noqa: F401  registers what it is lowered by
    from torch_xla.experimental import custom_kernel
    from transformers import AttentionInterface
    from transformers.integrations.sdpa_attention import repeat_kv
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    from helpers.legal import packing

    def trace_pallas(kernel, *args, static_argnums=None, static_argnames=None, use_cache=False, **options):
        """The library's own, but for a TPU that is not there."""
        shapes = [custom_kernel.to_jax_shape_dtype_struct(one) if torch.is_tensor(one) else one for one in args]
        jitted = jax.jit(kernel, static_argnums=static_argnums, static_argnames=static_argnames)
        lowered = jitted.trace(*shapes, **options).lower(lowering_platforms=("tpu",))
        payload = custom_kernel._extract_backend_config(lowered.compiler_ir())
        return payload, [one for one in args if torch.is_tensor(one)]

    def attend(module, query, key, value, segments, scaling=None, **_):
        groups, segments = query.shape[1] // key.shape[1], segments[:, 0, 0]
        parts = query.to(value.dtype), repeat_kv(key.to(value.dtype), groups), repeat_kv(value, groups)
        return custom_kernel.flash_attention(*parts, True, segments, segments, scaling).transpose(1, 2), None

    tpu_custom_call.get_ir_version = lambda context: 7  # which a libtpu reads that is older than the jax
    custom_kernel.trace_pallas = trace_pallas
    AttentionInterface.register("pallas", attend)
    AttentionMaskInterface.register("pallas", sdpa_mask)
    attention.use_one_dtype = lambda model: model.set_attn_implementation("pallas")
    packing.masks_of = lambda segments_BT, config, dtype: segments_BT[:, None, None].to(torch.int32)


def scan() -> None:
    """One layer is compiled and looped over (torch_xla's `scan_layers`)."""
    import torch
    from torch_xla.experimental.scan_layers import scan_layers
    from transformers.models.qwen2 import modeling_qwen2

    class Carrying(torch.nn.Module):
        def __init__(self, layer):
            super().__init__()
            self.layer = layer

        def forward(self, x, mask, cos, sin):
            return self.layer(x, attention_mask=mask, position_embeddings=(cos, sin)), mask, cos, sin

    def forward(self, input_ids, attention_mask, position_ids, **_):
        x = self.embed_tokens(input_ids)
        carry = x, attention_mask, *self.rotary_emb(x, position_ids)
        x = scan_layers([*map(Carrying, self.layers)], carry, is_layer_pure=True)[0]
        return modeling_qwen2.BaseModelOutputWithPast(last_hidden_state=self.norm(x))

    modeling_qwen2.Qwen2Model.forward = forward


def main(name: str, parts: str, *changes: str) -> None:
    attention.QUERY_PARTS = int(parts)
    layers, examples, length, accumulating = STEPS[name]
    tpu.begin()
    about = this_machine("cpu")
    for change in changes:
        globals()[change]()
    with tempfile.TemporaryDirectory() as folder:
        step = step_of(name, layers, Path(folder))
    traced = tpu.trace(step, examples, length=length, accumulating=accumulating)
    began = time.process_time()
    row = described(tpu.compile_step(traced, CHIP))
    row |= {"seconds": time.process_time() - began}
    row |= {"layers": layers, "parts": parts, "change": " ".join(globals()[change].__doc__ for change in changes)}
    tried = json.loads(OUTPUT.read_text(encoding="utf-8"))["tried"]
    write(OUTPUT, about, tried=tried | {" ".join(sys.argv[1:]): row})


if __name__ == "__main__":
    main(*sys.argv[1:])
