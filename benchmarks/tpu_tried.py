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

OUTPUT = ROOT / "docs/results/tpu_tried.json"
CHIP = "v5e-1"
# Layers, micro-batch and length, as the notebooks take them on this chip, and whether gradients are added up.
STEPS = {"legal": (2, 4, 1024, False), "graphmer": (2, 8, 512, True)}


def step_of(name: str, layers: int, length: int, folder: Path) -> tpu.Step:
    """The notebook's step with so many layers."""
    from transformers import Qwen2Config

    from helpers.graphmer.configuration import override, to_yaml
    from helpers.graphmer.parameters import GraphParameters

    runtime = tpu.runtime_of(CHIP)
    if name == "legal":
        Qwen2Config(**tpu.QWEN_HALF_B | {"num_hidden_layers": layers}).save_pretrained(folder)
        return tpu.notebook_step("legal_cot_sft", runtime, model=str(folder), length=length)[1]
    configuration = GraphParameters.defaults().configuration(runtime)
    file = folder / "configuration.yaml"
    file.write_text(to_yaml(override(configuration, {"model.num_layers": layers})), encoding="utf-8")
    return tpu.notebook_step("graphmer_se", runtime, model=str(file), length=length)[1]


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


def main(name: str, parts: str, *changes: str) -> None:
    attention.QUERY_PARTS = int(parts)
    layers, examples, length, accumulating = STEPS[name]
    tpu.begin()
    about = this_machine("cpu")
    for change in changes:
        globals()[change]()
    with tempfile.TemporaryDirectory() as folder:
        step = step_of(name, layers, length, Path(folder))
    traced = tpu.trace(step, examples, accumulating=accumulating)
    began = time.process_time()
    row = described(tpu.compile_step(traced, CHIP))
    row |= {"seconds": time.process_time() - began}
    row |= {"layers": layers, "parts": parts, "change": " ".join(globals()[change].__doc__ for change in changes)}
    tried = json.loads(OUTPUT.read_text(encoding="utf-8"))["tried"]
    write(OUTPUT, about, tried=tried | {" ".join(sys.argv[1:]): row})


if __name__ == "__main__":
    main(*sys.argv[1:])
